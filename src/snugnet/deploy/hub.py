"""A network on a model hub: the folder with everything in it, `push_to_hub`, and `sn.load("hf-hub:user/name")`.

To what timm needs (`snugnet.deploy.folder`) come `network.onnx`, the certificate if there is one of this network, and a
README whose numbers are those of the files beside it: nothing is claimed that was not measured. huggingface_hub (the extra
`hub`) is imported where it is used; `HF_ENDPOINT` names another hub, as it does for that library.
"""

from __future__ import annotations

import importlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, Final

import yaml
from torch import Tensor

from snugnet.costs import analytic
from snugnet.deploy.card import Certificate, open_certificate
from snugnet.deploy.export import export
from snugnet.deploy.folder import CERTIFICATE, GRAPH, check_folder, write_folder
from snugnet.deploy.network_file import NetworkFile
from snugnet.deploy.source import Source, home_of, open_source
from snugnet.errors import BadInput, FileTrouble, reason_of
from snugnet.store import parse_yaml, read_json, read_text, write_text
from snugnet.units import show

PREFIX: Final = "hf-hub:"


def write_hub_folder(
    source: Source, folder: str | Path, *, licence: str = "", repo: str = "", images: Tensor | None = None
) -> Path:
    """Write the network in `source` (a run folder brings its numbers along) as a hub's folder.

    `images` [N, C, H, W], prepared as for the network, are what the ONNX file is checked on besides random ones.
    """
    saved, home = open_source(source), home_of(source)
    target = write_folder(saved, folder)
    exported = export(saved.network, target / GRAPH, card=saved.card, images=images)
    certificate = _certificate(home, {exported.weights_sha256, exported.graph_sha256})
    if certificate is not None and home is not None:
        shutil.copyfile(home / CERTIFICATE, target / CERTIFICATE)
    else:
        (target / CERTIFICATE).unlink(missing_ok=True)  # one of an earlier export
    write_text(target / "README.md", readme(saved, certificate, _facts(home, saved), licence=licence, repo=repo))
    check_folder(target)
    return target


def push_to_hub(
    source: Source, repo: str, *, licence: str = "", private: bool = False, token: str | None = None
) -> str:
    """Upload the network in `source` to the hub's `repo` ("user/name"); the address comes back."""
    _check_repo(repo)
    hub = _package()
    with tempfile.TemporaryDirectory() as place:
        folder = write_hub_folder(source, Path(place) / "network", licence=licence, repo=repo)
        try:
            interface = hub.HfApi(endpoint=_endpoint(), token=token, library_name="snugnet")
            address = str(interface.create_repo(repo, private=private, exist_ok=True))
            interface.upload_folder(repo_id=repo, folder_path=folder, commit_message="Network exported by snugnet")
        except Exception as error:  # not logged in, no such user, no network: the library raises many kinds
            raise FileTrouble(
                f"{repo} could not be written on the hub ({type(error).__name__}: {reason_of(error)})",
                remedy="Check the name, your connection, and that you are logged in (`hf auth login`).",
            ) from error
    return address


def download(name: str) -> Path:
    """The folder of "hf-hub:user/name" or "hf-hub:user/name@revision", from the local cache where it is unchanged."""
    repo, _, revision = name.removeprefix(PREFIX).partition("@")
    _check_repo(repo)
    try:
        where = _package().snapshot_download(
            repo, revision=revision or None, endpoint=_endpoint(), allow_patterns=["*.safetensors", "*.json", "*.onnx"]
        )
    except BadInput:
        raise
    except Exception as error:
        raise FileTrouble(
            f"{repo} could not be read from the hub ({type(error).__name__}: {reason_of(error)})",
            remedy="Check the name and your connection; private ones want a login (`hf auth login`).",
        ) from error
    return Path(where)


def _endpoint() -> str | None:
    return os.environ.get("HF_ENDPOINT") or None


def _check_repo(repo: str) -> None:
    if len(repo.split("/")) != 2 or not all(repo.split("/")) or " " in repo:
        raise BadInput("a place on the hub must be user/name", value=repo, remedy="Write hf-hub:user/name.")


def _package() -> Any:
    try:
        return importlib.import_module("huggingface_hub")
    except ImportError as error:
        raise BadInput(
            "a model hub needs the package huggingface_hub",
            value=f"not importable: {error}",
            remedy="Run pip install 'snugnet[hub]'.",
        ) from error


# --- what the folder tells ---------------------------------------------------------------------------------------------


def _certificate(home: Path | None, marks: set[str]) -> Certificate | None:
    """The run's certificate, if it is of this network."""
    if home is None or not (home / CERTIFICATE).is_file():
        return None
    certificate = open_certificate(home / CERTIFICATE)
    return certificate if certificate.weights_sha256 in marks else None


def _facts(home: Path | None, saved: NetworkFile) -> dict[str, Any]:
    """What a run folder knows: the data's name, and the accuracy on test images if it is of this architecture."""
    facts: dict[str, Any] = {}
    if home is not None and (home / "recipe.yaml").is_file():
        recipe = parse_yaml(read_text(home / "recipe.yaml"), str(home / "recipe.yaml"))
        data = recipe.get("data") if isinstance(recipe, dict) else None
        facts["data"] = data.get("name") if isinstance(data, dict) else data
    if home is not None and (home / "accuracy.json").is_file():
        accuracy = read_json(home / "accuracy.json")
        if accuracy.get("architecture") == saved.card.architecture:
            facts["accuracy"] = accuracy.get("test")
    return facts


def readme(
    saved: NetworkFile, certificate: Certificate | None, facts: dict[str, Any], *, licence: str = "", repo: str = ""
) -> str:
    """The model card: front matter for the hub, then numbers, budget, data, licence, and three lines to run it."""
    plan, card = saved.plan, saved.card
    data, accuracy = facts.get("data"), facts.get("accuracy")
    title = repo.split("/")[-1] or card.space or card.notes.get("published") or "network"
    front: dict[str, Any] = {
        "license": licence or "unknown",
        "library_name": "snugnet",
        "pipeline_tag": "image-classification",
        "tags": ["snugnet", "timm", "onnx", "image-classification"],
    }
    if data:
        front["datasets"] = [str(data).rsplit("/", 1)[-1].removeprefix("folder:")]
    shape = f"[N, {plan.stem.in_channels}, {plan.resolution}, {plan.resolution}]"
    normalised = f"mean {list(card.mean)}, std {list(card.std)}" if card.mean else "values from 0 to 1"
    lines = [
        f"---\n{yaml.safe_dump(front, sort_keys=False)}---",
        f"# {title}",
        "An image classifier found by snugnet: the most accurate network that meets a budget.",
        "```python\nimport snugnet as sn\n"
        f'network = sn.load("{PREFIX + repo if repo else "path/of/this/folder"}")\n'
        f"logits = network(images)  # float {shape}, {normalised}\n```",
        "`network.onnx` computes the same in any ONNX runtime; `import snugnet.timm` lets timm open this folder.",
        "## Measured",
        _table(saved, certificate, accuracy),
        "## Facts",
        f"- Data: {data or 'not stated'}; {plan.head.classes} classes{_names(card.class_names)}",
        f"- Licence: {licence or 'not stated; ask the owner before use'}",
        f"- Architecture: `{card.architecture or 'see config.json'}`"
        + (f" of the space {card.space}" if card.space else ""),
        *(f"- {name}: {text}" for name, text in sorted(card.notes.items())),
    ]
    facts_from = lines.index("## Facts") + 1
    return "\n\n".join([*lines[:facts_from], "\n".join(lines[facts_from:])]) + "\n"


def _names(names: tuple[str, ...]) -> str:
    return f": {', '.join(names[:10])}{', ...' if len(names) > 10 else ''}" if names else ""


def _table(saved: NetworkFile, certificate: Certificate | None, accuracy: float | None) -> str:
    plan = saved.plan
    counted = {"macs": analytic.macs(plan), "params": analytic.params(plan)}
    rows = ["| | value | budget |", "|---|---|---|"]
    if accuracy is not None:
        rows.append(f"| accuracy on test images | {100 * accuracy:.2f} % | |")
    limits = saved.card.budget
    for line in certificate.lines if certificate is not None else ():
        counted.pop(line.name, None)
        value = show(line.measured, line.name)
        if not line.exact:
            place = f"{line.device.get('device')}, {line.device.get('threads')} thread, {line.device.get('processor')}"
            value += f" ({line.statistic}; 95 %: {' to '.join(show(end, line.name) for end in line.interval)}; {place})"
        rows.append(f"| {line.name} | {value} | {show(line.limit, line.name)} |")
    rows += [f"| {name} | {show(value, name)} | {limits.get(name, '')} |" for name, value in counted.items()]
    if certificate is None:
        rows.append(f"\nNo certificate: the limits {limits or '(none)'} were not measured on a device.")
    elif not certificate.fits:
        rows.append("\nThe certificate says: does not fit.")
    return "\n".join(rows)
