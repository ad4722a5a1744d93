"""network.safetensors: what goes in comes out; whatever happens to the file is noticed and named."""

import json

import pytest
import torch
from safetensors.torch import load_file, safe_open, save_file
from small_network import CARD, small_network

from snugnet.deploy.certificate import certify
from snugnet.deploy.network_file import load, read_network, save_network
from snugnet.errors import BadInput, DamagedFile, FileTrouble, SnugnetError
from snugnet.space import largest
from snugnet.space.spec import plan_to_json


@pytest.fixture(scope="module")
def network():
    return small_network()


@pytest.fixture
def file(network, tmp_path):
    return save_network(network, tmp_path / "network.safetensors", CARD)


def rewritten(file, change):
    """The file with its metadata changed, its tensors as they were."""
    with safe_open(str(file), framework="pt") as opened:
        words = opened.metadata()
    save_file(load_file(file), file, metadata=change(words))


def test_the_network_comes_back(network, file):
    images = torch.randn(3, 3, 9, 9)
    before = torch.get_rng_state()
    read = read_network(file)
    assert torch.equal(torch.get_rng_state(), before)
    assert not read.network.training
    assert all(p.requires_grad for p in read.network.parameters())
    # Weights that were read lie in memory of their own; equal bits are promised of the weights, not of what they compute.
    assert all(torch.equal(value, network.state_dict()[name]) for name, value in read.network.state_dict().items())
    torch.testing.assert_close(read.network(images), network(images), rtol=0, atol=1e-5)
    assert read.card == CARD
    assert read.plan == network.plan
    assert read.versions["torch"] == torch.__version__
    torch.testing.assert_close(load(file.parent)(images), network(images), rtol=0, atol=1e-5)  # a run folder does


def test_a_certificate_names_the_same_weights(network, file):
    hashes = {certify(source, {"params": "10M"}).weights_sha256 for source in (network, file)}
    assert hashes == {read_network(file).weights_sha256}


def test_the_same_network_gives_the_same_bytes(file, tmp_path):
    """safetensors orders metadata anew at every call; a resumed run must end in the very same file."""
    again = {save_network(load(file), tmp_path / "again.safetensors", CARD).read_bytes() for _ in range(8)}
    assert again == {file.read_bytes()}


def test_every_byte_counts(file):
    """A flipped bit anywhere, or a file cut anywhere, is noticed; spaces that pad the header mean nothing."""
    whole = file.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    places = [*range(0, header, 97), *range(header, len(whole), 211), len(whole) - 1]
    for place in places:
        if whole[place : place + 1] == b" " and not whole[place:header].strip():
            continue
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        with pytest.raises(SnugnetError, match=r"network\.(safetensors|json)"):
            load(file)
        file.write_bytes(whole[:place])
        with pytest.raises(DamagedFile, match=r"network\.safetensors"):
            load(file)


def test_tampering_is_named(file):
    whole = file.read_bytes()

    def edit(name, old, new):
        def change(words):
            assert old in words[name]
            return {**words, name: words[name].replace(old, new)}

        file.write_bytes(whole)
        rewritten(file, change)

    edit("snugnet", "ant", "bat")
    with pytest.raises(DamagedFile, match="sha256 must match what its description says"):
        load(file)
    edit("plan", '"kernel": 5', '"kernel": 7')
    with pytest.raises(DamagedFile, match="plan must have the checksum"):
        load(file)
    edit("snugnet", '"format"', "")
    with pytest.raises(DamagedFile, match="whole JSON"):
        load(file)
    file.write_bytes(whole)
    with safe_open(str(file), framework="pt") as opened:
        words = opened.metadata()
    weights = load_file(file)
    weights["head.classifier.bias"][0] += 1e-3
    save_file(weights, file, metadata=words)
    with pytest.raises(DamagedFile, match="weights must have the checksum"):
        load(file)


def test_bare_weights_with_a_plan_that_does_not_fit(network, tmp_path):
    file = tmp_path / "bare.safetensors"
    save_file(network.state_dict(), file)
    with pytest.raises(FileTrouble, match=r"bare\.json must stand beside"):
        load(file)
    described = plan_to_json(network.plan)
    file.with_suffix(".json").write_text(json.dumps(described))
    assert read_network(file).card.class_names == ()
    for change in (
        {"head": {**described["head"], "classes": 10**9}},  # costs no memory
        {"head": {**described["head"], "classes": -1}},
        {"head": {**described["head"], "act": "gelu"}},
        {"head": {**described["head"], "in_channels": 7}},
        {"stages": 3},
        {"stages": [[3]]},
        {"stem": described["head"]},
        {"rest": 1},
    ):
        file.with_suffix(".json").write_text(json.dumps({**described, **change}))
        with pytest.raises(DamagedFile, match=r"bare\.(safetensors|json)"):
            load(file)


def test_an_architecture_beside_the_weights(tmp_path):
    from snugnet.nets.network import build
    from snugnet.space import preset

    space = preset("hardcore-lowres", classes=10)
    file = tmp_path / "bare.safetensors"
    save_file(build(largest(space), space).state_dict(), file)
    named = {"architecture": str(largest(space)), "space": "hardcore-lowres", "classes": 10}
    file.with_suffix(".json").write_text(json.dumps(named))
    assert load(file).plan.head.classes == 10


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"class_names": ("a",)}, "as many as the network's classes, 4, got 1"),
        ({"mean": ()}, "given together"),
        ({"mean": (0.5,)}, "each of the 3 input channels"),
        ({"std": (0.5, 0.0, 0.5)}, "std must be positive"),
        ({"mean": (0.5, float("nan"), 0.5)}, "mean must be finite"),
        ({"crop": 0.0}, "crop must lie"),
    ],
)
def test_cards_that_cannot_be(network, tmp_path, change, message):
    with pytest.raises(BadInput, match=message):
        save_network(network, tmp_path / "network.safetensors", CARD.model_copy(update=change))
    assert not list(tmp_path.iterdir())


def test_networks_and_paths_that_cannot_be(network, tmp_path):
    diverged = small_network()
    diverged.head.classifier.weight.data[0, 0] = float("nan")
    with pytest.raises(BadInput, match="finite"):
        save_network(diverged, tmp_path / "network.safetensors")
    with pytest.raises(BadInput, match="built or extracted"):
        save_network(torch.nn.Linear(1, 1), tmp_path / "network.safetensors")
    with pytest.raises(BadInput, match=r"end in \.safetensors"):
        save_network(network, tmp_path / "network.pt")
    with pytest.raises(BadInput, match="Pickles are never read"):
        load("network.pth")
    with pytest.raises(BadInput, match="snugnet predict"):
        load("network.onnx")
    with pytest.raises(FileTrouble, match="no such file"):
        load(tmp_path / "network.safetensors")
    with pytest.raises(FileTrouble, match=r"network\.safetensors is missing"):
        load(tmp_path)
