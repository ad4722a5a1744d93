"""A run folder as `snugnet run` leaves it, without the training: costs and effects are made up, everything else is real."""

import json
import math
from pathlib import Path

import numpy as np
import yaml

from snugnet.budgets import Budget, FeasibleSet, cheapest, dearest, feasible
from snugnet.costs.check import Check, CheckedNetwork
from snugnet.costs.table import CostTable, exact_table, save_table, space_id
from snugnet.deploy.card import Certificate, CertifiedNetwork, Line
from snugnet.searching.choice_effects import ChoiceEffects, Prediction
from snugnet.searching.front import FrontPoint
from snugnet.searching.result import SearchResult
from snugnet.solve import balanced_start, best_choice
from snugnet.space.architecture import Architecture
from snugnet.space.layout import Layout
from snugnet.space.reading import find_space
from snugnet.space.sampling import sample
from snugnet.space.space import SearchSpace
from snugnet.space.spec import plan
from snugnet.store import write_json, write_text

SPACE = "hardcore-lowres"
WIDTH = 0.5
MARGIN = 0.03
DEVICE = {
    "device": "onnxruntime",
    "processor": "Some CPU @ 2.1 GHz",
    "runtime": "onnxruntime 1.24",
    "threads": "1",
    "precision": "float32",
    "system": "Linux x86_64",
}
VERSIONS = {"snugnet": "0.1.0", "python": "3.11.2", "torch": "2.13.0"}


def made_up_space() -> SearchSpace:
    return find_space(SPACE, classes=10, resolution=32, width=WIDTH)


def drawn(space: SearchSpace, count: int, seed: int) -> list[Architecture]:
    rng = np.random.default_rng(seed)
    return [sample(space, rng) for _ in range(count)]


def made_up_table(space: SearchSpace) -> CostTable:
    """Milliseconds that grow with MACs, plus a little of everything else; a few whole networks beside them."""
    rng = np.random.default_rng(0)
    macs = exact_table(space, "macs")
    costs = {p: 2e-7 * macs.of_part(p) + 0.008 + 0.012 * rng.random() for p in Layout(space).distinct_specs()}
    alone = {part: (1.1 * cost, 1.08 * cost, 1.13 * cost) for part, cost in costs.items()}
    bare = CostTable(resource="latency", costs=costs)
    rows = []
    for architecture in drawn(space, 16, seed=1):
        predicted = bare.of_network(plan(architecture, space))
        measured = predicted * float(rng.normal(1, 0.01))
        low, high = measured * 0.99, measured * 1.01
        times = {"predicted_ms": predicted, "measured_ms": measured, "low_ms": low, "high_ms": high}
        rows.append({"architecture": str(architecture), **times})
    calibration = {"ratio": 0.91, "overhead_ms": 0.002, "edge_ms": 0.01, "margin": MARGIN, "residuals": [0.01, -0.01]}
    origin = {
        "kind": "measured",
        "space": space.name,
        "space_id": space_id(space),
        "source": SPACE,
        "classes": space.classes,
        "resolutions": list(space.resolutions),
        "batch": 1,
        "device": DEVICE,
        "date": "2026-03-02T10:20:30+00:00",
        "versions": VERSIONS,
        "passes": 41,
        "seconds": 88.2,
        "spread": 0.012,
        "score": "steady",
        "message": "41 passes, the machine was steady.",
        "calibration": calibration,
        "networks": rows,
    }
    return CostTable(resource="latency", costs=costs, origin=origin, isolated_ms=alone)


def made_up_effects(space: SearchSpace) -> ChoiceEffects:
    """Value grows with what a block computes, with noise; a deeper stage is a little better still."""
    rng = np.random.default_rng(2)
    effect = []
    for number, stage in enumerate(space.stages):
        for position in range(stage.max_depth):
            for choice in stage.choices:
                gain = math.log1p(choice.expand * choice.kernel) * (1 + 0.3 * number) / (1 + position)
                effect.append(0.012 * gain + 0.006 * bool(choice.se) - 0.006 * rng.normal())
    for stage in space.stages:
        effect += [0.01 * depth for depth in range(len(stage.depths))]
    prediction = Prediction(correlation=0.91, error=0.02, networks=48)
    value = np.array(effect)
    assert len(value) == Layout(space).columns
    doubt = np.full(len(value), 0.004)
    return ChoiceEffects(
        value=value,
        error=doubt,
        loss=-value / 2,
        loss_error=doubt,
        right=value / 2,
        right_error=doubt,
        paths=12,
        images=4000,
        prior=prediction,
        left_out=prediction,
    )


def accuracy_of(architecture: Architecture, space: SearchSpace, effects: ChoiceEffects) -> float:
    value = float(Layout(space).features(Layout(space).encode([architecture]))[0] @ effects.value)
    wobble = (sum(str(architecture).encode()) % 97) / 97 - 0.5
    return min(0.995, 0.80 + 0.16 * value + 0.004 * wobble)


def make_run(folder: Path, name: str = "made-up <run> & co") -> Path:
    """Write the whole folder."""
    space = made_up_space()
    table, effects = made_up_table(space), made_up_effects(space)
    folder.mkdir(parents=True, exist_ok=True)
    recipe = {"name": name, "about": "made up", "seed": 3, "data": {"name": "digits", "resolution": 32}}
    recipe |= {"space": {"name": SPACE, "width": WIDTH}, "train": {"batch": 128, "phases": [{"method": "multipath"}]}}
    write_text(folder / "recipe.yaml", yaml.safe_dump(recipe))
    save_table(table, folder / "table.json")
    _write_check(folder, space, table)
    _write_training(folder)
    low, high = cheapest(space, table).cost, dearest(space, table).cost
    limit = (low + 0.45 * (high - low)) * (1 + MARGIN)
    budget = Budget({"latency": f"{limit:.6g}ms", "params": "800k"})
    inside = feasible(space, table, budget)
    found = _search(inside, effects, budget)
    found.save(folder / "search.json")
    write_json(folder / "architecture.json", found.architecture.to_json())
    write_json(folder / "search" / "worths.json", {"of": "0", "evidence": 48, "worths": effects.to_json()})
    _write_evaluations(folder, space, effects)
    _write_front(folder, space, table, effects)
    write_json(folder / "accuracy.json", {"val": 0.978, "test": 0.9715, "architecture": str(found.architecture)})
    write_json(folder / "certificate.json", certificate(found, float(budget["latency"][:-2])).to_json())
    (folder / "network.onnx").write_bytes(b"not a network, but it has a hash")
    return folder


def certificate(found: SearchResult, limit: float) -> Certificate:
    ms = found.predicted["latency"] * 1.004
    params = found.predicted["params"]
    usual = {"median": ms, "p90": ms * 1.02, "passes": 60.0}
    timed = {"interval": (ms * 0.995, ms * 1.005), "slack": limit - ms * 1.005, "fits": ms * 1.005 <= limit}
    timed |= {"exact": False, "device": DEVICE, "while_measuring": usual, "statistic": "quiet"}
    counted = {"interval": (params, params), "slack": 8e5 - params, "fits": params <= 8e5, "exact": True}
    lines = (
        Line(name="latency", unit="ms", limit=limit, predicted=found.predicted["latency"], measured=ms, **timed),
        Line(name="params", unit="parameters", limit=8e5, predicted=params, measured=params, **counted),
    )
    about = {"name": "network.onnx", "form": "onnx", "weights_sha256": "ab" * 32}
    return Certificate(
        certificate=1,
        fits=all(line.fits for line in lines),
        network=CertifiedNetwork(architecture=str(found.architecture), **about),
        batch=1,
        input_shape=(1, 3, 32, 32),
        budgets={line.name: line for line in lines},
        date="2026-03-02T10:30:00+00:00",
        versions=VERSIONS,
        message="60 passes, the machine was steady.",
    )


def _search(inside: FeasibleSet, effects: ChoiceEffects, budget: Budget) -> SearchResult:
    best = best_choice(inside.problem, effects.values(inside)).value
    architecture, layout = inside.architecture(best), inside.left.layout
    accuracy = accuracy_of(architecture, inside.space, effects)
    start_alpha, start_beta = inside.spread(balanced_start(inside.problem).value)
    alpha, beta = inside.spread(inside.problem.point(best))
    details = {
        "alpha": layout.by_stage([(0.9 * a + 0.1 / len(a)).tolist() for a in alpha]),
        "beta": [b.tolist() for b in beta],
        "start_alpha": layout.by_stage([a.tolist() for a in start_alpha]),
        "start_beta": [b.tolist() for b in start_beta],
    }
    return SearchResult(
        method="bcsfw",
        seed=3,
        space=inside.space.name,
        budget=budget,
        architecture=architecture,
        predicted=inside.cost(architecture),
        limits=inside.limits.asked,
        effective_limits=inside.limits.effective,
        accuracy=accuracy,
        loss=1 - accuracy,
        score=2 * accuracy - 1,
        seconds=12.5,
        images=12800,
        evaluated=1,
        details=details,
    )


def _write_check(folder: Path, space: SearchSpace, table: CostTable) -> None:
    rng = np.random.default_rng(5)
    rows = []
    for architecture in drawn(space, 24, seed=5):
        predicted = table.of_network(plan(architecture, space))
        measured = predicted * float(rng.normal(1.005, 0.012))
        rows.append(
            CheckedNetwork(
                architecture=str(architecture),
                predicted=predicted,
                measured=measured,
                low=0.985 * measured,
                high=1.015 * measured,
            )
        )
    found = Check(
        r2=0.9967,
        ratio=0.996,
        worst_error=0.028,
        margin=0.026,
        speed=1.0,
        networks=tuple(rows),
        passes=30,
        message="30 passes.",
    )
    write_json(folder / "check.json", found.to_json())


def _write_training(folder: Path) -> None:
    rng = np.random.default_rng(6)
    lines = []
    for total in range(10, 1210, 10):
        phase = 0 if total <= 300 else 1
        place = {"phase": phase, "method": ("largest", "multipath")[phase], "total": total, "step": total}
        loss = 2.2 * math.exp(-total / 300) + 0.3 + 0.05 * rng.random()
        lines.append({**place, "loss": loss, "teacher_loss": 0.9 * loss, "lr": 0.1})
        if total % 100 == 0:
            share = 0.98 - 0.85 * math.exp(-total / 200)
            lines.append(
                {**place, "accuracy": {"largest": share, "smallest": share - 0.06, "<b>random</b>": share - 0.03}}
            )
    text = "".join(json.dumps(line) + "\n" for line in lines)
    write_text(folder / "train.jsonl", text)
    tuned = [{**line, "phase": 0, "method": "finetune"} for line in lines if line["total"] <= 200]
    write_text(folder / "finetune" / "ab12" / "train.jsonl", "".join(json.dumps(line) + "\n" for line in tuned))


def _write_evaluations(folder: Path, space: SearchSpace, effects: ChoiceEffects) -> None:
    lines = [json.dumps({"format": "snugnet-evaluations/1", "of": "0"})]
    for architecture in drawn(space, 60, seed=8):
        accuracy = accuracy_of(architecture, space, effects)
        lines.append(json.dumps({"network": str(architecture), "accuracy": accuracy, "loss": 1 - accuracy}))
    write_text(folder / "search" / "evaluations.jsonl", "\n".join(lines) + "\n")


def _write_front(folder: Path, space: SearchSpace, table: CostTable, effects: ChoiceEffects) -> None:
    low, high = cheapest(space, table).cost * (1 + MARGIN), dearest(space, table).cost * (1 + MARGIN)
    points = []
    for limit in np.linspace(low * 1.001, high, 9):
        budget = Budget({"latency": f"{limit:.9g}ms", "params": "80M"})
        found = _search(feasible(space, table, budget), effects, budget)
        points.append(FrontPoint(limit=float(limit), result=found).to_json())
    write_json(folder / "front.json", {"resource": "latency", "points": points})
