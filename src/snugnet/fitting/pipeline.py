"""A recipe in a run folder, step by step: measure, check, train, search, fine-tune, export, certify, report.

Every step reads and writes the run folder, is skipped when it is done for the same inputs, and resumes when killed. Budgets
nobody can meet are refused before anything is trained. The found network is measured before it is trained (`measured`), the
shipped file once more; if that one is over after all, the search is sent back to aim lower, a bounded number of times.
What is measured, where, and what the budget is in absolute units: `run_costs`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, final

import torch

from snugnet.budgets import Budget
from snugnet.costs.vectorised import cost_range
from snugnet.data.dataset import Data
from snugnet.errors import BadInput, BudgetExceeded
from snugnet.executors import Shared
from snugnet.fitting import runs
from snugnet.fitting.finetuning import finetune_method, require_training
from snugnet.fitting.measured import Factors, MeasuredLoop, Round, lowered
from snugnet.fitting.places import binned_costs, measured_shares, places_of
from snugnet.fitting.recipe import FinetuneSection, Recipe
from snugnet.fitting.run_costs import RunCosts
from snugnet.fitting.tasks import (
    Goal,
    Parts,
    PartsOf,
    data_for,
    export_task,
    finetune_task,
    known_task,
    search_task,
    train_task,
)
from snugnet.fitting.timekeeping import epochs_left
from snugnet.fitting.work import Work
from snugnet.nets import Supernet, build
from snugnet.progress import Progress
from snugnet.searching import Adaptive, Instant, SearchResult, Tfnas, load_result
from snugnet.searching.front import FrontPoint, as_rows, front
from snugnet.searching.search import make_method, require_kind
from snugnet.space.layout import Layout
from snugnet.store import Say, StepCache, read_json, read_memo, write_json, write_memo
from snugnet.training.trackers import check_trackers
from snugnet.units import resource, show

_SHOWN = (  # what the page shows: it is made again when any of them changed
    "recipe.yaml", "train.jsonl", "search.json", "architecture.json", "search/evaluations.jsonl", "search/worths.json",
    "front.json", "accuracy.json", "certificate.json", "network.safetensors", "network.onnx",
)  # fmt: skip


@final
@dataclass(frozen=True, kw_only=True)
class First:
    """What a budget's own search came to, and the factors on limits it ended with."""

    factors: dict[str, float]
    result: SearchResult


@final
class Pipeline:
    """One recipe in one folder. The constructor refuses what can be refused before any work."""

    def __init__(
        self,
        recipe: Recipe,
        folder: Path,
        *,
        say: Say,
        progress: Progress,
        threads: int | None = None,
        work: Work | None = None,
        parts: Shared[Parts] | None = None,
        data: Data | None = None,
    ) -> None:
        """`work`: who computes (`fitting.tasks`); `parts`, `data`: what is open already."""
        self.recipe, self.folder, self.progress, self.threads, self._say = recipe, folder, progress, threads, say
        self.work, self._parts = work or Work(), parts
        self._in_vain = 0.0  # seconds of training networks that came out over their limit
        self._settled: tuple[str, First] | None = None
        if not recipe.budget:
            raise BadInput("a recipe to run must have a budget", value="none", remedy="Add `budget: {latency: 60%}`.")
        places_of(recipe, Budget(recipe.budget))  # before images are read
        separate = any(method.separate for method in recipe.train.methods())
        require_kind(make_method(recipe.search.method, recipe.search.options), separate=separate)
        finetune_method(recipe.finetune).check()
        check_trackers(recipe.trackers)
        if recipe.data.subset is not None:
            require_training(recipe.finetune)
        self.data = recipe.load_data() if data is None else data
        self.space = recipe.build_space(self.data)
        self.steps = StepCache(folder, say)
        self.costs = RunCosts(recipe, folder, self.space, steps=self.steps, progress=progress)

    def run(self) -> None:
        """All steps."""
        runs.init_run(self.folder, self.recipe)
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        for name in self.costs.places:
            self.costs.measure_table(name)
        self.costs.refer_to_start()
        _ = self.costs.promised  # refuses before anything is trained
        if self.recipe.start is not None:
            ranges = "; ".join(str(cost_range(self.space, table)) for table in self.costs.tables.values())
            self._say(f"{self.space.count:,} networks around {self.recipe.source}: {ranges}")
        for name in self.costs.places:
            self.costs.check(name)
        self._train()
        self.until_shipped()
        self._front()
        self._report()

    @cached_property
    def parts(self) -> Shared[Parts]:
        if self._parts is not None:
            return self._parts
        return PartsOf(value=Parts(supernet=runs.open_run(self.folder).supernet, data=self.data), folder=self.folder)

    @property
    def supernet(self) -> Supernet:
        return self.parts.get().supernet

    @property
    def goal(self) -> Goal:
        return Goal(recipe=self.recipe, budget=self.costs.promised, tables=self.costs.tables)

    @property
    def result(self) -> SearchResult:
        return load_result(self.folder / "search.json", self.space)

    def _hashes(self, *files: str) -> dict[str, str | None]:
        """What later steps depend on; a file that is not there is None."""
        return {file: self.steps.hash_of(file) if (self.folder / file).exists() else None for file in files}

    def _train(self) -> None:
        binned = [name for name in self.costs.places if name in binned_costs(self.recipe)]

        def work() -> str:
            costs: dict[str, Any] = {"tables": {name: self.costs.tables[name] for name in binned}}
            if self.recipe.needs_budget:
                costs = {"tables": self.costs.tables, "budget": self.costs.promised}
            options = self.threads, self.progress
            result = self.work.together(train_task, self.recipe, self.folder, costs, *options)
            return ", ".join(f"{name} {value:.1%}" for name, value in result.accuracies.items())

        inputs: Any = self.recipe.trained()
        if self.recipe.needs_budget or binned:
            inputs = [inputs, self._hashes(*self.costs.files)]
        self.steps.step("train", inputs, ["supernet.safetensors"], work)

    def until_shipped(self) -> None:
        """Search, fine-tune, export, certify; if the shipped file is over after all, aim lower and go back, boundedly."""
        for _ in range(self.recipe.search.rounds):
            self._search()
            self._finetune()
            try:
                self._export()
                return
            except BudgetExceeded:
                over = {n: s for n, s in measured_shares(self.folder / "certificate.json").items() if s > 1.0}
                self._in_vain += self.steps.seconds["finetune"]
                self._aim_lower(over)
        raise self._unreachable(measured_shares(self.folder / "certificate.json"), "")

    def _aim_lower(self, over: Mapping[str, float]) -> None:
        """Remember what was learnt, for the next search; in the run folder, so that it survives a kill."""
        aimed = self._aimed()
        factors = lowered(aimed, over)
        for name, share in over.items():
            self._say(f"measured at {share:.1%} of the {name} limit; the next search aims at {factors[name]:.1%} of it")
        ceilings = {name: aimed.get(name, 1.0) for name in over}
        write_memo(self.folder / "tightened.json", self._aim(), {"factors": factors, "ceilings": ceilings})

    def _aimed(self) -> dict[str, float]:
        """The factors that the network to ship was searched with."""
        saved = read_memo(self.folder / "aims.json", self._hashes("architecture.json"))
        return {} if saved is None else dict(saved["factors"])

    def _tightened(self, what: str) -> dict[str, float]:
        """`factors` that the next search begins with, `ceilings` it stays below: what a shipped file taught."""
        saved = read_memo(self.folder / "tightened.json", self._aim())
        return {} if saved is None else dict(saved.get(what, {}))

    def _aim(self) -> list[Any]:
        return [self.costs.promised.to_json(), self._hashes(*self.costs.files)]

    def first_search(self, folder: Path) -> First:
        """The measured search alone, in a folder of its own; what it evaluates is evidence for other budgets (`many`)."""
        home = folder.relative_to(self.folder)
        files = [str(home / name) for name in ("factors.json", "result.json", "evaluations.jsonl")]

        def work() -> str:
            best, rounds = self._measured_search(folder, {}, {})
            write_json(folder / "factors.json", best.factors)
            best.result.save(folder / "result.json")
            return _found(best, rounds)

        self.steps.step("first search", self.search_inputs(), files, work)
        return First(
            factors=dict(read_json(folder / "factors.json")), result=load_result(folder / "result.json", self.space)
        )

    def settle(self, evidence: str, first: First) -> None:
        """From now on the search chooses among what its folder knows, which is `evidence`, instead of looking for more."""
        self._settled = evidence, first

    def search_inputs(self) -> list[Any]:
        """All that a search depends on, beside what is known when it begins."""
        hashes = self._hashes("supernet.safetensors", *self.costs.files)
        return [hashes, self.costs.promised.to_json(), self.recipe.seed, self.recipe.search.model_dump()]

    def _search(self) -> None:
        settled, factors = self._settled, self._tightened("factors")

        def work() -> str:
            if settled is not None and not factors:
                return self._keep(self._settled_choice(settled[1]), 1)
            if self.recipe.search.front:
                self._front_points(explore=True)  # first, so that all it evaluates competes for the budget
            return self._keep(*self._measured_search(self.folder / "search", factors, self._tightened("ceilings")))

        inputs = [*self.search_inputs(), factors]
        if settled is not None:
            inputs += [settled[0], settled[1].factors]
        self.steps.step("search", inputs, ["search.json", "architecture.json"], work)

    def _settled_choice(self, first: First) -> Round:
        """The best of all that is known, within the limits as the first search came to aim at them; where that is measured
        over a limit, what the first search found, which was measured within all."""
        options = self.parts, self.goal, first.factors, self.folder / "search"
        known: SearchResult | None = self.work.compute(known_task, *options)
        mine = Round(factors=first.factors, result=first.result, shares={})
        if known is None or known.architecture == first.result.architecture:
            return mine if known is None else replace(mine, result=known)
        best = Round(factors=first.factors, result=known, shares=self._measured(known) if self.costs.places else {})
        for name, share in best.over.items():
            self._say(
                f"search: another budget's network is measured at {share:.1%} of the {name} limit; its own is kept"
            )
        return mine if best.over else best

    def _measured_search(self, folder: Path, factors: Factors, ceilings: Factors) -> tuple[Round, int]:
        """The best round, and how many there were. What is evaluated goes to `folder`."""

        def find(aims: Factors) -> SearchResult:
            return self.work.compute(search_task, self.parts, self.goal, dict(aims), folder, self.progress)

        rounds = self.recipe.search.rounds
        loop = MeasuredLoop(
            find,
            self._measured,
            measured=self.costs.places,
            factors=factors,
            ceilings=ceilings,
            say=lambda line: self._say(f"search: {line}"),
        )
        best = loop.run(rounds)
        if best is not None:
            return best, len(loop.rounds)
        if not loop.rounds:  # what the shipped file taught left nothing to search
            raise self._unreachable(measured_shares(self.folder / "certificate.json"), _NOTHING_SMALLER)
        raise self._unreachable(loop.nearest.shares, "" if len(loop.rounds) == rounds else _NOTHING_SMALLER)

    def _keep(self, best: Round, rounds: int) -> str:
        result = best.result
        result.save(self.folder / "search.json")
        write_json(self.folder / "architecture.json", result.architecture.to_json())
        write_memo(self.folder / "aims.json", self._hashes("architecture.json"), {"factors": best.factors})
        return _found(best, rounds)

    def _measured(self, result: SearchResult) -> dict[str, float]:
        """The share of every limit that a network takes as measured. Its weights do not matter to that."""
        trial = self.folder / "search" / "trial.json"
        with self.work.alone(), contextlib.suppress(BudgetExceeded):  # the certificate says by how much
            self.costs.certify(build(result.architecture, self.space).eval(), trial)
        return measured_shares(trial)

    def _unreachable(self, shares: Mapping[str, float], why: str) -> BudgetExceeded:
        limits = {name: self.costs.promised.amount(name, 0.0) for name in shares}
        measured = ", ".join(f"{n} {show(share * limits[n], n)}" for n, share in shares.items() if share > 1.0)
        return BudgetExceeded(
            f"a network of space {self.space.name!r} must be measured within {self.costs.promised}{why}",
            value=f"at best {measured}",
            remedy="Raise the budget to that, or add smaller choices to the space.",
        )

    def _front_points(self, *, explore: bool) -> list[FrontPoint]:
        how = make_method(self.recipe.search.method, self.recipe.search.options)
        return front(
            self.supernet,
            self.data,
            self.costs.tables,
            self._front_resource,
            self.recipe.search.front,
            method=how if isinstance(how, Adaptive | Tfnas) else Instant() if self._additive else Adaptive(),
            seed=self.recipe.seed,
            out=self.folder / "search",
            explore=explore,
            progress=self.progress,
        )

    @property
    def _additive(self) -> bool:
        """Whether costs add up at each resolution: what `instant` and Frank-Wolfe need."""
        return not Layout(self.space).at(self.space.resolutions[0]).why_not_additive

    @property
    def _front_resource(self) -> str:
        return next(iter(self.costs.places), next(iter(self.costs.budget)))

    def _front(self) -> None:
        points, name = self.recipe.search.front, self._front_resource
        if not points:
            return

        def work() -> str:
            rows = as_rows(self._front_points(explore=False))
            write_json(self.folder / "front.json", {"resource": name, "unit": resource(name).unit, "points": rows})
            return f"{len(rows)} networks along {name}"

        inputs = [
            self._hashes("supernet.safetensors", "search.json", *self.costs.files),
            name,
            points,
            self.recipe.seed,
        ]
        self.steps.step("front", inputs, ["front.json"], work)

    def _finetune(self) -> None:
        section = self._timed_section()
        goal = replace(self.goal, recipe=self.recipe.model_copy(update={"finetune": section}))

        def work() -> str:
            found, options = self.result.architecture, (self.folder, self.threads, self.progress)
            return self.work.together(finetune_task, self.parts, goal, found, *options)

        inputs = [self._hashes("architecture.json", "supernet.safetensors"), section.model_dump(mode="json")]
        self.steps.step("finetune", inputs, ["network.safetensors", "accuracy.json"], work)

    def _timed_section(self) -> FinetuneSection:
        """How the found network is trained, with epochs for the time that is left; once decided, kept for the next start."""
        section, path = self.recipe.finetune, self.folder / "epochs.json"
        identity = [self._hashes("architecture.json", "supernet.safetensors"), section.model_dump(mode="json")]
        if section.run_seconds is None or not section.epochs:
            return section
        saved = read_memo(path, identity)
        if saved is None:
            took, found = self.steps.seconds, self.result.architecture
            spent = self._in_vain + sum(s for name, s in took.items() if name not in _AFTER_SEARCH)
            with self.work.alone():
                device = runs.compute_device(self.recipe.train.device)
                images = data_for(self.recipe, self.data, found)
                epochs = epochs_left(section, self.space, found, images, spent, device)
            self._say(
                f"finetune: {epochs:g} epochs for {section.run_seconds:g} s in all (the recipe: {section.epochs:g})"
            )
            saved = {"epochs": epochs}
            write_memo(path, identity, saved)
        return section.model_copy(update={"epochs": saved["epochs"]})

    def _export(self) -> None:
        costs, small = self.costs, ["network.int8.onnx"] if self.costs.int8 else []
        devices = {label: device.fingerprint() for label, device in costs.devices.items()}
        inputs = [self._hashes("network.safetensors", *costs.files), costs.promised.to_json(), devices, costs.batch]
        files = ["network.onnx", "network.pt2", "certificate.json", *small]
        self.steps.step("export and certify", inputs, files, self._certified_file)

    def _certified_file(self) -> str:
        found = self.result.architecture
        self.work.compute(export_task, self.parts, self.goal, found, self.folder)
        with self.work.alone():
            certificate = self.costs.certify_shipped(lambda: data_for(self.recipe, self.data, found), self._say)
        return "; ".join(
            f"{line.name} {show(line.measured, line.name)} of {show(line.limit, line.name)}"
            for line in certificate.lines
        )

    def _report(self) -> None:
        from snugnet.reporting import build_report

        def work() -> str:
            build_report(self.folder, space=self.space)
            return "a page to look at"

        checks = [file.replace("table", "check") for file in self.costs.files]
        self.steps.step("report", self._hashes(*_SHOWN, *self.costs.files, *checks), ["report.html"], work)


def _found(best: Round, rounds: int) -> str:
    again = f" after {rounds} rounds" if rounds > 1 else ""
    return f"{best.result.method} found {best.result.accuracy:.1%}, measured within budget{again}"


_AFTER_SEARCH = ("finetune", "export and certify", "front", "report")  # of this budget, or of one before it
_NOTHING_SMALLER = " (nothing smaller is left in the space)"
