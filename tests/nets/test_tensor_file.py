"""Tensors that were read are as good as tensors that were made."""

import pytest
import torch
from safetensors.torch import save

from snugnet.errors import DamagedFile, FileTrouble
from snugnet.nets.tensor_file import parse_tensors, read_tensors

TENSORS = {f"layer{i}.weight": torch.arange(float(i + 1)).view(1, -1) for i in range(5)} | {"steps": torch.tensor(7)}


def test_what_is_read_is_aligned_and_told_apart_from_the_file(tmp_path):
    """At odd addresses other kernels are chosen, and the same weights compute other last bits."""
    path = tmp_path / "weights.safetensors"
    path.write_bytes(save(TENSORS, metadata={"about": "five layers"}))
    tensors, metadata = read_tensors(path)
    assert metadata == {"about": "five layers"}
    assert tensors.keys() == TENSORS.keys()
    for name, tensor in tensors.items():
        assert torch.equal(tensor, TENSORS[name]) and tensor.data_ptr() % 64 == 0
        tensor.add_(1)  # nobody else's memory
    assert parse_tensors(save(TENSORS), "bytes")[1] == {}


@pytest.mark.parametrize("kept", [0, 4, 30, -1])
def test_a_cut_file_is_named(tmp_path, kept):
    path = tmp_path / "weights.safetensors"
    path.write_bytes(save(TENSORS)[:kept])
    with pytest.raises(DamagedFile, match=r"weights\.safetensors must be a whole safetensors file"):
        read_tensors(path)
    with pytest.raises(FileTrouble, match="nowhere"):
        read_tensors(tmp_path / "nowhere.safetensors")
