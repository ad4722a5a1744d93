"""The evaluator a run has unless told otherwise: sub-networks of a super-network, or a plain network as it is."""

from __future__ import annotations

import torch
from torch import nn

from snugnet.data.dataset import Data
from snugnet.evaluate.accuracy import Evaluator, NetworkEvaluator, SubnetworkEvaluator


def default_evaluator(model: nn.Module, data: Data, device: torch.device) -> Evaluator:
    if not hasattr(model, "space"):
        return NetworkEvaluator(data, device=device)
    from snugnet.nets.batchnorm import recalibrate
    from snugnet.nets.extract import extract

    return SubnetworkEvaluator(data, extract, recalibrate, device=device)
