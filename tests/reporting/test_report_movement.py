"""A search that happens in training, on the page: operations, depths, widths and costs, epoch by epoch."""

import json
import shutil

import pytest

from snugnet.reporting import build_report
from snugnet.reporting.page import make_report
from snugnet.reporting.reading import read_run, space_of
from snugnet.space.layout import Layout

pytest_plugins = ["report_fixtures"]
EPOCHS = 4


@pytest.fixture
def moving(run_folder, tmp_path):
    """The made-up run, with what tfnas would have told of its epochs."""
    copy = tmp_path / "run"
    shutil.copytree(run_folder, copy)
    space = space_of(read_run(copy))
    layout = Layout(space)
    rows = []
    for epoch in range(EPOCHS):
        alpha = []
        for slot in layout.slots:
            count = len(layout.choices(*slot))
            lead = 1 / count + epoch * (1 - 1 / count) / EPOCHS
            alpha.append([lead, *[(1 - lead) / max(1, count - 1)] * (count - 1)])
        report = {
            "alpha": alpha,
            "beta": [[1 / len(stage.depths)] * len(stage.depths) for stage in space.stages],
            "widths": [[spec.mid_channels + epoch for spec in row] for row in layout.slot_specs],
            "costs": {"latency": 1.0 + 0.1 * epoch},
        }
        rows.append({"phase": 0, "method": "tfnas", "epoch": epoch + 1, "total": 10 * epoch, "epoch_report": report})
    with (copy / "train.jsonl").open("a") as log:
        log.writelines(json.dumps(row) + "\n" for row in rows)
    return copy, layout


def test_curves_hold_what_the_log_says(moving, embedded):
    folder, layout = moving
    section = embedded(make_report(folder).html)["movement"]
    slot = next(n for n, s in enumerate(layout.slots) if len(layout.choices(*s)) > 1)
    first = section["layers"][0]
    stage, position = layout.slots[slot]
    assert first["name"] == f"Stage {stage + 1}, block {position + 1}"
    assert [line["name"] for line in first["series"]] == [choice.label for choice in layout.choices(stage, position)]
    assert [point[0] for point in first["series"][0]["points"]] == [1, 2, 3, 4]
    assert first["series"][0]["points"][-1][1] > first["series"][0]["points"][0][1]
    start = layout.slot_specs[slot][0].mid_channels
    assert [point[1] for point in section["widths"][0]["points"]] == [start + epoch for epoch in range(EPOCHS)]
    assert [point[1] for point in section["costs"][0]["series"][0]["points"]] == pytest.approx([1, 1.1, 1.2, 1.3])
    assert section["depths"][0]["series"][0]["points"][0][1] < 1


def test_runs_that_do_not_search_in_training_show_nothing(run_folder, embedded):
    report = make_report(run_folder)
    assert embedded(report.html)["movement"]["layers"] == [] and "movement" not in report.missing


def test_it_is_drawn_and_hidden(browser, moving, run_folder):
    browser.open(build_report(moving[0]))
    assert browser.complaints() == []
    charts = len(moving[1].slots)
    assert browser.evaluate("document.querySelectorAll('#movement svg').length") >= charts - 1
    browser.open(build_report(run_folder))
    assert browser.evaluate("document.querySelectorAll('#movement svg').length") == 0
    assert browser.evaluate("document.getElementById('movement').previousElementSibling.hidden") is True
