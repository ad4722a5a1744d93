"""The pool: the networks of a run that the page's sliders choose among, best first.

*Evaluated* networks stand with the score the run gave them. *Solved* networks are the exact solver's answers, by the saved
effects of choices, on a grid of budgets: every resource alone, every resource beside the run's own limits, and pairs with
the first resource. Their score is predicted, less one standard error: a network that nobody evaluated must promise more
than the prediction errs to be shown before one that was.

The order is fixed, so more room never shows a worse network. A network that another one beats in score and in every cost
is left out: no limits would choose it. Spaces whose costs do not add up block by block (AttentiveNAS), and runs that know
no effects, have evaluated networks only.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, final

import numpy as np

from snugnet.budgets import FeasibleSet, cheapest, feasible
from snugnet.costs.table import CostTable
from snugnet.errors import BadInput, DamagedFile, Infeasible, SnugnetError
from snugnet.reporting.reading import RunFiles
from snugnet.solve import TOLERANCE, best_choice
from snugnet.solve.problem import Floats
from snugnet.space.architecture import Architecture, parse
from snugnet.space.layout import Layout
from snugnet.space.space import SearchSpace
from snugnet.space.spec import plan

Costs = dict[str, float]
_MOST_EVALUATED: Final = 2000
_ALONE: Final = 12  # budgets along one resource
_PAIRED: Final = 6  # budgets along each of two
_ENOUGH: Final = 8  # evaluated networks for a line through them
_SOLVER_SECONDS: Final = 2.0  # for one budget; a network that fits but is not proven best is as welcome


@final
@dataclass(frozen=True, kw_only=True)
class PoolNetwork:
    """A network with its predicted costs; `score` ranks, `accuracy` is evaluated or expected (None: not known)."""

    architecture: Architecture
    costs: Costs
    score: float
    accuracy: float | None
    evaluated: bool


@final
@dataclass(frozen=True, kw_only=True)
class AskedLimit:
    """A limit of the run: what was asked (None: this resource is free), and how predictions stand against it.

    The table's margin depends on the cost; `taught` is the share that measured networks have left of a limit besides."""

    asked: float | None
    table: CostTable
    taught: float = 1.0

    def needed(self, cost: float) -> float:
        """The least limit under which a network predicted at `cost` may be chosen."""
        return self.table.upper(cost) / self.taught

    def effective(self, limit: float) -> float:
        """What predictions may use of a limit."""
        return self.table.within(limit * self.taught)


@final
class RunNetworks:
    """What a run knows of networks: its files, its space and the tables of their costs together."""

    def __init__(self, files: RunFiles, space: SearchSpace, tables: Mapping[str, CostTable]) -> None:
        self.files, self.space, self.tables, self.layout = files, space, tables, Layout(space)

    @cached_property
    def limits(self) -> dict[str, AskedLimit]:
        """Every resource with a table: asked as the certificate or the search says, held as the search held it."""
        limits, search = {}, self.files.search
        for name, table in self.tables.items():
            taught = 1.0
            if search is not None and search.limits.get(name, 0.0) > 0 and name in search.aims:
                taught = table.upper(search.aims[name]) / search.limits[name]
            limits[name] = AskedLimit(asked=self.files.limit_of(name), table=table, taught=taught)
        return limits

    def fits(self, row: PoolNetwork) -> bool:
        """Within every limit that was asked, by predicted costs against effective limits: the rule of the search."""
        return all(
            limit.asked is None or limit.needed(row.costs[name]) <= limit.asked * (1 + TOLERANCE)
            for name, limit in self.limits.items()
        )

    @cached_property
    def evaluated(self) -> dict[str, PoolNetwork]:
        """Every network the run has a score of, by its text; those of another space are passed over."""
        rows, search = (self.files.evaluations or [])[-_MOST_EVALUATED:], self.files.search
        scores = {row.network: (row.accuracy, row.score) for row in rows}
        if search is not None:
            scores.setdefault(search.architecture, (search.accuracy, search.value))
        networks = {}
        for text, (accuracy, score) in scores.items():
            with contextlib.suppress(SnugnetError):
                architecture = parse(text, self.space)
                facts: dict[str, Any] = {"architecture": architecture, "costs": self.costs(architecture)}
                networks[text] = PoolNetwork(**facts, score=score, accuracy=accuracy, evaluated=True)
        return networks

    def costs(self, architecture: Architecture) -> Costs:
        network = plan(architecture, self.space)
        return {name: table.of_network(network) for name, table in self.tables.items()}

    @property
    def why_only_evaluated(self) -> str:
        """An empty text where the pool can hold solved networks, else the reason why it cannot."""
        if reason := self.layout.why_not_additive:
            return f"Costs of this space do not add up block by block ({reason})."
        return "" if self._saved is not None else self.files.trouble["effects"]

    @property
    def _saved(self) -> Mapping[str, Any] | None:
        """The effects a front or an instant search wrote."""
        if self.files.effects is not None:
            return self.files.effects.worths.model_dump(exclude_none=True)
        return None if self.files.search is None else self.files.search.details.get("worths")

    @cached_property
    def effects(self) -> Floats:
        """What every choice adds to a network's score, in the order of `features`."""
        saved, columns = self._saved, self.layout.columns
        if saved is None:
            raise BadInput("effects of choices must be known", remedy=self.files.trouble["effects"])
        remedy = "Learn them again: `snugnet search RUN --method instant`."
        if "value" not in saved:
            rule = "saved effects must hold a value for each choice (these were saved by an older version)"
            raise DamagedFile(rule, remedy=remedy)
        effects = np.array(saved["value"], dtype=float)
        if effects.shape != (columns,) or not np.isfinite(effects).all():
            raise DamagedFile(f"saved effects must be {columns} numbers", value=effects.shape, remedy=remedy)
        return effects

    @cached_property
    def pool(self) -> list[PoolNetwork]:
        """All networks the sliders may show, best first."""
        networks = list(self.evaluated.values())
        if not self.why_only_evaluated:
            limits = self.limits.items()
            held = {name: limit.effective(limit.asked) for name, limit in limits if limit.asked is not None}
            solved = solve_grid(self.space, self.tables, self.effects, held)
            networks += self._predicted([a for a in solved if str(a) not in self.evaluated])
        return _undominated(networks)

    def _predicted(self, solved: Sequence[Architecture]) -> Iterator[PoolNetwork]:
        """Solved networks with the score and accuracy that lines through the evaluated ones give them."""
        if not solved:
            return
        known = list(self.evaluated.values())
        x = self._sums([row.architecture for row in known])
        slope, intercept, error = _line(x, np.array([row.score for row in known]))
        rise, level, _ = _line(x, np.array([row.accuracy for row in known], dtype=float))
        for architecture, total in zip(solved, self._sums(solved).tolist()):
            yield PoolNetwork(
                architecture=architecture,
                costs=self.costs(architecture),
                score=intercept + slope * total - error,
                accuracy=min(1.0, max(0.0, level + rise * total)) if len(known) >= _ENOUGH else None,
                evaluated=False,
            )

    def _sums(self, networks: Sequence[Architecture]) -> Floats:
        """What the choices of each network add up to."""
        sums: Floats = (
            self.layout.features(self.layout.encode(list(networks))) @ self.effects if networks else np.zeros(0)
        )
        return sums

    def why_another(self) -> str:
        """Where the pool's best network under the run's own limits is not the chosen one: why."""
        best, search = next(filter(self.fits, self.pool), None), self.files.search
        if best is None or search is None or str(best.architecture) == search.architecture:
            return ""
        text = "This is not the network the run chose:"
        if not best.evaluated:
            return (
                f"{text} by the effects of its choices it should be better, but the run has not evaluated it. "
                "`snugnet search` with `--method instant` does."
            )
        if best.score > search.value:
            return f"{text} it was evaluated after the search and its score is higher. `snugnet search` again takes it."
        return f"{text} it has the same score and costs no more in any resource."

    def remark_on_front(self) -> str:
        """Why evaluated networks that fit stand above the chosen one in accuracy, where some do."""
        search = self.files.search
        if search is None:
            return ""
        fitting = [row for row in self.evaluated.values() if self.fits(row)]
        above = [row for row in fitting if row.accuracy is not None and row.accuracy > search.accuracy]
        if not above:
            return ""
        count = "One evaluated network" if len(above) == 1 else f"{len(above)} evaluated networks"
        most = max(row.accuracy or 0.0 for row in above)
        text = f"{count} within all limits had more right answers than the chosen one (up to {most:.2%})."
        if max(row.score for row in above) > search.value:
            return f"{text} The best of them was evaluated after the search: `snugnet search` again takes it."
        return (
            f"{text} The search ranks by score, accuracy minus calibrated loss, which tells networks apart on fewer "
            "images; by score none of them is better."
        )


def _line(x: Floats, y: Floats) -> tuple[float, float, float]:
    """Slope, intercept and standard error of y over x; the effects' own scale where too few networks were evaluated."""
    if len(x) < _ENOUGH or np.ptp(x) < 1e-12:
        return 1.0, float(np.mean(y - x)) if len(x) else 0.0, 0.0
    slope = max(0.0, float(np.polyfit(x, y, 1)[0]))
    intercept = float(np.mean(y - slope * x))
    return slope, intercept, float(np.sqrt(((y - intercept - slope * x) ** 2).sum() / (len(x) - 2)))


def solve_grid(
    space: SearchSpace, tables: Mapping[str, CostTable], effects: Floats, own: Mapping[str, float]
) -> list[Architecture]:
    """The best network by `effects` under every budget of the grid, each once; `own` are the run's effective limits."""
    solver = _GridSolver(space, tables, effects)
    free = solver.best({})
    assert free is not None  # without a limit everything fits
    ends = {name: (cheapest(space, table).cost, free[1][name]) for name, table in tables.items()}
    found = {str(free[0]): free[0]}
    for limits in _budgets(ends, own):
        if (answer := solver.best(limits)) is not None:
            found[str(answer[0])] = answer[0]
    return list(found.values())


def _budgets(ends: Mapping[str, tuple[float, float]], own: Mapping[str, float]) -> Iterator[dict[str, float]]:
    """Loose budgets first: what fits a tight one too need not be solved again."""
    yield dict(own)
    for name, (low, high) in ends.items():
        for level in _levels(low, high, _ALONE):
            yield {name: level}
            yield {**own, name: level}
    first, *others = ends
    for other in others:
        for a in _levels(*ends[first], _PAIRED):
            for b in _levels(*ends[other], _PAIRED):
                yield {first: a, other: b}


def _levels(low: float, high: float, count: int) -> list[float]:
    """From `high` to `low`, closer to each other near `low`, where a little more room gains most."""
    return [low + (high - low) * float(share) ** 2 for share in np.linspace(1.0, 0.0, count)]


@final
class _GridSolver:
    """`best_choice` under many limits of one space; limits are effective ones, in base units."""

    def __init__(self, space: SearchSpace, tables: Mapping[str, CostTable], effects: Floats) -> None:
        self._space, self._tables = space, tables
        self._effects = Layout(space).split(effects)
        self._peaks = [name for name, table in tables.items() if table.combine == "max"]
        self._narrowed: dict[tuple[float, ...], FeasibleSet] = {}
        self._answers: list[tuple[dict[str, float], tuple[Architecture, Costs]]] = []

    def best(self, limits: Mapping[str, float]) -> tuple[Architecture, Costs] | None:
        """The best network within `limits` and its costs; None where nothing fits."""
        bounds = {name: limits.get(name, float("inf")) for name in self._tables}
        for wider, answer in self._answers:
            if all(answer[1][n] <= limit <= wider[n] for n, limit in bounds.items()):
                return answer  # best under wider limits, and it fits these
        try:
            inside = self._inside(bounds)
        except Infeasible:
            return None
        sums = {name: limit for name, limit in bounds.items() if name not in self._peaks and limit < float("inf")}
        objective = inside.objective(self._effects.options, self._effects.depths)
        solution = best_choice(inside.problem.with_limits(sums), objective, time_limit=_SOLVER_SECONDS)
        if not solution.ok:
            return None
        architecture = inside.architecture(solution.value)
        network = plan(architecture, self._space)
        answer = architecture, {name: table.of_network(network) for name, table in self._tables.items()}
        self._answers.append((bounds, answer))
        return answer

    def _inside(self, bounds: Mapping[str, float]) -> FeasibleSet:
        """The feasible set that limits on a largest part (peak memory) leave; sums are limited afterwards."""
        key = tuple(bounds[name] for name in self._peaks)
        if key not in self._narrowed:
            budget = dict.fromkeys(self._tables, "100%")
            for name, limit in zip(self._peaks, key):
                if limit < float("inf"):
                    budget[name] = f"{limit:.15g}B"  # only peak memory is no sum
            self._narrowed[key] = feasible(self._space, self._tables, budget, margin=False)
        return self._narrowed[key]


def _undominated(networks: Sequence[PoolNetwork]) -> list[PoolNetwork]:
    """Best first; a network stays if everything before it costs more in some resource."""
    kept: list[PoolNetwork] = []
    for row in sorted(networks, key=lambda row: (-row.score, not row.evaluated, *row.costs.values())):
        if not any(all(other.costs[name] <= cost for name, cost in row.costs.items()) for other in kept):
            kept.append(row)
    return kept
