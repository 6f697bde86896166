"""Compiles the kernels for the processor at hand, in memory: no compiler is installed or called."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from threading import RLock
from typing import Any

CPU_NAME = "LIPSCHITZ_RNN_CPU_NAME"  # compiles for a processor by LLVM's name for it, such as haswell

# LLVM ends the process at a name that it does not know, and does not tell what a name stands for.
AVX512 = (
    *("skylake-avx512", "cascadelake", "cooperlake", "cannonlake", "icelake-client", "icelake-server", "rocketlake"),
    *("tigerlake", "sapphirerapids", "emeraldrapids", "graniterapids", "znver4", "znver5", "x86-64-v4"),
)
AVX2 = (
    *("haswell", "broadwell", "skylake", "alderlake", "raptorlake", "meteorlake"),
    *("znver1", "znver2", "znver3", "x86-64-v3"),
)

OLDEST = (0, 45)

Kernel = Callable[..., None]

# Held wherever llvmlite is imported or called. A fork waits for it: a child that began with the locks of a thread which
# it does not have, of ours, of llvmlite or of an import, would wait for them forever.
_llvm = RLock()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_llvm.acquire, after_in_parent=_llvm.release, after_in_child=_llvm.release)


@dataclass(frozen=True)
class Processor:
    """What the kernels need to know of a processor: LLVM's name for it, and the bytes and number of its registers."""

    name: str
    features: str
    register: int
    tile_rows: int


@dataclass(frozen=True, eq=False)
class Kernels:
    """Compiled for reals of one size; ``engine`` owns the machine code."""

    lanes: int
    forward: Kernel
    backward: Kernel
    apply: Kernel
    engine: Any


@cache
def obstacle() -> str | None:
    """Why nothing can be compiled here, or None."""
    try:
        installed = version("llvmlite")
    except PackageNotFoundError:
        return "llvmlite is not installed (pip install 'lipschitz-rnn[cpu]')"
    if tuple(int(part) for part in installed.split(".")[:2] if part.isdigit()) < OLDEST:
        return f"llvmlite is {installed}, and they need {'.'.join(map(str, OLDEST))} or later"
    if processor() is None:
        return "the processor has no AVX2, and they were not measured on others"
    return None


@cache
def processor() -> Processor | None:
    """The processor at hand; None if its registers and instructions would not pay."""
    with _llvm:
        from llvmlite import binding

        found, name = binding.get_host_cpu_features(), binding.get_host_cpu_name()
    features, chosen = found.flatten(), os.environ.get(CPU_NAME)
    narrow = found.get("avx2") and found.get("fma")
    wide = narrow and found.get("avx512f") and found.get("avx512vl")
    if chosen:
        known = (AVX512 if wide else ()) + (AVX2 if narrow else ())
        if chosen not in known:
            raise ValueError(
                f"{CPU_NAME} is {chosen!r}; this processor, {name}, can run kernels compiled for "
                f"{', '.join(known) or 'none'}; choose one of these, or unset it"
            )
        # What follows from the name, less what is missing here.
        name, wide = chosen, chosen in AVX512
        features = ",".join(f"-{feature}" for feature, there in found.items() if not there)
    if wide:
        return Processor(name, features, 64, 8)
    return Processor(name, features, 32, 6) if narrow else None


def describe() -> str:
    """How the cpu backend runs on this machine, in words."""
    reason, target = obstacle(), None
    if reason is None:
        target = processor()
    return f"PyTorch's operations: {reason}" if target is None else f"kernels compiled for {target.name}"


def kernels(size: int) -> Kernels:
    """The kernels for reals of 4 or 8 bytes; the first call compiles them, in about a second."""
    with _llvm:
        return _kernels(size)


@cache
def _kernels(size: int) -> Kernels:
    from llvmlite import binding

    target = processor()
    assert target is not None  # otherwise nobody asks
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    lanes = target.register // size
    machine = binding.Target.from_default_triple().create_target_machine(
        cpu=target.name, features=target.features, opt=3
    )
    module = binding.parse_assembly(written(size, lanes, target.tile_rows))
    options = binding.create_pipeline_tuning_options(speed_level=2)
    options.loop_unrolling = False  # what pays is unrolled by hand; the rest would only take longer to compile
    passes = binding.create_pass_builder(machine, options)
    passes.getModulePassManager().run(module, passes)
    engine = binding.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    engine.close = None  # its code lasts as long as Python; at its end llvmlite could no longer free it
    whole, address = ctypes.c_int64, ctypes.c_void_p
    scan = ctypes.CFUNCTYPE(None, address, address, whole, whole, whole, whole)
    each = ctypes.CFUNCTYPE(None, whole, whole, address)
    forward, backward, apply = (engine.get_function_address(name) for name in ("forward", "backward", "apply"))
    return Kernels(lanes, scan(forward), scan(backward), each(apply), engine)


def written(size: int, lanes: int, tile_rows: int) -> str:
    """The kernels as LLVM's assembly."""
    from lipschitz_rnn.ops.lipschitz.cores.backward import write_backward
    from lipschitz_rnn.ops.lipschitz.cores.code import Code
    from lipschitz_rnn.ops.lipschitz.cores.forward import write_forward
    from lipschitz_rnn.ops.lipschitz.cores.products import write_product
    from lipschitz_rnn.ops.lipschitz.cores.sigma import write_apply

    code = Code(size, lanes, tile_rows)
    product, transposed = write_product(code, transposed=False), write_product(code, transposed=True)
    write_forward(code, product)
    write_backward(code, product, transposed)
    write_apply(code)
    return str(code.module)
