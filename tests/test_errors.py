"""A message is one line, whatever the values in it hold."""

import numpy as np
import pytest

from snugnet.errors import BadInput, UnknownName


class Talkative:
    def __repr__(self) -> str:
        return "two\nlines"


@pytest.mark.parametrize(
    "value", ["a\nb", "a\r\nb", "a b\nc", "a\u2028b", "\n", np.zeros((3, 3)), Talkative(), "x" * 400 + "\n"]
)
def test_values_with_line_breaks_stay_on_one_line(value):
    message = str(BadInput("it must be good", value=value, remedy="Take another."))
    assert len(message.splitlines()) == 1
    assert message.startswith("it must be good, got ")
    assert message.endswith(". Take another.")


def test_rules_and_remedies_with_line_breaks_too():
    error = BadInput("file 'a\nb' must exist", value=1, remedy="Try\n  another.")
    assert str(error) == "file 'a b' must exist, got 1. Try another."
    assert len(str(UnknownName("a space", "hard\ncore", ["hardcore"])).splitlines()) == 1
