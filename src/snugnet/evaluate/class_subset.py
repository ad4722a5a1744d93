"""A part of the classes for a search: hard, middling and easy ones in equal shares (TF-NAS, supplementary, section 2).

Classes are sorted by the accuracy a trained network has on each (`class_accuracies`, kept in a file), cut into groups of
neighbours, and one is drawn from every group. What is left is a set of those classes, numbered anew, which remembers how
many there were (`About.part_of`): a super-network learns to tell the chosen ones apart, but what it costs is counted for the
last layer of the whole task, and the found network is trained on all of it. Inside every class images are cut 80/20 anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict

from snugnet.data.dataset import VAL_SHARE, Data
from snugnet.errors import BadInput
from snugnet.evaluate.scoring import ImageCache, Net, answers
from snugnet.seeds import Seed
from snugnet.store import read_model, write_json

D = TypeVar("D", bound=Data)


class ClassAccuracies(BaseModel):
    """The share of right answers per class, as kept in a file."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    data: str
    class_names: list[str]
    accuracy: list[float]

    def save(self, path: str | Path) -> Path:
        return write_json(path, self.model_dump())


def class_accuracies(net: Net, data: Data, split: str = "train+val") -> ClassAccuracies:
    """Of all images of a split (the training images, as the paper has it)."""
    found = answers(net, ImageCache(data), split)
    labels = found.labels.cpu()
    count = torch.bincount(labels, minlength=data.classes)
    right = torch.bincount(labels[found.right], minlength=data.classes)
    shares = (right / count.clamp(min=1)).double().tolist()
    return ClassAccuracies(data=data.about.name, class_names=list(data.about.class_names), accuracy=shares)


def read_class_accuracies(path: str | Path, data: Data) -> ClassAccuracies:
    """The file at `path`, which must be about the classes of `data`."""
    found = read_model(path, ClassAccuracies)
    if found.class_names != list(data.about.class_names):
        raise BadInput(
            f"{path} must be about the {data.classes} classes of {data.about.name}",
            value=f"{len(found.class_names)} classes of {found.data}",
            remedy="Make it for this data with `snugnet classes`.",
        )
    return found


def pick_classes(accuracies: Sequence[float], groups: int, seed: int = 0) -> list[int]:
    """One class from each of `groups` groups of neighbours in accuracy, rising by number."""
    if not 1 <= groups <= len(accuracies):
        raise BadInput(
            f"groups of classes must be 1 to the {len(accuracies)} classes there are",
            value=groups,
            remedy="Take a tenth.",
        )
    order = np.argsort(np.array(accuracies, float), kind="stable")
    rng = Seed(seed).fold_in("class subset", groups).numpy()
    return sorted(int(rng.choice(group)) for group in np.array_split(order, groups))


def with_classes(data: D, classes: Sequence[int], seed: int = 0) -> D:
    """These classes alone, numbered from 0 in their order, each cut 80/20 into train and val by the seed."""
    chosen = sorted(set(classes))
    if not chosen or chosen[0] < 0 or chosen[-1] >= data.classes:
        raise BadInput(
            f"a subset must name classes from 0 to {data.classes - 1}", value=list(classes)[:8], remedy="Count from 0."
        )
    labels: Any = data.labels  # type: ignore[attr-defined]  # every set has them; images come in batches only
    published = torch.cat([data.index["train"], data.index["val"]]).sort().values
    parts: dict[str, list[torch.Tensor]] = {"train": [], "val": []}
    for number in chosen:
        mine = published[labels[published] == number]
        if len(mine) < 2:
            raise BadInput(f"class {number} must have at least 2 images", value=len(mine), remedy="Leave it out.")
        order = torch.from_numpy(Seed(seed).fold_in("class split", number).numpy().permutation(len(mine)))
        held_out = max(1, round(len(mine) * VAL_SHARE))
        parts["val"].append(mine[order[:held_out]])
        parts["train"].append(mine[order[held_out:]])
    test = data.index["test"]
    kept = test[torch.isin(labels[test], torch.tensor(chosen))]
    index = {**{name: torch.cat(rows).sort().values for name, rows in parts.items()}, "test": kept}
    numbers = torch.full((data.classes,), -1)  # of images that no split holds any more
    numbers[chosen] = torch.arange(len(chosen))
    names = tuple(data.about.class_names[number] for number in chosen)
    about = replace(data.about, class_names=names, part_of=data.about.task_classes)
    changes: dict[str, Any] = {"index": index, "about": about, "labels": numbers[labels]}
    return replace(data, **changes)
