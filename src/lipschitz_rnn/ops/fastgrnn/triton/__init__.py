"""Kernels of the scan of FastGRNN."""
