"""Random architectures counted into bins of cost: the prior over targets, and a proposal for every target.

AttentiveNAS trains networks of a target cost. Drawing uniformly until one has that cost takes tens of thousands of trials
at the ends of a space; so a large number of random architectures is counted once. How many fall into a bin gives the prior
over targets; inside a bin the share of every option of every gene gives independent marginals to draw from, which hit the
bin after a dozen trials. Counts are all that either needs: no architecture is stored, and counts of further ones are added.

Any cost table serves: MACs, parameters, measured latency. A bin is the nearest multiple of its width.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import numpy as np

from snugnet.costs.table import space_id
from snugnet.costs.vectorised import CostLookup
from snugnet.errors import BadInput, DamagedFile
from snugnet.progress import NullProgress, Progress
from snugnet.seeds import Seed
from snugnet.space.architecture import Architecture
from snugnet.space.gene_columns import GeneColumns, Rows
from snugnet.space.layout import FloatArray, Genes, IntArray
from snugnet.space.sampling import sample_many
from snugnet.space.space import SearchSpace
from snugnet.store import fingerprint, read_json, write_json

BINS = 70  # of a range, where no width is given; AttentiveNAS's 25 M MACs make as many
CHUNK = 50_000  # architectures that are drawn from one seed, and counted between two saves
_AT_ONCE = 16  # draws that are looked up together


@final
@dataclass(frozen=True, kw_only=True)
class CostBins:
    """counts[b, j]: how many architectures of bin `first + b` have option j, over all options of all genes."""

    resource: str
    width: float  # in the resource's base unit
    first: int  # the bin that the first row stands for
    counts: IntArray

    @classmethod
    def empty(cls, space: SearchSpace, lookup: CostLookup, resource: str, width: float | None = None) -> CostBins:
        """No architectures yet, and a row for every bin that the space can reach."""
        low, high = lookup.bounds()
        if width is None:
            width = max(high - low, abs(high) * 1e-6, 1e-12) / BINS
        if not width > 0:
            raise BadInput("a bin's width must be positive", value=width, remedy="Try 25MMACs.")
        first, last = bin_number(np.array([low, high]), width).tolist()
        if last - first > 100_000:
            raise BadInput("there must be at most 100000 bins", value=last - first, remedy="Take wider ones.")
        options = int(GeneColumns(space).sizes.sum())
        counts = np.zeros((last - first + 1, options), dtype=np.int64)
        return cls(resource=resource, width=width, first=first, counts=counts)

    def with_counts(self, counts: IntArray) -> CostBins:
        return replace(self, counts=counts)

    def sizes(self, columns: GeneColumns) -> IntArray:
        """[bins] architectures in each: every one has an option of the first gene."""
        totals: IntArray = self.counts[:, : columns.sizes[0]].sum(1)
        return totals


def bin_number(costs: FloatArray, width: float) -> IntArray:
    """The number of the nearest multiple of `width`; halves go up."""
    numbers: IntArray = np.floor(costs / width + 0.5).astype(np.int64)
    return numbers


def bin_architectures(
    space: SearchSpace,
    lookup: CostLookup,
    bins: CostBins,
    *,
    rows: int,
    seed: Seed,
    out: str | Path | None = None,
    progress: Progress | None = None,
) -> CostBins:
    """Count `rows` uniform random architectures of `space` into `bins` (made by `CostBins.empty`).

    With `out` the counts are kept there, chunk by chunk: killed, it goes on; asked for more rows, it adds them."""
    if rows < 1:
        raise BadInput("rows must be at least 1", value=rows, remedy="The paper's table has a million.")
    columns, shown = GeneColumns(space), progress or NullProgress()
    path = None if out is None else Path(out)
    identity = {"of": _costs_id(space, lookup, bins.resource), "seed": seed.number()}
    done = 0
    if path is not None and path.exists():
        done, bins = _continued(path, identity, bins)
    offsets = np.concatenate([[0], np.cumsum(columns.sizes)[:-1]])
    shown.start("counting architectures", rows)
    try:
        while done < rows:
            size = min(CHUNK - done % CHUNK, rows - done)
            # A chunk is drawn whole, so that where a run was killed or how many were asked for changes nothing.
            genes = sample_many(space, CHUNK, seed.fold_in("chunk", done // CHUNK).numpy())
            part = genes.take(slice(done % CHUNK, done % CHUNK + size))
            bins = bins.with_counts(bins.counts + _counted(columns.rows(part), lookup(part), bins, offsets))
            done += size
            if path is not None:
                write_json(path, _file(identity, done, bins))
            shown.update(done)
    finally:
        shown.stop()
    return bins


def _counted(rows: Rows, costs: FloatArray, bins: CostBins, offsets: IntArray) -> IntArray:
    numbers, options = bin_number(costs, bins.width) - bins.first, bins.counts.shape[1]
    flat = numbers[:, None] * options + offsets + rows
    counted: IntArray = np.bincount(flat.ravel(), minlength=bins.counts.size).reshape(bins.counts.shape)
    return counted


def load_bins(path: str | Path, space: SearchSpace, lookup: CostLookup, resource: str) -> CostBins:
    """The counts that `bin_architectures` kept at `path`, which must be of this space's networks by these costs."""
    value = _read(Path(path))
    if value["of"] != _costs_id(space, lookup, resource):
        raise BadInput(
            f"{path} must hold bins of {space.name!r} by the same costs of {resource}",
            value=f"{value['resource']} in bins of {value['width']:g}",
            remedy="Make them anew with `snugnet bins`.",
        )
    counts = np.array(value["counts"], dtype=np.int64)
    return CostBins(resource=resource, width=float(value["width"]), first=int(value["first"]), counts=counts)


def _costs_id(space: SearchSpace, lookup: CostLookup, resource: str) -> str:
    return fingerprint([space_id(space), resource, lookup.identity()])


def _file(identity: dict[str, Any], done: int, bins: CostBins) -> dict[str, Any]:
    value = {
        "format": "snugnet-bins-2",
        **identity,
        "resource": bins.resource,
        "width": bins.width,
        "first": bins.first,
        "rows": done,
        "counts": bins.counts.tolist(),
    }
    return {**value, "check": fingerprint(value)}


def _read(path: Path) -> dict[str, Any]:
    value = read_json(path)
    check = value.pop("check", None) if isinstance(value, dict) else None
    if check != fingerprint(value) or value.get("format") != "snugnet-bins-2":
        raise DamagedFile(
            f"{path} must hold bins as they were written", remedy="Delete it; the architectures are counted anew."
        )
    return dict(value)


def _continued(path: Path, identity: dict[str, Any], bins: CostBins) -> tuple[int, CostBins]:
    value = _read(path)
    wanted = {**identity, "width": bins.width, "first": bins.first}
    if any(value[name] != wanted[name] for name in wanted):
        raise BadInput(
            f"{path} must hold bins of the same space, costs, width and seed",
            value=f"{value['resource']} in bins of {value['width']:g}",
            remedy="Take another file for these.",
        )
    return int(value["rows"]), bins.with_counts(np.array(value["counts"], dtype=np.int64))


@final
class BinSampler:
    """Draws targets by the prior, and architectures for a target by its proposal."""

    def __init__(self, space: SearchSpace, lookup: CostLookup, bins: CostBins) -> None:
        self.columns, self._lookup, self.bins = GeneColumns(space), lookup, bins
        sizes = bins.sizes(self.columns)
        self.filled: IntArray = np.flatnonzero(sizes)
        if not len(self.filled):
            raise BadInput("bins must hold architectures", value=0, remedy="Count some with bin_architectures.")
        self.prior: FloatArray = sizes[self.filled] / sizes.sum()
        self._free = any(stage.has_expand_range for stage in space.stages)
        most = int(self.columns.sizes.max())
        self._up_to = np.full((len(self.filled), len(self.columns.genes), most), 2.0)  # beyond every uniform number
        start = 0
        for j, count in enumerate(self.columns.sizes):
            shares = bins.counts[self.filled, start : start + count] / sizes[self.filled, None]
            self._up_to[:, j, : count - 1] = np.cumsum(shares, axis=1)[:, :-1]
            start += int(count)

    def target(self, rng: np.random.Generator) -> int:
        """The number (among the filled ones) of a bin, drawn by the prior."""
        return int(rng.choice(len(self.filled), p=self.prior))

    def cost(self, target: int) -> float:
        """The cost a target stands for."""
        return float((self.filled[target] + self.bins.first) * self.bins.width)

    def candidates(self, target: int, count: int, rng: np.random.Generator, redraws: int = 101) -> list[Architecture]:
        """`count` networks for a target, each redrawn until its bin is the target's; the last of `redraws` otherwise."""
        drawn = [self.draw(target, rng, redraws)[0] for _ in range(count)]
        return [network for genes in drawn for network in self.columns.layout.decode(genes)]

    def draw(self, target: int, rng: np.random.Generator, redraws: int = 101) -> tuple[Genes, int]:
        """One architecture and how many draws it took."""
        goal, tried = self.filled[target] + self.bins.first, 0
        while True:
            genes = self.propose(target, min(_AT_ONCE, redraws - tried), rng)
            hits = np.flatnonzero(bin_number(self._lookup(genes), self.bins.width) == goal)
            if len(hits):
                return genes.take(hits[:1]), tried + int(hits[0]) + 1
            tried += len(genes)
            if tried >= redraws:
                return genes.take(slice(len(genes) - 1, len(genes))), tried

    def propose(self, target: int, count: int, rng: np.random.Generator) -> Genes:
        """Architectures of a target's marginals, whatever their cost; free middle widths uniform in their range."""
        drawn = rng.random((count, len(self.columns.genes), 1))
        rows: Rows = (drawn >= self._up_to[target]).sum(-1)
        return self.columns.genes_of(rows, rng.random((count, *self.columns.layout.shape)) if self._free else None)
