"""GRU-D: a gated unit for values that are sampled at irregular times or missing. States and inputs decay over time."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lipschitz_rnn.ops.common.validation import require_number
from lipschitz_rnn.units.arguments import true_or_false
from lipschitz_rnn.units.base import Recurrent, State
from lipschitz_rnn.units.catalogue import name_of
from lipschitz_rnn.units.cells import Cell, CellStack

SLOW = 0.1  # rates of decay at the start: time constants of 10 units of time and more


class GRUDCell(Cell):
    """One layer of `GRUD`. Its states: h (N), the last seen values (D), and the time since each was seen (D)."""

    takes_timespans = True
    clocks = (2,)
    mean: Tensor

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        values: int,
        first: bool,
        masked: bool,
        mean: Tensor,
        step_size: float,
    ) -> None:
        """`values`: D; `first`: this layer reads the unit's input, the others read states, which are never missing."""
        super().__init__(input_size, hidden_size)
        self.values, self.first, self.masked, self.step_size = values, first, masked, step_size
        self.input = nn.Linear(values if first else input_size, 3 * hidden_size)
        reach = hidden_size**-0.5
        self.hidden = nn.Parameter(torch.empty(3 * hidden_size, hidden_size).uniform_(-reach, reach))
        self.hidden_decay = nn.Linear(values if first else 1, hidden_size)
        nn.init.uniform_(self.hidden_decay.weight, 0.0, SLOW / self.hidden_decay.in_features)
        nn.init.zeros_(self.hidden_decay.bias)
        if first:
            self.mask = nn.Linear(values, 3 * hidden_size, bias=False)
            self.input_decay = nn.Parameter(torch.stack((SLOW * torch.rand(values), torch.zeros(values))))
            self.register_buffer("mean", mean.clone())

    def state_sizes(self) -> tuple[int, ...]:
        return (self.hidden_size, self.values, self.values)

    def initial_state(self, batch: int, inputs: Tensor) -> State:
        h, last, since = super().initial_state(batch, inputs)
        return h, last + self.mean.to(last.dtype) if self.first else last, since

    def project(self, x: Tensor) -> Tensor:
        """x unchanged in the first layer, where the gaps have to be filled in before it is multiplied."""
        return x if self.first else self.input(x)

    def weights(self) -> tuple[Tensor, Tensor]:
        return self.hidden[: 2 * self.hidden_size].mT, self.hidden[2 * self.hidden_size :].mT

    def step(self, inputs: Tensor, state: State, weights: tuple[Tensor, Tensor]) -> State:
        time = torch.full(inputs.shape[:1], float(self.step_size), dtype=_wide(state), device=inputs.device)
        return self.advance(inputs, state, weights, time)

    def advance(self, inputs: Tensor, state: State, weights: tuple[Tensor, Tensor], time: Tensor) -> State:
        wide = _wide(state)
        h, last, since = state
        elapsed = time.to(wide).unsqueeze(-1)
        drive = inputs
        if self.first:
            elapsed = since.to(wide) + elapsed
            drive, last, since = self._fill_in(inputs, last, elapsed)
        h = _decayed(F.linear(elapsed, self.hidden_decay.weight.to(wide), self.hidden_decay.bias.to(wide))) * h
        gates, proposal = drive.split([2 * self.hidden_size, self.hidden_size], -1)
        like = weights[0].dtype
        r, z = torch.sigmoid(gates + h.to(like) @ weights[0]).chunk(2, -1)
        new = torch.tanh(proposal + (r * h).to(like) @ weights[1])
        after = ((1.0 - z) * h + z * new, last, since)
        return tuple(part.to(before.dtype) for part, before in zip(after, state, strict=True))

    def _fill_in(self, inputs: Tensor, last: Tensor, since: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What the gates read, the values seen last, and the time since then after this step."""
        if self.masked:
            values, mask = inputs.chunk(2, -1)
            seen = mask > 0.5
        else:
            values, seen = inputs, ~inputs.isnan()
        rate, offset = self.input_decay.to(since.dtype).unbind(0)
        kept = _decayed(rate * since + offset)
        filled = torch.where(seen, values, (kept * last + (1.0 - kept) * self.mean).to(values.dtype))
        drive = self.input(filled) + self.mask(seen.to(values.dtype))
        return drive, torch.where(seen, values, last), torch.where(seen, 0.0, since)


class GRUD(CellStack):
    """γ(δ) = exp(−max(0, w δ + b)); x̂ = m ⊙ x + (1 − m) ⊙ (γₓ ⊙ x_last + (1 − γₓ) ⊙ mean), ĥ = γₕ ⊙ h;
    r, z = sigmoid(W x̂ + U ĥ + V m + b), n = tanh(W x̂ + U (r ⊙ ĥ) + V m + b), h⁺ = (1 − z) ⊙ ĥ + z ⊙ n.

    Che, Purushotham, Cho, Sontag, Liu, "Recurrent neural networks for multivariate time series with missing values",
    Scientific Reports 8, 2018. m is 1 where a value was seen, x_last the value seen last, and δ the time since then,
    from `timespans` (or `step_size` for every step). NaN in the input marks a missing value; with `masked=True` the
    input has D values followed by D masks instead. `mean` is what a missing value decays to: 0, as for standardised
    inputs, a number, or one for each value. Layers above the first read states, of which none is missing, and only
    decay. Weights start like those of `nn.Linear`. The rates w of the decays start uniform in [0, 0.1], for h divided
    by D, with b = 0: slow, and on the side of max(0, ·) that has a gradient. Parameters 3N² + 7N D + 4N + 2D: 52K at
    N = 128 on MNIST with the head.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        *,
        masked: bool = False,
        mean: float | Sequence[float] = 0.0,
        step_size: float = 1.0,
    ) -> None:
        Recurrent.__init__(self, input_size, hidden_size, num_layers, batch_first, dropout, bidirectional)
        true_or_false("masked", masked, "True means that the second half of the input channels are masks")
        if masked and input_size % 2:
            raise ValueError(
                f"input_size is {input_size}; with masked=True the input has values and as many masks: it must be even"
            )
        values = input_size // 2 if masked else input_size
        options = {"values": values, "masked": masked, "mean": _means(mean, values)}
        step_size = require_number("step_size", step_size, low=0.0)
        self.takes_timespans = True
        self.cells = nn.ModuleList()
        for layer in range(num_layers):
            width = input_size if layer == 0 else self.output_size
            for _ in range(self.num_directions):
                cell = GRUDCell(width, hidden_size, first=layer == 0, step_size=step_size, **options)  # type: ignore[arg-type]
                self.cells.append(cell)

    def registered_name(self) -> str:
        return name_of(type(self))


def _means(mean: float | Sequence[float], values: int) -> Tensor:
    means = torch.as_tensor(mean, dtype=torch.get_default_dtype())
    if means.dim() > 1 or (means.dim() == 1 and len(means) != values) or not bool(means.isfinite().all()):
        raise ValueError(f"mean is {mean!r}; give a finite number, or one for each of the {values} values")
    return means.expand(values)


def _wide(state: State) -> torch.dtype:
    """For times: at least float32, because 16 bits would round them too much."""
    return torch.float64 if state[0].dtype == torch.float64 else torch.float32


def _decayed(rate: Tensor) -> Tensor:
    return torch.exp(-torch.relu(rate))
