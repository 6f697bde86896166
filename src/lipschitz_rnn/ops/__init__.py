"""The scans, without parameters: one folder each, with its plain reference, its CPU path and its Triton kernels.

``lipschitz`` integrates the Lipschitz recurrence, ``lstm``, ``modrelu`` and ``fastgrnn`` run the units of those names,
``linear`` a diagonal linear recurrence; ``common`` holds what they share.
"""

from lipschitz_rnn.ops.common.noise import StateNoise as StateNoise
from lipschitz_rnn.ops.lipschitz.parallel.audit import ContradictedFactorError as ContradictedFactorError
from lipschitz_rnn.ops.lipschitz.parallel.bounds import ScanBound as ScanBound
from lipschitz_rnn.ops.lipschitz.parallel.contraction import Contraction as Contraction
from lipschitz_rnn.ops.lipschitz.parallel.plan import Parallel as Parallel
from lipschitz_rnn.ops.lipschitz.scan import lipschitz_scan as lipschitz_scan
