"""The scans, without parameters: one folder each, with its plain reference, its CPU path and its Triton kernels.

``lipschitz`` integrates the Lipschitz recurrence, ``lstm`` and ``modrelu`` run the units of those names; ``common``
holds what they share.
"""

from lipschitz_rnn.ops.common.noise import StateNoise as StateNoise
from lipschitz_rnn.ops.lipschitz.scan import lipschitz_scan as lipschitz_scan
