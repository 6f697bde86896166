"""Engines run many functions: in this process, in processes of this machine, or on a Ray cluster."""

from lipschitz_rnn.experiments.engines.base import Ended as Ended
from lipschitz_rnn.experiments.engines.base import Engine as Engine
from lipschitz_rnn.experiments.engines.base import InProcess as InProcess
from lipschitz_rnn.experiments.engines.base import make_engine as make_engine
