"""The training loop: epochs, validation, selection, checkpoints. It is independent of task and unit."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from lipschitz_rnn.tasks import Split, Task, is_registered
from lipschitz_rnn.training.checkpoint import CheckpointError
from lipschitz_rnn.training.ensemble import Ensemble, state_leaves
from lipschitz_rnn.training.evaluation import Scores, evaluate_members
from lipschitz_rnn.training.folder import RunError, RunFolder, Saved
from lipschitz_rnn.training.graph import GraphedStep
from lipschitz_rnn.training.interrupts import Interrupted, Interrupts, describe_rest, resume_command
from lipschitz_rnn.training.model import SequenceModel, State, count_parameters, in_precision, read_size
from lipschitz_rnn.training.parallel import World
from lipschitz_rnn.training.patience import Patience
from lipschitz_rnn.training.probing import Moment, Probe, Probing
from lipschitz_rnn.training.results import Result, SeedResult, Selection
from lipschitz_rnn.training.schedules import learning_rate, robust_share
from lipschitz_rnn.training.settings import Member, Settings
from lipschitz_rnn.training.sources import Builder, describe_sources
from lipschitz_rnn.training.streams import Stream, derived_seed
from lipschitz_rnn.training.times import has_times, require_timed
from lipschitz_rnn.training.update import Updater, finite_or_none
from lipschitz_rnn.training.variation import check_variants
from lipschitz_rnn.training.watchers import Watcher


class Diverged(RunError):
    """Every member's loss or gradient became NaN or infinite."""


class Trainer:
    """One run: all seeds of one configuration, from the start or from a checkpoint to the test result."""

    def __init__(
        self,
        settings: Settings,
        task: Task,
        device: torch.device,
        build: Builder,
        world: World,
        folder: RunFolder | None,
        watcher: Watcher,
        probe: Probe | None,
    ) -> None:
        self.settings, self.task, self.world, self.folder = settings, task, world, folder
        self.watcher = watcher
        self.sources = describe_sources(settings, task, build)
        self.members = settings.members
        built = (build(settings.of_variant(member.variant), task, member.seed) for member in self.members)
        models = [in_precision(model, settings) for model in built]
        check_variants(models[0], settings.unit, settings.variants)
        if settings.embedding_dropout and not (isinstance(models[0], SequenceModel) and read_size(models[0])):
            raise ValueError(
                f"embedding_dropout is {settings.embedding_dropout:g}; it is for a SequenceModel with a linear head, "
                f"and not for {type(models[0]).__name__}. Drop embedded tokens inside your own model"
            )
        timed = has_times(task)
        if timed:
            require_timed(models[0], task.name)
        self.parameter_count = count_parameters(models[0])
        self.ensemble = Ensemble(models, device, settings.ensemble, task, timed)
        self.updater = Updater(settings, task, self.ensemble, world)
        drawn = (read_size(models[0]), self.ensemble.noisy_cells)
        self.stream = Stream(settings.per_member(), task, device, world.shard, *drawn)
        self.selection = Selection(task.metric, self.updater.evaluated)
        self._patience = Patience(settings.patience, task.metric, len(self.members))
        self._probing = Probing(probe if world.writes else None, self.ensemble)
        self._graph = GraphedStep(settings, self.updater, self.stream, world, watcher.note)
        self.epoch = self.step = 0
        self.carry: State = None
        self.seconds = 0.0
        self._known_alive = [True] * self.ensemble.size
        self._last_save = self._last_tick = time.monotonic()
        self._interrupts = Interrupts()

    # -- the loop ------------------------------------------------------------------------------------------------

    def run(self, saved: Saved | None = None) -> Result:
        """Train to the end, starting from `saved` if given."""
        if saved is None:
            self.stream.begin_epoch()
            self._save()
        else:
            self._restore(*saved)
            selected = any(value is not None for value in self.selection.values)
            if selected and self.folder is not None and self.world.writes and not self.folder.has_best():
                self._save_best(self.folder)
        resumed_at = self.done
        self.watcher.start(self.settings, self.stream.steps, self.done)
        try:
            with self._interrupts:
                while self.epoch < self.settings.epochs and not self._patience.is_over(self._known_alive):
                    self._train_epoch()
                    self._finish_epoch()
                return self._finish_run(trained=self.done > resumed_at or saved is None)
        except Interrupted as interrupted:
            self._collect_probe()
            self._save()
            raise Interrupted(interrupted.number, self._last_good(), self._how_to_resume()) from None
        except KeyboardInterrupt as interrupt:  # a second Ctrl-C did not wait for the step: the last checkpoint remains
            rest = describe_rest(self._last_good(), self._how_to_resume())
            interrupt.add_note(f"stopped at once{rest}")
            self.watcher.note(f"stopped at once{rest}")
            raise
        finally:
            self.watcher.stop()

    def _how_to_resume(self) -> str | None:
        """How to resume this run, if it has a folder."""
        if self.folder is None:
            return None
        known = is_registered(self.task.name, self.sources["task"])
        return resume_command(self.folder.path, self.world.size, known, self.sources)

    @property
    def done(self) -> int:
        """Optimiser steps so far."""
        return self.epoch * self.stream.steps + self.step

    def _train_epoch(self) -> None:
        while self.step < self.stream.steps:
            when = (self.settings, self.done, self.stream.steps)
            self.updater.set_rate(learning_rate(*when), self.done, robust_share(*when))
            seeds = None
            if self.ensemble.random:
                seeds = [derived_seed("forward", member.seed, self.done) for member in self.members]
            state = self._graph(self.step, self.carry, seeds)
            self.carry = state if self.task.carries_state else None
            self.step += 1
            self.watcher.step(self.done)
            at_log = self.step % self.settings.log_steps == 0 or self.step == self.stream.steps
            if at_log:
                self._log()
            self._pause(agree=at_log)
            if at_log and self._save_is_due():
                self._collect_probe()
                self._save()

    def _pause(self, agree: bool = True) -> None:
        """Stop between two steps after a signal; several processes stop together, at a step they agree on."""
        number = self._interrupts.number
        if self.world.size > 1:
            if not agree or not self.world.any(bool(number), self.ensemble.device):
                return
            number = number or 15
        if number:
            raise Interrupted(number)

    def _finish_epoch(self) -> None:
        scores = self._evaluate("validation", self.updater.evaluated)
        rising = robust_share(self.settings, self.done, self.stream.steps) < 1.0
        if rising:  # epochs in which a radius counts less than asked for do not compete with later ones
            self.selection.forget()
        improved = self.selection.consider(scores.metric, self.epoch, self.updater.evaluated, self._known_alive)
        if not rising:
            self._patience.consider(scores.metric, scores.loss)
        record = {"kind": "validation", "epoch": self.epoch, "step": self.done, **self._score_record(scores)}
        self._record(record | {"seconds": self._tick()})
        self._collect_probe()
        self._start_probe(self.epoch)
        self.epoch, self.step, self.carry = self.epoch + 1, 0, None
        self.stream.begin_epoch()
        if improved and self.folder is not None and self.world.writes:
            self._save_best(self.folder)
        self._save()

    def _finish_run(self, trained: bool) -> Result:
        """Test at the selected and at the last epoch; the test split is not used before. The result of a run in which
        nothing was `trained` any more is not written again: it says when and where it was."""
        self._collect_probe()
        last = self._evaluate("test", self.updater.evaluated)
        selected = self._evaluate("test", self.selection.parameters)
        result = self._result(selected, last)
        record = {"kind": "test", "epoch": self.epoch - 1, "step": self.done, "split": "test"}
        tested = {"selected": [seed.test for seed in result.seeds], "last": [seed.test_last for seed in result.seeds]}
        self._record(record | tested)
        if self.folder is not None and self.world.writes:
            if not trained and (seconds := self.folder.written_seconds(len(self.members))) is not None:
                return dataclasses.replace(result, seconds=seconds)
            self.folder.write_result(result.to_dict())
        return result

    def _result(self, selected: Scores, last: Scores) -> Result:
        stopped = self.updater.progress["stopped_step"].tolist()
        seeds = []
        for i, (member, alive, validation) in enumerate(
            zip(self.members, self._known_alive, self.selection.values, strict=True)
        ):
            scored = self.done == 0 or validation is not None
            test = finite_or_none(selected.metric[i]) if scored else None
            test_last = finite_or_none(last.metric[i]) if scored and alive else None
            diverged = None if alive else stopped[i]
            epoch = self.selection.epochs[i]
            seeds.append(SeedResult(member.seed, epoch, validation, test, test_last, diverged, member.variant))
        metric = self.task.metric
        models = tuple(self.ensemble.members(self.selection.parameters))
        return Result(
            task=self.task.name,
            unit=self.settings.unit,
            metric=metric.name,
            higher_is_better=metric.higher_is_better,
            percent=metric.percent,
            parameters=self.parameter_count,
            steps=self.done,
            seconds=self._tick(),
            ensemble=self.ensemble.mode,
            seeds=tuple(seeds),
            models=models,
        )

    # -- what the loop writes --------------------------------------------------------------------------------------

    def _log(self) -> None:
        """Read the device once: mean loss and gradient norm since the last log, and which members have stopped."""
        progress = self.updater.progress
        names = ("loss_sum", "norm_sum", "alive", "stopped_step", "stopped_norm", "summed")
        read = torch.stack([progress[name].double().expand(self.ensemble.size) for name in names]).tolist()
        loss, norm, alive, stopped, norms, (count, *_) = read
        for i, member in enumerate(self.members):
            if self._known_alive[i] and not alive[i]:
                self._report_stop(member, int(stopped[i]), norms[i])
        self._known_alive = [bool(value) for value in alive]
        living = [value / count if self._known_alive[i] else None for i, value in enumerate(loss)]
        gradients = [value / count if self._known_alive[i] else None for i, value in enumerate(norm)]
        rate = learning_rate(self.settings, self.done - 1, self.stream.steps)
        record = {"kind": "train", "epoch": self.epoch, "step": self.done, "learning_rate": rate}
        self._record(record | {"loss": living, "gradient_norm": gradients, "seconds": self._tick()})
        for name in ("loss_sum", "norm_sum", "summed"):
            progress[name].zero_()
        if not any(self._known_alive):
            first = stopped.index(min(stopped))
            raise Diverged(
                f"the loss became NaN or infinite at step {stopped[first]:.0f} (gradient norm {norms[first]:.3g}); "
                f"the last good checkpoint is {self._last_good()}; lower the learning rate or set a gradient clip"
            )

    def _report_stop(self, member: Member, step: int, norm: float) -> None:
        good = self._last_good()
        if len(self.members) > 1:  # a single network ends the run, and the error says the same
            self.watcher.note(
                f"{member.name} stopped: its loss or gradient became NaN or infinite at step {step} "
                f"(gradient norm {norm:.3g}); its last good checkpoint is {good}"
            )
        event = {"kind": "diverged", "seed": member.seed, "epoch": self.epoch, "step": step}
        event |= {"variant": member.variant} if member.variant else {}
        self._record(event | {"gradient_norm": finite_or_none(norm), "last_good_checkpoint": good})

    def _last_good(self) -> str | None:
        return self.folder.last_name() if self.folder else None

    def _record(self, record: Mapping[str, Any]) -> None:
        if self.world.writes:
            if self.folder is not None:
                self.folder.write_record(record)
            self.watcher.record(record)

    def _score_record(self, scores: Scores) -> dict[str, Any]:
        return {self.task.metric.name: _plain(scores.metric), "loss": _plain(scores.loss)}

    def _start_probe(self, epoch: int) -> None:
        self._probing.start(Moment(epoch, (epoch + 1) * self.stream.steps), self.updater.evaluated)
        if not self._probing.in_background:
            self._collect_probe()

    def _collect_probe(self) -> None:
        record = self._probing.collect()
        if record is not None:
            self._record(record)

    def _evaluate(self, split: Split, parameters: dict[str, Tensor]) -> Scores:
        arguments = (self.ensemble, parameters, self.task, split, self.settings, self.world)
        # Processes have different numbers of batches, so they cannot agree between batches.
        return evaluate_members(*arguments, pause=self._pause if self.world.size == 1 else lambda: None)

    def _tick(self) -> float:
        """Seconds of this run so far, including the time before it was resumed."""
        now = time.monotonic()
        self.seconds += now - self._last_tick
        self._last_tick = now
        return round(self.seconds, 3)

    # -- checkpoints -----------------------------------------------------------------------------------------------

    def _save_best(self, folder: RunFolder) -> None:
        folder.save_best(self.selection.tensors("parameters/"), self.selection.state())

    def _save_is_due(self) -> bool:
        due = time.monotonic() - self._last_save > 60.0 * self.settings.checkpoint_minutes
        return self.world.any(due and self.world.writes, self.ensemble.device)

    def _save(self) -> None:
        carry = [self.world.join(leaf, 2) for leaf in state_leaves(self.carry)]
        self._last_save = time.monotonic()
        if self.folder is None or not self.world.writes:
            return
        tensors = self.updater.tensors() | self.selection.tensors("best/")
        tensors |= {f"generators/{name}": value for name, value in self.stream.states().items()}
        tensors |= {f"carry/{index}": leaf for index, leaf in enumerate(carry)}
        state: dict[str, Any] = {"epoch": self.epoch, "step": self.step, "steps": self.done, "seconds": self._tick()}
        state |= {"carry": "tensor" if isinstance(self.carry, Tensor) else "tuple", "selection": self.selection.state()}
        state |= {"probe_pending": self._probing.pending, "patience": self._patience.state()}
        self.folder.save(self.done, tensors, state)

    def _restore(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        try:
            self._read_state(tensors, state)
        except (KeyError, IndexError, TypeError, ValueError, RuntimeError) as error:
            if isinstance(error, CheckpointError):
                raise
            raise CheckpointError(
                f"the checkpoint does not fit this run: {error!r}; start in another folder"
            ) from error
        if state.get("probe_pending"):
            self._start_probe(self.epoch - 1)

    def _read_state(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        self.updater.load(tensors)
        self.selection.load({k: v for k, v in tensors.items() if k.startswith("best/")}, state["selection"])
        self._patience.load(state.get("patience"))
        self.stream.restore({k.removeprefix("generators/"): v for k, v in tensors.items() if "generators/" in k})
        leaves = [tensors[f"carry/{i}"].to(self.ensemble.device) for i in range(sum("carry/" in k for k in tensors))]
        cut = [self.world.shard.cut(leaf, 2) for leaf in leaves]
        self.carry = cut[0] if state["carry"] == "tensor" else tuple(cut) or None
        self.epoch, self.step, self.seconds = state["epoch"], state["step"], state["seconds"]
        self._known_alive = self.updater.progress["alive"].tolist()
        self._last_tick = time.monotonic()


def _plain(values: list[float]) -> list[float | None]:
    return [finite_or_none(value) for value in values]
