"""`export_executorch`: a network as an ExecuTorch programme (`.pte`), for phones and boards, written only if ExecuTorch's
own runtime computes from it what the network computes. Layers go to XNNPACK where it takes them. An image at a time.

ExecuTorch is optional: `pip install executorch` beside this torch (tried: 1.5.1 with torch 2.13.0)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from snugnet.deploy.export import TOLERANCE, Comparison, check_path, compare, input_shape
from snugnet.deploy.network_file import check_finite
from snugnet.devices.device import frozen_copy
from snugnet.devices.onnx_graph import quietly
from snugnet.errors import DeviceMissing, reason_of
from snugnet.store import write_bytes


def export_executorch(
    network: nn.Module,
    path: str | Path,
    *,
    images: Tensor | None = None,
    resolution: int | None = None,
    channels: int = 3,
    tolerance: float = TOLERANCE,
) -> tuple[Comparison, ...]:
    """Write `network` to `path` (.pte); how far its answers were from the network's. Arguments as for `export`."""
    check_path(path, ".pte")
    lower, partitioner, runtime = _executorch()
    still, shape = frozen_copy(network).cpu(), input_shape(network, resolution, channels)
    check_finite(dict(still.state_dict()))
    with quietly():
        traced = torch.export.export(still, (torch.zeros(1, *shape),))
        programme = bytes(lower(traced, partitioner=[partitioner()]).to_executorch().buffer)
        method = runtime.get().load_program(programme).load_method("forward")

    def run(batch: Tensor) -> Tensor:
        # The runtime hands out its own buffer, which the next image overwrites.
        return torch.cat([method.execute([image[None].contiguous()])[0].clone() for image in batch])

    comparisons = compare("executorch", run, still, shape, images, tolerance)
    write_bytes(path, programme)
    return tuple(comparisons)


def _executorch() -> tuple[Any, Any, Any]:
    try:
        from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
        from executorch.exir import to_edge_transform_and_lower
        from executorch.runtime import Runtime
    except ImportError as error:
        raise DeviceMissing(
            "a .pte file needs ExecuTorch",
            value=reason_of(error),
            remedy="Run pip install executorch, or export to ONNX.",
        ) from error
    return to_edge_transform_and_lower, XnnpackPartitioner, Runtime
