"""Runs with fixed seeds come out as they did before: the house may be rebuilt, its results may not."""

import json

import numpy as np
import pytest
from golden_runs import HERE, kept_supernet, searches, solutions, tables, trained, weights_of


@pytest.fixture(scope="module")
def kept():
    return json.loads((HERE / "golden.json").read_text())


def test_trained_weights(kept):
    # Norms after four steps, not hashes after forty: the last bits belong to the processor, and training makes them grow.
    now, before = weights_of(trained(batch=1024)[0])["norms"], kept["four_steps"]["norms"]
    assert now.keys() == before.keys()
    for name, norm in before.items():
        assert now[name] == pytest.approx(norm, rel=2e-3, abs=1e-4), name


def test_searches(kept):
    now = searches(*kept_supernet())
    for method, found in kept["searches"].items():
        assert now[method]["architecture"] == found["architecture"]
        assert now[method]["predicted"] == pytest.approx(found["predicted"])
        assert now[method]["loss"] == pytest.approx(found["loss"], rel=5e-3)
        assert now[method]["accuracy"] == pytest.approx(found["accuracy"], abs=0.01)


def test_solutions(kept):
    for now, before in zip(solutions(), kept["solutions"], strict=True):
        assert now["integer"] == before["integer"]
        assert now["projection"] == before["projection"]
        for name in ("start_alpha", "start_beta", "linear", "frank_wolfe_alpha", "frank_wolfe_beta"):
            for one, other in zip(now[name], before[name], strict=True):
                assert np.allclose(one, other, atol=1e-6), name


def test_tables(kept):
    now = tables()
    assert now["costs"] == pytest.approx(kept["tables"]["costs"])
    assert now["margin"] == pytest.approx(kept["tables"]["margin"])
