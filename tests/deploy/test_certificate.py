"""Certificates: what they say, and that nothing is believed. Budgets are so wide or so narrow that speed does not matter."""

import copy
import json
from dataclasses import dataclass, field

import numpy as np
import onnx
import pytest
import torch
from safetensors.torch import save_file

from fake_device import CUDA, fake_device, on_device
from snugnet.budgets.budget import Budget
from snugnet.costs import analytic
from snugnet.costs.measure import measure
from snugnet.costs.table import exact_table
from snugnet.deploy import certificate
from snugnet.deploy.card import read_certificate
from snugnet.deploy.certificate import certify
from snugnet.devices import OnnxRuntime, TorchCpu
from snugnet.devices.onnx_graph import onnx_bytes
from snugnet.devices.timing import TimingSettings
from snugnet.errors import BadInput, BudgetExceeded, DamagedFile, FileTrouble, TableMismatch, UnknownName
from snugnet.nets.network import build
from snugnet.space import plan, preset, smallest
from snugnet.space.spec import plan_to_json
from snugnet.store import sealed, write_json

SPACE = preset("hardcore-lowres", classes=10, width=0.25)
PLAN = plan(smallest(SPACE), SPACE)
QUICK = TimingSettings(seconds=5, least_passes=5, most_passes=5)
WIDE = {"latency": "100s", "macs": "1GMACs", "params": "10M", "model_size": "40MiB", "memory": "40MiB"}


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    return build(smallest(SPACE), SPACE)


def test_a_network_that_fits(network, tmp_path):
    made = certify(network, Budget(WIDE), TorchCpu(), out=tmp_path / "c.json", settings=QUICK)
    value = read_certificate(tmp_path / "c.json")
    assert value == json.loads(json.dumps(made.to_json()))
    assert value["fits"]
    assert set(value["budgets"]) == set(WIDE)
    for name, exact in (("macs", analytic.macs), ("params", analytic.params), ("memory", analytic.peak_memory)):
        line = value["budgets"][name]
        assert line["measured"] == exact(PLAN)
        assert line["interval"] == [exact(PLAN)] * 2
        assert line["slack"] == line["limit"] - exact(PLAN)
    latency = value["budgets"]["latency"]
    assert latency["unit"] == "ms"
    assert latency["limit"] == 100_000
    assert 0 < latency["interval"][0] <= latency["measured"] <= latency["interval"][1]
    assert latency["device"] == TorchCpu().fingerprint()
    assert value["versions"]["torch"] == torch.__version__
    assert len(value["network"]["weights_sha256"]) == 64


@pytest.mark.parametrize(
    ("name", "limit"), [("latency", "1ns"), ("macs", "1kMACs"), ("params", "1k"), ("memory", "1KiB")]
)
def test_a_network_that_does_not_fit_raises_and_the_file_says_so(network, tmp_path, name, limit):
    with pytest.raises(BudgetExceeded, match=f"{name} must be at most") as caught:
        certify(network, {**WIDE, name: limit}, TorchCpu(), out=tmp_path / "c.json", settings=QUICK)
    assert caught.value.exit_code == 1
    value = read_certificate(tmp_path / "c.json")
    assert not value["fits"]
    assert [key for key, line in value["budgets"].items() if not line["fits"]] == [name]


def test_an_exact_limit_is_met_to_the_last_mac(network):
    macs = analytic.macs(PLAN)
    assert certify(network, {"macs": f"{macs}MACs"}).fits
    with pytest.raises(BudgetExceeded):
        certify(network, {"macs": f"{macs - 1}MACs"})


@dataclass(frozen=True, kw_only=True)
class Stuttering(TorchCpu):
    """A made-up clock: 20 ms, busy sessions (the third) 30 ms; every fifth pass takes twice as long."""

    busy: tuple[int, ...] = (2,)
    calls: list[int] = field(default_factory=lambda: [0])

    def time(self, runnable, repetitions):
        self.calls[0] += 1
        session = (self.calls[0] - 1) // (
            2 + 2 * 20
        )  # two calls of warm-up, two in each pass: 20 ms warm by themselves
        return (30.0 if session in self.busy else 20.0) * (2.0 if self.calls[0] % 10 == 0 else 1.0)


def test_a_certificate_names_its_statistic_and_covers_its_sessions(network, tmp_path):
    settings = TimingSettings(seconds=1, least_passes=20, most_passes=20, tolerance=1e-9)

    def line(text):
        made = certify(network, {"latency": text}, Stuttering(), settings=settings, out=tmp_path / "c.json")
        assert read_certificate(tmp_path / "c.json") == json.loads(json.dumps(made.to_json()))
        return made.to_json()["budgets"]["latency"]

    quiet, p90 = line("1s"), line("1s p90")
    assert (quiet["statistic"], quiet["clock"], quiet["sessions"]) == ("quiet", "thread", [20.0, 20.0, 30.0])
    assert quiet["measured"] == 20.0
    assert quiet["interval"] == [20.0, 30.0], "no luckiest session: the slow one is inside the interval"
    assert (p90["statistic"], p90["interval"][1]) == ("p90", 60.0)
    assert p90["measured"] > quiet["measured"]
    assert 0 < quiet["wall_median"] <= quiet["wall_p90"]
    with pytest.raises(BudgetExceeded, match=r"latency \(p90\)"):
        line("50ms p90")


def test_a_busy_moment_is_answered_with_further_sessions_and_stays_in_the_pool(network, tmp_path):
    settings = TimingSettings(seconds=1, least_passes=20, most_passes=20, tolerance=1e-9)

    def sessions(limit, busy):
        device, fits = Stuttering(busy=busy), True
        try:
            certify(network, {"latency": limit}, device, settings=settings, out=tmp_path / "c.json")
        except BudgetExceeded:
            fits = False
        line = read_certificate(tmp_path / "c.json")["budgets"]["latency"]
        assert line["fits"] == fits == (line["interval"][1] <= line["limit"])
        return fits, line["sessions"]

    assert sessions("25ms", busy=(2,)) == (True, [20.0, 20.0, 30.0, 20.0, 20.0, 20.0])
    fits, often = sessions("25ms", busy=(1, 2, 4))
    assert (fits, often) == (False, [20.0, 30.0, 30.0, 20.0, 30.0, 20.0]), "half of the sessions is luck"
    assert sessions("17ms", busy=()) == (False, [20.0] * 3), "far over: no busy moment explains that"
    assert sessions("19ms", busy=()) == (False, [20.0] * 6)


def test_the_weights_are_hashed(network):
    first = certify(network, {"params": "10M"})
    again = certify(network, {"params": "10M"})
    torch.manual_seed(1)
    other = certify(build(smallest(SPACE), SPACE), {"params": "10M"})
    assert first.weights_sha256 == again.weights_sha256 != other.weights_sha256


def test_an_onnx_file(network, tmp_path):
    path = tmp_path / "net.onnx"
    path.write_bytes(onnx_bytes(network.eval(), torch.zeros(1, 3, 28, 28)))
    made = certify(path, WIDE, OnnxRuntime(), settings=QUICK)
    counted = {line.name: line.measured for line in made.lines}
    assert counted["macs"] == analytic.macs(PLAN)
    assert counted["memory"] == analytic.peak_memory(PLAN)
    assert counted["params"] < analytic.params(PLAN)
    split = tmp_path / "split.onnx"
    onnx.save(onnx.load(path), split, save_as_external_data=True, location="split.data", size_threshold=0)
    again = certify(split, {"params": "10M"})
    assert again.lines[0].measured == counted["params"]
    (tmp_path / "split.data").write_bytes(bytes(8) + (tmp_path / "split.data").read_bytes()[8:])
    assert certify(split, {"params": "10M"}).weights_sha256 != again.weights_sha256
    with pytest.raises(BadInput, match="must be run by a runtime for ONNX"):
        certify(path, WIDE, TorchCpu(), settings=QUICK)
    with pytest.raises(BadInput, match="with batch 3"):
        certify(path, WIDE, OnnxRuntime(), batch=3, settings=QUICK)


def test_safetensors_with_their_plan_inside_or_beside(network, tmp_path):
    inside, beside = tmp_path / "inside.safetensors", tmp_path / "beside.safetensors"
    save_file(network.state_dict(), inside, metadata={"plan": json.dumps(plan_to_json(PLAN))})
    save_file(network.state_dict(), beside)
    with pytest.raises(FileTrouble, match=r"beside\.json must stand beside"):
        certify(beside, {"params": "10M"})
    beside.with_suffix(".json").write_text(json.dumps({"plan": plan_to_json(PLAN)}))
    hashes = {certify(source, {"params": "10M"}).weights_sha256 for source in (network, inside, beside)}
    assert len(hashes) == 1
    inside.write_bytes(inside.read_bytes()[:-100])
    with pytest.raises(DamagedFile, match=r"inside\.safetensors"):
        certify(inside, {"params": "10M"})
    short = {name: value for name, value in network.state_dict().items() if "head" not in name}
    save_file(short, beside)
    with pytest.raises(DamagedFile, match="weights of its plan"):
        certify(beside, {"params": "10M"})


def test_a_module_of_ones_own_needs_its_resolution():
    own = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(144, 2))
    with pytest.raises(BadInput, match="resolution"):
        certify(own, {"macs": "1MMACs"})
    made = certify(own, {"macs": "1MMACs", "params": "1k"}, resolution=8)
    assert [line.measured for line in made.lines] == [36 * 27 * 4 + 288, 4 * 27 + 4 + 290]


def test_predictions_come_from_tables_made_for_this(network):
    tables = {"macs": exact_table(SPACE, "macs")}
    made = certify(network, {"macs": "1GMACs"}, tables=tables)
    assert made.lines[0].predicted == made.lines[0].measured
    latency = measure(SPACE, OnnxRuntime(), settings=QUICK, networks=3)
    with pytest.raises(TableMismatch, match="onnxruntime in the table, torch-cpu here"):
        certify(network, {"latency": "100s"}, TorchCpu(), tables={"latency": latency}, settings=QUICK)
    made = certify(network, {"latency": "100s"}, OnnxRuntime(), tables={"latency": latency}, settings=QUICK)
    assert made.lines[0].predicted == pytest.approx(latency.of_network(PLAN))


def test_labels_have_devices_of_their_own(network):
    budget = {"latency@server": "100s", "latency@phone": "100s"}
    with pytest.raises(BadInput, match="latency@phone must have a device"):
        certify(network, budget, {"server": TorchCpu()}, settings=QUICK)
    made = certify(network, budget, {"server": TorchCpu(), "phone": OnnxRuntime()}, settings=QUICK)
    assert [line.device["device"] for line in made.lines] == ["torch-cpu", "onnxruntime"]


def test_promises_that_cannot_be_made(network, tmp_path):
    with pytest.raises(BadInput, match="at least one limit"):
        certify(network, Budget())
    with pytest.raises(BadInput, match="must have a unit"):
        certify(network, {"macs": "60%"})
    with pytest.raises(BadInput, match="device"):
        certify(network, {"latency": "1s"})
    with pytest.raises(UnknownName):
        certify("HardCoRe-Z", {"params": "6M"})
    with pytest.raises(BadInput, match="onnx"):
        certify("net.pt", {"params": "6M"})
    with pytest.raises(FileTrouble):
        certify("none.onnx", {"params": "6M"})


def test_a_forged_certificate_is_found_out(network, tmp_path):
    path = tmp_path / "c.json"
    certify(network, {"params": "10M"}, out=path)
    path.write_text(path.read_text().replace('"fits": true', '"fits": false'))
    with pytest.raises(DamagedFile, match="sha256"):
        read_certificate(path)
    assert np.isfinite(json.loads(path.read_text())["budgets"]["params"]["slack"])


def test_a_module_on_another_device_is_certified_where_it_is_measured(network, monkeypatch):
    """The graph is traced and the weights are hashed on the CPU; a device takes its own copy."""
    graph = onnx_bytes(network.eval(), torch.zeros(1, 3, 28, 28))

    def traced(module, example):
        module(example)  # raises where two devices meet; the exporter itself cannot be traced under the fake
        return graph

    monkeypatch.setattr(certificate, "onnx_bytes", traced)
    with fake_device():
        moved = copy.deepcopy(network).to(CUDA)
        fits = certify(moved, {"latency": "100s", "macs": "1GMACs"}, TorchCpu(), settings=QUICK)
        assert all(on_device(parameter) for parameter in moved.parameters())
    assert fits.weights_sha256 == certify(network, {"params": "10M"}).weights_sha256


def test_a_certificate_with_a_wrong_field_is_refused_by_its_name(network, tmp_path):
    path = tmp_path / "c.json"
    body = certify(network, {"params": "10M"}).to_json()
    del body["sha256"]
    for change, named in (
        ({"batch": [1]}, r"c\.json: batch: input should be a valid integer"),
        ({"budgets": {"params": {**body["budgets"]["params"], "measured": "1"}}}, r"budgets\.params\.measured"),
        ({"colour": "blue"}, r"c\.json: colour: extra inputs"),
    ):
        write_json(path, sealed({**body, **change}))
        with pytest.raises(DamagedFile, match=named):
            read_certificate(path)
