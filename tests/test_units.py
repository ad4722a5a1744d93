import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snugnet import units
from snugnet.errors import BadUnit, SnugnetError, UnknownName


@pytest.mark.parametrize(
    ("text", "resource", "value"),
    [
        ("40ms", "latency", 40.0),
        ("0.04s", "latency", 40.0),
        ("40 ms", "latency", 40.0),
        ("250us", "latency", 0.25),
        ("300MMACs", "macs", 3e8),
        ("600MFLOPs", "macs", 3e8),
        ("0.3GMACs", "macs", 3e8),
        ("6M", "params", 6e6),
        ("6Mparams", "params", 6e6),
        ("8MiB", "memory", 8 * 2**20),
        ("8MB", "model_size", 8e6),
        ("1e1ms", "latency", 10.0),
    ],
)
def test_quantities_are_read(text, resource, value):
    assert units.parse(text, resource) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize(
    ("text", "resource"),
    [
        ("40", "latency"),
        (40, "latency"),
        (40.0, "latency"),
        ("40MB", "latency"),
        ("300M", "macs"),
        ("ms", "latency"),
        ("-3ms", "latency"),
        ("0ms", "latency"),
        ("nanms", "latency"),
        ("infms", "latency"),
        ("1e999ms", "latency"),
        ("", "latency"),
        ("6MiB", "params"),
        ("40 m s", "latency"),
    ],
)
def test_bare_numbers_and_wrong_units_say_what_was_expected(text, resource):
    with pytest.raises(BadUnit) as caught:
        units.parse(text, resource)
    assert units.RESOURCES[resource].example in str(caught.value)


def test_unknown_resource_offers_the_nearest():
    with pytest.raises(UnknownName, match="Did you mean 'latency'"):
        units.parse("4ms", "latencyy")


def test_latency_on_a_named_device_is_latency():
    assert units.parse("4ms", "latency@phone") == 4.0


@given(st.sampled_from(sorted(units.RESOURCES)), st.floats(1e-3, 1e13))
def test_what_is_shown_is_read_back(resource, value):
    if resource != "latency":
        value = max(1.0, value)
    assert math.isclose(units.parse(units.show(value, resource), resource), value, rel_tol=1e-3)


def test_percentages():
    assert units.percentage("60%") == 0.6
    assert units.percentage("60ms") is None
    with pytest.raises(BadUnit):
        units.percentage("0%")


def test_every_error_carries_rule_value_remedy():
    try:
        units.parse("40", "latency")
    except SnugnetError as error:
        assert error.rule
        assert error.value == "40"
        assert error.remedy
        assert "\n" not in str(error)


@pytest.mark.parametrize("name", units.RESOURCES)
@given(value=st.floats(1e-3, 1e15))
def test_what_is_written_is_read_again(name, value):
    assert units.parse(units.write(value, f"{name}@phone", 12), name) == pytest.approx(value, rel=1e-11)


def test_a_former_name_is_answered_with_the_new_one():
    with pytest.raises(SnugnetError, match="'model_size'"):
        units.resource("weights")
