"""The old name of ``lipschitz_rnn.stability.studies.plots``."""

import warnings

from lipschitz_rnn.stability.studies.plots import *  # noqa: F403

warnings.warn(
    "lipschitz_rnn.stability.figures is deprecated; import from lipschitz_rnn.stability.studies.plots",
    DeprecationWarning,
    stacklevel=2,
)
