"""Search methods with equal numbers of evaluated networks: whose network is the best on images nobody chose by?

    python benchmarks/search.py --json [--sets digits,fashion-mnist,cifar10] [--seeds 0,1,2] [--counts 30,100]
                                       [--parts compare,together,regret,correlations] [--methods random,bcsfw,...]
                                       [--work FOLDER] [--earlier FILE] [--out FILE.json] [--quick]

For every data set a few super-networks of a thin space are trained from scratch, long enough that networks differ by more
than noise. At ten limits of MACs (exact, so no table takes part; most of them tight, where cost buys accuracy) every method
searches alone: it evaluates 30, then 100 different networks, not one more, and knows nothing of what others evaluated.
`together` is what a run does: the ten limits are asked of it one after the other, 30 new networks for each, and every
search knows what those before it evaluated, and chooses among that too. The order is drawn.
Every seed parts the images anew: to train with, to choose by (what methods see), to judge by; test images are looked at once
and decide nothing. Evaluations are remembered (a network's score is a number); they count all the same.

A part (data set, seed, count, method) is a file in --work: a killed run goes on, a changed method is run again alone.
With --earlier FILE the super-networks of an earlier result count too, where no method has changed since.
Errors of means are clustered twice, by distinct pair of networks and by super-network; the greater of the two is `error`.
Regret: all networks of a part of the space (1,728) are evaluated on the same images, and what is sought is the best by just
these: a problem without noise, of known answer. Every method is told that evaluations are exact. `regret` is what its
choice loses against the best within the limit. Correlations: prior, posterior without each network, and gradients,
against random networks.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from snugnet.budgets import cheapest, dearest, feasible, limits_of
from snugnet.costs.table import exact_table
from snugnet.data import load
from snugnet.data.dataset import Data, InMemory
from snugnet.evaluate.evaluator import Evaluator
from snugnet.evaluate.scoring import Score
from snugnet.nets import Supernet
from snugnet.progress import NullProgress
from snugnet.searching import Adaptive, Bcsfw, Evolution, Instant, Random, SearchMethod
from snugnet.searching.adaptive import Belief
from snugnet.searching.choice_effects import agreement, from_paths
from snugnet.searching.context import Task, search_context
from snugnet.searching.objective import RelaxedObjective, prepared
from snugnet.searching.prior import balanced_point, gradient, make_prior
from snugnet.searching.search import search
from snugnet.space import preset
from snugnet.space.architecture import Architecture, parse
from snugnet.space.layout import Layout
from snugnet.space.sampling import sample
from snugnet.store import read_json, write_json
from snugnet.training import methods, train
from snugnet.training.checkpoint import load_weights

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from brute_force import enumerate_choices
from search_summary import EXTRA, METHODS, markdown, regret_summary, summary

BUDGETS = 10
PART_IMAGES = 1500  # by which each network of an enumerated part is known
PART_CHOICES = ((11,), (1, 8, 11), (4, 7, 11), (3, 10, 11))  # of the twelve a block has, by stage
FW_STEPS = 60  # of 64 images each, beside the networks that count


@dataclass(frozen=True)
class Setting:
    """What is trained and judged on one data set; numbers of images, epochs of the two phases."""

    resolution: int
    train: int
    choose: int
    judge: int
    test: int
    epochs: tuple[int, int]
    batch: int = 64


SETTINGS = {
    "digits": Setting(16, 482, 480, 480, 355, (45, 90), 32),
    "fashion-mnist": Setting(20, 20000, 5000, 10000, 10000, (4, 8)),
    "cifar10": Setting(32, 20000, 5000, 10000, 10000, (4, 8)),
}
QUICK = Setting(16, 400, 64, 128, 128, (1, 1))


def contestants(count: int) -> dict[str, SearchMethod]:
    """Every method with room for more than `count` networks: the evaluator ends it at exactly so many."""
    evidence = 2 * count // 3
    return {
        "random": Random(networks=3 * count),
        "evolution": Evolution(population=16, rounds=4 * count, mutations=4, crossovers=3),
        "instant": Instant(evidence=evidence, most_evidence=evidence, enough=2.0, candidates=count),
        "bcsfw": Bcsfw(steps=FW_STEPS, candidates=count),
        EXTRA: Bcsfw(steps=Adaptive().passes, candidates=count),
        "adaptive": Adaptive(evaluations=count, further=count, stop_early=False),
    }


class Spent(Exception):
    """As many networks as allowed were evaluated."""


class Counted(Evaluator):
    """One method's evaluations: counted, ended at `most`, and looked up where another method paid the time before."""

    def __init__(self, shared: Evaluator, most: int, paid: Sequence[Architecture] = ()) -> None:
        super().__init__(
            shared.supernet, shared.data, limit=shared.first_images, closer=shared.first_images, cache=shared.cache
        )
        self.shared, self.most, self.met = shared, most, dict.fromkeys(paid)

    def _evaluate(self, architecture: Architecture, images: int) -> Score:
        if architecture not in self.met and len(self.met) == self.most:
            raise Spent
        self.met[architecture] = None
        return self.shared(architecture)


class Exact(Evaluator):
    """Scores of another evaluator, said to be exact: of a problem that consists of just these images."""

    def __init__(self, shared: Evaluator) -> None:
        count = shared.first_images
        super().__init__(shared.supernet, shared.data, limit=count, closer=count, cache=shared.cache)
        self.shared = shared

    def _evaluate(self, architecture: Architecture, images: int) -> Score:
        return replace(self.shared(architecture), error=0.0)


class Bench:
    """One trained super-network, its evaluators, and every method at every budget."""

    def __init__(self, name: str, seed: int, setting: Setting, work: Path) -> None:
        self.name, self.seed, self.setting, self.work = name, seed, setting, work
        self.data, self.judged = split(load(name, resolution=setting.resolution), setting, seed)
        self.supernet = self._trained()
        self.seen = self._evaluator("seen", self.data, setting.choose)
        self.judge = self._evaluator("judge", self.judged, setting.judge)
        self.test = self._evaluator("test", self.data, setting.test, part="test")

    def _trained(self) -> Supernet:
        path, space = (
            self.work / "supernet.safetensors",
            preset("hardcore-thin-lowres", resolution=self.setting.resolution),
        )
        space = replace(space, classes=self.data.classes)
        torch.manual_seed(self.seed)
        supernet = Supernet(space)
        if not path.exists():
            first, second = self.setting.epochs
            plain: dict[str, Any] = {"lr": 0.1, "mixup": 0.0, "auto_augment": None, "crop_padding": 1}
            phases = [
                methods.largest(epochs=first, warmup_epochs=0.5, se_bias_init=True, **plain),
                methods.multipath(epochs=second, inherit_kernels=True, curriculum_epochs=1, **plain),
            ]
            began = time.process_time()
            train(
                supernet, self.data, phases, out=self.work, seed=self.seed, batch=self.setting.batch, threads=1,
                device="cpu", channels_last=True, evaluator=None, trackers=(), checkpoint_seconds=1e9,
            )  # fmt: skip
            write_json(self.work / "trained.json", {"cpu_seconds": round(time.process_time() - began, 1)})
        supernet.load_state_dict(load_weights(path))
        return supernet.eval()

    def _evaluator(
        self, kind: str, data: Data, images: int, *, part: str = "val", of: Supernet | None = None
    ) -> Evaluator:
        memory = self.work / f"{kind}.jsonl"
        return Evaluator(of or self.supernet, data, split=part, limit=images, closer=images, memory=memory)

    def part(self, kind: str, make: Callable[[], Any]) -> Any:
        """A part of the results, from its file or made now."""
        path = self.work / f"{kind}.json"
        if not path.exists():
            began = time.process_time()
            rows, seconds = make(), round(time.process_time() - began, 1)
            write_json(path, {"rows": rows, "cpu_seconds": seconds})
            print(f"{self.name} seed {self.seed}: {kind}, {seconds:.0f} s of CPU", file=sys.stderr, flush=True)
        return read_json(path)["rows"]

    @cached_property
    def budgets(self) -> list[dict[str, str]]:
        return macs_budgets(self.supernet)

    def compare(self, count: int, name: str) -> list[dict[str, Any]]:
        """A row per budget: the network that a method chose, and how good that is."""
        rows, method = [], contestants(count)[name]
        with tempfile.TemporaryDirectory() as home:
            contest = Contest(self.supernet, self.data, self.seen, method, count, Path(home))
            for number, budget in enumerate(self.budgets):
                chosen, counted = contest.run(budget, seed=self.seed)
                assert 0 < len(counted.met) <= count, "equal effort: no method may evaluate more"
                rows.append({**self._row(name, number, chosen, len(counted.met)), "met": list(map(str, counted.met))})
        return rows

    def together(self, count: int, name: str) -> list[dict[str, Any]]:
        """The same where the limits are asked of one run, one after the other in an order of the seed's: every search knows
        all that those before it evaluated, and chooses among it too."""
        order = np.random.default_rng(self.seed).permutation(BUDGETS).tolist()
        rows, known = [], list[Architecture]()
        if name != "adaptive":  # does not learn from what it has not asked for: what it evaluates is what it did alone
            alone = {row["budget"]: row["met"] for row in self.part(f"compare-{count}-{name}", list)}
            for number in order:
                known += [parse(text, self.supernet.space) for text in alone[number]]
                limits = limits_of(self.supernet.space, [], self.budgets[number])
                chosen = max((a for a in dict.fromkeys(known) if limits.fits(a)), key=lambda a: self.seen(a).score)
                rows.append(self._row(name, number, chosen, len(alone[number])))
            return rows
        counted = Counted(self.seen, 0)
        with tempfile.TemporaryDirectory() as home:
            for number in order:
                before = len(counted.met)
                counted.most = before + count
                chosen = search(
                    self.supernet, self.data, [], self.budgets[number], contestants(count)[name], self.seed,
                    evaluator=counted, out=Path(home),
                ).architecture  # fmt: skip
                rows.append(self._row(name, number, chosen, len(counted.met) - before))
        return rows

    def _row(self, name: str, number: int, chosen: Architecture, evaluated: int) -> dict[str, Any]:
        judged, tested, budget = self.judge(chosen), self.test(chosen), self.budgets[number]
        return {
            "method": name,
            "budget": number,
            "macs": budget["macs"],
            "network": str(chosen),
            "evaluated": evaluated,
            "fits": bool(limits_of(self.supernet.space, [], budget).fits(chosen)),
            "seen_score": self.seen(chosen).score,
            "score": judged.score,
            "accuracy": judged.accuracy,
            "test_accuracy": tested.accuracy,
        }

    def regret(self, counts: Sequence[int], repeats: int) -> dict[str, Any]:
        """What each method loses against the best of all networks of a part of the space, exactly."""
        part = part_of(self.supernet)
        everything = feasible(part.space, [], {})
        networks = [everything.architecture(choice) for choice in enumerate_choices(everything.problem)]
        networks.sort(key=str)  # neighbours share their first blocks, which are then run once
        images = min(self.setting.choose, PART_IMAGES)
        known = Exact(self._evaluator("part", self.data, images, of=part))
        values = {a: known(a).score for a in networks}
        told: dict[str, Any] = {
            "networks": len(networks),
            "images": images,
            "deviation": float(np.std(list(values.values()))),
        }
        for count in counts:
            for name, method in contestants(count).items():
                lost: list[float] = []
                for seed in range(repeats):
                    with tempfile.TemporaryDirectory() as home:
                        contest = Contest(part, self.data, known, method, count, Path(home))
                        for budget in macs_budgets(part):
                            limits = limits_of(part.space, [], budget)
                            best = max(value for a, value in values.items() if limits.fits(a))
                            lost.append(best - values[contest.run(budget, seed=seed)[0]])
                told[f"{name} {count}"] = {"regret": float(np.mean(lost)), "regrets": [round(x, 5) for x in lost]}
        return told

    def correlations(self, networks: int) -> dict[str, Any]:
        """Of linear models with the scores of random networks: gradients, path regression, prior, posterior."""
        space, rng = self.supernet.space, np.random.default_rng(self.seed)
        drawn = list(dict.fromkeys(sample(space, rng) for _ in range(networks)))
        seen, judged = (np.array([one(a).score for a in drawn]) for one in (self.seen, self.judge))
        task = Task(
            supernet=self.supernet, data=self.data, context=search_context(space, [], limits_of(space, [], {}).budget),
            evaluator=self.seen, seed=self.seed, folder=None, progress=NullProgress(), alone=True,
        )  # fmt: skip
        layout = Layout(space)
        rows = layout.features(layout.encode(drawn))
        told: dict[str, Any] = {"networks": len(drawn), "seen_with_judged": vars(agreement(seen, judged))}
        points = {"uniform": uniform_point(layout), "balanced": balanced_point(space)}
        with prepared(self.supernet):
            prior, _ = make_prior(task, Adaptive().passes, Adaptive().batch)
            for where, point in points.items():
                for kind in ("sampled", "expected"):
                    for loss in ("plain", "calibrated"):
                        effects = gradient_effects(task, point, kind, calibrated=loss == "calibrated")
                        told[f"gradients {where} {kind} {loss}"] = vars(agreement(rows @ effects, judged))
            paths = from_paths(self.supernet, self.seen.cache, paths=12, limit=500, seed=self.seed).value
            told["path regression"] = vars(agreement(rows @ paths, judged))
        told["prior"] = vars(agreement(rows @ np.array(prior.effects), judged))
        for count in (30, networks):
            belief = Belief(space, prior)
            for network in drawn[:count]:
                belief.learn(network, self.seen(network))
            told[f"posterior left out {count}"] = vars(agreement(belief.model.posterior.left_out(), judged[:count]))
        return told


class Contest:
    """One method at several budgets: alone, counted, ended at its number of networks."""

    def __init__(
        self, supernet: Supernet, data: Data, seen: Evaluator, method: SearchMethod, count: int, home: Path
    ) -> None:
        self.supernet, self.data, self.seen, self.method, self.count = supernet, data, seen, method, count
        self.folder = home / f"{method.name}-{count}"
        self.evidence: list[Architecture] = []

    def run(self, budget: dict[str, str], seed: int) -> tuple[Architecture, Counted]:
        """Its network and its evaluations. What `instant` learns is kept for the next budget, and counted there too."""
        counted = Counted(self.seen, self.count, self.evidence)
        keeps = isinstance(self.method, Instant | Adaptive)  # worths; the prior
        try:
            found = search(
                self.supernet, self.data, [], budget, self.method, seed, evaluator=counted, compete=False,
                out=self.folder if keeps else None,
            ).architecture  # fmt: skip
        except Spent:  # random, evolution and Frank-Wolfe take the best of what they evaluated
            limits = limits_of(self.supernet.space, [], budget)
            found = max((a for a in counted.met if limits.fits(a)), key=lambda a: counted(a).score)
        if isinstance(self.method, Instant) and not self.evidence:
            self.evidence = list(counted.met)[: self.method.evidence]
        return found, counted


def split(data: Data, setting: Setting, seed: int) -> tuple[Data, Data]:
    """Images to train with, to choose by and to test with; and the same with other held-out images, to judge by."""
    assert isinstance(data, InMemory)
    held = data.positions("train+val")
    held = held[torch.from_numpy(np.random.default_rng(seed).permutation(len(held)))]
    choose, judge, rest = (
        held[: setting.choose],
        held[setting.choose : setting.choose + setting.judge],
        held[setting.choose + setting.judge :][: setting.train],
    )
    index = {"train": rest.sort().values, "val": choose, "test": data.index["test"]}
    return replace(data, index=index), replace(data, index={**index, "val": judge})


def macs_budgets(supernet: Supernet) -> list[dict[str, str]]:
    table = exact_table(supernet.space, "macs")
    low, high = cheapest(supernet.space, table).cost, dearest(supernet.space, table).cost
    return [{"macs": f"{low + share * (high - low):.0f}MACs"} for share in np.geomspace(0.04, 0.6, BUDGETS)]


def part_of(supernet: Supernet) -> Supernet:
    """The same weights with few choices a block and depths up to 2 left: so few networks that all can be evaluated."""
    kept, picks = [], iter(PART_CHOICES)
    for stage in supernet.space.stages:
        if len(stage.choices) > 1:
            pick = next(picks)
            depths = stage.depths[: min(2, len(pick))]
            stage = replace(stage, choices=tuple(stage.choices[i] for i in pick), depths=depths)
        kept.append(stage)
    part = Supernet(replace(supernet.space, stages=tuple(kept)))
    weights = supernet.state_dict()
    part.load_state_dict({name: weights[name] for name in part.state_dict()})
    return part.eval()


def uniform_point(layout: Layout) -> tuple[list[np.ndarray], list[np.ndarray]]:
    alpha = [np.full(n, 1.0 / n) for n in (len(layout.choices(*slot)) for slot in layout.slots)]
    return alpha, [np.full(len(stage.depths), 1.0 / len(stage.depths)) for stage in layout.space.stages]


def gradient_effects(task: Task, point: Any, kind: Any, *, calibrated: bool, passes: int = 16) -> np.ndarray:
    """Effects of columns by the gradient at a point, of logits as they are or at their best scale."""
    objective = RelaxedObjective(task.supernet, task.evaluator.cache, batch=64, kind=kind, seed=task.seed)
    return gradient(objective, Layout(task.supernet.space), point, passes, calibrated=calibrated)[1]


def kinds(counts: Sequence[int]) -> dict[str, int | str]:
    """Parts of the comparison, and what stands under `count` in their rows."""
    alone: dict[str, int | str] = {f"compare-{count}": count for count in counts}
    return alone | {f"together-{counts[0]}": f"{counts[0]} together"}


def collected(
    work: Path, sets: Sequence[str], seeds: Sequence[int], counts: Sequence[int], settings: Any, earlier: Path | None
) -> dict[str, Any]:
    """All parts that are finished, and what they come to; by themselves, and with those of an earlier file."""
    rows, regrets, correlations, done = [], {}, {}, []
    before = {} if earlier is None else read_json(earlier)
    for name in sets:
        for seed in seeds:
            home = work / f"{name}-{seed}"
            for kind, label in kinds(counts).items():
                paths = [home / f"{kind}-{method}.json" for method in (*METHODS, EXTRA)]
                found = [row for path in paths if path.exists() for row in read_json(path)["rows"]]
                if any(row["method"] == "adaptive" for row in found):
                    done.append(f"{name} {seed} {label}: {', '.join(dict.fromkeys(row['method'] for row in found))}")
                    kept = [{field: value for field, value in row.items() if field != "met"} for row in found]
                    rows += [{"set": name, "seed": seed, "count": label, **row} for row in kept]
            for kind, parts in (("regret", regrets), ("correlations", correlations)):
                if (path := home / f"{kind}.json").exists():
                    parts[f"{name} {seed}"] = read_json(path)["rows"]
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "about": "Space hardcore-thin-lowres; limits of MACs (exact); scores are accuracy minus calibrated loss.",
        "settings": {name: vars(settings[name]) for name in sets},
        "frank_wolfe_steps": FW_STEPS,
        "finished": done,
        "summary": summary([*before.get("rows", []), *rows], list(kinds(counts).values())),
        "summary_of_new_alone": summary(rows, list(kinds(counts).values())) if before else None,
        "earlier": None if earlier is None else earlier.name,
        "regret": regret_summary(before.get("regret_parts", {}) | regrets, counts[:1]),
        "regret_parts": before.get("regret_parts", {}) | regrets,
        "correlations": before.get("correlations", {}) | correlations,
        "rows": rows,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", default=",".join(SETTINGS))
    parser.add_argument("--seeds", default="0,1,2", help="Of the super-networks; a process may make some of them.")
    parser.add_argument("--counts", default="30,100")
    parser.add_argument(
        "--parts", default="compare,together,regret,correlations", help="What to make; regret for the first seed."
    )
    parser.add_argument(
        "--methods", default=",".join((*METHODS, EXTRA)), help="Of the comparison; the rest, another time."
    )
    parser.add_argument("--work", type=Path, default=Path("search-work"), help="Where finished parts lie.")
    parser.add_argument("--quick", action="store_true", help="Minutes instead of hours; the numbers mean nothing.")
    parser.add_argument("--earlier", type=Path, help="A result of other super-networks, summed up too.")
    parser.add_argument("--collect", action="store_true", help="Only sum up what is finished.")
    parser.add_argument("--json", action="store_true", help="Print everything as JSON; else tables.")
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    sets = chosen.sets.split(",")
    seeds, counts = ([int(word) for word in words.split(",")] for words in (chosen.seeds, chosen.counts))
    settings = dict.fromkeys(SETTINGS, QUICK) if chosen.quick else SETTINGS
    if chosen.quick:
        sets, counts, seeds = sets[:1], [12], [0, 1]
    benches: dict[tuple[str, int], Bench] = {}
    numbers = list(map(str, counts)) if "compare" in chosen.parts else []
    others = [part for part in ("together", "regret", "correlations") if part in chosen.parts]
    for kind in () if chosen.collect else (*numbers[:1], *others, *numbers[1:]):
        for name in sets:
            for seed in seeds:
                if (name, seed) not in benches:
                    home = chosen.work / f"{name}-{seed}"
                    benches[name, seed] = Bench(name, seed, settings[name], home)
                bench = benches[name, seed]
                if kind == "correlations":
                    bench.part(kind, lambda b=bench: b.correlations(32 if chosen.quick else 100))
                elif kind == "together":
                    for method in chosen.methods.split(","):
                        bench.part(f"together-{counts[0]}-{method}", lambda b=bench, m=method: b.together(counts[0], m))
                elif kind != "regret":
                    for method in chosen.methods.split(","):
                        bench.part(f"compare-{kind}-{method}", lambda b=bench, n=int(kind), m=method: b.compare(n, m))
                elif seed == seeds[0]:
                    bench.part(kind, lambda b=bench: b.regret(counts[:1], 3))
    facts = collected(chosen.work, sets, seeds, counts, settings, chosen.earlier)
    if chosen.out is not None:
        write_json(chosen.out, facts)
    print(json.dumps(facts) if chosen.json else markdown(facts))


if __name__ == "__main__":
    main()
