"""The way from a run folder to its networks, which lives where runs are written: see `training.runs`."""

from lipschitz_rnn.training.runs import LoadedRun as LoadedRun
from lipschitz_rnn.training.runs import load_run as load_run
