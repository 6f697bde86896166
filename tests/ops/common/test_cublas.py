"""Rows as cuBLAS wants them, and what is made of its results."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lipschitz_rnn.ops.common.cublas import gradient_width, sums_by_cublas, wide_rows
from lipschitz_rnn.ops.common.triton.gradients import add_partial_sums


@pytest.mark.parametrize(("N", "width"), [(264, 264), (260, 264), (258, 264), (257, 264)])
@pytest.mark.parametrize("first", [0, 1])
def test_rows_are_copied_where_they_have_gaps_or_begin_anywhere(N: int, width: int, first: int) -> None:
    tape = torch.randn(2, 5, 4, 3, N).bfloat16()  # networks, steps, slots, samples, units
    values = tape[:, first : first + 3, 2]
    wide = wide_rows(values, width)
    assert wide.shape == (2, 3, 3, width)
    assert wide.is_contiguous()
    assert torch.equal(wide[..., :N], values)


@pytest.mark.parametrize(("first", "word"), [(0, torch.int64), (1, torch.float16), (2, torch.int32)])
def test_words_follow_the_address(first: int, word: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory of another library begins anywhere, and a GPU cannot read words across their borders."""
    memory = np.arange(2 * 3 * 260 + 4, dtype=np.float16)[first:][: 2 * 3 * 260]
    values = torch.from_dlpack(memory.reshape(2, 1, 3, 260))
    assert values.storage_offset() == 0
    words = []
    copy = torch.Tensor.copy_
    monkeypatch.setattr(torch.Tensor, "copy_", lambda to, given: (words.append(given.dtype), copy(to, given))[1])
    assert torch.equal(wide_rows(values, 264)[..., :260], values)
    assert words == [word]


def test_rows_without_gaps_are_taken_as_they_are() -> None:
    values = torch.randn(2, 5, 3, 264).half()
    assert wide_rows(values, 264) is values
    later = values[:, 1:]
    assert wide_rows(later, 264) is later
    turned = values.transpose(1, 2)
    assert wide_rows(turned, 264).is_contiguous()


@pytest.mark.parametrize("N", [256, 257, 750, 752])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_only_rows_for_cublas_are_wider(N: int, dtype: torch.dtype) -> None:
    width = gradient_width(N, dtype)
    assert width - N == (-N % 8 if N > 256 and dtype != torch.float32 else 0)


def test_what_lies_behind_the_units_of_a_row_is_not_read(device: torch.device) -> None:
    S, count, N, width = 2, 3, 21, 24
    sums = torch.full((S, count, 2 * width, width), torch.nan, device=device)
    known = torch.randn(S, count, 2, N, N, device=device)
    sums.view(S, count, 2, width, width)[..., :N, :N] = known
    grad_A, grad_W, _, _ = add_partial_sums(sums, N, None, 0.5, torch.float32)
    torch.testing.assert_close(grad_A, 0.5 * known[:, :, 0].sum(1))
    torch.testing.assert_close(grad_W, known[:, :, 1].sum(1))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="cuBLAS needs a GPU")
@pytest.mark.parametrize("N", [264, 301, 750])
def test_sums_are_those_of_the_units_that_exist(N: int) -> None:
    width = gradient_width(N, torch.bfloat16)
    generator = torch.Generator("cuda").manual_seed(N)
    kappa_d = torch.full((2, 7, 16, 2, width), torch.nan, device="cuda", dtype=torch.bfloat16)
    kappa_d[..., :N] = torch.randn(2, 7, 16, 2, N, device="cuda", generator=generator)
    tape = torch.randn(2, 7, 3, 16, N, device="cuda", generator=generator).bfloat16()
    pairs = [(kappa_d.flatten(-2), tape[:, :, slot]) for slot in (0, 2)]
    total = sums_by_cublas(pairs).view(2, 2, width, width)[..., :N, :N]
    states = tape[:, :, 0].double() + tape[:, :, 2].double()
    expected = torch.einsum("stbkm,stbn->skmn", kappa_d[..., :N].double(), states)
    torch.testing.assert_close(total.double(), expected, rtol=1e-4, atol=1e-4)
