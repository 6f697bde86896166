"""A training step, eager or replayed from a CUDA graph: a short scan takes less time than the launches around it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lipschitz_rnn.tasks import Batch
from lipschitz_rnn.training.ensemble import map_state, state_leaves
from lipschitz_rnn.training.model import State
from lipschitz_rnn.training.parallel import World
from lipschitz_rnn.training.settings import Settings
from lipschitz_rnn.training.streams import Stream
from lipschitz_rnn.training.update import Updater

WARMUP_STEPS = 3  # eager steps before the capture: kernels compile, the optimiser allocates its state


class GraphedStep:
    """Draws a step's batch and updates all members; on a GPU the update is captured once and then replayed.

    Batches are drawn outside the graph, since noise comes from each seed's own generator, and copied into the buffers
    that the graph reads. The learning rate, the step count, the averaging weight and the seeds of noise on states are
    already on the device.
    """

    def __init__(
        self, settings: Settings, updater: Updater, stream: Stream, world: World, note: Callable[[str], None]
    ) -> None:
        self._updater, self._stream, self._note = updater, stream, note
        self._required = settings.cuda_graph == "on"
        obstacle = graph_obstacle(settings, updater.device, updater.ensemble.random, world)
        self._wanted = not obstacle
        self._ran = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        # Use one stream for every step, captured or not: cuDNN's layers keep the autograd state of their stream.
        self._side = torch.cuda.Stream(updater.device) if self._wanted else None
        self._buffers: list[Tensor] = []
        self._state: State = None

    def __call__(self, step: int, state: State, random_seeds: list[int] | None) -> State:
        batch, keep = self._stream.draw(step)
        if self._updater.ensemble.noisy_cells:
            self._updater.ensemble.seed_noise(self._stream.draw_noise_seeds())
        if not self._wanted:
            return self._updater.step(batch, keep, state, random_seeds)
        # The first window of a stateful epoch has no state and would need another graph, so it runs eagerly.
        if self._stream.carries and state is None:
            return self._on_side_stream(batch, keep, state)
        if self._graph is None and self._ran < WARMUP_STEPS:
            self._ran += 1
            return self._on_side_stream(batch, keep, state)
        graph = self._graph or self._capture(batch, keep, state)
        values = _tensors(batch, keep)
        # Sequences padded to the longest of their batch have many lengths; a graph has only one.
        if graph is None or [value.shape for value in values] != [buffer.shape for buffer in self._buffers]:
            return self._on_side_stream(batch, keep, state)
        for buffer, value in zip(self._buffers, values, strict=True):
            buffer.copy_(value)
        for buffer, value in zip(state_leaves(self._state), state_leaves(state), strict=True):
            if buffer.data_ptr() != value.data_ptr():
                buffer.copy_(value)
        graph.replay()
        return self._state

    def _on_side_stream(self, batch: Batch, keep: Tensor | None, state: State) -> State:
        """An eager step on the stream of the capture, as PyTorch requires before and after one."""
        assert self._side is not None
        self._side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._side):
            state = self._updater.step(batch, keep, state, None)
        torch.cuda.current_stream().wait_stream(self._side)
        return state

    def _capture(self, batch: Batch, keep: Tensor | None, state: State) -> torch.cuda.CUDAGraph | None:
        """Capture the update on separate buffers, without running it; None if it cannot be captured."""
        fixed = batch.map(Tensor.clone)
        fixed_keep = None if keep is None else keep.clone()
        self._state = map_state(torch.Tensor.clone, state)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, stream=self._side):
                new_state = self._updater.step(fixed, fixed_keep, self._state, None)
                if self._stream.carries:
                    for buffer, value in zip(state_leaves(self._state), state_leaves(new_state), strict=True):
                        buffer.copy_(value)
        except RuntimeError as error:
            if self._required:
                raise
            self._wanted, self._state = False, None
            self._note(f"training continues without a CUDA graph: {str(error).splitlines()[0]}")
            return None
        self._graph, self._buffers = graph, _tensors(fixed, fixed_keep)
        return graph


def graph_obstacle(settings: Settings, device: torch.device, draws: bool, world: World) -> str:
    """Why the step cannot be captured, or ''; ValueError if cuda_graph is on. `draws`: the unit uses random numbers."""
    obstacle = ""
    if settings.cuda_graph == "off":
        return "it is switched off"
    if device.type != "cuda":
        obstacle = "CUDA graphs need a CUDA device"
    elif draws:
        obstacle = "the unit draws its own random numbers (dropout)"
    elif world.size > 1:
        obstacle = "several processes exchange gradients at every step"
    if obstacle and settings.cuda_graph == "on":
        raise ValueError(f'cuda_graph="on" is not possible: {obstacle}; use "auto"')
    return obstacle


def _tensors(batch: Batch, keep: Tensor | None) -> list[Tensor]:
    return [*batch.tensors, *(() if keep is None else (keep,))]
