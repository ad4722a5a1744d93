"""Tasks for test_executors: workers import them by name."""

import os
import signal
import time
from pathlib import Path

from snugnet.errors import Infeasible
from snugnet.executors import Shared


def scaled(shared: Shared[dict[str, int]], value: int, plus: int = 0) -> int:
    return shared.get()["factor"] * value + plus


def refused(value: int) -> None:
    raise Infeasible("nothing is that small", value=value, remedy="Raise it.")


def broken() -> None:
    raise ZeroDivisionError("somebody's mistake")


def threads() -> tuple[str | None, int]:
    import torch

    print("not an answer")  # workers leave standard output alone
    return os.environ.get("OMP_NUM_THREADS"), torch.get_num_threads()


def dies_until(folder: Path, deaths: int) -> int:
    """Kills its own process so many times, then answers."""
    for number in range(deaths):
        if not (folder / str(number)).exists():
            (folder / str(number)).touch()
            os.kill(os.getpid(), signal.SIGKILL)
    return deaths


def napping(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


def kept() -> int:
    from snugnet import executors

    return len(executors._received.values)
