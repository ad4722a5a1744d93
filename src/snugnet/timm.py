"""`import snugnet.timm`: networks of this project as models of timm, `timm.create_model("local-dir:FOLDER")`.

timm builds its networks from strings that round widths and know no projected shortcuts; ours are built from their plan, all
numbers in it. So there is one entry point, `snugnet`, whose `blocks` (in the folder's `model_args`) are that plan. Weights
have the names they have here. A folder is opened with its weights, `pretrained=True` or not: a folder that somebody names
and gets at random would be a trap. `fresh=True` asks for random weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, final

from torch import Tensor, flatten, nn

from snugnet.nets.blocks import InvertedResidual, initialise
from snugnet.nets.network import Network
from snugnet.space.spec import plan_from_json

try:
    from timm.models import build_model_with_cfg, register_model
except ImportError as error:
    raise ImportError(f"snugnet.timm needs timm ({error}); run pip install 'snugnet[timm]'") from error

__all__ = ["TimmNetwork", "snugnet"]


@final
class TimmNetwork(nn.Module):
    """A plain network with the methods timm's training scripts call."""

    def __init__(
        self,
        blocks: Mapping[str, Any],
        num_classes: int | None = None,
        in_chans: int | None = None,
        drop_rate: float | None = None,
        drop_path_rate: float = 0.0,
    ) -> None:
        super().__init__()
        plan = plan_from_json(blocks)
        stem = replace(plan.stem, in_channels=plan.stem.in_channels if in_chans is None else in_chans)
        dropout = plan.head.dropout if drop_rate is None else drop_rate
        head = replace(plan.head, classes=num_classes or plan.head.classes, dropout=dropout)
        self.plan = replace(plan, stem=stem, head=head)
        network = Network(self.plan)
        initialise(network)
        self.stem, self.stages, self.head = network.stem, network.stages, network.head
        self.num_classes, self.drop_rate = head.classes, dropout
        self.num_features, self.head_hidden_size = head.hidden, head.features
        if num_classes == 0:
            self.reset_classifier(0)
        inner = [block for block in self.modules() if isinstance(block, InvertedResidual)]
        for place, block in enumerate(inner):
            block.drop_connect = drop_path_rate * place / len(inner)  # timm's rule: it grows with depth

    def forward_features(self, images: Tensor) -> Tensor:
        """images [N, C, H, W] -> what is pooled, [N, num_features, h, w]."""
        features: Tensor = self.head.conv(self.stages(self.stem(images)))
        return features

    def forward_head(self, features: Tensor, pre_logits: bool = False) -> Tensor:
        head = self.head
        pooled: Tensor = head.dropout(head.act(head.features(flatten(head.pool(features), 1))))
        return pooled if pre_logits else head.classifier(pooled)

    def forward(self, images: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(images))

    def get_classifier(self) -> nn.Module:
        return self.head.classifier

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """A fresh classifier; 0 classes: none. Pooling is always the average."""
        self.num_classes = num_classes
        place = next(self.head.parameters())
        layer: nn.Module = nn.Identity()
        if num_classes:
            layer = nn.Linear(self.head_hidden_size, num_classes, device=place.device, dtype=place.dtype)
            self.plan = replace(self.plan, head=replace(self.plan.head, classes=num_classes))
        self.head.classifier = layer  # type: ignore[assignment]

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Layers in groups, for rates that fall with depth."""
        return {"stem": r"^stem", "blocks": r"^stages\.(\d+)" if coarse else r"^stages\.(\d+)\.(\d+)"}

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        assert not enable, "gradient checkpointing is not supported"


@register_model  # type: ignore[untyped-decorator]  # timm brings no types
def snugnet(pretrained: bool = False, **options: Any) -> nn.Module:
    """The network whose plan is `blocks`; timm's usual options `num_classes`, `in_chans`, `drop_rate`, `drop_path_rate`."""
    if "blocks" not in options:
        raise ValueError("snugnet's networks are opened from a folder: timm.create_model('local-dir:FOLDER')")
    about = options.get("pretrained_cfg") or {}
    source = about.get("source") if isinstance(about, dict) else getattr(about, "source", None)
    fresh = options.pop("fresh", False)
    options.setdefault("in_chans", options["blocks"]["stem"]["in_channels"])
    named_folder = source == "local-dir"
    weights = (pretrained or named_folder) and not fresh
    model: nn.Module = build_model_with_cfg(TimmNetwork, "snugnet", weights, **options)
    return model
