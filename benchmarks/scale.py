"""What ImageNet on many GPUs would take: single-core numbers measured here, the rest arithmetic on stated assumptions.

    python benchmarks/scale.py [--json] [--gpu-images 2081] [--price 4.10] ...

Measured, in CPU time of one thread, so that other programs on the machine hardly matter: our folder reader on JPEGs of the
size ImageNet's have (500 x 375, cut from two photographs that come with scikit-learn) and on copies with a short side of
256; a training step of the largest network at 224 px. Measured before, on a quiet machine (benchmarks/supernet.py): a step
with a path per image against it. Counted: MACs, bytes that processes exchange in a step. Assumed, as options: a GPU's
throughput on EfficientNet-B0, which is scaled by MACs; links; prices.
`docs/guides/scale.md` is written from its output.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import sklearn
import torch
import torch.nn.functional as F
from PIL import Image

from snugnet.costs.analytic import macs
from snugnet.data.dataset import load
from snugnet.nets import Supernet
from snugnet.seeds import Seed
from snugnet.space import largest, plan, preset, sample, zoo

TRAIN_IMAGES = round(1_281_167 * 0.8)  # the split that trains; the rest is for the search
TARGETS = 10


def write_folder(root: Path, count: int, *, short_side: int | None) -> float:
    """A folder in ImageNet's layout; returns the mean bytes of a file."""
    photos = [Image.open(p) for p in sorted((Path(sklearn.__file__).parent / "datasets/images").glob("*.jpg"))]
    rng, sizes = np.random.default_rng(0), []
    for number in range(count):
        photo = photos[number % len(photos)].convert("RGB")
        left, top = rng.integers(0, photo.width - 500 + 1), rng.integers(0, photo.height - 375 + 1)
        cut = photo.crop((left, top, left + 500, top + 375))
        if short_side:
            cut = cut.resize((round(500 * short_side / 375), short_side), Image.Resampling.BICUBIC)
        for part in ("train", "val"):
            path = root / part / f"class{number % 2}" / f"{number}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            cut.save(path, quality=90 if short_side else 96)
        sizes.append(path.stat().st_size)
    return statistics.mean(sizes)


def reader_speed(short_side: int | None, count: int = 96, rounds: int = 3) -> dict[str, float]:
    """Images a second that one core reads, crops at random and stacks, by our own loader."""
    with tempfile.TemporaryDirectory() as folder:
        size = write_folder(Path(folder), count, short_side=short_side)
        data = load(f"folder:{folder}", resolution=224, workers=0, in_memory=False)
        batches = [torch.arange(at, at + 32) for at in range(0, count, 32)]
        times = [cpu_seconds(lambda r=r: list(data.fetch(batches, Seed(r)))) for r in range(rounds + 1)][1:]
    return {"images_per_second": count / statistics.median(times), "bytes_per_file": size}


def cpu_seconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def step_seconds(batch: int = 16, rounds: int = 5) -> float:
    """CPU seconds per image of a step of the largest network (forward, cross entropy, backward) at 224 px."""
    space = preset("hardcore", classes=1000)
    net = Supernet(space).to(memory_format=torch.channels_last).train()  # type: ignore[call-overload]
    images = torch.randn(batch, 3, 224, 224).contiguous(memory_format=torch.channels_last)
    labels = torch.randint(0, 1000, (batch,))

    def step() -> None:
        net.zero_grad()
        F.cross_entropy(net(images, largest(space)), labels).backward()

    return statistics.median([cpu_seconds(step) for _ in range(rounds + 1)][1:]) / batch


def counted() -> dict[str, float]:
    space = preset("hardcore", classes=1000)
    net, rng = Supernet(space), np.random.default_rng(0)
    values = sum(p.numel() for p in net.parameters()) + sum(b.numel() for b in net.buffers() if b.is_floating_point())
    random = [macs(plan(sample(space, rng), space)) for _ in range(200)]
    return {
        "largest_gmacs": macs(plan(largest(space), space)) / 1e9,
        "random_gmacs": statistics.mean(random) / 1e9,
        "b0_gmacs": macs(zoo.find("EfficientNet-B0").network) / 1e9,
        "supernet_parameters": sum(p.numel() for p in net.parameters()),
        "exchanged_bytes": 4 * values,
    }


def derived(facts: dict[str, Any], a: argparse.Namespace, gpus: int) -> dict[str, float]:
    """A run of 350 epochs, the searches and the fine-tunings on so many GPUs."""
    counts = facts["counted"]
    rate = a.gpu_images * counts["b0_gmacs"] / counts["largest_gmacs"]  # largest network, images/s of one GPU
    per_gpu = a.batch_per_gpu
    nodes = gpus / 8
    wire = 2 * (gpus - 1) / gpus * counts["exchanged_bytes"]
    exchange = wire / a.nvlink + 2 * (nodes - 1) / nodes * counts["exchanged_bytes"] / a.network  # one node: no network
    steps = TRAIN_IMAGES / (per_gpu * gpus)
    phases = {
        "largest": (250, 1.0),
        "multipath": (100, 1.0 + a.multipath_ratio * a.multipath_penalty),
    }  # with distill both run
    hours, needed = {}, {}
    for name, (epochs, cost) in phases.items():
        seconds = per_gpu * cost / rate + exchange
        hours[name] = epochs * steps * seconds / 3600
        needed[name] = per_gpu * gpus / seconds
    share = 0.6  # of the largest network's MACs, a middling target; its teacher runs forward only
    tuned = 10 * TRAIN_IMAGES * (share + 1 / 3) / rate / 3600  # ten epochs of one target on one GPU
    search = a.search_images * a.multipath_ratio / rate / 3600  # one target on one GPU
    rounds = math.ceil(TARGETS / min(TARGETS, gpus))
    total = sum(hours.values()) + rounds * (search + tuned)
    used = sum(hours.values()) * gpus + TARGETS * (search + tuned)
    cores = needed["largest"] / facts["reader"]["images_per_second"]
    small = needed["largest"] / facts["reader_256"]["images_per_second"]
    return {
        "gpus": gpus, "batch": per_gpu * gpus, "images_per_second": needed["largest"],
        "images_per_second_multipath": needed["multipath"], "exchange_ms": 1e3 * exchange,
        "exchange_share": exchange / (per_gpu / rate + exchange), "sent_per_gpu_mb": wire / 1e6,
        "jpeg_mb_per_second": needed["largest"] * facts["reader"]["bytes_per_file"] / 1e6,
        "pixels_mb_per_second": needed["largest"] * 3 * 224**2 / 1e6,
        "reader_cores": cores, "reader_cores_256": small,
        "hours_largest": hours["largest"], "hours_multipath": hours["multipath"], "hours_search_10": rounds * search,
        "hours_finetune_10": rounds * tuned, "hours": total, "gpu_hours": used, "cost": used * a.price,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument(
        "--gpu-images", type=float, default=16652 / 8, help="EfficientNet-B0 images/s of a GPU, training"
    )
    parser.add_argument("--batch-per-gpu", type=int, default=128)
    parser.add_argument("--multipath-ratio", type=float, default=0.66, help="of a step, by benchmarks/supernet.py")
    parser.add_argument("--multipath-penalty", type=float, default=1.5, help="of many small kernels on a GPU")
    parser.add_argument("--nvlink", type=float, default=200e9, help="bytes/s of an all-reduce inside a node")
    parser.add_argument("--network", type=float, default=40e9, help="bytes/s between nodes")
    parser.add_argument(
        "--search-images", type=float, default=1000 * 128 + 60 * 10_000 / 3, help="per target, in steps"
    )
    parser.add_argument("--price", type=float, default=4.10, help="of a GPU-hour")
    a = parser.parse_args()
    torch.set_num_threads(1)
    facts: dict[str, Any] = {"reader": reader_speed(None), "reader_256": reader_speed(256), "counted": counted()}
    facts["step"] = {"largest_images_per_second": 1 / step_seconds()}
    facts["assumed"] = {name: value for name, value in vars(a).items() if name != "json"}
    facts["derived"] = [derived(facts, a, gpus) for gpus in (8, 64)]
    if a.json:
        print(json.dumps(facts, indent=1))
        return
    for name, values in facts.items():
        for row in values if isinstance(values, list) else [values]:
            print(name, {key: round(value, 4) for key, value in row.items()})


if __name__ == "__main__":
    main()
