"""`many`: one trained super-network, N budgets or devices, N certified networks, and a page that compares them.

    sn.many("runs/digits", {"small": {"params": "40%"}, "large": {"params": "80%"}}, executor=executor)

Every budget has a folder of its own, RUN/many/NAME, which is a run folder like any other. Searches, fine-tuning and exports
are tasks (`fitting.tasks`) for any executor. What a budget comes to depends neither on the order of budgets nor on who
computes: all begin with the same evidence, what the run knew when `many` was first called (RUN/many/_evidence), and none
sees what another one evaluates while it searches. When all have searched, every network that any of them evaluated competes
for every budget it fits (RUN/many/_settled), so no larger budget gets a network that a smaller one has beaten. Only what is
measured differs from time to time. Devices are timed by this process, one at a time, while no task runs (`Turns`); before
there are any tasks, tables of boards are measured side by side (`costs.measure_many`). A budget that fails does not stop the
others; the same call goes on with what is missing.
"""

from __future__ import annotations

import itertools
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, final

import torch
import yaml
from pydantic import Field, ValidationError

from snugnet.costs.measure_many import place_by_place
from snugnet.deploy.card import read_certificate
from snugnet.devices.device import Device
from snugnet.errors import BadInput, explained
from snugnet.executors import Shared, share
from snugnet.fitting.pipeline import First, Pipeline
from snugnet.fitting.places import referred, table_file
from snugnet.fitting.recipe import MeasureSection, Recipe, Section, read
from snugnet.fitting.runs import Run, init_run, open_run
from snugnet.fitting.tasks import Parts, begin_task, settle_task
from snugnet.fitting.work import SplitWork, Turns, Work
from snugnet.progress import NullProgress, Progress
from snugnet.reporting.comparison import comparison_page
from snugnet.store import (
    Say,
    StepCache,
    fingerprint,
    parse_yaml,
    read_bytes,
    read_json,
    read_text,
    sha256,
    write_json,
    write_text,
)

T = TypeVar("T")
_EVIDENCE, _SETTLED = "_evidence", "_settled"
_FIRST = "first"  # in a budget's folder: its own search, before all competed
_KNOWLEDGE = ("evaluations.jsonl", "prior.json", "worths.json")  # what searches of a run leave for later ones
_LINKED = ("supernet.safetensors", "teacher.safetensors")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class BudgetFile(Section):
    """budgets.yaml: limits by name, and devices for their labels, as in a recipe."""

    budgets: dict[str, dict[str, str | int | float | dict[str, str]]] = Field(min_length=1)
    devices: dict[str, MeasureSection] = Field(default_factory=dict)


@final
@dataclass(frozen=True, kw_only=True)
class ManyResult:
    """`rows`: a budget each, in their order: what it came to, or why it failed (`error`)."""

    folder: Path
    page: Path
    rows: list[dict[str, Any]]

    @property
    def failed(self) -> list[str]:
        return [row["name"] for row in self.rows if "error" in row]

    def to_json(self) -> dict[str, Any]:
        return {"many": str(self.folder), "page": str(self.page), "failed": self.failed, "budgets": self.rows}


def read_budgets(path: str | Path) -> BudgetFile:
    return as_budgets(parse_yaml(read_text(path), str(path)), str(path))


def as_budgets(value: Any, origin: str) -> BudgetFile:
    """Budgets by name, checked; names become folders."""
    try:
        file = BudgetFile.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"][:3])) or "its content"
        raise BadInput(
            f"{origin}: {place}: {first['msg'][:1].lower() + first['msg'][1:]}",
            value=first["input"],
            remedy="Write `budgets: {small: {params: 40%}, large: {latency: 5ms}}`, and `devices:` as in a recipe.",
        ) from error
    for name in file.budgets:
        if not _NAME.fullmatch(name):
            raise BadInput(
                "the name of a budget must be letters, digits, '.', '_' and '-', a letter or digit first",
                value=name,
                remedy="It becomes a folder: call it small or pixel-8.",
            )
    return file


def many(
    folder: str | Path,
    budgets: Mapping[str, Mapping[str, Any]] | BudgetFile,
    *,
    devices: Mapping[str, Mapping[str, Any]] | None = None,
    executor: Executor | None = None,
    finetune: bool = False,
    threads: int = 1,
    say: Say = lambda _: None,
    progress: Progress | None = None,
) -> ManyResult:
    """A certified network of the run in `folder` for every one of `budgets`, by name.

    `devices`: where labelled limits (`latency@phone`) are measured. `executor`: who searches and fine-tunes; its workers
    must see `folder`. `finetune`: train every network as the run's recipe says; else it has the super-network's weights.
    `threads`: of every computation; other numbers give other last bits, and so perhaps other networks."""
    file = budgets
    if not isinstance(file, BudgetFile):
        file = as_budgets({"budgets": budgets, "devices": devices or {}}, "budgets")
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return _Many(Path(folder), file, executor, finetune, say, progress or NullProgress()).run()
    finally:
        torch.set_num_threads(before)


class _Many:
    def __init__(
        self, folder: Path, file: BudgetFile, executor: Executor | None, finetune: bool, say: Say, progress: Progress
    ) -> None:
        self.folder, self.file, self.executor, self.say, self.progress = folder, file, executor, say, progress
        self.finetune, self.home = finetune, folder / "many"
        self.opened: Run = open_run(folder)
        self.turns = Turns()
        self.work = Work() if executor is None else SplitWork(executor, self.turns)
        self.parts: Shared[Parts] = share(executor, Parts(supernet=self.opened.supernet, data=self.opened.data))
        self.rows: dict[str, dict[str, Any]] = {}
        self.seconds: dict[str, float] = {}

    def run(self) -> ManyResult:
        wholes, pipelines = {}, {}
        for name in self.file.budgets:
            with self._guarded(name):
                wholes[name] = self._whole(name)
        failures = self._measure(wholes)
        for name, whole in wholes.items():
            with self._guarded(name):
                pipelines[name] = self._prepared(name, whole, failures)
        if pipelines:
            evidence = self._evidence(next(iter(pipelines.values())))
            first = self._first(pipelines, evidence)
            left = {name: pipelines[name] for name in first}
            if left and self._settle(left, first, evidence):
                self._all("train and certify", {name: self._task(name, one) for name, one in left.items()})
        rows = [self.rows[name] | {"seconds": round(self.seconds.get(name, 0.0), 1)} for name in self.file.budgets]
        page = self.home / "index.html"
        write_json(self.home / "many.json", {"run": str(self.folder), "budgets": rows})
        write_text(page, comparison_page(self.opened.recipe.name, rows))
        return ManyResult(folder=self.home, page=page, rows=rows)

    @contextmanager
    def _guarded(self, name: str) -> Iterator[None]:
        """Whatever goes wrong with one budget is written down beside it."""
        try:
            yield
        except Exception as error:
            text = explained(error)
            self.rows[name] = {"name": name, "budget": self._limits(name), "error": text}
            self.say(f"{name}: {text}")

    def _limits(self, name: str) -> dict[str, Any]:
        return dict(self.file.budgets[name])

    def _recipe(self, name: str) -> Recipe:
        """The run's recipe with this budget."""
        value = self.opened.recipe.resolved()
        value |= {"budget": self._limits(name)}
        value["devices"].update({label: part.model_dump() for label, part in self.file.devices.items()})
        value["search"]["front"] = 0
        value["finetune"]["run_seconds"] = None  # a time for one network, not for many side by side
        if not self.finetune:
            value["finetune"] |= {"epochs": 0, "scratch": False}
        return read(yaml.safe_dump(value, sort_keys=False), origin=f"budget {name}")

    def _options(self, name: str) -> dict[str, Any]:
        return {"say": lambda line: self.say(f"{name}: {line}"), "data": self.opened.data}

    def _whole(self, name: str) -> Pipeline:
        """The run with this budget: what is measured for it stays in the run's own folder."""
        return Pipeline(self._recipe(name), self.folder, progress=self.progress, **self._options(name))

    def _measure(self, wholes: Mapping[str, Pipeline]) -> dict[str, Exception]:
        """Tables that the run has not, each measured once, boards side by side; what failed, by limit."""
        asking: dict[str, Pipeline] = {}  # for each limit the first budget that has it
        devices: dict[str, Device] = {}
        failures: dict[str, Exception] = {}
        for whole in wholes.values():
            for limit in whole.costs.places:
                if not (self.folder / table_file(limit)).exists():
                    asking.setdefault(limit, whole)
        for limit, first in asking.items():
            try:
                devices[limit] = first.costs.device(limit)
            except Exception as error:
                failures[limit] = error

        def work(limit: str, by: Executor | None) -> None:
            asking[limit].costs.measure_table(limit, by)

        _, failed = place_by_place(devices, work, self.executor, self.progress)
        return failures | failed

    def _prepared(self, name: str, whole: Pipeline, failures: Mapping[str, Exception]) -> Pipeline:
        """The budget's folder with all a search needs, or a refusal."""
        recipe, home = whole.recipe, self.home / name
        for limit in whole.costs.places:
            if limit in failures:
                raise failures[limit]
        if recipe.start is not None and any(whole.costs.budget.is_relative(limit) for limit in whole.costs.places):
            path = self.folder / "reference.json"
            if not path.exists() or not set(whole.costs.places) <= set(read_json(path)):
                whole.costs.refer_to_start()
            budget = referred(whole.costs.budget, read_json(path)).to_json()
            recipe = recipe.model_copy(update={"budget": budget})
        home.mkdir(parents=True, exist_ok=True)
        init_run(home, recipe)
        for file in [*_LINKED, *map(table_file, whole.costs.places)]:
            _link(self.folder / file, home / file)
        shared: dict[str, Any] = {"work": self.work, "parts": self.parts, "threads": None}
        pipeline = Pipeline(recipe, home, progress=NullProgress(), **self._options(name), **shared)
        _ = pipeline.costs.promised  # refuses what is impossible
        return pipeline

    def _evidence(self, pipeline: Pipeline) -> Path:
        """What every budget begins with: what the run knew when this was first asked for, what its method learns once."""
        home, recipe = self.home / _EVIDENCE, self.opened.recipe

        def work() -> str:
            shutil.rmtree(home, ignore_errors=True)
            home.mkdir(parents=True)
            for file in _KNOWLEDGE:
                if (self.folder / "search" / file).exists():
                    shutil.copy(self.folder / "search" / file, home / file)
            self.work.compute(begin_task, self.parts, pipeline.goal, home, NullProgress())
            return "what all budgets begin with"

        weights = sha256((self.folder / "supernet.safetensors").read_bytes())
        inputs = [weights, recipe.search.model_dump(exclude={"front", "rounds"}), recipe.seed, recipe.data.model_dump()]
        steps = StepCache(self.home, self.say)
        steps.step("evidence", inputs, [f"{_EVIDENCE}/evaluations.jsonl"], work)
        write_text(home / "of", fingerprint(inputs))
        return home

    def _first(self, pipelines: Mapping[str, Pipeline], evidence: Path) -> dict[str, First]:
        """Every budget's own search, by name."""
        found: dict[str, First] = {}

        def task(name: str, pipeline: Pipeline) -> None:
            folder = pipeline.folder / _FIRST
            _begin_with(evidence, folder, fingerprint([read_text(evidence / "of"), pipeline.search_inputs()]))
            found[name] = pipeline.first_search(folder)

        self._all("search", {name: partial(task, name, pipeline) for name, pipeline in pipelines.items()})
        return {name: found[name] for name in pipelines if name in found}

    def _settle(self, pipelines: Mapping[str, Pipeline], first: Mapping[str, First], evidence: Path) -> bool:
        """What any budget evaluated, as evidence for all. What goes wrong here concerns all, and is told of each: False."""
        try:
            self._settled(pipelines, first, evidence)
            return True
        except Exception as error:
            for name in pipelines:
                with self._guarded(name):
                    raise error
            return False

    def _settled(self, pipelines: Mapping[str, Pipeline], first: Mapping[str, First], evidence: Path) -> None:
        """In the order of the budgets' names, for theirs must not matter."""
        home, names = self.home / _SETTLED, sorted(pipelines)
        sources = [pipelines[name].folder / _FIRST for name in names]

        def work() -> str:
            goals = [(pipelines[name].goal, first[name].factors) for name in names]
            self.work.compute(settle_task, self.parts, goals, evidence, sources, home)
            return "all that was evaluated competes"

        inputs = [
            [pipelines[name].search_inputs(), first[name].factors, sha256(read_bytes(source / "evaluations.jsonl"))]
            for name, source in zip(names, sources)
        ]
        inputs.append([read_text(evidence / "of")])
        StepCache(self.home, self.say).step("settle", inputs, [f"{_SETTLED}/evaluations.jsonl"], work)
        for name, pipeline in pipelines.items():
            _begin_with(home, pipeline.folder / "search", fingerprint(inputs))
            pipeline.settle(fingerprint(inputs), first[name])

    def _task(self, name: str, pipeline: Pipeline) -> Callable[[], None]:
        def work() -> None:
            pipeline.until_shipped()
            self.rows[name] = _row(name, pipeline)

        return work

    def _all(self, what: str, tasks: Mapping[str, Callable[[], None]]) -> None:
        """One after the other here; side by side where somebody else computes."""
        ended = itertools.count(1)
        self.progress.start(f"{len(tasks)} budgets: {what}", len(tasks))

        def guarded(name: str) -> None:
            began = time.monotonic()
            with self._guarded(name), self.turns.working():
                tasks[name]()
            self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - began
            failed = self.rows.get(name, {}).get("error")
            self.progress.update(next(ended), f"{name}: {'failed' if failed else 'done'}")

        if self.executor is None:
            for name in tasks:
                guarded(name)
        else:
            # Not a pool: its end would wait for tasks that an interrupted call has no use for.
            threads = [threading.Thread(target=guarded, args=(name,), name=name, daemon=True) for name in tasks]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        self.progress.stop()


def _begin_with(evidence: Path, search: Path, identity: str) -> None:
    """A search folder with the evidence in it; one that began as the same search (`identity`) goes on."""
    if (search / "of").exists() and read_text(search / "of") == identity:
        return
    fresh = search.with_name(f"{search.name}.new")
    for old in (fresh, search):
        shutil.rmtree(old, ignore_errors=True)
    shutil.copytree(evidence, fresh)
    write_text(fresh / "of", identity)
    fresh.rename(search)


def _link(source: Path, target: Path) -> None:
    """A file of the run in a budget's folder, without a copy of it."""
    if not source.exists():
        return
    wanted = Path("../..") / source.name
    if target.is_symlink() and target.readlink() == wanted:
        return
    target.unlink(missing_ok=True)
    target.symlink_to(wanted)


def _row(name: str, pipeline: Pipeline) -> dict[str, Any]:
    """What a budget came to, from the files of its folder."""
    folder, result = pipeline.folder, pipeline.result
    lines = read_certificate(folder / "certificate.json")["budgets"]
    accuracy = read_json(folder / "accuracy.json")
    return {
        "name": name,
        "budget": pipeline.costs.budget.to_json(),
        "architecture": str(result.architecture),
        "score": result.score,
        "expected_score": result.details.get("expected_score", result.score),
        "searched_accuracy": result.accuracy,
        "accuracy": accuracy["test"],
        "val_accuracy": accuracy.get("val"),
        "fits": all(line["fits"] for line in lines.values()),
        "limits": {limit: line["limit"] for limit, line in lines.items()},
        "measured": {limit: line["measured"] for limit, line in lines.items()},
        "run": str(folder),
        "network": str(folder / "network.onnx"),
        "certificate": str(folder / "certificate.json"),
    }
