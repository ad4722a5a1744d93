"""Many processes, one result.

A step's batch is cut into shards: `processes x accumulate` of them. What a shard computes depends on its number
alone, so two processes give the weights of one process that computes both shards in turn. After the shards,
gradients, metrics and BN statistics are averaged in one collective call. DistributedDataParallel is not used: with a
path per image every process leaves other parameters without a gradient, which DDP either forbids or pays for with a
walk over the graph; here a missing gradient is a zero, and a parameter that no process used stays untouched, as in
one process. BN normalises over the images of a shard and is not synchronised; its running statistics after a step are
the mean over the shards, each having started from those before the step.

Start with `torchrun --nproc-per-node 8 ...`; on several nodes add `--nnodes`, `--rdzv-backend c10d`,
`--rdzv-endpoint`.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor, nn

from snugnet.errors import BadInput, DeviceMissing, UnknownName

if TYPE_CHECKING:
    from lightning_fabric import Fabric

PRECISIONS = {"fp32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}


def start(device: str, precision: str) -> Fabric:
    """Fabric for this process: alone, or one of those torchrun started. `device`: auto, cpu or cuda."""
    from lightning_fabric import Fabric  # here: a second of imports that only training needs

    if device not in ("auto", "cpu", "cuda"):
        raise UnknownName("device", device, ("auto", "cpu", "cuda"))
    cuda = torch.cuda.is_available() if device == "auto" else device == "cuda"
    if cuda and not torch.cuda.is_available():
        raise DeviceMissing("device 'cuda' is not on this machine", remedy="Use device='cpu' or 'auto'.")
    world = int(os.environ.get("WORLD_SIZE", "1"))
    local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    fabric = Fabric(
        accelerator="cuda" if cuda else "cpu",
        devices=local,
        num_nodes=max(1, world // local),
        strategy="ddp" if world > 1 else "auto",
        precision=PRECISIONS[_precision(precision, cuda)],  # type: ignore[arg-type]
    )
    fabric.launch()
    if world > 1 and not cuda:
        # Fabric does so for NCCL alone. Gloo's threads may still hold tensors when the interpreter ends, and freeing those
        # without it aborts the process now and then.
        atexit.register(_leave)
    return fabric


def _leave() -> None:
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def _precision(precision: str, cuda: bool) -> str:
    if precision == "auto":
        return ("bf16" if torch.cuda.is_bf16_supported() else "fp16") if cuda else "fp32"
    if precision not in PRECISIONS:
        raise UnknownName("precision", precision, ("auto", *PRECISIONS))
    if precision == "fp16" and not cuda:
        raise DeviceMissing("precision 'fp16' needs a GPU", remedy="Use 'fp32' or 'bf16' on a CPU.")
    return precision


def share(fabric: Fabric, tensors: Iterable[Tensor]) -> None:
    """Everybody starts from the first process's values."""
    if fabric.world_size > 1:
        for tensor in tensors:
            torch.distributed.broadcast(tensor.detach(), 0)


@final
class GradientSync:
    """The shards of a step that this process computes, and the exchange after them."""

    def __init__(self, fabric: Fabric, model: nn.Module, accumulate: int) -> None:
        self._fabric, self._accumulate = fabric, accumulate
        self._weights: list[Tensor] = [p for p in model.parameters() if p.requires_grad]
        self._parameters = self._weights
        buffers = list(model.buffers())
        self._statistics = [b for b in buffers if b.is_floating_point()]
        self._counters = [b for b in buffers if not b.is_floating_point()]
        self.total: int = fabric.world_size * accumulate
        self._before: list[Tensor] = []
        self._sums: list[Tensor] = []

    def attach(self, tensors: Sequence[Tensor]) -> None:
        """Average the gradients of these too: what a method trains beside the model."""
        self._parameters = [*self._weights, *tensors]

    def numbers(self) -> Iterator[int]:
        """Numbers of this process's shards; between two of them BN's statistics go back to those before the step."""
        if self._accumulate == 1:
            yield self._fabric.global_rank
            return
        self._before = [b.clone() for b in self._statistics]
        self._sums = [torch.zeros_like(b) for b in self._statistics]
        before = [b.clone() for b in self._counters]
        most = [b.clone() for b in self._counters]
        for i in range(self._accumulate):
            yield self._fabric.global_rank * self._accumulate + i
            for buffer, total, old in zip(self._statistics, self._sums, self._before):
                total += buffer
                buffer.copy_(old)
            for counter, old, high in zip(self._counters, before, most):
                torch.maximum(high, counter, out=high)
                counter.copy_(old)
        for buffer, total in zip(self._statistics, self._sums):
            buffer.copy_(total / self._accumulate)
        for counter, high in zip(self._counters, most):
            counter.copy_(high)

    def backward(self, loss: Tensor, inputs: Sequence[Tensor] | None = None) -> None:
        share = loss if self._accumulate == 1 else loss / self._accumulate
        self._fabric.backward(share, inputs=None if inputs is None else list(inputs))

    @contextmanager
    def buffers_kept(self) -> Iterator[None]:
        """Passes inside leave BN's statistics and counters as they were."""
        buffers = [*self._statistics, *self._counters]
        before = [buffer.clone() for buffer in buffers]
        yield
        for buffer, old in zip(buffers, before):
            buffer.copy_(old)

    def mean(self, answers: Sequence[Tensor]) -> Tensor:
        """The mean of a tensor over all shards of all processes, outside of any gradient."""
        mean = torch.stack([answer.detach().float() for answer in answers]).mean(0)
        if self._fabric.world_size > 1:
            mean = self._fabric.all_reduce(mean, reduce_op="mean")  # type: ignore[assignment]
        return mean

    def exchange(self, metrics: list[dict[str, Tensor]]) -> dict[str, float]:
        """Average gradients, statistics and metrics over all shards; the metrics come back as numbers."""
        names = sorted(metrics[0])
        means = torch.stack([torch.stack([m[name].float() for m in metrics]).mean() for name in names])
        if self._fabric.world_size > 1:
            means = self._exchange(means)
        return dict(zip(names, means.tolist()))

    def _exchange(self, means: Tensor) -> Tensor:
        parameters, statistics = self._parameters, self._statistics
        has_gradient = torch.tensor([float(p.grad is not None) for p in parameters], device=means.device)
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        parts: list[Tensor] = [means, has_gradient, *gradients, *statistics]
        flat: Any = self._fabric.all_reduce(torch.cat([part.reshape(-1).float() for part in parts]), reduce_op="mean")
        pieces = flat.split([part.numel() for part in parts])
        shares = pieces[1].tolist()
        for parameter, gradient, piece, share in zip(parameters, gradients, pieces[2:], shares):
            parameter.grad = gradient.copy_(piece.view_as(gradient)) if share > 0 else None
        for buffer, piece in zip(statistics, pieces[2 + len(parameters) :]):
            buffer.copy_(piece.view_as(buffer))
        if self._counters:
            together = torch.cat([counter.reshape(-1) for counter in self._counters])
            counts: Any = self._fabric.all_reduce(together, reduce_op="max")
            for counter, count in zip(self._counters, counts.split([c.numel() for c in self._counters])):
                counter.copy_(count.view_as(counter))
        metrics: Tensor = pieces[0]
        return metrics


def check_batch(batch: int, shards: int, images: int, split: str) -> None:
    if batch > images:
        raise BadInput(
            f"batch must not exceed the {images} images of split {split!r}", value=batch, remedy="Take a smaller batch."
        )
    if batch % shards or batch // shards < 2:
        raise BadInput(
            f"batch must be a multiple of processes x accumulate = {shards} with two images or more in each part",
            value=batch,
            remedy=f"Take {max(2, round(batch / shards)) * shards}.",
        )
