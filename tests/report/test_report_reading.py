"""Half a run, a damaged run, no run: the page says what it could not show, and one line says the rest."""

import json
import shutil

import pytest
from made_up_run import make_run

from snugnet.errors import BadInput
from snugnet.report import build_report
from snugnet.report.page import make_report

pytest_plugins = ["report_fixtures"]


@pytest.fixture
def copy(run_folder, tmp_path):
    return shutil.copytree(run_folder, tmp_path / "run", ignore=shutil.ignore_patterns("report.html"))


def test_a_whole_run_misses_nothing_and_is_the_same_page_each_time(copy):
    made = make_report(copy)
    assert made.missing == {} and made.damaged == {}
    path = build_report(copy)
    assert path == copy / "report.html"
    assert path.read_text() == made.html == make_report(copy).html


@pytest.mark.parametrize(
    ("gone", "sections"),
    [
        ("certificate.json", set()),
        ("train.jsonl", {"training"}),
        ("finetune", {"finetuning"}),
        ("search/worths.json", {"explorer"}),
        ("front.json", set()),
        ("check.json", set()),
        ("table.json", {"explorer"}),
        ("recipe.yaml", {"explorer"}),
        ("search.json", {"heat"}),
    ],
)
def test_what_is_missing_is_said(copy, embedded, gone, sections):
    target = copy / gone
    shutil.rmtree(target) if target.is_dir() else target.unlink()
    made = make_report(copy)
    assert set(made.missing) == sections
    assert made.damaged == {}
    for name, reason in made.missing.items():
        assert embedded(made.html)[name] == {"missing": reason}


def test_without_a_certificate_nothing_is_called_measured(copy):
    (copy / "certificate.json").unlink()
    html = make_report(copy).html
    assert "Not measured yet" in html and "It fits." not in html


def test_a_network_that_does_not_fit_is_called_that(copy):
    from made_up_run import certificate, made_up_space

    from snugnet.search.result import load_result

    found = load_result(copy / "search.json", made_up_space())
    told = certificate(found, found.predicted["latency"] * 0.9).to_json()
    (copy / "certificate.json").write_text(json.dumps(told))
    html = make_report(copy).html
    assert "It does not fit." in html and "−" in html


def test_a_certificate_that_was_changed_is_not_believed(copy):
    path = copy / "certificate.json"
    path.write_text(path.read_text().replace('"fits": true', '"fits":  true').replace("network.onnx", "another.onnx"))
    made = make_report(copy)
    assert "certificate.json" in made.damaged["certificate"]
    assert "It fits." not in made.html and "sha256 must match" in made.html


@pytest.mark.parametrize(
    "name",
    [
        "recipe.yaml",
        "table.json",
        "check.json",
        "train.jsonl",
        "search.json",
        "search/worths.json",
        "front.json",
        "search/evaluations.jsonl",
        "accuracy.json",
        "certificate.json",
        "architecture.json",
    ],
)
@pytest.mark.parametrize("content", ["{", "[]", '{"rows": 3, "details": 4, "worths": {}}\n{}\n', "\x00\xff"])
def test_no_damage_breaks_the_page(copy, name, content):
    (copy / name).write_bytes(content.encode("latin-1"))
    made = make_report(copy)
    assert "<title>" in made.html


def test_names_cannot_break_out_of_the_page(browser, tmp_path):
    evil = "</script><script>document.title='owned'</script><img src=x onerror=alert(1)> {{data}} & \u2028"
    folder = make_run(tmp_path / "run", name=evil)
    log = folder / "train.jsonl"
    log.write_text(log.read_text().replace("<b>random</b>", "</script><script>document.title='owned'</script>"))
    browser.open(build_report(folder))
    assert browser.complaints() == []
    assert browser.evaluate("document.title").startswith("</script><script>")
    assert browser.evaluate("document.querySelectorAll('script').length") == 2


def test_the_verb_says_what_it_wrote(copy, snug, tmp_path):
    code, out, err = snug("report", str(copy), "--out", str(tmp_path / "page.html"))
    assert code == 0 and out.strip() == str(tmp_path / "page.html") and "wrote" in err
    code, out, _ = snug("report", str(copy), "--json")
    told = json.loads(out)
    assert code == 0 and told["missing"] == {} and told["report"].endswith("report.html")


def test_no_run_is_one_clear_line(tmp_path, snug):
    for words in ((str(tmp_path),), (str(tmp_path / "none"),)):
        code, _, err = snug("report", *words)
        assert code == 2 and err.startswith("snugnet: ") and len(err.strip().splitlines()) == 1
    with pytest.raises(BadInput):
        build_report(tmp_path)
