"""Half a run, a damaged run, no run: the page says what it could not show, and one line says the rest."""

import hashlib
import json
import shutil

import numpy as np
import pytest
from made_up_run import make_run

from snugnet.errors import BadInput
from snugnet.reporting import build_report, pool
from snugnet.reporting.page import make_report
from snugnet.space.reading import find_space
from snugnet.space.sampling import sample

pytest_plugins = ["report_fixtures"]


@pytest.fixture
def copy(run_folder, tmp_path):
    return shutil.copytree(run_folder, tmp_path / "run", ignore=shutil.ignore_patterns("report.html"))


def test_a_whole_run_misses_nothing_and_is_the_same_page_each_time(copy):
    report = make_report(copy)
    assert report.missing == {} and report.damaged == {}
    path = build_report(copy)
    assert path == copy / "report.html"
    assert path.read_text() == report.html == make_report(copy).html


@pytest.mark.parametrize(
    ("gone", "sections"),
    [
        ("certificate.json", set()),
        ("train.jsonl", {"training"}),
        ("finetune", {"finetuning"}),
        ("search/worths.json", {"effects"}),
        ("front.json", set()),
        ("check.json", set()),
        ("table.json", {"explorer", "effects"}),
        ("recipe.yaml", {"explorer", "effects"}),
        ("search.json", {"heat"}),
    ],
)
def test_what_is_missing_is_said(copy, embedded, gone, sections):
    target = copy / gone
    shutil.rmtree(target) if target.is_dir() else target.unlink()
    report = make_report(copy)
    assert set(report.missing) == sections
    assert report.damaged == {}
    for name, reason in report.missing.items():
        assert embedded(report.html)[name] == {"missing": reason}


def test_what_belongs_to_another_network_is_left_out_and_said(copy, embedded):
    """A new search in a finished run: its network was neither trained on nor certified yet."""
    space = find_space("hardcore-lowres", classes=10, resolution=28)
    path = copy / "search.json"
    found = json.loads(path.read_text())
    before = make_report(copy)
    assert "It fits." in before.html and before.stale == {}
    other = next(
        a for a in (sample(space, np.random.default_rng(n)) for n in range(9)) if str(a) != found["architecture"]
    )
    path.write_text(json.dumps({**found, "architecture": str(other), "layers": other.to_json()}))
    report = make_report(copy)
    assert set(report.stale) == {"certificate", "accuracy"}
    assert "It fits." not in report.html and "Not measured yet" in report.html
    assert "certificate.json belongs to another network" in report.html
    assert "97.15%" not in report.html  # the accuracy of the network before
    assert "missing" in embedded(report.html)["finetuning"]


def test_effects_of_an_older_version_are_named(copy):
    path = copy / "search" / "worths.json"
    saved = json.loads(path.read_text())
    del saved["worths"]["value"]
    path.write_text(json.dumps(saved))
    assert "older version" in make_report(copy).missing["explorer"]


def test_predictions_come_from_the_search_where_the_certificate_has_none(copy, embedded):
    found = json.loads((copy / "search.json").read_text())
    told = json.loads((copy / "certificate.json").read_text())
    told["budgets"]["latency"]["predicted"] = None
    body = {name: item for name, item in told.items() if name != "sha256"}
    seal = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    (copy / "certificate.json").write_text(json.dumps({**body, "sha256": seal}))
    assert embedded(make_report(copy).html)["check"]["chosen"][0] == found["predicted"]["latency"]


def test_phases_begin_where_the_ones_before_them_end(copy, embedded):
    phases = embedded(make_report(copy).html)["training"]["phases"]
    assert [(phase["name"], phase["from"]) for phase in phases] == [("largest", 0), ("multipath", 300)]


def test_without_effects_the_explorer_picks_among_the_evaluated(copy, browser):
    (copy / "search/worths.json").unlink()
    browser.open(build_report(copy))
    assert browser.complaints() == []
    slider = "document.querySelector('input[data-resource=\"latency\"]')"
    shown = []
    for value in (0, 120, 400):
        browser.evaluate(f"{slider}.value = {value}; {slider}.dispatchEvent(new Event('input'))")
        browser.wait_frame()
        shown.append(browser.evaluate("document.getElementById('explored-text').textContent"))
    assert len(set(shown)) == 3
    other = """numbers.explorer.networks.filter((n) => bestWithin(numbers.explorer, numbers.explorer.resources.map(
        (r, k) => n.needs[k])) !== n).length"""
    assert browser.evaluate(other) == 0  # at its own costs a network is the best that fits: the rest is left out


def test_a_space_that_does_not_add_up_is_explored_all_the_same(tmp_path, embedded):
    space = find_space("attentive-lowres", classes=10, resolution=32)
    rng = np.random.default_rng(0)
    rows = [json.dumps({"format": "snugnet-evaluations/1", "of": "0"})]
    for number in range(12):
        rows.append(json.dumps({"network": str(sample(space, rng)), "accuracy": 0.5 + number / 100, "loss": 1.0}))
    (tmp_path / "search").mkdir()
    (tmp_path / "search/evaluations.jsonl").write_text("\n".join(rows) + "\n")
    explorer = embedded(make_report(tmp_path, space=space).html)["explorer"]
    assert "several" in explorer["reason"]
    best = explorer["networks"][0]
    assert best["accuracy"] == pytest.approx(0.61) and best["evaluated"] and min(best["costs"]) > 0


def test_without_a_certificate_nothing_is_called_measured(copy):
    (copy / "certificate.json").unlink()
    html = make_report(copy).html
    assert "Not measured yet" in html and "It fits." not in html


def test_a_network_that_does_not_fit_is_called_that(copy):
    from made_up_run import certificate, made_up_space

    from snugnet.searching.result import load_result

    found = load_result(copy / "search.json", made_up_space())
    told = certificate(found, found.predicted["latency"] * 0.9).to_json()
    (copy / "certificate.json").write_text(json.dumps(told))
    html = make_report(copy).html
    assert "It does not fit." in html and "−" in html


def test_a_certificate_that_was_changed_is_not_believed(copy):
    path = copy / "certificate.json"
    path.write_text(path.read_text().replace('"fits": true', '"fits":  true').replace("network.onnx", "another.onnx"))
    report = make_report(copy)
    assert "certificate.json" in report.damaged["certificate"]
    assert "It fits." not in report.html and "sha256 must match" in report.html


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
def test_no_damage_breaks_the_page(copy, name, content, monkeypatch):
    monkeypatch.setattr(pool, "_ALONE", 2)  # a coarse grid: what is damaged here is not the solver
    monkeypatch.setattr(pool, "_PAIRED", 2)
    (copy / name).write_bytes(content.encode("latin-1"))
    report = make_report(copy)
    assert "<title>" in report.html


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
