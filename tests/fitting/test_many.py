"""N budgets from one super-network: the same networks whoever computes, whatever is killed, whichever fails."""

import json
import os
import shutil
import signal
import sys
import threading
import time
from dataclasses import replace

import pytest

from agents import meeting
from house import one_clear_line
from snugnet.budgets import limits_of
from snugnet.costs.table import load_table
from snugnet.deploy.card import read_certificate
from snugnet.executors import LocalExecutor, open_executor
from snugnet.fitting.many import many
from snugnet.fitting.pipeline import First, Pipeline
from snugnet.fitting.runs import open_run
from snugnet.fitting.work import Turns
from snugnet.progress import NullProgress
from snugnet.searching import load_result
from snugnet.space.architecture import parse
from snugnet.space.sampling import smallest
from snugnet.store import read_json
from tiny_recipe import RECIPE, recipe_in

SEARCH = "search: {method: adaptive, options: {evaluations: 9, further: 3, finalists: 2}}"
BUDGETS = {f"p{share}": {"params": f"{share}%"} for share in (45, 55, 65, 80)} | {
    f"m{share}": {"macs": f"{share}%", "params": "90%"} for share in (40, 50, 65, 80)
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A trained run, searched once: what that evaluated is evidence for all."""
    from snugnet.cli import execute

    folder = tmp_path_factory.mktemp("many")
    lines = [SEARCH if line.startswith("search:") else line for line in RECIPE.splitlines()]
    recipe = recipe_in(folder, "\n".join(lines))
    assert execute(["train", str(recipe), "--out", str(folder / "run"), "--threads", "1"]) == 0
    assert (
        execute(["search", str(folder / "run"), "--budget", "params=70%", "--evaluations", "4", "--threads", "1"]) == 0
    )
    return folder / "run"


@pytest.fixture(scope="module")
def one_after_the_other(trained, tmp_path_factory):
    run = tmp_path_factory.mktemp("here") / "run"
    shutil.copytree(trained, run)
    return many(run, BUDGETS)


def copy_of(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "run")


def essence(result):
    return [(r["name"], r["architecture"], r["score"], r["accuracy"], r["measured"]) for r in result.rows]


def test_every_budget_has_a_certified_network(one_after_the_other):
    result = one_after_the_other
    assert [row["name"] for row in result.rows] == list(BUDGETS) and not result.failed
    for row in result.rows:
        certificate = read_certificate(row["certificate"])
        assert certificate["fits"] and set(certificate["budgets"]) == set(BUDGETS[row["name"]])
        assert (result.folder / row["name"] / "network.onnx").stat().st_size > 1000
    assert len({row["architecture"] for row in result.rows}) >= 2
    page = result.page.read_text()
    assert all(f">{name}</th>" in page for name in BUDGETS) and "<svg" in page and "<script" not in page


def test_the_order_of_budgets_does_not_matter(trained, one_after_the_other, tmp_path):
    result = many(copy_of(trained, tmp_path), dict(reversed(BUDGETS.items())))
    assert sorted(essence(result)) == sorted(essence(one_after_the_other))


def test_every_network_of_any_budget_competes_for_all(trained, one_after_the_other):
    """A larger budget never gets what a smaller one has beaten, though none saw the others' networks while it searched."""
    rows = {row["name"]: row for row in one_after_the_other.rows}
    for kind in "pm":
        expected = [rows[name]["expected_score"] for name in BUDGETS if name.startswith(kind)]
        assert expected == sorted(expected)
    journals = [one_after_the_other.folder / name / "search" / "evaluations.jsonl" for name in BUDGETS]
    assert len({tuple(_networks(path)) for path in journals}) == 1, "all chose among the same networks"
    looked_at = {
        n for name in BUDGETS for n in _networks(one_after_the_other.folder / name / "first" / "evaluations.jsonl")
    }
    assert looked_at == set(_networks(journals[0]))
    space = open_run(trained).supernet.space
    for name, row in rows.items():
        fits = limits_of(space, [], BUDGETS[name]).fits
        assert row["architecture"] in {text for text in looked_at if fits(parse(text, space))}


def test_what_is_gone_of_a_budgets_own_search_is_made_again(trained, tmp_path):
    run, budgets = copy_of(trained, tmp_path), {name: BUDGETS[name] for name in ("p45", "p80")}
    before = many(run, budgets)
    journal = run / "many" / "p80" / "first" / "evaluations.jsonl"
    lines = journal.read_text().splitlines()
    journal.write_text("\n".join([lines[0], lines[1][:20], *lines[2:]]) + "\n")
    damaged = many(run, budgets)
    assert damaged.failed == ["p80"] and str(journal) in damaged.rows[1]["error"]
    journal.unlink()
    assert essence(many(run, budgets)) == essence(before)


def test_a_budget_of_the_same_name_but_another_limit_begins_anew(trained, tmp_path):
    run, other = copy_of(trained, tmp_path / "a"), copy_of(trained, tmp_path / "b")
    many(run, {"one": {"params": "45%"}, "two": {"params": "80%"}})
    again = many(run, {"one": {"params": "65%"}, "two": {"params": "80%"}})
    assert essence(again) == essence(many(other, {"one": {"params": "65%"}, "two": {"params": "80%"}}))


def test_a_network_of_another_budget_that_is_measured_over_the_limit_is_not_taken(trained, tmp_path):
    """What the budget's own search found was measured within all limits."""
    run, said = copy_of(trained, tmp_path), []
    many(run, {"small": {"params": "45%"}, "large": {"params": "80%"}})
    home = run / "many" / "large"
    recipe = open_run(home).recipe
    for share, kept in ((0.99, False), (1.02, True)):
        pipeline = Pipeline(recipe, home, say=said.append, progress=NullProgress())
        known, _ = load_result(home / "search.json", pipeline.space), pipeline.goal
        smallest_network = load_result(run / "many" / "small" / "search.json", pipeline.space)
        own = replace(smallest_network, architecture=smallest(pipeline.space))
        pipeline.costs.places, pipeline._measured = {"params": None}, lambda result, share=share: {"params": share}
        chosen = pipeline._settled_choice(First(factors={}, result=own)).result.architecture
        assert chosen == (own if kept else known).architecture
    assert said == ["search: another budget's network is measured at 102.0% of the params limit; its own is kept"]


def _networks(journal):
    return [json.loads(line)["network"] for line in journal.read_text().splitlines()[1:]]


def test_processes_find_the_same_and_a_killed_worker_costs_nothing(trained, one_after_the_other, tmp_path):
    run, killed = copy_of(trained, tmp_path), []

    def kill(executor):
        journals = [run / "many" / name / "first" / "adaptive.json" for name in BUDGETS]
        while not any(journal.exists() for journal in journals):  # a search has begun
            time.sleep(0.01)
        killed.append(executor.pids[0])
        os.kill(killed[0], signal.SIGKILL)

    with LocalExecutor(2) as executor:
        killer = threading.Thread(target=kill, args=(executor,), daemon=True)
        killer.start()
        result = many(run, BUDGETS, executor=executor)
        killer.join(timeout=10)
    assert killed and not result.failed
    assert essence(result) == essence(one_after_the_other)


def test_ray_finds_the_same(trained, one_after_the_other, tmp_path, monkeypatch):
    pytest.importorskip("ray", reason="Ray is in the extra [dev]")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    monkeypatch.setenv("RAY_worker_niceness", "0")  # at Ray's 15 a busy machine hardly lets them start
    with open_executor("ray") as executor:
        result = many(copy_of(trained, tmp_path), BUDGETS, executor=executor)
    assert essence(result) == essence(one_after_the_other)


def test_one_failure_stops_nobody_and_the_same_command_goes_on(trained, tmp_path, snug):
    run, budgets = copy_of(trained, tmp_path), tmp_path / "budgets.yaml"
    budgets.write_text("budgets: {none: {params: 1%}, odd: {latency@phone: 5ms}, some: {params: 60%}}\n")
    code, out, err = snug("many", str(run), "--budgets", str(budgets), "--finetune", "--json")
    assert code == 1
    facts = json.loads(out)
    rows = {row["name"]: row for row in facts["budgets"]}
    assert facts["failed"] == ["none", "odd"]
    assert "params must be at least" in rows["none"]["error"] and "devices: {phone:" in rows["odd"]["error"]
    assert rows["some"]["fits"] and "before" in read_json(run / "many" / "some" / "accuracy.json")
    assert "finetune: held-out" in err
    budgets.write_text("budgets: {some: {params: 60%}}\n")
    code, out, err = snug("many", str(run), "--budgets", str(budgets), "--finetune")
    assert code == 0 and "some: finetune: done before" in err and "evidence: done before" in err
    assert rows["some"]["architecture"] in out
    budgets.write_text("budgets: {some: {params: 60%}, more: {params: 65%}}\n")  # it may find a better one for both
    code, out, err = snug("many", str(run), "--budgets", str(budgets), "--finetune")
    assert code == 0 and "some: first search: done before" in err and "more" in out


def test_tables_of_boards_are_measured_side_by_side_and_one_that_is_off_stops_nobody(trained, tmp_path):
    run, said = copy_of(trained, tmp_path), []
    devices = {label: f"command:{command}" for label, command in meeting(tmp_path, "pi", "phone").items()}
    devices |= {"cpu": "onnxruntime", "off": "command:false"}
    sections = {label: {"device": device, "seconds": 0.2} for label, device in devices.items()}
    budgets = {
        "both": {"latency@pi": "1ns", "latency@phone": "1s"},
        "cpu": {"latency@cpu": "1ns"},
    }  # refused: not searched
    budgets |= {"dark": {"latency@pi": "1s", "latency@off": "1s"}, "plain": {"params": "60%"}}
    with LocalExecutor(2) as executor:
        result = many(run, budgets, devices=sections, executor=executor, say=said.append)
    rows = {row["name"]: row for row in result.rows}
    assert result.failed == ["both", "cpu", "dark"] and rows["plain"]["fits"]
    assert "latency@pi" in rows["both"]["error"] and "latency@cpu" in rows["cpu"]["error"]
    assert "an agent must answer behind `false`" in rows["dark"]["error"]
    for label in ("pi", "phone", "cpu"):
        assert load_table(run / f"table@{label}.json").origin["space"] == "tiny"
        assert read_json(run / "steps.json")[f"measure {label}"]["files"]
    order = [line for line in said if ": measure " in line]  # this machine's own when boards have ended
    assert [line.split()[2] for line in order[-2:]] == ["cpu", "cpu:"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("budgets: {a: {params: 50%}", "must be YAML"),
        ("limits: {a: {params: 50%}}", "budgets"),
        ("budgets: {}", "at least 1"),
        ("budgets: {a/b: {params: 50%}}", "the name of a budget"),
        ("budgets: {a: 5}", "budgets.a"),
    ],
)
def test_a_file_of_budgets_is_checked_before_any_work(trained, tmp_path, snug, text, message):
    (tmp_path / "budgets.yaml").write_text(text)
    code, _, err = snug("many", str(trained), "--budgets", str(tmp_path / "budgets.yaml"))
    assert code == 2 and one_clear_line(err) and message in err, err
    assert not (trained / "many").exists()


def test_a_device_is_timed_by_one_while_nobody_computes():
    turns, log, lock = Turns(), [], threading.Lock()

    def note(what):
        with lock:
            log.append(what)

    def budget(number):
        with turns.working():
            for _ in range(3):
                note("+work")
                time.sleep(0.002 * number)
                note("-work")
                with turns.alone():
                    note("+time")
                    time.sleep(0.001)
                    note("-time")

    threads = [threading.Thread(target=budget, args=(number,), daemon=True) for number in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
        assert not thread.is_alive()
    working, timing = 0, 0
    for entry in log:
        working += {"+work": 1, "-work": -1}.get(entry, 0)
        timing += {"+time": 1, "-time": -1}.get(entry, 0)
        assert timing <= 1 and not (timing and working), log
    assert log.count("+time") == 15
