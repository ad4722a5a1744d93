"""`snugnet show`: a space, a published network or an architecture, with its exact costs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from snugnet.cli.printing import Json, print_json, print_table
from snugnet.costs import analytic
from snugnet.errors import BadArchitecture, UnknownName
from snugnet.space import zoo
from snugnet.space.architecture import Architecture, check, read_json_form, read_text_form
from snugnet.space.presets import names, preset
from snugnet.space.reading import find_space
from snugnet.space.sampling import largest, smallest
from snugnet.space.space import SearchSpace, Stage
from snugnet.space.spec import NetworkSpec, plan
from snugnet.store import read_json
from snugnet.units import show as quantity

Target = Annotated[
    str,
    typer.Argument(
        metavar="SPACE|NETWORK|ARCHITECTURE",
        help="A space (a preset's name or a YAML file), a published network's name, or an architecture "
        "(its text in quotes, or a JSON file).",
    ),
]
InSpace = Annotated[
    str | None, typer.Option("--space", help="The space an architecture belongs to (default: the first that fits).")
]


def show(target: Target, space: InSpace = None, json: Json = False) -> None:
    """Show a space, a published network or an architecture: stages, counts, MACs and parameters."""
    if "|" in target:
        _show_architecture(read_text_form(target), space, json)
    elif target.lower().endswith(".json"):
        value = read_json(target)
        _show_architecture(
            read_json_form(value.get("architecture", value) if isinstance(value, dict) else value), space, json
        )
    elif target.lower().endswith((".yaml", ".yml")) or target.lower() in names():
        _show_space(find_space(target), json)
    elif target.lower() in {name.lower() for name in zoo.networks()}:
        entry = zoo.find(target)
        extra = {"published": entry.figures, "source": entry.source, "convention": entry.convention}
        _show_network(entry.name, entry.network, entry.architecture, entry.space, extra, json)
    elif Path(target).exists():
        raise BadArchitecture("a file to show must be .yaml (a space) or .json", value=target, remedy="Rename it.")
    else:
        raise UnknownName("what to show", target, [*names(), *zoo.networks()])


def _show_architecture(architecture: Architecture, space_name: str | None, json: bool) -> None:
    space = find_space(space_name) if space_name else _first_space(architecture)
    check(architecture, space)
    _show_network("architecture", plan(architecture, space), architecture, space.name, {}, json)


def _first_space(architecture: Architecture) -> SearchSpace:
    complaints = {}
    for name in names():
        space = preset(name)
        try:
            check(architecture, space)
            return space
        except BadArchitecture as error:
            complaints[name] = error
    near = complaints["hardcore"]
    raise BadArchitecture(
        f"an architecture without --space must belong to a preset ({near.rule})",
        value=str(architecture),
        remedy="Name its space with --space.",
    )


def _sizes(network: NetworkSpec, convention: analytic.Convention = "layers") -> dict[str, Any]:
    return {
        "mmacs": round(analytic.macs(network, convention) / 1e6, 6),
        "mparams": round(analytic.params(network) / 1e6, 6),
        "weight_bytes": analytic.weight_bytes(network),
        "peak_memory_bytes": analytic.peak_memory(network),
    }


def _show_space(space: SearchSpace, json: bool) -> None:
    small, large = (plan(extreme(space), space) for extreme in (smallest, largest))
    low, high = _sizes(small), _sizes(large)
    if json:
        stages = [_stage_words(stage) for stage in space.stages]
        bounds = {f"{end}_{key}": sizes[key] for end, sizes in (("min", low), ("max", high)) for key in sizes}
        print_json(
            {
                "name": space.name,
                "count": space.count,
                "classes": space.classes,
                "resolutions": list(space.resolutions),
                "stem": {"widths": list(space.stem.widths), "stride": space.stem.stride, "act": space.stem.act},
                "stages": stages,
                "head": {"kind": space.head.kind, "widths": list(space.head.widths), "act": space.head.act},
                **bounds,
            }
        )
        return
    rows = [
        [str(n), *(str(value) for value in (_commas(s.widths), s.stride, _commas(s.depths), s.act, s.per)), _labels(s)]
        for n, s in enumerate(space.stages, 1)
    ]
    print_table(
        f"{space.name}: {space.count:.4g} networks at {_commas(space.resolutions)} px, {space.classes} classes",
        ["stage", "width", "stride", "depth", "activation", "choice per", "choices"],
        rows,
        left=7,
    )
    ends = [[end, *_cells(sizes)] for end, sizes in (("smallest", low), ("largest", high))]
    print_table("", ["network", "MACs", "parameters", "weights", "peak memory"], ends)


def _show_network(
    name: str,
    network: NetworkSpec,
    architecture: Architecture | None,
    space: str | None,
    extra: dict[str, Any],
    json: bool,
) -> None:
    sizes = _sizes(network, extra.get("convention", "layers"))
    if json:
        words = {"name": name, "space": space, "architecture": str(architecture) if architecture else None}
        blocks = [[part.label for part in stage] for stage in network.stages]
        print_json(
            {**words, **sizes, **extra, "stem": network.stem.label, "stages": blocks, "head": network.head.label}
        )
        return
    rows = [["stem", network.stem.label.removeprefix("stem "), *_part_cells(network.stem)]]
    for number, stage in enumerate(network.stages, 1):
        rows += [[f"stage {number}", part.label.removeprefix("block "), *_part_cells(part)] for part in stage]
    rows.append(["head", network.head.label.removeprefix("head "), *_part_cells(network.head)])
    title = f"{name}: {', '.join(_cells(sizes)[:2])} parameters, peak memory {_cells(sizes)[3]}"
    print_table(title, ["part", "in > middle > out", "MACs", "parameters"], rows, left=2)
    if architecture is not None:
        print(f"space {space}: {architecture}")
    if extra.get("published"):
        print("published: " + ", ".join(f"{key} {value}" for key, value in extra["published"].items()))


def _stage_words(stage: Stage) -> dict[str, Any]:
    return {
        "widths": list(stage.widths),
        "depths": list(stage.depths),
        "stride": stage.stride,
        "act": stage.act,
        "per": stage.per,
        "choices": [choice.label for choice in stage.choices],
    }


def _cells(sizes: dict[str, Any]) -> list[str]:
    numbers = (sizes["mmacs"] * 1e6, sizes["mparams"] * 1e6, sizes["weight_bytes"], sizes["peak_memory_bytes"])
    return [quantity(n, r) for n, r in zip(numbers, ("macs", "params", "model_size", "memory"))]


def _part_cells(part: Any) -> list[str]:
    return [quantity(analytic.macs(part), "macs"), quantity(analytic.params(part), "params")]


def _commas(values: tuple[int, ...]) -> str:
    return ", ".join(map(str, values))


def _labels(stage: Stage) -> str:
    ranges = sorted({choice.expand_range for choice in stage.choices if choice.expand_range})
    text = " ".join(choice.label for choice in stage.choices)
    return text + ("; middle width free in " + ", ".join(f"[{a:g}, {b:g}]" for a, b in ranges) if ranges else "")
