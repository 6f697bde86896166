"""CUDA C++ compiled at run time by NVRTC, which PyTorch's CUDA builds bring along, and launched by the driver."""
