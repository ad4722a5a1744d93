"""What there is to choose from: search spaces, published networks, devices, and the exact costs of any network.

`snugnet spaces`, `show`, `zoo` and `devices`.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from snugnet.cli.options import Batch, DeviceThreads, Lose, Precision, Seconds, read_lose, timing
from snugnet.cli.printing import Json, check_picture, picture_of_networks, print_json, print_table, say
from snugnet.cli.runtimes import OnDevices, compare_published
from snugnet.costs import analytic
from snugnet.errors import BadArchitecture, BadInput, UnknownName
from snugnet.progress import RichProgress
from snugnet.space import zoo as published
from snugnet.space.architecture import Architecture, check, read_json_form, read_text_form
from snugnet.space.presets import PRESETS, names, preset
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
OnDevice = Annotated[
    str | None, typer.Option("--device", help="Also measure them all here, in shuffled passes: see `snugnet devices`.")
]
Plot = Annotated[
    Path | None, typer.Option("--plot", help="With --device: draw accuracy against latency (.svg, .png, .pdf).")
]


def spaces(json: Json = False) -> None:
    """List the search spaces that come with snugnet."""
    rows = []
    for name in names():
        space = preset(name)
        about = (PRESETS[name.removesuffix("-lowres")].__doc__ or "").strip().split("\n")[0]
        if name.endswith("-lowres"):
            about = f"The same for images of 28 to 64 pixels (here {', '.join(map(str, space.resolutions))})."
        facts: dict[str, Any] = {"name": name, "count": space.count, "stages": len(space.stages)}
        rows.append({**facts, "resolutions": list(space.resolutions), "about": about})
    if json:
        print_json(rows)
        return
    cells = [[r["name"], r["about"], f"{float(r['count']):.3g}"] for r in rows]
    print_table("Search spaces", ["name", "what it is", "networks"], cells, left=2)


def show(target: Target, space: InSpace = None, json: Json = False) -> None:
    """Show a space, a published network or an architecture: stages, counts, MACs and parameters."""
    if space is not None and not ("|" in target or target.lower().endswith(".json")):
        raise BadInput("--space belongs to an architecture", value=target, remedy="Leave --space out.")
    if "|" in target:
        _show_architecture(read_text_form(target), space, json)
    elif target.lower().endswith(".json"):
        value = read_json(target)
        if not isinstance(value, dict):
            rule = f"{target} must hold an architecture, a JSON object"
            raise BadArchitecture(rule, value=value, remedy="Give the architecture.json of a run.")
        _show_architecture(read_json_form(value.get("architecture", value)), space, json)
    elif target.lower().endswith((".yaml", ".yml")) or target.lower() in names():
        _show_space(find_space(target), json)
    elif target.lower() in {name.lower() for name in published.networks()}:
        entry = published.find(target)
        extra = {"published": entry.figures, "source": entry.source, "convention": entry.convention}
        _show_network(entry.name, entry.network, entry.architecture, entry.space, extra, json)
    elif Path(target).exists():
        raise BadArchitecture("a file to show must be .yaml (a space) or .json", value=target, remedy="Rename it.")
    else:
        raise UnknownName("what to show", target, [*names(), *published.networks()])


def _show_architecture(architecture: Architecture, space_name: str | None, json: bool) -> None:
    space = find_space(space_name) if space_name else _first_space(architecture)
    check(architecture, space)
    _show_network("architecture", plan(architecture, space), architecture, space.name, {}, json)


def _first_space(architecture: Architecture) -> SearchSpace:
    complaints = {}
    for name in names():
        try:
            check(architecture, preset(name))
            return preset(name)
        except BadArchitecture as error:
            complaints[name] = error.rule
    rule = f"an architecture without --space must belong to a preset ({complaints['hardcore']})"
    raise BadArchitecture(rule, value=str(architecture), remedy="Name its space with --space.")


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
        stages = [_stage_json(stage) for stage in space.stages]
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
    title = f"{space.name}: {space.count:.4g} networks at {_commas(space.resolutions)} px, {space.classes} classes"
    columns = ["stage", "width", "stride", "depth", "activation", "choice per", "choices"]
    print_table(title, columns, rows, left=7)
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
        facts = {"name": name, "space": space, "architecture": str(architecture) if architecture else None}
        blocks = [[part.label for part in stage] for stage in network.stages]
        parts = {"stem": network.stem.label, "stages": blocks, "head": network.head.label}
        print_json({**facts, **sizes, **extra, **parts})
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


def _stage_json(stage: Stage) -> dict[str, Any]:
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


def zoo(
    device: OnDevice = None,
    threads: DeviceThreads = 1,
    precision: Precision = "float32",
    batch: Batch = 1,
    plot: Plot = None,
    seconds: Seconds = None,
    devices: OnDevices = None,
    lose: Lose = "at-most=0.5%",
    json: Json = False,
) -> None:
    """List the published networks with the papers' figures and our own exact counts; with --device, measure them."""
    rows = [_row(entry) for entry in published.networks().values()]
    if devices is not None:
        if device is not None or plot is not None:
            remedy = "Leave --device and --plot out."
            raise BadInput("--devices compares runtimes, without --device and --plot", value=devices, remedy=remedy)
        compare_published(rows, devices, read_lose(lose), threads, batch, seconds, json)
        return
    message = ""
    if device is not None:
        message = _measure(rows, device, threads, precision, batch, plot, seconds)
    elif plot is not None:
        raise BadInput("a picture needs measured networks", value=str(plot), remedy="Add --device torch-cpu.")
    if json:
        print_json(rows)
        return
    if device is not None:
        _print_measured(rows, f"{device}, {threads} thread(s), batch {batch}")
        say(message + (f" Wrote {plot}." if plot else ""))
        return
    cells = []
    for row in rows:
        px, mmacs, mparams = _size_cells(row)
        published_macs, top1, latency = (_figure(row, name) for name in ("mmacs", "top1", "latency_ms"))
        place = row["published"].get("latency_on", "")
        cells.append([row["name"], row["space"] or "-", px, mmacs, published_macs, mparams, top1, latency, place])
    columns = ["network", "space", "px", "MMACs", "published", "Mparams", "top-1 %", "latency ms"]
    columns.append("measured by its authors on")
    print_table("Published networks: our counts, the papers' figures", columns, cells, left=2)


def _measure(
    rows: list[dict[str, Any]],
    device: str,
    threads: int,
    precision: str,
    batch: int,
    plot: Path | None,
    seconds: float | None,
) -> str:
    """Add what each network takes on `device` to its row."""
    from snugnet.costs.measure import time_networks
    from snugnet.devices import by_name  # these bring torch in: not for the plain list

    check_picture(plot)
    place = by_name(device, threads=threads, precision=precision)
    plans = {entry.name: entry.network for entry in published.networks().values()}
    settings = timing(120.0 if seconds is None else seconds)
    times, message = time_networks(plans, place, batch=batch, settings=settings, progress=RichProgress())
    for row in rows:
        time = times[row["name"]]
        row["measured"] = {"latency_ms": time.ms, "low_ms": time.low, "high_ms": time.high, "on": place.fingerprint()}
    if plot is not None:
        points = []
        for row in rows:
            time, top1 = row["measured"]["latency_ms"], row["published"].get("top1")
            points.append({"name": row["name"], "latency_ms": time, "top1": top1})
        picture_of_networks(points, plot, f"Published networks on {device}, {threads} thread(s), batch {batch}")
    return message


def _print_measured(rows: list[dict[str, Any]], where: str) -> None:
    """Fastest first; a star marks those that no faster one beats in published accuracy."""
    best, cells = float("-inf"), []
    for row in sorted(rows, key=lambda row: float(row["measured"]["latency_ms"])):
        time, accuracy = row["measured"], row["published"].get("top1")
        ahead = accuracy is not None and accuracy > best
        best = accuracy if ahead else best
        interval = f"{time['low_ms']:.2f}-{time['high_ms']:.2f}"
        figures = [f"{time['latency_ms']:.2f}", interval, *_size_cells(row), _figure(row, "top1")]
        cells.append([row["name"], "*" if ahead else "", *figures])
    columns = ["network", "", "latency ms", "95 % interval", "px", "MMACs", "Mparams", "published top-1 %"]
    print_table(f"Published networks on {where} (* no faster one is more accurate)", columns, cells, left=2)


def _size_cells(row: dict[str, Any]) -> list[str]:
    return [str(row["resolution"]), f"{row['mmacs']:.1f}", f"{row['mparams']:.3f}"]


def _row(entry: published.Published) -> dict[str, Any]:
    return {
        "name": entry.name,
        "space": entry.space,
        "architecture": str(entry.architecture) if entry.architecture else None,
        "resolution": entry.network.resolution,
        "mmacs": round(analytic.macs(entry.network, entry.convention) / 1e6, 6),
        "convention": entry.convention,
        "mparams": round(analytic.params(entry.network) / 1e6, 6),
        "peak_memory_bytes": analytic.peak_memory(entry.network),
        "published": entry.figures,
        "source": entry.source,
    }


def _figure(row: dict[str, Any], key: str) -> str:
    value = row["published"].get(key)
    return "-" if value is None else f"{value:g}"


def devices(json: Json = False) -> None:
    """List the devices and runtimes, and what is missing for those that cannot be used here."""
    from snugnet.devices import listing
    from snugnet.devices.agent import processor  # these bring torch in: not for `snugnet --help`

    rows = listing()
    if json:
        print_json([asdict(row) for row in rows])
        return
    cells = []
    for row in rows:
        missing = escape(f"{row.reason}. {row.remedy}") if row.reason else ""
        cells.append([row.name, "yes" if row.here else "no", ", ".join(row.precisions), missing])
    columns = ["name", "here", "precisions", "what is missing"]
    print_table(f"Devices on this machine ({processor()})", columns, cells, left=4)
