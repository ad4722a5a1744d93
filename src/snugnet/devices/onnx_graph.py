"""A torch module as an ONNX graph, quickly: the form in which other runtimes take it.

PyTorch has two exporters. The new one takes about a second a block, the older one about 20 ms, and a space has hundreds
of blocks; so the older one goes first and the new one is asked only where it fails. Either can be wrong without saying so,
hence `agree`: whoever prepares a graph runs it once against the torch module and refuses a difference.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from snugnet.errors import BadInput

INPUT, OUTPUT = "input", "output"


def onnx_bytes(module: torch.nn.Module, example: torch.Tensor) -> bytes:
    """The graph of `module` (already in evaluation mode) for inputs of exactly `example`'s shape."""
    with quietly():
        try:
            return _export(module, example, dynamo=False)
        except Exception as first:
            try:
                return _export(module, example, dynamo=True)
            except Exception as second:
                reason = str(second).splitlines()[0] if str(second) else str(first)
                raise BadInput(
                    f"a module must be exportable to ONNX to run there ({type(module).__name__})",
                    value=reason,
                    remedy="Measure it with torch-cpu, or rewrite the operation the exporter stumbles on.",
                ) from second


def agree(got: torch.Tensor, wanted: torch.Tensor, *, what: str, tolerance: float = 1e-3) -> None:
    """Refuse a runtime's output that is not the torch module's, relative to the largest value."""
    rule = f"{what} must compute what torch computes"
    remedy = "Measure it with torch-cpu, and report the module: the exporter got it wrong."
    if got.shape != wanted.shape:
        raise BadInput(f"{rule} (shape {tuple(wanted.shape)})", value=tuple(got.shape), remedy=remedy)
    scale = float(wanted.abs().max()) if wanted.numel() else 0.0
    difference = float((got - wanted).abs().max()) if wanted.numel() else 0.0
    if not difference <= tolerance * max(scale, 1e-6):
        value = f"a difference of {difference:.3g}"
        raise BadInput(f"{rule} (largest value {scale:.3g})", value=value, remedy=remedy)


def _export(module: torch.nn.Module, example: torch.Tensor, *, dynamo: bool) -> bytes:
    stream: Any = io.BytesIO()  # both take a stream, though their signatures say a path
    if dynamo:
        program = torch.onnx.export(module, (example,), input_names=[INPUT], output_names=[OUTPUT], dynamo=True)
        assert program is not None
        program.save(stream)
    else:
        torch.onnx.export(module, (example,), stream, input_names=[INPUT], output_names=[OUTPUT], dynamo=False)
    written: bytes = stream.getvalue()
    return written


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Both exporters talk to the user about their own future; that is not our user's business. The older one writes a graph
    it fails on past Python, straight to standard output, where somebody's JSON may be: that is turned away too."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    sys.stdout.flush()
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)
        logger.setLevel(level)
