"""When progress speaks: not for quick work, from the second second on, and now and then after that."""

import pytest

from snugnet import progress


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_plain_lines_off_a_terminal(clock, capsys):
    shown = progress.RichProgress()
    shown.start("work", 30)
    spoke = []
    for second in range(1, 31):
        clock[0] = 100.0 + second
        shown.update(second, "fine")
        if capsys.readouterr().err:
            spoke.append(second)
    shown.stop()
    assert spoke == [2, 12, 22]
    shown.start("quick work", 2)
    clock[0] += 1.9
    shown.update(2)
    shown.stop()
    assert capsys.readouterr().err == ""


def test_a_line_says_how_far_and_how_long_still(clock, capsys):
    shown = progress.RichProgress()
    shown.start("work", 10)
    clock[0] += 4
    shown.update(2, "loss 0.5")
    assert capsys.readouterr().err == "work:  20%, about 16 s left; loss 0.5\n"
