"""The scan of FastGRNN: two gates that share one product."""

from lipschitz_rnn.ops.fastgrnn.scan import fastgrnn_scan as fastgrnn_scan
