"""Loads machine code and launches it: a thin layer over CUDA's driver, on the device and stream that PyTorch uses."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache

import torch

from lipschitz_rnn.ops.common.cuda import compiler
from lipschitz_rnn.ops.common.cuda.compiler import CompilationError, compiled

_DYNAMIC_SHARED_BYTES, _ANY_CLUSTER_SIZE = 8, 14  # attributes of a function
_CLUSTER_DIMENSION = 4  # an attribute of a launch
_REFUSALS = (1, 801, 912)  # of clusters of a size: invalid value, not supported, invalid cluster size
# Of all that is compiled here: invalid image, no binary for the GPU, invalid PTX, too new a PTX, not supported.
_LASTING = (200, 209, 218, 222, 801)
_NO_MEMORY, _NO_CONTEXT = 2, 201


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
        super().__init__(status, message)  # as given: by these, pickle makes it again in another process
        self.status = status

    def __str__(self) -> str:
        return f"CUDA's driver reports: {self.args[1]}"


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


def _bind(index: int) -> bool:
    """Gives this thread the context of a GPU that PyTorch uses, if it has none; whether it had none.

    PyTorch's guard does nothing where its GPU is the current one, as GPU 0 is in every new thread: autograd's, say.
    """
    driver, context, gpu = _driver(), ctypes.c_void_p(), ctypes.c_int()
    _check(driver.cuCtxGetCurrent(ctypes.byref(context)))
    if context.value is not None:
        return False
    _check(driver.cuDeviceGet(ctypes.byref(gpu), index))
    _check(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), gpu))  # for good, as PyTorch does
    _check(driver.cuCtxSetCurrent(context))
    return True


def _with_memory(name: str, device: torch.device, call: Callable[..., int], *arguments: object) -> None:
    """A call that loads ``name``. Blocks that PyTorch only keeps for later may hold all memory: they are given up."""
    status = call(*arguments)
    if status == _NO_MEMORY:
        torch.cuda.empty_cache()
        status = call(*arguments)
    if status == _NO_MEMORY:
        raise torch.cuda.OutOfMemoryError(
            f"{device} has no memory left to load the CUDA kernel {name!r}, not even after torch.cuda.empty_cache(); "
            "free some, or use another GPU, and call again"
        )
    _check(status)


class Function:
    """One kernel of a module, for launches of one size of block, cluster and shared memory."""

    def __init__(
        self, code: bytes, name: str, device: torch.device, threads: int, shared_bytes: int, cluster: int
    ) -> None:
        driver, module, function = _driver(), ctypes.c_void_p(), ctypes.c_void_p()
        with torch.cuda.device(device):
            if torch.cuda.is_current_stream_capturing():
                raise RuntimeError(
                    "a CUDA kernel is compiled and loaded at its first use, which a CUDA graph cannot capture; run the "
                    "same call once before the capture"
                )
            _bind(device.index)
            _with_memory(name, device, driver.cuModuleLoadData, ctypes.byref(module), code)
            _with_memory(name, device, driver.cuModuleGetFunction, ctypes.byref(function), module, name.encode())
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
            _bind(self._index)
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
        if status == _NO_CONTEXT and _bind(self._index):  # asked only now: a launch has to be quick
            self.launch(groups, arguments)
            return
        _check(status)


@cache
def obstacle(device: torch.device) -> str | None:
    """Why kernels that are compiled here do not run on this GPU, or None.

    An NVRTC older than the GPU does not know it, and a driver older than NVRTC may refuse what NVRTC makes. Any other
    error, such as no memory at this moment, says nothing about the next call: it is raised, and not remembered.
    """
    try:
        _nothing(device, 32, 0, 1)
    except CompilationError as error:
        if error.status == compiler.NO_MEMORY:
            raise
        return str(error)
    except DriverError as error:
        if error.status not in _LASTING:
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
        if error.status not in _REFUSALS:  # such as a lost GPU, which says nothing about clusters
            raise
        return 0


def _nothing(device: torch.device, threads: int, shared_bytes: int, cluster: int) -> Function:
    """A kernel that does nothing."""
    architecture = "sm_{}{}".format(*torch.cuda.get_device_capability(device))
    code = compiled('extern "C" __global__ void nothing() {}', "nothing.cu", architecture, {})
    return Function(code, "nothing", device, threads, shared_bytes, cluster)
