"""Exact costs that need no device: MACs, parameters, bytes of weights, peak activation memory.

Conventions of counting MACs, both by name:
- `layers` (AttentiveNAS's, ours): convolutions, squeeze-excite and linear layers, one MAC per weight and output position;
  biases, pooling, BN and activations are free. Equals half of what `torch.utils.flop_counter` counts.
- `tfnas` (TF-NAS's): the same plus one for every bias and one for every element of the final pooling's input.

Peak memory: float32 activations of batch 1, layer after layer, BN and activation in place; alive at a layer are its
input, its output and a waiting shortcut. It is the largest over the parts, where the others are sums.
"""

from __future__ import annotations

from typing import Literal, get_args

from snugnet.errors import UnknownName
from snugnet.space.spec import BlockSpec, HeadSpec, LayerSpec, NetworkSpec, StemSpec

Convention = Literal["layers", "tfnas"]
BYTES_PER_NUMBER = 4


def macs(network: NetworkSpec | LayerSpec, convention: Convention = "layers") -> int:
    """Multiply-accumulates for one image."""
    if convention not in get_args(Convention):
        raise UnknownName("a convention of counting", convention, get_args(Convention))
    if isinstance(network, NetworkSpec):
        return sum(macs(part, convention) for part in network.parts)
    extras = convention == "tfnas"
    if isinstance(network, StemSpec):
        return network.out_resolution**2 * network.kernel**2 * network.in_channels * network.out_channels
    if isinstance(network, BlockSpec):
        return _block_macs(network, extras)
    return _head_macs(network, extras)


def params(network: NetworkSpec | LayerSpec) -> int:
    """Trainable numbers: weights, biases, BN scales and shifts."""
    if isinstance(network, NetworkSpec):
        return sum(params(part) for part in network.parts)
    if isinstance(network, StemSpec):
        return network.kernel**2 * network.in_channels * network.out_channels + 2 * network.out_channels
    if isinstance(network, BlockSpec):
        return _block_params(network)
    part = network
    total = part.in_channels * part.hidden + 2 * part.hidden
    if part.pooled:
        total += part.hidden * part.pooled + part.pooled * part.pooled_bias
    return total + (part.features + 1) * part.classes


def weight_bytes(network: NetworkSpec | LayerSpec) -> int:
    """Bytes of the parameters in float32 (BN's running statistics fold into them when a network ships)."""
    return BYTES_PER_NUMBER * params(network)


def peak_memory(network: NetworkSpec | LayerSpec) -> int:
    """Bytes of activations alive at once, at worst, for one image."""
    if isinstance(network, NetworkSpec):
        return max(peak_memory(part) for part in network.parts)
    if isinstance(network, StemSpec):
        numbers = network.resolution**2 * network.in_channels + network.out_resolution**2 * network.out_channels
    elif isinstance(network, BlockSpec):
        numbers = _block_peak(network)
    else:
        area = network.resolution**2
        numbers = max(
            area * (network.in_channels + network.hidden),
            area * network.hidden + network.hidden,
            network.hidden + network.pooled,
            network.features + network.classes,
        )
    return BYTES_PER_NUMBER * numbers


def _block_macs(part: BlockSpec, extras: bool) -> int:
    before, after = part.resolution**2, part.out_resolution**2
    total = before * part.in_channels * part.mid_channels if part.expands else 0
    total += after * part.kernel**2 * part.mid_channels
    total += after * part.mid_channels * part.out_channels
    if part.se:
        total += 2 * part.mid_channels * part.se + ((part.se + part.mid_channels) if extras else 0)
    if part.shortcut == "project" and part.in_channels != part.out_channels:
        total += after * part.in_channels * part.out_channels
    return total


def _block_params(part: BlockSpec) -> int:
    total = (part.in_channels + 2) * part.mid_channels if part.expands else 0
    total += (part.kernel**2 + 2) * part.mid_channels
    total += (part.mid_channels + 2) * part.out_channels
    if part.se:
        total += 2 * part.mid_channels * part.se + part.se + part.mid_channels
    if part.shortcut == "project" and part.in_channels != part.out_channels:
        total += part.in_channels * part.out_channels
    return total


def _block_peak(part: BlockSpec) -> int:
    before, after = part.resolution**2, part.out_resolution**2
    source = before * part.in_channels
    waiting = source if part.shortcut != "none" else 0
    wide, narrow, out = before * part.mid_channels, after * part.mid_channels, after * part.out_channels
    peaks = [source + wide] if part.expands else []
    # Without an expansion the depthwise layer reads the block's own input, which is alive once, not twice.
    peaks.append((wide + narrow + waiting) if part.expands else (source + narrow))
    if part.se:
        peaks.append(narrow + waiting + part.mid_channels + part.se)
    peaks.append(narrow + out + waiting)
    if part.shortcut == "project":
        pooled = after * part.in_channels if part.stride > 1 else 0
        peaks.append(source + out + pooled)
        if part.in_channels != part.out_channels:
            peaks.append(out + (pooled or source) + out)
    return max(peaks)


def _head_macs(part: HeadSpec, extras: bool) -> int:
    area = part.resolution**2
    total = area * part.in_channels * part.hidden
    if part.pooled:
        total += part.hidden * part.pooled
    total += part.features * part.classes
    if extras:
        total += area * part.hidden + part.classes + part.pooled * part.pooled_bias
    return total
