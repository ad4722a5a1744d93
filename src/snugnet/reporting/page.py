"""`build_report`: a run folder in, one self-contained page out.

The page is a template with its style, its scripts and its numbers inside. A content security policy forbids it to load
anything: only the very style and scripts written here run (by their hashes), and no request can leave the file. Numbers
travel as JSON in which no character can end the element that holds them.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any, Final, final

from snugnet.errors import SnugnetError
from snugnet.reporting import markup
from snugnet.reporting.reading import RunFiles, read_run, space_of
from snugnet.reporting.sections import page_data
from snugnet.space.space import SearchSpace
from snugnet.store import check_writable, write_text

_SCRIPTS: Final = ("drawing.js", "charts.js", "network.js", "explorer.js", "page.js")
_ESCAPES: Final = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


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
    style, script = _asset("page.css"), "\n".join(_asset(name) for name in _SCRIPTS)
    title = str((files.recipe or {}).get("name") or files.folder.resolve().name)
    html = _fill(
        _asset("page.html"),
        {
            "policy": _policy(style, script),
            "title": escape(title),
            "style": style,
            "script": script,
            "data": _embedded(data),
            "answer": _guarded(files, "answer", lambda: markup.answer(files)),
            "blocks": _guarded(files, "table", lambda: markup.block_table(files, space)),
            "origin": _guarded(files, "origin", lambda: markup.origin(files)),
        },
    )
    missing = {name: section["missing"] for name, section in data.items() if "missing" in section}
    return Report(html=html, missing=missing, damaged=dict(files.damaged), stale=dict(files.stale))


def _guarded(files: RunFiles, name: str, work: Callable[[], str]) -> str:
    """Markup, or the reason why there is none: a strange file must not cost the rest of the page."""
    section = files.attempt(name, lambda: {"html": work()})
    return section["html"] if "html" in section else markup.missing(section["missing"])


def _asset(name: str) -> str:
    return (resources.files("snugnet.reporting") / name).read_text(encoding="utf-8")


def _policy(style: str, script: str) -> str:
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
