"""Spaces and networks as the page's script wants them: plain numbers, ready to be drawn and summed.

`space_of` rebuilds the run's space from what its files say and believes it only if the table holds its parts.
`drawn` is one network; `explorer` is the whole space with the cost and worth of every choice, on which the page solves.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from snugnet.budgets import cheapest, dearest
from snugnet.costs.table import CostTable, exact_table
from snugnet.errors import BadInput, DamagedFile, SnugnetError
from snugnet.reporting.reading import RunFiles
from snugnet.searching.choice_effects import columns, split
from snugnet.space.architecture import Architecture, find_choice, parse, read_json_form
from snugnet.space.plan import BlockSpec, HeadSpec, StemSpec, plan
from snugnet.space.reading import find_space
from snugnet.space.slots import slots, why_not_additive
from snugnet.space.space import SearchSpace
from snugnet.space.stored import space_from_json
from snugnet.units import resource

Floats = NDArray[np.float64]
_COUNTED: Final = ("macs", "params", "memory")


def space_of(files: RunFiles) -> SearchSpace:
    """The space of a run by its table and recipe; an error with the reason where they do not tell."""
    if "table" not in files:
        raise BadInput("the run's space must be known from its table", remedy=files.trouble["table"])
    origin = files["table"].origin
    if "definition" in origin:
        return space_from_json(origin["definition"], str(files.paths["table"]))
    asked = files.found.get("recipe", {}).get("space") or {}
    word = asked.get("name") or origin.get("source") or origin["space"]
    if str(word).lower().endswith((".yaml", ".yml")):
        space = find_space(word)
        space = replace(space, classes=origin.get("classes", space.classes))
    else:
        sizes = origin.get("resolutions", [])
        options = {"classes": origin.get("classes"), "resolution": sizes[0] if len(sizes) == 1 else None}
        options["width"] = asked.get("width")
        space = find_space(word, **{name: value for name, value in options.items() if value is not None})
    if found := files["table"].differences(space=space):
        raise BadInput("the recipe's space must be the table's", value=found, remedy="Make the report in Python.")
    return space


def tables_of(files: RunFiles, space: SearchSpace) -> dict[str, CostTable]:
    """The run's own table, and exact ones of what can be counted."""
    tables: dict[str, CostTable] = {}
    if "table" in files:
        files["table"].require(space=space)
        tables[files["table"].resource] = files["table"]
    limited = files.found.get("search", {}).get("limits", {})
    wanted = (*_COUNTED, *(["model_size"] if "model_size" in limited else []))
    return tables | {name: exact_table(space, name) for name in wanted if name not in tables}


def chosen_of(files: RunFiles) -> Architecture:
    """The network the run came to."""
    if "search" in files:
        return read_json_form(files["search"]["layers"])
    return read_json_form(files["architecture"])


def drawn(architecture: Architecture, space: SearchSpace | None, tables: dict[str, CostTable]) -> dict[str, Any]:
    """A network for the page; sizes and costs are added where the space is known."""
    if space is None:
        return _bare(architecture)
    network = plan(architecture, space)
    stages = []
    for index, (made, parts) in enumerate(zip(architecture.stages, network.stages)):
        rows = map(space.stages[index].choices_at, range(len(made.blocks)))
        offered = [find_choice(block, row) for block, row in zip(made.blocks, rows)]
        blocks = [_block(part, choice.expand, tables) for part, choice in zip(parts, offered) if choice is not None]
        stages.append({**_stage_words(index, space), "width": made.width, "blocks": blocks})
    total = {name: table.of_network(network) for name, table in tables.items()}
    ends = {"stem": _end(network.stem, tables), "head": _end(network.head, tables)}
    return {"text": str(architecture), "resolution": network.resolution, "stages": stages, "total": total, **ends}


def explorer(files: RunFiles, space: SearchSpace, tables: dict[str, CostTable]) -> dict[str, Any]:
    """Every choice with its worth and its costs: what the page's sliders solve over."""
    options, depths = _worths(files, space)
    arranged = slots(space)
    stages = []
    for index, stage in enumerate(space.stages):
        cells = [
            [_block(part, choice.expand, tables) for part, choice in zip(parts, stage.choices_at(position))]
            for position, parts in enumerate(arranged.blocks[index])
        ]
        # Greater is better from here on: the page maximises what Python's solver maximises.
        effect = [[-float(value) for value in row] for row in options[index]]
        depth_worth = [-float(value) for value in depths[index]]
        words = _stage_words(index, space)
        stages.append(
            {**words, "depths": list(stage.depths), "cells": cells, "worth": effect, "depthWorth": depth_worth}
        )
    ends = {"stem": _end(arranged.stem, tables), "head": _end(arranged.head, tables)}
    return {
        "resources": [slider(name, table, files, _ends(table, space)) for name, table in tables.items()],
        "stages": stages,
        "resolution": space.resolutions[0],
        "stemWidth": space.stem.widths[0],
        "headWidth": space.head.widths[0],
        "accuracy": _accuracy_line(files, space, options, depths),
        **ends,
    }


def worth_of(
    architecture: Architecture, space: SearchSpace, options: list[list[Floats]], depths: list[Floats]
) -> float:
    """How much worse than others the saved worths make a network, up to a constant."""
    total = 0.0
    for index, (made, stage) in enumerate(zip(architecture.stages, space.stages)):
        total += float(depths[index][stage.depths.index(len(made.blocks))])
        for position, block in enumerate(made.blocks):
            choices = stage.choices_at(position)
            choice = find_choice(block, choices)
            assert choice is not None  # `parse` has seen to it
            total += float(options[index][position][choices.index(choice)])
    return total


def _worths(files: RunFiles, space: SearchSpace) -> tuple[list[list[Floats]], list[Floats]]:
    """What is lost by [stage][position][choice] and [stage][depth], from the run's saved worths."""
    saved = (files["worths"] if "worths" in files else files["search"]["details"])["worths"]
    if "value" not in saved:
        raise DamagedFile(
            "saved worths must hold a value for each choice (these were saved by an older version)",
            remedy="Learn them again: `snugnet search RUN --method instant`.",
        )
    flat = -np.array(saved["value"], dtype=float)
    size = columns(space)
    if flat.shape != (size,) or not np.isfinite(flat).all():
        raise DamagedFile(f"saved worths must be {size} numbers", value=flat.shape, remedy="Learn them again.")
    return split(space, flat)


def _accuracy_line(
    files: RunFiles, space: SearchSpace, options: list[list[Floats]], depths: list[Floats]
) -> dict[str, float]:
    """Accuracy = intercept + slope * worth, fitted to the networks that were evaluated; empty where too few were."""
    pairs = []
    for row in files.found.get("evaluations", []):
        try:
            architecture = parse(row["network"], space)
        except (KeyError, SnugnetError):
            continue  # the header line, or a network of another space
        pairs.append((-worth_of(architecture, space, options, depths), float(row["accuracy"])))
    x, y = np.array([p[0] for p in pairs]), np.array([p[1] for p in pairs])
    if len(pairs) < 8 or np.ptp(x) < 1e-12:
        return {}
    slope, intercept = np.polyfit(x, y, 1)
    error = float(np.sqrt(((y - intercept - slope * x) ** 2).sum() / (len(y) - 2)))
    return {"slope": float(slope), "intercept": float(intercept), "error": error, "networks": float(len(y))}


def why_no_solver(files: RunFiles, space: SearchSpace) -> str:
    """An empty text if the page can solve over the whole space, else the reason."""
    if reason := why_not_additive(space):
        return f"Costs of this space do not add up block by block ({reason})."
    details = files.found.get("search", {}).get("details", {})
    return "" if "worths" in files or "worths" in details else files.trouble["worths"]


def _ends(table: CostTable, space: SearchSpace) -> tuple[float, float]:
    return cheapest(space, table).cost * (1.0 + table.margin), dearest(space, table).cost * (1.0 + table.margin)


def slider(name: str, table: CostTable, files: RunFiles, ends: tuple[float, float]) -> dict[str, Any]:
    """A resource with the range of its slider in what a user asks for: the table's cost and its margin on top."""
    room, (low, high) = 1.0 + table.margin, ends
    search = files.found.get("search", {}).get("limits", {})
    budgets = files.found.get("certificate", {}).get("budgets", {})
    asked = budgets[name]["limit"] if name in budgets else search[name] * room if name in search else high
    return {
        "name": name,
        "unit": resource(name).unit,
        "combine": table.combine,
        "margin": table.margin,
        "low": low,
        "high": high,
        "start": min(max(float(asked), low), high),
    }


def _block(part: BlockSpec, expand: float, tables: dict[str, CostTable]) -> dict[str, Any]:
    return {
        "kernel": part.kernel,
        "expand": expand,
        "se": part.se > 0,
        "in": part.in_channels,
        "middle": part.mid_channels,
        "out": part.out_channels,
        "size": part.resolution,
        "stride": part.stride,
        "cost": {name: table.of_part(part) for name, table in tables.items()},
    }


def _end(part: StemSpec | HeadSpec, tables: dict[str, CostTable]) -> dict[str, Any]:
    words = f"{part.in_channels} → {part.out_channels} channels" if isinstance(part, StemSpec) else ""
    if isinstance(part, HeadSpec):
        widths = [part.in_channels, part.hidden, *([part.pooled] if part.pooled else [])]
        words = f"{' → '.join(map(str, widths))} channels → {part.classes} classes"
    return {"label": part.label, "words": words, "cost": {name: table.of_part(part) for name, table in tables.items()}}


def _stage_words(index: int, space: SearchSpace) -> dict[str, Any]:
    stage = space.stages[index]
    return {"name": f"Stage {index + 1}", "width": stage.widths[0], "slots": stage.max_depth}


def _bare(architecture: Architecture) -> dict[str, Any]:
    """A network of an unknown space: what its own words say."""
    stages, before = [], architecture.stem
    for index, made in enumerate(architecture.stages, 1):
        blocks = []
        for block in made.blocks:
            mid_channels = block.mid_channels or round(block.expand * before)
            shape = {"in": before, "middle": mid_channels, "out": made.width}
            blocks.append({"kernel": block.kernel, "expand": block.expand, "se": block.se, **shape, "cost": {}})
            before = made.width
        stages.append({"name": f"Stage {index}", "width": made.width, "slots": len(blocks), "blocks": blocks})
    ends: dict[str, Any] = {
        "stem": {"label": f"stem {architecture.stem}", "words": f"{architecture.stem} channels", "cost": {}},
        "head": {"label": f"head {architecture.head}", "words": f"{architecture.head} features", "cost": {}},
    }
    return {"text": str(architecture), "resolution": architecture.resolution, "stages": stages, "total": {}, **ends}
