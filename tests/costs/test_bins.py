"""Bins of cost: counts against enumeration, proposals that hit, redraws that end, files that resume."""

import json

import numpy as np
import pytest

from snugnet.costs.bins import BinSampler, CostBins, bin_architectures, bin_number, load_bins
from snugnet.costs.table import exact_table
from snugnet.costs.vectorised import CostLookup
from snugnet.errors import BadInput, DamagedFile
from snugnet.seeds import Seed
from snugnet.space import Head, SearchSpace, Stage, Stem, preset
from snugnet.space.gene_columns import GeneColumns
from snugnet.space.sampling import sample_many

SMALL = SearchSpace(
    name="small",
    classes=4,
    resolutions=(8, 12),
    stem=Stem(widths=(8, 16), stride=1),
    stages=(Stage.of((8, 16), depth=(1, 3), kernels=(3, 5), expands=(2, 3), per="stage"),),
    head=Head(kind="conv-pool", widths=(16,)),
)


def lookup_of(space, resource="macs"):
    table = exact_table(space, resource)
    return CostLookup(space, table.of_part, table.combine)


def binned(space=SMALL, rows=2000, width=None, **options):
    lookup = lookup_of(space)
    return lookup, bin_architectures(
        space, lookup, CostBins.empty(space, lookup, "macs", width), rows=rows, seed=Seed(3), **options
    )


def test_nearest_multiple():
    assert bin_number(np.array([12.4e6, 12.5e6, 37.4e6, 37.5e6]), 25e6).tolist() == [0, 1, 1, 2]


def test_counts_are_those_of_the_architectures():
    lookup, bins = binned(rows=700)
    genes = sample_many(SMALL, 50_000, Seed(3).fold_in("chunk", 0).numpy()).take(slice(0, 700))
    costs, rows, columns = lookup(genes), GeneColumns(SMALL).rows(genes), GeneColumns(SMALL)
    numbers = bin_number(costs, bins.width) - bins.first
    assert bins.sizes(columns).tolist() == np.bincount(numbers, minlength=len(bins.counts)).tolist()
    chosen = int(np.bincount(numbers).argmax())
    shares = bins.counts[chosen]
    start = int(columns.sizes[:2].sum())  # the stage's width
    assert shares[start] == (rows[numbers == chosen, 2] == 0).sum()


def test_targets_follow_the_prior_and_candidates_hit_them():
    space = preset("attentive")
    lookup, bins = binned(space, rows=60_000, width=25e6)
    sampler, rng = BinSampler(space, lookup, bins), np.random.default_rng(0)
    targets = [sampler.target(rng) for _ in range(2000)]
    drawn = np.bincount(targets, minlength=len(sampler.filled)) / 2000
    assert np.abs(drawn - sampler.prior).max() < 0.03
    hits = trials = 0
    for target in targets[:100]:
        genes, tried = sampler.draw(target, rng)
        hits += abs(float(lookup(genes)[0]) - sampler.cost(target)) <= 12.5e6
        trials += tried
    assert hits >= 97 and trials / 100 < 25


def test_redraws_are_bounded_and_the_last_draw_is_taken():
    lookup, bins = binned(width=1e3)  # so narrow that most proposals miss
    sampler, rng = BinSampler(SMALL, lookup, bins), np.random.default_rng(0)
    tried = [sampler.draw(target, rng, redraws=5)[1] for target in range(len(sampler.filled))]
    assert max(tried) == 5 and len(sampler.candidates(0, 3, rng, redraws=1)) == 3


def test_killed_and_asked_again_it_counts_the_same(tmp_path):
    path = tmp_path / "bins.json"
    whole = binned(rows=120_000)[1]
    binned(rows=70_000, out=path)  # ends inside a chunk, as a kill would
    assert (binned(rows=120_000, out=path)[1].counts == whole.counts).all()
    assert json.loads(path.read_text())["rows"] == 120_000
    with pytest.raises(BadInput, match="same space, costs, width"):
        binned(rows=120_000, out=path, width=1e5)
    path.write_text(path.read_text().replace('"rows": 120000', '"rows": 100000').replace('"rows":120000', '"rows":1'))
    with pytest.raises(DamagedFile):
        binned(rows=120_000, out=path)


def test_any_resource_and_free_widths_have_bins():
    for name, resource in (("attentive-lowres", "params"), ("attentive-lowres", "memory"), ("tfnas-lowres", "macs")):
        space = preset(name)
        lookup = lookup_of(space, resource)
        empty = CostBins.empty(space, lookup, resource)
        bins = bin_architectures(space, lookup, empty, rows=3000, seed=Seed(0))
        sampler, rng = BinSampler(space, lookup, bins), np.random.default_rng(0)
        networks = sampler.candidates(sampler.target(rng), 4, rng)
        costs = lookup(GeneColumns(space).layout.encode(networks))
        assert np.isfinite(costs).all() and bins.sizes(sampler.columns).sum() == 3000


def test_the_verb_counts_goes_on_and_training_takes_its_file(tmp_path, snug):
    from snugnet.nets import Supernet
    from snugnet.training import methods, train
    from standin import toy_data

    path, space = tmp_path / "bins.json", "attentive-thin-lowres"
    words = ("bins", "--space", space, "--classes", "4", "--resolution", "8", "--out", str(path), "--json")
    for rows in (2000, 3000):
        code, out, err = snug(*words, "--rows", str(rows))
        assert code == 0, err
        assert json.loads(out)["rows"] == rows and json.loads(out)["bins"] > 20
    mine = preset(space, classes=4, resolution=8).with_resolution(8)
    bins = load_bins(path, mine, lookup_of(mine), "macs")
    net = Supernet(mine)
    method = methods.attentive(epochs=1, warmup_epochs=0, auto_augment=None, bins=str(path))
    train(net, toy_data(), method, out=tmp_path / "run", batch=64, evaluator=None, checkpoint_seconds=0, device="cpu")
    assert bins.sizes(GeneColumns(mine)).sum() == 3000
    with pytest.raises(BadInput, match="by the same costs"):
        load_bins(path, SMALL, lookup_of(SMALL), "macs")
    with pytest.raises(BadInput, match="its own bin_width"):
        methods.attentive(bins=str(path), bin_width="25MMACs").check()
    code, _, err = snug(*words, "--resource", "latency")
    assert code == 2 and "need a table" in err
