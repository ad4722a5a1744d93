"""Instant search: learn once what every choice is worth, then any budget is one integer programme.

The worths (`worths`) are made once for a super-network and saved with the run; a further budget or device then costs a
programme of milliseconds and the real evaluation of its best few candidates. Networks that were evaluated as evidence
are candidates too wherever they fit.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, final

from snugnet.errors import BadInput, DamagedFile
from snugnet.searching.choice_effects import ChoiceEffects, corrected, from_paths
from snugnet.searching.context import Outcome, SearchMethod, Task
from snugnet.seeds import Seed
from snugnet.solve import best_choices
from snugnet.space.architecture import Architecture
from snugnet.space.sampling import largest, sample, smallest
from snugnet.store import fingerprint, read_memo, write_memo

_BATCH = 16  # networks evaluated between two looks at the prediction


@final
@dataclass(frozen=True, kw_only=True)
class Instant(SearchMethod):
    """`paths` per validation image, `evidence` networks at first and at most, `candidates` evaluated for each budget."""

    name = "instant"
    paths: int = 12
    images: int | None = 4000
    evidence: int = 32
    most_evidence: int = 80
    enough: float = 0.85  # correlation with left-out networks at which evidence stops
    candidates: int = 5

    def run(self, task: Task) -> Outcome:
        if min(self.paths, self.evidence) < 4 or self.candidates < 1:
            raise BadInput(
                "paths and evidence must be at least 4 and candidates at least 1",
                value=(self.paths, self.evidence, self.candidates),
                remedy="Try 12, 32 and 5.",
            )
        inside = task.context.problem_set
        began = time.monotonic()
        effects, known, images = self.learn(task)
        learnt = time.monotonic()
        solved = best_choices(inside.problem, effects.values(inside), count=self.candidates)
        solve_seconds = time.monotonic() - learnt
        tried = [inside.architecture(choice) for choice in solved.found]
        tried += [a for a in known if inside.fits(a) and a not in tried]
        best = task.evaluator.best(tried, task.progress)
        trace = [{"network": str(a), **task.evaluator(a).to_json()} for a in tried]
        details: dict[str, Any] = {
            "worths": effects.to_json(),
            "solve_seconds": solve_seconds,
            "learn_seconds": learnt - began,
            "gap": solved.stats.get("gap"),
            "prediction": str(effects.left_out),
            "prior": str(effects.prior),
        }
        return Outcome(architecture=best, images=images, trace=trace, details=details)

    def begin(self, task: Task) -> None:
        self.learn(task)

    def learn(self, task: Task) -> tuple[ChoiceEffects, list[Architecture], int]:
        """The effects and the networks that were evaluated for them, from the run if it has them, else learnt now; and
        the images that took random paths for it now."""
        path = None if task.folder is None else task.folder / "worths.json"
        identity = self._identity(task)
        networks = self._evidence(task)
        try:
            if (saved := read_memo(path, identity)) is not None:
                return ChoiceEffects.from_json(saved["worths"]), networks[: int(saved["evidence"])], 0
        except DamagedFile as error:
            rule, remedy = f"{path} must be as it was written", "Delete it: the next search learns it anew."
            raise DamagedFile(f"{rule} ({error.rule})", remedy=remedy) from error
        task.progress.start("learning what choices are worth", self.most_evidence)
        raw = from_paths(task.supernet, task.evaluator.cache, paths=self.paths, limit=self.images, seed=task.seed)
        values: list[float] = []
        effects = raw
        for number, architecture in enumerate(networks, 1):
            if number == 1 or (number > self.evidence and (number - self.evidence) % _BATCH == 1):
                until = self.evidence if number == 1 else number - 1 + _BATCH
                task.evaluator.prefetch(networks[number - 1 : until])
            values.append(task.evaluator(architecture).score)
            task.progress.update(number, "" if effects.left_out is None else str(effects.left_out))
            if number >= self.evidence and (number - self.evidence) % _BATCH == 0:
                effects = corrected(raw, task.supernet.space, networks[:number], values)
                assert effects.left_out is not None
                if effects.left_out.correlation - effects.left_out.error >= self.enough:
                    break
        else:
            effects = corrected(raw, task.supernet.space, networks, values)
        task.progress.stop()
        write_memo(path, identity, {"evidence": len(values), "worths": effects.to_json()})
        return effects, networks[: len(values)], raw.images

    def _evidence(self, task: Task) -> list[Architecture]:
        """Both ends of the space and random networks between them; the same for every budget."""
        space, rng = task.supernet.space, Seed(task.seed).fold_in("evidence").numpy()
        found = {smallest(space): None, largest(space): None}
        for _ in range(50 * self.most_evidence):
            if len(found) >= min(self.most_evidence, space.count):
                break
            found[sample(space, rng)] = None
        return list(found)

    def _identity(self, task: Task) -> str:
        return fingerprint(["effects/3", self.describe(), task.seed, task.evaluator.identity()])
