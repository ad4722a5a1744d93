"""Frank-Wolfe steps inside hard budgets: one block at a time (HardCoRe-NAS, algorithm 1), or both at once.

    pick a block, alpha or beta, at random
    xi = argmin <gradient, xi>   over the block's simplices and the budgets, the other block fixed
    block <- (1 - gamma_t) block + gamma_t xi,      gamma_t = 4 / (t + 4)

The feasible set of both blocks together is not convex, that of one block is: so every iterate meets every budget. It is
checked in float64 at each step, and steps are shortened by what rounding would add. The gradient is a function the caller
passes: noisy or exact, of a network or of a quadratic. State goes in and comes out, so a search can stop and go on to the
same result, bit for bit.

Steps of one block at a time leave the budget used up, so that depths and options can hardly trade it. In x = alpha * P(runs)
and y = beta every limit is linear: the feasible set is a convex polytope (the relaxation of `integer`), and one step of
`iterate_joint` moves both. Its direction is that of the mean of all gradients so far, from the balanced point on: noisy
gradients average out, and there is no generator to keep.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

import numpy as np

from snugnet.errors import BadInput, BadProblem, Infeasible
from snugnet.solve.integer import solve_joint_lp
from snugnet.solve.linear import Basis, LinearOracle
from snugnet.solve.problem import TOLERANCE, Floats, Point, Problem

Block = Literal["alpha", "beta"]
Gradient = Callable[[Point, Block], tuple[float, Sequence[Floats]]]
"""(point, block) -> (loss, its gradient with respect to that block: a vector per slot or per group)."""
JointGradient = Callable[[Point], tuple[float, Sequence[Floats], Sequence[Floats]]]
"""point -> (loss, its gradient by slot, its gradient by group)."""
Schedule = Callable[[int], float]
"""Step number -> gamma in [0, 1]."""
Step = tuple["FrankWolfeState", "TraceRow"]

_SHORTER: Final = (0.0, 1e-15, 1e-14, 1e-12, 1e-10)
_HARDLY_RUNS: Final = 1e-2  # share of runs below which a slot's gradient is not blown up further
_NEVER_RUNS: Final = 1e-12


def paper_schedule(step: int) -> float:
    """4 / (t + 4), as printed in algorithm 1."""
    return 4.0 / (step + 4.0)


def classic_schedule(step: int) -> float:
    """2 / (t + 2), Frank and Wolfe's own."""
    return 2.0 / (step + 2.0)


def fixed_schedule(gamma: float) -> Schedule:
    """Always `gamma`: small and constant is what the paper's authors ship."""
    if not 0 < gamma <= 1:
        raise BadInput("a fixed step must be in (0, 1]", value=gamma, remedy="Try 0.002.")
    return lambda step: gamma


def linear_schedule(steps: int, first: float = 1.0) -> Schedule:
    """From `first` down to zero in a straight line over `steps`."""
    if steps < 1 or not 0 < first <= 1:
        raise BadInput("steps must be positive and first in (0, 1]", value=(steps, first), remedy="Try (1000, 0.1).")
    return lambda step: first * max(0.0, 1.0 - step / steps)


@dataclass(frozen=True, kw_only=True)
class TraceRow:
    """What one step did. `gap` is <gradient, block - xi>: how much the linear model still promised."""

    step: int
    block: Block | Literal["joint"]
    loss: float
    gamma: float
    gap: float
    costs: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class FrankWolfeState:
    """All that the next step depends on, apart from the gradient function: plain data, to and from JSON."""

    step: int
    point: Point
    momentum: dict[str, Floats] = field(default_factory=dict)  # per block: the running mean of gradients, flat
    memory: tuple[Basis | None, Basis | None] = (None, None)  # warm starts of the linear programmes
    random: dict[str, Any] = field(default_factory=dict)  # state of the generator

    def to_json(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "alpha": [v.tolist() for v in self.point.alpha],
            "beta": [v.tolist() for v in self.point.beta],
            "momentum": {k: v.tolist() for k, v in self.momentum.items()},
            "memory": self.memory,
            "random": self.random,
        }

    @staticmethod
    def from_json(data: dict[str, Any]) -> FrankWolfeState:
        vectors = {k: tuple(np.array(v, float) for v in data[k]) for k in ("alpha", "beta")}
        first, second = (None if b is None else (tuple(b[0]), tuple(b[1])) for b in data["memory"])
        return FrankWolfeState(
            step=int(data["step"]),
            point=Point(vectors["alpha"], vectors["beta"]),
            momentum={k: np.array(v, float) for k, v in data["momentum"].items()},
            memory=(first, second),
            random=data["random"],
        )


def iterate(
    gradient: Gradient,
    problem: Problem,
    state: FrankWolfeState,
    *,
    steps: int,
    rng: np.random.Generator,
    schedule: Schedule = paper_schedule,
    momentum: float = 0.0,
) -> Iterator[Step]:
    """Take `steps` steps from a fitting point (the generator's state, where the state has one, replaces `rng`'s): yields the
    state after each step, for callers that save, report or stop early."""
    if steps < 0 or not 0 <= momentum < 1:
        rule = "steps must not be negative and momentum in [0, 1)"
        raise BadInput(rule, value=(steps, momentum), remedy="Try momentum=0.9.")
    _require_inside(problem, state.point)
    if state.random:
        rng.bit_generator.state = state.random
    oracle = LinearOracle(problem)
    oracle.remember(state.memory)
    for _ in range(steps):
        block = _pick_block(problem, rng)
        loss, vectors = gradient(state.point, block)
        alpha, beta = problem.flat_alpha(state.point.alpha), problem.flat_beta(state.point.beta)
        slope, means = _block_slope(problem, block, vectors), state.momentum
        if momentum > 0:
            slope = momentum * means[block] + (1 - momentum) * slope if block in means else slope
            means = {**means, block: slope}
        here = alpha if block == "alpha" else beta
        vertex = oracle.alpha(-slope, beta).value if block == "alpha" else oracle.beta(-slope, alpha).value
        gamma = _gamma(schedule, state.step)
        point = _moved(problem, state.point, block, here, vertex, gamma)
        row = _row(problem, state.step, block, float(loss), gamma, float(slope @ (here - vertex)), point)
        random = dict(rng.bit_generator.state)
        state = FrankWolfeState(step=state.step + 1, point=point, momentum=means, memory=oracle.memory, random=random)
        yield state, row


def iterate_joint(
    gradient: JointGradient,
    problem: Problem,
    state: FrankWolfeState,
    *,
    steps: int,
    schedule: Schedule = paper_schedule,
) -> Iterator[Step]:
    """Steps of both blocks at once: yields the state after each step, every one inside every limit."""
    _require_inside(problem, state.point)
    for _ in range(steps):
        loss, by_slot, by_group = gradient(state.point)
        lifted, slope = _lifted(problem, state.point, by_slot, by_group)
        mean = state.momentum.get("joint", np.zeros_like(slope))
        mean = mean + (slope - mean) / (state.step + 1)
        vertex = _joint_vertex(problem, mean)
        gamma = _gamma(schedule, state.step)
        point = _lowered(problem, state.point, lifted + gamma * (vertex - lifted))
        if not problem.is_feasible(point, TOLERANCE):
            raise ArithmeticError(f"a joint Frank-Wolfe step left its budgets by {problem.excess(point)}")
        row = _row(problem, state.step, "joint", float(loss), gamma, float(mean @ (lifted - vertex)), point)
        state = replace(state, step=state.step + 1, point=point, momentum={"joint": mean})
        yield state, row


def _require_inside(problem: Problem, point: Point) -> None:
    if not problem.is_feasible(point):
        rule = "Frank-Wolfe must start from a point inside every limit"
        raise Infeasible(rule, value=problem.over(point), remedy="Use balanced_start.")


def _gamma(schedule: Schedule, step: int) -> float:
    gamma = float(schedule(step))
    if not 0 <= gamma <= 1:
        raise BadInput(f"the step at {step} must be in [0, 1]", value=gamma, remedy="Check the schedule.")
    return gamma


def _row(
    problem: Problem, step: int, block: Block | Literal["joint"], loss: float, gamma: float, gap: float, point: Point
) -> TraceRow:
    costs = problem.expected_cost(point)
    return TraceRow(step=step, block=block, loss=loss, gamma=gamma, gap=gap, costs=costs)


def _pick_block(problem: Problem, rng: np.random.Generator) -> Block:
    """Either block at random; a block with nothing to decide is left alone."""
    heads = rng.random() < 0.5
    if (problem.depth_sizes == 1).all():
        return "alpha"
    if (problem.slot_sizes == 1).all():
        return "beta"
    return "alpha" if heads else "beta"


def _block_slope(problem: Problem, block: Block, vectors: Sequence[Floats]) -> Floats:
    slope = problem.flat_alpha(vectors) if block == "alpha" else problem.flat_beta(vectors)
    if not np.isfinite(slope).all():
        bad = float(slope[~np.isfinite(slope)][0])
        raise BadProblem(f"the gradient of {block} must be finite", value=bad, remedy="Check the loss.")
    return slope


def _moved(problem: Problem, point: Point, block: Block, here: Floats, vertex: Floats, gamma: float) -> Point:
    """The convex combination; shorter by a rounding error if the sum would round past a limit. Asserted to fit."""
    allowed = np.maximum(problem.excess(point), 0.0)  # never further out than where we stand
    full = candidate = _mixed(problem, point, block, here, vertex, gamma)
    over = problem.excess(full)
    # A vertex may exceed by the solver's tolerance; the excess is linear on the way, so this much of it still fits.
    spare = np.maximum(-problem.excess(point), 0.0)
    beyond = over > allowed
    share = float(np.min(spare[beyond] / (spare + over)[beyond], initial=1.0))
    if share >= 0.5:
        for shorter in _SHORTER:
            candidate = _mixed(problem, point, block, here, vertex, gamma * share * (1 - shorter))
            if (problem.excess(candidate) <= allowed).all():
                break
    if not problem.is_feasible(candidate, TOLERANCE):
        raise ArithmeticError(f"a Frank-Wolfe step left its budgets by {problem.excess(candidate)}")
    return candidate


def _mixed(problem: Problem, point: Point, block: Block, here: Floats, vertex: Floats, step: float) -> Point:
    if step == 1.0:
        return _with_block(problem, point, block, vertex)
    mixed = np.clip(here + step * (vertex - here), 0.0, 1.0)
    return _with_block(problem, point, block, mixed)


def _with_block(problem: Problem, point: Point, block: Block, flat: Floats) -> Point:
    """`point` with one block replaced; sums are brought back to one, so that errors do not add up over the steps."""
    vectors = problem.split_alpha(flat) if block == "alpha" else problem.split_beta(flat)
    normal = tuple(v / v.sum() for v in vectors)
    return replace(point, alpha=normal) if block == "alpha" else replace(point, beta=normal)


def _joint_vertex(problem: Problem, slope: Floats) -> Floats:
    """[N + M] x and y of the least <slope, .>; solved from scratch, so the answer depends on nothing else."""
    vertex = solve_joint_lp(problem, slope)
    if vertex is None:
        raise ArithmeticError("a joint Frank-Wolfe step found no vertex, although a point inside every limit is known")
    return vertex.x


def _lifted(
    problem: Problem, point: Point, by_slot: Sequence[Floats], by_group: Sequence[Floats]
) -> tuple[Floats, Floats]:
    """The point as [x, y], and the gradient with respect to both: alpha = x / P(runs) depends on y too."""
    alpha, beta = problem.flat_alpha(point.alpha), problem.flat_beta(point.beta)
    slope_alpha, slope_beta = problem.flat_alpha(by_slot), problem.flat_beta(by_group)
    running = problem.runs @ beta
    share = np.maximum(running, _HARDLY_RUNS)
    own = np.add.reduceat(slope_alpha * alpha, problem.slot_starts) / share
    slope = np.concatenate([slope_alpha / share[problem.option_slot], slope_beta - own @ problem.runs])
    return np.concatenate([alpha * running[problem.option_slot], beta]), slope


def _lowered(problem: Problem, before: Point, lifted: Floats) -> Point:
    """[x, y] as alpha and beta; the options of a slot that no longer runs stay as they were."""
    n = len(problem.option_slot)
    x, beta = np.clip(lifted[:n], 0.0, 1.0), np.clip(lifted[n:], 0.0, 1.0)
    alpha = tuple(
        row / row.sum() if row.sum() > _NEVER_RUNS else old for row, old in zip(problem.split_alpha(x), before.alpha)
    )
    return Point(alpha, tuple(row / row.sum() for row in problem.split_beta(beta)))
