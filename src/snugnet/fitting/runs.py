"""A run folder: the recipe it belongs to, and the super-network it holds.

recipe.yaml is the recipe with every default spelt out and is written before training starts; a folder that holds another
recipe is refused, and what differs is said.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
import yaml

from snugnet.data.dataset import Data
from snugnet.errors import BadInput, DamagedFile
from snugnet.fitting.recipe import Recipe, read
from snugnet.nets.elasticise import elastic
from snugnet.nets.mixed_supernet import MixedSupernet
from snugnet.nets.supernet import Supernet
from snugnet.nets.trained import load_start
from snugnet.seeds import Seed
from snugnet.space.space import SearchSpace
from snugnet.store import read_text, write_text
from snugnet.training.checkpoint import check_same_recipe, load_weights


@final
@dataclass(frozen=True, kw_only=True)
class Run:
    """An opened run folder."""

    folder: Path
    recipe: Recipe
    data: Data
    supernet: Supernet


def init_run(folder: Path, recipe: Recipe) -> bool:
    """Put the recipe into the folder; True if it was there already. Another recipe there is an error."""
    path = folder / "recipe.yaml"
    if path.exists():
        check_same_recipe(read(read_text(path), origin=str(path)).trained(), recipe.trained(), folder)
        write_text(path, yaml.safe_dump(recipe.resolved(), sort_keys=False))  # budgets may change without retraining
        return True
    if (folder / "state").exists():
        raise BadInput(f"{folder} holds a run without recipe.yaml", remedy="Restore the file, or take another folder.")
    write_text(path, yaml.safe_dump(recipe.resolved(), sort_keys=False))
    return False


def compute_device(name: str) -> torch.device:
    """`auto` is cuda where there is one, else the CPU."""
    return torch.device("cuda" if name == "auto" and torch.cuda.is_available() else name.replace("auto", "cpu"))


def open_run(folder: str | Path, device: str | None = None) -> Run:
    """A run whose super-network is trained, on `device` (default: the recipe's, which is cuda where there is one)."""
    folder = Path(folder)
    weights = folder / "supernet.safetensors"
    if not weights.is_file():
        raise BadInput(
            f"{folder} must hold a trained super-network", value=str(weights), remedy="Run `snugnet train` first."
        )
    path = folder / "recipe.yaml"
    recipe = read(read_text(path), origin=str(path))
    data = recipe.load_data()
    supernet = first_supernet(recipe, data)
    saved = load_weights(weights)
    if {n: t.shape for n, t in saved.items()} != {n: t.shape for n, t in supernet.state_dict().items()}:
        raise DamagedFile(f"{weights} must hold the super-network of {path}", remedy="Restore the two files together.")
    supernet.load_state_dict(saved)
    supernet.to(compute_device(device or recipe.train.device))
    return Run(folder=folder, recipe=recipe, data=data, supernet=supernet.eval())


def first_supernet(recipe: Recipe, data: Data) -> Supernet:
    """The super-network that training starts from: the space around a trained network, or weights drawn from the seed."""
    if recipe.start is None:
        separate = any(method.separate for method in recipe.train.methods())
        part = data.classes if data.about.part_of else None
        return fresh_supernet(recipe.build_space(data), recipe.seed, separate=separate, classes=part)
    with Seed(recipe.seed).fold_in("weights").seed_globals():  # the new classifier's
        return elastic(load_start(recipe.start.name), classes=data.classes, **recipe.start.options)


def fresh_supernet(space: SearchSpace, seed: int, *, separate: bool = False, classes: int | None = None) -> Supernet:
    """A super-network with weights drawn from the seed alone; `separate`: of separate operations; `classes`: of its last
    layer, where it learns a part of the space's."""
    kind: Any = MixedSupernet if separate else Supernet
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(Seed(seed).fold_in("weights").number())
        supernet: Supernet = kind(space, classes)
        return supernet
