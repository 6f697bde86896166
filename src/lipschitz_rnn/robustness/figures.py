"""The old name of ``lipschitz_rnn.robustness.plots``."""

import warnings

from lipschitz_rnn.robustness.plots import *  # noqa: F403

warnings.warn(
    "lipschitz_rnn.robustness.figures is deprecated; import from lipschitz_rnn.robustness.plots",
    DeprecationWarning,
    stacklevel=2,
)
