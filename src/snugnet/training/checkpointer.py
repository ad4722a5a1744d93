"""Keeps the state of a run: finds it, loads it, saves it, and puts the last good one back when training diverges.

With a folder the state lives in `checkpoint` files; without one, in memory. Only the first process writes and reads;
the others are told what it read, so nodes need not share a disk.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from snugnet.errors import BadInput, TrainingDiverged
from snugnet.training import checkpoint, optimiser
from snugnet.training.checkpoint import Checkpoint, Found, Position
from snugnet.training.train_log import TrainLog


@final
class Checkpointer:
    """The state of one run. `record` is None in all processes but the first."""

    def __init__(
        self, fabric: Fabric, model: nn.Module, recipe: dict[str, Any], out: Path | None, train_log: TrainLog | None
    ) -> None:
        self._fabric, self._model, self._recipe, self._train_log = fabric, model, recipe, train_log
        self._folder = None if out is None else out / "state"
        self._memory: Checkpoint | None = None
        self._saved_at = self._began = time.perf_counter()
        self._seconds_before = 0.0

    def find(self, resume: bool) -> Found:
        """The state to go on from, loaded into the model, if there is one."""
        found = Found(None)
        if self._folder is not None and self._fabric.is_global_zero:
            checkpoint.clean(self._folder)
            found = checkpoint.read_latest(self._folder)
            if found.checkpoint is not None:
                run = self._folder.parent
                if not resume:
                    raise BadInput(f"{run} must hold no run yet", remedy="Resume it, or choose another folder.")
                checkpoint.check_same_recipe(found.checkpoint.recipe, self._recipe, run)
        if self._fabric.world_size > 1:
            found = self._fabric.broadcast(found)
        if found.checkpoint is not None:
            self._load(found.checkpoint)
        return found

    def due(self, every: float) -> bool:
        return self._train_log is not None and time.perf_counter() - self._saved_at >= every

    def save(
        self, position: Position, sgd: torch.optim.SGD | None = None, average: optimiser.Average | None = None
    ) -> None:
        """Keep this state; one with weights that are not finite is never kept."""
        if self._train_log is None:
            return
        tensors = {f"model.{name}": t for name, t in self._model.state_dict().items()}
        if not checkpoint.finite(tensors):
            raise self.diverged("weights", math.nan, position)
        if average is not None:
            tensors |= {f"average.{name}": t for name, t in average.values.items()}
        if sgd is not None:
            tensors |= {f"momentum.{name}": t for name, t in optimiser.momenta(self._model, sgd).items()}
        state = Checkpoint(
            position=position,
            recipe=self._recipe,
            tensors=tensors,
            log=self._train_log.state(),
            scaler=self._fabric.strategy.precision.state_dict(),
            seconds=self.seconds(),
        )
        if self._folder is not None:
            checkpoint.write(self._folder, state)
        else:
            self._memory = replace(state, tensors={name: t.detach().clone() for name, t in tensors.items()})
        self._saved_at = time.perf_counter()

    def diverged(self, what: str, value: float, position: Position) -> TrainingDiverged:
        """Puts the last good weights back into the model; the error to raise says where they are."""
        good = self._memory if self._folder is None else checkpoint.read_latest(self._folder).checkpoint
        kept = "no earlier state was kept"
        if good is not None:
            self._load_weights(good.part("model"))
            place = "in the model" if self._folder is None else f"in {self._folder} and in the model"
            kept = f"the state after step {good.position.total} is kept {place}"
        return TrainingDiverged(
            f"the {what} must stay finite",
            value=f"{value} in step {position.total + 1}",
            remedy=f"Lower lr, add warmup_epochs, or set clip_norm; {kept}.",
        )

    def seconds(self) -> float:
        """Time spent on this run, over all resumptions."""
        return self._seconds_before + time.perf_counter() - self._began

    def _load(self, saved: Checkpoint) -> None:
        self._load_weights(saved.part("model"))
        self._seconds_before = saved.seconds
        if saved.scaler:
            self._fabric.strategy.precision.load_state_dict(saved.scaler)
        if self._train_log is not None:
            self._train_log.restore(saved.log)

    @torch.no_grad()
    def _load_weights(self, saved: dict[str, Tensor]) -> None:
        for name, tensor in self._model.state_dict().items():
            tensor.copy_(saved[name])
