"""Recurrent units: the Lipschitz unit and the units it is compared with, all called like `torch.nn.RNN`."""

from lipschitz_rnn.units.registry import UnitInfo as UnitInfo
from lipschitz_rnn.units.registry import available as available
from lipschitz_rnn.units.registry import build as build
from lipschitz_rnn.units.registry import info as info
from lipschitz_rnn.units.registry import register as register
