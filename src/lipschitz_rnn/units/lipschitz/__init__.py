"""The Lipschitz recurrent unit: the layer, the cell and the parametrization of the hidden matrices."""

from lipschitz_rnn.units.lipschitz.cell import LipschitzRNNCell as LipschitzRNNCell
from lipschitz_rnn.units.lipschitz.layer import LipschitzRNN as LipschitzRNN
from lipschitz_rnn.units.lipschitz.parametrization import SymmetricSkew as SymmetricSkew
