"""From the files of a run to the numbers behind each picture of the page.

Every function gives one section as plain data. Sections do not know each other, and none of them is needed: where a file is
missing, `{"missing": reason}` stands in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from snugnet.costs.table import CostTable
from snugnet.errors import BadInput, SnugnetError
from snugnet.reporting.pool import AskedLimit, PoolNetwork, RunNetworks
from snugnet.reporting.reading import RunFiles, TrainRow, space_of, tables_of
from snugnet.space.architecture import Architecture
from snugnet.space.layout import Layout
from snugnet.space.space import SearchSpace, Stage
from snugnet.space.spec import BlockSpec, HeadSpec, NetworkSpec, StemSpec, plan
from snugnet.units import resource

Section = dict[str, Any]
Tables = Mapping[str, CostTable]
_MOST_POINTS: Final = 400  # of one curve: more than a screen can show


def page_data(files: RunFiles, space: SearchSpace | None) -> dict[str, Section]:
    """Everything the page's script draws; without the space it draws what the network's own text says."""
    tables: dict[str, CostTable] = {}
    unknown = ""
    try:
        space = space or space_of(files)
        tables = tables_of(files, space)
    except SnugnetError as error:
        space, unknown = None, str(error)
    known = space
    networks = None if known is None else RunNetworks(files, known, tables)

    def with_space(work: Callable[[RunNetworks], Section]) -> Section:
        return {"missing": f"Not without knowing the space: {unknown}"} if networks is None else work(networks)

    source = "search" if files.search is not None else "architecture"
    has_dots = files.evaluations is not None and files.search is not None
    return {
        "network": files.attempt("network", lambda: _chosen(files, known, tables), source),
        "check": files.attempt("check", lambda: _check(files), *([] if _fitted_networks(files) else ["check"])),
        "front": files.attempt("front", lambda: _front(files, networks), *([] if has_dots else ["front"])),
        "explorer": files.attempt("explorer", lambda: with_space(_explorer)),
        "training": files.attempt("training", lambda: _curves(files.training or []), "training"),
        "finetuning": files.attempt("finetuning", lambda: _curves(files.finetuning or []), "finetuning"),
        "heat": files.attempt("heat", lambda: _heat(files, known), "search"),
        "movement": files.attempt("movement", lambda: _movement(files.training or [], known)),
        "effects": files.attempt("effects", lambda: with_space(_effects)),
    }


# --- networks ---------------------------------------------------------------------------------------------------------


def _chosen(files: RunFiles, space: SearchSpace | None, tables: Tables) -> Section:
    """The chosen network; sizes and costs are added where the space is known."""
    architecture = files.chosen
    assert architecture is not None  # one of its two files is there
    if space is None:
        return _without_space(architecture)
    network = plan(architecture, space)
    stages = []
    for index, row in enumerate(_blocks(architecture, network)):
        width, slots = architecture.stages[index].width, space.stages[index].max_depth
        blocks = [part_words(part, tables, expand) for part, expand in row]
        stages.append({"name": f"Stage {index + 1}", "width": width, "slots": slots, "blocks": blocks})
    ends = {"stem": part_words(network.stem, tables), "head": part_words(network.head, tables)}
    return {"text": str(architecture), "stages": stages, **ends}


def _blocks(architecture: Architecture, network: NetworkSpec) -> list[list[tuple[BlockSpec, float]]]:
    """Every stage's blocks, each with the expansion its choice is named by."""
    return [
        [(part, block.expand) for part, block in zip(parts, stage.blocks)]
        for stage, parts in zip(architecture.stages, network.stages)
    ]


def part_words(part: StemSpec | BlockSpec | HeadSpec, tables: Tables, expand: float = 0.0) -> Section:
    """One part of a network as the page draws it."""
    cost = {name: table.of_part(part) for name, table in tables.items()}
    if isinstance(part, BlockSpec):
        shape = {"in": part.in_channels, "middle": part.mid_channels, "out": part.out_channels}
        place = {"size": part.resolution, "stride": part.stride}
        return {"kernel": part.kernel, "expand": expand, "se": part.se > 0, **shape, **place, "cost": cost}
    if isinstance(part, HeadSpec):
        widths = [part.in_channels, part.hidden, *([part.pooled] if part.pooled else [])]
        text = f"{' → '.join(map(str, widths))} channels → {part.classes} classes"
    else:
        text = f"{part.in_channels} → {part.out_channels} channels"
    return {"label": part.label, "words": text, "cost": cost}


def _without_space(architecture: Architecture) -> Section:
    """A network of an unknown space: what its own text says."""
    stages, before = [], architecture.stem
    for index, choice in enumerate(architecture.stages, 1):
        blocks = []
        for block in choice.blocks:
            shape = {"in": before, "middle": block.mid_channels or round(block.expand * before), "out": choice.width}
            blocks.append({"kernel": block.kernel, "expand": block.expand, "se": block.se, **shape, "cost": {}})
            before = choice.width
        stages.append({"name": f"Stage {index}", "width": choice.width, "slots": len(blocks), "blocks": blocks})
    ends: Section = {
        "stem": {"label": f"stem {architecture.stem}", "words": f"{architecture.stem} channels", "cost": {}},
        "head": {"label": f"head {architecture.head}", "words": f"{architecture.head} features", "cost": {}},
    }
    return {"text": str(architecture), "stages": stages, **ends}


# --- the explorer -----------------------------------------------------------------------------------------------------


def _explorer(known: RunNetworks) -> Section:
    """The pool and its sliders; parts of networks are listed once and named by number."""
    pool, tables, space, limits, reason = known.pool, known.tables, known.space, known.limits, known.why_only_evaluated
    if not pool:
        evaluations = known.files.trouble.get("evaluations", "No evaluated network is of this space.")
        raise BadInput("the explorer needs effects of choices or evaluated networks", remedy=f"{reason} {evaluations}")
    parts: dict[Any, Section] = {}
    numbers: dict[Any, int] = {}

    def number_of(part: StemSpec | BlockSpec | HeadSpec, expand: float = 0.0) -> int:
        if (part, expand) not in numbers:
            numbers[part, expand] = len(parts)
            parts[part, expand] = part_words(part, tables, expand)
        return numbers[part, expand]

    networks = []
    for row in pool:
        network = plan(row.architecture, space)
        networks.append(
            {
                "text": str(row.architecture),
                "widths": [choice.width for choice in row.architecture.stages],
                "blocks": [[number_of(*block) for block in blocks] for blocks in _blocks(row.architecture, network)],
                "stem": number_of(network.stem),
                "head": number_of(network.head),
                "costs": [row.costs[name] for name in tables],
                "needs": [limit.needed(row.costs[name]) for name, limit in limits.items()],
                "accuracy": row.accuracy,
                "evaluated": row.evaluated,
            }
        )
    return {
        "resources": [_slider(name, limit, pool) for name, limit in limits.items()],
        "parts": list(parts.values()),
        "slots": [stage.max_depth for stage in space.stages],
        "networks": networks,
        "reason": reason,
        "remark": known.why_another(),
    }


def _slider(name: str, limit: AskedLimit, pool: Sequence[PoolNetwork]) -> Section:
    """A resource and the range of its limit, in what a user asks for; it starts at what was asked, of which predictions may
    use `ratio`."""
    needs = [limit.needed(row.costs[name]) for row in pool]
    start = max(needs) if limit.asked is None else limit.asked
    ends = {"low": min(*needs, start), "high": max(*needs, start)}
    ratio = limit.effective(start) / start
    return {"name": name, "unit": resource(name).unit, "ratio": ratio, **ends, "start": start}


def _effects(known: RunNetworks) -> Section:
    """What every choice adds to the score against the mean of its block, and every depth against the mean of its stage."""
    if reason := known.why_only_evaluated:
        return {"missing": reason}
    layout, stages = known.layout, []
    columns = layout.split(known.effects)
    options = layout.by_stage(columns.options)
    for index, stage in enumerate(known.space.stages):
        alpha = [(row - row.mean()).tolist() for row in options[index]]
        beta = (columns.depths[index] - columns.depths[index].mean()).tolist()
        labels = {"name": f"Stage {index + 1}", "choices": _labels(stage), "depths": list(stage.depths)}
        stages.append({**labels, "alpha": alpha, "beta": beta})
    return {"stages": stages}


def _labels(stage: Stage) -> list[list[str]]:
    """The choices of every position."""
    return [[choice.label for choice in stage.choices_at(position)] for position in range(stage.max_depth)]


# --- charts -----------------------------------------------------------------------------------------------------------


def _fitted_networks(files: RunFiles) -> list[Mapping[str, Any]]:
    """The whole networks a table was calibrated with."""
    return [] if files.table is None else files.table.origin.get("networks") or []


def _check(files: RunFiles) -> Section:
    """Predicted against measured: networks the table was fitted to, networks it had not seen, and the chosen one."""
    names = ("predicted_ms", "measured_ms", "low_ms", "high_ms")
    seen = [[*(float(row[name]) for name in names), row["architecture"]] for row in _fitted_networks(files)]
    section: Section = {"seen": seen, "unseen": [], "figures": {}}
    if files.check is not None:
        check = files.check
        section["unseen"] = [[r.predicted, r.measured, r.low, r.high, r.architecture] for r in check.rows]
        section["figures"] = check.model_dump(include={"r2", "ratio", "worst_error", "margin", "speed"})
        section["message"] = check.message
    else:
        section["note"] = files.trouble["check"]
    line = None if files.certificate is None else files.certificate.budgets.get("latency")
    predicted = files.predicted("latency")
    if line is not None and predicted is not None:
        section["chosen"] = [predicted, line.measured, *line.interval, "the chosen network"]
    return section


def _front(files: RunFiles, known: RunNetworks | None) -> Section:
    """Accuracy against one resource: the front, every network that was evaluated, the chosen one before and after tuning."""
    search, front = files.search, files.front
    name = front.resource if front is not None else next(iter(search.limits if search is not None else {}))
    section: Section = {"resource": name, "unit": resource(name).unit, "points": [], "evaluated": [], "remark": ""}
    if front is not None:
        section["points"] = [[p.predicted[name], p.accuracy, p.architecture] for p in front.points]
    else:
        section["note"] = files.trouble["front"]
    if known is not None and name in known.tables:
        section["evaluated"] = [[row.costs[name], row.accuracy, text] for text, row in known.evaluated.items()]
        section["remark"] = known.remark_on_front()
    if search is not None and name in search.predicted:
        section["chosen"] = [search.predicted[name], search.accuracy]
    section["limit"] = files.limit_of(name)
    line = None if files.certificate is None else files.certificate.budgets.get(name)
    if line is not None and files.accuracy is not None and files.accuracy.val is not None:
        section["final"] = [line.measured, files.accuracy.val]
    return section


def _curves(rows: Sequence[TrainRow]) -> Section:
    """Loss and accuracy over all steps, and where one phase ends and the next begins."""
    losses: dict[str, list[list[float]]] = {}
    accuracies: dict[str, list[list[float]]] = {}
    phases: list[Section] = []
    before = 0.0
    for row in rows:
        if not phases or phases[-1]["number"] != row.phase:  # a phase begins where the one before it ended
            phases.append({"number": row.phase, "name": row.method, "from": before})
        before = row.total
        for name, value in row.losses.items():
            losses.setdefault(name.replace("_", " "), []).append([row.total, value])
        for name, value in row.accuracy.items():
            accuracies.setdefault(name, []).append([row.total, value])
    return {"loss": _series(losses), "accuracy": _series(accuracies), "phases": phases}


def _series(curves: Mapping[str, list[list[float]]]) -> list[Section]:
    thinned = []
    for name, points in curves.items():
        step = -(-len(points) // _MOST_POINTS)
        thinned.append({"name": name, "points": points[:: max(1, step)] + ([points[-1]] if step > 1 else [])})
    return thinned


def _heat(files: RunFiles, space: SearchSpace | None) -> Section:
    """Alpha and beta at the start and at the end, stage by stage."""
    assert files.search is not None  # `attempt` has seen to it
    details, method = files.search.details, files.search.method
    if "alpha" not in details:
        reason = f"Only bcsfw and tfnas move through probabilities; this network is from {method}."
        return {"missing": reason}
    stages = []
    for index, (alpha, beta) in enumerate(zip(details["alpha"], details["beta"])):
        known = space.stages[index] if space is not None and index < len(space.stages) else None
        stages.append(
            {
                "name": f"Stage {index + 1}",
                "choices": _labels(known) if known else [[str(c + 1) for c in range(len(row))] for row in alpha],
                "depths": list(known.depths) if known else [d + 1 for d in range(len(beta))],
                "start": {"alpha": details["start_alpha"][index], "beta": details["start_beta"][index]},
                "end": {"alpha": alpha, "beta": beta},
            }
        )
    return {"stages": stages}


# --- searches that happen in training ------------------------------------------------------------------------------------


def _movement(rows: Sequence[TrainRow], space: SearchSpace | None) -> Section:
    """Curves over epochs: operations per layer, depths per stage, the width of each layer's strongest operation, costs.

    Empty where the method of training (any but tfnas) does not search."""
    reports = [(row.model_extra or {}).get("epoch_report") for row in rows]
    epochs: list[Mapping[str, Any]] = [report for report in reports if isinstance(report, dict) and "alpha" in report]
    if not epochs:
        return {"layers": [], "depths": [], "widths": [], "costs": []}  # no search in training: nothing is drawn
    names, labels, depths = _names(epochs[0], space)
    last = epochs[-1]
    choosing = [slot for slot, row in enumerate(last["alpha"]) if len(row) > 1]
    return {
        "layers": [
            {"name": names[s], "series": _by_epoch(epochs, labels[s], lambda e, c, s=s: e["alpha"][s][c])}
            for s in choosing
        ],
        "depths": [
            {"name": f"Stage {g + 1}", "series": _by_epoch(epochs, depths[g], lambda e, d, g=g: e["beta"][g][d])}
            for g, row in enumerate(last["beta"])
            if len(row) > 1
        ],
        "widths": [
            {"name": names[s], "points": [[n + 1, _strongest_width(e, s)] for n, e in enumerate(epochs)]}
            for s in choosing
        ],
        "costs": [
            {
                "name": name,
                "unit": resource(name).unit,
                "series": [{"name": name, "points": [[n + 1, e["costs"][name]] for n, e in enumerate(epochs)]}],
            }
            for name in last["costs"]
        ],
    }


def _by_epoch(epochs: Sequence[Mapping[str, Any]], names: Sequence[str], value: Any) -> list[Section]:
    return [
        {"name": name, "points": [[n + 1, value(epoch, index)] for n, epoch in enumerate(epochs)]}
        for index, name in enumerate(names)
    ]


def _strongest_width(epoch: Mapping[str, Any], slot: int) -> int:
    row = epoch["alpha"][slot]
    return int(epoch["widths"][slot][row.index(max(row))])


def _names(epoch: Mapping[str, Any], space: SearchSpace | None) -> tuple[list[str], list[list[str]], list[list[str]]]:
    """Of layers, of the operations of each, of the depths of each stage."""
    if space is None:
        layers = [f"Layer {n + 1}" for n in range(len(epoch["alpha"]))]
        plain = [[str(c + 1) for c in range(len(row))] for row in epoch["alpha"]]
        return layers, plain, [[str(d + 1) for d in range(len(row))] for row in epoch["beta"]]
    slots = Layout(space).slots
    return (
        [f"Stage {slot.stage + 1}, block {slot.position + 1}" for slot in slots],
        [[choice.label for choice in space.stages[slot.stage].choices_at(slot.position)] for slot in slots],
        [[str(depth) for depth in stage.depths] for stage in space.stages],
    )
