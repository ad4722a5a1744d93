"""Ray as an executor: a thin wrapper, for clusters (extra `[ray]`).

Inside a cluster (`ray job submit -- snugnet many ... --on ray`) it attaches to it; elsewhere it starts a Ray of its own on
this machine and stops it at the end. Shared values are put into the object store once and fetched once per worker process.
A task takes as many CPUs as it has threads, and Ray does it again if its worker or node is lost. Addresses `ray://` are not
for this: that client sends every call and value through one proxy; submit a job instead.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Any, TypeVar, final

from snugnet.errors import BadInput, DeviceMissing
from snugnet.executors import RETRIES, Shared, bound, lost, outcome, settle

T = TypeVar("T")


@final
@dataclass(frozen=True, kw_only=True)
class _InStore(Shared[T]):
    """In the object store."""

    reference: Any

    def _fetch(self) -> T:
        import ray

        value: T = ray.get(self.reference)
        return value


@final
class RayExecutor(Executor):
    """Tasks on the Ray cluster this process is in, or on one of its own."""

    def __init__(self, *, threads: int = 1) -> None:
        if os.environ.get("RAY_ADDRESS", "").startswith("ray://"):
            raise BadInput(
                "RAY_ADDRESS must be a cluster this process is in",
                value=os.environ["RAY_ADDRESS"],
                remedy="Submit the command to it: ray job submit -- snugnet many ... --on ray.",
            )
        try:
            import ray
        except ImportError as error:
            raise DeviceMissing("--on ray needs Ray", remedy="pip install 'snugnet[ray]'.") from error
        self._ray, self.threads = ray, threads
        self._own = not ray.is_initialized()
        if self._own:
            ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
        self._remote = ray.remote(outcome).options(
            num_cpus=threads, max_retries=RETRIES, runtime_env={"env_vars": {"OMP_NUM_THREADS": str(threads)}}
        )
        self._open: dict[Future[Any], Any] = {}

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()
        reference = self._remote.remote(bound(fn, kwargs), args, self.threads)
        self._open[future] = reference

        def tell(done: Future[tuple[bool, Any]]) -> None:
            self._open.pop(future, None)
            error = done.exception()
            if error is None:
                settle(future, done.result())
            elif isinstance(error, self._ray.exceptions.WorkerCrashedError | self._ray.exceptions.NodeDiedError):
                future.set_exception(lost(RETRIES + 1))
            else:
                future.set_exception(error)

        reference.future().add_done_callback(tell)
        return future

    def share(self, value: T) -> Shared[T]:
        return _InStore(value=value, reference=self._ray.put(value))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        for future, reference in list(self._open.items()):
            if cancel_futures:
                self._ray.cancel(reference, force=True)
            elif wait:
                future.exception()
        if self._own and (wait or not self._open):
            self._ray.shutdown()

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.shutdown(wait=True, cancel_futures=error is not None)
