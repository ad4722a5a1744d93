"""All that follows training, where the machine has a second device: what meets in an operation lies on one of them."""

import torch
from torch.utils._python_dispatch import _disable_current_modes

from fake_device import CUDA, fake_cuda, fake_device, on_device
from snugnet.deploy.certificate import certify
from snugnet.deploy.network_file import load
from snugnet.devices.onnx_graph import onnx_bytes
from snugnet.evaluate.evaluator import Evaluator
from snugnet.evaluate.ranking import inherited, random_architectures
from snugnet.fitting.finetuning import finetune_found
from snugnet.fitting.recipe import FinetuneSection
from snugnet.nets import Supernet, extract
from snugnet.progress import NullProgress
from snugnet.searching.search import search
from standin import SPACE, toy_data


def exported(module, example):
    """The exporter traces torch's own calls, which the fake device stands between; it must get everything on the CPU."""
    assert not any(on_device(tensor) for tensor in (example, *module.state_dict().values()))
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        return onnx_bytes(module, example)


def test_search_evaluate_rank_finetune_and_certify_on_the_device(monkeypatch, tmp_path):
    fake_cuda(monkeypatch)
    monkeypatch.setattr("snugnet.deploy.certificate.onnx_bytes", exported)
    data = toy_data()
    with fake_device():
        torch.manual_seed(0)
        supernet = Supernet(SPACE).to(CUDA).eval()
        found = search(supernet, data, [], {"params": "80%"}, "adaptive", evaluations=3, finalists=2)
        again = Evaluator(supernet, data).evaluate_full(found.architecture)
        assert again.score == found.score
        right = inherited(supernet, data, random_architectures(SPACE, 2, 0), limit=30)
        assert right.shape[0] == 2 and not on_device(right)
        section = FinetuneSection(epochs=1, batch=32, options={"mixup": 0, "auto_augment": None})
        options = {"seed": 0, "channels_last": False, "threads": None, "progress": NullProgress(), "device": "cuda"}
        tuned = finetune_found(supernet, data, found.architecture, section, tmp_path, **options)
        assert 0 <= tuned.test <= 1 and all(on_device(weight) for weight in supernet.parameters())
        network = extract(supernet, found.architecture)
        assert on_device(next(network.parameters()))
        assert certify(network, {"params": "1M"}).fits
        assert certify(tmp_path / "network.safetensors", {"params": "1M", "macs": "1GMACs"}).fits
    assert not on_device(next(load(tmp_path / "network.safetensors").parameters()))
