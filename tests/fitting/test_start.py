"""From a trained network to a certified one: the recipe that is chosen, what starts from what, the whole way in small."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from snugnet.cli import execute
from snugnet.data.dataset import load, native_sides
from snugnet.errors import BadInput, DamagedFile, UnknownName
from snugnet.evaluate.scoring import accuracy
from snugnet.fitting import find, fit, read
from snugnet.fitting.fit_data import _kept_start
from snugnet.fitting.recipe import FinetuneSection
from snugnet.fitting.runs import first_supernet, open_run
from snugnet.fitting.starting import _Sizes, schedule, seconds_of, start_recipe
from snugnet.fitting.timekeeping import epochs_within
from snugnet.nets.elasticise import elastic
from snugnet.nets.trained import load_start
from snugnet.space.sampling import largest
from snugnet.training import methods, train

CHEAP = [
    "train.batch=8",
    "finetune.batch=8",
    "data.resolution=48",
    "start.resolutions=[32, 48]",
    "search.method=random",
    "search.options={networks: 2}",
]
_CALM = "epochs: 1, mixup: 0, auto_augment: null"
LONG = [f"train.phases=[{{method: classifier, {_CALM}}}, {{method: largest, {_CALM}}}, {{method: multipath, {_CALM}}}]"]


@pytest.fixture(scope="module")
def pets(tmp_path_factory):
    """Dark and bright squares: two classes that any network can tell apart."""
    home = tmp_path_factory.mktemp("data") / "pets"
    rng = np.random.default_rng(0)
    for part, count in (("train", 20), ("val", 6)):
        for name, level in (("bright", 170), ("dark", 60)):
            (home / part / name).mkdir(parents=True)
            for number in range(count):
                size = (28 + number % 3, 30, 3)
                pixels = np.clip(rng.normal(level, 20, size), 0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(home / part / name / f"{number}.png")
    return home


def chosen(pets, **options):
    return start_recipe(
        f"folder:{pets}", "efficientnet-lite0", **{"seconds": 60.0, "budget": {}, "threads": 1, **options}
    )


def test_the_recipe_follows_images_and_time(pets):
    assert sorted(set(native_sides(f"folder:{pets}"))) == [28, 29, 30]
    recipe = chosen(pets)
    assert recipe.start.name == "efficientnet-lite0" and recipe.space is None
    assert recipe.data.resolution == max(recipe.start.resolutions)
    assert 2 * 29 - 16 <= recipe.data.resolution <= 3 * 29 + 16
    assert [phase.method for phase in recipe.train.phases] == ["classifier", "largest"]
    assert recipe.finetune.options["distill"] == 0  # a start that has hardly learnt the classes is no teacher
    assert recipe.load_data().about.mean == load_start("efficientnet-lite0").mean  # the start's own normalisation
    assert read(__import__("yaml").safe_dump(recipe.resolved())) == recipe  # it can be edited and run again


@pytest.mark.parametrize(("seconds", "resolution"), [(1e4, 96), (200, 80), (1.0, 64)])
def test_little_time_takes_smaller_images_but_never_too_small(seconds, resolution):
    sizes = _Sizes.of(1000, 32, 224, 100.0, seconds)
    assert sizes.resolution == resolution == max(sizes.resolutions)


@pytest.mark.parametrize(("seconds", "resolution"), [(1e5, 224), (600, 128), (1.0, 112)])
def test_large_photographs_become_smaller_where_time_is_short(seconds, resolution):
    assert _Sizes.of(1000, 500, 224, 100.0, seconds).resolution == resolution


def test_paths_train_and_the_start_teaches_where_there_is_time_for_both():
    for seen, methods_used in ((10_000, 2), (660_000, 2), (680_000, 3)):
        phases, finetune, space = schedule(1000, 250, seen, 64)
        long = methods_used == 3
        assert len(phases) == methods_used and (finetune["options"]["distill"] > 0) == long == space["kernels"]
        assert finetune["from_start"] != long
        assert finetune["options"]["split"] == "train+val"
        epochs = [*(phase["epochs"] for phase in phases), 1.25 * finetune["epochs"]]
        assert min(epochs) > 0 and sum(epochs) * 1000 == pytest.approx(seen, rel=0.1)


def test_few_steps_begin_at_the_weights_of_the_start(pets, tmp_path):
    """One step of a tiny rate: what is shipped is the start's block, not what the phases made of it; or, where that fell
    behind the trained super-network, the latter."""
    tiny = [
        "finetune.epochs=1",
        "finetune.run_seconds=null",
        "finetune.options.lr=1e-6",
        "finetune.options.ema=null",
        "train.phases[1].lr=0.05",
    ]
    fit(
        pets,
        {"macs": "70%"},
        out=tmp_path / "run",
        start="efficientnet-lite0",
        time="4s",
        changes=CHEAP + tiny,
        threads=1,
    )
    run = open_run(tmp_path / "run")
    assert run.recipe.finetune.from_start
    (home,) = (tmp_path / "run" / "finetune").iterdir()
    tuned = load_file(home / "weights.safetensors")
    name = "stem.conv.weight"
    start = load_start("efficientnet-lite0").network().state_dict()[name]
    assert torch.allclose(tuned[name], start, atol=1e-4)
    assert not torch.allclose(run.supernet.state_dict()[name], start, atol=1e-4)
    with pytest.raises(BadInput, match="needs a `start`"):
        find("digits", ["finetune.from_start=true"])


def test_the_whole_way(pets, tmp_path, capsys):
    lines: list[str] = []
    result = fit(
        pets, {"macs": "60%"}, out=tmp_path / "run", start="efficientnet-lite0", time="4s", changes=CHEAP + LONG,
        threads=1, say=lines.append,
    )  # fmt: skip
    assert result.certificate["fits"] and result.certificate["budgets"]["macs"]["measured"] > 0
    assert result.report.exists() and result.architecture.resolution in (32, 48)
    assert result.network.plan.resolution == result.architecture.resolution
    assert result.accuracy == accuracy(
        result.network, open_run(tmp_path / "run").recipe.load_data(result.architecture.resolution), "test"
    )
    command = ["fit", str(pets), "--budget", "macs=60%", "--time", "9h", "--threads", "1", "--json"]
    assert execute([*command, "--out", str(tmp_path / "run")]) == 0  # the run's own recipe, whatever time is said now
    said = json.loads(capsys.readouterr().out)
    assert said["architecture"] == str(result.architecture) and said["accuracy"] == result.accuracy
    assert said["fits"] is True and said["measured"]["macs"] <= said["limits"]["macs"] < 60e6 and said["seconds"] > 0
    assert json.loads(Path(said["certificate"]).read_text())["fits"]
    curve = (tmp_path / "run" / "train.jsonl").read_text().splitlines()
    assert sum("largest" in line for line in curve) > 1  # held-out, for the page
    # The found network learns from the held-out images too: no curve of them, and no accuracy that says held-out.
    (curve,) = (tmp_path / "run" / "finetune").glob("*/train.jsonl")
    assert not any("accuracy" in line for line in curve.read_text().splitlines())
    told, kept = result.accuracies.keys(), "worse" not in result.accuracies  # a few steps may do harm
    assert {"test", "before"} <= told and ("val" in told) != kept and ("learnt" in told) == kept
    # Four seconds were over long ago: half of the recipe's epochs, decided once.
    asked = open_run(tmp_path / "run").recipe.finetune.epochs
    epochs = json.loads((tmp_path / "run" / "epochs.json").read_text())["epochs"]
    assert epochs == pytest.approx(max(asked / 2, 0.01), abs=0.0051 if asked < 20 else 0.51)
    assert any(line.startswith(f"finetune: {epochs:g} epochs for 4 s in all") for line in lines)
    # The teacher is the largest network as phase one left it, before the paths trained.
    teacher = load_file(tmp_path / "run" / "teacher.safetensors")
    final = load_file(tmp_path / "run" / "supernet.safetensors")
    assert teacher.keys() == final.keys()
    assert any(not torch.equal(teacher[name], final[name]) for name in teacher)


def test_a_module_becomes_a_file_of_the_run(tmp_path):
    network = load_start("efficientnet-lite0").network()
    path = _kept_start(network, tmp_path)
    again = load_start(path)
    assert again.plan == network.plan and len(again.mean) == 3
    assert all(torch.equal(again.weights[name], value) for name, value in network.state_dict().items())


def test_the_classifier_learns_alone(pets):
    data = chosen(pets).load_data()
    supernet = elastic(load_start("efficientnet-lite0"), resolutions=(32,), classes=2)
    before = {name: p.detach().clone() for name, p in supernet.named_parameters()}
    data = load(f"folder:{pets}", resolution=32)
    train(supernet, data, methods.classifier(epochs=1, mixup=0, auto_augment=None), batch=8, threads=1, evaluator=None)
    changed = {name for name, p in supernet.named_parameters() if not torch.equal(p, before[name])}
    assert changed == {"head.classifier.weight", "head.classifier.bias"}


def test_the_largest_network_is_the_start(pets):
    recipe = chosen(pets)
    supernet = first_supernet(recipe, recipe.load_data()).eval()
    start = load_start("efficientnet-lite0").network()
    images = torch.randn(2, 3, recipe.data.resolution, recipe.data.resolution)
    features, logits = [], []
    start.head.classifier.register_forward_pre_hook(lambda _, given: features.append(given[0]))
    with torch.no_grad():
        start(images)
        logits = supernet(images, largest(supernet.space))
        expected = supernet.head.classifier(features[0])
    assert torch.allclose(logits, expected, atol=1e-4)


def test_what_cannot_be_used_is_refused(pets, tmp_path):
    for text in ("10", "min", "0min", "-1h", "5 parsecs"):
        with pytest.raises(BadInput, match="10min"):
            seconds_of(text)
    assert seconds_of("1.5h") == 5400
    with pytest.raises(BadInput, match="10min"):
        fit(pets, {"macs": "60%"}, out=tmp_path / "a", time="soon")
    with pytest.raises(UnknownName, match="efficientnet-lite0"):
        fit(pets, {"macs": "60%"}, out=tmp_path / "a", start="efficientnet-lite9")
    with pytest.raises(BadInput, match="either `space` or `start`"):
        read("name: x\ndata: {name: digits}\ntrain: {phases: [{method: largest}]}")
    (tmp_path / "pets").mkdir()
    for file in pets.rglob("*.png"):
        goal = tmp_path / "pets" / file.relative_to(pets)
        goal.parent.mkdir(parents=True, exist_ok=True)
        goal.write_bytes(file.read_bytes())
    (tmp_path / "pets" / "train" / "dark" / "3.png").write_bytes(b"no image")
    with pytest.raises(DamagedFile, match=r"3\.png"):
        fit(tmp_path / "pets", {"macs": "60%"}, out=tmp_path / "b", start="efficientnet-lite0", time="4s")
    assert not (tmp_path / "b" / "recipe.yaml").exists()


def test_a_clear_word_for_each_trouble_of_a_folder(pets, tmp_path, capsys):
    """On the command line: one line each, and what can be used is."""
    home = tmp_path / "pets"
    for file in pets.glob("train/*/*.png"):
        goal = home / file.parent.name / file.name
        goal.parent.mkdir(parents=True, exist_ok=True)
        goal.write_bytes(file.read_bytes())
    (home / "owl").mkdir()
    Image.fromarray(np.zeros((33, 47), np.uint8)).save(home / "owl" / "grey.png")
    (home / "dark" / "broken.png").write_bytes(b"no image")
    command = [
        "fit",
        str(home),
        "--start",
        "efficientnet-lite0",
        "--budget",
        "macs=60%",
        "--time",
        "4s",
        "--threads",
        "1",
    ]
    assert execute([*command, "--out", str(tmp_path / "run")]) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if "snugnet: " in line]
    assert len(lines) == 2 and "class 'owl' has one training image" in lines[0]
    assert "broken.png must be an image" in lines[1] and "--set data.on_corrupt=skip" in lines[1]
    with pytest.warns(UserWarning, match=r"skipped: .*broken\.png"):
        data = load(f"folder:{home}", resolution=32, on_corrupt="skip")
    assert data.size("train+val") + data.size("test") == 41 and data.classes == 3


def test_many_images_and_little_time_train_a_part_of_an_epoch():
    """Each phase keeps its share of the images, so that the whole keeps to its time."""
    for images, seen in ((500, 40_000), (20_000, 36_000), (60_000, 20_000)):
        phases, finetune, _ = schedule(images, images // 4, seen, 64)
        epochs = [*(phase["epochs"] for phase in phases), 1.25 * finetune["epochs"]]
        assert sum(epochs) * images == pytest.approx(seen, rel=0.05)


@pytest.mark.parametrize(("spent", "epochs"), [(0, 16), (300, 10), (400, 6.67), (700, 4), (1e6, 4)])
def test_the_found_network_gets_the_time_that_is_left_between_half_and_twice_its_epochs(spent, epochs):
    section = FinetuneSection(epochs=8, run_seconds=620)
    assert epochs_within(section, spent, 26.0, 600) == pytest.approx(epochs, abs=0.01)
    assert epochs_within(FinetuneSection(epochs=8), spent, 26.0, 600) == 8
    assert epochs_within(FinetuneSection(epochs=0, run_seconds=9), spent, 26.0, 600) == 0
