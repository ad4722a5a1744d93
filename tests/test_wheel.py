"""The package as others get it: a wheel, built from the sources, installed into an environment of its own.

What the package needs is not fetched again: the environment sees the installed packages of the one that runs the tests, by
a line in a .pth file, which brings their modules and not the editable sources.
"""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SHORT = (
    "train.phases[0].epochs=1", "train.phases[1].epochs=1", "train.phases[1].curriculum_epochs=0", "train.eval_times=0",
    "data.resolution=8", "train.batch=256",
    "budget={params: 60%}", "search={method: random, front: 0, options: {networks: 2}}", "finetune.epochs=0",
)  # fmt: skip


def run(*words: str | Path, cwd: Path) -> str:
    """A command far from the sources: neither PYTHONPATH nor the working folder leads to them."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run([str(word) for word in words], cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "-q", "--no-index")
    run(*pip, "--no-deps", "--no-build-isolation", "-w", folder / "dist", folder, cwd=folder)
    (built,) = (folder / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of an environment that has the wheel."""
    home = tmp_path_factory.mktemp("installed")
    venv.create(home / "venv", with_pip=False, symlinks=True)
    binaries = home / "venv" / "bin"
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", binaries / "python")
    run(*pip, "install", "-q", "--no-deps", "--no-index", wheel, cwd=home)
    (packages,) = (home / "venv" / "lib").glob("python*/site-packages")
    paths = {sysconfig.get_path(kind) for kind in ("purelib", "platlib")}
    (packages / "packages_of_the_tests.pth").write_text("\n".join(sorted(paths)) + "\n")
    return binaries


def about(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


def test_all_files_of_the_package_are_in_the_wheel(wheel):
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    files = (path for path in (ROOT / "src").rglob("*") if path.is_file() and ".egg-info" not in str(path))
    expected = {str(path.relative_to(ROOT / "src")) for path in files if path.suffix != ".pyc"}
    assert packed == expected
    assert {Path(name).suffix for name in packed} >= {".yaml", ".html", ".css", ".js", ".json", ".typed"}


def test_what_the_wheel_asks_for(wheel):
    facts = about(wheel)
    needs = facts.get_all("Requires-Dist")
    assert [need for need in needs if need.startswith("torch")] == ["torch<3,>=2.9"]
    assert not [need for need in needs if "==" in need.partition(";")[0] and "extra" not in need]
    assert {"ray", "openvino", "timm", "hub", "tensorboard", "pretrained"} <= set(facts.get_all("Provides-Extra"))
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    assert [pin for pin in pins if pin.startswith("torch==")]


def test_declared_pythons_are_those_that_ci_runs(wheel):
    label = "Programming Language :: Python :: 3."
    declared = {name.rpartition(" ")[2] for name in about(wheel).get_all("Classifier") if name.startswith(label)}
    workflow = (ROOT / ".github" / "workflows" / "tests.yml").read_text()
    (line,) = (line for line in workflow.splitlines() if "python: [" in line)
    assert set(json.loads(line.partition(":")[2])) == declared


def test_a_shipped_recipe_runs_from_the_wheel(installed, tmp_path):
    words = [word for change in SHORT for word in ("--set", change)]
    facts = json.loads(run(installed / "snugnet", "run", "digits", "--threads", "1", "--json", *words, cwd=tmp_path))
    assert facts["fits"] and set(facts["budgets"]) == {"params"}
    page = (tmp_path / facts["report"]).read_text()
    reporting = ROOT / "src" / "snugnet" / "reporting"
    for part in ("page.css", "page.js", "charts.js"):
        assert (reporting / part).read_text().strip().splitlines()[-1] in page
    (tmp_path / "look.py").write_text(
        "import json, snugnet, snugnet.fitting as f\nfrom snugnet.space import zoo\n"
        "print(json.dumps([snugnet.__file__, f.names(), len(zoo.networks())]))\n"
    )
    file, recipes, networks = json.loads(run(installed / "python", "look.py", cwd=tmp_path))
    assert Path(file).is_relative_to(installed.parent) and not Path(file).is_relative_to(ROOT)
    assert set(recipes) == {path.stem for path in (ROOT / "src/snugnet/fitting/recipes").glob("*.yaml")} and networks
