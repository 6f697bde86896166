"""Compares runs: scores over seeds by unit and task, paired tests, ranks, cost and joint learning curves."""

from lipschitz_rnn.experiments.comparison.collecting import compare as compare
from lipschitz_rnn.experiments.comparison.writing import write_comparison as write_comparison
