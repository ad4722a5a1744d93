"""HardCoRe-NAS's search: block-coordinate stochastic Frank-Wolfe on the relaxed super-network.

From the balanced start of appendix E (or the smallest network), every step takes a validation batch, differentiates the
loss with respect to alpha or beta, and moves towards the vertex a linear programme finds inside all limits. The last
point is projected to a network, exactly and jointly unless asked otherwise. With `candidates` above 1 (1 is the method as
published) the nearest few networks and the best few by the mean gradient are evaluated for real, for two reasons measured
in docs/LOG.md: the relaxed network lives on mixed batch-norm statistics, and steps of one block at a time lock in how the
budget is shared between depth and options. With several input resolutions each has a problem and a walk of its own.
State is saved as the steps go by.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, final

import numpy as np

from snugnet.budgets import FeasibleSet
from snugnet.errors import BadInput, UnknownName
from snugnet.searching.context import Outcome, SearchMethod, Task
from snugnet.searching.objective import Floats, GradientKind, LossKind, RelaxedObjective
from snugnet.seeds import Seed
from snugnet.solve import (
    Block,
    Choice,
    FrankWolfeState,
    Objective,
    Point,
    Schedule,
    argmax_baseline,
    balanced_start,
    best_choices,
    classic_schedule,
    fixed_schedule,
    iterate,
    iterate_joint,
    linear_schedule,
    min_max_utilisation,
    paper_schedule,
    project,
    project_alternating,
    projection_objective,
)
from snugnet.space.architecture import Architecture
from snugnet.space.layout import Layout
from snugnet.store import fingerprint, read_memo, write_memo

AUTHORS_STEP, AUTHORS_MOMENTUM = 0.002, 0.9
SAVE_EVERY = 5.0  # seconds


@final
@dataclass(frozen=True, kw_only=True)
class Bcsfw(SearchMethod):
    """Algorithm 1 with its choices spelt out.

    The paper's: balanced start, sampled gradients, schedule 4 / (t + 4), no momentum. Ours: 200 steps of 64 images, one
    exact projection of depths and options together (the paper alternates), several candidates evaluated for real
    (`candidates=1`: the nearest network alone, as published), and logits at their best scale (`loss="plain"`: as they
    are, as published)."""

    name = "bcsfw"
    steps: int = 200
    batch: int = 64
    start: Literal["balanced", "smallest"] = "balanced"
    gradient: GradientKind = "sampled"
    loss: LossKind = "calibrated"
    schedule: Literal["paper", "classic", "linear", "fixed", "authors"] = "paper"
    fixed_step: float = 0.002  # of the fixed schedule
    momentum: float = 0.0  # of gradients; the authors' schedule has 0.9
    steps_in: Literal["blocks", "joint"] = "blocks"  # joint: depths and options in one step, on averaged gradients
    projection: Literal["exact", "alternating", "argmax"] = "exact"
    candidates: int = 8  # evaluated for real: half nearest to the last point, half best by the mean gradient, jointly
    head_start: int = 0  # steps by which the schedule is ahead: keeps the first ones from forgetting the start

    def run(self, task: Task) -> Outcome:
        if min(self.steps, self.batch, self.candidates) < 1:
            value = (self.steps, self.batch, self.candidates)
            raise BadInput("steps, batch and candidates must be positive", value=value, remedy="Try 200, 64 and 8.")
        problems = task.context.exact_problems
        # Costs add up within a resolution only: each has a walk of its own, and all share the steps and the candidates.
        share = replace(self, steps=-(-self.steps // len(problems)), candidates=-(-self.candidates // len(problems)))
        walks = [share._walk(task, inside) for inside in problems]
        best = task.evaluator.best([a for walk in walks for a in walk.tried], task.progress)
        chosen = next(walk for walk in walks if best in walk.tried)
        details: dict[str, Any] = {
            **chosen.points,
            "projection": self.projection,
            "scale": chosen.scale,
            "candidates": [{"network": str(a), **task.evaluator(a).to_json()} for walk in walks for a in walk.tried],
        }
        images = sum(walk.images for walk in walks)
        return Outcome(architecture=best, images=images, trace=chosen.trace, details=details)

    def _walk(self, task: Task, inside: FeasibleSet) -> Walk:
        """Frank-Wolfe at one resolution, from the start to the networks worth evaluating."""
        several = len(task.supernet.space.resolutions) > 1
        resolution = inside.left.layout.space.resolutions[0] if several else None
        objective = RelaxedObjective(
            task.supernet,
            task.evaluator.cache,
            batch=self.batch,
            kind=self.gradient,
            seed=task.seed,
            resolution=resolution,
        )
        start = self._start(inside)
        if self.loss == "calibrated":
            objective.calibrate(*inside.spread(start))
        file = f"frank_wolfe-{resolution}.json" if several else "frank_wolfe.json"
        state, trace, mean = self._resumed(task, start, file)
        state, trace = self._steps(task, inside, objective, state, trace, mean, file)
        return Walk(
            tried=[inside.architecture(choice) for choice in self._projected(inside, state.point, mean)],
            trace=trace,
            points=_point_to_json(inside, state.point, "") | _point_to_json(inside, start, "start_"),
            scale=objective.scale,
            images=objective.images,
        )

    def _steps(
        self,
        task: Task,
        inside: FeasibleSet,
        objective: RelaxedObjective,
        state: FrankWolfeState,
        trace: list[dict[str, Any]],
        mean: MeanGradient,
        file: str,
    ) -> tuple[FrankWolfeState, list[dict[str, Any]]]:
        at = state.step

        def both(point: Point) -> tuple[float, list[Floats], list[Floats]]:
            alpha, beta = inside.spread(point)
            loss, by_block, by_stage = objective(alpha, beta, at)
            mean.add(inside.left.layout, alpha, beta, by_block, by_stage)
            by_option, by_depth = inside.left.narrow(by_block, by_stage)
            return loss, by_option, by_depth

        def gradient(point: Point, block: Block) -> tuple[float, Sequence[Floats]]:
            loss, by_option, by_depth = both(point)
            return loss, by_depth if block == "beta" else by_option

        rng = Seed(task.seed).fold_in("frank-wolfe").numpy()
        task.progress.start("Frank-Wolfe search", self.steps)
        saved = time.monotonic()
        left, schedule = self.steps - state.step, self._schedule()
        momentum = AUTHORS_MOMENTUM if self.schedule == "authors" else self.momentum
        if self.steps_in == "joint":
            taken = iterate_joint(both, inside.problem, state, steps=left, schedule=schedule)
        else:
            taken = iterate(gradient, inside.problem, state, steps=left, rng=rng, schedule=schedule, momentum=momentum)
        for state, row in taken:
            at = state.step
            trace.append({"step": row.step, "block": row.block, "loss": row.loss, "gap": row.gap, "costs": row.costs})
            task.progress.update(state.step, f"loss {row.loss:.3f}")
            if time.monotonic() - saved > SAVE_EVERY:
                self._save(task, state, trace, mean, file)
                saved = time.monotonic()
        task.progress.stop()
        self._save(task, state, trace, mean, file)
        return state, trace

    def _start(self, inside: FeasibleSet) -> Point:
        if self.start == "smallest":
            return inside.problem.point(min_max_utilisation(inside.problem).value)
        return balanced_start(inside.problem).value

    def _schedule(self) -> Schedule:
        schedules: dict[str, Schedule] = {
            "paper": paper_schedule,
            "classic": classic_schedule,
            "linear": linear_schedule(self.steps),
            "fixed": fixed_schedule(self.fixed_step),
            "authors": fixed_schedule(AUTHORS_STEP),  # of their code, where the paper prints 4 / (t + 4)
        }
        if self.schedule not in schedules:
            raise UnknownName("a step schedule", self.schedule, schedules)
        chosen, ahead = schedules[self.schedule], self.head_start
        return lambda step: chosen(step + ahead)

    def _projected(self, inside: FeasibleSet, point: Point, mean: MeanGradient) -> Sequence[Choice]:
        """Networks to evaluate, the projection first; every one fits."""
        if self.projection == "alternating":
            return [project_alternating(inside.problem, point).value]
        if self.projection == "argmax":
            choice = argmax_baseline(inside.problem, point)
            # Only to compare: where the arg-max breaks a limit, nothing over budget leaves this room.
            return [choice if inside.problem.is_feasible(choice) else project(inside.problem, point).value]
        near = (self.candidates + 1) // 2
        tried = list(best_choices(inside.problem, projection_objective(inside.problem, point), count=near).found)
        if self.candidates > near:
            jointly = best_choices(inside.problem, mean.values(inside), count=self.candidates).found
            tried += [choice for choice in jointly if choice not in tried][: self.candidates - near]
        return tried

    def _identity(self, task: Task) -> str:
        limits = sorted(task.context.limits.effective.items())
        return fingerprint([self.describe(), task.seed, limits, task.evaluator.identity()])

    def _save(
        self, task: Task, state: FrankWolfeState, trace: list[dict[str, Any]], mean: MeanGradient, file: str
    ) -> None:
        values = {"state": state.to_json(), "trace": trace, "mean": mean.to_json()}
        write_memo(task.folder and task.folder / file, self._identity(task), values)

    def _resumed(
        self, task: Task, start: Point, file: str
    ) -> tuple[FrankWolfeState, list[dict[str, Any]], MeanGradient]:
        value = read_memo(task.folder and task.folder / file, self._identity(task))
        if value is None:  # or of another budget, seed or super-network
            return FrankWolfeState(step=0, point=start), [], MeanGradient()
        return FrankWolfeState.from_json(value["state"]), value["trace"], MeanGradient.from_json(value["mean"])


@final
@dataclass(frozen=True, kw_only=True)
class Walk:
    """What Frank-Wolfe came to at one resolution: networks to evaluate, its steps, first and last point."""

    tried: list[Architecture]
    trace: list[dict[str, Any]]
    points: dict[str, Any]
    scale: float
    images: int


@final
class MeanGradient:
    """All gradients of a search in one linear model of whole networks, in which depth and options are weighed together.

    A step of one block leaves the budget used up, so the next step of the other can only exchange like for like: how the
    budget is shared between depth and options hardly changes after the first steps. The joint programme over the mean
    gradient is free of that. Gradients of an option are taken against the mixture in its slot, and for the share of
    images that run the slot at all: its worth where it runs.
    """

    def __init__(self) -> None:
        self.options: list[Floats] = []
        self.running: list[float] = []
        self.depths: list[Floats] = []

    def add(
        self,
        layout: Layout,
        alpha: Sequence[Floats],
        beta: Sequence[Floats],
        by_block: Sequence[Floats],
        by_stage: Sequence[Floats],
    ) -> None:
        running = [
            float(beta[s][np.array(layout.space.stages[s].depths) > position].sum()) for s, position in layout.slots
        ]
        against = [g - float(g @ a) for g, a in zip(by_block, alpha)]
        if not self.options:
            self.options, self.running, self.depths = against, running, list(by_stage)
            return
        self.options = [old + new for old, new in zip(self.options, against)]
        self.running = [old + new for old, new in zip(self.running, running)]
        self.depths = [old + new for old, new in zip(self.depths, by_stage)]

    def values(self, inside: FeasibleSet) -> Objective:
        """Greater is better, as the integer programme wants it."""
        most = max(self.running)
        shares = [max(running, 0.1 * most) for running in self.running]  # a slot that hardly ever ran is hardly known
        options = [-row * most / share for row, share in zip(self.options, shares)]
        return inside.objective(options, [-row for row in self.depths])

    def to_json(self) -> dict[str, Any]:
        return {
            "options": [row.tolist() for row in self.options],
            "running": self.running,
            "depths": [row.tolist() for row in self.depths],
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> MeanGradient:
        mean = cls()
        mean.options = [np.array(row, dtype=float) for row in value["options"]]
        mean.running = [float(x) for x in value["running"]]
        mean.depths = [np.array(row, dtype=float) for row in value["depths"]]
        return mean


def _point_to_json(inside: FeasibleSet, point: Point, prefix: str) -> dict[str, Any]:
    """A relaxed point over the whole space: alpha by [stage][position][choice], beta by [stage][depth]."""
    alpha, beta = inside.spread(point)
    nested = inside.left.layout.by_stage([row.tolist() for row in alpha])
    return {f"{prefix}alpha": nested, f"{prefix}beta": [row.tolist() for row in beta]}
