"""A page that compares the networks of several budgets: a table, and accuracy against what each resource came to.

Everything is in the file and nothing is loaded, as in a run's own page; the pictures are SVG, and there are no scripts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import snugnet
from snugnet.reporting.page import amount, asset, content_policy, html_table, title_of

_WIDTH, _HEIGHT, _EDGE = 640, 260, 48


def comparison_page(title: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """`rows`: a budget each, as `many` writes them: name, budget, and its outcome or `error`."""
    good = [row for row in rows if "error" not in row]
    failed = len(rows) - len(good)
    state = "over" if failed else "fits"
    verdict = f"{len(good)} of {len(rows)} budgets have a certified network."
    style = asset("page.css")
    resources = list(dict.fromkeys(name for row in good for name in row["measured"]))
    pictures = "".join(_picture(good, name) for name in resources)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{content_policy(style, "")}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}: {len(rows)} budgets</title><style>{style}</style></head><body>"
        f'<header><p class="brand">snugnet</p><h1>{escape(title)}: {len(rows)} budgets</h1></header><main>'
        f'<section id="answer"><div class="answer {state}"><p class="score">{verdict}</p></div></section>'
        f'<section><h2>Side by side</h2><div class="scroll" tabindex="0" role="region" aria-label="Budgets">'
        f"{_rows(rows, resources)}</div></section>"
        f"{f'<section><h2>Accuracy against cost</h2>{pictures}</section>' if pictures else ''}"
        f'<p class="quiet">Page made by snugnet {escape(snugnet.__version__)}.</p></main></body></html>'
    )


def _rows(rows: Sequence[Mapping[str, Any]], resources: Sequence[str]) -> str:
    heads = ["budget", "asked", "accuracy", *(f"{title_of(name)}" for name in resources), "network"]
    lines = []
    for row in rows:
        asked = escape(", ".join(f"{name} {limit}" for name, limit in row["budget"].items()))
        first = f"<th scope=row>{escape(row['name'])}</th><td>{asked}</td>"
        if "error" in row:
            lines.append(
                f'<tr>{first}<td colspan="{len(heads) - 2}" class="note warn">{escape(row["error"])}</td></tr>'
            )
            continue
        costs = "".join(f"<td>{_used(row, name)}</td>" for name in resources)
        link = escape(f"{row['name']}/network.onnx", quote=True)
        network = f'<td><a href="{link}">ONNX</a> <code>{escape(row["architecture"])}</code></td>'
        lines.append(f"<tr>{first}<td>{row['accuracy']:.2%}</td>{costs}{network}</tr>")
    return html_table(heads, lines)


def _used(row: Mapping[str, Any], name: str) -> str:
    if name not in row["measured"]:
        return ""
    cost, limit = row["measured"][name], row["limits"][name]
    return f"{amount(cost, name)} <small>of {amount(limit, name)}, {cost / limit:.1%}</small>"


def _picture(rows: Sequence[Mapping[str, Any]], name: str) -> str:
    """Accuracy of the test images against one resource as measured or counted; a point per network."""
    points = [(row["measured"][name], row["accuracy"], row["name"]) for row in rows if name in row["measured"]]
    if len(points) < 2:
        return ""
    costs, scores = [cost for cost, _, _ in points], [score for _, score, _ in points]
    left, low = 0.0, min(scores) - 0.1 * max(max(scores) - min(scores), 0.005)
    right, high = 1.1 * max(costs), max(scores) + 0.1 * max(max(scores) - min(scores), 0.005)

    def place(cost: float, score: float) -> tuple[float, float]:
        x = _EDGE + (cost - left) / (right - left) * (_WIDTH - 2 * _EDGE)
        return x, _HEIGHT - _EDGE - (score - low) / (high - low) * (_HEIGHT - 2 * _EDGE)

    marks = []
    for cost, score, label in points:
        x, y = place(cost, score)
        told = f"{escape(label)}: {score:.2%} at {amount(cost, name)}"
        marks.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="var(--s0)"><title>{told}</title></circle>'
            f'<text x="{x + 8:.1f}" y="{y + 4:.1f}" font-size="12" fill="var(--ink)">{escape(label)}</text>'
        )
    bottom, end = _HEIGHT - _EDGE, _WIDTH - _EDGE
    axes = f'<path d="M{_EDGE} {_EDGE}V{bottom}H{end}" fill="none" stroke="var(--quiet)"/>'
    words = (
        f'<text x="{end}" y="{bottom + 30}" text-anchor="end" font-size="12" fill="var(--quiet)">'
        f"{escape(title_of(name))}, up to {amount(max(costs), name)}</text>"
        f'<text x="{_EDGE}" y="{_EDGE - 12}" font-size="12" fill="var(--quiet)">'
        f"accuracy, {min(scores):.2%} to {max(scores):.2%}</text>"
    )
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="Accuracy against {escape(title_of(name))}">'
        f"{axes}{words}{''.join(marks)}</svg>"
    )
