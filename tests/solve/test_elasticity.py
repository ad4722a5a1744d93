"""Elasticity-scaling against answers worked out by hand, and the promise that no room for a channel is left."""

import numpy as np
import pytest

from snugnet.errors import BadProblem
from snugnet.solve.elasticity import WidthCosts, WidthProblem, scale_widths
from snugnet.solve.problem import Outcome

RANGES = ((32, 64), (64, 128), (100, 260))


def linear(limit, per_channel=(1.0, 1.0, 1.0), ranges=RANGES, stages=(1, 2, 3), base=0.0, **more):
    """A channel of layer l costs per_channel[l]."""
    layers = tuple(price * np.arange(low, high + 1) for price, (low, high) in zip(per_channel, ranges))
    cost = WidthCosts(name="latency", base=base, layers=layers, limit=limit, **more)
    return WidthProblem(
        stages=stages, low=tuple(r[0] for r in ranges), high=tuple(r[1] for r in ranges), resources=(cost,)
    )


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (274, (48, 96, 130)),  # at the target: nothing is done
        (286, (50, 100, 136)),  # two steps of 1, 2, 3 channels, and not a channel of room
        (290, (50, 102, 138)),  # two common steps, then two of the stages from the second on (1 and 1 channels)
        (291, (50, 102, 139)),  # and one of the third alone
        (270, (47, 95, 128)),  # shrunk to the first point under it (47, 94, 127), then expanded by 1 and 1
        (268.5, (47, 94, 127)),
        (268, (46, 95, 127)),  # 268 is not under the target: shrunk on to (46, 92, 124) = 262, then 1 and 1 three times
    ],
)
def test_golden_answers_of_a_linear_table(target, expected):
    result = scale_widths(linear(target), (48, 96, 130))
    assert result.widths == expected
    assert result.fits and result.usage == pytest.approx(sum(expected) / target)


def test_steps_are_rounded_half_to_even_and_fixed_for_the_pass():
    # 48, 120 and 168: steps 1, 2 (of 2.5) and 4 (of 3.5). Four common steps of 7, and no single channel fits.
    ranges = ((32, 64), (64, 240), (100, 400))
    problem = linear(48 + 120 + 168 + 28, ranges=ranges)
    assert scale_widths(problem, (48, 120, 168)).widths == (52, 128, 184)


def test_a_layer_at_its_bound_stays_and_the_others_go_on():
    ranges = ((48, 49), (64, 128), (100, 260))
    result = scale_widths(linear(274 + 1 + 4 * 2 + 4 * 3, ranges=ranges), (48, 96, 130))
    assert result.widths == (49, 104, 142)


def test_the_last_step_to_the_bounds_is_not_dropped():
    result = scale_widths(linear(1e6), (48, 96, 130))
    assert result.widths == (64, 128, 260) and result.fits
    assert result.status.outcome is Outcome.FEASIBLE and "upper bound" in result.status.message


def test_what_no_width_can_reach_is_said():
    result = scale_widths(linear(150), (48, 96, 130))
    assert result.widths == (32, 64, 100) and not result.fits
    assert result.status.outcome is Outcome.INFEASIBLE and "lower bounds" in result.status.message
    exactly = scale_widths(linear(196), (48, 96, 130))
    assert exactly.widths == (32, 64, 100) and exactly.fits and exactly.usage == 1.0


def test_single_channels_fill_what_the_rule_leaves():
    # The later stages are at their maximum: passes move the first layer by one common step of 1 channel each only where
    # all three could; channels of 5, 1 and 1, room for 7 more.
    problem = linear(5 * 50 + 128 + 260 + 7, (5.0, 1.0, 1.0))
    assert scale_widths(problem, (50, 128, 260)).widths == (51, 128, 260)


def test_several_limits_hold_together():
    problem = linear(286)
    other = WidthCosts(
        name="params",
        base=0.0,
        layers=tuple(2.0 * np.arange(low, high + 1) for low, high in RANGES),
        limit=2 * 270.0,
    )
    both = WidthProblem(
        stages=problem.stages, low=problem.low, high=problem.high, resources=(*problem.resources, other)
    )
    result = scale_widths(both, (48, 96, 130))
    assert result.widths == scale_widths(linear(270), (48, 96, 130)).widths
    assert both.cost(result.widths) == {"latency": 270.0, "params": 540.0}


def test_the_largest_part_counts_for_peak_memory():
    result = scale_widths(linear(140, largest=True), (48, 96, 130))
    assert max(result.widths) == 140 and result.widths[:2] == (64, 128)


def test_random_tables_leave_less_than_the_cheapest_channel():
    rng = np.random.default_rng(3)
    for _ in range(200):
        count = int(rng.integers(1, 8))
        low = rng.integers(8, 60, count)
        high = low * 2
        layers = tuple(np.cumsum(rng.random(b - a + 1) ** 4) + 0.1 for a, b in zip(low, high))
        ends = [sum(row[end] for row in layers) for end in (0, -1)]
        target = float(rng.uniform(*ends))
        cost = WidthCosts(name="latency", base=0.0, layers=layers, limit=target)
        stages = tuple(sorted(rng.integers(0, 4, count).tolist()))
        problem = WidthProblem(stages=stages, low=tuple(low), high=tuple(high), resources=(cost,))
        result = scale_widths(problem, tuple(int(rng.integers(a, b + 1)) for a, b in zip(low, high)))
        room = target * (1 - result.usage)
        steps = [row[w - a + 1] - row[w - a] for row, a, b, w in zip(layers, low, high, result.widths) if w < b]
        assert result.fits and room < min(steps) + 1e-9


def test_tables_that_fall_and_widths_outside_are_refused():
    falling = WidthCosts(name="latency", base=0.0, layers=(np.array([2.0, 1.0]),), limit=1.0)
    with pytest.raises(BadProblem, match="rise with the width"):
        WidthProblem(stages=(0,), low=(4,), high=(5,), resources=(falling,))
    with pytest.raises(BadProblem, match="within its bounds"):
        scale_widths(linear(286), (10, 96, 130))
