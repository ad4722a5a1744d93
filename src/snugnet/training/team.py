"""Processes that torchrun started together: the first one leads, the others do with it what takes all of them.

    torchrun --nproc-per-node 2 -m snugnet run digits

A run is mostly work for one process: measuring, searching, exporting. The leader does that; what they do together (training)
it calls by `Team.together`, which sends the call to the others (`Team.follow`). They wait on a process group of their own,
without a time limit, since a search may take hours; and they are released in any case when the leader ends, so that nobody
hangs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, TypeVar, final

import torch

from snugnet.errors import SnugnetError, reason_of

T = TypeVar("T")
_PATIENCE = timedelta(days=30)


def leads() -> bool:
    """Whether this process speaks and writes for all: it is alone, or the first that torchrun started."""
    return os.environ.get("RANK", "0") == "0"


@contextmanager
def open_team() -> Iterator[Team | None]:
    """The processes started with this one; None where it is alone."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield None
        return
    own = not torch.distributed.is_initialized()
    if own:
        torch.distributed.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    team = Team()
    try:
        yield team
        team.release("")
    except BaseException as error:
        team.release(f"{type(error).__name__}: {reason_of(error)}")
        raise
    finally:
        if own:
            torch.distributed.destroy_process_group()


@final
class Team:
    """All processes of a run."""

    def __init__(self) -> None:
        self._group: Any = torch.distributed.new_group(backend="gloo", timeout=_PATIENCE)

    def together(self, function: Callable[..., T], *arguments: Any) -> T:
        """For the leader: everybody calls the function; what it gave here."""
        self._tell((function, arguments))
        return function(*arguments)

    def follow(self) -> None:
        """For the others: do what the leader calls, until it ends; an error if that was one."""
        while True:
            message: list[Any] = [None]
            torch.distributed.broadcast_object_list(message, src=0, group=self._group)
            if isinstance(message[0], str):
                break
            function, arguments = message[0]
            function(*arguments)
        if message[0]:
            raise SnugnetError("the first process of a run must succeed", value=message[0], remedy="See what it says.")

    def release(self, trouble: str) -> None:
        """For the leader: nothing more to do together."""
        if leads():
            with suppress(RuntimeError):  # those who failed as well are not there to hear it
                self._tell(trouble)

    def _tell(self, message: Any) -> None:
        torch.distributed.broadcast_object_list([message], src=0, group=self._group)
