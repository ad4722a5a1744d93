"""Tables: kept, refused, interpolated. The device here is made up: its clock knows what every part costs."""

import json
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest

from snugnet.cli.printing import check_format, picture_of_check, picture_of_networks
from snugnet.costs import analytic
from snugnet.costs.check import check_table
from snugnet.costs.measure import measure
from snugnet.costs.table import exact_table, load_table, save_table
from snugnet.devices.device import Device, Runnable, common_fingerprint
from snugnet.devices.timing import TimingSettings
from snugnet.errors import BadInput, DamagedFile, FileTrouble, TableMismatch
from snugnet.nets.network import Network
from snugnet.space import largest, plan, preset, smallest
from snugnet.space.layout import Layout

QUICK = TimingSettings(seconds=30, least_passes=6, most_passes=6, warmup=1)


@dataclass(frozen=True, kw_only=True)
class Pretended(Device):
    """Takes a microsecond for every parameter and 7 % more inside a network: a device without a clock."""

    name: ClassVar[str] = "pretended"

    @classmethod
    def missing(cls):
        return ""

    @classmethod
    def remedy(cls):
        return ""

    def prepare(self, module, example):
        cost = sum(p.numel() for p in module.parameters()) / 1e3 * (1.07 if isinstance(module, Network) else 1.0)
        return Runnable(run=lambda: cost * len(example), output=lambda: example)

    def time(self, runnable, repetitions):
        return float(runnable.run())

    @property
    def clock(self):
        return "made up"

    def fingerprint(self):
        return common_fingerprint(self, runtime="none", version="1")


SPACE = preset("hardcore-lowres", width=0.25, classes=10)


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    return measure(SPACE, Pretended(), settings=QUICK, out=tmp_path_factory.mktemp("t") / "table.json")


def test_every_part_is_measured_once_and_networks_are_predicted(table):
    assert set(table.costs) == set(Layout(SPACE).distinct_specs())
    for end in (smallest, largest):
        network = plan(end(SPACE), SPACE)
        assert table.of_network(network) == pytest.approx(1.07 * analytic.params(network) / 1e3, rel=0.01)
    part = next(iter(table.costs))
    assert table.isolated_ms[part][0] == pytest.approx(analytic.params(part) / 1e3)
    assert table.origin["calibration"]["ratio"] == pytest.approx(1.07, rel=0.02)
    assert {"date", "versions", "passes", "spread", "device", "batch", "resolutions"} <= set(table.origin)


def test_the_batch_is_measured_as_such():
    one, four = (measure(SPACE, Pretended(), batch=b, settings=QUICK, networks=3) for b in (1, 4))
    network = plan(smallest(SPACE), SPACE)
    assert four.of_network(network) == pytest.approx(4 * one.of_network(network), rel=0.02)
    assert four.origin["batch"] == 4


def test_a_check_on_unseen_networks(table, tmp_path):
    found = check_table(table, SPACE, Pretended(), networks=8, settings=QUICK)
    assert found.r2 > 0.999
    assert found.ratio == pytest.approx(1, abs=0.01)
    assert found.speed == pytest.approx(1)
    assert found.worst_error < 0.01
    seen = {row["architecture"] for row in table.origin["networks"]}
    assert not seen & {row.architecture for row in found.networks}
    assert {"r2", "ratio", "worst_error", "networks"} <= set(found.to_json())
    assert found.to_json()["networks"] == 8
    assert found.margin_ms(10.0) == pytest.approx(10 - 10 / (1 + found.margin))
    for name in ("a.svg", "a.png"):
        assert picture_of_check(found, tmp_path / name).stat().st_size > 5000
    rows = [{"name": "a", "latency_ms": 3.0, "top1": 70.0}, {"name": "b", "latency_ms": 5.0, "top1": None}]
    assert b"<svg" in picture_of_networks(rows, tmp_path / "b.svg", "here").read_bytes()[:2000]


def test_other_statistics_come_from_the_same_passes(tmp_path):
    """A device on which one call in four takes twice as long: quiet does not see it, p90 does, in tables and checks."""
    rng = np.random.default_rng(0)

    class Stuttering(Pretended):
        def time(self, runnable, repetitions):
            return float(runnable.run()) * (2.0 if rng.random() < 0.25 else 1.0)

    settings = TimingSettings(seconds=60, least_passes=60, most_passes=60, warmup=1)
    table = measure(SPACE, Stuttering(), settings=settings, out=tmp_path / "t.json", networks=8)
    assert load_table(tmp_path / "t.json") == table
    network = plan(largest(SPACE), SPACE)
    quiet, median, p90 = (table.for_statistic(s).of_network(network) for s in ("quiet", "median", "p90"))
    assert median == pytest.approx(quiet, rel=0.02)
    assert p90 == pytest.approx(2 * quiet, rel=0.05)
    slow = table.for_statistic("p90")
    assert slow.statistic == "p90"
    assert slow.for_statistic("quiet").costs == table.costs
    assert check_table(slow, SPACE, Stuttering(), networks=4, settings=settings).ratio == pytest.approx(1, abs=0.05)


def test_a_slower_day_is_noticed_and_taken_out(table):
    class Slower(Pretended):
        def time(self, runnable, repetitions):
            return 1.25 * float(runnable.run())

    found = check_table(table, SPACE, Slower(), networks=4, settings=QUICK)
    assert found.speed == pytest.approx(0.8)
    assert found.ratio == pytest.approx(1, abs=0.01)
    assert "80.0% of its speed" in found.message


def test_a_wrong_table_is_found_out(table):
    wrong = replace(table, costs={part: cost * 1.3 for part, cost in table.costs.items()})
    found = check_table(wrong, SPACE, Pretended(), networks=4, settings=QUICK)
    assert found.ratio == pytest.approx(1.3, abs=0.01)
    assert found.worst_error > 0.25


def test_tables_survive_their_file(table, tmp_path):
    again = load_table(save_table(table, tmp_path / "t.json"))
    assert again == table
    memory = exact_table(SPACE, "memory")
    assert load_table(save_table(memory, tmp_path / "m.json")) == memory


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ({"batch": 2}, "batch 1 in the table, 2 here"),
        ({"resolution": 224}, "resolution 28 in the table, 224 here"),
        ({"device": {**Pretended().fingerprint(), "threads": "2"}}, "threads 1 in the table, 2 here"),
        ({"device": {**Pretended().fingerprint(), "version": "2"}}, "version 1 in the table, 2 here"),
        ({"space": preset("tfnas-lowres")}, "space 'hardcore-lowres' in the table, 'tfnas-lowres' here"),
    ],
)
def test_used_elsewhere_it_says_what_differs(table, words, named):
    table.require(space=SPACE, device=Pretended().fingerprint(), batch=1, resolution=28)
    with pytest.raises(TableMismatch, match=named):
        table.require(**words)


def test_a_part_it_does_not_hold(table):
    with pytest.raises(TableMismatch, match="must hold every part"):
        table.of_network(plan(smallest(preset("hardcore")), preset("hardcore")))


def test_free_widths_are_interpolated():
    space = preset("tfnas-lowres", width=0.25, classes=10)
    table = measure(space, Pretended(), settings=QUICK, networks=4)
    network = plan(largest(space), space)
    block = max(network.blocks, key=lambda b: b.mid_channels)
    between = replace(block, mid_channels=block.mid_channels - 3)
    assert between not in table.costs
    assert table.of_part(between) == pytest.approx(1.07 * analytic.params(between) / 1e3, rel=0.02)
    with pytest.raises(TableMismatch):
        table.of_part(replace(block, mid_channels=block.mid_channels + 1))
    exact = exact_table(space, "macs")
    assert exact.of_part(between) == analytic.macs(between)


def edit(path, change):
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda v: v["parts"][5].update(cost=0.001), r"t\.json: parts\[5\]\.cost: must be as it was written"),
        (lambda v: v["parts"][5].update(cost="fast"), r"t\.json: parts\[5\]\.cost: input should be a valid number"),
        (lambda v: v["parts"][2]["part"].update(kernel="3"), r"parts\[2\]\.part"),
        (lambda v: v["parts"].pop(), r"parts\[122\]"),
        (lambda v: v["origin"].update(batch=8), r"origin\.batch: must be as it was written"),
        (lambda v: v["origin"]["device"].update(threads="4"), r"origin\.device\.threads: must be as it was written"),
        (lambda v: v["origin"].pop("device"), r"origin\.device: field required"),
        (lambda v: v.pop("combine"), r"t\.json: combine: field required"),
        (lambda v: v.update(resource="joy"), r"t\.json: resource: must be one of"),
        (lambda v: v.update(format=9), r"t\.json: format: input should be 1"),
        (lambda v: v["parts"][0].update(alone=[1]), r"parts\[0\]\.alone"),
        (lambda v: v["parts"][0].update(cost=float("inf")), r"parts\[0\]\.cost: input should be a finite number"),
        (lambda v: v["parts"][0].update(cost=True), r"parts\[0\]\.cost: input should be a valid number"),
        (lambda v: v.update(resource=["latency"]), r"t\.json: resource: input should be a valid string"),
        (lambda v: v.update(combine=["sum"]), r"t\.json: combine: input should be"),
        (lambda v: v.update(format=[1]), r"t\.json: format: input should be"),
        (lambda v: v.update(marks=[]), r"t\.json: marks: input should be a valid dict"),
        (lambda v: v.update(origin=["measured"]), r"t\.json: origin: input should be"),
        (lambda v: v["origin"].update(kind=["measured"]), r"t\.json: origin\.kind: input should be"),
        (lambda v: v["origin"]["networks"][1].update(measured_ms="2"), r"origin\.networks\[1\]\.measured_ms"),
        (lambda v: v["origin"]["calibration"].update(margin=[]), r"origin\.calibration\.margin"),
        (lambda v: v["parts"][3]["part"].update(part=["block"]), r"parts\[3\]\.part"),
        (lambda v: v["parts"][3]["part"].update(activation=["relu"]), r"parts\[3\]\.part"),
        (lambda v: v["parts"].insert(0, []), r"parts\[0\]: input should be"),
        (lambda v: v.update(colour="blue"), r"t\.json: colour: extra inputs are not permitted"),
        (lambda v: v.clear(), "must be a cost table"),
    ],
)
def test_an_edited_file_is_refused_by_the_name_of_the_field(table, tmp_path, change, named):
    path = save_table(table, tmp_path / "t.json")
    edit(path, change)
    with pytest.raises(DamagedFile, match=named):
        load_table(path)


def test_a_truncated_file_is_refused(table, tmp_path):
    path = save_table(table, tmp_path / "t.json")
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(DamagedFile, match="line"):
        load_table(path)


def test_bad_wishes(table, tmp_path):
    for batch in (0, -1, 1.5, True):
        with pytest.raises(BadInput, match="batch"):
            measure(SPACE, Pretended(), batch=batch)
    with pytest.raises(BadInput, match="at least 3"):
        check_table(table, SPACE, Pretended(), networks=1)
    with pytest.raises(TableMismatch, match="must be measured"):
        check_table(exact_table(SPACE, "macs"), SPACE, Pretended())
    with pytest.raises(BadInput, match=r"\.svg"):
        check_format("picture.txt")
    (tmp_path / "file").write_text("")
    with pytest.raises(FileTrouble):
        measure(SPACE, Pretended(), out=tmp_path / "file" / "t.json")
