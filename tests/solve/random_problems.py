"""Random small problems, made to be nasty: ties, zero and equal costs, limits exactly at or just below a network."""

import numpy as np
from hypothesis import strategies as st

from brute_force import count_choices, enumerate_choices
from snugnet.solve import Choice, Group, Objective, Point, Problem, ResourceCosts

COSTS = {
    "small whole numbers": lambda rng, n: rng.integers(0, 4, n).astype(float),
    "all equal": lambda rng, n: np.full(n, 0.7),
    "zeros": lambda rng, n: np.zeros(n),
    "tenths": lambda rng, n: rng.integers(1, 9, n) / 10,
    "continuous": lambda rng, n: rng.uniform(0.1, 3.0, n),
    "large": lambda rng, n: rng.uniform(1e6, 3e7, n).round(),
}
EFFECTS = {
    "small whole numbers": lambda rng, n: rng.integers(-2, 3, n).astype(float),
    "continuous": lambda rng, n: rng.normal(size=n),
    "nothing": lambda rng, n: np.zeros(n),
}
LIMITS = ("at a network", "at a network", "just below a network", "just below the cheapest", "between", "loose")


@st.composite
def cases(draw, *, budgets=st.integers(0, 3), most=60):
    """(problem, values, rng): at most `most` choices."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    groups = []
    for g in range(draw(st.integers(1, 3))):
        options = tuple(draw(st.lists(st.integers(1, 3), min_size=1, max_size=3)))
        depths = draw(st.lists(st.integers(0, len(options)), min_size=1, max_size=3, unique=True))
        groups.append(Group(name=f"g{g}", options=options, depths=tuple(depths)))
    while count_choices(Problem(groups=tuple(groups), resources=())) > most:
        groups.pop()  # a single group never has more than 39 choices
    sizes = [n for group in groups for n in group.options]
    resources = []
    for k in range(draw(budgets)):
        kind = COSTS[draw(st.sampled_from(sorted(COSTS)))]
        base = draw(st.sampled_from([0.0, 1.0, 2.5]))
        resources.append(ResourceCosts(name=f"r{k}", unit="ms", base=base, costs=tuple(kind(rng, n) for n in sizes)))
    problem = Problem(groups=tuple(groups), resources=tuple(resources))
    network = list(enumerate_choices(problem))
    network = network[int(rng.integers(len(network)))]
    limits = {r.name: _limit(problem, r.name, network, draw(st.sampled_from(LIMITS)), rng) for r in resources}
    effect = EFFECTS[draw(st.sampled_from(sorted(EFFECTS)))]
    values = Objective(tuple(effect(rng, n) for n in sizes), tuple(effect(rng, len(g.depths)) for g in problem.groups))
    return problem.with_limits(limits), values, rng


def _limit(problem: Problem, name: str, network: Choice, kind: str, rng: np.random.Generator) -> float:
    low, high = (problem.cost(c)[name] for c in (problem.cheapest(name), problem.dearest(name)))
    return {
        "at a network": problem.cost(network)[name],
        "just below a network": problem.cost(network)[name] * (1 - 1e-7),
        "just below the cheapest": low * (1 - 1e-7),
        "between": low + rng.uniform() * (high - low),
        "loose": 2 * high,
    }[kind]


def random_point(problem: Problem, rng: np.random.Generator) -> Point:
    """Some one-hot, some spread out: idle slots and ties included."""

    def vector(n):
        return np.eye(n)[rng.integers(n)] if rng.uniform() < 0.4 else rng.dirichlet(np.ones(n))

    return Point(tuple(vector(n) for n in problem.slot_sizes), tuple(vector(n) for n in problem.depth_sizes))


def hardcore_shaped(
    budgets: int, seed: int, *, share: float = 0.45, slots: int = 20, options: int = 12, groups: int = 5
) -> tuple[Problem, Objective]:
    """20 slots x 12 options in 5 groups of depth 2-4; limits `share` of the way from the cheapest to the dearest."""
    rng = np.random.default_rng(seed)
    size = np.sort(rng.uniform(1, 3, (slots, options)), axis=1) * rng.uniform(0.5, 2, (slots, 1))
    costs = size * rng.uniform(0.8, 1.2, (budgets, slots, options))
    per_group = slots // groups
    problem = Problem(
        groups=tuple(Group(name=f"stage{g}", options=(options,) * per_group, depths=(2, 3, 4)) for g in range(groups)),
        resources=tuple(
            ResourceCosts(name=f"r{k}", unit="ms", base=4.0, costs=tuple(costs[k])) for k in range(budgets)
        ),
    )
    limits = {}
    for name in problem.names:
        low, high = (problem.cost(c)[name] for c in (problem.cheapest(name), problem.dearest(name)))
        limits[name] = low + share * (high - low)
    effect = np.log(size) * rng.uniform(0.5, 1.5, (slots, 1)) + rng.normal(0, 0.05, (slots, options))
    return problem.with_limits(limits), Objective(tuple(effect), tuple(rng.normal(0, 0.1, 3) for _ in range(groups)))


def plain_problem(costs, limits):
    """Slots without depths: `costs["latency"][s][c]`, every slot always runs."""
    arrays = {name: tuple(np.asarray(row, float) for row in rows) for name, rows in costs.items()}
    resources = [ResourceCosts(name=name, unit="units", base=0.0, costs=rows) for name, rows in arrays.items()]
    sizes = tuple(len(row) for row in resources[0].costs)
    group = Group(name="slots", options=sizes, depths=(len(sizes),))
    return Problem(groups=(group,), resources=tuple(resources), limits=dict(limits))
