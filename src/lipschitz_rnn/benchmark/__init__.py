"""Measures speed, memory and accuracy of the scan and of PyTorch's own layers in one run.

``workload`` defines what is computed, ``contestants`` (with ``compiled`` and ``jobs``) the implementations;
``accuracy`` and ``timing`` measure them, ``measuring`` runs everything, ``tables`` and ``scaling`` show the results.
"""

from lipschitz_rnn.benchmark.contestants import contestants_for as contestants_for
from lipschitz_rnn.benchmark.measuring import Effort as Effort
from lipschitz_rnn.benchmark.measuring import Report as Report
from lipschitz_rnn.benchmark.measuring import measure as measure
from lipschitz_rnn.benchmark.workload import Workload as Workload
