"""The recurrence itself, without parameters: one definition of truth and fast ways to the same numbers."""

from lipschitz_rnn.ops.scan import lipschitz_scan as lipschitz_scan
