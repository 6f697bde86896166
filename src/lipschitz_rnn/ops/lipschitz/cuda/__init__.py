"""Kernels in CUDA C++ that keep both matrices in registers, of one multiprocessor or of a cluster of them.

They need NVRTC, which comes with PyTorch's CUDA builds. Where they cannot run, the kernels of ``lipschitz.triton`` do.
"""
