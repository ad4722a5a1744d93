"""The judge a run has unless told otherwise: sub-networks of a super-network, or a plain network as it is."""

from __future__ import annotations

import torch
from torch import nn

from snugnet.train.data import Data
from snugnet.train.evaluate import Judge, NetworkJudge, SubnetworkJudge


def default_judge(model: nn.Module, data: Data, device: torch.device) -> Judge:
    if not hasattr(model, "space"):
        return NetworkJudge(data, device=device)
    from snugnet.nets.batchnorm import recalibrate
    from snugnet.nets.extract import extract

    return SubnetworkJudge(data, extract, recalibrate, device=device)
