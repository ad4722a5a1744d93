"""TF-NAS: operations, depths and widths searched while a super-network of separate operations trains.

A weight step adds the cross entropies of two paths on the same batch (bi-sampling): one by Gumbel sampling over the
operations' log-probabilities, one uniform over the others of every layer, so that no operation is starved. After every
second weight step the log-probabilities of operations (alpha) and depths (beta) take a step on held-out images, with the
soft Gumbel weights g over all operations:

    L = cross entropy + cost_weight * | max over limits of E[cost] / limit  - 1 |

E[cost] is `expected_cost` at (g, softmax(beta)) by the tables, each operation at its present width. At the end of every
epoch after the first `weights_only_epochs`, the widths of the strongest network are scaled to the limits
(`solve.elasticity`). Depths are never sampled: stages are sink-connecting. Dropped channels get no update and do not decay,
so the decay of what runs is part of the loss, and of what is clipped.
`searching.tfnas` derives the network. Epochs count from 0; all defaults are the paper's, for 90 epochs of batch 32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, final

import numpy as np
import torch
from torch import Tensor

from snugnet.budgets.limits import Limits
from snugnet.budgets.widths import Widths
from snugnet.data.dataset import LEARNABLE
from snugnet.errors import BadInput
from snugnet.nets.mixed_supernet import MixedSupernet
from snugnet.nets.network import fixed_weights
from snugnet.seeds import Seed
from snugnet.solve.problem import Outcome, expected_cost
from snugnet.training.losses import cross_entropy
from snugnet.training.method import EpochEnd, EpochReport, Method, MethodState, PhaseContext, Rule, Step, Stream
from snugnet.training.optimiser import forget

Second = Literal["random", "gumbel", "largest", "smallest"]
STABLE_SHARE = 0.75  # of the layers: whose order of operations must have settled for the early stop


@final
@dataclass(frozen=True, kw_only=True)
class TfNas(Method):
    """Bi-sampling, soft costs and elasticity-scaling."""

    name: ClassVar[str] = "tfnas"
    elastic: ClassVar[bool] = True
    separate: ClassVar[bool] = True
    needs_budget: ClassVar[bool] = True
    decays_itself: ClassVar[bool] = True

    epochs: int = 90
    lr: float = 0.025
    nesterov: bool = False
    weight_decay: float = 1e-5
    lr_every: Literal["step", "epoch"] = "epoch"
    label_smoothing: float = 0.0
    mixup: float = 0.0
    auto_augment: str | None = None
    ema: float | None = None
    clip_norm: float | None = 5.0
    sampling: Literal["bi", "gumbel", "random"] = "bi"  # the two single paths are baselines
    second_path: Second = "random"  # of bi-sampling, among the operations that the first path left
    weights_only_epochs: int = 10
    architecture_every: int = 2  # weight steps to one of the architecture
    architecture_lr: float = 0.01
    architecture_decay: float = 5e-4
    held_out: str = "val"
    held_out_batch: int = 32
    temperature: float = 5.0
    annealing: float = 0.96  # a factor on the temperature for each epoch after the first ones
    cost_weight: float = 0.1  # lambda
    scaling: bool = True  # elasticity-scaling at the end of epochs
    stop_when_stable: int = 0  # epochs without a change of order in most layers; 0: never stop early

    def own_rules(self) -> list[Rule]:
        return [
            ("weights_only_epochs must not be negative", self.weights_only_epochs, self.weights_only_epochs >= 0),
            ("architecture_every must be at least 1", self.architecture_every, self.architecture_every >= 1),
            ("architecture_lr must be positive", self.architecture_lr, self.architecture_lr > 0),
            ("architecture_decay must not be negative", self.architecture_decay, self.architecture_decay >= 0),
            ("temperature must be positive", self.temperature, self.temperature > 0),
            ("annealing must lie in (0, 1]", self.annealing, 0 < self.annealing <= 1),
            ("cost_weight must not be negative", self.cost_weight, self.cost_weight >= 0),
            ("stop_when_stable must not be negative", self.stop_when_stable, self.stop_when_stable >= 0),
            ("held_out_batch must be at least 2", self.held_out_batch, self.held_out_batch >= 2),
            (f"held_out must be one of {LEARNABLE}", self.held_out, self.held_out in LEARNABLE),
            ("ema must be off: the search has no use for an average", self.ema, self.ema is None),
        ]

    def start(self, context: PhaseContext) -> MethodState:
        net, limits = _supernet(context.net), context.limits
        if limits is None:
            raise BadInput(
                "tfnas must know the limits that the network has to meet",
                remedy="Pass budget={'latency': '5ms'} and tables to train, or `budget:` in a recipe.",
            )
        alpha, beta = net.log_alpha.new_zeros(net.log_alpha.shape), net.log_beta.new_zeros(net.log_beta.shape)
        for row, count in zip(alpha.split(net.choice_counts), net.choice_counts):
            row.fill_(-float(np.log(count)))
        per_epoch = context.steps // self.epochs

        def needed(step: int) -> bool:
            return self.alternates_at(step / per_epoch, step % per_epoch)

        alpha.requires_grad_()
        beta.requires_grad_()
        adam = ArchitectureAdam(
            {alpha: net.choice_counts, beta: net.depth_counts},
            lr=self.architecture_lr,
            betas=(0.5, 0.999),
            weight_decay=self.architecture_decay,
        )
        return MethodState(
            tensors={
                "log_alpha": alpha,
                "log_beta": beta,
                "order": torch.zeros(len(alpha), dtype=torch.int64, device=context.device),
                "stable": torch.zeros(len(net.choice_counts), dtype=torch.int64, device=context.device),
            },
            optimisers={"adam": adam},
            stream=Stream(split=self.held_out, batch=self.held_out_batch, needed=needed),
            constants=ExpectedCosts(net, limits),
        )

    def step(self, step: Step, state: MethodState) -> dict[str, Tensor]:
        """The weight step."""
        net = _supernet(step.net)
        alpha = state.tensors["log_alpha"].detach().split(net.choice_counts)
        paths = self.paths(alpha, step.shared.fold_in("paths"), int(step.epoch))
        beta = [row.softmax(0) for row in state.tensors["log_beta"].detach().split(net.depth_counts)]
        loss, losses = weight_loss(
            step.net, step.images, step.targets, paths, beta, self.weight_decay, self.label_smoothing
        )
        step.backward(loss)
        return {"loss": torch.stack(losses).mean().detach()}

    def alternates_at(self, epoch: float, number: int) -> bool:
        return epoch >= self.weights_only_epochs and number % self.architecture_every == 0

    def then(self, step: Step, state: MethodState) -> dict[str, Tensor]:
        """The architecture step, on the weights that the weight step has moved."""
        net, costs = _supernet(step.net), state.constants
        images, targets = step.second()
        log_alpha, log_beta = state.tensors["log_alpha"], state.tensors["log_beta"]
        noise = gumbel(len(log_alpha), step.shared.fold_in("gumbel")).to(log_alpha)
        soft = (log_alpha + noise) / self.tau(int(step.epoch))
        g = [row.softmax(0) for row in soft.split(net.choice_counts)]
        beta = [row.softmax(0) for row in log_beta.split(net.depth_counts)]
        with fixed_weights(net):
            loss = cross_entropy(step.net(images, g, beta), targets)
        usage = costs.usage(g, beta)
        step.backward(loss + self.cost_weight * (usage - 1).abs(), inputs=[log_alpha, log_beta])
        return {"architecture_loss": loss.detach(), "expected_usage": usage.detach()}

    def end_epoch(self, end: EpochEnd, state: MethodState) -> EpochReport:
        """Scale, write down, start the optimisers anew."""
        net, costs = _supernet(end.net), state.constants
        net.remember(state.tensors["log_alpha"], state.tensors["log_beta"])
        alpha, beta = net.probabilities()
        widths: Widths = costs.widths
        numbers = widths.strongest(alpha, beta)
        message = ""
        if end.epoch >= self.weights_only_epochs and self.scaling:
            scaled, by_slot = widths.scaled(numbers, net.widths())
            for slot, width in by_slot.items():
                net.operations(slot)[numbers[0][slot]].keep(width)
            costs.refresh()
            message = "" if scaled.status.outcome is Outcome.OPTIMAL else scaled.status.message
        for optimiser in end.optimisers:
            forget(optimiser)
        now = net.widths()
        network = widths.architecture(numbers, now)
        facts: dict[str, Any] = {
            "alpha": [np.round(row, 5).tolist() for row in alpha],
            "beta": [np.round(row, 5).tolist() for row in beta],
            "widths": now,
            "network": str(network),
            "costs": widths.limits.cost(network),
            "temperature": self.tau(end.epoch),
        }
        facts |= {"remark": message} if message else {}
        stop = self._settled(net, state, end.epoch)
        return EpochReport(facts=facts, stop=stop)

    def paths(self, alpha: Sequence[Tensor], seed: Seed, epoch: int) -> list[list[int]]:
        """The paths of a weight step: per layer the number of an operation."""
        rng = seed.numpy()
        if self.sampling == "random":
            return [[int(rng.integers(len(row))) for row in alpha]]
        noise = gumbel(sum(len(row) for row in alpha), seed.fold_in("first")).split([len(row) for row in alpha])
        first = [int((row.cpu() + extra).argmax()) for row, extra in zip(alpha, noise)]
        if self.sampling == "gumbel" or epoch < self.weights_only_epochs:
            return [first]
        return [first, [self._other(row, taken, rng) for row, taken in zip(alpha, first)]]

    def _other(self, log_alpha: Tensor, taken: int, rng: np.random.Generator) -> int:
        """One of the operations that the first path left; the only one where there is no other."""
        left = [c for c in range(len(log_alpha)) if c != taken]
        if not left:
            return taken
        strengths = log_alpha.cpu().numpy()[left]
        if self.second_path == "random":
            return left[int(rng.integers(len(left)))]
        if self.second_path == "gumbel":
            return left[int(np.argmax(strengths + rng.gumbel(size=len(left))))]
        return left[int(np.argmax(strengths) if self.second_path == "largest" else np.argmin(strengths))]

    def tau(self, epoch: int) -> float:
        """The temperature of an epoch."""
        return self.temperature * self.annealing ** max(0, epoch - self.weights_only_epochs)

    def _settled(self, net: MixedSupernet, state: MethodState, epoch: int) -> bool:
        """Has the full order of operations been the same for long enough in most layers?"""
        rows = state.tensors["log_alpha"].detach().split(net.choice_counts)
        order = torch.cat([row.argsort(descending=True, stable=True) for row in rows])
        same = [
            bool((a == b).all())
            for a, b in zip(order.split(net.choice_counts), state.tensors["order"].split(net.choice_counts))
        ]
        stable = state.tensors["stable"]
        counted = epoch > self.weights_only_epochs  # before that nothing has moved
        ages = [int(age) + 1 if held and counted else 0 for age, held in zip(stable.tolist(), same)]
        state.tensors["order"].copy_(order)
        stable.copy_(torch.tensor(ages))
        choosing = [age for age, count in zip(ages, net.choice_counts) if count > 1]
        if not self.stop_when_stable or not choosing:
            return False
        return sum(age >= self.stop_when_stable for age in choosing) >= STABLE_SHARE * len(choosing)


def weight_loss(
    net: Any,
    images: Tensor,
    targets: Tensor,
    paths: Sequence[Sequence[int]],
    beta: Sequence[Tensor],
    decay: float,
    smoothing: float = 0.0,
) -> tuple[Tensor, list[Tensor]]:
    """The sum of the paths' cross entropies and the decay of what they run; and the cross entropies."""
    losses = [cross_entropy(net(images, path, beta), targets, smoothing) for path in paths]
    return torch.stack(losses).sum() + decay * net.decay(*paths), losses


def gumbel(count: int, seed: Seed) -> Tensor:
    """`count` draws of a standard Gumbel variable."""
    return torch.from_numpy(seed.numpy().gumbel(size=count)).float()


@final
class ExpectedCosts:
    """What soft weights of operations and depths are expected to take of each limit, at the widths of the moment."""

    def __init__(self, net: MixedSupernet, limits: Limits) -> None:
        self._net, self.widths = net, Widths(limits)
        sums = {name: limit for name, limit in limits.items() if limit.table.combine == "sum"}
        self._names = list(sums)
        device, layout = net.log_alpha.device, net.layout
        self._limit = torch.tensor([limit.effective for limit in sums.values()], device=device)
        self._base = torch.tensor([self.widths.base(name) for name in sums], device=device)
        runs = np.zeros((len(layout.slots), sum(net.depth_counts)))
        for number, slot in enumerate(layout.slots):
            start = sum(net.depth_counts[: slot.stage])
            for i, depth in enumerate(net.space.stages[slot.stage].depths):
                runs[number, start + i] = float(slot.position < depth)
        self._runs = torch.tensor(runs, dtype=torch.float32, device=device)
        self._costs: Mapping[str, list[Tensor]] = {}
        self.refresh()

    def refresh(self) -> None:
        """After widths have changed."""
        now, device = self._net.widths(), self._base.device
        self._costs = {
            name: [torch.tensor(row, dtype=torch.float32, device=device) for row in self.widths.costs(name, now)]
            for name in self._names
        }

    def usage(self, g: Sequence[Tensor], beta: Sequence[Tensor]) -> Tensor:
        """The largest share of any limit on a sum of costs; differentiable. Peak memory, no sum, is left to the finish."""
        if not self._names:
            return torch.ones((), device=self._base.device)
        slots = torch.stack(
            [torch.stack([row @ weights for row, weights in zip(self._costs[name], g)]) for name in self._names]
        )
        usage: Tensor = (expected_cost(self._base, slots, self._runs, torch.cat(list(beta))) / self._limit).max()
        return usage


@final
class ArchitectureAdam(torch.optim.Adam):
    """Adam on log-probabilities: the norm of all gradients is clipped first, rows are normalised (log-softmax) after."""

    def __init__(self, rows: Mapping[Tensor, list[int]], *, clip: float = 5.0, **options: Any) -> None:
        super().__init__(list(rows), **options)
        self._rows, self._clip = list(rows.items()), clip

    def step(self, closure: Any = None) -> Any:
        tensors = [tensor for tensor, _ in self._rows if tensor.grad is not None]
        if not tensors:
            return None
        torch.nn.utils.clip_grad_norm_(tensors, self._clip)
        loss = super().step(closure)
        with torch.no_grad():
            for tensor, counts in self._rows:
                tensor.copy_(torch.cat([row.log_softmax(0) for row in tensor.split(counts)]))
        return loss


def _supernet(net: Any) -> MixedSupernet:
    """The super-network behind what the loop hands out."""
    model = net if isinstance(net, MixedSupernet) else net.model
    assert isinstance(model, MixedSupernet)
    return model
