"""Small runs with fixed seeds whose outcome is kept: what a change of the house's inside must not change.

`python tests/golden/golden_runs.py --write` makes golden.json (weights as hashes and as norms: hashes hold on one machine
only, norms everywhere). `--compare` demands equal hashes too: for refactorings on the machine that wrote the file.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

import snugnet as sn
from snugnet.costs.calibrate import calibrate
from snugnet.costs.table import CostTable, exact_table
from snugnet.solve import balanced_start, best_choices, project
from snugnet.space import plan, sample
from snugnet.space.layout import Layout
from snugnet.store import sha256

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "solve")]
from random_problems import hardcore_shaped, random_point  # noqa: E402
from single_calls import best_alpha, frank_wolfe  # noqa: E402


def space():
    return sn.SearchSpace(
        name="golden",
        classes=10,
        resolutions=(8,),
        stem=sn.Stem(widths=(8,), stride=1),
        stages=(
            sn.Stage.of(8, depth=(1, 2), stride=2, kernels=(3, 5), expands=(1, 2), se=(0,)),
            sn.Stage.of(16, depth=(1, 3), stride=2, kernels=(3, 5), expands=(2, 3), se=(0, 0.25)),
        ),
        head=sn.Head(kind="conv-pool", widths=(32,)),
    )


def trained(batch=64):
    """Two phases with everything the loop has: augmentation, in-place distillation, averaging, channel sorting."""
    torch.manual_seed(0)
    supernet = sn.Supernet(space())
    data = sn.load_data("digits", resolution=8)
    calm = {"mixup": 0.0, "auto_augment": None}
    phases = [
        sn.methods.largest(epochs=2, lr=0.1, crop_padding=1, se_bias_init=True, ema=0.99, **calm),
        sn.methods.multipath(
            epochs=2,
            lr=0.1,
            sort_channels=True,
            inherit_kernels=True,
            distill=0.5,
            curriculum_epochs=1,
            ema=0.99,
            **calm,
        ),
    ]
    sn.train(supernet, data, phases, batch=batch, threads=1, evaluator=None, seed=3)
    return supernet.eval(), data


def kept_supernet():
    """The super-network of `trained`, as the machine that wrote golden.json trained it."""
    supernet = sn.Supernet(space())
    supernet.load_state_dict(load_file(HERE / "golden.safetensors"))
    return supernet.eval(), sn.load_data("digits", resolution=8)


def weights_of(module):
    state = {name: t.detach().cpu().contiguous() for name, t in sorted(module.state_dict().items())}
    digest = sha256(b"".join(name.encode() + t.numpy().tobytes() for name, t in state.items()))
    norms = {name: float(t.double().norm()) for name, t in state.items()}
    return {"sha256": digest, "norms": norms}


def recorded_latency(of):
    """A table calibrated on recorded timings: the recording is a formula, so that it needs no file."""
    parts = Layout(of).distinct_specs()
    rng = np.random.default_rng(7)
    macs = exact_table(of, "macs")
    alone = {part: 1e-6 * macs.of_part(part) + 0.01 + 0.005 * rng.random() for part in parts}
    networks = [plan(sample(of, rng), of) for _ in range(12)]
    measured = [1.07 * sum(alone[p] for p in n.parts) * rng.normal(1, 0.01) for n in networks]
    fit = calibrate(alone.__getitem__, networks, measured)
    costs = {part: fit.cost(part, alone[part]) for part in parts}
    return CostTable(resource="latency", costs=costs), fit


def searches(supernet, data):
    table, _ = recorded_latency(supernet.space)
    found = {}
    budget = {"latency": "70%", "params": "80%"}
    for method, options in (
        ("random", {"networks": 12}),
        ("evolution", {"population": 8, "rounds": 2, "mutations": 4, "crossovers": 4}),
    ):
        result = sn.search(supernet, data, table, budget, method, 5, **options)
        found[method] = {
            "architecture": str(result.architecture),
            "predicted": result.predicted,
            "accuracy": result.accuracy,
            "loss": result.loss,
        }
    return found


def solutions():
    rows = []
    for budgets, seed in ((1, 0), (2, 1), (3, 2)):
        problem, values = hardcore_shaped(budgets, seed)
        start = balanced_start(problem).value
        rng = np.random.default_rng(seed)
        point = random_point(problem, rng)
        goal = [rng.normal(size=n) for n in problem.slot_sizes]

        def gradient(point, block, goal=goal, problem=problem):
            if block == "alpha":
                return 0.0, [a - g for a, g in zip(point.alpha, goal)]
            return 0.0, [b - 0.5 for b in point.beta]

        walked = frank_wolfe(gradient, problem, start, steps=12, rng=np.random.default_rng(seed))[0].point
        found = best_choices(problem, values, count=3)
        rows.append(
            {
                "start_alpha": [a.tolist() for a in start.alpha],
                "start_beta": [b.tolist() for b in start.beta],
                "linear": _linear(problem, start, goal),
                "frank_wolfe_alpha": [a.tolist() for a in walked.alpha],
                "frank_wolfe_beta": [b.tolist() for b in walked.beta],
                "integer": [[list(c.options), list(c.depths)] for c in found.found],
                "integer_value": found.stats["value"],
                "projection": [list(x) for x in _both(project(problem, point).value)],
            }
        )
    return rows


def _linear(problem, start, goal):
    return [v.tolist() for v in best_alpha(problem, goal, start.beta).value]


def _both(choice):
    return choice.options, choice.depths


def tables():
    table, fit = recorded_latency(space())
    return {"costs": sorted(table.costs.values()), "ratio": fit.ratio, "margin": fit.margin}


def everything():
    torch.set_num_threads(1)
    return {
        "weights": weights_of(trained()[0]),
        "four_steps": weights_of(trained(batch=1024)[0]),  # few enough for rounding not to grow
        "searches": searches(*kept_supernet()),
        "solutions": solutions(),
        "tables": tables(),
    }


if __name__ == "__main__":
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--write", action="store_true")
    asked.add_argument("--compare", action="store_true")
    options = asked.parse_args()
    if options.write:
        torch.set_num_threads(1)
        save_file({n: t.contiguous() for n, t in trained()[0].state_dict().items()}, HERE / "golden.safetensors")
    now = json.loads(json.dumps(everything()))
    if options.write:
        (HERE / "golden.json").write_text(json.dumps(now, indent=1) + "\n")
    if options.compare:
        kept = json.loads((HERE / "golden.json").read_text())
        same = {name: kept[name] == now[name] for name in kept}
        print(json.dumps(same))
        sys.exit(0 if all(same.values()) else 1)
