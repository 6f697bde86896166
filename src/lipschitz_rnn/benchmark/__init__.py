"""Speed, memory and accuracy of the scan and of PyTorch's own layers, measured in one run.

``workload`` says what is computed and ``contestants`` (with ``compiled`` and ``jobs``) by whom; ``accuracy`` and
``timing`` judge it, and ``measuring`` runs everything in order; ``tables`` and ``scaling`` show the results.
"""

from lipschitz_rnn.benchmark.contestants import contestants_for as contestants_for
from lipschitz_rnn.benchmark.measuring import Effort as Effort
from lipschitz_rnn.benchmark.measuring import Report as Report
from lipschitz_rnn.benchmark.measuring import measure as measure
from lipschitz_rnn.benchmark.workload import Workload as Workload
