"""`elastic`: a trained network -> the space around it, as a super-network that holds its weights.

Every block may keep a share of its middle channels (sorted first, so that a prefix is the best part), a smaller centre of
its kernel, and stages may end early where a block only adds to its input. The largest sub-network is the original: its plan
is compared, its weights are copied. Squeeze layers keep their width, whatever the expansion.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from snugnet.errors import BadInput, UnknownName
from snugnet.nets.elastic import ElasticOperation
from snugnet.nets.importance import Batches, sort_channels, taylor_importance
from snugnet.nets.network import Network
from snugnet.nets.supernet import Supernet
from snugnet.nets.trained import Trained, read_trained
from snugnet.nets.trained.assembly import begins_stage
from snugnet.space.sampling import largest
from snugnet.space.space import BlockChoice, BlockRules, Head, SearchSpace, Stage, Stem, round_channels
from snugnet.space.spec import BlockSpec, NetworkSpec, plan


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
    importances = _importances(plain, importance, batches)
    supernet = Supernet(space)
    inherit(supernet, plain)
    return sort_channels(supernet, importances).train()


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


def _importances(network: Network, importance: str, batches: Batches | None) -> list[Tensor] | None:
    """The importance of each block's channels, or None: by L1, which needs no images."""
    if importance == "l1":
        return None
    if importance != "taylor":
        raise UnknownName("an importance of channels", importance, ("l1", "taylor"))
    if batches is None:
        raise BadInput("importance='taylor' needs images", value=None, remedy="Pass batches=..., or importance='l1'.")
    return taylor_importance(network, batches)


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
