"""`elastic`: a trained network -> the space around it, as a super-network that holds its weights.

Every block may keep a share of its middle channels (sorted first, so that a prefix is the best part), a smaller centre of
its kernel, and stages may end early where a block only adds to its input. The largest sub-network is the original: its plan
is compared, its weights are copied. Squeeze layers keep their width, whatever the expansion.

Which channels are best: by the size of what the projection does with them (`l1`), or by what the loss would lose without
them to first order, |sum of gradient * activation| over images (`taylor`; Molchanov et al., arXiv 1906.10771).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from snugnet.errors import BadInput, UnknownName
from snugnet.nets.blocks import InvertedResidual
from snugnet.nets.elastic import ElasticOperation
from snugnet.nets.importance import permute_channels, sort_channels
from snugnet.nets.network import Network
from snugnet.nets.supernet import Supernet
from snugnet.nets.trained import Trained, read_trained
from snugnet.nets.trained.assembly import begins_stage
from snugnet.space.sampling import largest
from snugnet.space.space import BlockChoice, BlockRules, Head, SearchSpace, Stage, Stem, round_channels
from snugnet.space.spec import BlockSpec, NetworkSpec, plan

Batches = Iterable[Tensor | tuple[Tensor, Tensor]]


def elastic(
    network: nn.Module | Trained | str | Path,
    *,
    expands: Sequence[float] = (0.35, 0.5, 0.67, 1),
    kernels: bool = True,
    depth: bool = True,
    resolutions: Sequence[int] | None = None,
    classes: int | None = None,
    importance: Literal["l1", "taylor"] = "l1",
    batches: Batches | None = None,
    name: str = "elastic",
) -> Supernet:
    """The super-network around `network` (a module, a file, or what `read_trained` gave); `.space` says what it holds.

    `expands`: shares of each block's own middle channels. `resolutions`: the network's own unless given. `classes`: another
    number gets a new classifier, small random weights on the features the network has. `batches`: of images or of images
    and labels, for `importance="taylor"`.
    """
    known = read_trained(network)
    space = space_around(
        known.plan, expands=expands, kernels=kernels, depth=depth, resolutions=resolutions, classes=classes, name=name
    )
    plain = known.network()
    orders = _orders(plain, importance, batches)
    supernet = Supernet(space)
    inherit(supernet, plain)
    if orders is None:
        sort_channels(supernet)
    else:
        _sort_by(supernet, orders)
    return supernet.train()


def space_around(
    network: NetworkSpec,
    *,
    expands: Sequence[float] = (0.35, 0.5, 0.67, 1),
    kernels: bool = True,
    depth: bool = True,
    resolutions: Sequence[int] | None = None,
    classes: int | None = None,
    name: str = "elastic",
) -> SearchSpace:
    """The space whose largest network is `network`."""
    if not expands or not all(0 < share <= 1 for share in expands):
        raise BadInput("expands must be shares in (0, 1]", value=tuple(expands), remedy="Try (0.35, 0.5, 0.67, 1).")
    stem, head, blocks = network.stem, network.head, network.blocks
    squeezed = [(block.se_act, block.se_gate) for block in blocks if block.se]
    if len(set(squeezed)) > 1:
        raise BadInput(
            "squeeze-excite layers must be alike", value=sorted(set(squeezed)), remedy="Take another network."
        )
    act, gate = squeezed[0] if squeezed else (BlockSpec.se_act, BlockSpec.se_gate)
    space = SearchSpace(
        name=name,
        classes=classes or head.classes,
        resolutions=tuple(sorted({*(resolutions or (network.resolution,))})),
        stem=Stem(widths=(stem.out_channels,), stride=stem.stride, kernel=stem.kernel, act=stem.act),
        stages=tuple(_stage(row, expands, kernels=kernels, depth=depth) for row in _rows(blocks)),
        head=Head(
            kind="pool-conv" if head.pooled else "conv-pool",
            widths=(head.features,),
            hidden=head.hidden if head.pooled else 0,
            bias=head.pooled_bias,
            act=head.act,
            dropout=head.dropout,
        ),
        rules=BlockRules(
            se_of="input",
            se_divisor=1,
            se_act=act,
            se_gate=gate,
            mid_divisor=1,
            kernel_weights="crop",
            padding=stem.padding,
            norm_eps=stem.norm_eps,
        ),
        in_channels=stem.in_channels,
    )
    _check_largest(space, network)
    return space


def inherit(supernet: Supernet, network: Network) -> None:
    """Copy the weights of the largest network into `supernet`; a classifier for other classes stays new."""
    blocks = [block for stage in network.stages for block in stage]  # type: ignore[attr-defined]
    with torch.no_grad():
        supernet.stem.load_state_dict(network.stem.state_dict())
        for plain, elastic_block in zip(blocks, supernet.blocks()):
            (operation,) = elastic_block.operations  # choices that expand and choices that do not never meet here
            assert isinstance(operation, ElasticOperation)
            (deep,) = operation.depthwise.values()
            pairs = [(plain.depthwise, deep), (plain.project, operation.project)]
            if operation.expand is not None:
                pairs.append((plain.expand, operation.expand))
            if operation.se is not None:
                pairs += [(plain.se.reduce, operation.se.reduce), (plain.se.expand, operation.se.expand)]
            for source, target in pairs:
                target.load_state_dict(source.state_dict())
        supernet.head.conv.load_state_dict(network.head.conv.state_dict())
        if supernet.head.features is not None:
            supernet.head.features.load_state_dict(network.head.features.state_dict())
        if supernet.space.classes == network.plan.head.classes:
            supernet.head.classifier.load_state_dict(network.head.classifier.state_dict())


def taylor_importance(network: Network, batches: Batches) -> list[Tensor]:
    """For each block, the importance of its middle channels: sum over images of |sum over positions of gradient * input of
    the projection|. The loss is the cross-entropy with the labels, or with the network's own answers without labels."""
    blocks = [module for module in network.modules() if isinstance(module, InvertedResidual)]
    seen: dict[int, Tensor] = {}

    def keep(number: int) -> Any:
        def hook(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            inputs[0].retain_grad()
            seen[number] = inputs[0]

        return hook

    handles = [block.project.register_forward_pre_hook(keep(number)) for number, block in enumerate(blocks)]
    totals = [torch.zeros(block.project.conv.in_channels) for block in blocks]  # type: ignore[union-attr,arg-type]
    training, count = network.training, 0
    network.eval()
    try:
        with torch.enable_grad():
            for batch in batches:
                images, labels = batch if isinstance(batch, tuple | list) else (batch, None)
                logits = network(images)
                loss = F.cross_entropy(logits, logits.argmax(1) if labels is None else labels, reduction="sum")
                network.zero_grad(set_to_none=True)
                loss.backward()
                for number, total in enumerate(totals):
                    x = seen[number]
                    assert x.grad is not None
                    total += (x.detach() * x.grad).sum((2, 3)).abs().sum(0).cpu()
                count += 1
    finally:
        for handle in handles:
            handle.remove()
        network.zero_grad(set_to_none=True)
        network.train(training)
    if not count:
        raise BadInput("the Taylor criterion needs at least one batch", value=0, remedy="Pass batches=...")
    return totals


def _orders(network: Network, importance: str, batches: Batches | None) -> list[Tensor] | None:
    """The order of each block's channels, or None: by L1, which needs no images."""
    if importance == "l1":
        return None
    if importance != "taylor":
        raise UnknownName("an importance of channels", importance, ("l1", "taylor"))
    if batches is None:
        raise BadInput("importance='taylor' needs images", value=None, remedy="Pass batches=..., or importance='l1'.")
    return [torch.argsort(total, descending=True, stable=True) for total in taylor_importance(network, batches)]


def _sort_by(supernet: Supernet, orders: Sequence[Tensor]) -> None:
    with torch.no_grad():
        for block, order in zip(supernet.blocks(), orders):
            (operation,) = block.operations
            assert isinstance(operation, ElasticOperation)
            if operation.expand is not None:
                permute_channels(operation, order)


def _rows(blocks: Sequence[BlockSpec]) -> list[list[BlockSpec]]:
    rows = [[blocks[0]]]
    for before, block in itertools.pairwise(blocks):
        if begins_stage(before, block):
            rows.append([])
        rows[-1].append(block)
    return rows


def _stage(row: Sequence[BlockSpec], expands: Sequence[float], *, kernels: bool, depth: bool) -> Stage:
    lists = tuple(_choices(block, expands, kernels=kernels) for block in row)
    alike = len(set(lists)) == 1
    return Stage(
        widths=(row[0].out_channels,),
        depths=tuple(range(1, len(row) + 1)) if depth else (len(row),),
        choices=lists[0] if alike else (),
        per_position=None if alike else lists,
        stride=row[0].stride,
        act=row[0].act,
        full_expand=row[0].full_expand,
    )


def _choices(block: BlockSpec, expands: Sequence[float], *, kernels: bool) -> tuple[BlockChoice, ...]:
    """Shares of the middle (multiples of 8, the whole always among them) times centres of the kernel."""
    widths = {block.mid_channels}
    if block.expands:
        for share in expands:
            width = round_channels(share * block.mid_channels)
            if width == block.in_channels and not block.full_expand:
                width += 8  # as wide as the input would mean: no expansion layer
            widths.add(min(width, block.mid_channels))
    sizes = range(min(3, block.kernel), block.kernel + 1, 2) if kernels else (block.kernel,)
    # Four decimals find every width again (input widths are below 5000) and survive the text form.
    ratios = [round(width / block.in_channels, 4) for width in sorted(widths)]
    squeeze = round(block.se / block.in_channels, 6)
    return tuple(BlockChoice(kernel=k, expand=e, se=squeeze) for e in ratios for k in sizes)


def _check_largest(space: SearchSpace, network: NetworkSpec) -> None:
    """The largest network of the space must be the original, part by part."""
    at = space.with_resolution(network.resolution)
    ours = plan(largest(at), at)
    expected = (*network.parts[:-1], replace(network.head, classes=space.classes))
    for number, (part, original) in enumerate(zip(ours.parts, expected, strict=True)):
        if isinstance(part, BlockSpec) and isinstance(original, BlockSpec) and not original.se:
            # Without a squeeze-excite layer its activation and gate mean nothing; a space has one pair for all blocks.
            original = replace(original, se_act=part.se_act, se_gate=part.se_gate)
        if part != original:
            raise BadInput(
                f"part {number} of the network has no place in a space: {original.label}",
                value=part.label,
                remedy="Shortcuts must be where stride is 1 and the width stays, and nowhere else.",
            )
