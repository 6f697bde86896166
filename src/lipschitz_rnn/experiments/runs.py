"""Old import path of `load_run`, which is now in `training.runs`."""

from lipschitz_rnn.training.runs import LoadedRun as LoadedRun
from lipschitz_rnn.training.runs import load_run as load_run
