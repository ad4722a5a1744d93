"""Where a run is told beside train.jsonl: TensorBoard, Weights & Biases, MLflow, or anything with `log(step, values)`.

    sn.train(supernet, data, method, out="runs/pets", trackers=["wandb", my_tracker])

A tracker by name is opened when training starts and closed when it ends; one of your own is only called. Each run folder
keeps the numbers its runs have elsewhere in trackers.json, so that a resumed run goes on in the same place. Where data go
is said in the environment, as those tools have it (WANDB_PROJECT, WANDB_MODE, MLFLOW_TRACKING_URI, ...).
"""

from __future__ import annotations

import importlib.util
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, final

from snugnet.errors import BadInput, UnknownName, reason_of
from snugnet.store import read_json, write_json


class Tracker(Protocol):
    """The hook: metrics by name, at a step of the run (steps never fall)."""

    def log(self, step: int, values: dict[str, float], /) -> None: ...


class _Opened(Tracker, Protocol):
    def close(self, *, failed: bool) -> None: ...


@final
@dataclass(frozen=True, kw_only=True)
class TrackedRun:
    """What a tracker is told of a run when it is opened."""

    folder: Path | None
    settings: dict[str, Any]

    def known_id(self, tracker: str) -> str | None:
        path = self._ids()
        return None if path is None or not path.exists() else read_json(path).get(tracker)

    def remember(self, tracker: str, identifier: str) -> None:
        path = self._ids()
        if path is not None:
            write_json(path, {**(read_json(path) if path.exists() else {}), tracker: identifier})

    def _ids(self) -> Path | None:
        return None if self.folder is None else self.folder / "trackers.json"


@final
class Trackers:
    """All trackers of a run. None stands for TensorBoard where it is installed and there is a folder to write to."""

    def __init__(self, chosen: Sequence[str | Tracker] | None, run: TrackedRun) -> None:
        self._chosen, self._run = chosen, run
        self._opened: list[_Opened] = []
        self._own: list[Tracker] = []

    def open(self) -> None:
        chosen = self._chosen
        if chosen is None:
            chosen = ["tensorboard"] if _installed("tensorboard") and self._run.folder is not None else []
        for tracker in chosen:
            if not isinstance(tracker, str):
                self._own.append(tracker)
                continue
            try:
                self._opened.append(_TRACKERS[tracker].open(self._run))
            except BadInput:
                raise
            except Exception as error:  # whatever somebody else's package raises: no server, no key, no disk
                raise BadInput(
                    f"tracker {tracker} must be able to start", value=reason_of(error), remedy=_TRACKERS[tracker].hint
                ) from error

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for tracker in (*self._opened, *self._own):
            tracker.log(step, dict(values))

    def close(self, *, failed: bool) -> None:
        for tracker in self._opened:
            tracker.close(failed=failed)
        self._opened = []


def check_trackers(chosen: Sequence[str | Tracker] | None) -> None:
    """Refuse a name nobody knows, a package that is not installed and an object without `log`, before any work."""
    for tracker in chosen or ():
        if not isinstance(tracker, str):
            if not callable(getattr(tracker, "log", None)):
                rule = "a tracker of your own must have log(step, values)"
                raise BadInput(rule, value=type(tracker).__name__, remedy="Give it that method.")
        elif tracker not in _TRACKERS:
            raise UnknownName("tracker", tracker, _TRACKERS)
        elif not _installed(tracker):
            package = "'snugnet[tensorboard]'" if tracker == "tensorboard" else tracker
            rule = f"tracker {tracker} needs the package {tracker}, which is not installed"
            raise BadInput(rule, remedy=f"Run pip install {package}, or choose another tracker.")


def _installed(package: str) -> bool:
    """Installed, and not just a folder of that name: W&B's own output, ./wandb, can be imported too."""
    spec = importlib.util.find_spec(package)
    return spec is not None and spec.origin is not None


@final
class _TensorBoard:
    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def log(self, step: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self, *, failed: bool) -> None:
        self._writer.close()


def _open_tensorboard(run: TrackedRun) -> _Opened:
    if run.folder is None:
        raise BadInput("tracker tensorboard writes into the run folder", remedy="Give the run a folder: out=...")
    from torch.utils.tensorboard import SummaryWriter

    return _TensorBoard(SummaryWriter(str(run.folder / "tensorboard")))


@final
class _Wandb:
    def __init__(self, run: Any) -> None:
        self._run = run

    def log(self, step: int, values: dict[str, float]) -> None:
        self._run.log(values, step=step)  # steps it had before a resumption are passed over by W&B itself

    def close(self, *, failed: bool) -> None:
        self._run.finish(exit_code=int(failed))


def _open_wandb(run: TrackedRun) -> _Opened:
    import wandb

    opened = wandb.init(
        project=os.environ.get("WANDB_PROJECT", "snugnet"),
        name=None if run.folder is None else str(run.folder),
        dir=None if run.folder is None else str(run.folder),
        id=run.known_id("wandb"),
        resume="allow",
        config=run.settings,
        reinit="create_new",  # a run of the caller's own stays his
    )
    run.remember("wandb", opened.id)
    return _Wandb(opened)


@final
class _Mlflow:
    """A server that stops to answer must not stop a training of days: it is said, and train.jsonl goes on."""

    def __init__(self, mlflow: Any) -> None:
        self._mlflow, self._answers = mlflow, True

    def log(self, step: int, values: dict[str, float]) -> None:
        self._try(lambda: self._mlflow.log_metrics(values, step=step))

    def close(self, *, failed: bool) -> None:
        self._try(lambda: self._mlflow.end_run("FAILED" if failed else "FINISHED"))

    def _try(self, call: Callable[[], object]) -> None:
        if not self._answers:
            return
        try:
            call()
        except self._mlflow.exceptions.MlflowException as error:
            self._answers = False
            warnings.warn(f"MLflow is told no more ({reason_of(error)}); train.jsonl goes on", stacklevel=2)


def _open_mlflow(run: TrackedRun) -> _Opened:
    import mlflow

    name = None if run.folder is None else str(run.folder)
    within = mlflow.active_run() is not None  # a run of the caller's own: ours is then its child
    opened = mlflow.start_run(run_id=run.known_id("mlflow"), run_name=name, nested=within)
    run.remember("mlflow", opened.info.run_id)
    mlflow.log_params(run.settings)
    return _Mlflow(mlflow)


@final
@dataclass(frozen=True, kw_only=True)
class _Kind:
    open: Callable[[TrackedRun], _Opened]
    hint: str


_TRACKERS = {
    "tensorboard": _Kind(open=_open_tensorboard, hint="Check the run folder."),
    "wandb": _Kind(open=_open_wandb, hint="Run `wandb login`, or set WANDB_MODE=offline."),
    "mlflow": _Kind(open=_open_mlflow, hint="Set MLFLOW_TRACKING_URI to a server or to sqlite:///mlflow.db."),
}
NAMES = tuple(_TRACKERS)
