"""The scan of orthogonal units with the modReLU nonlinearity."""

from lipschitz_rnn.ops.modrelu.reference import modrelu as modrelu
from lipschitz_rnn.ops.modrelu.scan import modrelu_scan as modrelu_scan
