"""An accuracy predictor: a random forest over an architecture's genes, kept as plain arrays.

scikit-learn grows the trees (100 of them, at most 15 deep, all features at every split: AttentiveNAS's predictor); what is
kept is four arrays per node and each tree's first node, in a safetensors file that needs neither pickle nor scikit-learn
to be read. The predictor only ranks networks of about the same cost. `train_predictor` evaluates random sub-networks of a
super-network (each once, in a journal) and grows the forest from them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import final

import numpy as np
from numpy.typing import NDArray
from safetensors import numpy as safetensors

from snugnet.costs.table import space_id
from snugnet.errors import BadInput, DamagedFile
from snugnet.evaluate.evaluator import Evaluator
from snugnet.nets.tensor_file import read_tensors
from snugnet.seeds import Seed
from snugnet.space.architecture import Architecture
from snugnet.space.gene_columns import GeneColumns
from snugnet.space.layout import FloatArray, IntArray
from snugnet.space.sampling import sample
from snugnet.space.space import SearchSpace
from snugnet.store import write_bytes

TREES, DEPTH = 100, 15


@final
@dataclass(frozen=True, kw_only=True)
class Forest:
    """Nodes of all trees in one row: a split (feature, threshold, left, right) or, with left -1, a leaf's value."""

    first: IntArray  # [trees] the root of each
    feature: IntArray  # [nodes]
    threshold: FloatArray
    left: IntArray
    right: IntArray
    value: FloatArray

    @classmethod
    def of(cls, arrays: dict[str, NDArray[np.generic]]) -> Forest:
        return cls(**arrays)  # type: ignore[arg-type]

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def __call__(self, features: FloatArray) -> FloatArray:
        """[n] predictions: the mean over the trees."""
        features = features.astype(np.float32).astype(np.float64)  # scikit-learn splits single precision
        at = np.repeat(self.first[None], len(features), axis=0)  # [n, trees] the node each row stands at
        for _ in range(10_000):
            inside = self.left[at] >= 0
            if not inside.any():
                break
            asked = np.take_along_axis(features, np.maximum(self.feature[at], 0), axis=1)
            onward = np.where(asked <= self.threshold[at], self.left[at], self.right[at])
            at = np.where(inside, onward, at)
        means: FloatArray = self.value[at].mean(1)
        return means

    def save(self, path: str | Path, space: SearchSpace) -> Path:
        about = {"format": "snugnet-forest-1", "space_id": space_id(space), "genes": str(len(GeneColumns(space).genes))}
        write_bytes(Path(path), safetensors.save(self.arrays(), metadata=about))
        return Path(path)

    @classmethod
    def load(cls, path: str | Path, space: SearchSpace) -> Forest:
        tensors, about = read_tensors(Path(path))
        arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
        if about.get("format") != "snugnet-forest-1" or set(arrays) != {field.name for field in fields(cls)}:
            raise DamagedFile(f"{path} must hold an accuracy predictor", remedy="Make one with train_predictor.")
        if about.get("space_id") != space_id(space):
            raise BadInput(
                f"the predictor in {path} must be of the same space", value=space.name, remedy="Train one for it."
            )
        return cls.of(arrays)


def grow_forest(
    space: SearchSpace, networks: Sequence[Architecture], accuracies: Sequence[float], *, seed: int = 0
) -> Forest:
    """A forest that predicts the accuracies of `networks` from their genes."""
    from sklearn.ensemble import RandomForestRegressor

    if len(networks) < 2 or len(networks) != len(accuracies):
        raise BadInput(
            "a predictor needs an accuracy for each of at least 2 networks",
            value=(len(networks), len(accuracies)),
            remedy="Evaluate some hundreds.",
        )
    columns = GeneColumns(space)
    grown = RandomForestRegressor(n_estimators=TREES, max_depth=DEPTH, max_features=None, random_state=seed, n_jobs=1)
    grown.fit(columns.values(columns.of(networks)), np.asarray(accuracies, dtype=np.float64))
    trees = [estimator.tree_ for estimator in grown.estimators_]
    starts = np.cumsum([0, *(tree.node_count for tree in trees)])

    def joined(name: str) -> IntArray:
        parts = [getattr(tree, name) for tree in trees]
        moved = [np.where(part >= 0, part + start, -1) for part, start in zip(parts, starts)]
        return np.concatenate(moved).astype(np.int64)

    return Forest(
        first=starts[:-1].astype(np.int64),
        feature=np.concatenate([tree.feature for tree in trees]).astype(np.int64),
        threshold=np.concatenate([tree.threshold for tree in trees]).astype(np.float64),
        left=joined("children_left"),
        right=joined("children_right"),
        value=np.concatenate([tree.value[:, 0, 0] for tree in trees]).astype(np.float64),
    )


def train_predictor(
    evaluator: Evaluator, *, networks: int = 1024, seed: int = 0, out: str | Path | None = None
) -> Forest:
    """Evaluate random sub-networks (those in the evaluator's journal are not evaluated again) and grow a forest."""
    space = evaluator.supernet.space
    rng = Seed(seed).fold_in("predictor").numpy()
    drawn = list(dict.fromkeys(sample(space, rng) for _ in range(networks)))
    forest = grow_forest(space, drawn, [evaluator(network).accuracy for network in drawn], seed=seed)
    if out is not None:
        forest.save(out, space)
    return forest
