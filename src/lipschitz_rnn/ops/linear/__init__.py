"""The scan of a diagonal linear recurrence."""

from lipschitz_rnn.ops.linear.scan import linear_scan as linear_scan
