"""Checkpoints that survive anything: kill -9, a full disk, a flipped bit, a changed recipe.

A checkpoint is two files in RUN/state: NNNNNNNN.safetensors with all tensors, and NNNNNNNN.json with the position,
the recipe and the checksum of both. Each is written atomically, the JSON last: without it the checkpoint does not
exist. The last two are kept. Reading takes the newest whole one and names every damaged one it passed over. Random
generators need no state: see `seed`.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, final

import torch
from safetensors import torch as safetensors
from torch import Tensor

from snugnet.errors import BadInput, DamagedFile
from snugnet.nets.tensor_file import parse_tensors, read_tensors
from snugnet.store import read_bytes, read_json, sha256, write_bytes, write_json

FORMAT = "snugnet-checkpoint-1"
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
    """The whole state of a run. Tensors are named model.*, average.*, momentum.*"""

    position: Position
    recipe: dict[str, Any]
    tensors: dict[str, Tensor] = field(repr=False)
    log: dict[str, Any]  # length of train.jsonl and sums since its last line
    scaler: dict[str, Any]
    seconds: float

    def part(self, prefix: str) -> dict[str, Tensor]:
        start = prefix + "."
        return {name.removeprefix(start): t for name, t in self.tensors.items() if name.startswith(start)}


@final
@dataclass(frozen=True)
class Found:
    """What `read_latest` came upon: the newest whole checkpoint, if any, and the damaged ones it passed over."""

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
        "seconds": checkpoint.seconds,
    }
    path = write_json(folder / f"{stem}.json", {**content, "check": _check(content)})
    # What is newer than this is damaged: the run went on from an older checkpoint.
    keep = {known.stem for known in [known for known in _all(folder) if known.stem <= stem][-KEPT:]}
    for old in folder.iterdir():
        if old.stem not in keep:
            old.unlink(missing_ok=True)
    return path


def read_latest(folder: Path) -> Found:
    """The newest checkpoint whose checksums agree."""
    damaged: list[str] = []
    for path in reversed(_all(folder)):
        try:
            return Found(read(path), tuple(damaged))
        except DamagedFile as error:
            damaged.append(error.rule)
    if damaged:
        raise DamagedFile(
            f"no checkpoint in {folder} is whole: {'; '.join(damaged)}",
            remedy="Restore the folder from a copy, or start again in another one.",
        )
    return Found(None)


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
    )


def check_same_recipe(saved: dict[str, Any], wanted: dict[str, Any], folder: Path) -> None:
    """Resuming with another recipe would give a result that belongs to neither: say what differs."""
    old, new = flat(saved), flat(json.loads(json.dumps(wanted)))
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


def _all(folder: Path) -> list[Path]:
    return sorted(folder.glob("[0-9]*.json"))


def _check(content: dict[str, Any]) -> str:
    return sha256(json.dumps(content, sort_keys=True).encode())


_REMEDY = "It was cut short or edited; the checkpoint before it is used."
