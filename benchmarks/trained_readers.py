"""Does the largest sub-network compute what the published network computes? timm's, torchvision's and EfficientNet-Lite0.

    python benchmarks/trained_readers.py --json OUT.json

EfficientNet-Lite0 has its ImageNet weights, the others random ones with random BN statistics and affine parameters. timm and
torchvision must be importable (a folder made by `pip install --target` can be named in PYTHONPATH); beside a CPU build of
torch, torchvision's missing operators are declared by hand.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "nets"))

TIMM = (
    *("mobilenetv3_large_100", "efficientnet_b0", "hardcorenas_a", "hardcorenas_f", "mobilenetv2_100"),
    *("fbnetc_100", "fbnetv3_b", "mnasnet_100", "tf_efficientnet_lite0", "tf_mobilenetv3_small_100"),
)
TORCHVISION = ("mobilenet_v2", "mobilenet_v3_large", "mobilenet_v3_small", "efficientnet_b0")


def compare(module: nn.Module, images: int = 4) -> dict[str, Any]:
    import snugnet as sn
    from snugnet.nets.trained import read_trained
    from snugnet.space.sampling import largest

    trained = read_trained(module)
    size = trained.resolution
    supernet = sn.elastic(module, resolutions=(size // 2, size)).eval()
    x = torch.randn(images, 3, size, size, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected, read, inside = module(x), trained.network()(x), supernet(x, largest(supernet.space))
    return {
        "resolution": size,
        "padding": trained.plan.stem.padding,
        "norm_eps": trained.plan.stem.norm_eps,
        "largest_logit": float(expected.abs().max()),
        "plain_difference": float((read - expected).abs().max()),
        "supernet_difference": float((inside - expected).abs().max()),
        "networks": supernet.space.count,
    }


def main() -> None:
    from published import lite0, load_package, randomised

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    path = parser.parse_args().json
    torch.manual_seed(0)
    rows = {"efficientnet_lite_pytorch:efficientnet-lite0 (ImageNet weights)": compare(lite0())}
    timm, torchvision = load_package("timm"), load_package("torchvision")
    for name in TIMM:
        rows[f"timm:{name}"] = compare(randomised(timm.create_model(name)))
    for name in TORCHVISION:
        rows[f"torchvision:{name}"] = compare(randomised(getattr(torchvision.models, name)()))
    versions = {name: importlib.metadata.version(name) for name in ("torch", "timm", "torchvision")}
    # Random weights give FBNet-C logits in the hundreds, of which single precision knows seven digits.
    shares = [row["supernet_difference"] / max(1.0, row["largest_logit"]) for row in rows.values()]
    result = {
        "versions": versions,
        "worst_difference": max(row["supernet_difference"] for row in rows.values()),
        "worst_difference_per_logit": max(shares),
        "holds": max(shares) < 1e-4,  # the difference itself, where logits are below 1
        "networks": rows,
    }
    if path:
        path.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
