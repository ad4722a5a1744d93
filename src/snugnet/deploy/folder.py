"""A network as a folder that others open: `model.safetensors` and `config.json`, as timm and model hubs expect them.

`model.safetensors` is our own file (plan and card inside, sealed). `config.json` says the same in timm's words: the entry
point `snugnet` (`import snugnet.timm`), the plan as `model_args.blocks`, how images are prepared; and the hash of the
weights. It follows from the file of weights alone, so whoever reads the folder can tell whether it was edited: reading
works it out again and names the field that differs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from snugnet.deploy.card import open_certificate
from snugnet.deploy.network_file import NetworkFile, read_network, save_network
from snugnet.deploy.source import Source, open_source
from snugnet.errors import BadInput, DamagedFile
from snugnet.space.spec import plan_to_json
from snugnet.store import read_json, write_json

FORMAT: Final = "snugnet-folder-1"
WEIGHTS: Final = "model.safetensors"
CONFIG: Final = "config.json"
GRAPH: Final = "network.onnx"
CERTIFICATE: Final = "certificate.json"
_REMEDY: Final = "It was edited, or files of two networks were mixed; export the folder again."


def write_folder(source: Source, folder: str | Path) -> Path:
    """Write the network in `source` to `folder` so that `timm.create_model("local-dir:FOLDER")` opens it."""
    saved, home = open_source(source), Path(folder)
    if home.is_file():
        raise BadInput("a network must be exported to a folder", value=str(home), remedy="Name a new folder.")
    save_network(saved.network, home / WEIGHTS, saved.card)
    write_json(home / CONFIG, config_of(saved))
    return home


def config_of(saved: NetworkFile) -> dict[str, Any]:
    """`config.json` of a network: what timm is told of it."""
    plan, card = saved.plan, saved.card
    channels, side, last = plan.stem.in_channels, plan.resolution, plan.head.resolution
    return {
        "architecture": "snugnet",
        "num_classes": plan.head.classes,
        "num_features": plan.head.hidden,
        "label_names": list(card.class_names) or None,
        "model_args": {"blocks": plan_to_json(plan)},
        "pretrained_cfg": {
            "input_size": [channels, side, side],
            "fixed_input_size": False,
            "interpolation": "bilinear",
            "crop_pct": card.crop,
            "crop_mode": "center",
            # A network that does not say how images are normalised takes values from 0 to 1, here as in `predict`.
            "mean": list(card.mean) or [0.0] * channels,
            "std": list(card.std) or [1.0] * channels,
            "num_classes": plan.head.classes,
            "pool_size": [last, last],
            "first_conv": "stem.conv",
            "classifier": "head.classifier",
        },
        "snugnet": {"format": FORMAT, "weights_sha256": saved.weights_sha256},
    }


def check_folder(folder: str | Path) -> NetworkFile:
    """The network in a folder whose files all tell of one network; else the file that does not is named."""
    home = Path(folder)
    saved = read_network(home / WEIGHTS)
    _check_config(home / CONFIG, saved)
    marks = {saved.weights_sha256, *_check_graph(home / GRAPH, saved)}
    if (home / CERTIFICATE).is_file():
        certificate = open_certificate(home / CERTIFICATE)
        if certificate.weights_sha256 not in marks:
            rule = f"{home / CERTIFICATE} must be of the network in {WEIGHTS}"
            raise DamagedFile(rule, value=f"weights {certificate.weights_sha256[:12]}...", remedy=_REMEDY)
    return saved


def _check_config(path: Path, saved: NetworkFile) -> None:
    written, expected = read_json(path), config_of(saved)
    if not isinstance(written, dict):
        raise DamagedFile(f"{path} must be an object", value=type(written).__name__, remedy=_REMEDY)
    ours = written.get("snugnet")
    if isinstance(ours, dict) and ours.get("weights_sha256") != saved.weights_sha256:
        value = f"weights {saved.weights_sha256[:12]}..."
        raise DamagedFile(
            f"{path.parent / WEIGHTS} must hold the weights that {CONFIG} names", value=value, remedy=_REMEDY
        )
    if place := _difference(written, expected):
        raise DamagedFile(f"{path}: {place} must be as {WEIGHTS} says", remedy=_REMEDY)


def _difference(written: Any, expected: Any, place: str = "") -> str:
    """Where two JSON values differ, first; empty if nowhere."""
    if isinstance(written, dict) and isinstance(expected, dict):
        for name in (*expected, *(name for name in written if name not in expected)):
            inner = f"{place}.{name}".removeprefix(".")
            if name not in written or name not in expected:
                return inner
            if found := _difference(written[name], expected[name], inner):
                return found
        return ""
    if isinstance(written, list) and isinstance(expected, list) and len(written) == len(expected):
        pairs = enumerate(zip(written, expected, strict=True))
        return next((found for n, (a, b) in pairs if (found := _difference(a, b, f"{place}[{n}]"))), "")
    return "" if written == expected else place


def _check_graph(path: Path, saved: NetworkFile) -> tuple[str, ...]:
    """The graph's own hash, if there is a graph; it must have been made from these weights."""
    if not path.is_file():
        return ()
    from snugnet.costs.graph import read_graph  # these bring the ONNX packages in
    from snugnet.deploy.export import checked_metadata, graph_hash

    graph = read_graph(path)
    if checked_metadata(graph, path).get("weights_sha256") != saved.weights_sha256:
        raise DamagedFile(f"{path} must have been made from {WEIGHTS}", remedy=_REMEDY)
    return (graph_hash(graph),)
