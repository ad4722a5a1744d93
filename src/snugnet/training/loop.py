"""The one training loop.

A batch is drawn and augmented, the method says what happens with it, shards are averaged, SGD steps, the average of
the weights follows. A phase ends by handing its averaged weights to the next one. All randomness comes from `seed`,
so a run that is killed and started again in the same folder ends with the same weights, bit for bit, on the same
machine with the same number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, final

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from snugnet.data.dataset import Data
from snugnet.evaluate.accuracy import Evaluator
from snugnet.seeds import Seed
from snugnet.training import optimiser
from snugnet.training.checkpoint import Checkpoint, Position
from snugnet.training.checkpointer import Checkpointer
from snugnet.training.gradient_sync import GradientSync
from snugnet.training.method import Method, Net, Step
from snugnet.training.train_log import TrainLog

LINE_EVERY = 50  # steps between lines of train.jsonl inside an epoch
Batch = list[tuple[Tensor, Tensor]]  # images and labels of each shard of this process


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
class Caller:
    """The model as a method sees it: called in the run's precision, everything else passed through."""

    def __init__(self, fabric: Fabric, model: nn.Module) -> None:
        self._fabric, self._model = fabric, model

    def __call__(self, images: Tensor, *path: Any) -> Tensor:
        with self._fabric.autocast():
            logits: Tensor = self._model(images, *path)
        return logits

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
        evaluator: Evaluator | None,
        teacher: Any,
    ) -> None:
        self._fabric, self._model, self._data, self._options = fabric, model, data, options
        self._checkpointer, self._train_log, self._evaluator, self._teacher = (
            checkpointer,
            train_log,
            evaluator,
            teacher,
        )
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
            self._phase(phases[self.position.phase], saved)
            saved = None

    def _phase(self, method: Method, saved: Checkpoint | None) -> None:
        """One phase from the current position to its end."""
        start, steps = self.position, self.steps(method)
        self._model.train()
        if start.step == 0:
            method.begin(self._model)
        sgd = optimiser.build(self._model, method, fused=self._fabric.device.type == "cpu")
        average = optimiser.Average(self._model, method.ema) if method.ema is not None else None
        if saved is not None and start.step > 0:
            optimiser.restore_momenta(self._model, sgd, saved.part("momentum"))
            if average is not None:
                average.restore(saved.part("average"))
        scaled_sgd: Any = self._fabric.setup_optimizers(sgd)
        for step, batch in enumerate(self._batches(method, start.step), start.step):
            self._step(method, batch, step, scaled_sgd)
            if average is not None:
                average.update(step)
            self.position = Position(phase=start.phase, step=step + 1, total=start.total + step + 1 - start.step)
            if step + 1 < steps:
                self._between(method, sgd, average)
        self._hand_over(method, average)

    def _step(self, method: Method, batch: Batch, step: int, sgd: Any) -> None:
        """Gradients of all shards, averaged; then one step of the optimiser."""
        rate = optimiser.learning_rate(method, step, self.steps(method), self.per_epoch(method), self._options.batch)
        for group in sgd.param_groups:
            group["lr"] = rate
        sgd.zero_grad(set_to_none=True)
        metrics = [
            self._shard(method, images, labels, step, shard)
            for shard, (images, labels) in zip(self._sync.numbers(), batch)
        ]
        means = self._sync.exchange(metrics)
        if not math.isfinite(means["loss"]):
            raise self._checkpointer.diverged("loss", means["loss"], self.position)
        if method.clip_norm is not None:
            self._fabric.clip_gradients(self._model, sgd, max_norm=method.clip_norm, error_if_nonfinite=False)
        if method.clip_value is not None:
            self._fabric.clip_gradients(self._model, sgd, clip_val=method.clip_value)
        sgd.step()
        if self._train_log is not None:
            self._train_log.add({**means, "lr": rate}, self._options.batch)

    def _shard(self, method: Method, images: Tensor, labels: Tensor, step: int, shard: int) -> dict[str, Tensor]:
        """What the method makes of one shard; depends on the shard's number, not on the process it runs in."""
        shared = self._seed().fold_in("step", step)
        own = shared.fold_in("shard", shard)
        device = self._fabric.device
        with own.fold_in("network").seed_globals():
            floats, targets = method.augmentation(self._data.about).apply(
                images.to(device), labels.to(device), self._data.classes, own.fold_in("augment"), self._data.normalise
            )
            return method.step(
                Step(
                    net=self._net,
                    images=floats.contiguous(memory_format=self._options.layout),
                    targets=targets,
                    shared=shared,
                    own=own,
                    backward=self._sync.backward,
                    teacher=self._teacher,
                    epoch=step / self.per_epoch(method),
                )
            )

    def _between(self, method: Method, sgd: torch.optim.SGD, average: optimiser.Average | None) -> None:
        """After a step that is not the phase's last: tell, evaluator, save."""
        if self._train_log is None:
            return
        step, per_epoch = self.position.step, self.per_epoch(method)
        if step % per_epoch == 0 or step % LINE_EVERY == 0:
            self._train_log.line(self._place(method))
        times = self._options.eval_times
        if times and step % (per_epoch * max(1, round(method.epochs / times))) == 0:
            self._evaluate_now(method, average)
        self._show(method)
        if self._checkpointer.due(self._options.checkpoint_seconds):
            self._checkpointer.save(self.position, sgd, average)

    def _hand_over(self, method: Method, average: optimiser.Average | None) -> None:
        """A phase's end: the averaged weights become the weights, and the next phase is what the state names."""
        if average is not None:
            average.swap()
        if self._train_log is not None:
            self._train_log.line(self._place(method))
            self._evaluate_now(method, None)
            self._show(method)
        self.position = Position(phase=self.position.phase + 1, step=0, total=self.position.total)
        self._checkpointer.save(self.position)

    def _batches(self, method: Method, start: int) -> Iterator[Batch]:
        """This process's shards of every step from `start` to the end of the phase."""
        per_epoch, positions = self.per_epoch(method), self._data.positions(method.split)
        for epoch in range(start // per_epoch, method.epochs):
            seed = self._seed().fold_in("epoch", epoch)
            order = positions[torch.from_numpy(seed.fold_in("order").numpy().permutation(len(positions)))]
            first = start % per_epoch if epoch == start // per_epoch else 0
            parts = [order[at : at + self._shard_size()] for at in self._starts(first, per_epoch)]
            fetched = self._data.fetch(parts, seed.fold_in("crop"))
            for _ in range(first, per_epoch):
                yield [next(fetched) for _ in range(self._options.accumulate)]

    def _starts(self, first: int, end: int) -> Iterator[int]:
        """Where in the epoch's order this process's shards begin."""
        accumulate, mine = self._options.accumulate, self._fabric.global_rank * self._options.accumulate
        for step in range(first, end):
            for shard in range(mine, mine + accumulate):
                yield step * self._options.batch + shard * self._shard_size()

    def _shard_size(self) -> int:
        size: int = self._options.batch // self._sync.total
        return size

    def _seed(self) -> Seed:
        return Seed(self._options.seed).fold_in("phase", self.position.phase)

    def per_epoch(self, method: Method) -> int:
        """Steps of an epoch; images that do not fill a batch are left out, other ones in every epoch."""
        steps: int = self._data.size(method.split) // self._options.batch
        return steps

    def steps(self, method: Method) -> int:
        return method.epochs * self.per_epoch(method)

    def _evaluate_now(self, method: Method, average: optimiser.Average | None) -> None:
        """Accuracies with the averaged weights; the weights in training are put back untouched."""
        if self._evaluator is None or self._train_log is None:
            return
        if average is not None:
            average.swap()
        self._model.eval()
        with torch.random.fork_rng(devices=[]):
            found = self._evaluator(self._model)
        self._model.train()
        if average is not None:
            average.swap()
        self._train_log.evaluated(self._place(method), found)

    def _show(self, method: Method) -> None:
        assert self._train_log is not None
        epoch = self.position.step // self.per_epoch(method)
        self._train_log.show(self.position.total, f"{method.name} epoch {epoch}/{method.epochs}")

    def _place(self, method: Method) -> dict[str, Any]:
        return {
            "phase": self.position.phase,
            "method": method.name,
            "epoch": round(self.position.step / self.per_epoch(method), 3),
            "step": self.position.step,
            "total": self.position.total,
            "seconds": round(self._checkpointer.seconds(), 2),
        }
