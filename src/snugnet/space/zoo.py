"""Published networks, from the same blocks as everything else.

They stand in `zoo.json` with the papers' figures: searched networks (HardCoRe-NAS A-F, TF-NAS, AttentiveNAS, AlphaNet) as
architectures of their spaces, in text form; each of the hand-made baselines that papers compare with as the one network of
a space of its own, in a space's YAML form.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from snugnet.errors import UnknownName
from snugnet.space.architecture import Architecture, parse
from snugnet.space.presets import preset
from snugnet.space.reading import space_from_dict
from snugnet.space.sampling import largest
from snugnet.space.spec import NetworkSpec, plan


@dataclass(frozen=True, kw_only=True)
class Published:
    """A network of a paper: its plan, the figures its authors report, and its place in a space if it has one."""

    name: str
    network: NetworkSpec
    figures: dict[str, Any]
    source: str
    space: str | None = None
    architecture: Architecture | None = None
    convention: Literal["layers", "tfnas"] = "layers"  # in which its authors count MACs

    def __hash__(self) -> int:
        return hash(self.name)


@cache
def networks() -> dict[str, Published]:
    """All published networks by name, in the papers' order."""
    data = json.loads(files("snugnet.space").joinpath("zoo.json").read_text())
    return {entry.name: entry for entry in (*_searched(data), *_baselines(data))}


def find(name: str) -> Published:
    """The network called `name`; case does not matter."""
    for entry in networks().values():
        if entry.name.lower() == name.lower():
            return entry
    raise UnknownName("a published network", name, networks())


def _searched(data: dict[str, Any]) -> Iterator[Published]:
    for entry in data["networks"]:
        space = preset(entry["space"])
        architecture = parse(entry["architecture"], space)
        family = max((f for f in data["sources"] if entry["name"].startswith(f)), key=len)
        yield Published(
            name=entry["name"],
            network=plan(architecture, space),
            figures=entry["published"],
            source=data["sources"][family],
            space=entry["space"],
            architecture=architecture,
            convention="tfnas" if family == "TF-NAS" else "layers",
        )


def _baselines(data: dict[str, Any]) -> Iterator[Published]:
    for entry in data["baselines"]:
        space = space_from_dict(entry["space"], "zoo.json")
        network = plan(largest(space), space)
        yield Published(name=space.name, network=network, figures=entry["published"], source=entry["source"])
