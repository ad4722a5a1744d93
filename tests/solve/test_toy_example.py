"""The toy problem of section 4.2.3 shows what it claims: Frank-Wolfe on the constraint, descent beside it."""

import importlib.util
from pathlib import Path

import numpy as np

PLACE = Path(__file__).parents[2] / "examples" / "toy_frank_wolfe.py"


def test_figure_five(tmp_path, capsys):
    spec = importlib.util.spec_from_file_location("toy_frank_wolfe", PLACE)
    toy = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(toy)
    toy.main(tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 1000
    assert "Frank-Wolfe" in capsys.readouterr().out
    start = np.full(10, 0.1) + np.linspace(-0.05, 0.05, 10)
    path = toy.by_frank_wolfe(start, np.random.default_rng(0))
    np.testing.assert_allclose(path.sum(axis=1), 1, atol=1e-12)
    np.testing.assert_allclose(path[-1], 0.1, atol=0.01)
    for penalty in toy.LAMBDAS:
        assert abs(toy.by_gradient_descent(start, penalty)[-1].sum() - 1) > 1e-4
