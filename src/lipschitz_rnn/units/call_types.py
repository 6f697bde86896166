"""Call signatures of a recurrent unit, for type checkers: tensor in, tensor out; packed in, packed out."""

from __future__ import annotations

from typing import Literal, Protocol, TypeVar, overload

from torch import Generator, Tensor
from torch.nn.utils.rnn import PackedSequence

State = tuple[Tensor, ...]
"""The recurrent state: (h,), (h, c), (y, z), ..."""

Last = TypeVar("Last", covariant=True)


class Call(Protocol[Last]):
    """`output, h_n = unit(input, hx)`; Last is the type of h_n."""

    @overload
    def __call__(
        self,
        input: Tensor,
        hx: Tensor | State | None = None,
        *,
        lengths: Tensor | None = None,
        timespans: Tensor | None = None,
        need_output: Literal[True] = True,
        generator: Generator | None = None,
    ) -> tuple[Tensor, Last]: ...

    @overload
    def __call__(
        self,
        input: PackedSequence,
        hx: Tensor | State | None = None,
        *,
        lengths: None = None,
        timespans: Tensor | PackedSequence | None = None,
        need_output: Literal[True] = True,
        generator: Generator | None = None,
    ) -> tuple[PackedSequence, Last]: ...

    @overload
    def __call__(
        self,
        input: Tensor | PackedSequence,
        hx: Tensor | State | None = None,
        *,
        lengths: Tensor | None = None,
        timespans: Tensor | PackedSequence | None = None,
        need_output: Literal[False],
        generator: Generator | None = None,
    ) -> tuple[None, Last]: ...

    @overload
    def __call__(
        self,
        input: Tensor | PackedSequence,
        hx: Tensor | State | None = None,
        *,
        lengths: Tensor | None = None,
        timespans: Tensor | PackedSequence | None = None,
        need_output: bool = True,
        generator: Generator | None = None,
    ) -> tuple[Tensor | PackedSequence | None, Last]: ...
