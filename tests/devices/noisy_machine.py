"""A machine of known cost and known noise, with a clock of its own: nothing here depends on the real one."""

import math

import numpy as np


class NoisyMachine:
    """Subjects are their true cost in milliseconds; `disturbance(t)` >= 1 is how much slower the machine is at time t."""

    def __init__(self, disturbance=lambda t: 1.0, *, spikes=0.0, jitter=0.003, seed=0):
        self.t = 0.0
        self.calls = 0
        self.disturbance = disturbance
        self.spikes = spikes
        self.jitter = jitter
        self.rng = np.random.default_rng(seed)

    def stopwatch(self, cost, repetitions):
        total = 0.0
        for _ in range(repetitions):
            taken = cost * self.disturbance(self.t) * (1 + self.jitter * abs(self.rng.standard_normal()))
            if self.rng.random() < self.spikes:
                taken += self.rng.exponential(20.0)
            total += taken
            self.t += taken / 1e3
            self.calls += 1
        return total / repetitions

    def now(self):
        return self.t


def drift(t):
    """A clock that slows down by up to 40 % and recovers, once a minute."""
    return 1.2 - 0.2 * math.cos(t / 60 * 2 * math.pi)


def slow_phase(t):
    """Half speed for ten seconds out of every twenty-five."""
    return 2.0 if t % 25 < 10 else 1.0


def neighbour(t):
    """Another tenant who comes and goes every 0.37 s and takes a quarter, on top of a slow drift."""
    return (1.25 if math.sin(t * 2 * math.pi / 0.37) > -0.5 else 1.0) * (1 + 0.1 * (drift(t) - 1))
