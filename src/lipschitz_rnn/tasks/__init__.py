"""The tasks of the paper: data, splits, loss and metric behind one interface (`Task`)."""

from lipschitz_rnn.tasks.base import Batch as Batch
from lipschitz_rnn.tasks.base import DataError as DataError
from lipschitz_rnn.tasks.base import Metric as Metric
from lipschitz_rnn.tasks.base import Split as Split
from lipschitz_rnn.tasks.base import Task as Task
from lipschitz_rnn.tasks.base import TaskInfo as TaskInfo
from lipschitz_rnn.tasks.registry import available as available
from lipschitz_rnn.tasks.registry import check as check
from lipschitz_rnn.tasks.registry import find as find
from lipschitz_rnn.tasks.registry import info as info
from lipschitz_rnn.tasks.registry import is_registered as is_registered
from lipschitz_rnn.tasks.registry import load as load
from lipschitz_rnn.tasks.registry import register as register
from lipschitz_rnn.tasks.times import with_times as with_times
