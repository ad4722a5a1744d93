import json
import subprocess
import sys

import pytest

from house import one_clear_line
from snugnet.space import preset, smallest, zoo


def test_zoo_json(snug):
    code, out, _ = snug("zoo", "--json")
    rows = {row["name"]: row for row in json.loads(out)}
    assert code == 0
    assert {"name", "mmacs", "mparams", "published"} <= set(rows["HardCoRe-A"])
    assert rows["TF-NAS-A"]["mmacs"] == pytest.approx(456.748, rel=1e-4)
    assert rows["AlphaNet-A5-base"]["mparams"] == pytest.approx(12.404, rel=1e-4)
    assert len(rows) == len(zoo.networks())


def test_show_spaces_json(snug):
    hardcore = json.loads(snug("show", "hardcore", "--json")[1])
    assert hardcore["count"] == (12**2 + 12**3 + 12**4) ** 5
    attentive = json.loads(snug("show", "attentive", "--json")[1])
    assert attentive["count"] == pytest.approx(4.403e11, rel=1e-4)
    assert attentive["min_mmacs"] == pytest.approx(203.39, abs=0.005)
    assert attentive["max_mmacs"] == pytest.approx(1939.34, abs=0.005)
    names = [row["name"] for row in json.loads(snug("spaces", "--json")[1])]
    assert "tfnas-mbv2-lowres" in names


def test_tables_for_people(snug):
    for words in (["spaces"], ["zoo"], ["show", "tfnas"], ["show", "hardcore-f"], ["show", "efficientnet-b0"]):
        code, out, err = snug(*words)
        assert (code, err) == (0, "")
        assert len(out.splitlines()) > 5


def test_show_an_architecture(snug, tmp_path):
    space = preset("hardcore")
    text = str(smallest(space))
    shown = json.loads(snug("show", text, "--json")[1])
    assert (shown["space"], shown["architecture"]) == ("hardcore", text)
    path = tmp_path / "architecture.json"
    path.write_text(json.dumps(smallest(space).to_json()))
    assert json.loads(snug("show", str(path), "--space", "hardcore", "--json")[1])["mmacs"] == shown["mmacs"]


BAD_YAML = """
name: a
classes: 2
resolutions: [8]
stem: {widths: [8]}
stages: [{width: WIDTH, depth: DEPTH}]
head: {widths: [8]}
"""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["show", "hardcoer"], "Did you mean 'hardcore'"),
        (["show", "efficientnet-b1"], "Did you mean 'EfficientNet-B0'"),
        (["zoo", "--jsn"], "--json"),
        (["zooo"], "zoo"),
        (["show"], "Missing argument"),
        (["show", "r224 c32 | c16 k3e1 | c24 kk | f1280"], "stage 2"),
        (["show", "r224 c32 | c16 k3e1 | f1280"], "--space"),
        (["show", str(smallest(preset("hardcore"))), "--space", "tfnas"], "number of stages must be 7"),
        (["show", "missing.json"], "missing.json"),
        (["train", "digits", "--out", "run", "--set", "train.batch=0"], "train.batch: input should be greater than"),
        (["show", "missing.yaml"], "missing.yaml"),
    ],
)
def test_bad_input_gets_one_line_and_code_2(snug, words, message):
    code, out, err = snug(*words)
    assert (code, out) == (2, "")
    assert one_clear_line(err), err
    assert message in err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BAD_YAML.replace("WIDTH", "-8").replace("DEPTH", "1"), "stages[0]"),
        (BAD_YAML.replace("WIDTH", "8").replace("DEPTH", "[3, 1]"), "low <= high"),
        (BAD_YAML.replace("WIDTH", "8").replace("DEPTH", "1") + "colour: red\n", "colour"),
        ("a: [", "must be YAML"),
    ],
)
def test_bad_yaml_spaces(snug, tmp_path, text, message):
    path = tmp_path / "space.yaml"
    path.write_text(text)
    code, _, err = snug("show", str(path))
    assert code == 2
    assert one_clear_line(err), err
    assert message in err


@pytest.mark.parametrize("value", [[1, 2], "text", 3, None])
def test_a_json_file_that_is_no_architecture(snug, tmp_path, value):
    """Said in words of the field: no name of a class of ours."""
    path = tmp_path / "list.json"
    path.write_text(json.dumps(value))
    code, out, err = snug("show", str(path))
    assert (code, out, one_clear_line(err)) == (2, "", True), err
    assert "list.json must hold an architecture, a JSON object" in err and "Architecture" not in err


def test_help_for_everything(snug):
    assert snug()[0] == 0
    for verb in ("spaces", "show", "zoo"):
        code, out, _ = snug(verb, "--help")
        assert code == 0
        assert "--json" in out


def test_the_installed_command():
    command = [sys.executable, "-c", "from snugnet.cli import main; main()", "zoo", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert json.loads(done.stdout)[0]["name"] == "HardCoRe-A"


def test_importing_the_package_is_light():
    code = "import sys, snugnet.space, snugnet.costs.table; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("target", ["hardcore", "HardCoRe-A"])
def test_a_space_is_asked_for_architectures_only(snug, target):
    code, _, err = snug("show", target, "--space", "tfnas")
    assert (code, one_clear_line(err)) == (2, True) and "--space belongs to an architecture" in err


def test_an_unknown_device_leaves_no_run_folder(snug, tmp_path):
    code, _, err = snug("train", "digits", "--out", str(tmp_path / "run"), "--device", "tpu")
    assert (code, one_clear_line(err)) == (2, True) and "got tpu" in err
    assert not (tmp_path / "run").exists()
