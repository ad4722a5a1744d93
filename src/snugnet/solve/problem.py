"""One problem, many solvers: slots in groups, options in slots, a depth per group, additive costs with hard limits.

A network is a `Choice`: a depth for every group and an option for every slot; a group of depth d runs its first d slots.
Its relaxation is a `Point`: a probability vector alpha per slot and beta per group (over the allowed depths). Every
resource costs the same bilinear form of it,

    cost(alpha, beta) = base + alpha' Theta beta,      (Theta beta)_sc = t_sc * P(slot s runs)

which is linear in alpha at fixed beta and the other way round: all solvers of this package live on that. Numbers only: what
an option is, and what it is good for, is known elsewhere.

Every solver hands back a `Solution`: the value, a status whose message is advice, and statistics. An outcome never has to be
guessed from None or False: `solution.value` is there, or reading it raises the reason.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from typing import Any, Final, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from snugnet.errors import BadProblem, Infeasible, SnugnetError

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]
T = TypeVar("T")

TOLERANCE: Final = 1e-9
"""A cost fits when it is at most `limit * (1 + TOLERANCE)`: an allowance for rounding of sums in float64 and nothing else.
A limit computed as an architecture's own cost therefore always admits that architecture."""

_SUM_TOLERANCE: Final = 1e-9


@dataclass(frozen=True, kw_only=True)
class Group:
    """Slots in a row of which the first `depth` run. `options[p]` counts the options of slot p; plain slots: one depth."""

    name: str
    options: tuple[int, ...]
    depths: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class ResourceCosts:
    """What everything costs in one resource, in `unit`: `base` for the fixed parts, `costs[s][c]` for option c in slot s."""

    name: str
    unit: str
    base: float
    costs: tuple[Floats, ...]


@dataclass(frozen=True)
class Choice:
    """An integer point: an option per slot, a depth per group. `Problem.choice` makes it canonical (idle slots say 0)."""

    options: tuple[int, ...]
    depths: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Point:
    """A relaxed point: a probability vector per slot (alpha) and per group over its allowed depths (beta), float64."""

    alpha: tuple[Floats, ...]
    beta: tuple[Floats, ...]


@dataclass(frozen=True, eq=False)
class Objective:
    """Additive effects to be maximised: `options[s][c]` if slot s runs with c, `depths[g][i]` for group g's i-th depth."""

    options: tuple[Floats, ...]
    depths: tuple[Floats, ...]


def expected_cost(base: Any, slot_costs: Any, runs: Any, beta: Any) -> Any:
    """base + sum over slots of P(slot runs) * its expected cost, P = runs @ beta: formula (3) of HardCoRe-NAS, which is also
    TF-NAS's expected latency. `*` and `@` alone, so that numpy arrays and torch tensors (with gradients) both do."""
    return base + slot_costs @ runs @ beta


@dataclass(frozen=True, kw_only=True, eq=False)
class Problem:
    """Groups, resources and limits; see the module's first lines."""

    groups: tuple[Group, ...]
    resources: tuple[ResourceCosts, ...]
    limits: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_groups(self.groups)
        for name in self.names:
            if self.names.count(name) > 1:
                raise BadProblem("every resource must be named once", value=name, remedy="Rename or merge them.")
        for resource in self.resources:
            _check_costs(resource, self.slot_sizes.tolist())
        for name, limit in self.limits.items():
            _check_limit(name, limit, {r.name: r.unit for r in self.resources})

    def with_limits(self, limits: Mapping[str, float]) -> Problem:
        """The same problem under other limits (all of them: a resource left out is free)."""
        return replace(self, limits=dict(limits))

    # --- layout: alpha flat over [slot, option] (N), beta flat over [group, allowed depth] (M) -----------------------------

    @cached_property
    def slot_sizes(self) -> Ints:
        return np.array([n for g in self.groups for n in g.options], np.intp)

    @cached_property
    def slot_starts(self) -> Ints:
        return np.cumsum(self.slot_sizes) - self.slot_sizes

    @cached_property
    def option_slot(self) -> Ints:
        """[N] the slot of every flat option."""
        return np.repeat(np.arange(len(self.slot_sizes)), self.slot_sizes)

    @cached_property
    def depth_sizes(self) -> Ints:
        return np.array([len(g.depths) for g in self.groups], np.intp)

    @cached_property
    def depth_starts(self) -> Ints:
        return np.cumsum(self.depth_sizes) - self.depth_sizes

    @cached_property
    def depth_group(self) -> Ints:
        """[M] the group of every flat depth."""
        return np.repeat(np.arange(len(self.groups)), self.depth_sizes)

    @cached_property
    def group_slots(self) -> tuple[range, ...]:
        """Per group the numbers of its slots."""
        ends = np.cumsum([len(g.options) for g in self.groups]).tolist()
        return tuple(range(end - len(g.options), end) for g, end in zip(self.groups, ends))

    @cached_property
    def runs(self) -> Floats:
        """[slots, flat depths] 1 where the slot runs at that depth of its group: P(runs) = runs @ beta."""
        matrix = np.zeros((len(self.slot_sizes), int(self.depth_sizes.sum())))
        for g, group in enumerate(self.groups):
            for i, depth in enumerate(group.depths):
                matrix[list(self.group_slots[g])[:depth], self.depth_starts[g] + i] = 1.0
        return matrix

    @property
    def columns(self) -> int:
        """N + M: of the joint programme, and of a row that says what runs."""
        return len(self.option_slot) + len(self.depth_group)

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(r.name for r in self.resources)

    @cached_property
    def base(self) -> Floats:
        return np.array([r.base for r in self.resources], float)

    @cached_property
    def theta(self) -> Floats:
        """[resources, N] cost of every flat option, in any order of options the caller likes."""
        flat = [np.concatenate(r.costs) for r in self.resources]
        return np.array(flat, float).reshape(len(self.resources), len(self.option_slot))

    @cached_property
    def limited(self) -> Ints:
        """Numbers of the resources that have a limit."""
        return np.array([k for k, name in enumerate(self.names) if name in self.limits], np.intp)

    @cached_property
    def limit(self) -> Floats:
        """[limited] the limits, in the order of `limited`."""
        return np.array([self.limits[self.names[k]] for k in self.limited], float)

    @cached_property
    def limit_scale(self) -> Floats:
        """[limited] what costs are measured by: the limit, or for a limit of zero the largest cost there is."""
        dearest = self.theta[self.limited].max(axis=1) if len(self.limited) else self.limit
        return np.where(self.limit > 0, self.limit, np.where(dearest > 0, dearest, 1.0))

    def flat_alpha(self, alpha: Sequence[Floats]) -> Floats:
        return _joined(alpha, self.slot_sizes, "alpha")

    def flat_beta(self, beta: Sequence[Floats]) -> Floats:
        return _joined(beta, self.depth_sizes, "beta")

    def flat_objective(self, objective: Objective) -> Floats:
        """[N + M] the effects of flat options and flat depths, checked."""
        flat = np.concatenate([self.flat_alpha(objective.options), self.flat_beta(objective.depths)])
        if not np.isfinite(flat).all():
            bad = float(flat[~np.isfinite(flat)][0])
            raise BadProblem("every effect must be finite", value=bad, remedy="Look for NaN in what estimated it.")
        return flat

    def split_alpha(self, flat: Floats) -> tuple[Floats, ...]:
        return tuple(np.split(flat, self.slot_starts[1:]))

    def split_beta(self, flat: Floats) -> tuple[Floats, ...]:
        return tuple(np.split(flat, self.depth_starts[1:]))

    def split_objective(self, flat: Floats) -> Objective:
        """The effects [N + M] by slot and by group: the way back from `flat_objective`."""
        n = len(self.option_slot)
        return Objective(self.split_alpha(flat[:n]), self.split_beta(flat[n:]))

    # --- costs ------------------------------------------------------------------------------------------------------------

    def alpha_costs(self, beta: Floats) -> Floats:
        """[resources, N] Theta beta: what a unit of flat alpha costs at this flat beta (also the cost's gradient)."""
        return self.theta * (self.runs @ beta)[self.option_slot]

    def beta_costs(self, alpha: Floats) -> Floats:
        """[resources, M] alpha' Theta: what a unit of flat beta costs at this flat alpha (also the cost's gradient)."""
        costs: Floats = self.slot_costs(alpha) @ self.runs
        return costs

    def slot_costs(self, alpha: Floats) -> Floats:
        """[resources, slots] what every slot costs where it runs, expected over this flat alpha."""
        return np.add.reduceat(self.theta * alpha, self.slot_starts, axis=1)

    def cost_vector(self, where: Point | Choice) -> Floats:
        """[resources] cost of a relaxed point, or the correctly rounded cost of a choice."""
        if isinstance(where, Choice):
            ours = self.choice(where.options, where.depths)
            active = [self.slot_starts[s] + ours.options[s] for s in self.running(ours)]
            return np.array([math.fsum([r.base, *row[active]]) for r, row in zip(self.resources, self.theta)])
        alpha, beta = self.flat_alpha(where.alpha), self.flat_beta(where.beta)
        costs: Floats = expected_cost(self.base, self.slot_costs(alpha), self.runs, beta)
        return costs

    def expected_cost(self, point: Point) -> dict[str, float]:
        """base + alpha' Theta beta of every resource: formula (3) of HardCoRe-NAS and TF-NAS's expectation alike."""
        return dict(zip(self.names, self.cost_vector(point).tolist()))

    def cost(self, choice: Choice) -> dict[str, float]:
        return dict(zip(self.names, self.cost_vector(choice).tolist()))

    def excess(self, where: Point | Choice) -> Floats:
        """[limited] cost minus limit; positive is over budget."""
        return self.cost_vector(where)[self.limited] - self.limit

    def over(self, where: Point | Choice) -> dict[str, float]:
        """By how much each limit is exceeded, of those that are."""
        return {self.names[k]: float(e) for k, e in zip(self.limited, self.excess(where)) if e > 0}

    def is_feasible(self, where: Point | Choice, tolerance: float = TOLERANCE) -> bool:
        """Is it in the set (probabilities that sum to one), and does every cost fit within `limit * (1 + tolerance)`?"""
        if isinstance(where, Point):
            for vector in (*where.alpha, *where.beta):
                if not (np.isfinite(vector).all() and (vector >= 0).all() and abs(vector.sum() - 1) <= _SUM_TOLERANCE):
                    return False
        return bool((self.excess(where) <= tolerance * self.limit).all())

    # --- choices ----------------------------------------------------------------------------------------------------------

    def choice(self, options: Sequence[int], depths: Sequence[int]) -> Choice:
        """A choice in canonical form (idle slots say option 0), so that equal networks are equal values."""
        if len(options) != len(self.slot_sizes) or len(depths) != len(self.groups):
            rule = f"a choice must have {len(self.slot_sizes)} options and {len(self.groups)} depths"
            remedy = "Give one option per slot and one depth per group."
            raise BadProblem(rule, value=f"{len(options)} and {len(depths)}", remedy=remedy)
        clean = [0] * len(options)
        for g, (group, depth) in enumerate(zip(self.groups, depths)):
            if depth not in group.depths:
                rule = f"the depth of {group.name} must be one of {group.depths}"
                raise BadProblem(rule, value=int(depth), remedy="Pick an allowed one.")
            for s, size in zip(self.group_slots[g][:depth], group.options):
                if not 0 <= options[s] < size:
                    rule = f"slot {s} ({group.name}) must take an option of 0..{size - 1}"
                    raise BadProblem(rule, value=int(options[s]), remedy="Count options from 0.")
                clean[s] = int(options[s])
        return Choice(tuple(clean), tuple(int(d) for d in depths))

    def running(self, choice: Choice) -> list[int]:
        """The slots that run."""
        return [s for slots, depth in zip(self.group_slots, choice.depths) for s in slots[:depth]]

    def ones(self, choice: Choice) -> list[int]:
        """The columns that are one for this choice: its options in the slots that run, and its depths."""
        options = [int(self.slot_starts[s]) + choice.options[s] for s in self.running(choice)]
        starts = (len(self.option_slot) + self.depth_starts).tolist()
        return options + [i + g.depths.index(d) for i, g, d in zip(starts, self.groups, choice.depths)]

    def indicators(self, choice: Choice) -> Floats:
        """[N + M] the choice as a row of zeros and ones."""
        row = np.zeros(self.columns)
        row[self.ones(choice)] = 1.0
        return row

    def point(self, choice: Choice) -> Point:
        """The choice as one-hot vectors."""
        alpha = tuple(np.eye(n)[o] for n, o in zip(self.slot_sizes, choice.options))
        beta = tuple((np.array(g.depths) == d).astype(float) for g, d in zip(self.groups, choice.depths))
        return Point(alpha, beta)

    def uniform(self) -> Point:
        alpha, beta = ([np.full(n, 1.0 / n) for n in sizes] for sizes in (self.slot_sizes, self.depth_sizes))
        return Point(tuple(alpha), tuple(beta))

    def value(self, objective: Objective, choice: Choice) -> float:
        """The sum of the effects of what a choice runs, correctly rounded."""
        parts = [objective.options[s][choice.options[s]] for s in self.running(choice)]
        parts += [v[g.depths.index(d)] for v, g, d in zip(objective.depths, self.groups, choice.depths)]
        return math.fsum(parts)

    def best_first(self, objective: Objective, choices: Iterable[Choice]) -> tuple[Choice, ...]:
        """By falling value; equal ones in the order of depths and options, so that the answer is one."""
        return tuple(sorted(choices, key=lambda c: (-self.value(objective, c), c.depths, c.options)))

    def least(self, weights: Floats) -> Choice:
        """The choice with the smallest sum of flat option `weights` [N]; ties go to low depths and low numbers."""
        starts = self.slot_starts.tolist()
        best = [int(np.argmin(weights[i : i + n])) for i, n in zip(starts, self.slot_sizes)]
        lows = [float(weights[i + b]) for i, b in zip(starts, best)]
        depths = []
        for slots, group in zip(self.group_slots, self.groups):
            totals = {d: math.fsum(lows[s] for s in slots[:d]) for d in group.depths}
            depths.append(min(sorted(group.depths), key=totals.__getitem__))
        return self.choice(best, depths)

    def cheapest(self, resource: str) -> Choice:
        """The choice that costs least of one resource: exact, limits aside."""
        return self.least(self.theta[self._number(resource)])

    def dearest(self, resource: str) -> Choice:
        """The choice that costs most of one resource: what percentages of a budget refer to."""
        return self.least(-self.theta[self._number(resource)])

    def smallest(self) -> Choice:
        """The smallest choice all limits considered: least sum of cost shares, each cost measured by its limit."""
        if not len(self.limited):
            scale = self.theta.sum(axis=1)
            return self.least((self.theta / np.where(scale > 0, scale, 1.0)[:, None]).sum(axis=0))
        return self.least(self.load())

    def load(self) -> Floats:
        """[N] cost of every flat option as a share of the limits, summed over them: orders options from light to heavy."""
        load: Floats = (self.theta[self.limited] / self.limit_scale[:, None]).sum(axis=0)
        return load

    def _number(self, resource: str) -> int:
        if resource not in self.names:
            rule = "a resource must be one the problem has costs of"
            raise BadProblem(rule, value=resource, remedy=f"Known: {self.names}.")
        return self.names.index(resource)


class Outcome(Enum):
    OPTIMAL = "optimal"  # proven
    FEASIBLE = "feasible"  # fits, but the gap is not closed
    INFEASIBLE = "infeasible"  # proven: nothing fits
    UNDECIDED = "undecided"  # time ran out before anything that fits was found


class Undecided(SnugnetError):
    """The time limit passed before a fitting choice was found or excluded."""

    exit_code = 1


@dataclass(frozen=True)
class Status:
    """How it ended, and what to do about it."""

    outcome: Outcome
    message: str

    def __str__(self) -> str:
        return f"{self.outcome.value}: {self.message}"


@dataclass(frozen=True, kw_only=True)
class Solution(Generic[T]):
    """`value` (raises the reason if there is none), `status`, `stats` (times in seconds, counts, bounds)."""

    found: tuple[T, ...]
    status: Status
    stats: dict[str, float] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return bool(self.found)

    @property
    def value(self) -> T:
        if self.found:
            return self.found[0]
        if self.status.outcome is Outcome.INFEASIBLE:
            remedy = "Raise a limit (see `explain`)."
            raise Infeasible("the limits must admit a choice", value=self.status.message, remedy=remedy)
        raise Undecided("a choice must be found in time", value=self.status.message, remedy="Allow more time.")


def _joined(vectors: Sequence[Floats], sizes: Ints, what: str) -> Floats:
    if len(vectors) != len(sizes) or any(len(v) != n for v, n in zip(vectors, sizes)):
        rule = f"{what} must have vectors of lengths {sizes.tolist()}"
        remedy = "One vector per slot (alpha) or group (beta)."
        raise BadProblem(rule, value=[len(v) for v in vectors], remedy=remedy)
    flat: Floats = np.concatenate([np.asarray(v, float) for v in vectors])
    return flat


def _check_groups(groups: Sequence[Group]) -> None:
    if not groups or not any(g.options for g in groups):
        raise BadProblem("a problem must have at least one slot", value=len(groups), remedy="Add a group with slots.")
    for group in groups:
        for position, count in enumerate(group.options):
            if count < 1:
                rule = f"slot {position} of {group.name} must have at least one option"
                raise BadProblem(rule, value=count, remedy="Give it an option or remove the slot.")
        slots = len(group.options)
        legal = all(0 <= d <= slots for d in group.depths)
        if not group.depths or not legal or len(set(group.depths)) != len(group.depths):
            rule = f"the depths of {group.name} must be different numbers of 0..{slots}"
            raise BadProblem(rule, value=group.depths, remedy=f"For slots that always run give depths=({slots},).")


def _check_costs(resource: ResourceCosts, sizes: list[int]) -> None:
    lengths = [len(c) for c in resource.costs]
    if lengths != sizes:
        rule = f"{resource.name} must have a cost for every option of every slot ({sizes})"
        raise BadProblem(rule, value=lengths, remedy="Measure the missing options, or remove them from the slot.")
    if not (math.isfinite(resource.base) and resource.base >= 0):
        rule = f"the base of {resource.name} must be finite and not negative"
        raise BadProblem(rule, value=resource.base, remedy="Measure again.")
    for s, costs in enumerate(resource.costs):
        bad = ~(np.isfinite(costs) & (np.asarray(costs) >= 0))
        if bad.any():
            c = int(np.argmax(bad))
            rule = f"{resource.name} of slot {s}, option {c} must be finite and not negative"
            raise BadProblem(rule, value=float(costs[c]), remedy="Measure it again, or remove the option.")


def _check_limit(name: str, limit: Any, units: Mapping[str, str]) -> None:
    if name not in units:
        remedy = f"Add its costs, or drop the limit; costs exist of: {', '.join(units) or 'nothing'}."
        raise BadProblem(f"a limit on {name} must have costs of {name} to go with it", value=limit, remedy=remedy)
    number = isinstance(limit, int | float | np.floating | np.integer) and not isinstance(limit, bool)
    if not number or not math.isfinite(limit) or limit < 0:
        rule = f"the limit on {name} must be a finite number of {units[name]}, not negative"
        remedy = f"Convert it to {units[name]} first; leave the limit out if there is none."
        raise BadProblem(rule, value=limit, remedy=remedy)
