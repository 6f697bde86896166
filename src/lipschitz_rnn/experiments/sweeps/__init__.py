"""Sweeps: many configurations from one TOML file, trained on one machine or a cluster, chosen on validation data."""

from lipschitz_rnn.experiments.sweeps.reading import Sweep as Sweep
from lipschitz_rnn.experiments.sweeps.reading import read_sweep as read_sweep
from lipschitz_rnn.experiments.sweeps.running import run_sweep as run_sweep
