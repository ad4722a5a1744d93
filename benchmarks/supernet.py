"""What sharing costs: super-network steps against plain steps of the largest network, in one interleaved run.

    python benchmarks/supernet.py [--json] [--rounds 31] [--threads 2] [--clock cpu] [--only lowres,64,128,tfnas,sandwich]

A step is forward, cross entropy, backward. Contestants take turns; reported are ratios of medians:
- multipath_over_heaviest_*: a path per image against the largest sub-network built as a plain network;
- subnet_over_plain_64: one sub-network through the super-network against the same as a plain network;
- relaxed_gradient_over_heaviest_64: gradient with respect to alpha and beta, one sampled path per image;
- multipath_peak_memory_over_heaviest_128: most bytes of tensors alive during a step;
- bisampling_over_two_plain: TF-NAS's weight step (two paths of separate operations, all depths, one backward, clipping, SGD)
  against two steps of the same two networks built plainly at full depth, clipping and SGD included;
- sandwich_over_plain_sum: a sandwich step in AttentiveNAS's space (largest, two random, smallest network, distilled in
  place, images resized to each; clipping and one SGD step) against the sum of plain steps of the same four, each built
  alone and fed at its resolution, clipping and SGD included.
The plain networks in these ratios are of torch's own layers throughout, as any user would write them. Ours train with faster
layers (nets/fused.py, nets/depthwise.py): ratios against those have `our_` before the plain network's name.
Tensors are in channels-last memory for all. "lowres" is the low-resolution space at 28 px, batch 128.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from snugnet.budgets import Budget
from snugnet.budgets.limits import Limits
from snugnet.budgets.widths import Widths
from snugnet.evaluate.scoring import resized
from snugnet.nets import MixedSupernet, build
from snugnet.nets.blocks import ConvUnit, DepthwiseConv2d
from snugnet.nets.network import fixed_weights
from snugnet.nets.supernet import Supernet
from snugnet.space import Architecture, largest, preset, sample, smallest
from snugnet.training import methods, optimiser
from snugnet.training.methods._tfnas import weight_loss

LAST = torch.channels_last


CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}  # the second hardly minds other programs
clock = time.perf_counter


def median_times(contestants: dict[str, Callable[[], None]], rounds: int) -> dict[str, float]:
    """Seconds of each contestant: medians over rounds in which all take their turn."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(rounds + 2):
        for name, step in contestants.items():
            began = clock()
            step()
            if turn >= 2:
                times[name].append(clock() - began)
    return {name: statistics.median(values) for name, values in times.items()}


def torch_layers(network: torch.nn.Module) -> torch.nn.Module:
    """The same network of torch's own layers alone, each run by itself, in channels-last memory."""
    for module in network.modules():
        if isinstance(module, DepthwiseConv2d):
            module.__class__ = torch.nn.Conv2d
        elif isinstance(module, ConvUnit):
            module.__class__ = torch.nn.Sequential
    return network.to(memory_format=LAST)


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of all storages alive, as they are made and freed."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._seen: set[int] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # noqa: ANN001, ANN204
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(tensor, torch.Tensor):
                self._watch(tensor.untyped_storage())
        return out

    def _watch(self, storage: torch.UntypedStorage) -> None:
        import weakref

        key, size = storage.data_ptr(), storage.nbytes()
        if not key or key in self._seen:
            return
        self._seen.add(key)
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._freed, key, size)

    def _freed(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self.live -= size


def peak_bytes(step: Callable[[], None]) -> int:
    with LiveBytes() as watch:
        step()
    return watch.peak


class Bench:
    """One space at one size: data, super-network, plain networks, and a step of each kind."""

    def __init__(self, name: str, batch: int, **options: int) -> None:
        self.space = preset(name, classes=1000 if "lowres" not in name else 10, **options)
        size = self.space.resolutions[0]
        torch.manual_seed(0)
        self.images = torch.randn(batch, 3, size, size).to(memory_format=LAST)
        self.labels = torch.randint(self.space.classes, (batch,))
        self.supernet = Supernet(self.space).to(memory_format=LAST)
        self.plain = torch_layers(build(largest(self.space), self.space))
        self.our_plain = build(largest(self.space), self.space).to(memory_format=LAST)
        self.rng = np.random.default_rng(0)
        self.some = sample(self.space, self.rng)
        self.same = torch_layers(build(self.some, self.space))
        self.our_same = build(self.some, self.space).to(memory_format=LAST)

    def step(self, network: torch.nn.Module, *what: object) -> None:
        network.train()
        for parameter in network.parameters():
            parameter.grad = None
        F.cross_entropy(network(self.images, *what), self.labels).backward()

    def largest(self) -> None:
        self.step(self.plain)

    def our_largest(self) -> None:
        self.step(self.our_plain)

    def multipath(self) -> None:
        self.step(self.supernet, self.supernet.sample_paths(len(self.images), self.rng))

    def subnet(self) -> None:
        self.step(self.supernet, self.some)

    def same_plain(self) -> None:
        self.step(self.same)

    def our_same_plain(self) -> None:
        self.step(self.our_same)

    def relaxed_gradient(self) -> None:
        self.supernet.eval()
        n = len(self.images)
        alpha = [self._one_hot(n, len(block.parts)) for block in self.supernet.blocks()]
        beta = [self._one_hot(n, len(stage.depths)) for stage in self.space.stages]
        with fixed_weights(self.supernet):
            loss = F.cross_entropy(self.supernet(self.images, alpha, beta), self.labels)
            torch.autograd.grad(loss, [*alpha, *beta])

    def _one_hot(self, n: int, options: int) -> torch.Tensor:
        chosen = torch.from_numpy(self.rng.integers(options, size=n))
        return F.one_hot(chosen, options).float().requires_grad_()


class BiSampling:
    """A weight step of TF-NAS, and steps of the two networks it samples; widths as elasticity-scaling leaves them."""

    def __init__(self, batch: int, resolution: int) -> None:
        self.space = preset("tfnas", classes=100, resolution=resolution)
        torch.manual_seed(0)
        self.images = torch.randn(batch, 3, resolution, resolution).to(memory_format=LAST)
        self.targets = F.one_hot(torch.randint(100, (batch,)), 100).float()
        self.net = MixedSupernet(self.space).to(memory_format=LAST)
        self.rng = np.random.default_rng(0)
        for number in range(1, len(self.net.layers)):  # as elasticity-scaling leaves them: any width, any channels
            for operation in self.net.operations(number):
                operation.keep(int(self.rng.integers(operation.part.mid_channels // 2, operation.part.mid_channels)))
        self.beta = [torch.full((n,), 1.0 / n) for n in self.net.depth_counts]
        self.sgd = optimiser.build(self.net, methods.tfnas(weight_decay=0.0), fused=True)
        self.pairs = [
            (self.net.sample_paths(batch, self.rng), self.net.sample_paths(batch, self.rng)) for _ in range(3)
        ]
        self.plain = [[self._plain(path) for path in pair] for pair in self.pairs]

    def _plain(self, path: list[int]) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        numbers, depths = tuple(path), tuple(stage.max_depth for stage in self.space.stages)
        limits = Limits(self.space, Budget({}), [])
        network = build(Widths(limits).architecture((numbers, depths), self.net.widths()), self.space)
        network = torch_layers(network).train()
        return network, optimiser.build(network, methods.scratch(weight_decay=1e-5), fused=True)

    def bisampling(self, pair: int) -> None:
        self.sgd.zero_grad(set_to_none=True)
        loss = weight_loss(self.net, self.images, self.targets, self.pairs[pair], self.beta, 1e-5)[0]
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), 5.0)
        self.sgd.step()

    def two_plain(self, pair: int) -> None:
        for network, sgd in self.plain[pair]:
            sgd.zero_grad(set_to_none=True)
            F.cross_entropy(network(self.images), self.targets).backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), 5.0)
            sgd.step()


class Four:
    """The four networks of a sandwich step: through the super-network, and as plain networks of their own."""

    def __init__(self) -> None:
        self.space = preset("attentive", classes=1000, resolution=96)
        torch.manual_seed(0)
        self.images = torch.randn(32, 3, 96, 96).to(memory_format=LAST)
        self.targets = F.one_hot(torch.randint(1000, (32,)), 1000).float()
        self.supernet = Supernet(self.space).to(memory_format=LAST).train()
        rng = np.random.default_rng(0)
        self.networks = [largest(self.space), *(sample(self.space, rng) for _ in range(2)), smallest(self.space)]
        self.method = methods.sandwich(dropout=0.0, drop_connect=0.0)

    def contestants(self) -> dict[str, Callable[[], None]]:
        plain = {str(i): self.stepping(*self.plain(a)) for i, a in enumerate(self.networks)}
        return {"sandwich": self.stepping(self.supernet, self.four), **plain}

    def stepping(self, network: torch.nn.Module, backward: Callable[[], None]) -> Callable[[], None]:
        sgd = optimiser.build(network, self.method, fused=True)

        def step() -> None:
            sgd.zero_grad(set_to_none=True)
            backward()
            torch.nn.utils.clip_grad_value_(network.parameters(), 1.0)
            sgd.step()

        return step

    def four(self) -> None:
        teacher = self.supernet(self.images, self.networks[0])
        F.cross_entropy(teacher, self.targets).backward()
        for network in self.networks[1:]:
            student = self.supernet(self.images, network)
            self.method.distillation(student, teacher.detach(), self.targets)[0].backward()

    def plain(self, architecture: Architecture) -> tuple[torch.nn.Module, Callable[[], None]]:
        network = torch_layers(build(architecture, self.space)).train()
        images = resized(self.images, architecture.resolution).contiguous(memory_format=LAST)
        return network, lambda: F.cross_entropy(network(images), self.targets).backward()


def against_largest(bench: Bench, size: str, rounds: int, more: tuple[str, ...]) -> dict[str, float]:
    """Ratios of one space at one size; `more`: contestants beside a path per image and the largest network."""
    kinds = ("largest", "our_largest", "multipath", *more)
    t = median_times({kind: getattr(bench, kind) for kind in kinds}, rounds)
    result = {
        f"multipath_over_heaviest_{size}": t["multipath"] / t["largest"],
        f"multipath_over_our_heaviest_{size}": t["multipath"] / t["our_largest"],
        f"largest_{size}_s": t["largest"],
        f"our_largest_{size}_s": t["our_largest"],
    }
    if "subnet" in t:
        result[f"subnet_over_plain_{size}"] = t["subnet"] / t["same_plain"]
        result[f"subnet_over_our_plain_{size}"] = t["subnet"] / t["our_same_plain"]
        result[f"relaxed_gradient_over_heaviest_{size}"] = t["relaxed_gradient"] / t["largest"]
    return result


def measure(rounds: int, only: set[str]) -> dict[str, float]:
    result: dict[str, float] = {}
    if "lowres" in only:
        result |= against_largest(Bench("hardcore-lowres", 128), "lowres", rounds, ())
    if "64" in only:
        kinds = ("subnet", "same_plain", "our_same_plain", "relaxed_gradient")
        result |= against_largest(Bench("hardcore", 32, resolution=64), "64", rounds, kinds)
    if "128" in only:
        bench = Bench("hardcore", 32, resolution=128)
        result |= against_largest(bench, "128", max(5, rounds // 2), ())
        memory = [peak_bytes(bench.multipath) for _ in range(3)]
        result["multipath_peak_memory_over_heaviest_128"] = max(memory) / peak_bytes(bench.largest)
    if "tfnas" in only:
        both = BiSampling(32, 64)
        kinds = [("bisampling", both.bisampling), ("two_plain", both.two_plain)]
        t = median_times({f"{kind} {n}": partial(step, n) for n in range(3) for kind, step in kinds}, rounds)
        sums = {kind: sum(t[f"{kind} {n}"] for n in range(3)) for kind, _ in kinds}
        result["bisampling_over_two_plain"] = sums["bisampling"] / sums["two_plain"]
        result["two_plain_64_s"] = sums["two_plain"] / 3
    if "sandwich" in only:
        t = median_times(Four().contestants(), max(5, rounds // 3))
        result["sandwich_over_plain_sum"] = t["sandwich"] / sum(s for name, s in t.items() if name != "sandwich")
        result["sandwich_s"] = t["sandwich"]
    return {name: round(value, 4) for name, value in result.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--clock", choices=list(CLOCKS), default="wall")
    parser.add_argument("--only", default="lowres,64,128,tfnas,sandwich")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    global clock
    clock = CLOCKS[options.clock]
    result = measure(options.rounds, set(options.only.split(",")))
    print(json.dumps(result) if options.json else "\n".join(f"{name}: {value}" for name, value in result.items()))


if __name__ == "__main__":
    main()
