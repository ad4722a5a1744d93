"""The accuracy predictor: scikit-learn's forest as arrays, tree by tree the same, in a file without pickle."""

import numpy as np
import pytest
import torch
from sklearn.ensemble import RandomForestRegressor

from snugnet.data import load
from snugnet.errors import BadInput, DamagedFile
from snugnet.evaluate.evaluator import Evaluator
from snugnet.evaluate.forest import Forest, grow_forest, train_predictor
from snugnet.nets import Supernet
from snugnet.space import preset, sample
from snugnet.space.gene_columns import GeneColumns

SPACE = preset("attentive")


@pytest.fixture(scope="module")
def grown():
    rng = np.random.default_rng(0)
    networks = [sample(SPACE, rng) for _ in range(300)]
    columns = GeneColumns(SPACE)
    features = columns.values(columns.of(networks))
    accuracies = features @ rng.normal(size=31) / 1000
    return networks, features, accuracies, grow_forest(SPACE, networks, accuracies, seed=5)


def test_predictions_are_scikit_learns(grown):
    _, features, accuracies, forest = grown
    theirs = RandomForestRegressor(n_estimators=100, max_depth=15, max_features=None, random_state=5)
    theirs.fit(features, accuracies)
    rng = np.random.default_rng(1)
    columns = GeneColumns(SPACE)
    unseen = columns.values(columns.of([sample(SPACE, rng) for _ in range(200)]))
    assert np.allclose(forest(unseen), theirs.predict(unseen), rtol=0, atol=1e-12)
    assert len(forest.first) == 100 and np.corrcoef(forest(features), accuracies)[0, 1] > 0.95


def test_the_file_gives_the_same_forest_back(grown, tmp_path):
    _, features, _, forest = grown
    path = forest.save(tmp_path / "forest.safetensors", SPACE)
    assert (Forest.load(path, SPACE)(features) == forest(features)).all()
    with pytest.raises(BadInput, match="same space"):
        Forest.load(path, preset("attentive", classes=7))
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DamagedFile):
        Forest.load(path, SPACE)


def test_a_predictor_is_trained_on_evaluated_networks_and_evaluates_none_twice(tmp_path):
    torch.manual_seed(0)
    space = preset("attentive-thin-lowres", classes=10, resolution=8, width=0.25)
    supernet, data = Supernet(space).eval(), load("digits", resolution=8)
    evaluator = Evaluator(supernet, data, limit=40, closer=40, memory=tmp_path / "evaluations.jsonl")
    forest = train_predictor(evaluator, networks=6, out=tmp_path / "forest.safetensors")
    columns, known = GeneColumns(space), dict(evaluator.history())
    assert evaluator.evaluated == len(known) == 6
    predicted = forest(columns.values(columns.of(list(known))))
    accuracies = [score.accuracy for score in known.values()]
    assert min(accuracies) <= predicted.min() and predicted.max() <= max(accuracies)
    again = Evaluator(supernet, data, limit=40, closer=40, memory=tmp_path / "evaluations.jsonl")
    same = train_predictor(again, networks=6)
    assert (
        again.evaluated == 0 and (same.threshold == Forest.load(tmp_path / "forest.safetensors", space).threshold).all()
    )


def test_too_few_networks_are_refused(grown):
    with pytest.raises(BadInput, match="at least 2 networks"):
        grow_forest(SPACE, grown[0][:1], [0.5])
