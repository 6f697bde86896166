"""Speed, memory and accuracy of the scan beside PyTorch's own layers, measured in one run.

``workload`` is what is computed, ``contestants`` (with ``compiled``) who computes it, ``accuracy`` and ``timing`` how
that is judged, ``runs`` the order of it all; ``tables`` and ``scaling`` show the outcome.
"""

from lipschitz_rnn.benchmark.contestants import contestants_for as contestants_for
from lipschitz_rnn.benchmark.measuring import Effort as Effort
from lipschitz_rnn.benchmark.measuring import Report as Report
from lipschitz_rnn.benchmark.measuring import measure as measure
from lipschitz_rnn.benchmark.workload import Workload as Workload
