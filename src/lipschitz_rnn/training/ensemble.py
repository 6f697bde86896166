"""S networks of one shape as one set of stacked parameters: a single network is an ensemble of one."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from lipschitz_rnn.training.model import SequenceModel, Shapes, State, draws_random_numbers
from lipschitz_rnn.training.settings import EnsembleMode
from lipschitz_rnn.training.variation import as_tensors, differing_options, set_option
from lipschitz_rnn.units.base import Recurrent

Values = dict[str, Tensor]  # parameters and buffers by name, each (S, ...)
Outcome = tuple[Tensor, State, Tensor]  # outputs, states, penalties


class _WithPenalty(nn.Module):
    """A model together with what its unit adds to the loss, so that one functional call gives both."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor, lengths: Any, state: Any, keep: Any, timespans: Any = None) -> Outcome:
        # Timespans by name and only if there are any: a model of somebody's own need not know of them.
        times = {} if timespans is None else {"timespans": timespans}
        result = self.model(inputs, lengths, state, keep, **times)
        if not (isinstance(result, tuple | list) and len(result) == 2 and isinstance(result[0], Tensor)):
            raise TypeError(f"the model {type(self.model).__name__} must return (outputs, state)")
        outputs, state = result
        _require_state(state)
        own = getattr(self.model, "penalty", None)
        penalty = None if own is None else own()
        if not isinstance(penalty, Tensor):  # a unit of somebody's own may give a plain number, or nothing
            penalty = torch.full((), penalty or 0.0, device=outputs.device)
        return outputs, state, penalty

    def call(self, values: Values, arguments: tuple[Any, ...]) -> Outcome:
        return functional_call(self, {f"model.{name}": value for name, value in values.items()}, arguments)


class _ScoreGains(nn.Module):
    """The gains of a model's scores, as a functional call takes them."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, steps: int) -> Tensor:
        gains: Tensor = self.model.score_gains(steps)  # type: ignore[operator]
        return gains


class Ensemble:
    """Stacked parameters, name -> (S, ...), and one call for all members.

    `mode` is "vmap" (one call for all; the Lipschitz scan then runs as one fused kernel) or "sequential" (one member
    after another, for units that vmap cannot transform, such as cuDNN's). "auto" tries and `reason` says why not.
    Options that members disagree about, where their unit allows it, are stacked among the buffers. `shapes` is the
    task, or what is recorded of it: a model of somebody's own is tried on inputs of that shape.
    """

    def __init__(
        self,
        models: Sequence[nn.Module],
        device: torch.device | str,
        mode: EnsembleMode = "auto",
        shapes: Shapes | None = None,
        timed: bool = False,
    ) -> None:
        """`timed`: the batches will have timespans, so a model is tried with them."""
        if not models:
            raise ValueError("an ensemble needs at least one network")
        self.size = len(models)
        self.device = torch.device(device)
        placed = [model.to(self.device) for model in models]
        varied = as_tensors(differing_options(placed), self.device)
        self.parameters, self.buffers = stack_module_state(placed)  # type: ignore[arg-type]
        self.buffers |= varied
        self.values: Values = self.parameters | self.buffers
        self._module = _WithPenalty(copy.deepcopy(placed[0]))
        self._varied = tuple(varied)
        for place, values in varied.items():
            set_option(self._module.model, place, values[0])
        # For `members`: a module under two names keeps a tensor of the last functional call in the one that is called.
        self._plain = copy.deepcopy(self._module.model)
        self._noise_seeds = self._hold_noise_seeds()
        self._modes = [(module, module.training) for module in self._module.model.modules()]
        self._timed = timed
        self.random = draws_random_numbers(self._module) or (shapes is not None and self._is_seen_to_draw(shapes))
        self.mode, self.reason = self._choose(mode, shapes)

    def _hold_noise_seeds(self) -> Values:
        """A tensor (S, 2) for each cell with noise on its state: the seeds of its next call."""
        found: Values = {}
        for path, module in self._module.model.named_modules():
            if getattr(module, "noisy", False) and "noise_seed" in module._buffers:
                module.noise_seed = torch.zeros(2, dtype=torch.float64, device=self.device)
                found[f"{path}.noise_seed".lstrip(".")] = torch.zeros(
                    self.size, 2, dtype=torch.float64, device=self.device
                )
        return found

    @property
    def module(self) -> nn.Module:
        """One network, for what all have in common."""
        return self._module.model

    @property
    def noisy_cells(self) -> int:
        """The number of cells in a network with noise on their state in training."""
        return len(self._noise_seeds)

    def seed_noise(self, seeds: Tensor) -> None:
        """Set the noise seeds of the next call, (S, cells, 2), in the memory that a captured graph reads."""
        for place, seed in zip(self._noise_seeds.values(), seeds.unbind(1), strict=True):
            place.copy_(seed)

    def _choose(self, mode: EnsembleMode, shapes: Shapes | None) -> tuple[str, str]:
        if mode == "sequential":
            return mode, "asked for"
        if self.random:
            # Under vmap all members would share one stream of random numbers, and no member would equal its lone run.
            obstacle = "the unit draws its own random numbers (dropout)"
        elif self.size == 1:
            return "sequential", "one network"
        else:
            obstacle = self._try_vmap(shapes)
        if not obstacle:
            return "vmap", ""
        if mode == "vmap":
            raise ValueError(f'ensemble="vmap" is not possible here: {obstacle}; use "auto" or "sequential"')
        return "sequential", obstacle

    def _example(self, shapes: Shapes | None) -> Tensor:
        """Inputs of two steps and two samples, as the task has them or, without one, as the model looks."""
        module = self._module.model
        tokens = getattr(module, "embedding", None) is not None if shapes is None else shapes.vocabulary is not None
        if tokens:
            return torch.zeros(2, 2, dtype=torch.int64, device=self.device)
        size = getattr(getattr(module, "unit", None), "input_size", 1) if shapes is None else shapes.input_size
        dtype = next(iter(self.parameters.values())).dtype
        return torch.zeros(2, 2, size, device=self.device, dtype=dtype)

    def _example_times(self, inputs: Tensor) -> Tensor | None:
        return torch.zeros(inputs.shape[:2], device=self.device) if self._timed else None

    def _is_seen_to_draw(self, shapes: Shapes) -> bool:
        """Whether a model of somebody's own draws random numbers in its mode of now, without saying so."""
        model = self._module.model
        if isinstance(model, SequenceModel) and isinstance(model.unit, Recurrent):
            return False
        values = {name: value[0].detach().clone() for name, value in self.values.items()}
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices), torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of this trial; those of the run are shown
            before = _generator_states(self.device)
            try:
                inputs = self._example(shapes)
                self._module.call(values, (inputs, None, None, None, self._example_times(inputs)))
            except Exception:  # what is wrong with it shows in training, with the real inputs
                return False
            return any(not torch.equal(a, b) for a, b in zip(before, _generator_states(self.device), strict=True))

    def _try_vmap(self, shapes: Shapes | None) -> str:
        """Why the unit cannot run under vmap, or nothing. A slow fallback inside vmap counts as failure."""
        inputs = self._example(shapes)
        # Separate tensors: autograd's records of this trial must not mix with training steps on another stream.
        own = {name: value.detach().requires_grad_() for name, value in self.parameters.items()}
        buffers = {name: value.clone() for name, value in self.buffers.items()}  # running means, counters
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                times = self._example_times(inputs)
                outputs, _, _ = self._vmapped(buffers | own, inputs, None, None, None, times, shared=True)
                torch.autograd.grad(outputs.abs().sum(), list(own.values()), allow_unused=True)
            except (RuntimeError, NotImplementedError, ValueError, TypeError, UserWarning) as error:
                return str(error).strip().splitlines()[0]
        return ""

    def __call__(
        self,
        values: Values,
        inputs: Tensor,
        lengths: Tensor | None = None,
        state: State = None,
        keep: Tensor | None = None,
        timespans: Tensor | None = None,
        *,
        shared: bool = False,
        random_seeds: Sequence[int] | None = None,
    ) -> Outcome:
        """Outputs (S, ...), states with a leading axis S in every tensor, and the units' penalties (S,).

        Args:
            values: usually `self.values`; averaged or selected ones for evaluation.
            inputs, lengths, keep, timespans: with a leading axis S, or without it if `shared` by all members (a state
                has it).
            random_seeds: one per member, where the unit draws from the global generator.
        """
        if self.mode == "vmap":
            return self._vmapped(values, inputs, lengths, state, keep, timespans, shared)
        members = {name: value.unbind(0) for name, value in (values | self._noise_seeds).items()}
        results = []
        for member in range(self.size):
            own = {name: parts[member] for name, parts in members.items()}
            given = (inputs, lengths, keep, timespans)
            given = given if shared else tuple(_pick(item, member) for item in given)
            arguments = (*given[:2], _pick(state, member), *given[2:])
            results.append(self._call_one(own, arguments, None if random_seeds is None else random_seeds[member]))
        outputs, states, penalties = zip(*results, strict=True)
        return torch.stack(outputs), _stack(states), torch.stack(penalties)

    def score_gains(self, values: Values, steps: int) -> Tensor:
        """(S, q, q), differentiable: `SequenceModel.score_gains` of every member."""
        module = _ScoreGains(self._module.model)

        def call(own: Values) -> Tensor:
            given = {f"model.{name}": value for name, value in own.items()}
            return functional_call(module, given, (steps,))

        if self.mode == "vmap":
            return vmap(call)(values)
        members = {name: value.unbind(0) for name, value in values.items()}
        return torch.stack([call({name: parts[i] for name, parts in members.items()}) for i in range(self.size)])

    def _call_one(self, values: Values, arguments: tuple[Any, ...], seed: int | None) -> Outcome:
        with warnings.catch_warnings():
            # cuDNN prefers its weights in one block of memory, which stacked members do not have.
            warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous chunk")
            if seed is None:
                return self._module.call(values, arguments)
            devices = [self.device] if self.device.type == "cuda" else []
            with torch.random.fork_rng(devices=devices):
                torch.default_generator.manual_seed(seed)
                if devices:
                    torch.cuda.manual_seed(seed)
                return self._module.call(values, arguments)

    def _vmapped(
        self,
        values: Values,
        inputs: Tensor,
        lengths: Tensor | None,
        state: State,
        keep: Tensor | None,
        timespans: Tensor | None,
        shared: bool,
    ) -> Outcome:
        def call(own: Values, *arguments: Any) -> Outcome:
            return self._module.call(own, arguments)

        axis = None if shared else 0
        of_lengths, of_keep, of_times = (None if value is None else axis for value in (lengths, keep, timespans))
        axes = (0, axis, of_lengths, None if state is None else 0, of_keep, of_times)
        return vmap(call, in_dims=axes)(values | self._noise_seeds, inputs, lengths, state, keep, timespans)

    def training(self, on: bool) -> None:
        """Switch dropout inside the unit off, or restore the mode that every module came with, so frozen ones stay."""
        self._module.eval()
        if on:
            for module, mode in self._modes:
                module.training = mode

    def members(self, values: Values | None = None, device: torch.device | str | None = None) -> list[nn.Module]:
        """Copies of all networks as ordinary modules, on the ensemble's device or another."""
        place = self.device if device is None else torch.device(device)
        # Moved once for all members: hundreds of small copies would each wait for the GPU.
        given = self.values if values is None else values
        moved = {name: value.detach().to(place) for name, value in (self.buffers | given).items()}
        template = copy.deepcopy(self._plain).to(place).eval()
        modules = [copy.deepcopy(template) for _ in range(self.size)]
        for index, module in enumerate(modules):
            targets = dict(module.named_parameters()) | dict(module.named_buffers())
            for name in given:
                targets[name].data.copy_(moved[name][index])
            for option in self._varied:
                set_option(module, option, float(moved[option][index]))
        return modules


def _require_state(state: Any) -> None:
    if isinstance(state, tuple | list):
        for part in state:
            _require_state(part)
    elif state is not None and not isinstance(state, Tensor):
        raise TypeError(
            f"the state that the model or its unit returned is a {type(state).__name__}; return a tensor, a tuple of "
            "tensors or None"
        )


def _generator_states(device: torch.device) -> list[Tensor]:
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]


def _pick(item: Any, member: int) -> Any:
    """One member of a stacked tensor, or of a tuple of them; None stays None."""
    if item is None:
        return None
    return item[member] if isinstance(item, Tensor) else tuple(_pick(part, member) for part in item)


def _stack(states: Sequence[State]) -> State:
    if states[0] is None:
        return None
    if isinstance(states[0], Tensor):
        return torch.stack(tuple(states))
    return tuple(_stack(list(parts)) for parts in zip(*states, strict=True))


def map_state(function: Callable[[Tensor], Tensor], state: State) -> State:
    """Apply `function` to every tensor of a unit's state."""
    if state is None:
        return None
    return function(state) if isinstance(state, Tensor) else tuple(map_state(function, part) for part in state)


def state_leaves(state: State) -> list[Tensor]:
    """The tensors of a unit's state, in order."""
    if state is None:
        return []
    return [state] if isinstance(state, Tensor) else [leaf for part in state for leaf in state_leaves(part)]
