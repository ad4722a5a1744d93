"""Hard against soft: Frank-Wolfe and gradient descent with a penalty, on a toy problem (HardCoRe-NAS, 4.2.3, figure 5).

    python examples/toy_frank_wolfe.py [PICTURE.png]

    minimise |x|^2   subject to   x_1 + ... + x_10 = 1             (the optimum is x_i = 0.1)

Frank-Wolfe walks inside the set: its penalty is zero at every step. Gradient descent minimises |x|^2 + lambda (sum x - 1)^2
and, whatever lambda is, ends where the two terms balance: never on the constraint, and the closer the slower.
Frank-Wolfe's linear oracle needs a compact set, so it moves in the probability simplex: one slot with ten options, in the
words of this library.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from snugnet.solve import Block, FrankWolfeState, Group, Point, Problem, classic_schedule, iterate

DIMENSION, STEPS = 10, 200
LAMBDAS = (0.1, 1.0, 10.0, 100.0)


def by_frank_wolfe(start: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """[steps + 1, dimension] the iterates."""
    problem = Problem(groups=(Group(name="x", options=(DIMENSION,), depths=(1,)),), resources=())

    def gradient(point: Point, block: Block) -> tuple[float, list[np.ndarray]]:
        return float(point.alpha[0] @ point.alpha[0]), [2 * point.alpha[0]]

    # Steps are counted from ten: a first step of length one would throw the starting point away.
    state = FrankWolfeState(step=DIMENSION, point=Point((start,), (np.ones(1),)))
    taken = iterate(gradient, problem, state, steps=STEPS, rng=rng, schedule=classic_schedule)
    return np.array([start, *(after.point.alpha[0] for after, _ in taken)])


def by_gradient_descent(start: np.ndarray, penalty: float) -> np.ndarray:
    """[steps + 1, dimension] the iterates, at the largest step that is stable for this penalty."""
    path, rate = [start], 1.0 / (2 + 2 * penalty * DIMENSION)
    for _ in range(STEPS):
        x = path[-1]
        path.append(x - rate * (2 * x + 2 * penalty * (x.sum() - 1)))
    return np.array(path)


def main(picture: Path) -> None:
    rng = np.random.default_rng(0)
    start = rng.uniform(size=DIMENSION)
    start /= start.sum()
    paths = {"Frank-Wolfe": by_frank_wolfe(start, rng)}
    paths |= {f"descent, λ = {value:g}": by_gradient_descent(start, value) for value in LAMBDAS}
    figure, left = plt.subplots(figsize=(7, 4), layout="constrained")
    right = left.twinx()
    print(f"{'':>20}  |x|^2 (optimum {1 / DIMENSION:g})   (sum x - 1)^2")
    for name, path in paths.items():
        objective, penalty = (path**2).sum(axis=1), (path.sum(axis=1) - 1) ** 2
        (line,) = left.plot(objective, label=name)
        right.plot(penalty, linestyle="--", color=line.get_color())
        print(f"{name:>20}  {objective[-1]:<22.5f}  {penalty[-1]:.1e}")
    left.axhline(1 / DIMENSION, color="grey", linewidth=0.8, linestyle=":")
    left.set(xlabel="step", ylabel="objective (solid)", xlim=(0, STEPS), ylim=(0, 0.15))
    right.set(ylabel="squared violation of the constraint (dashed)", ylim=(0, 0.27))
    left.legend(loc=(0.66, 0.2))
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, dpi=110)
    print(f"drawn: {picture}")


if __name__ == "__main__":
    default = Path(__file__).parents[1] / "docs" / "pictures" / "toy_frank_wolfe.png"
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else default)
