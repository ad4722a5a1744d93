"""Timing logic on machines of known noise. The real clock is never looked at."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from snugnet.devices.timing import TimingSettings, intervals, low_mean, time_subjects
from snugnet.errors import BadInput, DamagedFile, FileTrouble

sys.path.insert(0, str(Path(__file__).parent))
from noisy_machine import NoisyMachine, drift, neighbour, slow_phase

COSTS = {f"block {i}": float(cost) for i, cost in enumerate(np.geomspace(0.02, 30.0, 25))}


@pytest.mark.parametrize(
    ("disturbance", "spikes"),
    [(lambda t: 1.0, 0.0), (lambda t: 1.0, 0.05), (drift, 0.02), (slow_phase, 0.02), (neighbour, 0.02)],
    ids=["quiet", "spikes", "drift", "slow phase", "neighbour"],
)
def test_costs_are_recovered_within_two_percent(disturbance, spikes):
    machine = NoisyMachine(disturbance, spikes=spikes, seed=1)
    found = time_subjects(COSTS, machine.stopwatch, TimingSettings(seconds=100), now=machine.now)
    for name, cost in COSTS.items():
        estimate = found.estimates[name]
        assert abs(estimate.ms / cost - 1) < 0.02, (name, estimate.ms, cost, found.message)
        assert estimate.low <= estimate.ms <= estimate.high
        assert estimate.ms <= estimate.median <= estimate.p90


def test_one_after_another_would_not_recover_them():
    """The naive way on the same machine, so that the test above is known to test something."""
    machine = NoisyMachine(slow_phase, seed=1)
    naive = {name: machine.stopwatch(cost, 200) for name, cost in COSTS.items()}
    assert max(abs(naive[name] / cost - 1) for name, cost in COSTS.items()) > 0.3


def test_it_stops_early_on_a_quiet_machine_and_says_so():
    machine = NoisyMachine()
    found = time_subjects(COSTS, machine.stopwatch, TimingSettings(seconds=1000), now=machine.now)
    assert found.score == "tight"
    assert found.passes == 30
    assert "as wanted" in found.message


def test_it_stops_when_the_time_is_up():
    machine = NoisyMachine(jitter=0.05)
    found = time_subjects(
        COSTS, machine.stopwatch, TimingSettings(seconds=20, tolerance=1e-5, most_passes=10**6), now=machine.now
    )
    assert found.score == "noisy"
    assert 20 <= found.seconds < 21


def test_a_hopeless_machine_is_called_too_noisy_with_a_remedy():
    wild = np.random.default_rng(3)
    machine = NoisyMachine(lambda t: float(np.exp(wild.normal(1.0, 0.8))))
    found = time_subjects(COSTS, machine.stopwatch, TimingSettings(seconds=15, least_passes=5), now=machine.now)
    assert found.score == "noisy"
    assert "too noisy" in found.message
    assert "--seconds 30" in found.message


def test_every_pass_visits_everything_once_in_another_order():
    seen = []

    def stopwatch(name, repetitions):
        seen.append((name, repetitions))
        return 3.0

    names = {name: name for name in "abcdefgh"}
    time_subjects(names, stopwatch, TimingSettings(warmup=1, least_passes=4, most_passes=4))
    visits = [name for name, _ in seen[len(names) :]]
    orders = ["".join(visits[i : i + 16 : 2]) for i in range(0, len(visits), 16)]
    assert len(orders) == 4
    assert all(sorted(order) == list("abcdefgh") for order in orders)
    assert len(set(orders)) == 4


def test_a_visit_warms_a_subject_before_its_time_is_taken():
    """After another subject the caches are cold: 3, 2, then 1 times the steady cost; a long call warms by itself."""
    state = {"last": None, "row": 0}

    def stopwatch(subject, repetitions):
        name, cost = subject
        state["row"] = state["row"] + 1 if state["last"] == name else 0
        state["last"] = name
        return cost * max(1, 3 - state["row"])

    found = time_subjects({"a": ("a", 0.5), "b": ("b", 0.7)}, stopwatch, TimingSettings(least_passes=5, most_passes=5))
    assert [e.ms for e in found.estimates.values()] == pytest.approx([0.5, 0.7])
    assert found.calls.max() == pytest.approx(0.7)  # what is usual is steady too


def test_short_subjects_are_repeated_within_a_sample():
    calls = {}

    def stopwatch(cost, repetitions):
        calls.setdefault(cost, set()).add(repetitions)
        return cost

    time_subjects({"a": 0.01, "b": 5.0}, stopwatch, TimingSettings(least_ms=0.25, least_passes=3, most_passes=3))
    assert calls == {0.01: {1, 25}, 5.0: {1}}


def test_intervals_cover_the_truth_and_shrink():
    rng = np.random.default_rng(0)
    few = 1 + rng.exponential(0.2, size=(20, 50))
    many = 1 + rng.exponential(0.2, size=(2000, 50))
    width = [np.subtract(*intervals(s, np.random.default_rng(1))[::-1]).mean() for s in (few, many)]
    assert width[1] < width[0] / 3
    low, high = intervals(many, np.random.default_rng(1))
    expected = low_mean(1 + rng.exponential(0.2, size=(200_000, 1)))[0]
    assert np.mean((low <= expected) & (expected <= high)) > 0.85


def test_a_killed_measurement_goes_on_from_its_passes(tmp_path):
    """Really killed: a subprocess with SIGKILL in mid-pass, its journal's last line then cut as well."""
    journal = tmp_path / "table.json.partial"
    script = (
        "import sys, time\nfrom pathlib import Path\nfrom snugnet.devices.timing import *\n"
        "def stopwatch(cost, n):\n    time.sleep(cost / 1e3 * n)\n    return cost\n"
        "time_subjects({'a': 1.0, 'b': 2.0}, stopwatch, TimingSettings(tolerance=1e-9, least_passes=9000, "
        "most_passes=9000), journal=Path(sys.argv[1]), about={'device': 'x'})\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script, str(journal)])
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and (not journal.exists() or journal.read_bytes().count(b"\n") < 6):
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    whole = journal.read_bytes().count(b"\n") - 1
    assert whole >= 5
    journal.write_bytes(journal.read_bytes().rstrip(b"\n")[:-7])  # as if killed while writing the last line
    calls = []
    settings = TimingSettings(tolerance=1e-9, least_passes=whole + 3, most_passes=whole + 3)

    def stopwatch(cost, repetitions):
        calls.append(cost)
        return cost

    found = time_subjects(
        {"a": 1.0, "b": 2.0}, stopwatch, settings, now=lambda: 0.0, journal=journal, about={"device": "x"}
    )
    assert found.passes == whole + 3
    # Warm-up, then the cut pass and three new ones: three calls of 1 ms warm a subject, two of 2 ms; then one is timed.
    assert len(calls) == 2 * 2 + 4 * ((3 + 1) + (2 + 1))
    again = time_subjects(
        {"a": 1.0, "b": 2.0}, stopwatch, settings, now=lambda: 0.0, journal=journal, about={"device": "x"}
    )
    assert np.array_equal(again.samples, found.samples)


def test_a_journal_of_other_work_is_not_used(tmp_path):
    journal = tmp_path / "j"
    settings = TimingSettings(least_passes=4, most_passes=4)
    time_subjects({"a": 1.0}, lambda c, n: c, settings, journal=journal, about={"threads": 1})
    other = time_subjects({"a": 1.0}, lambda c, n: 7.0, settings, journal=journal, about={"threads": 2})
    assert other.estimates["a"].ms == 7.0


def test_a_line_changed_by_hand_is_named(tmp_path):
    journal = tmp_path / "j"
    settings = TimingSettings(least_passes=5, most_passes=5)
    time_subjects({"a": 1.0}, lambda c, n: c, settings, journal=journal)
    lines = journal.read_text().splitlines(keepends=True)
    lines[3] = lines[3].replace("1.0", "0.5", 1)
    journal.write_text("".join(lines))
    with pytest.raises(DamagedFile, match="line 4"):
        time_subjects({"a": 1.0}, lambda c, n: 3.0, settings, journal=journal)


def test_bad_settings_are_refused(tmp_path):
    for words in ({"seconds": 0}, {"seconds": float("nan")}, {"tolerance": -1}, {"least_passes": 9, "most_passes": 3}):
        with pytest.raises(BadInput):
            TimingSettings(**words)
    with pytest.raises(BadInput):
        time_subjects({}, lambda c, n: c)
    (tmp_path / "file").write_text("")
    with pytest.raises(FileTrouble):
        time_subjects({"a": 1.0}, lambda c, n: c, journal=tmp_path / "file" / "j")
