"""The state of a run, kept so that it survives anything: kill -9, a full disk, a flipped bit, a changed recipe.

`Checkpointer` finds it, loads it, saves it, and puts the last good one back when training diverges; with a folder in files,
without one in memory. Only the first process writes and reads; the others are told what it read, so nodes need not share
a disk. A checkpoint is two files in RUN/state: NNNNNNNN.safetensors with all tensors, and NNNNNNNN.json with the position,
the recipe and the checksum of both. Each is written atomically, the JSON last: without it the checkpoint does not
exist. The last two are kept. Reading takes the newest whole one and names every damaged one it passed over. Random
generators need no state: see `snugnet.seeds`.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import torch
from safetensors import torch as safetensors
from torch import Tensor, nn

from snugnet.errors import BadInput, DamagedFile, TrainingDiverged
from snugnet.nets.tensor_file import parse_tensors, read_tensors
from snugnet.store import read_bytes, read_json, sha256, tensors_fingerprint, write_bytes, write_json
from snugnet.training import optimiser
from snugnet.training.method import MethodState
from snugnet.training.train_log import TrainLog

if TYPE_CHECKING:
    from lightning_fabric import Fabric

FORMAT = "snugnet-checkpoint-2"
KEPT = 2


@final
@dataclass(frozen=True, kw_only=True)
class Position:
    """Where a run stands: `step` steps of phase `phase` are done, `total` in all."""

    phase: int = 0
    step: int = 0
    total: int = 0


@final
@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """The whole state of a run. Tensors are named model.*, average.*, momentum.*, method.* and optimiser.*"""

    position: Position
    recipe: dict[str, Any]
    tensors: dict[str, Tensor] = field(repr=False)
    log: dict[str, Any]  # length of train.jsonl and sums since its last line
    scaler: dict[str, Any]
    seconds: float
    optimisers: dict[str, Any] = field(default_factory=dict)  # of the method, tensors by name

    def part(self, prefix: str) -> dict[str, Tensor]:
        start = prefix + "."
        return {name.removeprefix(start): t for name, t in self.tensors.items() if name.startswith(start)}


@final
@dataclass(frozen=True)
class Latest:
    """The newest whole checkpoint, if any, and the damaged ones it passed over."""

    checkpoint: Checkpoint | None
    damaged: tuple[str, ...] = ()


def write(folder: Path, checkpoint: Checkpoint) -> Path:
    """Save, then forget all but the last two."""
    stem = f"{checkpoint.position.total:08d}-{checkpoint.position.phase}"
    data = safetensors.save({name: packed(tensor) for name, tensor in checkpoint.tensors.items()})
    write_bytes(folder / f"{stem}.safetensors", data)
    content = {
        "format": FORMAT,
        "position": asdict(checkpoint.position),
        "tensors": f"{stem}.safetensors",
        "sha256": sha256(data),
        "recipe": checkpoint.recipe,
        "log": checkpoint.log,
        "scaler": checkpoint.scaler,
        "optimisers": checkpoint.optimisers,
        "seconds": checkpoint.seconds,
    }
    path = write_json(folder / f"{stem}.json", {**content, "check": _check(content)})
    # What is newer than this is damaged: the run went on from an older checkpoint.
    keep = {known.stem for known in [known for known in _all(folder) if known.stem <= stem][-KEPT:]}
    for old in folder.iterdir():
        if old.stem not in keep:
            old.unlink(missing_ok=True)
    return path


def read_latest(folder: Path) -> Latest:
    """The newest checkpoint whose checksums agree."""
    damaged: list[str] = []
    for path in reversed(_all(folder)):
        try:
            return Latest(read(path), tuple(damaged))
        except DamagedFile as error:
            damaged.append(error.rule)
    if damaged:
        raise DamagedFile(
            f"no checkpoint in {folder} is whole: {'; '.join(damaged)}",
            remedy="Restore the folder from a copy, or start again in another one.",
        )
    return Latest(None)


def read(path: Path) -> Checkpoint:
    content = read_json(path)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise DamagedFile(f"{path} must be a checkpoint of format {FORMAT}", remedy=_REMEDY)
    if content.pop("check", None) != _check(content):
        raise DamagedFile(f"{path} must have the checksum it was written with", remedy=_REMEDY)
    tensors = path.parent / content["tensors"]
    if not tensors.is_file():
        raise DamagedFile(f"{tensors} is missing", remedy=_REMEDY)
    data = read_bytes(tensors)
    if sha256(data) != content["sha256"]:
        raise DamagedFile(f"{tensors} must have the checksum it was written with", remedy=_REMEDY)
    return Checkpoint(
        position=Position(**content["position"]),
        recipe=content["recipe"],
        tensors=parse_tensors(data, str(tensors))[0],
        log=content["log"],
        scaler=content["scaler"],
        seconds=content["seconds"],
        optimisers=content["optimisers"],
    )


@final
class Checkpointer:
    """The state of one run. `train_log` is None in all processes but the first."""

    def __init__(
        self, fabric: Fabric, model: nn.Module, recipe: dict[str, Any], out: Path | None, train_log: TrainLog | None
    ) -> None:
        self._fabric, self._model, self._recipe, self._train_log = fabric, model, recipe, train_log
        self._folder = None if out is None else out / "state"
        self._memory: Checkpoint | None = None
        self._first: dict[str, Any] | None = None  # the recipe as the run began, its starting weights among it
        self._saved_at = self._began = time.perf_counter()
        self._seconds_before = 0.0

    def find(self, resume: bool) -> Latest:
        """The state to go on from, loaded into the model, if there is one."""
        latest = Latest(None)
        if self._folder is not None and self._fabric.is_global_zero:
            clean(self._folder)
            latest = read_latest(self._folder)
            if latest.checkpoint is not None:
                run = self._folder.parent
                if not resume:
                    raise BadInput(f"{run} must hold no run yet", remedy="Resume it, or choose another folder.")
                check_same_recipe(_settings(latest.checkpoint.recipe), _settings(self._recipe), run)
                check_same_start(latest.checkpoint, self._recipe, run)
        if self._fabric.world_size > 1:
            latest = self._fabric.broadcast(latest)
        if latest.checkpoint is not None:
            self._first = latest.checkpoint.recipe
            self._load(latest.checkpoint)
        return latest

    def due(self, every: float) -> bool:
        return self._train_log is not None and time.perf_counter() - self._saved_at >= every

    def keep(self, name: str) -> None:
        """The weights as they are, in a file of the run folder; without a folder nothing is kept."""
        if self._folder is not None and self._train_log is not None:
            save_weights(self._folder.parent / name, self._model.state_dict(), {})

    def save(
        self,
        position: Position,
        sgd: torch.optim.SGD | None = None,
        average: optimiser.Average | None = None,
        own: MethodState | None = None,
    ) -> None:
        """Keep this state; one with weights that are not finite is never kept."""
        if self._train_log is None:
            return
        tensors = {f"model.{name}": t for name, t in self._model.state_dict().items()}
        if not finite(tensors):
            raise self.diverged("weights", math.nan, position)
        if average is not None:
            tensors |= {f"average.{name}": t for name, t in average.values.items()}
        if sgd is not None:
            tensors |= {f"momentum.{name}": t for name, t in optimiser.momenta(self._model, sgd).items()}
        optimisers: dict[str, Any] = {}
        if own is not None:
            tensors |= {f"method.{name}": t for name, t in own.tensors.items()}
            for name, each in own.optimisers.items():
                optimisers[name] = named_tensors(each.state_dict(), f"optimiser.{name}", tensors)
        state = Checkpoint(
            position=position,
            recipe=self._recipe if self._first is None else self._first,
            tensors=tensors,
            optimisers=optimisers,
            log=self._train_log.state(),
            scaler=self._fabric.strategy.precision.state_dict(),
            seconds=self.seconds(),
        )
        if self._folder is not None:
            write(self._folder, state)
        else:
            self._memory = replace(state, tensors={name: t.detach().clone() for name, t in tensors.items()})
        self._saved_at = time.perf_counter()

    @staticmethod
    @torch.no_grad()
    def restore(saved: Checkpoint, own: MethodState) -> None:
        """Write the saved values into a method's own tensors and optimisers."""
        tensors = saved.part("method")
        if {n: t.shape for n, t in tensors.items()} != {n: t.shape for n, t in own.tensors.items()}:
            raise BadInput(
                "a resumed method must have the tensors it was saved with",
                value=sorted(own.tensors),
                remedy=f"The checkpoint has {sorted(tensors)}; let `start` depend on nothing but its context.",
            )
        for name, tensor in own.tensors.items():
            tensor.copy_(tensors[name])
        for name, each in own.optimisers.items():
            state = with_tensors(saved.optimisers[name], saved.tensors)
            state["state"] = {int(number): entries for number, entries in state["state"].items()}
            for group, fresh in zip(state["param_groups"], each.state_dict()["param_groups"]):
                group |= {key: tuple(group[key]) for key, value in fresh.items() if isinstance(value, tuple)}
            each.load_state_dict(state)

    def diverged(self, what: str, value: float, position: Position) -> TrainingDiverged:
        """Puts the last good weights back into the model; the error to raise says where they are."""
        return TrainingDiverged(
            f"the {what} must stay finite",
            value=f"{value} in step {position.total + 1}",
            remedy=f"Lower lr, add warmup_epochs, or set clip_norm; {self._back()}.",
        )

    def collapsed(self, loss: float, position: Position) -> TrainingDiverged:
        """The same for a network that had learnt and answers by chance again."""
        return TrainingDiverged(
            "the largest network must not fall back to chance",
            value=f"a loss of {loss:.3f} in step {position.total + 1}, after a lower one",
            remedy=f"Lower lr, raise warmup_epochs, keep clip_value=1 and distil from no weaker teacher; {self._back()}.",
        )

    def _back(self) -> str:
        """Puts the last good weights back into the model and says where they are."""
        good = self._memory if self._folder is None else read_latest(self._folder).checkpoint
        kept = "no earlier state was kept"
        if good is not None:
            self._load_weights(good.part("model"))
            place = "in the model" if self._folder is None else f"in {self._folder} and in the model"
            kept = f"the state after step {good.position.total} is kept {place}"
        return kept

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


def check_same_recipe(saved: dict[str, Any], asked: dict[str, Any], folder: Path) -> None:
    """Resuming with another recipe would give a result that belongs to neither: say what differs."""
    old, new = flat(saved), flat(json.loads(json.dumps(asked)))
    missing = "(none)"
    differing = [
        f"{key}: {old.get(key, missing)} -> {new.get(key, missing)}"
        for key in sorted({*old, *new})
        if old.get(key, missing) != new.get(key, missing)
    ]
    if differing:
        raise BadInput(
            f"{folder} holds a run of another recipe ({'; '.join(differing[:8])}{'; ...' if len(differing) > 8 else ''})",
            remedy="Use the old recipe to go on, or another folder for the new one.",
        )


def check_same_start(saved: Checkpoint, recipe: dict[str, Any], folder: Path) -> None:
    """A run goes on from the weights and the teacher it began with; a model that holds the run's own weights may too."""
    for key, what in (("start", "other starting weights"), ("teacher", "another teacher")):
        if saved.recipe[key] == recipe[key]:
            continue
        if key == "start" and recipe[key] == weights_name(saved.part("model")):
            continue
        raise BadInput(
            f"{folder} holds a run with {what}",
            value=f"{recipe[key]}, not {saved.recipe[key]}",
            remedy="Pass what the run began with to go on, or another folder to start anew.",
        )


def weights_name(state: Mapping[str, Tensor]) -> str:
    """Sixteen letters that name these weights."""
    return tensors_fingerprint(state)[:16]


def save_weights(path: Path, tensors: dict[str, Tensor], about: dict[str, str]) -> None:
    """A model's weights alone, as a safetensors file with what is known of them in its header."""
    write_bytes(path, safetensors.save({name: packed(t) for name, t in tensors.items()}, metadata=about))


def load_weights(path: Path) -> dict[str, Tensor]:
    return read_tensors(path)[0]


def packed(tensor: Tensor) -> Tensor:
    """On the CPU in row-major order, as safetensors wants it."""
    return tensor.detach().to("cpu").contiguous()


def clean(folder: Path) -> None:
    """Remove what a killed writer left behind."""
    for rest in folder.glob(".*.tmp"):
        rest.unlink(missing_ok=True)


def finite(tensors: dict[str, Tensor]) -> bool:
    return all(bool(torch.isfinite(t).all()) for t in tensors.values() if t.is_floating_point())


def flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Nested dicts and lists -> one dict with dotted keys."""
    if isinstance(value, dict):
        items = [(f"{prefix}.{k}" if prefix else str(k), v) for k, v in value.items()]
    elif isinstance(value, list):
        items = [(f"{prefix}[{i}]", v) for i, v in enumerate(value)]
    else:
        return {prefix: value}
    return {key: leaf for name, part in items for key, leaf in flat(part, name).items()}


def named_tensors(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """The value as JSON can hold it: its tensors go to `tensors` under dotted names, and their names stay."""
    if isinstance(value, Tensor):
        tensors[name] = value
        return {"tensor": name}
    if isinstance(value, dict):
        return {str(key): named_tensors(part, f"{name}.{key}", tensors) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [named_tensors(part, f"{name}.{number}", tensors) for number, part in enumerate(value)]
    return value


def with_tensors(value: Any, tensors: dict[str, Tensor]) -> Any:
    """The other way: names of tensors become copies of them."""
    if isinstance(value, dict):
        if value.keys() == {"tensor"}:
            return tensors[value["tensor"]].clone()
        return {key: with_tensors(part, tensors) for key, part in value.items()}
    return [with_tensors(part, tensors) for part in value] if isinstance(value, list) else value


def _settings(recipe: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in recipe.items() if key not in ("start", "teacher")}


def _all(folder: Path) -> list[Path]:
    return sorted(folder.glob("[0-9]*.json"))


def _check(content: dict[str, Any]) -> str:
    return sha256(json.dumps(content, sort_keys=True).encode())


_REMEDY = "It was cut short or edited; the checkpoint before it is used."
