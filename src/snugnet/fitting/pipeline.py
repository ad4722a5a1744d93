"""`snugnet run`: from data to a certified network, a step at a time.

measure -> check -> train -> search -> fine-tune -> export -> certify -> report. Every step reads and writes the run
folder, is skipped when done and resumes when killed. The promise loop sits in `search`: the found network is measured on
the device before it is trained, and while it is over budget the limit is tightened by what was learnt and solved again, a
bounded number of times. Budgets nobody can meet are refused before anything is trained.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, final

import torch

from snugnet.budgets import Budget, dearest
from snugnet.budgets.limits import EXACT
from snugnet.costs.check import check_table
from snugnet.costs.measure import measure
from snugnet.costs.table import CostTable, exact_table, load_table
from snugnet.deploy.certificate import certify, read_certificate
from snugnet.deploy.export import export
from snugnet.deploy.network_file import load
from snugnet.deploy.onnx_file import stamp
from snugnet.devices import by_name
from snugnet.devices.timing import TimingSettings
from snugnet.errors import BadInput, BudgetExceeded, Infeasible
from snugnet.fitting import runs
from snugnet.fitting.finetuning import card_of, finetune_method, finetuned, in_words
from snugnet.fitting.recipe import Recipe
from snugnet.nets import build
from snugnet.progress import Progress
from snugnet.searching import SearchResult, load_result
from snugnet.searching.context import search_context
from snugnet.searching.front import FrontPoint, as_rows, front
from snugnet.searching.search import make_method, search
from snugnet.store import Say, StepCache, read_json, write_json
from snugnet.training import train
from snugnet.units import resource, show

_BACK_OFF = 0.995  # beyond what was learnt: the next network's own noise


@final
class Pipeline:
    """One recipe in one folder."""

    def __init__(
        self, recipe: Recipe, folder: Path, *, say: Say, progress: Progress, threads: int | None = None
    ) -> None:
        self.recipe, self.folder, self.progress, self.threads, self._say = recipe, folder, progress, threads, say
        self.budget = Budget(recipe.budget)
        if not self.budget:
            raise BadInput("a recipe to run must have a budget", value="none", remedy="Add `budget: {latency: 60%}`.")
        make_method(recipe.search.method, recipe.search.options)
        finetune_method(recipe.finetune).check()
        self.data = recipe.data.load()
        self.space = recipe.space.build(self.data)
        self._refuse_early()

    def run(self) -> dict[str, Any]:
        """All steps; the facts a user wants at the end."""
        runs.init_run(self.folder, self.recipe)
        self.step_cache = StepCache(self.folder, self._say)
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        if self._timed:
            self._measure()
        search_context(self.space, self.tables, self.budget)  # refuses before anything is trained
        if self._timed and self.recipe.measure.check:
            self._check()
        self._train()
        self._promise()
        self._front()
        self._report()
        return self._facts()

    def _promise(self) -> None:
        """Search, fine-tune, export, certify; if the shipped file is over after all, tighten and go back, boundedly."""
        for _ in range(self.recipe.search.rounds):
            self._search()
            self._finetune()
            try:
                self._export()
                return
            except BudgetExceeded:
                self._tighten(_over(self.folder / "certificate.json"))
        raise self._unreachable(None)

    def _tighten(self, over: dict[str, float]) -> None:
        """Remember what was learnt: the next search aims lower. Kept in the run, so that it survives a kill."""
        factors = self._factors()
        for name, share in over.items():
            factors[name] = factors.get(name, 1.0) * _BACK_OFF / share
            self._say(f"measured at {share:.1%} of the {name} limit; the next search aims at {factors[name]:.1%} of it")
        write_json(self.folder / "tightened.json", {"of": self._aim(), "factors": factors})
        self.__dict__.pop("found", None)

    def _factors(self) -> dict[str, float]:
        path = self.folder / "tightened.json"
        saved = read_json(path) if path.exists() else {}
        return dict(saved["factors"]) if saved.get("of") == self._aim() else {}

    def _aim(self) -> list[Any]:
        table = [self.step_cache.hash_of("table.json")] if self._timed else []
        return [self.promised.to_json(), *table]

    @property
    def _timed(self) -> bool:
        return any(resource(name).name == "latency" for name in self.budget)

    @cached_property
    def tables(self) -> dict[str, CostTable]:
        """The measured table for every latency limit, exact tables for the others."""
        found = {}
        for name in self.budget:
            found[name] = exact_table(self.space, name) if name in EXACT else load_table(self.folder / "table.json")
        return found

    @cached_property
    def device(self) -> Any:
        section = self.recipe.measure
        return by_name(section.device, threads=section.threads, precision=section.precision)

    @cached_property
    def promised(self) -> Budget:
        """The budget in absolute units: percentages of the largest network by the same table."""
        words = {}
        for name in self.budget:
            if self.budget.is_relative(name):
                amount = self.budget.amount(name, dearest(self.space, self.tables[name]).cost)
                words[name] = f"{amount:.6g}{_WRITTEN[resource(name).name]}"
            else:
                words[name] = self.budget[name]
        return Budget(words)

    def _refuse_early(self) -> None:
        exact = Budget({name: text for name, text in self.budget.items() if name in EXACT})
        search_context(self.space, [], exact)

    def _measure(self) -> None:
        section = self.recipe.measure
        inputs = [section.model_dump(), self.device.fingerprint(), repr(self.space)]

        def work() -> str:
            settings = TimingSettings(seconds=section.seconds)
            table = measure(
                self.space,
                self.device,
                batch=section.batch,
                settings=settings,
                out=self.folder / "table.json",
                source=self.recipe.space.name,
                progress=self.progress,
            )
            return f"{len(table.costs)} blocks on {section.device}, margin {table.margin:.1%}"

        self.step_cache.step("measure", inputs, ["table.json"], work)

    def _check(self) -> None:
        def work() -> str:
            table = next(t for n, t in self.tables.items() if resource(n).name == "latency")
            found = check_table(
                table, self.space, self.device, networks=self.recipe.measure.check, progress=self.progress
            )
            write_json(self.folder / "check.json", found.to_json())
            return f"R2 {found.r2:.3f}, worst error {found.worst_error:.1%} on {len(found.networks)} unseen networks"

        inputs = [self.step_cache.hash_of("table.json"), self.recipe.measure.check]
        self.step_cache.step("check", inputs, ["check.json"], work)

    def _train(self) -> None:
        section = self.recipe.train

        def work() -> str:
            result = train(
                runs.fresh_supernet(self.space, self.recipe.seed),
                self.data,
                section.methods(),
                out=self.folder,
                seed=self.recipe.seed,
                batch=section.batch,
                accumulate=section.accumulate,
                threads=self.threads,
                precision=section.precision,
                channels_last=section.channels_last,
                eval_times=section.eval_times,
                checkpoint_seconds=section.checkpoint_seconds,
                progress=self.progress,
            )
            return ", ".join(f"{name} {value:.1%}" for name, value in result.accuracies.items())

        self.step_cache.step("train", self.recipe.trained(), ["supernet.safetensors"], work)

    @cached_property
    def supernet(self) -> Any:
        return runs.open_run(self.folder).supernet

    def _search(self) -> None:
        inputs = [self.step_cache.hash_of("supernet.safetensors"), self.promised.to_json(), self.recipe.seed]
        inputs += [self.recipe.search.model_dump()]
        inputs += [self.step_cache.hash_of("table.json")] if self._timed else []
        inputs += [self._factors()]
        self.step_cache.step("search", inputs, ["search.json", "architecture.json"], self._until_it_fits)

    def _until_it_fits(self) -> str:
        """The promise loop: solve, measure the whole network, tighten by what was learnt, solve again."""
        section, factors = self.recipe.search, self._factors()
        self.__dict__.pop("found", None)
        if section.front:
            self._front_points(explore=True)  # first, so that all it evaluates competes for the budget
        for number in range(1, section.rounds + 1):
            try:
                found = search(
                    self.supernet,
                    self.data,
                    self.tables,
                    self.promised,
                    section.method,
                    self.recipe.seed,
                    out=self.folder / "search",
                    tighten=factors,
                    progress=self.progress,
                    **section.options,
                )
            except Infeasible as error:
                if not factors:
                    raise
                raise self._unreachable(error) from error
            over = self._measured_over(found)
            if not over:
                found.save(self.folder / "search.json")
                write_json(self.folder / "architecture.json", found.architecture.to_json())
                again = f" after {number} rounds" if number > 1 else ""
                return f"{found.method} found {found.accuracy:.1%}, measured within budget{again}"
            for name, share in over.items():
                factors[name] = factors.get(name, 1.0) * _BACK_OFF / share
                self._say(f"search: measured at {share:.1%} of its {name} limit; tightened to {factors[name]:.1%}")
        raise self._unreachable(None)

    def _measured_over(self, found: SearchResult) -> dict[str, float]:
        """Limits the network breaks as measured, with the share of the limit it takes. Weights do not matter to time."""
        trial = self.folder / "search" / "trial.json"
        network = build(found.architecture, self.space).eval()
        try:
            certify(
                network,
                self.promised,
                self.device if self._timed else None,
                batch=self.recipe.measure.batch,
                tables=self.tables,
                out=trial,
                progress=self.progress,
            )
        except BudgetExceeded:
            return _over(trial)
        return {}

    def _unreachable(self, error: Infeasible | None) -> BudgetExceeded:
        lines = read_certificate(self.folder / "search" / "trial.json")["budgets"]
        measured = ", ".join(f"{n} {show(line['interval'][1], n)}" for n, line in lines.items() if not line["fits"])
        told = "" if error is None else " (nothing smaller is left in the space)"
        return BudgetExceeded(
            f"a network of space {self.space.name!r} must be measured within {self.promised}{told}",
            value=f"at best {measured}",
            remedy="Raise the budget to that, or add smaller choices to the space.",
        )

    def _front_resource(self) -> str:
        return next((n for n in self.budget if resource(n).name == "latency"), next(iter(self.budget)))

    def _front_points(self, *, explore: bool) -> list[FrontPoint]:
        return front(
            self.supernet,
            self.data,
            self.tables,
            self._front_resource(),
            self.recipe.search.front,
            seed=self.recipe.seed,
            out=self.folder / "search",
            explore=explore,
            progress=self.progress,
        )

    def _front(self) -> None:
        points = self.recipe.search.front
        if not points:
            return
        name = self._front_resource()

        def work() -> str:
            rows = as_rows(self._front_points(explore=False))
            write_json(self.folder / "front.json", {"resource": name, "unit": resource(name).unit, "points": rows})
            return f"{len(rows)} networks along {name}"

        inputs = [self.step_cache.hash_of("supernet.safetensors"), name, points, self.recipe.seed]
        inputs += [self.step_cache.hash_of("search.json")]
        inputs += [self.step_cache.hash_of("table.json")] if self._timed else []
        self.step_cache.step("front", inputs, ["front.json"], work)

    @cached_property
    def found(self) -> SearchResult:
        return load_result(self.folder / "search.json", self.space)

    def _finetune(self) -> None:
        section = self.recipe.finetune
        inputs = [self.step_cache.hash_of("architecture.json"), self.step_cache.hash_of("supernet.safetensors")]
        inputs.append(section.model_dump_json())

        def work() -> str:
            reached = finetuned(
                self.supernet,
                self.data,
                self.found.architecture,
                section,
                self.folder,
                seed=self.recipe.seed,
                channels_last=self.recipe.train.channels_last,
                threads=self.threads,
                progress=self.progress,
                budget=self.promised.to_json(),
            )
            return in_words(reached)

        self.step_cache.step("finetune", inputs, ["network.safetensors", "accuracy.json"], work)

    def _export(self) -> None:
        inputs = [self.step_cache.hash_of("network.safetensors"), self.promised.to_json()]
        inputs += [self.device.fingerprint()] if self._timed else []
        files = ["network.onnx", "network.pt2", "certificate.json"]
        self.step_cache.step("export and certify", inputs, files, self._certified_file)

    def _certified_file(self) -> str:
        """The file is certified, then the certificate's hash goes into its metadata: the weights stay what they are."""
        network = load(self.folder / "network.safetensors")
        images = next(self.data.batches("test", 8))[0]
        path = self.folder / "network.onnx"
        card = card_of(self.data, self.supernet, self.found.architecture, self.promised.to_json())
        export(network, path, card=card, images=images, program=self.folder / "network.pt2")
        made = certify(
            path,
            self.promised,
            self.device if self._timed else None,
            batch=self.recipe.measure.batch,
            tables=self.tables,
            plan=network.plan,
            out=self.folder / "certificate.json",
            progress=self.progress,
        )
        stamp(path, certificate_sha256=read_certificate(self.folder / "certificate.json")["sha256"])
        told = (f"{line.name} {show(line.measured, line.name)} of {show(line.limit, line.name)}" for line in made.lines)
        return "; ".join(told)

    def _report(self) -> None:
        from snugnet.reporting import build_report

        inputs = [self.step_cache.hash_of(f) for f in ("search.json", "certificate.json", "network.safetensors")]

        def work() -> str:
            build_report(self.folder, space=self.space)
            return "a page to look at"

        self.step_cache.step("report", inputs, ["report.html"], work)

    def _facts(self) -> dict[str, Any]:
        certificate = read_certificate(self.folder / "certificate.json")
        return {
            "run": str(self.folder),
            "network": str(self.folder / "network.onnx"),
            "certificate": str(self.folder / "certificate.json"),
            "report": str(self.folder / "report.html"),
            "fits": certificate["fits"],
            "budgets": certificate["budgets"],
            "architecture": str(self.found.architecture),
            "seconds": self.step_cache.seconds,
        }


def _over(certificate: Path) -> dict[str, float]:
    """Limits that a network breaks as measured, with the share of the limit it takes."""
    lines = read_certificate(certificate)["budgets"]
    return {n: line["interval"][1] / line["limit"] for n, line in lines.items() if not line["fits"]}


_WRITTEN: Mapping[str, str] = {"latency": "ms", "macs": "MACs", "params": "params", "model_size": "B", "memory": "B"}
