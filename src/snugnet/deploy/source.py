"""What can be exported: a network of ours in its file, a published one by name, and whatever `sn.elastic` reads.

Published networks come without weights: theirs are drawn, the same every time, and the card says so.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from snugnet.deploy.card import Card
from snugnet.deploy.network_file import NetworkFile, find_network, read_network
from snugnet.nets.network import build_plan
from snugnet.nets.tensor_file import read_tensors
from snugnet.nets.trained import STARTS, Trained, load_start, read_trained
from snugnet.space import zoo
from snugnet.store import tensors_fingerprint

Source = nn.Module | Trained | NetworkFile | str | Path


def open_source(source: Source) -> NetworkFile:
    """The network in `source`, with what is known of it."""
    if isinstance(source, NetworkFile):
        return source
    if isinstance(source, nn.Module | Trained):
        return _of_trained(read_trained(source))
    text = str(source)
    if not Path(text).exists():
        published = {name.lower(): entry for name, entry in zoo.networks().items()}
        if text.lower() in published:
            return _of_published(published[text.lower()])
        if text in STARTS or text.startswith("timm:"):
            return _of_trained(load_start(text))
    if _is_foreign(Path(text)):
        return _of_trained(read_trained(text))
    return read_network(text)


def home_of(source: Source) -> Path | None:
    """The run folder (or the folder of a file) that `source` names: where its certificate and its recipe stand."""
    if not isinstance(source, str | Path) or not Path(source).exists():
        return None
    path = Path(source)
    return path.parent if _is_foreign(path) else find_network(path).parent


def _is_foreign(path: Path) -> bool:
    """A file of weights that somebody else wrote."""
    if path.suffix.lower() in (".pth", ".pt"):
        return True
    if path.suffix.lower() != ".safetensors" or not path.is_file() or path.with_suffix(".json").is_file():
        return False
    return "plan" not in read_tensors(path)[1]


def _of_trained(trained: Trained) -> NetworkFile:
    network = trained.network()
    known = trained.family != "snugnet" and len(trained.mean) == trained.plan.stem.in_channels
    mean, std = (trained.mean, trained.std) if known else ((), ())
    card = Card(mean=mean, std=std, notes={"family": trained.family})
    return NetworkFile(
        network=network, card=card, weights_sha256=tensors_fingerprint(network.state_dict()), versions={}
    )


def _of_published(entry: zoo.Published) -> NetworkFile:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = build_plan(entry.network).eval()
    card = Card(
        space=entry.space or "",
        architecture=str(entry.architecture or ""),
        notes={"published": entry.name, "weights": "drawn at random: the paper's are not included"},
    )
    return NetworkFile(
        network=network, card=card, weights_sha256=tensors_fingerprint(network.state_dict()), versions={}
    )
