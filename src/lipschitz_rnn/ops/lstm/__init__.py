"""The scan of an LSTM."""

from lipschitz_rnn.ops.lstm.scan import lstm_scan as lstm_scan
