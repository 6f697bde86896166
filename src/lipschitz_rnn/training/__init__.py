"""Training that knows no task or unit by name: settings in, tested networks and a run folder out, and back."""

from lipschitz_rnn.training.checkpoint import CheckpointError as CheckpointError
from lipschitz_rnn.training.evaluation import evaluate as evaluate
from lipschitz_rnn.training.fitting import fit as fit
from lipschitz_rnn.training.folder import RunError as RunError
from lipschitz_rnn.training.interrupts import Interrupted as Interrupted
from lipschitz_rnn.training.loop import Diverged as Diverged
from lipschitz_rnn.training.model import SequenceModel as SequenceModel
from lipschitz_rnn.training.model import build_model as build_model
from lipschitz_rnn.training.probing import Moment as Moment
from lipschitz_rnn.training.results import Result as Result
from lipschitz_rnn.training.runs import LoadedRun as LoadedRun
from lipschitz_rnn.training.runs import load_run as load_run
from lipschitz_rnn.training.settings import Settings as Settings
from lipschitz_rnn.training.watchers import Watcher as Watcher
