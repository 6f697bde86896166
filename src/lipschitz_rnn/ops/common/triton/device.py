"""What a GPU offers to a program."""

from __future__ import annotations

from functools import cache

import torch


@cache
def multiprocessors(device: torch.device) -> int:
    if device.type == "cpu":
        return 2  # of the interpreter: small batches take one way, larger ones the other
    return torch.cuda.get_device_properties(device).multi_processor_count


@cache
def shared_memory(device: torch.device) -> int:
    """Bytes that one program may have: all of a multiprocessor's but the one KB that CUDA keeps."""
    if device.type == "cpu":
        return 227 * 1024
    return torch.cuda.get_device_properties(device).shared_memory_per_multiprocessor - 1024
