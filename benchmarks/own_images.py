#!/usr/bin/env python3
"""Own images, as a new user would: a folder, a budget, ten minutes; against the starting network fine-tuned by hand.

A folder of 2,000 PNGs (CIFAR-10's training images, five classes, 32 px) is written, then

- `snugnet fit FOLDER --start efficientnet-lite0 --budget latency=60% --time 10min --out RUN --json` is run as a command;
- `alone`: the whole starting network, at the resolution the percentage refers to, is trained for as many seconds of the
  processor as the command took in all (on a quiet core: as long) by a plain loop: all images that are not for the test, SGD
  with Nesterov momentum, cosine over the time, mirroring and shifting, smoothed labels, batch-norm momentum 0.1, at each of
  the `--rates`.

Both are judged by the folder's own test images (what `accuracy` says) and, more exactly, by the 5,000 test images that
CIFAR-10 has of these classes, which are in no folder. Finished parts are kept in `--work`. Run it on one core:
    taskset -c 0 python benchmarks/own_images.py --json
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import yaml
from PIL import Image
from torch import Tensor

import snugnet as sn
from snugnet.data.augmentation import Augmentation
from snugnet.data.dataset import Data, InMemory
from snugnet.data.folder import read_image
from snugnet.fitting.recipe import read
from snugnet.nets import Network
from snugnet.nets.trained import load_start
from snugnet.seeds import Seed
from snugnet.space.sampling import largest

START, CLASSES, BATCH = "efficientnet-lite0", 5, 50


def make_folders(home: Path, images: int, seed: int) -> tuple[Path, Path]:
    """`own/CLASS/*.png` from the training images, `judged/CLASS/*.png` from the test images."""
    folders = home / "own", home / "judged"
    if (home / "made").exists():
        return folders
    data = sn.load_data("cifar10", resolution=32)
    assert isinstance(data, InMemory)
    order = torch.randperm(data.size("train+val"), generator=torch.Generator().manual_seed(seed))
    for folder, positions in zip(folders, (data.positions("train+val")[order], data.positions("test"))):
        for label in range(CLASSES):
            chosen = positions[data.labels[positions] == label]
            place = folder / data.about.class_names[label]
            place.mkdir(parents=True, exist_ok=True)
            for number, at in enumerate(chosen[: images // CLASSES] if folder is folders[0] else chosen):
                Image.fromarray(data.images[at].permute(1, 2, 0).numpy()).save(place / f"{number:04}.png")
    (home / "made").touch()
    return folders


def fitted(folder: Path, run: Path, asked: argparse.Namespace) -> dict[str, Any]:
    """What the command prints, and how long it took from outside."""
    command = [sys.executable, "-c", "from snugnet.cli import main; main()", "fit", str(folder), "--start", START]
    command += ["--budget", asked.budget, "--time", asked.time, "--out", str(run), "--threads", str(asked.threads)]
    began = time.monotonic()
    done = subprocess.run([*command, "--json"], check=True, stdout=subprocess.PIPE)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = {"wall_seconds": time.monotonic() - began, "cpu_seconds": used.ru_utime + used.ru_stime}
    return {**json.loads(done.stdout), **spent}


def alone(data: Data, side: int, seconds: float, rate: float, seed: int) -> tuple[Network, dict[str, Any]]:
    """The starting network with new classes, trained for `seconds`."""
    torch.manual_seed(seed)
    supernet = sn.elastic(START_NETWORK, resolutions=(side,), classes=CLASSES, expands=(1,), kernels=False, depth=False)
    network: Any = sn.extract(supernet, largest(supernet.space)).train().to(memory_format=torch.channels_last)
    spared = [p for p in network.parameters() if p.ndim == 1]
    groups = [{"params": [p for p in network.parameters() if p.ndim > 1], "weight_decay": 4e-5}, {"params": spared}]
    sgd = torch.optim.SGD(groups, lr=rate, momentum=0.9, nesterov=True)
    changes = Augmentation(crop_padding=side // 8, hflip=True)
    positions, began, step = data.positions("train+val"), time.process_time(), 0
    per_epoch = len(positions) // BATCH
    while (gone := (time.process_time() - began) / seconds) < 1:
        if step % per_epoch == 0:
            order = positions[Seed(seed).fold_in("order", step).numpy().permutation(len(positions))]
        for group in sgd.param_groups:
            group["lr"] = rate * 0.5 * (1 + math.cos(math.pi * gone))
        at = (step % per_epoch) * BATCH
        pixels, labels = next(iter(data.fetch([order[at : at + BATCH]])))
        images, targets = changes.apply(pixels, labels, CLASSES, Seed(seed).fold_in("step", step), data.normalise)
        loss = F.cross_entropy(
            network(images.contiguous(memory_format=torch.channels_last)), targets, label_smoothing=0.1
        )
        sgd.zero_grad()
        loss.backward()
        sgd.step()
        step += 1
    return network.eval(), {"rate": rate, "steps": step, "image_steps": step * BATCH, "loss": float(loss.detach())}


def right(network: Any, files: list[tuple[Path, int]], data: Data) -> Tensor:
    """Which images of a list of files a network knows."""
    answers = []
    for start in range(0, len(files), 100):
        part = files[start : start + 100]
        pixels = torch.stack([read_image(path, network.plan.resolution) for path, _ in part])
        with torch.inference_mode():
            found = network(data.normalise(pixels.float() / 255)).argmax(1)
        answers.append(found == torch.tensor([label for _, label in part]))
    return torch.cat(answers)


def judged(network: Any, folders: tuple[Path, Path], data: Data) -> dict[str, Any]:
    """Right answers on the folder's test images, and on all those that are in no folder."""
    from snugnet.data.folder import listing

    _, _, own = listing(folders[0])
    _, train, test = listing(folders[1])
    return {
        "own": [int(x) for x in right(network, own, data)],
        "judged": [int(x) for x in right(network, sorted(train + test), data)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("runs/own-images"))
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--budget", default="latency=60%")
    parser.add_argument("--time", default="10min")
    parser.add_argument("--rates", type=float, nargs="*", default=[0.02], help="none: only `fit`")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    folders = make_folders(asked.work, asked.images, asked.seed)
    run = asked.work / "run"
    ours = _kept(asked.work / "fit.json", lambda: fitted(folders[0], run, asked))
    recipe = read((run / "recipe.yaml").read_text())
    data = recipe.load_data()
    ours |= _kept(
        asked.work / "fit-judged.json", lambda: judged(sn.load(run / "network.safetensors").eval(), folders, data)
    )
    side, rivals = max(recipe.start.resolutions), []
    for rate in asked.rates:

        def rival(rate: float = rate) -> dict[str, Any]:
            network, facts = alone(data, side, ours["cpu_seconds"], rate, asked.seed)
            return {**facts, "resolution": side, **judged(network, folders, data)}

        rivals.append(_kept(asked.work / f"alone-{rate:g}.json", rival))
    result = summary(ours, rivals, asked, yaml.safe_load((run / "recipe.yaml").read_text()))
    print(json.dumps(result, indent=1) if asked.json else yaml.safe_dump(result, sort_keys=False))


def summary(ours: dict[str, Any], rivals: list[dict[str, Any]], asked: Any, recipe: dict[str, Any]) -> dict[str, Any]:
    """Differences are paired by image: their error is that of the images."""

    def short(row: dict[str, Any]) -> dict[str, Any]:
        facts = {name: value for name, value in row.items() if name not in ("own", "judged")}
        return {**facts, **{f"{name}_accuracy": sum(row[name]) / len(row[name]) for name in ("own", "judged")}}

    def gap(rival: dict[str, Any], name: str) -> dict[str, float]:
        pairs = torch.tensor(ours[name], dtype=torch.float64) - torch.tensor(rival[name], dtype=torch.float64)
        return {"points": 100 * float(pairs.mean()), "error": 100 * float(pairs.std()) / len(pairs) ** 0.5}

    return {
        "asked": {name: str(value) for name, value in vars(asked).items()},
        "snugnet": short(ours),
        "alone": [short(rival) for rival in rivals],
        "ours_minus_alone": [{name: gap(rival, name) for name in ("own", "judged")} for rival in rivals],
        "recipe": {name: recipe[name] for name in ("about", "start", "finetune")},
    }


def _kept(path: Path, work: Any) -> dict[str, Any]:
    if not path.exists():
        path.write_text(json.dumps(work()))
    value: dict[str, Any] = json.loads(path.read_text())
    return value


START_NETWORK = load_start(START)

if __name__ == "__main__":
    main()
