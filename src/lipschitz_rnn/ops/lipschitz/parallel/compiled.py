"""What a compiled program takes for constant. Imported while it is traced: the marking loads PyTorch's compiler."""

from __future__ import annotations

import torch


@torch.compiler.assume_constant_result
def threads() -> int:
    return torch.get_num_threads()
