#!/usr/bin/env python3
"""Eight bits: how much faster, how much less accurate, and whether they keep budgets that float32 cannot.

EfficientNet-Lite0 (ImageNet weights) fine-tuned on CIFAR-10, and networks found from it: for every budget (a share of the
whole network's float latency on ONNX Runtime at `--resolution`) one found with a float table and one found with an int8
table, each trained alike (benchmarks/trained.py). All are quantised as `snugnet export --int8` does it and judged on
the 10,000 test images, float and int8; all forms are timed on ONNX Runtime and OpenVINO in one interleaved run.

`networks`: the whole network and the three found in float. `int8_kept_budget`: per budget, whether the int8 network fits as
measured and is more accurate than every float network that was trained for this budget: the one a search found, and at the
`--rivals` nearest other resolutions the costliest one that fits as measured. Not every network of the space was
trained: "no" is certain, "yes" holds for these. Errors are of paired answers to the test images, not of training (one seed).

Finished parts are kept in `--work`: what is interrupted goes on where it was.
    pip install openvino
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import snugnet as sn
from snugnet.deploy.export import open_session, random_images, run_session
from snugnet.deploy.int8 import choose_scheme
from snugnet.devices import OnnxRuntime, OpenVino
from snugnet.devices.agent import processor, raised_priority
from snugnet.devices.timing import TimingSettings, time_subjects
from snugnet.space.sampling import sample
from snugnet.space.spec import plan
from trained import Bench, elastic, found_and_trained, table_of, taught

PRECISIONS = ("float32", "int8")
RATE = 0.02


def benches(asked: argparse.Namespace) -> dict[str, Bench]:
    """One per precision: they differ in the device that tables and budgets are measured on."""
    made = {}
    for precision in PRECISIONS:
        own = argparse.Namespace(**{**vars(asked), "work": asked.work / precision})
        own.work.mkdir(parents=True, exist_ok=True)
        made[precision] = Bench(own, asked.seed)
        made[precision].device = replace(made[precision].device, precision=precision)
    return made


def train_all(asked: argparse.Namespace) -> float:
    """Every network, trained and kept as a file with a row of facts; the whole network's float latency comes back."""
    by_precision = benches(asked)
    plain = by_precision["float32"]
    reference = asked.work / "reference.json"
    if not reference.exists():
        reference.write_text(json.dumps({"ms": plain.ms(plain.original(asked.resolution), asked.resolution)}))
    whole = float(json.loads(reference.read_text())["ms"])

    def original() -> Any:
        network = plain.original(asked.resolution)
        plain.train(network, asked.resolution, asked.steps, lr=RATE)
        return network

    _kept(asked, "whole", original, share=None, found="whole")
    for share in asked.budgets:
        for precision, bench in by_precision.items():
            work = functools.partial(_searched, bench, share * whole)
            _kept(asked, f"{precision}-{share:g}", work, share=share, found=precision)
        for architecture in _rivals(asked, plain, share, whole):
            name, work = f"rival-{share:g}-{architecture.resolution}", functools.partial(taught, plain, architecture)
            _kept(asked, name, work, share=share, found="rival")
    return whole


def _searched(bench: Bench, limit: float) -> Any:
    outcome = found_and_trained(bench, limit)
    return outcome["reason"] if isinstance(outcome, dict) else outcome[0]


def _kept(asked: argparse.Namespace, name: str, work: Any, **facts: Any) -> None:
    """The network that `work` gives in a file, unless it is there; a text says why there is none."""
    path = asked.work / f"{name}.json"
    if path.exists():
        return
    network = work()
    if isinstance(network, str):
        facts["reason"] = network
    else:
        sn.save(network.eval(), asked.work / f"{name}.safetensors")
    path.write_text(json.dumps(facts))
    print(f"{name}: {json.dumps(facts)}", file=sys.stderr, flush=True)


def _rivals(asked: argparse.Namespace, bench: Bench, share: float, whole: float) -> list[Any]:
    """At the resolutions nearest to the found one's, the costliest network that fits as measured."""
    kept, found = asked.work / f"rivals-{share:g}.json", asked.work / f"float32-{share:g}.safetensors"
    if not found.exists():
        return []
    supernet = elastic(bench)
    space = supernet.space
    rng = np.random.default_rng(0)
    every = {sample(space, rng) for _ in range(20 * space.count)}
    known = {str(architecture): architecture for architecture in every}
    if kept.exists():
        return [known[text] for text in json.loads(kept.read_text())]
    table, own = table_of(bench, supernet, "snugnet"), sn.load(found).plan.resolution
    chosen: list[Any] = []
    for side in sorted((r for r in space.resolutions if r != own), key=lambda r: (abs(r - own), r)):
        there = sorted(
            (a for a in every if a.resolution == side), key=lambda a: table.of_network(plan(a, space)), reverse=True
        )
        likely = [a for a in there if table.of_network(plan(a, space)) <= 1.05 * share * whole]
        for architecture in likely[:6]:
            if bench.ms(sn.extract(supernet, architecture), side) <= share * whole:
                chosen.append(architecture)
                break
        if len(chosen) == asked.rivals:
            break
    kept.write_text(json.dumps([str(architecture) for architecture in chosen]))
    return chosen


def quantise_all(asked: argparse.Namespace, whole: float) -> dict[str, dict[str, Any]]:
    """Every trained network in both forms, with its answers to the test images; one found for a budget in int8 within it."""
    bench = Bench(asked, asked.seed)
    rows: dict[str, dict[str, Any]] = {}
    for path in sorted(asked.work.glob("*.safetensors")):
        name, facts = path.stem, json.loads(path.with_suffix(".json").read_text())
        answers = path.with_suffix(".answers.pt")
        network = sn.load(path)
        if not answers.exists():
            data = bench.data(network.plan.resolution)
            sn.export(network, path.with_suffix(".onnx"))
            plain = path.with_suffix(".onnx").read_bytes()
            within = facts["share"] * whole if facts["found"] == "int8" else None
            choice = choose_scheme(plain, data, within=within, settings=TimingSettings(seconds=10.0))
            path.with_suffix(".int8.onnx").write_bytes(choice.graph)
            right = {"float32": _right(plain, data), "int8": _right(choice.graph, data)}
            torch.save(right | {"scheme": choice.scheme.name, "tried": choice.tried, "tried_ms": choice.ms}, answers)
            print(f"{name}: {choice.scheme.name}, {choice.tried}", file=sys.stderr, flush=True)
        about = {"resolution": network.plan.resolution, "blocks": [len(stage) for stage in network.plan.stages]}
        rows[name] = facts | about | torch.load(answers, weights_only=True)
    return rows


def _right(graph: bytes, data: Any) -> torch.Tensor:
    session = open_session(graph, "the graph")
    parts = [
        run_session(session, images.contiguous()).argmax(1) == labels for images, labels in data.batches("test", 50)
    ]
    return torch.cat(parts)


def time_all(asked: argparse.Namespace, names: list[str]) -> dict[str, Any]:
    """Every form of every network, in the same shuffled passes: the estimate of each."""
    devices: list[Any] = [OnnxRuntime()] + ([OpenVino()] if importlib.util.find_spec("openvino") else [])
    subjects = {}
    with raised_priority(1):
        for name in names:
            graphs = {p: asked.work / f"{name}{'.int8' if p == 'int8' else ''}.onnx" for p in PRECISIONS}
            side = sn.load(asked.work / f"{name}.safetensors").plan.resolution
            for device in devices:
                for precision, graph in graphs.items():
                    here = replace(device, precision=precision)
                    subjects[name, device.name, precision] = (
                        here,
                        here.open(str(graph), random_images(1, (3, side, side))),
                    )
        by_text = {"|".join(key): value for key, value in subjects.items()}
        settings = TimingSettings(seconds=asked.time_seconds, tolerance=0.005, least_passes=60)
        timings = time_subjects(by_text, lambda s, n: s[0].time(s[1], n), settings)
    print(timings.message, file=sys.stderr)
    return {key: timings.estimates["|".join(key)] for key in subjects}


def summary(asked: argparse.Namespace, whole: float, rows: dict[str, Any], times: dict[Any, Any]) -> dict[str, Any]:
    runtimes = sorted({device for _, device, _ in times})

    def told(name: str) -> dict[str, Any]:
        row = rows[name]
        accuracy = {precision: float(row[precision].float().mean()) for precision in PRECISIONS}
        ms = {f"{d} {p}": times[name, d, p].ms for d in runtimes for p in PRECISIONS}
        ratio = {d: times[name, d, "int8"].ms / times[name, d, "float32"].ms for d in runtimes}
        return {
            "name": name,
            "resolution": row["resolution"],
            "blocks": row["blocks"],
            "accuracy": accuracy,
            "lost": accuracy["float32"] - accuracy["int8"],
            "lost_error": _paired_error(row["float32"], row["int8"]),
            "scheme": row["scheme"],
            "tried": row["tried"],
            "tried_ms": row["tried_ms"],
            "ms": ms,
            "ratio": ratio,
        }

    base = ["whole", *(f"float32-{share:g}" for share in asked.budgets)]
    return {
        "machine": processor(),
        "test_images": len(rows["whole"]["float32"]),
        "reference_ms": whole,
        "networks": [told(name) for name in base if name in rows],
        "int8_networks": [told(name) for name in rows if name.startswith("int8-")],
        "rivals": [told(name) for name in rows if name.startswith("rival-")],
        "int8_kept_budget": [_budget(asked, share, whole, rows, times) for share in asked.budgets],
    }


def _budget(asked: argparse.Namespace, share: float, whole: float, rows: Any, times: Any) -> dict[str, Any]:
    limit, name = share * whole, f"int8-{share:g}"
    if name not in rows:
        return {"share": share, "limit_ms": limit, "kept": False, "reason": "no int8 network fits"}
    ours, took = rows[name]["int8"], times[name, "onnxruntime", "int8"]
    floats = {n: r for n, r in rows.items() if r["found"] in ("whole", "float32", "rival", "int8")}
    # Any float network that was trained and fits as it was measured now, whatever budget it was trained for.
    fitting = {n: r["float32"] for n, r in floats.items() if times[n, "onnxruntime", "float32"].low <= limit}
    best = max(fitting, key=lambda n: float(fitting[n].float().mean()), default=None)
    facts = {"share": share, "limit_ms": limit, "network": name, "ms": took.ms, "high_ms": took.high,
             "accuracy": float(ours.float().mean()), "float_networks_tried": sorted(fitting)}  # fmt: skip
    if best is None:
        return facts | {"best_float": None, "kept": took.high <= limit}
    ahead = float(ours.float().mean() - fitting[best].float().mean())
    error = _paired_error(ours, fitting[best])
    facts |= {
        "best_float": best,
        "best_float_accuracy": float(fitting[best].float().mean()),
        "ahead": ahead,
        "error": error,
    }
    return facts | {"kept": took.high <= limit and ahead > 2 * error}


def _paired_error(ones: torch.Tensor, others: torch.Tensor) -> float:
    """Standard error of the difference of two accuracies on the same images."""
    return float((ones.float() - others.float()).std()) / math.sqrt(len(ones))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("runs/int8-benchmark"))
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument("--steps", type=int, default=20_000, help="image-steps of training per network")
    parser.add_argument("--resolution", type=int, default=64)
    parser.add_argument("--budgets", type=float, nargs="+", default=[0.7, 0.5, 0.35])
    parser.add_argument("--rivals", type=int, default=1, help="further float networks trained per budget")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--measure-seconds", type=float, default=60.0)
    parser.add_argument("--time-seconds", type=float, default=90.0)
    parser.add_argument(
        "--train", action=argparse.BooleanOptionalAction, default=True, help="--no-train: what is there"
    )
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    asked.threads, asked.design = 1, False
    torch.set_num_threads(1)
    asked.work.mkdir(parents=True, exist_ok=True)
    whole = train_all(asked) if asked.train else float(json.loads((asked.work / "reference.json").read_text())["ms"])
    rows = quantise_all(asked, whole)
    outcome = summary(asked, whole, rows, time_all(asked, list(rows)))
    print(json.dumps(outcome, indent=1) if asked.json else _text(outcome))


def _text(outcome: dict[str, Any]) -> str:
    lines = [
        f"{row['name']:14} {row['accuracy']['float32']:.2%} -> {row['accuracy']['int8']:.2%}  "
        + ", ".join(f"{runtime} {ratio:.2f}" for runtime, ratio in row["ratio"].items())
        for row in (*outcome["networks"], *outcome["int8_networks"], *outcome["rivals"])
    ]
    lines += [
        f"{row['limit_ms']:.4g} ms: {'kept' if row['kept'] else 'no'} {row}" for row in outcome["int8_kept_budget"]
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
