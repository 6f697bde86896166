"""PyTorch's own units behind the same interface: rnn, lstm, gru, and rnn with orthogonal initialisation."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from lipschitz_rnn.ops.lstm import lstm_scan
from lipschitz_rnn.units.base import Recurrent, State
from lipschitz_rnn.units.recurrence import (
    FeedbackMap,
    Statement,
    UnstatedRecurrenceError,
    repeatable_matrices,
    require_no_hooks,
    require_own_statement,
)
from lipschitz_rnn.units.sequences import Sequences


class LibraryUnit(Recurrent):
    """A `torch.nn` recurrent module (cuDNN on a GPU). cuDNN kernels have no `vmap` rule, hence no ensembles."""

    module: Callable[..., nn.RNNBase]
    states = 1

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        *,
        bias: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(input_size, hidden_size, num_layers, batch_first, dropout, bidirectional)
        between = dropout if num_layers > 1 else 0.0  # avoids a second warning, from PyTorch
        self.inner = self.module(
            input_size, hidden_size, num_layers, bias=bias, dropout=between, bidirectional=bidirectional, **options
        )

    def state_sizes(self) -> tuple[int, ...]:
        return (self.hidden_size,) * self.states

    def freeze(self) -> None:
        self.inner.flatten_parameters()  # otherwise cuDNN warns about a copied module

    def run(self, sequences: Sequences, state: State | None, need_output: bool) -> tuple[Tensor | None, State]:
        x, lengths = sequences.inputs, sequences.lengths
        start: Any = state[0] if state is not None and self.states == 1 else state
        if lengths is None:
            output, last = self.inner(x, start)
        else:
            packed = pack_padded_sequence(x, lengths.cpu(), enforce_sorted=False)
            packed_output, last = self.inner(packed, start)
            output, _ = pad_packed_sequence(packed_output, total_length=len(x))
        return output, last if self.states > 1 else (last,)


class ElmanRNN(LibraryUnit):
    """h⁺ = σ(W h + U x + b), `torch.nn.RNN` with its initialisation.

    Elman, "Finding structure in time", Cognitive Science 14, 1990. Parameters N² + N p + 2N (two biases, as in cuDNN).
    """

    module = nn.RNN

    def __init__(
        self, input_size: int, hidden_size: int, *layout: Any, nonlinearity: str = "tanh", **options: Any
    ) -> None:
        if nonlinearity not in ("tanh", "relu"):
            raise ValueError(f"nonlinearity is {nonlinearity!r}; choose 'tanh' or 'relu'")
        super().__init__(input_size, hidden_size, *layout, nonlinearity=nonlinearity, **options)
        self.nonlinearity = nonlinearity

    def stated_recurrences(self) -> list[Statement]:
        """For `stability.certify`: h⁺ = σ(W h + …) of all layers and directions."""
        require_own_statement(self)
        require_no_hooks(self.inner)
        if type(self.inner) is not nn.RNN or set(vars(self.inner)) & {"forward", "__call__"}:
            raise UnstatedRecurrenceError(f"the module inside this {type(self).__name__} is not a plain torch.nn.RNN")
        if self.inner.training and self.num_layers > 1 and self.inner.dropout > 0:
            raise UnstatedRecurrenceError(
                f"dropout is {self.inner.dropout:g} and this unit is in training mode, so the inputs of its layers are "
                "random; call eval() first"
            )
        stated: list[Statement] = []
        for layer in range(self.num_layers):
            for direction in range(self.num_directions):
                name = f"layer {layer}" + (", reverse" if direction else "")
                weight = getattr(self.inner, f"weight_hh_l{layer}" + ("_reverse" if direction else ""))
                (W,) = repeatable_matrices(partial(tuple, (weight,)), type(self).__name__)
                one = torch.eye(len(W), dtype=W.dtype, device=W.device)
                several = self.num_layers * self.num_directions > 1
                item = FeedbackMap(torch.zeros_like(W), one, W, None, self.inner.nonlinearity)
                stated.append(replace(item, name=name if several else "", reverse=direction == 1))
        return stated


class OrthogonalStartRNN(ElmanRNN):
    """h⁺ = σ(W h + U x + b) with W initialised to a random orthogonal matrix and unconstrained afterwards.

    Henaff, Szlam, LeCun, "Recurrent orthogonal networks and long-memory tasks", ICML 2016.
    """

    def __init__(self, input_size: int, hidden_size: int, *layout: Any, **options: Any) -> None:
        super().__init__(input_size, hidden_size, *layout, **options)
        for name, parameter in self.inner.named_parameters():
            if name.startswith("weight_hh"):
                nn.init.orthogonal_(parameter)
            elif name.startswith("bias"):
                nn.init.zeros_(parameter)


class LSTM(LibraryUnit):
    """i, f, o = sigmoid(W h + U x + b), g = tanh(…); c⁺ = f ⊙ c + i ⊙ g, h⁺ = o ⊙ tanh(c⁺): `torch.nn.LSTM`.

    Hochreiter, Schmidhuber, "Long short-term memory", Neural Computation 9, 1997. Parameters 4(N² + N p + 2N).
    `forget_bias` is the initial bias of the forget gate; None keeps PyTorch's small random values. With 1 the network
    remembers from the start (Gers, Schmidhuber, Cummins, "Learning to forget", Neural Computation 12, 2000).

    `fused=True` runs the same parameters through `lipschitz_rnn.ops.lstm.lstm_scan`, which takes many networks at once,
    e.g. the seeds of a study; cuDNN can only run them one after another. In half precision on a GPU with N ≤ 128, all
    steps of all networks are one kernel. Elsewhere it is a plain loop, and `torch.nn.LSTM` is the better choice for a
    single network. With `lengths`, `torch.nn.LSTM` is used in either case.
    """

    module = nn.LSTM
    states = 2

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *layout: Any,
        forget_bias: float | None = None,
        fused: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(input_size, hidden_size, *layout, **options)
        self.forget_bias, self.fused = forget_bias, fused
        if forget_bias is not None:
            self._set_forget_bias(forget_bias)

    @torch.no_grad()
    def _set_forget_bias(self, forget_bias: float) -> None:
        if not self.inner.bias:
            raise ValueError(f"forget_bias is {forget_bias}, but bias=False leaves no bias to set; omit one of them")
        for name, bias in self.inner.named_parameters():
            if name.startswith("bias"):  # PyTorch has two, which are added
                bias[self.hidden_size : 2 * self.hidden_size] = forget_bias if name.startswith("bias_ih") else 0.0

    def run(self, sequences: Sequences, state: State | None, need_output: bool) -> tuple[Tensor | None, State]:
        run = Recurrent.run if self.fused and sequences.lengths is None else LibraryUnit.run
        return run(self, sequences, state, need_output)

    def run_layer(
        self, layer: int, direction: int, x: Tensor, state: State | None, sequences: Sequences, need_output: bool
    ) -> tuple[Tensor | None, State]:
        U, W, b = self._weights(f"l{layer}" + ("_reverse" if direction else ""))
        zero = W.new_zeros(x.shape[1], self.hidden_size)
        output, h, c = lstm_scan(x, U, W, b, *((zero, zero) if state is None else state))
        return output, (h, c)

    def _weights(self, place: str) -> tuple[Tensor, Tensor, Tensor]:
        """U, W and the sum of the two biases of one layer and direction."""
        U, W = getattr(self.inner, f"weight_ih_{place}"), getattr(self.inner, f"weight_hh_{place}")
        if not self.inner.bias:
            return U, W, W.new_zeros(len(W))
        return U, W, getattr(self.inner, f"bias_ih_{place}") + getattr(self.inner, f"bias_hh_{place}")

    def extra_repr(self) -> str:
        return super().extra_repr() + (", fused=True" if self.fused else "")


class GRU(LibraryUnit):
    """r, z = sigmoid(W h + U x + b), n = tanh(U x + r ⊙ (W h + b)), h⁺ = (1 − z) ⊙ n + z ⊙ h: `torch.nn.GRU`.

    Cho et al., "Learning phrase representations using RNN encoder–decoder", EMNLP 2014. Parameters 3(N² + N p + 2N).
    """

    module = nn.GRU
