"""How well a trained network knows each class: what a subset of the classes is drawn by (`data.class_subset`)."""

from __future__ import annotations

from pathlib import Path

import torch
from pydantic import BaseModel, ConfigDict

from snugnet.data.dataset import Data
from snugnet.errors import BadInput
from snugnet.evaluate.scoring import ImageCache, Net, answers
from snugnet.store import as_model, read_json, write_json


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
    found = as_model(read_json(path), ClassAccuracies, str(path))
    if found.class_names != list(data.about.class_names):
        raise BadInput(
            f"{path} must be about the {data.classes} classes of {data.about.name}",
            value=f"{len(found.class_names)} classes of {found.data}",
            remedy="Make it for this data with `snugnet classes`.",
        )
    return found
