"""Docs run: every Python block of the README and the guides is executed, every YAML space in them is loaded."""

import re
from pathlib import Path

import pytest
import yaml

from snugnet.space.reading import space_from_dict

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(language: str) -> list:
    found = []
    for page in PAGES:
        texts = re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), flags=re.M | re.S)
        found += [pytest.param(text, id=f"{page.relative_to(ROOT)}-{n}") for n, text in enumerate(texts)]
    return found


@pytest.mark.parametrize("code", blocks("python"))
def test_python_examples_run(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "example", "exec"), {"__name__": "example"})


@pytest.mark.parametrize("text", blocks("yaml"))
def test_yaml_examples_are_spaces(text):
    value = yaml.safe_load(text)
    if "stages" in value:
        assert space_from_dict(value).count > 0


def test_the_map_has_a_line_for_every_file():
    text = (ROOT / "docs" / "map.md").read_text()
    kinds = ("py", "js", "css", "html", "yaml", "json")
    home = ROOT / "src" / "snugnet"
    sources = [p.relative_to(home).as_posix() for kind in kinds for p in home.rglob(f"*.{kind}")]
    missing = [s for s in sources if not s.endswith("__init__.py") and f"`{s}`" not in text]
    named = re.findall(rf"`([\w/-]+\.(?:{'|'.join(kinds)}))`", text)
    gone = [s for s in named if "/" in s and s not in sources and not (ROOT / s).exists()]
    assert not missing, f"docs/map.md lacks: {missing}"
    assert not gone, f"docs/map.md names files that are gone: {gone}"
