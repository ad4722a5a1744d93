"""`build_report`: a run folder in, one self-contained page out.

The page is a template with its style, its scripts and its numbers inside. A content security policy forbids it to load
anything: only the very style and scripts written here run (by their hashes), and no request can leave the file. Numbers
travel as JSON in which no character can end the element that holds them. The parts that are read rather than looked at
(the answer, the table by block, the origin of everything) are HTML from the start, so that they are there without a
script. All text goes through `escape`.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any, Final, final

import snugnet
from snugnet.deploy.card import Certificate, Line
from snugnet.errors import SnugnetError
from snugnet.reporting.reading import RunFiles, file_hashes, read_run, space_of
from snugnet.reporting.sections import page_data
from snugnet.space.space import SearchSpace
from snugnet.space.spec import BlockSpec, plan
from snugnet.store import check_writable, read_json, write_text
from snugnet.units import Statistic, show

_SCRIPTS: Final = ("drawing.js", "charts.js", "network.js", "explorer.js", "page.js")
_ESCAPES: Final = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
_MANY = 24  # rows: longer lists begin closed
_STATISTICS: Final[dict[Statistic, str]] = {
    "quiet": "mean of the fastest tenth of the passes",
    "median": "median of the passes",
    "p90": "90 % quantile of the passes",
}
_TITLES = {
    "latency": "Latency",
    "macs": "MACs",
    "params": "Parameters",
    "model_size": "Model size",
    "memory": "Peak memory",
}


@final
@dataclass(frozen=True, kw_only=True)
class Report:
    """A page, and what a run did not have for it: section or file -> reason."""

    html: str
    missing: dict[str, str]
    damaged: dict[str, str]
    stale: dict[str, str]


def build_report(folder: str | Path, out: str | Path | None = None, *, space: SearchSpace | None = None) -> Path:
    """Write the page of the run in `folder` (to `folder/report.html` unless told otherwise); its path.

    `space` is found from the run's table and recipe; give it where a run has neither.
    """
    target = Path(folder) / "report.html" if out is None else Path(out)
    report = make_report(folder, space=space)
    check_writable(target)
    return write_text(target, report.html)


def make_report(folder: str | Path, *, space: SearchSpace | None = None) -> Report:
    """The page as text."""
    files = read_run(folder)
    if space is None:
        with contextlib.suppress(SnugnetError):  # the sections say the reason
            space = space_of(files)
    data = _clean(page_data(files, space))
    style, script = asset("page.css"), "\n".join(asset(name) for name in _SCRIPTS)
    title = str((files.recipe or {}).get("name") or files.folder.resolve().name)
    html = _fill(
        asset("page.html"),
        {
            "policy": content_policy(style, script),
            "title": escape(title),
            "style": style,
            "script": script,
            "data": _embedded(data),
            "answer": _guarded(files, "answer", lambda: _answer(files)),
            "blocks": _guarded(files, "table", lambda: _block_table(files, space)),
            "origin": _guarded(files, "origin", lambda: _origin(files)),
        },
    )
    missing = {name: section["missing"] for name, section in data.items() if "missing" in section}
    return Report(html=html, missing=missing, damaged=dict(files.damaged), stale=dict(files.stale))


def _guarded(files: RunFiles, name: str, work: Callable[[], str]) -> str:
    """Markup, or the reason why there is none: a strange file must not cost the rest of the page."""
    section = files.attempt(name, lambda: {"html": work()})
    return section["html"] if "html" in section else _missing(section["missing"])


def asset(name: str) -> str:
    return (resources.files("snugnet.reporting") / name).read_text(encoding="utf-8")


def content_policy(style: str, script: str) -> str:
    rules = ["default-src 'none'", f"style-src {_hash(style)}", f"script-src {_hash(script)}", "img-src data:"]
    return "; ".join([*rules, "base-uri 'none'", "form-action 'none'"])


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _fill(template: str, parts: Mapping[str, str]) -> str:
    """Replace every `{{name}}` in one pass, so that what is put in is never looked at again."""
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)


def _embedded(data: Any) -> str:
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return re.sub("[<>&\u2028\u2029]", lambda match: _ESCAPES[match[0]], text)


def _clean(value: Any) -> Any:
    """JSON knows no NaN: a number that is not finite becomes null; floats are kept to what a picture or a sum needs."""
    if isinstance(value, dict):
        return {str(key): _clean(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# --- what is read -----------------------------------------------------------------------------------------------------


def title_of(name: str) -> str:
    """ "latency@phone" -> "Latency on phone"."""
    base, _, label = name.partition("@")
    return _TITLES.get(base, base) + (f" on {label}" if label else "")


def _answer(files: RunFiles) -> str:
    """The answer first: does it fit, by how much, how accurate."""
    state, verdict = _verdict(files)
    cards = [*_accuracy_cards(files), *_budget_cards(files)]
    unfit = {**files.damaged, **files.stale}
    reasons = [unfit[name] for name in ("certificate", "search", "accuracy") if name in unfit]
    notes = "".join(f'<p class="note warn">{escape(reason)}</p>' for reason in reasons)
    lead = escape(_lead(files))
    return f'<div class="answer {state}"><p class="score">{verdict}</p><p class="lead">{lead}</p></div>{notes}' + (
        f'<div class="cards">{"".join(cards)}</div>' if cards else ""
    )


def _verdict(files: RunFiles) -> tuple[str, str]:
    if files.certificate is not None:
        return ("fits", "It fits.") if files.certificate.fits else ("over", "It does not fit.")
    if files.search is not None:
        return "open", "It should fit. Not measured yet."
    return "open", "No network yet."


def _lead(files: RunFiles) -> str:
    if files.certificate is not None:
        lines = files.certificate.budgets
        parts = [f"{amount(line.measured, name)} of {amount(line.limit, name)}" for name, line in lines.items()]
        places = {_place(line.device) for line in lines.values() if line.device}
        where = f", measured with {' and '.join(sorted(places))}" if places else ""
        return f"It uses {'; '.join(parts)}{where}."
    if files.search is not None:
        limits = files.search.limits
        parts = [f"{amount(cost, n)} of {amount(limits[n], n)}" for n, cost in files.search.predicted.items()]
        return f"By the tables the network uses {'; '.join(parts)}. {files.trouble['certificate']}"
    return files.trouble.get("search", "")


def _place(device: Mapping[str, str]) -> str:
    """A device in a few words."""
    names = [device.get("device", "the device"), f"on {device['processor']}" if "processor" in device else ""]
    threads = device.get("threads", "")
    return " ".join(filter(None, names)) + (f" ({threads} thread{'s' if threads != '1' else ''})" if threads else "")


def _accuracy_cards(files: RunFiles) -> list[str]:
    rows: list[tuple[float | None, str]] = []
    if files.accuracy is not None:
        rows = [(files.accuracy.test, "on test images"), (files.accuracy.val, "on held-out images")]
        rows.append((files.accuracy.learnt, "of held-out images that it learnt from at the end"))
    if files.search is not None:
        rows.append((files.search.accuracy, "with the super-network's weights, held-out images"))
    figures = [(f"{value:.2%}", escape(text)) for value, text in rows if value is not None]
    if not figures:
        return []
    (first, text), *rest = figures
    more = "".join(f"<li>{value} {text}</li>" for value, text in rest)
    return [
        f'<article class="card"><h3>Accuracy</h3><p class="figure">{first}</p>'
        f'<p class="quiet">{text}</p><ul class="quiet">{more}</ul></article>'
    ]


def _budget_cards(files: RunFiles) -> list[str]:
    if files.certificate is not None:
        lines = files.certificate.budgets
        return [_measured_card(name, line, files.predicted(name)) for name, line in lines.items()]
    if files.search is not None:
        search = files.search
        return [_predicted_card(name, cost, search.limits[name]) for name, cost in search.predicted.items()]
    return []


def _measured_card(name: str, line: Line, predicted: float | None) -> str:
    limit, (low, high) = line.limit, line.interval
    origin = (
        "counted exactly" if line.exact else f"{_statistic(line)}; 95 %: {amount(low, name)} to {amount(high, name)}"
    )
    rows = [f"limit {amount(limit, name)}", f"slack {amount(line.slack, name)} ({line.slack / limit:.1%})"]
    rows += [] if predicted is None else [f"predicted {amount(predicted, name)}"]
    usual = line.while_measuring
    if {"median", "p90", "passes"} <= set(usual):
        median, slow = amount(usual["median"], name), amount(usual["p90"], name)
        rows.append(f"over all {usual['passes']:.0f} passes: median {median}, 90 % quantile {slow}")
    if line.wall_median is not None and line.wall_p90 is not None:
        rows.append(f"wall clock: median {amount(line.wall_median, name)}, p90 {amount(line.wall_p90, name)}")
    more = "".join(f"<li>{row}</li>" for row in rows)
    return _card(name, line.measured, limit, low, high, origin, more)


def _statistic(line: Line) -> str:
    clock = {"thread": "the thread's own clock", "wall": "the wall clock"}.get(line.clock or "", line.clock)
    statistic = line.statistic or "quiet"
    return f"{statistic}, the {_STATISTICS[statistic]}" + (f" by {clock}" if clock else "")


def _predicted_card(name: str, cost: float, limit: float) -> str:
    more = f"<li>limit {amount(limit, name)}</li><li>slack {amount(limit - cost, name)} ({1 - cost / limit:.1%})</li>"
    return _card(name, cost, limit, cost, cost, "predicted by the table", more)


def _card(name: str, value: float, limit: float, low: float, high: float, origin: str, more: str) -> str:
    """One budget: the figure, and a bar with its interval against the limit."""
    scale = 100.0 / (1.1 * max(limit, high))
    state = "over" if high > limit else "fits"
    bar = (
        f'<svg class="bar {state}" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect class="track" width="100" height="8"/><rect class="fill" width="{value * scale:.3f}" height="8"/>'
        f'<rect class="interval" x="{low * scale:.3f}" width="{max((high - low) * scale, 0.0):.3f}" y="2" height="4"/>'
        f'<rect class="limit" x="{limit * scale - 0.4:.3f}" width="0.8" height="8"/></svg>'
    )
    return (
        f'<article class="card"><h3>{escape(title_of(name))}</h3><p class="figure">{amount(value, name)}</p>'
        f'<p class="quiet">{escape(origin)}</p>{bar}<ul class="quiet">{more}</ul></article>'
    )


def amount(value: float, name: str) -> str:
    """`units.show` with a thin gap between number and unit; a resource unknown here is a plain number."""
    sign = "−" if value < 0 else ""
    text = show(abs(value), name)
    digits = len(text) - len(text.lstrip("0123456789.e+-"))
    return escape(f"{sign}{text[:digits]}\u202f{text[digits:]}".strip())


def _block_table(files: RunFiles, space: SearchSpace | None) -> str:
    """Every part the table holds, with its cost; those of the chosen network are marked."""
    if files.table is None:
        return _missing(files.trouble["table"])
    table, chosen = files.table, files.chosen
    used = Counter(plan(chosen, space).parts if space is not None and chosen is not None else ())
    rows = []
    for part, cost in table.costs.items():
        isolated = table.isolated_ms.get(part)
        alone = "" if isolated is None else f"{isolated[0]:.4g} <small>({isolated[1]:.4g} to {isolated[2]:.4g})</small>"
        kind = part.label.split(" ")[0]
        sizes = f"{part.in_channels}→{part.mid_channels}→{part.out_channels}" if isinstance(part, BlockSpec) else ""
        kernel = part.kernel if isinstance(part, BlockSpec) else ""
        rows.append(
            f"<tr{' class=used' if part in used else ''}><th scope=row><code>{escape(part.label)}</code></th><td>{kind}</td>"
            f"<td>{sizes}</td><td>{kernel}</td><td>{part.resolution}</td><td>{cost:.4g}</td><td>{alone}</td>"
            f"<td>{used[part] or ''}</td></tr>"
        )
    unit = escape(table.unit)
    costs = [f"cost ({unit})", f"alone ({unit}, 95 %)"]
    heads = ["part", "kind", "channels", "kernel", "input size", *costs, "in the network"]
    return (
        f"{_calibration(table.origin)}<details><summary>All {len(rows)} parts</summary>"
        '<div class="scroll" tabindex="0" role="region" aria-label="Cost of every part">'
        f"{html_table(heads, rows, 'sortable')}</div></details>"
    )


def _calibration(origin: Mapping[str, Any]) -> str:
    figures = origin.get("calibration")
    if not figures:
        return ""
    margin = float(figures["margin"])
    return (
        f"<p>Times are {_STATISTICS[origin.get('statistic', 'quiet')]}. Inside a network a part costs "
        f"{float(figures['ratio']):.3f} of its time alone, plus {float(figures['overhead_ms']):.4f} ms, plus "
        f"{float(figures['edge_ms']):.4f} ms for every million numbers that enter and leave it. A search keeps the sum of "
        f"the parts {margin / (1 + margin):.2%} below a limit, so that the measured network meets it with 95 % "
        "confidence.</p>"
    )


def _origin(files: RunFiles) -> str:
    """Where everything comes from: device, versions, seeds, dates, hashes."""
    groups: list[tuple[str, Mapping[str, Any]]] = []
    if files.recipe is not None:
        groups.append(("Recipe", _flat(files.recipe)))
    if files.table is not None:
        source = files.table.origin
        made_for = ("space", "space_id", "source", "resolutions", "classes", "batch")
        names = (*made_for, "date", "passes", "seconds", "spread", "message")
        groups.append(("Table", {name: source[name] for name in names if name in source}))
        groups.append(("Measured on", source.get("device", {})))
        groups.append(("Versions", source.get("versions", {})))
    if files.search is not None:
        fields = ("method", "seed", "space", "seconds", "images", "evaluated", "loss")
        groups.append(("Search", {name: getattr(files.search, name) for name in fields}))
    if files.certificate is not None:
        groups.append(("Certificate", _certificate_rows(files.certificate, files.folder)))
    lists = "".join(
        f"<details{'' if len(rows) > _MANY else ' open'}><summary>{escape(name)}</summary>{_pairs(rows)}</details>"
        for name, rows in groups
    )
    hashes = [
        f"<tr><th scope=row><code>{escape(name)}</code></th><td>{size:,}</td><td><code class=hash>{mark}</code></td></tr>"
        for name, size, mark in file_hashes(files.folder)
    ]
    return (
        f'<div class="origins">{lists}</div><h3>Files</h3><div class="scroll" tabindex="0" role="region" '
        f'aria-label="Files of the run">{html_table(["file", "bytes", "SHA-256"], hashes)}</div>'
        f'<p class="quiet">Page made by snugnet {escape(snugnet.__version__)}.</p>'
    )


def _certificate_rows(certificate: Certificate, folder: Path) -> dict[str, Any]:
    network, seal = certificate.network, read_json(folder / "certificate.json")["sha256"]
    rows: dict[str, Any] = {"date": certificate.date, "network": network.name, "form": network.form}
    rows |= {"weights SHA-256": network.weights_sha256, "batch": certificate.batch}
    rows |= {"input": " × ".join(map(str, certificate.input_shape)), "seal": seal}
    for name, line in certificate.budgets.items():
        for key, value in line.device.items():
            rows[f"{name}: {key}"] = value
    return {**rows, **certificate.versions, "message": certificate.message}


def _flat(value: Any, name: str = "") -> dict[str, Any]:
    """A nested recipe as one row of dotted names."""
    if isinstance(value, Mapping):
        items: Iterable[tuple[str, Any]] = ((f"{name}.{key}".strip("."), item) for key, item in value.items())
    elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        items = ((f"{name}[{number}]", item) for number, item in enumerate(value))
    else:
        return {} if value is None or value == "" else {name: value}
    return {key: word for where, item in items for key, word in _flat(item, where).items()}


def _pairs(values: Mapping[str, Any]) -> str:
    rows = "".join(f"<dt>{escape(str(name))}</dt><dd>{escape(_plain(value))}</dd>" for name, value in values.items())
    return f"<dl>{rows}</dl>"


def _plain(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return ", ".join(map(_plain, value)) if isinstance(value, list) else str(value)


def html_table(heads: Sequence[str], rows: Sequence[str], kind: str = "") -> str:
    top = "".join(f"<th scope=col>{escape(head)}</th>" for head in heads)
    return f'<table class="{kind}"><thead><tr>{top}</tr></thead><tbody>{"".join(rows)}</tbody></table>'


def _missing(reason: str) -> str:
    return f'<p class="note">{escape(reason)}</p>'
