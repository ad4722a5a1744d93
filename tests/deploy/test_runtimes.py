"""One network on several runtimes: judged by their own answers, the fastest named among those accurate enough."""

import json
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from digits_network import digits_network

from snugnet import data as datasets
from snugnet.cli import execute
from snugnet.deploy.network_file import save_network
from snugnet.deploy.runtimes import compare_runtimes, devices_here
from snugnet.devices import OnnxRuntime, TorchCpu
from snugnet.devices.agent import OWN_TIME, WALL_CLOCK
from snugnet.devices.device import Device, Runnable
from snugnet.devices.timing import TimingSettings
from snugnet.errors import BadInput, UnknownName
from snugnet.space import zoo
from tiny_recipe import recipe_in

QUICK = TimingSettings(seconds=0.5, least_passes=5, most_passes=5)


@dataclass(frozen=True, kw_only=True)
class Pretend(Device):
    """Takes `ms` and answers every `wrong`-th image wrongly; 0: none."""

    ms: float = 1.0
    wrong: int = 0
    label: str = "pretend"
    clock_name: str = OWN_TIME

    name: ClassVar[str] = "pretend"
    precisions: ClassVar[tuple[str, ...]] = ("float32", "float16", "bfloat16")

    @classmethod
    def missing(cls) -> str:
        return ""

    @classmethod
    def remedy(cls) -> str:
        return ""

    def prepare(self, module: torch.nn.Module, example: torch.Tensor) -> Runnable:
        asked = [0]

        def answer(images: torch.Tensor) -> torch.Tensor:
            logits = module(images)
            for row in range(len(images)):
                asked[0] += 1
                if self.wrong and asked[0] % self.wrong == 0:
                    logits[row] = -logits[row]
            return logits

        return Runnable(run=lambda: None, output=lambda: module(example), answer=answer)

    def time(self, runnable: Runnable, repetitions: int) -> float:
        return self.ms

    @property
    def clock(self) -> str:
        return self.clock_name

    def fingerprint(self) -> dict[str, str]:
        return {}


@pytest.fixture(scope="module")
def digits():
    return datasets.load("digits", resolution=8)


def test_the_fastest_that_loses_too_much_is_not_named(digits):
    places = [
        Pretend(ms=1.0, wrong=20, precision="float16"),  # loses about 5 %
        Pretend(ms=2.0, wrong=150, precision="bfloat16"),  # about 0.7 %
        Pretend(ms=3.0),
    ]
    outcome = compare_runtimes(digits_network(), places, data=digits, lose=0.01, batch=71, settings=QUICK)
    assert [row.latency_ms for row in outcome.runtimes] == [1.0, 2.0, 3.0]
    assert [row.within for row in outcome.runtimes] == [False, True, True]
    assert outcome.fastest.label == "pretend bfloat16"
    assert outcome.runtimes[0].lost == pytest.approx(0.05, abs=0.015)
    assert outcome.runtimes[2].lost == 0
    assert outcome.images == digits.size("test") == 355
    strict = compare_runtimes(digits_network(), places, data=digits, lose=0.001, batch=71, settings=QUICK)
    assert strict.fastest.label == "pretend float32"
    none = compare_runtimes(digits_network(), places[:1], data=digits, lose=0.001, batch=71, settings=QUICK)
    assert none.fastest is None
    assert "No runtime is within" in none.message


def test_without_images_fewer_bits_are_not_judged():
    places = [Pretend(ms=1.0, precision="float16"), Pretend(ms=2.0)]
    outcome = compare_runtimes(digits_network(), places, settings=QUICK)
    assert [row.within for row in outcome.runtimes] == [None, True]
    assert outcome.fastest.label == "pretend float32"
    assert "no images" in outcome.message


def test_one_clock_for_all():
    own, wall = Pretend(), Pretend(clock_name=WALL_CLOCK, precision="float16")
    assert compare_runtimes(digits_network(), [own], settings=QUICK).clock == OWN_TIME
    both = compare_runtimes(digits_network(), [own, wall], settings=QUICK)
    assert both.clock == WALL_CLOCK
    times = {row.precision: row.latency_ms for row in both.runtimes}
    assert times["float16"] == 1.0
    assert 0 < times["float32"] < 0.5, "read off the wall clock: doing nothing takes no millisecond"


def test_a_runtime_that_cannot_is_named_with_its_reason():
    class Cannot(Pretend):
        def prepare(self, module, example):
            raise BadInput("it must be able to", value="not", remedy="Use another.")

    outcome = compare_runtimes(digits_network(), [Cannot(precision="float16"), Pretend()], settings=QUICK)
    assert "must be able to" in outcome.failed["pretend float16"]
    assert len(outcome.runtimes) == 1
    with pytest.raises(BadInput, match="one of the devices"):
        compare_runtimes(digits_network(), [Cannot()], settings=QUICK)


def test_a_run_on_every_runtime(tmp_path, capsys, digits):
    """Through the command line: judged on the run's test images, a real int8 graph among them."""
    save_network(digits_network(), tmp_path / "network.safetensors")
    recipe_in(tmp_path).rename(tmp_path / "recipe.yaml")
    words = ["certify", str(tmp_path), "--devices", "onnxruntime,torch-cpu", "--lose", "at-most=3%", "--seconds", "1"]
    assert execute([*words, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    rows = {f"{row['device']} {row['precision']}": row for row in answer["runtimes"]}
    assert set(rows) == {"onnxruntime float32", "onnxruntime int8", "torch-cpu float32", "torch-cpu bfloat16"}
    right = sum(
        int((digits_network()(images).argmax(1) == labels).sum()) for images, labels in digits.batches("test", 60)
    )
    assert answer["images"] == 355
    assert rows["torch-cpu float32"]["accuracy"] == right / 355
    assert rows["onnxruntime float32"]["lost"] == 0
    assert 0 <= abs(rows["onnxruntime int8"]["lost"]) < 0.05
    best = min((row["latency_ms"], name) for name, row in rows.items() if row["within"])
    assert answer["fastest"] == best[1]
    assert execute(words) == 0
    assert "within the accuracy" in capsys.readouterr().out


def test_the_zoo_on_every_runtime(capsys, monkeypatch):
    monkeypatch.setattr(zoo, "networks", lambda few={"MobileNetV2-1.0": zoo.find("MobileNetV2-1.0")}: few)
    words = ["zoo", "--devices", "onnxruntime", "--seconds", "0.5"]
    assert execute([*words, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert [result["within"] for result in row["runtimes"] if result["precision"] == "int8"] == [None]
    assert row["fastest"] == "onnxruntime float32"
    assert row["mmacs"] > 0


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["certify", "HardCoRe-A", "--devices", "all", "--budget", "latency=1ms"], "without --budget"),
        (["certify", "HardCoRe-A", "--devices", "onnxruntim"], "onnxruntime"),
        (["certify", "HardCoRe-A", "--devices", "all", "--lose", "0.5%"], "at-most=SHARE"),
        (["certify", "HardCoRe-A"], "at least one limit"),
        (["zoo", "--devices", "all", "--device", "torch-cpu"], "without --device"),
    ],
)
def test_what_makes_no_sense_is_said_in_a_line(capsys, words, complaint):
    assert execute(words) == 2
    assert complaint in capsys.readouterr().err


def test_the_devices_that_are_here():
    every = devices_here()
    assert {OnnxRuntime(), OnnxRuntime(precision="int8"), TorchCpu()} <= set(every)
    assert all(not device.missing() for device in every)
    with pytest.raises(UnknownName):
        devices_here("nowhere")
