"""The LSTM scan as fused GPU kernels."""
