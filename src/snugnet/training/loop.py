"""The one training loop.

A batch is drawn and augmented, the method says what happens with it, shards are averaged, SGD steps, the average of
the weights follows. A phase ends by handing its averaged weights to the next one. All randomness comes from `seed`,
so a run that is killed and started again in the same folder ends with the same weights, bit for bit, on the same
machine with the same number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, final

import torch
from torch import Tensor, nn

from snugnet.budgets.limits import Limits
from snugnet.costs.table import CostTable
from snugnet.data.augmentation import Augmentation
from snugnet.data.dataset import Data
from snugnet.errors import BadInput
from snugnet.evaluate.evaluator import Curves
from snugnet.seeds import Seed
from snugnet.training import optimiser
from snugnet.training.checkpoint import Checkpoint, Checkpointer, Position
from snugnet.training.gradient_sync import GradientSync, check_batch, share
from snugnet.training.method import EpochEnd, Method, MethodState, Net, PhaseContext, Step, Stream
from snugnet.training.train_log import TrainLog

if TYPE_CHECKING:
    from lightning_fabric import Fabric

_SOME_BATCH = 64  # images at a time where a method looks at some before it starts
LINE_EVERY = 50  # steps between lines of train.jsonl inside an epoch
T = TypeVar("T")
Batch = list[tuple[Tensor, Tensor]]  # images and labels of each shard of this process
Half = Callable[[Step, MethodState], dict[str, Tensor]]  # of a step: `Method.step` or `Method.then`


@final
@dataclass(frozen=True, kw_only=True)
class Options:
    """How a run is run."""

    seed: int
    batch: int
    accumulate: int
    channels_last: bool
    checkpoint_seconds: float
    eval_times: int

    @property
    def layout(self) -> torch.memory_format:
        return torch.channels_last if self.channels_last else torch.contiguous_format


@final
class Phase:
    """What belongs to the phase in hand: the method with its own state, the optimisers, the average of the weights."""

    def __init__(
        self, method: Method, own: MethodState, sgd: torch.optim.SGD, average: optimiser.Average | None
    ) -> None:
        self.method, self.own, self.sgd, self.average = method, own, sgd, average


@final
class Caller:
    """The model as a method sees it: called in the run's precision, everything else passed through."""

    def __init__(self, fabric: Fabric, model: nn.Module) -> None:
        self._fabric, self._model = fabric, model

    @property
    def model(self) -> nn.Module:
        """The model itself, for methods that need more of it than `Net` tells."""
        return self._model

    def __call__(self, images: Tensor, /, *path: Any, **options: Any) -> Tensor:
        with self._fabric.autocast():
            logits: Tensor = self._model(images, *path, **options)
        return logits

    def with_features(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of a plain network and what its classifier saw."""
        model: Any = self._model
        with self._fabric.autocast():
            logits, features = model.with_features(images)
        return logits, features

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


@final
class Loop:
    """Runs phases, one after the other, from any position."""

    def __init__(
        self,
        fabric: Fabric,
        model: nn.Module,
        data: Data,
        options: Options,
        checkpointer: Checkpointer,
        train_log: TrainLog | None,
        evaluator: Curves | None,
        teacher: Any,
        tables: Mapping[str, CostTable],
        limits: Limits | None = None,
    ) -> None:
        self._fabric, self._model, self._data, self._options = fabric, model, data, options
        self._checkpointer, self._train_log, self._evaluator = checkpointer, train_log, evaluator
        self._teacher, self._tables, self._limits = teacher, tables, limits
        self._net: Net = Caller(fabric, model)
        self._sync = GradientSync(fabric, model, options.accumulate)
        self.position = Position()

    def run(self, phases: list[Method], saved: Checkpoint | None) -> None:
        """All phases that are not done yet; `saved` is the state to go on from, its weights already in the model."""
        if saved is None:
            self._checkpointer.save(self.position)
        else:
            self.position = saved.position
        while self.position.phase < len(phases):
            method = phases[self.position.phase]
            with optimiser.norm_momentum(self._model, method.norm_momentum):
                self._phase(method, saved)
            saved = None

    def _phase(self, method: Method, saved: Checkpoint | None) -> None:
        """One phase from the current position to its end."""
        start, steps = self.position, self.steps(method)
        self._model.train()
        if start.step == 0:
            method.prepare_by_images(self._model, partial(self._some_images, method.split))
        phase = self._started(method, saved if start.step > 0 else None)
        optimisers = [self._fabric.setup_optimizers(each) for each in (phase.sgd, *phase.own.optimisers.values())]
        second = self._second(phase.own.stream, start.step, steps)
        main = self._batches(method.split, self._options.batch, start.step, self._seed(), crop=True)
        for step in range(start.step, steps):
            self._step(phase, next(main), next(second), step, optimisers)
            if phase.average is not None:
                phase.average.update(step)
            self.position = Position(phase=start.phase, step=step + 1, total=start.total + step + 1 - start.step)
            if (step + 1) % self.per_epoch(method) == 0 and self._end_epoch(phase):
                break
            if step + 1 < steps:
                self._between(phase)
        self._hand_over(phase)

    def _started(self, method: Method, saved: Checkpoint | None) -> Phase:
        """Optimiser, average and the method's own state, as saved or new."""
        sgd = optimiser.build(self._model, method, fused=self._fabric.device.type == "cpu")
        average = optimiser.Average(self._model, method.ema) if method.ema is not None else None
        with self._seed().fold_in("start").seed_globals():
            own = method.start(
                PhaseContext(
                    net=self._net,
                    about=self._data.about,
                    space=getattr(self._model, "space", None),
                    tables=self._tables,
                    limits=self._limits,
                    steps=self.steps(method),
                    epochs=method.epochs,
                    seed=self._seed(),
                    device=self._fabric.device,
                    resumed=saved is not None,
                )
            )
        share(self._fabric, own.tensors.values())
        self._sync.attach(own.trained)
        if saved is not None:
            optimiser.restore_momenta(self._model, sgd, saved.part("momentum"))
            self._checkpointer.restore(saved, own)
            if average is not None:
                average.restore(saved.part("average"))
        return Phase(method, own, sgd, average)

    def _step(self, phase: Phase, batch: Batch, second: Batch | None, step: int, optimisers: list[Any]) -> None:
        """Gradients of all shards, averaged; then one step of the model's optimiser, and of each of the method's own."""
        method, sgd = phase.method, optimisers[0]
        rate = optimiser.learning_rate(method, step, self.steps(method), self.per_epoch(method), self._options.batch)
        for group in sgd.param_groups:
            group["lr"] = rate
        seconds = [None] * len(batch) if second is None else second
        agreed = self._agreed(phase, batch, seconds, step)
        means = self._gradients(phase, method.step, sgd, batch, seconds, step, agreed)
        if not math.isfinite(means["loss"]):
            raise self._checkpointer.diverged("loss", means["loss"], self.position)
        if phase.own.watch is not None and phase.own.watch.collapsed(means["loss"]):
            raise self._checkpointer.collapsed(means["loss"], self.position)
        if method.clip_norm is not None:
            self._fabric.clip_gradients(self._model, sgd, max_norm=method.clip_norm, error_if_nonfinite=False)
        if method.clip_value is not None:
            self._fabric.clip_gradients(self._model, sgd, clip_val=method.clip_value)
        sgd.step()
        if method.alternates_at(step / self.per_epoch(method), step % self.per_epoch(method)):
            means |= self._gradients(phase, method.then, sgd, batch, seconds, step, agreed)
        for each in optimisers[1:]:
            each.step()
        if self._train_log is not None:
            self._train_log.add({**means, "lr": rate}, self._options.batch)

    def _agreed(self, phase: Phase, batch: Batch, seconds: Sequence[Any], step: int) -> Tensor | None:
        """The mean over all shards of what the method's survey says, the same in all processes."""
        survey = phase.own.survey
        if survey is None:
            return None
        first = self._fabric.global_rank * self._options.accumulate
        with torch.no_grad(), self._sync.buffers_kept():
            answers = [
                self._shard(phase, images, labels, other, step, first + i, lambda made, _: survey(made), None)
                for i, ((images, labels), other) in enumerate(zip(batch, seconds))
            ]
        return self._sync.mean(answers)

    def _gradients(
        self, phase: Phase, half: Half, sgd: Any, batch: Batch, seconds: Sequence[Any], step: int, agreed: Any
    ) -> dict[str, float]:
        """What one half of a step does with all shards, averaged."""
        sgd.zero_grad(set_to_none=True)
        for tensor in phase.own.trained:
            tensor.grad = None
        metrics = [
            self._shard(phase, images, labels, other, step, shard, half, agreed)
            for shard, (images, labels), other in zip(self._sync.numbers(), batch, seconds)
        ]
        return self._sync.exchange(metrics)

    def _end_epoch(self, phase: Phase) -> bool:
        """The method's last word on an epoch; whether the phase ends with it."""
        method = phase.method
        epoch = self.position.step // self.per_epoch(method) - 1
        optimisers = (phase.sgd, *phase.own.optimisers.values())
        report = method.end_epoch(EpochEnd(net=self._net, epoch=epoch, optimisers=optimisers), phase.own)
        if report.facts and self._train_log is not None:
            self._train_log.epoch(self._place(method), report.facts)
        return report.stop

    def _shard(
        self,
        phase: Phase,
        images: Tensor,
        labels: Tensor,
        other: tuple[Tensor, Tensor] | None,
        step: int,
        shard: int,
        work: Callable[[Step, MethodState], T],
        agreed: Tensor | None,
    ) -> T:
        """What the method makes of one shard; depends on the shard's number, not on the process it runs in."""
        method, stream = phase.method, phase.own.stream
        shared = self._seed().fold_in("step", step)
        own = shared.fold_in("shard", shard)

        def second() -> tuple[Tensor, Tensor]:
            if other is None or stream is None:
                raise BadInput(f"method {method.name!r} has no second stream", remedy="Give one to its MethodState.")
            return self._ready(*other, stream.augmentation or Augmentation(), own.fold_in("second"))

        with own.fold_in("network").seed_globals():
            floats, targets = self._ready(images, labels, method.augmentation(self._data.about), own.fold_in("augment"))
            return work(
                Step(
                    net=self._net,
                    images=floats,
                    targets=targets,
                    shared=shared,
                    own=own,
                    backward=self._sync.backward,
                    teacher=self._teacher,
                    epoch=step / self.per_epoch(method),
                    number=step % self.per_epoch(method),
                    second=second,
                    agreed=agreed,
                ),
                phase.own,
            )

    def _ready(self, images: Tensor, labels: Tensor, how: Augmentation, seed: Seed) -> tuple[Tensor, Tensor]:
        """On the device, augmented, normalised."""
        device = self._fabric.device
        floats, targets = how.apply(
            images.to(device), labels.to(device), self._data.classes, seed, self._data.normalise
        )
        return floats.contiguous(memory_format=self._options.layout), targets

    def _between(self, phase: Phase) -> None:
        """After a step that is not the phase's last: log, evaluate, save."""
        if self._train_log is None:
            return
        method = phase.method
        step, per_epoch = self.position.step, self.per_epoch(method)
        if step % per_epoch == 0 or step % LINE_EVERY == 0:
            self._train_log.line(self._place(method))
        times = self._options.eval_times
        every = per_epoch * max(1, round(method.epochs / times)) if times and method.epochs >= 1 else 0
        if times and step % (every or max(1, self.steps(method) // times)) == 0:
            self._evaluate_now(method, phase.average)
        self._show(method)
        doubtful = phase.own.watch is not None and phase.own.watch.doubtful  # what may have collapsed is not kept
        if not doubtful and self._checkpointer.due(self._options.checkpoint_seconds):
            self._checkpointer.save(self.position, phase.sgd, phase.average, phase.own)

    def _hand_over(self, phase: Phase) -> None:
        """A phase's end: the averaged weights become the weights, and the next phase is what the state names."""
        method = phase.method
        if phase.average is not None:
            phase.average.swap()
        if self._train_log is not None:
            self._train_log.line(self._place(method))
            self._evaluate_now(method, None)
            self._show(method)
        if method.kept_as is not None:
            self._checkpointer.keep(method.kept_as)
        self.position = Position(phase=self.position.phase + 1, step=0, total=self.position.total)
        self._checkpointer.save(self.position)

    def _some_images(self, split: str, count: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The first images of a split in an order of their own, as for evaluation."""
        positions = self._data.positions(split)
        order = torch.from_numpy(self._seed().fold_in("some").numpy().permutation(len(positions)))[:count]
        for images, labels in self._data.fetch(list(positions[order].split(_SOME_BATCH))):
            floats = images.to(self._fabric.device).float() / 255
            yield self._data.normalise(floats), labels.to(self._fabric.device)

    def _batches(self, split: str, batch: int, start: int, seed: Seed, *, crop: bool) -> Iterator[Batch]:
        """This process's shards of every step from `start` on, without end: epochs follow each other."""
        positions, per_epoch = self._data.positions(split), self._data.size(split) // batch
        size, mine = batch // self._sync.total, self._fabric.global_rank * self._options.accumulate
        epoch, first = divmod(start, per_epoch)
        while True:
            here = seed.fold_in("epoch", epoch)
            order = positions[torch.from_numpy(here.fold_in("order").numpy().permutation(len(positions)))]
            begins = [
                step * batch + shard * size
                for step in range(first, per_epoch)
                for shard in range(mine, mine + self._options.accumulate)
            ]
            shards = self._data.fetch([order[at : at + size] for at in begins], here.fold_in("crop") if crop else None)
            for _ in range(first, per_epoch):
                yield [next(shards) for _ in range(self._options.accumulate)]
            epoch, first = epoch + 1, 0

    def _second(self, stream: Stream | None, start: int, steps: int) -> Iterator[Batch | None]:
        if stream is None:
            return iter([None] * (steps - start))
        check_batch(stream.batch, self._sync.total, self._data.size(stream.split), stream.split)
        seed, crop = self._seed().fold_in("second"), stream.augmentation is not None
        needed = stream.needed or (lambda _: True)
        before = sum(map(needed, range(start)))
        batches = self._batches(stream.split, stream.batch, before, seed, crop=crop)
        return (next(batches) if needed(step) else None for step in range(start, steps))

    def _seed(self) -> Seed:
        return Seed(self._options.seed).fold_in("phase", self.position.phase)

    def per_epoch(self, method: Method) -> int:
        """Steps of an epoch; images that do not fill a batch are left out, other ones in every epoch."""
        steps: int = self._data.size(method.split) // self._options.batch
        return steps

    def steps(self, method: Method) -> int:
        return max(1, round(method.epochs * self.per_epoch(method)))

    def _evaluate_now(self, method: Method, average: optimiser.Average | None) -> None:
        """Accuracies with the averaged weights; the weights in training are put back untouched."""
        if self._evaluator is None or self._train_log is None:
            return
        if average is not None:
            average.swap()
        self._model.eval()
        with torch.random.fork_rng(devices=[]):
            accuracies = self._evaluator(self._model)
        self._model.train()
        if average is not None:
            average.swap()
        self._train_log.evaluated(self._place(method), accuracies)

    def _show(self, method: Method) -> None:
        assert self._train_log is not None
        epoch = self.position.step // self.per_epoch(method)
        self._train_log.show(self.position.total, f"{method.name} epoch {epoch}/{method.epochs:g}")

    def _place(self, method: Method) -> dict[str, Any]:
        return {
            "phase": self.position.phase,
            "method": method.name,
            "epoch": round(self.position.step / self.per_epoch(method), 3),
            "step": self.position.step,
            "total": self.position.total,
            "seconds": round(self._checkpointer.seconds(), 2),
        }
