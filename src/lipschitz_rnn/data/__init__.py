"""Somebody's own data: ragged, irregular series from files and arrays, their preprocessing, splits and tasks."""

from lipschitz_rnn.data.arrays import from_arrays as from_arrays
from lipschitz_rnn.data.clock import Clock as Clock
from lipschitz_rnn.data.errors import SeriesError as SeriesError
from lipschitz_rnn.data.files import FileTask as FileTask
from lipschitz_rnn.data.model import SeriesModel as SeriesModel
from lipschitz_rnn.data.prediction import as_trained as as_trained
from lipschitz_rnn.data.prediction import predict as predict
from lipschitz_rnn.data.prediction import probabilities as probabilities
from lipschitz_rnn.data.preprocessing import Preprocessing as Preprocessing
from lipschitz_rnn.data.reading import is_file_name as is_file_name
from lipschitz_rnn.data.reading import read as read
from lipschitz_rnn.data.series import SeriesSet as SeriesSet
from lipschitz_rnn.data.splits import Fractions as Fractions
from lipschitz_rnn.data.splits import split_series as split_series
from lipschitz_rnn.data.splits import split_times as split_times
from lipschitz_rnn.data.steps import unit_step as unit_step
from lipschitz_rnn.data.tables import from_frame as from_frame
from lipschitz_rnn.data.target import Target as Target
from lipschitz_rnn.data.task import SeriesTask as SeriesTask
