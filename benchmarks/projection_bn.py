"""One projection BN for all choices of a block, or one for every pair of expansion and squeeze-excite, as published?

    python benchmarks/projection_bn.py --json [--sets digits,fashion-mnist,cifar10] [--seeds 60,61]
                                              [--kinds published,inherited,apart] [--networks 60]
                                              [--work FOLDER] [--out FILE]

The authors' code gives each of the six pairs a projection BN of its own; ours has one. For every data set and seed all
super-networks start from the same weights and train on the same images as those of `benchmarks/search.py`: the largest
network, then a path per image. Then the same random networks are scored on images that took no part in training, each with
batch-norm statistics of its own, as any search does. Kinds, compared with `shared` (ours):

- published: in training all images share batch statistics, as in the authors' code, which runs every norm on all images and
  keeps of each the images of its pair; a pair has a scale and a shift of its own. Those the largest network does not use
  start afresh with the paths;
- inherited: the same, but they start as those of the largest network do, as small kernels do in these runs;
- apart: a pair's norm sees the images of its pair alone, in statistics too; starts afresh.

Reported: a kind minus shared, as the mean over networks, with the error over super-networks; the rank correlation of their
scores; and seconds of the processor that training took (a run that was killed and went on counts its last part).

Private norms live in this script alone. Before anything is trained, `check` makes sure that they change nothing while all
are alike, and that every image meets that of its pair; after training, that what is scored is what was trained. A part is a
file in --work: a killed run goes on.
"""

from __future__ import annotations

import argparse
import copy
import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from scipy.stats import spearmanr
from torch import Tensor, nn

import search
from search import SETTINGS, Bench, Setting
from snugnet.evaluate.evaluator import Evaluator
from snugnet.nets import Supernet, elastic, extract
from snugnet.nets.fused import norm_act
from snugnet.nets.gather import IntArray, reorder
from snugnet.space import preset
from snugnet.space.architecture import Architecture
from snugnet.space.sampling import sample
from snugnet.space.space import SearchSpace
from snugnet.space.spec import BlockSpec, plan
from snugnet.store import read_json, write_json

KINDS = ("published", "inherited", "apart")  # beside `shared`, with which they are compared
Pair = tuple[int, int]  # middle width, and width of squeeze-excite (0: none)


class PrivateNorms(nn.Module):
    """What stands at `project` of an operation: the convolution, a BN per pair, and the pairs that images take now."""

    def __init__(self, shared: Any, pairs: Sequence[Pair], kind: str) -> None:
        super().__init__()
        self.conv, self.norm = shared.conv, shared.norm.requires_grad_(False)  # the latter: what extraction reads
        self.norms = nn.ModuleDict({_name(pair): copy.deepcopy(shared.norm).requires_grad_() for pair in pairs})
        self.plain = copy.deepcopy(shared.norm)  # the statistics of all images; neither scale nor shift
        nn.init.ones_(self.plain.weight)
        nn.init.zeros_(self.plain.bias)
        self.largest, self.inherits, self.apart = max(pairs), kind == "inherited", kind == "apart"
        self.taken: list[Pair] = []

    def normed(self, y: Tensor) -> Tensor:
        """y with every image normalised as its pair wants it."""
        pairs = sorted(set(self.taken))
        if len(pairs) > 1 and self.inherits and self.training:  # the first batch of mixed paths
            self._inherit()
        which = np.array([pairs.index(pair) for pair in self.taken])
        if self.apart:
            return self._apart(y, pairs, which)
        normal, norms = norm_act(y, self.plain), [self.of(pair) for pair in pairs]
        scales, shifts = torch.stack([norm.weight for norm in norms]), torch.stack([norm.bias for norm in norms])
        return normal * scales[which, :, None, None] + shifts[which, :, None, None]

    def _apart(self, y: Tensor, pairs: list[Pair], which: IntArray) -> Tensor:
        if len(pairs) == 1:
            return norm_act(y, self.of(pairs[0]))
        rows, ordered = np.arange(len(which)), np.argsort(which, kind="stable")
        parts = reorder(y, rows, ordered).split(np.bincount(which).tolist())
        joined = torch.cat([norm_act(part, self.of(pair)) for part, pair in zip(parts, pairs)])
        return reorder(joined, ordered, rows)

    def of(self, pair: Pair) -> nn.BatchNorm2d:
        norm: Any = self.norms[_name(pair)]
        return norm

    def show(self, pair: Pair) -> None:
        """Lay this pair's norm where extraction reads it."""
        of_all = {name: value for name, value in self.plain.state_dict().items() if name not in ("weight", "bias")}
        self.norm.load_state_dict(self.of(pair).state_dict() | ({} if self.apart else of_all))

    def _inherit(self) -> None:
        for norm in self.norms.values():
            norm.load_state_dict(self.of(self.largest).state_dict())
        self.inherits = False


def _name(pair: Pair) -> str:
    return f"{pair[0]}-{pair[1]}"


def private_supernet(space: SearchSpace, kind: str) -> Supernet:
    """The super-network of `space` as torch's seed makes it, with private norms."""
    supernet = Supernet(space)
    for block in supernet.blocks():
        for index, operation in enumerate(block.operations):
            mine: Any = operation
            parts = [part for part, of in zip(block.parts, block.operation_of) if of == index]
            pairs = sorted({(part.mid_channels, part.se) for part in parts})
            mine.project = private = PrivateNorms(mine.project, pairs, kind)
            mine._norm = norm_of
            mine.one, mine.many = partial(_one, mine.one, private), partial(_many, mine.many, private)
    return supernet


def norm_of(unit: Any) -> Any:
    """What an operation hands to `norm_act` for one of its units."""
    return unit if isinstance(unit, PrivateNorms) else unit.norm


def normed(x: Tensor, norm: Any, act: nn.Module | None = None) -> Tensor:
    """`norm_act` that knows private norms."""
    return norm.normed(x) if isinstance(norm, PrivateNorms) else norm_act(x, norm, act)


def _one(run: Callable[..., Tensor], private: PrivateNorms, x: Tensor, part: BlockSpec) -> Tensor:
    private.taken = [(part.mid_channels, part.se)]
    return run(x, part)


def _many(
    run: Callable[..., Tensor], private: PrivateNorms, x: Tensor, groups: IntArray, kernel: IntArray,
    mid_channels: IntArray, squeeze_channels: IntArray, out_channels: int,
) -> Tensor:  # fmt: skip
    private.taken = list(zip(mid_channels.tolist(), squeeze_channels.tolist()))
    return run(x, groups, kernel, mid_channels, squeeze_channels, out_channels)


def private_norms(supernet: Supernet, architecture: Architecture) -> list[tuple[PrivateNorms, Pair]]:
    """Of the blocks that run, with the pair each takes."""
    running = []
    for specs, blocks in zip(plan(architecture, supernet.trained_space).stages, supernet.stages):
        for spec, block in zip(specs, blocks):  # type: ignore[arg-type,call-overload]
            projects = [operation.project for operation in block.operations]
            pair = spec.mid_channels, spec.se
            running += [(p, pair) for p in projects if isinstance(p, PrivateNorms) and _name(pair) in p.norms]
    return running


def show(supernet: Supernet, architecture: Architecture) -> None:
    """What extraction reads: the norms of this network's pairs. A shared one is where it belongs."""
    for private, pair in private_norms(supernet, architecture):
        private.show(pair)


class KindBench(Bench):
    """The bench of `benchmarks/search.py`: same images, weights to begin with and phases; norms of one kind."""

    def __init__(self, name: str, seed: int, setting: Setting, work: Path, kind: str) -> None:
        self.kind = kind
        super().__init__(name, seed, setting, work)

    def _trained(self) -> Supernet:
        if self.kind == "shared":
            return super()._trained()
        with patch.object(search, "Supernet", partial(private_supernet, kind=self.kind)):
            return super()._trained()

    def scores(self, count: int) -> list[dict[str, Any]]:
        """The same random networks for every kind, on images to judge by."""
        rng, rows = np.random.default_rng(self.seed), []
        evaluator = Evaluator(self.supernet, self.judged, limit=self.setting.judge, closer=self.setting.judge)
        for network in dict.fromkeys(sample(self.supernet.space, rng) for _ in range(count)):
            show(self.supernet, network)
            judged = evaluator(network)
            rows.append({"network": str(network), "score": judged.score, "accuracy": judged.accuracy})
        check_extracted(self.supernet, network)
        return rows

    def spread(self) -> float | None:
        """How far private norms went from each other: their scales' deviation among pairs, over the mean scale."""
        privates = [m for m in self.supernet.modules() if isinstance(m, PrivateNorms) and len(m.norms) > 1]
        scales = [torch.stack([norm.weight.detach() for norm in m.norms.values()]) for m in privates]  # type: ignore[misc]
        return float(np.mean([float(s.std(0).mean() / s.abs().mean()) for s in scales])) if scales else None


def check(kind: str) -> None:
    """Private norms that are all alike change nothing: for one network, for mixed paths, and in what is extracted."""
    space = preset("hardcore-thin-lowres", resolution=16)
    torch.manual_seed(0)
    shared = Supernet(space).eval()
    torch.manual_seed(0)
    private = private_supernet(space, kind).eval()
    generator = torch.Generator().manual_seed(1)
    for ours, theirs in zip(shared.blocks(), private.blocks()):
        norm: Any = ours.operations[0].project.norm  # type: ignore[union-attr]
        for value in (norm.weight.data, norm.bias.data, norm.running_mean, norm.running_var):
            value.copy_(torch.rand(value.shape, generator=generator) + 0.5)  # anything but the start's ones and zeros
        project: Any = theirs.operations[0].project
        for each in project.norms.values():
            each.load_state_dict(norm.state_dict())
        project.plain.running_mean.copy_(norm.running_mean)
        project.plain.running_var.copy_(norm.running_var)
    images, rng = torch.rand(32, space.in_channels, 16, 16, generator=generator), np.random.default_rng(2)
    network, paths = sample(space, rng), shared.sample_paths(32, rng)
    with torch.no_grad():
        for what in (network, paths):
            assert away(shared(images, what), private(images, what)) < 1e-4, "alike norms must not matter"
        privates = [module for module in private.modules() if isinstance(module, PrivateNorms)]
        norms: list[Any] = [norm for module in privates for norm in module.norms.values()]
        for number, norm in enumerate(norms):
            norm.weight *= 1 + number % 6 / 5
            norm.bias += number % 6 / 5
        assert away(shared(images, paths), private(images, paths)) > 0.1, "norms must be used"
        check_mixed(private, images, paths)
    show(private, network)
    check_extracted(private, network)
    private.train()(images, paths).square().sum().backward()
    learning = [norm.weight.grad is not None and bool(norm.weight.grad.any()) for norm in norms]
    assert np.mean(learning) > 0.9, "private norms must learn"  # a pair may be missing among 32 paths


def away(x: Tensor, y: Tensor) -> float:
    """The greatest difference, in units of the greatest number."""
    return float((x - y).abs().max() / x.abs().max())


def check_mixed(supernet: Supernet, images: Tensor, paths: Any) -> None:
    """A path per image gives every image what its own network gives it."""
    networks = supernet.layout.decode(paths)
    apart = torch.cat([supernet(images[i : i + 1], network) for i, network in enumerate(networks)])
    assert away(apart, supernet(images, paths)) < 1e-4, "every image must meet its own pair's norm"


def check_extracted(supernet: Supernet, shown: Architecture) -> None:
    """What is scored is what was trained: the network extracted after `show` answers as the super-network does."""
    side = supernet.space.resolutions[-1]
    images = torch.rand(16, supernet.space.in_channels, side, side, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        assert away(supernet(images, shown), extract(supernet, shown)(images)) < 1e-3, "extraction must agree"


def compared(kinds: dict[str, dict[str, Any]], of: str) -> dict[str, Any]:
    """One super-network of a kind minus its shared sibling: means over the networks both scored."""
    ours, theirs = kinds[of]["rows"], kinds["shared"]["rows"]
    assert [row["network"] for row in ours] == [row["network"] for row in theirs], "the same networks"
    told: dict[str, Any] = {"networks": len(ours)}
    for field in ("score", "accuracy"):
        a, b = (np.array([row[field] for row in rows]) for rows in (ours, theirs))
        told[field] = {of: float(a.mean()), "shared": float(b.mean()), "difference": float((a - b).mean())}
        told[field] |= {"deviation": {of: float(a.std()), "shared": float(b.std())}}
        told[field] |= {"rank_correlation": float(spearmanr(a, b).statistic)}
    seconds = {kind: kinds[kind]["cpu_seconds"] for kind in (of, "shared")}
    return told | {"cpu_seconds": seconds, "longer": seconds[of] / seconds["shared"] - 1, "spread": kinds[of]["spread"]}


def summary(pairs: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Differences by data set, errors over super-networks; `everything`: each super-network counts alike."""
    told: dict[str, Any] = {}
    for place in (*dict.fromkeys(key.split()[0] for key in pairs), "everything"):
        here = [pair for key, pair in pairs.items() if place in (key.split()[0], "everything")]
        told[place] = {"supernets": len(here), "longer": _mean([pair["longer"] for pair in here])}
        for field in ("score", "accuracy"):
            ranks = _mean([pair[field]["rank_correlation"] for pair in here])
            difference = _mean([pair[field]["difference"] for pair in here])
            told[place][field] = difference | {"rank_correlation": ranks["mean"]}
    return told


def _mean(values: Sequence[float]) -> dict[str, float | None]:
    error = float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else None
    return {"mean": float(np.mean(values)), "error": error}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", default=",".join(SETTINGS))
    parser.add_argument("--seeds", default="60,61")
    parser.add_argument("--kinds", default=",".join(KINDS), help="To compare with `shared`.")
    parser.add_argument("--networks", type=int, default=60)
    parser.add_argument(
        "--work", type=Path, default=Path("projection-bn-work"), help="All that is finished there is summed up."
    )
    parser.add_argument("--collect", action="store_true", help="Train nothing, sum up.")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    elastic.norm_act = normed  # type: ignore[attr-defined]  # what operations call; torch's or our kernels as before
    for kind in chosen.kinds.split(","):
        check(kind)
    if not chosen.collect:
        for name in chosen.sets.split(","):
            for seed in chosen.seeds.split(","):
                for kind in ("shared", *chosen.kinds.split(",")):
                    home = chosen.work / f"{name}-{seed}-{kind}"
                    if not (home / "done.json").exists():
                        bench = KindBench(name, int(seed), SETTINGS[name], home, kind)
                        rows = bench.part("scores", lambda b=bench: b.scores(chosen.networks))
                        spent = read_json(home / "trained.json")["cpu_seconds"]
                        about = {"set": name, "seed": int(seed), "kind": kind, "cpu_seconds": spent}
                        write_json(home / "done.json", about | {"spread": bench.spread(), "rows": rows})
    done = [read_json(path) for path in sorted(chosen.work.glob("*/done.json"))]
    found: dict[str, dict[str, Any]] = {}
    for row in done:
        found.setdefault(f"{row['set']} {row['seed']}", {})[row["kind"]] = row
    facts: dict[str, Any] = {"date": datetime.now(UTC).date().isoformat(), "networks": chosen.networks, "summary": {}}
    for kind in KINDS:
        facts[kind] = {key: compared(k, kind) for key, k in found.items() if {kind, "shared"} <= set(k)}
        if facts[kind]:
            facts["summary"][f"{kind} minus shared"] = summary(facts[kind])
    facts["rows"] = [{"set": r["set"], "seed": r["seed"], "kind": r["kind"], **row} for r in done for row in r["rows"]]
    if chosen.out is not None:
        write_json(chosen.out, facts)
    if chosen.json:
        print(json.dumps(facts))
        return
    for kind, places in facts["summary"].items():
        for place, of in places.items():
            cells = [
                f"{f} {100 * of[f]['mean']:+.2f} +- {100 * (of[f]['error'] or 0):.2f}" for f in ("score", "accuracy")
            ]
            print(f"{kind}, {place} ({of['supernets']}): {', '.join(cells)}, training {of['longer']['mean']:+.0%}")


if __name__ == "__main__":
    main()
