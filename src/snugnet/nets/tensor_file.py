"""Tensors from safetensors files: the one place that reads them.

Inside a file a tensor starts wherever the one before it ended, at 24 or 56 bytes past a multiple of 64 as a rule. Kernels
for convolutions are chosen by that address too, and another kernel rounds otherwise in the last bits. So each tensor is
copied into memory of its own, aligned as PyTorch aligns every tensor it makes.
"""

from __future__ import annotations

import json
from pathlib import Path

from safetensors import SafetensorError
from safetensors import torch as safetensors
from torch import Tensor

from snugnet.errors import DamagedFile
from snugnet.store import read_bytes


def read_tensors(path: str | Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors in a safetensors file, and the texts of its metadata."""
    return parse_tensors(read_bytes(path), str(path))


def parse_tensors(data: bytes, where: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The same from a file's bytes; damage is reported as that of `where`."""
    try:
        tensors = {name: tensor.clone() for name, tensor in safetensors.load(data).items()}
    except (SafetensorError, ValueError) as error:  # ValueError: fewer bytes than the shape needs
        raise DamagedFile(
            f"{where} must be a whole safetensors file ({error})",
            remedy="It was cut short or edited; restore it, or write it again.",
        ) from error
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return tensors, header.get("__metadata__", {})
