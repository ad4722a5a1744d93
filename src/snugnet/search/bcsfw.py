"""HardCoRe-NAS's search: block-coordinate stochastic Frank-Wolfe on the relaxed super-network.

From the balanced start of appendix E (or the lightest network), every step takes a validation batch, differentiates the
loss with respect to alpha or beta, and moves towards the vertex a linear programme finds inside all limits. The last
point is projected to a network, exactly and jointly unless asked otherwise. The exact projection gives the nearest
`candidates`, which are judged for real (the gradient lives on mixed batch-norm statistics, see docs/LOG.md); 1 leaves it
at the nearest, as published. State is saved as the steps go by.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, final

import numpy as np

from snugnet.budget import FeasibleSet
from snugnet.errors import BadInput, UnknownName
from snugnet.files import read_json, sha256, write_json
from snugnet.search.method import Found, SearchMethod, Task
from snugnet.search.objective import Floats, GradientKind, RelaxedObjective, weights_id
from snugnet.solve import (
    Block,
    Choice,
    FrankWolfeState,
    Point,
    Schedule,
    argmax_baseline,
    balanced_start,
    best_choices,
    classic_schedule,
    credit,
    fixed_schedule,
    iterate,
    linear_schedule,
    paper_schedule,
    project,
    project_alternating,
    roomiest,
)
from snugnet.train.dice import Dice

SAVE_EVERY = 5.0  # seconds


@final
@dataclass(frozen=True, kw_only=True)
class Bcsfw(SearchMethod):
    """Algorithm 1 with its choices spelt out; defaults are the paper's."""

    name = "bcsfw"
    steps: int = 200
    batch: int = 64
    start: Literal["balanced", "lightest"] = "balanced"
    gradient: GradientKind = "sampled"
    schedule: Literal["paper", "classic", "linear", "fixed"] = "paper"
    fixed_step: float = 0.002  # of the fixed schedule
    momentum: float = 0.0
    projection: Literal["exact", "alternating", "argmax"] = "exact"
    candidates: int = 8  # of the exact projection, judged for real

    def run(self, task: Task) -> Found:
        inside = task.arena.problem_set
        if min(self.steps, self.batch, self.candidates) < 1:
            value = (self.steps, self.batch, self.candidates)
            raise BadInput("steps, batch and candidates must be positive", value=value, remedy="Try 200, 64 and 8.")
        objective = RelaxedObjective(task.supernet, task.data, batch=self.batch, kind=self.gradient, seed=task.seed)
        start = self._start(inside)
        state, trace = self._resumed(task, start)
        state, trace = self._steps(task, inside, objective, state, trace)
        tried = [inside.architecture(choice) for choice in self._projected(inside, state.point)]
        judged = [task.judge(architecture) for architecture in tried] if len(tried) > 1 else []
        best = min(range(len(judged)), key=lambda i: (judged[i].loss, i), default=0)
        alpha, beta = inside.spread(state.point)
        details: dict[str, Any] = {
            "alpha": [a.tolist() for a in alpha],
            "beta": [b.tolist() for b in beta],
            "projection": self.projection,
            "candidates": [{"network": str(a), "accuracy": v.accuracy, "loss": v.loss} for a, v in zip(tried, judged)],
        }
        alpha, beta = inside.spread(start)
        details |= {"start_alpha": [a.tolist() for a in alpha], "start_beta": [b.tolist() for b in beta]}
        return Found(architecture=tried[best], images=objective.images, trace=trace, details=details)

    def _steps(
        self,
        task: Task,
        inside: FeasibleSet,
        objective: RelaxedObjective,
        state: FrankWolfeState,
        trace: list[dict[str, Any]],
    ) -> tuple[FrankWolfeState, list[dict[str, Any]]]:
        at = state.step

        def gradient(point: Point, block: Block) -> tuple[float, Sequence[Floats]]:
            alpha, beta = inside.spread(point)
            loss, by_block, by_stage = objective([row for stage in alpha for row in stage], beta, at)
            return loss, _kept(inside, by_block, by_stage, block)

        rng = Dice(task.seed).at("frank-wolfe").numpy()
        task.progress.start("Frank-Wolfe search", self.steps)
        saved = time.monotonic()
        taken = iterate(
            gradient,
            inside.problem,
            state,
            steps=self.steps - state.step,
            rng=rng,
            schedule=self._schedule(),
            momentum=self.momentum,
        )
        for state, row in taken:
            at = state.step
            trace.append({"step": row.step, "block": row.block, "loss": row.loss, "gap": row.gap, "costs": row.costs})
            task.progress.update(state.step, f"loss {row.loss:.3f}")
            if time.monotonic() - saved > SAVE_EVERY:
                self._save(task, state, trace)
                saved = time.monotonic()
        task.progress.stop()
        self._save(task, state, trace)
        return state, trace

    def _start(self, inside: FeasibleSet) -> Point:
        if self.start == "lightest":
            return inside.problem.point(roomiest(inside.problem).value)
        return balanced_start(inside.problem).value

    def _schedule(self) -> Schedule:
        schedules: dict[str, Schedule] = {
            "paper": paper_schedule,
            "classic": classic_schedule,
            "linear": linear_schedule(self.steps),
            "fixed": fixed_schedule(self.fixed_step),
        }
        if self.schedule not in schedules:
            raise UnknownName("a step schedule", self.schedule, schedules)
        return schedules[self.schedule]

    def _projected(self, inside: FeasibleSet, point: Point) -> Sequence[Choice]:
        """Networks near the point, nearest first; every one fits."""
        if self.projection == "alternating":
            return [project_alternating(inside.problem, point).value]
        if self.projection == "argmax":
            choice = argmax_baseline(inside.problem, point)
            # Only to compare: where the arg-max breaks a limit, nothing over budget leaves this room.
            return [choice if inside.problem.is_feasible(choice) else project(inside.problem, point).value]
        return best_choices(inside.problem, credit(inside.problem, point), count=self.candidates).found

    def _identity(self, task: Task) -> str:
        limits = sorted(task.arena.limits.amounts.items())
        words = f"{self.describe()} {task.seed} {limits} {weights_id(task.supernet)} {task.data.identity()}"
        return sha256(words.encode())

    def _save(self, task: Task, state: FrankWolfeState, trace: list[dict[str, Any]]) -> None:
        if task.folder is not None:
            value = {"of": self._identity(task), "state": state.to_json(), "trace": trace}
            write_json(task.folder / "frank_wolfe.json", value)

    def _resumed(self, task: Task, start: Point) -> tuple[FrankWolfeState, list[dict[str, Any]]]:
        fresh = FrankWolfeState(step=0, point=start)
        path = None if task.folder is None else task.folder / "frank_wolfe.json"
        if path is None or not path.exists():
            return fresh, []
        value = read_json(path)
        if not isinstance(value, dict) or value.get("of") != self._identity(task):
            return fresh, []  # of another budget, seed or super-network
        return FrankWolfeState.from_json(value["state"]), value["trace"]


def _kept(inside: FeasibleSet, by_block: list[Floats], by_stage: list[Floats], block: Block) -> list[Floats]:
    """The gradient over the space, reduced to the options and depths that limits on memory left."""
    if block == "beta":
        picked = []
        for index, stage in enumerate(inside.space.stages):
            depths = inside.problem.groups[index].depths
            picked.append(np.array([by_stage[index][stage.depths.index(d)] for d in depths]))
        return picked
    rows, number = [], 0
    for index, stage in enumerate(inside.space.stages):
        for position, kept in enumerate(inside.kept[index]):
            rows.append(by_block[number + position][list(kept)])
        number += stage.max_depth
    return rows
