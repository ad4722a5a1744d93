"""Adaptive search: every evaluation sharpens a posterior of choice effects, and the exact solver says what to evaluate next.

1. *Prior.* The gradient of the calibrated loss at a balanced point: a linear model of networks for some backward passes,
   kept in the run; and how the noise of the images is shared between networks (`prior`).
2. *Loop.* All evaluations the run holds are evidence, inside the limits or not. A draw from the posterior of effects has
   exact best networks within the limits (one integer programme per input resolution; where costs do not add up, mutation
   and crossover propose); they compete with those one choice away from the best known, by the draw and by what is known
   of networks alike to them. The best is evaluated and the posterior fitted again. It ends at `evaluations`, or when
   proposals have hardly a chance to improve three times in a row.
3. *Finalists.* The best few by posterior mean are evaluated on more images, the same for all, half of them dropping out
   each time. The winner has the highest posterior mean of all known networks that fit: by measured score the luckiest
   would win.

What a search evaluates is a function of what the run knew when it began, which is written down: a killed search goes on
where it stopped.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

from snugnet.errors import BadInput
from snugnet.evaluate.scoring import Score
from snugnet.searching.choice_effects import agreement
from snugnet.searching.context import Outcome, SearchContext, SearchMethod, Task
from snugnet.searching.objective import Floats
from snugnet.searching.prior import Noise, Prior, make_prior
from snugnet.seeds import Seed
from snugnet.solve import CALM, INITIAL_WITH_PRIOR, Beliefs, EffectsPosterior, best_choices, neighbours
from snugnet.space.architecture import Architecture
from snugnet.space.layout import Layout
from snugnet.space.space import SearchSpace
from snugnet.store import fingerprint, read_json, write_json

_GENERATIONS, _CHILDREN = 3, 64  # of the proposer where costs do not add up


@final
@dataclass(frozen=True, kw_only=True)
class Adaptive(SearchMethod):
    """`evaluations` new networks at most (0: the best of those that are known); a run that knows as many already spends at
    most `further` on another budget."""

    name = "adaptive"
    evaluations: int = 30
    further: int = 10
    finalists: int = 8
    passes: int = 24  # of the prior: batches that are differentiated, no more than the held-out images fill
    batch: int = 64
    explore: float = 1.0  # scale of draws around the posterior mean at first, falling to 0, the mean itself
    stop_early: bool = True  # False: all `evaluations`, also where nothing better is expected

    def run(self, task: Task) -> Outcome:
        counts = self.evaluations, self.further, self.finalists, self.passes, self.batch
        if self.evaluations < 0 or min(counts[1:]) < 1 or not self.explore >= 0:
            raise BadInput(
                "further, finalists, passes and batch must be positive, evaluations and explore not negative",
                value=(*counts, self.explore),
                remedy="Try 30, 10, 8, 24, 64 and 1.",
            )
        prior, images = self._prior(task)
        belief = Belief(task.supernet.space, prior)
        for network, score in self._known(task):
            belief.learn(network, score)
        trace = self._loop(task, belief)
        for network, score in [] if task.alone else task.evaluator.history():  # what came after this search began
            belief.learn(network, score)
        winner = self._winner(task, belief)
        accuracy, error = belief.accuracy(winner)
        details = {
            "expected_score": belief.model.expected()[winner][0],
            "known": len(belief.scores) - len(trace),
            "worths": {"value": belief.model.posterior.mean.tolist(), "error": belief.effect_errors().tolist()},
            "prior_slope": belief.model.posterior.slope,
            "noise": asdict(prior.noise),
            **belief.correlations(),
        }
        return Outcome(architecture=winner, images=images, expected=accuracy, error=error, trace=trace, details=details)

    def begin(self, task: Task) -> None:
        self._prior(task)

    def _loop(self, task: Task, belief: Belief) -> list[dict[str, Any]]:
        most = min(self.evaluations, max(self.further, self.evaluations - len(belief.scores)))
        proposer, calm = Proposer(task.context, belief), 0
        trace: list[dict[str, Any]] = []
        task.progress.start("adaptive search", most)
        while len(trace) < most and (calm < CALM or not self.stop_early):
            rng = Seed(task.seed).fold_in("adaptive", len(belief.scores)).numpy()
            # Towards the end the posterior mean itself: what is learnt last can hardly be used any more.
            network = proposer.next(rng, self.explore * (1 - len(trace) / max(most - 1, 1)))
            if network is None:  # everything that fits is known
                break
            promising = belief.model.promises(network, proposer.incumbent())
            score = task.evaluator(network)
            belief.learn(network, score)
            calm = 0 if promising else calm + 1
            trace.append({"network": str(network), **score.to_json(), "promising": promising})
            task.progress.update(len(trace), f"best {proposer.best_score():.4f}")
        task.progress.stop()
        return trace

    def _winner(self, task: Task, belief: Belief) -> Architecture:
        """Successive halving of the best by posterior mean; then the best of all, until that one has seen all images."""
        fitting, evaluator = task.context.fitting(list(belief.scores)), task.evaluator
        if not fitting:
            budget = task.context.limits.budget
            raise BadInput(f"a network within {budget} must have been evaluated", value=0, remedy="Search first.")
        ratio = evaluator.full_images / evaluator.first_images
        left = min(self.finalists, len(fitting))
        rounds = [left // 2**i for i in range(3) if left // 2**i] if ratio > 1 else []
        for number, count in enumerate(rounds, 1):
            images = round(evaluator.first_images * ratio ** (number / len(rounds)))
            finalists = belief.model.ranked(fitting)[:count]
            evaluator.prefetch(finalists, images)
            for network in finalists:
                belief.learn(network, evaluator.evaluate_on(network, images))
        while True:
            best = belief.model.ranked(fitting)[0]
            if belief.scores[best].images >= evaluator.full_images:
                return best
            belief.learn(best, evaluator.evaluate_full(best))

    def _known(self, task: Task) -> list[tuple[Architecture, Score]]:
        """What the run knew when this search began: now, or as written down when it was begun before."""
        if task.alone:
            return []
        history = task.evaluator.history()
        if task.folder is None:
            return history
        path, identity = task.folder / "adaptive.json", self._identity(task)
        begun = _saved(path)
        if identity not in begun:
            begun[identity] = len(history)
            write_json(path, begun)
        return history[: int(begun[identity])]

    def _prior(self, task: Task) -> tuple[Prior, int]:
        """The prior of these weights, from the run or made now; and the images it took now."""
        identity = fingerprint(["prior/4", self.passes, self.batch, task.seed, task.evaluator.identity()])
        path = None if task.folder is None else task.folder / "prior.json"
        saved = {} if path is None else _saved(path)
        if saved.get("of") == identity:
            return Prior(effects=saved["effects"], noise=Noise(**saved["noise"])), 0
        prior, images = make_prior(task, self.passes, self.batch)
        if path is not None:
            write_json(path, {"of": identity, **asdict(prior)})
        return prior, images

    def _identity(self, task: Task) -> str:
        limits, evaluator = sorted(task.context.limits.effective.items()), task.evaluator
        images = evaluator.first_images, evaluator.full_images
        return fingerprint([self.describe(), task.seed, limits, images, evaluator.identity()])


def _saved(path: Path) -> dict[str, Any]:
    value = read_json(path) if path.exists() else {}
    return value if isinstance(value, dict) else {}


@final
class Belief:
    """Evidence about the networks of a space: their scores, and the beliefs about effects that follow from them."""

    def __init__(self, space: SearchSpace, prior: Prior) -> None:
        self.scores = dict[Architecture, Score]()
        self._layout, self._prior = Layout(space), prior
        self._rows: dict[Architecture, Floats] = {}
        effects = None if prior.effects is None else np.array(prior.effects)
        self.model: Beliefs[Architecture] = Beliefs(self.rows, prior=effects, initial=INITIAL_WITH_PRIOR, order=str)

    def learn(self, network: Architecture, score: Score) -> None:
        """Of several evaluations of a network the one on most images counts: it holds the others' images."""
        if network in self.scores and self.scores[network].images >= score.images:
            return
        self.scores[network] = score
        error, noise = score.error if math.isfinite(score.error) else 1.0, self._prior.noise
        self.model.learn(network, score.score, math.sqrt(noise.own) * error, math.sqrt(noise.column) * error)

    def rows(self, networks: Sequence[Architecture]) -> Floats:
        """[n, columns] of the layout."""
        missing = [a for a in dict.fromkeys(networks) if a not in self._rows]
        if missing:
            self._rows |= zip(missing, self._layout.features(self._layout.encode(missing)))
        return np.array([self._rows[a] for a in networks])

    def accuracy(self, network: Architecture) -> tuple[float, float]:
        """The posterior mean of an evaluated network's accuracy and its standard error, the shared noise included."""
        likely = [(s.accuracy * s.images + 1) / (s.images + 2) for s in self.scores.values()]
        noise = [p * (1 - p) / s.images for p, s in zip(likely, self.scores.values())]
        own, common = (
            [math.sqrt(v * part) for v in noise] for part in (self._prior.noise.own, self._prior.noise.column)
        )
        rows, values = self.rows(list(self.scores)), [s.accuracy for s in self.scores.values()]
        mean, variance = EffectsPosterior.fit(rows, values, own, self._prior.effects, common).evaluated()
        row = list(self.scores).index(network)
        error = math.sqrt(float(variance[row]) + self._prior.noise.shared * noise[row])
        return min(max(float(mean[row]), 0.0), 1.0), error

    def effect_errors(self) -> Floats:
        errors: Floats = np.sqrt(np.maximum(np.diag(self.model.posterior.covariance), 0.0))
        return errors

    def correlations(self) -> dict[str, Any]:
        """How well the prior, and the posterior without each network, agree with the scores of real networks."""
        scores = np.array([s.score for s in self.scores.values()])
        told: dict[str, Any] = {"prior": None}
        if self._prior.effects is not None:
            told["prior"] = asdict(agreement(self.rows(list(self.scores)) @ np.array(self._prior.effects), scores))
        return {**told, "posterior": asdict(agreement(self.model.posterior.left_out(), scores))}


@final
class Proposer:
    """What to evaluate next within the limits: the best network of a draw that is not known yet."""

    def __init__(self, context: SearchContext, belief: Belief) -> None:
        self.context, self.belief = context, belief
        self._fits: dict[Architecture, bool] = {}
        self._beside: dict[Architecture, list[Architecture]] = {}

    def fitting(self) -> list[Architecture]:
        """The known networks that meet every limit."""
        fresh = [a for a in self.belief.scores if a not in self._fits]
        inside = set(self.context.fitting(fresh))
        self._fits |= {a: a in inside for a in fresh}
        return [a for a in self.belief.scores if self._fits[a]]

    def incumbent(self) -> Architecture | None:
        known = self.fitting()
        return self.belief.model.ranked(known)[0] if known else None

    def best_score(self) -> float:
        return max(self.belief.scores[a].score for a in self.fitting())

    def next(self, rng: np.random.Generator, explore: float) -> Architecture | None:
        """None only if every network that fits is known (or, where costs do not add up, no other was met)."""
        columns = Layout(self.context.space).columns
        best = functools.partial(self._best, rng=rng)
        return self.belief.model.propose(rng, explore, best, self._near, self.fitting(), columns)

    def _near(self, network: Architecture) -> list[Architecture]:
        """Networks within the limits that differ from a known one in one choice; where costs do not add up, mutations
        have met them."""
        if network not in self._beside:
            at = [p for p in self.context.problems if network.resolution in p.left.layout.space.resolutions]
            self._beside[network] = [
                inside.architecture(choice)
                for inside in at
                for choice in neighbours(inside.problem, inside.choice(network))
            ]
        return self._beside[network]

    def _best(self, effects: Floats, count: int, rng: np.random.Generator) -> list[Architecture]:
        """Networks within the limits, best first under `effects`."""
        networks = self._solved(effects, count) if self.context.problems else self._bred(effects, rng)
        values = self.belief.rows(networks) @ effects
        return [networks[i] for i in np.argsort(-values, kind="stable")]

    def _solved(self, effects: Floats, count: int) -> list[Architecture]:
        """One exact problem per resolution; effects are shared between them."""
        networks = []
        for inside in self.context.problems:
            columns = Layout(self.context.space).split(effects[: Layout(self.context.space).columns])
            objective = inside.objective(columns.options, columns.depths)
            networks += [inside.architecture(c) for c in best_choices(inside.problem, objective, count=count).found]
        return networks

    def _bred(self, effects: Floats, rng: np.random.Generator) -> list[Architecture]:
        """Mutation and crossover inside the limits, a few generations towards the best by `effects`."""
        sampler = self.context.sampler
        pool = list(dict.fromkeys([*self.fitting(), self.context.start, *sampler.sample(_CHILDREN, rng)]))
        for _ in range(_GENERATIONS):
            pool = self._top(pool, effects, _CHILDREN // 4)
            parents = [pool[i] for i in rng.integers(len(pool), size=_CHILDREN)]
            others = [pool[i] for i in rng.integers(len(pool), size=_CHILDREN)]
            pool = list(dict.fromkeys([*pool, *sampler.mutate(parents, rng), *sampler.cross(parents, others, rng)]))
        return pool

    def _top(self, networks: list[Architecture], effects: Floats, count: int) -> list[Architecture]:
        values = self.belief.rows(networks) @ effects
        return [networks[i] for i in np.argsort(-values, kind="stable")[:count]]
