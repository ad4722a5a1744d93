"""The sandwich rule: in every step the largest network, some sampled ones and the smallest, taught by the largest.

One optimiser step from four backward passes whose gradients are summed. The largest network learns from the labels, with
dropout and stochastic depth; the detached logits of that pass teach the others, which have no regularisation and hear
nothing else. What differs is who is sampled and what the students minimise:

- `sandwich`: uniform sampling, soft cross entropy (BigNAS, and the base of the two others);
- `attentive` (AttentiveNAS): a target cost is drawn, then `candidates` networks of about that cost, and the one with the
  best score (`best`: BestUp) or the worst (`worst`: WorstUp) is trained;
- `alpha` (AlphaNet): uniform sampling, adaptive alpha-divergence.

All shards train the same networks: they are drawn from the step's shared seed, and candidates' losses are averaged over
all shards before one is chosen. BN keeps no running statistics meanwhile: every network is recalibrated before it is used.
The settings are the papers' (appendix A of AttentiveNAS, B of AlphaNet). One of theirs has another form here: AutoAugment is
kornia's ImageNet policy, not EfficientNet's. Temperature and label term (`distill` below 1) are AlphaNet's equation 8.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, final

import torch
from torch import Tensor

from snugnet.costs.bins import BinSampler, CostBins, bin_architectures, load_bins
from snugnet.costs.table import exact_table
from snugnet.costs.vectorised import CostLookup
from snugnet.errors import BadInput
from snugnet.evaluate.forest import Forest
from snugnet.nets.supernet import Regularisation
from snugnet.space.architecture import Architecture
from snugnet.space.gene_columns import GeneColumns
from snugnet.space.layout import Layout
from snugnet.space.sampling import largest, sample_many, smallest
from snugnet.space.space import SearchSpace
from snugnet.training.losses import CollapseWatch, Distillation, Divergence, cross_entropy
from snugnet.training.method import Method, MethodState, PhaseContext, Rule, Step
from snugnet.units import parse, resource

PLAIN = Regularisation()  # of students: none


@dataclass(frozen=True, kw_only=True)
class SandwichRule(Method):
    """What the three methods share: the step, and all settings but who is sampled."""

    elastic: ClassVar[bool] = True
    schedule: ClassVar[Literal["after-warmup", "throughout"]] = "throughout"
    norm_momentum: ClassVar[float | None] = 0.0

    epochs: int = 360
    lr_per: int | None = 256
    weight_decay: float = 1e-5
    warmup_epochs: float = 5.0
    mixup: float = 0.0
    ema: float | None = None
    clip_value: float | None = 1.0
    sampled: int = 2  # networks between the largest and the smallest
    dropout: float = 0.2  # of the largest network, before its classifier
    drop_connect: float = 0.2  # stochastic depth of the largest network, in its last two stages
    loss: Divergence = "soft-cross-entropy"
    distill: float = 1.0  # weight of the teacher against the labels; 0: labels alone
    temperature: float = 1.0
    alpha_min: float = -1.0  # of loss "alpha"
    alpha_max: float = 1.0
    alpha_clip: float = 5.0

    def networks(self, step: Step, state: MethodState) -> list[Architecture]:
        """The sampled networks of a step, the same on all shards: every gene uniform and independent."""
        return uniform_networks(step, self.sampled)

    def sampling_rules(self) -> list[Rule]:
        """Rules for the fields that say who is sampled."""
        return []

    def start(self, context: PhaseContext) -> MethodState:
        return watched(context)

    @property
    def distillation(self) -> Distillation:
        alphas: dict[str, float] = {"alpha_min": self.alpha_min, "alpha_max": self.alpha_max, "clip": self.alpha_clip}
        return Distillation(loss=self.loss, weight=self.distill, temperature=self.temperature, **alphas)

    def own_rules(self) -> list[Rule]:
        return [
            *self.distillation.rules(),
            ("sampled must not be negative", self.sampled, self.sampled >= 0),
            ("dropout must lie in [0, 1)", self.dropout, 0 <= self.dropout < 1),
            ("drop_connect must lie in [0, 1)", self.drop_connect, 0 <= self.drop_connect < 1),
            *self.sampling_rules(),
        ]

    def step(self, step: Step, state: MethodState) -> dict[str, Tensor]:
        space, distil = step.net.space, self.distillation
        regularise = Regularisation(dropout=self.dropout, drop_connect=self.drop_connect)
        logits = step.net(step.images, largest(space), regularise=regularise)
        loss = cross_entropy(logits, step.targets, self.label_smoothing)
        step.backward(loss)
        teacher, values = logits.detach(), []
        for network in [*self.networks(step, state), smallest(space)]:
            student = step.net(step.images, network, regularise=PLAIN)
            surrogate, value = distil(student, teacher, step.targets, self.label_smoothing)
            step.backward(surrogate)
            values.append(value)
        metrics = {"loss": loss.detach(), "smallest": values[-1]}
        return {**metrics, "sampled": torch.stack(values[:-1]).mean()} if self.sampled else metrics


@final
@dataclass(frozen=True, kw_only=True)
class Sandwich(SandwichRule):
    """Uniform sampling."""

    name: ClassVar[str] = "sandwich"


@final
@dataclass(frozen=True, kw_only=True)
class Alpha(SandwichRule):
    """AlphaNet: as `sandwich`, with the adaptive alpha-divergence as the students' loss."""

    name: ClassVar[str] = "alpha"
    loss: Divergence = "alpha"


@final
@dataclass(frozen=True, kw_only=True)
class Attentive(SandwichRule):
    """AttentiveNAS: networks near the Pareto front (`best`) or far from it (`worst`) are trained more often."""

    name: ClassVar[str] = "attentive"

    rule: Literal["best", "worst"] = "best"
    candidates: int = 3
    score: Literal["loss", "predictor"] = "loss"
    predictor: str | None = None  # file of a `Forest`, for score "predictor"
    resource: str = "macs"  # what the bins are over; latency needs its table passed to `train`
    bin_width: str | None = None  # "25MMACs" in the paper; None: a seventieth of the range
    rows: int = 1_000_000  # random architectures that prior and proposal are counted from
    bins: str | None = None  # file that `snugnet bins` made beforehand, instead of width and rows
    redraws: int = 101  # of a candidate whose bin is not the target's; then the last is taken

    def sampling_rules(self) -> list[Rule]:
        return [
            ("candidates must be at least 1", self.candidates, self.candidates >= 1),
            ("rows must be at least 1", self.rows, self.rows >= 1),
            ("redraws must be at least 1", self.redraws, self.redraws >= 1),
            ("bins=FILE knows its own bin_width", self.bin_width, self.bins is None or self.bin_width is None),
            (
                "score 'predictor' needs predictor=FILE, and score 'loss' none",
                self.predictor,
                (self.predictor is not None) == (self.score == "predictor"),
            ),
        ]

    def start(self, context: PhaseContext) -> MethodState:
        """The counts of the bins, and the predictor's trees, are part of the state: a resumed phase goes on with them."""
        assert context.space is not None
        space = context.space
        lookup = self._lookup(context, space)
        if self.bins is not None:
            bins = load_bins(self.bins, space, lookup, self.resource)
        else:
            width = None if self.bin_width is None else parse(self.bin_width, self.resource)
            bins = CostBins.empty(space, lookup, self.resource, width)
            if not context.resumed:
                bins = bin_architectures(space, lookup, bins, rows=self.rows, seed=context.seed.fold_in("bins"))
        tensors = {"bins": torch.from_numpy(bins.counts).to(context.device)}
        if self.predictor is not None:
            forest = Forest.load(Path(self.predictor), space)
            tensors |= {f"forest.{n}": torch.from_numpy(a).to(context.device) for n, a in forest.arrays().items()}
        drawing = Drawing(space, lookup, bins, tensors)
        survey = self._survey(drawing) if self.score == "loss" and self.candidates > 1 else None
        state = watched(context)
        return MethodState(tensors={**state.tensors, **tensors}, watch=state.watch, constants=drawing, survey=survey)

    def networks(self, step: Step, state: MethodState) -> list[Architecture]:
        drawing: Drawing = state.constants
        drawn = drawing.candidates(step, self.sampled, self.candidates, self.redraws)
        if self.candidates == 1:
            return [row[0] for row in drawn]
        scores = self._predicted(drawing, drawn) if step.agreed is None else step.agreed
        lower_is_better = self.score == "loss"
        lowest = (self.rule == "best") == lower_is_better
        chosen = scores.argmin(1) if lowest else scores.argmax(1)
        return [row[int(i)] for row, i in zip(drawn, chosen)]

    def _survey(self, drawing: Drawing) -> Any:
        """Losses [sampled, candidates] on one shard's images: cross entropy to the labels, BN as in training."""

        def losses(step: Step) -> Tensor:
            drawn = drawing.candidates(step, self.sampled, self.candidates, self.redraws)
            return torch.stack([torch.stack([self._label_loss(step, network) for network in row]) for row in drawn])

        return losses

    def _label_loss(self, step: Step, network: Architecture) -> Tensor:
        return cross_entropy(step.net(step.images, network, regularise=PLAIN), step.targets, self.label_smoothing)

    def _predicted(self, drawing: Drawing, drawn: list[list[Architecture]]) -> Tensor:
        return torch.tensor([[drawing.forest(network) for network in row] for row in drawn])

    def _lookup(self, context: PhaseContext, space: SearchSpace) -> CostLookup:
        known = resource(self.resource)
        table = context.tables.get(self.resource)
        if table is None:
            if known.name == "latency":
                raise BadInput(
                    "bins over latency need its table",
                    value=", ".join(context.tables) or "no tables",
                    remedy="Pass tables={'latency': table} to train (a recipe: give it a budget on latency), or take macs.",
                )
            table = exact_table(space, self.resource)
        return CostLookup(space, table.of_part, table.combine, table.expect)


@final
class Drawing:
    """Candidates of a step, from the tensors of the method's state: those of the checkpoint, where there was one."""

    def __init__(self, space: SearchSpace, lookup: CostLookup, bins: CostBins, tensors: dict[str, Tensor]) -> None:
        self._space, self._lookup, self._bins, self._tensors = space, lookup, bins, tensors

    @cached_property
    def sampler(self) -> BinSampler:
        return BinSampler(self._space, self._lookup, self._bins.with_counts(self._tensors["bins"].cpu().numpy()))

    @cached_property
    def _forest(self) -> Forest:
        arrays = {n.removeprefix("forest."): t.cpu().numpy() for n, t in self._tensors.items() if n != "bins"}
        return Forest.of(arrays)

    def candidates(self, step: Step, sampled: int, count: int, redraws: int) -> list[list[Architecture]]:
        """[sampled][count]: for each a target of its own. A function of the step's shared seed alone."""
        rows = []
        for number in range(sampled):
            rng = step.shared.fold_in("target", number).numpy()
            rows.append(self.sampler.candidates(self.sampler.target(rng), count, rng, redraws))
        return rows

    def forest(self, network: Architecture) -> float:
        """The accuracy that the predictor expects of a network."""
        columns = GeneColumns(self._space)
        return float(self._forest(columns.values(columns.of([network])))[0])


def watched(context: PhaseContext) -> MethodState:
    """A state that notices when the largest network falls back to chance."""
    watch = CollapseWatch(context.about.classes, context.device)
    return MethodState(tensors={"watch": watch.tensor}, watch=watch)


def uniform_networks(step: Step, count: int) -> list[Architecture]:
    """Every gene uniform and independent; drawn alike on all shards."""
    space = step.net.space
    return Layout(space).decode(sample_many(space, count, step.shared.fold_in("sampled").numpy()))
