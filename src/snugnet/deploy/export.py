"""`export`: a network as a file others can run, written only if it computes what the network computes.

`torch.export` traces the network with a free batch size; PyTorch's dynamo exporter turns the programme into ONNX (opset
18, all weights inside the one file). Exporters have been wrong in silence before, so ONNX Runtime runs the graph on random
and on the given real images, alone and in a batch, before anything is written; a difference is refused. The programme
itself can be kept as well (`.pt2`), for users of PyTorch without snugnet.
"""

from __future__ import annotations

import inspect
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

import onnx
import onnxruntime
import torch
from torch import Tensor, nn

from snugnet.costs.measure import versions
from snugnet.deploy.card import Card
from snugnet.deploy.network_file import check_finite
from snugnet.deploy.onnx_file import describe, graph_hash, open_session, random_images, run_session
from snugnet.devices.device import frozen_copy
from snugnet.devices.onnx_graph import quietly
from snugnet.errors import BadInput, reason_of
from snugnet.nets.network import Network
from snugnet.store import check_writable, sha256, tensors_fingerprint, write_bytes

OPSET: Final = 18
"""What the exporter produces natively; later versions only relabel it."""
TOLERANCE: Final = 1e-4
"""Largest difference that is rounding, relative to the largest logit. Fused arithmetic differs by about 1e-6."""
BATCHES: Final = (1, 5)


@final
@dataclass(frozen=True, kw_only=True)
class Comparison:
    """How far a file's logits were from the network's."""

    form: str  # onnx, program
    images: str  # random, given
    batch: int
    largest: float  # of the absolute differences
    relative: float  # the same, relative to the largest logit


@final
@dataclass(frozen=True, kw_only=True)
class Exported:
    """What was written, and how well it agrees."""

    path: Path
    program: Path | None
    sha256: str  # of the file
    weights_sha256: str  # of the network it was made from
    graph_sha256: str  # of what the file computes, its metadata left out
    input_shape: tuple[int, int, int]  # channels, height, width
    classes: int
    opset: int
    comparisons: tuple[Comparison, ...]


def export(
    network: nn.Module,
    path: str | Path,
    *,
    card: Card | None = None,
    images: Tensor | None = None,
    resolution: int | None = None,
    channels: int = 3,
    program: str | Path | None = None,
    tolerance: float = TOLERANCE,
) -> Exported:
    """Write `network` to `path` (.onnx) and, if asked, its `torch.export` programme to `program` (.pt2).

    `images` [N, C, H, W], prepared as for the network, are what the file is checked on besides random ones. A module of your
    own must say its `resolution` and `channels`; networks made here know them.
    """
    check_path(path, ".onnx")
    if program is not None:
        check_path(program, ".pt2")
    still, known = frozen_copy(network).cpu(), card or Card()
    shape = _shape(network, resolution, channels)
    check_finite(dict(still.state_dict()))
    if images is not None:
        _check_images(images, shape)
    classes = _classes(still, shape)
    known.check(classes=classes, channels=shape[0])
    traced = _trace(still, shape)
    data = _onnx(traced, known, _about(still, shape, classes))
    session = open_session(data, "the exported graph")

    comparisons = _compare("onnx", lambda batch: run_session(session, batch), still, shape, images, tolerance)
    if program is not None:
        comparisons += _compare("program", traced.module(), still, shape, images, tolerance)
        write_bytes(program, _program(traced))
    written = write_bytes(path, data)
    return Exported(
        path=written,
        program=None if program is None else Path(program),
        sha256=sha256(data),
        weights_sha256=tensors_fingerprint(still.state_dict()),
        graph_sha256=graph_hash(onnx.load_model_from_string(data)),
        input_shape=shape,
        classes=classes,
        opset=OPSET,
        comparisons=tuple(comparisons),
    )


def check_path(path: str | Path, ending: str) -> None:
    """Refuse a file nobody could use, before any work."""
    if Path(path).suffix.lower() != ending:
        raise BadInput(f"the file to export to must end in {ending}", value=str(path), remedy="Rename it.")
    check_writable(path)


def _shape(network: nn.Module, resolution: int | None, channels: int) -> tuple[int, int, int]:
    if isinstance(network, Network):
        side = network.plan.resolution
        if resolution not in (None, side):
            raise BadInput(f"this network's resolution is {side}", value=resolution, remedy="Leave it out.")
        return network.plan.stem.in_channels, side, side
    if resolution is None:
        raise BadInput("a module's input resolution must be known", value=None, remedy="Pass resolution=224.")
    return channels, resolution, resolution


def _check_images(images: Tensor, shape: tuple[int, int, int]) -> None:
    if images.dim() != 4 or tuple(images.shape[1:]) != shape or len(images) < 1 or not images.is_floating_point():
        raise BadInput(
            f"images must be floats of the shape [N, {', '.join(map(str, shape))}], normalised",
            value=f"{images.dtype} {list(images.shape)}",
            remedy="Prepare them as for the network.",
        )


def _classes(still: nn.Module, shape: tuple[int, int, int]) -> int:
    try:
        with torch.inference_mode():
            logits = still(random_images(2, shape))
    except Exception as error:
        rule = f"the module must take images {list(shape)}"
        raise BadInput(rule, value=reason_of(error), remedy="Check resolution.") from error
    if not isinstance(logits, Tensor) or logits.dim() != 2 or len(logits) != 2:
        raise BadInput(
            "the module must give logits [N, classes]",
            value=list(getattr(logits, "shape", [])) or type(logits).__name__,
            remedy="Wrap it so that it does.",
        )
    return int(logits.shape[1])


def _trace(still: nn.Module, shape: tuple[int, int, int]) -> Any:
    entry = next(iter(inspect.signature(still.forward).parameters))
    try:
        with quietly():
            traced = torch.export.export(
                still, (random_images(2, shape),), dynamic_shapes={entry: {0: torch.export.Dim("batch", min=1)}}
            )
    except Exception as error:
        rule = "a module must be traceable by torch.export with any batch size"
        raise BadInput(rule, value=reason_of(error, 160), remedy="Rewrite the operation it stumbles on.") from error
    for node in traced.graph.nodes:
        node.meta.pop("stack_trace", None)  # paths of this machine
    return traced


def _onnx(traced: Any, card: Card, about: dict[str, str]) -> bytes:
    """Exported in memory: files beyond the one that is asked for never come into being."""
    try:
        with quietly():
            program = torch.onnx.export(
                traced, input_names=["images"], output_names=["logits"], opset_version=OPSET, dynamo=True, verbose=False
            )
            assert program is not None
            model = program.model_proto
    except Exception as error:
        rule = "a module must be exportable to ONNX"
        raise BadInput(rule, value=reason_of(error, 160), remedy="Rewrite the operation it stumbles on.") from error
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    del model.graph.value_info[:]  # the exporter's own names for the batch; readers infer them again
    data = describe(model, card, about)
    onnx.checker.check_model(onnx.load_model_from_string(data), full_check=True)
    return data


def _about(still: nn.Module, shape: tuple[int, int, int], classes: int) -> dict[str, str]:
    made_by = {**versions(), "onnx": onnx.__version__, "onnxruntime": onnxruntime.__version__}
    return {
        "classes": str(classes),
        "channels": str(shape[0]),
        "resolution": str(shape[1]),
        "weights_sha256": tensors_fingerprint(still.state_dict()),
        "versions": ", ".join(f"{name} {version}" for name, version in sorted(made_by.items())),
    }


def _program(traced: Any) -> bytes:
    stream = io.BytesIO()
    with quietly():
        torch.export.save(traced, stream)
    return stream.getvalue()


def _compare(
    form: str, run: Any, still: nn.Module, shape: tuple[int, int, int], images: Tensor | None, tolerance: float
) -> list[Comparison]:
    """`run` against the network, on every kind of images and batch; the first real difference is refused."""
    comparisons = []
    kinds = {"random": random_images(BATCHES[-1], shape)}
    if images is not None:
        kinds["given"] = images.detach().to("cpu", torch.float32)
    for kind, all_images in kinds.items():
        for count in sorted({BATCHES[0], len(all_images)}):
            batch = all_images[:count].contiguous()
            with torch.inference_mode():
                expected = still(batch)
                computed = run(batch)
            comparisons.append(_difference(form, kind, computed, expected, tolerance))
    return comparisons


def _difference(form: str, kind: str, actual: Tensor, expected: Tensor, tolerance: float) -> Comparison:
    if actual.shape != expected.shape or not bool(torch.isfinite(expected).all()):
        shapes = f"{list(actual.shape)} and {list(expected.shape)}"
        raise _differs(form, kind, f"shapes {shapes}, or logits that are not finite")
    largest, scale = float((actual - expected).abs().max()), max(float(expected.abs().max()), 1e-30)
    if not largest <= tolerance * scale:
        raise _differs(form, kind, f"a difference of {largest:.3g} where the largest logit is {scale:.3g}")
    return Comparison(form=form, images=kind, batch=len(expected), largest=largest, relative=largest / scale)


def _differs(form: str, kind: str, value: str) -> BadInput:
    return BadInput(
        f"the exported {form} must compute what the network computes on {kind} images",
        value=value,
        remedy="Nothing was written. Please report it: the exporter got this network wrong.",
    )
