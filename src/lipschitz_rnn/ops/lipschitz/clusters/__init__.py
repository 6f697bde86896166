"""Hidden sizes above 128 on NVIDIA GPUs of compute capability 9.0 on: clusters of multiprocessors share a state.

Where they cannot run, the cooperative kernels of ``lipschitz.triton`` do.
"""
