"""Loads machine code and launches it: a thin layer over CUDA's driver, on the device and stream that PyTorch uses."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache

import torch

from lipschitz_rnn.ops.common.cuda.compiler import CompilationError, compiled

_DYNAMIC_SHARED_BYTES, _ANY_CLUSTER_SIZE = 8, 14  # attributes of a function
_CLUSTER_DIMENSION = 4  # an attribute of a launch
_REFUSALS = (1, 801, 912)  # of clusters of a size: invalid value, not supported, invalid cluster size
_NO_MEMORY = 2


class _Attribute(ctypes.Structure):
    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_char * 4), ("value", ctypes.c_uint * 16))


class _Configuration(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    )


_Pointers = ctypes.c_char_p * 1  # the addresses of a kernel's arguments


class DriverError(RuntimeError):
    """CUDA's driver refused; the message is its own."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"CUDA's driver reports: {message}")
        self.status = status


@cache
def _driver() -> ctypes.CDLL:
    driver = ctypes.CDLL("libcuda.so.1")
    size, address = ctypes.c_uint, ctypes.c_void_p
    driver.cuLaunchKernel.argtypes = [address, *[size] * 7, address, _Pointers, address]  # quicker than by guessing
    return driver


# The current stream of a device: PyTorch's own short way where there is one.
_current_stream: Callable[[int], int] = getattr(
    torch._C, "_cuda_getCurrentRawStream", lambda device: torch.cuda.current_stream(device).cuda_stream
)


def _check(status: int) -> None:
    if status != 0:
        name = ctypes.c_char_p()
        _driver().cuGetErrorString(status, ctypes.byref(name))
        raise DriverError(status, (name.value or b"error " + str(status).encode()).decode())


class Function:
    """One kernel of a module, for launches of one size of block, cluster and shared memory."""

    def __init__(
        self, code: bytes, name: str, device: torch.device, threads: int, shared_bytes: int, cluster: int
    ) -> None:
        driver, module, function = _driver(), ctypes.c_void_p(), ctypes.c_void_p()
        with torch.cuda.device(device):
            torch.cuda.current_stream()  # makes sure that this thread has a context
            _check(driver.cuModuleLoadData(ctypes.byref(module), code))
            _check(driver.cuModuleGetFunction(ctypes.byref(function), module, name.encode()))
            _check(driver.cuFuncSetAttribute(function, _DYNAMIC_SHARED_BYTES, shared_bytes))
            if cluster > 8:
                _check(driver.cuFuncSetAttribute(function, _ANY_CLUSTER_SIZE, 1))
        self._function, self._launch = function, driver.cuLaunchKernel
        self._device, self._threads, self._shared, self._cluster = device, threads, shared_bytes, cluster
        self._index = device.index

    def clusters_at_once(self) -> int:
        """How many clusters the whole GPU runs at once."""
        attribute = _Attribute(_CLUSTER_DIMENSION, b"", (ctypes.c_uint * 16)(self._cluster, 1, 1))
        grid, block = (ctypes.c_uint * 3)(self._cluster, 1, 1), (ctypes.c_uint * 3)(self._threads, 1, 1)
        given = _Configuration(grid, block, self._shared, None, ctypes.pointer(attribute), 1)
        count = ctypes.c_int()
        with torch.cuda.device(self._device):
            _check(_driver().cuOccupancyMaxActiveClusters(ctypes.byref(count), self._function, ctypes.byref(given)))
        return count.value

    def launch(self, groups: int, arguments: bytes) -> None:
        """``groups`` clusters; ``arguments`` is the one structure that the kernel takes, by value."""
        if self._index != torch.cuda.current_device():
            with torch.cuda.device(self._index):
                self.launch(groups, arguments)
            return
        status = self._launch(
            self._function, self._cluster * groups, 1, 1, self._threads, 1, 1, self._shared,
            _current_stream(self._index), _Pointers(arguments), None,
        )  # fmt: skip
        _check(status)


@cache
def obstacle(device: torch.device) -> str | None:
    """Why kernels that are compiled here do not run on this GPU, or None.

    An NVRTC older than the GPU does not know it, and a driver older than NVRTC may refuse what NVRTC makes.
    """
    try:
        _nothing(device, 32, 0, 1)
    except CompilationError as error:
        return str(error)
    except DriverError as error:
        if error.status == _NO_MEMORY:  # another time there may be some
            raise
        return str(error)
    return None


@cache
def clusters_beside(device: torch.device, cluster: int) -> int:
    """How many clusters of this many blocks run at once, with one block on a multiprocessor; 0 if none does.

    Clusters do not cross the borders of a GPU's own groups of multiprocessors, whose sizes differ from card to card.
    """
    whole = torch.cuda.get_device_properties(device).shared_memory_per_multiprocessor // 2 + 1024
    try:
        return _nothing(device, 256, whole, cluster).clusters_at_once()
    except DriverError as error:  # many cards take no clusters of more than eight blocks
        if error.status not in _REFUSALS:  # such as no memory at this moment, which says nothing about clusters
            raise
        return 0


def _nothing(device: torch.device, threads: int, shared_bytes: int, cluster: int) -> Function:
    """A kernel that does nothing."""
    architecture = "sm_{}{}".format(*torch.cuda.get_device_capability(device))
    code = compiled('extern "C" __global__ void nothing() {}', "nothing.cu", architecture, {})
    return Function(code, "nothing", device, threads, shared_bytes, cluster)
