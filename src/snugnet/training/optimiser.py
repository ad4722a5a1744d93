"""SGD with Nesterov momentum, warm-up and cosine, and the moving average of weights.

The learning rate is a function of the step, never a state. The average follows theta_avg += (1 - d_t) (theta -
theta_avg) with d_t = min(decay, (1 + t) / (10 + t)), so that short runs are averaged over a fitting stretch; BN
statistics are averaged too.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import final

import torch
from torch import Tensor, nn

from snugnet.training.method import Method


def build(model: nn.Module, method: Method, *, fused: bool) -> torch.optim.SGD:
    """Weights of convolutions and linear layers decay; biases and norms (one dimension) only if the method says so."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    decays = [p for p in parameters if p.ndim > 1 or method.decay_norm_and_bias]
    spared = [p for p in parameters if not (p.ndim > 1 or method.decay_norm_and_bias)]
    groups = [
        {"params": group, "weight_decay": decay}
        for group, decay in ((decays, 0.0 if method.decays_itself else method.weight_decay), (spared, 0.0))
        if group
    ]
    nesterov = method.nesterov and method.momentum > 0
    sgd = torch.optim.SGD(groups, lr=method.lr, momentum=method.momentum, nesterov=nesterov, fused=fused)
    if method.momentum > 0:
        # A momentum of zero steps like none at all; and torch's fused step fails when only some parameters have one,
        # which happens whenever a path was not taken in the first step.
        for parameter in parameters:
            sgd.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return sgd


def learning_rate(method: Method, step: int, steps: int, steps_per_epoch: int, batch: int) -> float:
    """Linear from 0 over the warm-up, then a half cosine to 0 at the last step; or, throughout (AttentiveNAS), the half
    cosine over all steps times a warm-up from a thousandth, with the rate scaled by whole multiples of `lr_per`. Where the
    rate changes every epoch (TF-NAS), the cosine runs from the first one on too, and the warm-up is a factor on it."""
    if method.schedule == "throughout":
        warm = method.warmup_epochs * steps_per_epoch
        rise = min(1.0, 0.001 + 0.999 * step / warm) if warm else 1.0
        scale = max(1, batch // method.lr_per) if method.lr_per else 1
        return method.lr * scale * rise * 0.5 * (1 + math.cos(math.pi * step / steps))
    peak = method.lr * (batch / method.lr_per if method.lr_per else 1.0)
    if method.lr_every == "epoch":
        epoch = step // steps_per_epoch
        ramp = min(1.0, (epoch + 1) / method.warmup_epochs) if method.warmup_epochs else 1.0
        return peak * ramp * 0.5 * (1 + math.cos(math.pi * epoch * steps_per_epoch / steps))
    warm = round(method.warmup_epochs * steps_per_epoch)
    if step < warm:
        return peak * (step + 1) / warm
    return peak * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))


def momenta(model: nn.Module, optimiser: torch.optim.SGD) -> dict[str, Tensor]:
    """Momentum by parameter name."""
    parameters = model.named_parameters()
    return {name: optimiser.state[p]["momentum_buffer"] for name, p in parameters if p in optimiser.state}


def restore_momenta(model: nn.Module, optimiser: torch.optim.SGD, saved: dict[str, Tensor]) -> None:
    for name, parameter in model.named_parameters():
        if name in saved:
            optimiser.state[parameter]["momentum_buffer"].copy_(saved[name])


@torch.no_grad()
def forget(optimiser: torch.optim.Optimizer) -> None:
    """As if it had been made anew: momenta, moments and step counts are zero."""
    for state in optimiser.state.values():
        for value in state.values():
            if isinstance(value, Tensor):
                value.zero_()


@final
class Average:
    """The moving average of a model's weights and statistics."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._decay = decay
        self._model = model.state_dict()
        self.values = {name: tensor.detach().clone() for name, tensor in self._model.items()}
        floats = [name for name, tensor in self._model.items() if tensor.is_floating_point()]
        self._current = [self._model[name] for name in floats]
        self._average = [self.values[name] for name in floats]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """After the step with this number (from 0). Counters are taken as they are."""
        decay = min(self._decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(self._average, self._current, 1 - decay)
        for name, tensor in self._model.items():
            if not tensor.is_floating_point():
                self.values[name].copy_(tensor)

    def restore(self, saved: dict[str, Tensor]) -> None:
        for name, tensor in self.values.items():
            tensor.copy_(saved[name])

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange weights and average; twice is nothing."""
        for name, tensor in self._model.items():
            held = tensor.clone()
            tensor.copy_(self.values[name])
            self.values[name].copy_(held)


@contextlib.contextmanager
def norm_momentum(network: nn.Module, momentum: float | None) -> Iterator[None]:
    """Inside, running statistics follow a batch by `momentum` (0: not at all); None leaves every layer its own."""
    norms = [module for module in network.modules() if isinstance(module, nn.BatchNorm2d)]
    before = [norm.momentum for norm in norms]
    for norm in norms if momentum is not None else ():
        norm.momentum = momentum
    try:
        yield
    finally:
        for norm, own in zip(norms, before):
            norm.momentum = own
