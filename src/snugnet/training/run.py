"""`train`: a model, data and a method (or several phases) become a trained model, logged and resumable.

Everything that can be wrong is checked before anything is written; then `loop` does the work.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor, nn

from snugnet.budgets import Budget
from snugnet.budgets.limits import limits_of
from snugnet.costs.table import CostTable
from snugnet.data.dataset import Data
from snugnet.errors import BadInput
from snugnet.evaluate.evaluator import Curves, training_curves
from snugnet.nets.mixed_supernet import MixedSupernet
from snugnet.nets.network import build
from snugnet.progress import NullProgress, Progress
from snugnet.seeds import Seed
from snugnet.space.architecture import Architecture
from snugnet.space.space import SearchSpace
from snugnet.store import check_writable, sha256
from snugnet.training import checkpoint, gradient_sync, methods
from snugnet.training.checkpoint import Checkpointer, Latest, weights_name
from snugnet.training.loop import Loop, Options
from snugnet.training.method import Method
from snugnet.training.trackers import TrackedRun, Tracker, Trackers, check_trackers
from snugnet.training.train_log import TrainLog

if TYPE_CHECKING:
    from lightning_fabric import Fabric


@final
@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """What a run came to. `accuracies` were measured on held-out images with the final (averaged) weights."""

    steps: int
    images: int
    seconds: float  # over all resumptions
    loss: float  # mean of the last steps
    accuracies: dict[str, float]
    resumed_at: int | None  # steps that were already done
    notes: tuple[str, ...]  # damaged checkpoints that were passed over
    weights: Path | None


def train(
    model: nn.Module,
    data: Data,
    method: Method | Sequence[Method],
    *,
    out: str | Path | None = None,
    seed: int = 0,
    batch: int = 128,
    epochs: int | None = None,
    accumulate: int = 1,
    resume: bool = True,
    threads: int | None = None,
    device: str = "auto",
    precision: str = "auto",
    channels_last: bool = False,
    teacher: nn.Module | None = None,
    tables: Mapping[str, CostTable] | None = None,
    budget: Budget | Mapping[str, str] | None = None,
    start: str | None = None,
    evaluator: Curves | str | None = "default",
    eval_times: int = 10,
    checkpoint_seconds: float = 20.0,
    trackers: Sequence[str | Tracker] | None = None,
    progress: Progress | None = None,
) -> TrainResult:
    """Train `model` in place with one method or several phases.

    With `out` the run is logged, saved and resumed there: starting it again goes on where it was killed; `resume=False`
    refuses a folder that holds a run. `batch` counts the images of a step over all processes and `accumulate` passes.
    `epochs` overrides that of every phase. `teacher` is for methods that distil, `tables` and `budget` for those that know
    costs.
    A folder goes on only from the weights and the teacher it began with, told apart by their bits; a caller that computes
    both from something else (and may get other last bits on another machine) names that in `start` instead.
    `trackers` (tensorboard, wandb, mlflow, or objects with `log(step, values)`) are told what train.jsonl is; None is
    TensorBoard where it is installed.
    `evaluator(model)` gives the accuracies to watch, `eval_times` in a phase; None turns it off. The model and the teacher
    stay on the device they were trained on: the first of their parameters says which.
    """
    phases = [method] if isinstance(method, Method) else list(method)
    if epochs is not None:
        phases = [replace(phase, epochs=epochs) for phase in phases]
    options = Options(
        seed=seed,
        batch=batch,
        accumulate=accumulate,
        channels_last=channels_last,
        checkpoint_seconds=checkpoint_seconds,
        eval_times=eval_times,
    )
    with _threads(threads):
        fabric = gradient_sync.start(device, precision)
        _check(model, data, phases, options, fabric.world_size)
        check_trackers(trackers)
        folder = None if out is None else Path(out)
        if folder is not None and fabric.is_global_zero:
            check_writable(folder / "state" / "any")
        limits = None if budget is None else limits_of(_space(model), tables or {}, Budget(budget))
        recipe = _recipe(model, data, phases, options, fabric, tables or {})
        recipe |= {} if limits is None else {"limits": limits.effective}
        recipe |= _origin(model, teacher, start) if folder is not None else {}
        move: Any = model.to  # the overload with a memory format is missing from torch's type stubs
        move(device=fabric.device, memory_format=options.layout)
        train_log = TrainLog(folder, progress or NullProgress()) if fabric.is_global_zero else None
        checkpointer = Checkpointer(fabric, model, recipe, folder, train_log)
        score = training_curves(model, data) if isinstance(evaluator, str) else evaluator
        frozen = _frozen(fabric, teacher)
        loop = Loop(fabric, model, data, options, checkpointer, train_log, score, frozen, tables or {}, limits)
        latest, ended = checkpointer.find(resume), False
        try:
            if train_log is not None:
                title = "training " + " + ".join(phase.name for phase in phases)
                done = latest.checkpoint is not None and latest.checkpoint.position.phase == len(phases)
                steps = sum(loop.steps(phase) for phase in phases)
                told = Trackers(trackers, TrackedRun(folder=folder, settings=recipe))
                train_log.start(title, steps, None if done else told)
            gradient_sync.share(fabric, model.state_dict().values())
            loop.run(phases, latest.checkpoint)
            ended = True
        finally:
            if train_log is not None:
                train_log.close(failed=not ended)
        return _result(fabric, model, loop, checkpointer, train_log, latest, phases, folder, batch)


def finetune(
    model: nn.Module, data: Data, *, teacher: nn.Module | None = None, epochs: int = 10, **options: Any
) -> TrainResult:
    """Train a plain network on from the weights it has, taught by `teacher` if there is one; `options` go to `train`.

    The teacher's weight of 0.9 is ours: HardCoRe-NAS distils and gives none.
    """
    method = methods.finetune(epochs=epochs, distill=0.0 if teacher is None else 0.9)
    return train(model, data, method, teacher=teacher, **options)


_KEPT = ("lr", "lr_per", "weight_decay", "label_smoothing", "mixup", "auto_augment", "crop_padding", "hflip", "ema")


def scratch_like(phase: Method, epochs: float) -> Method:
    """From scratch with what `phase` says of learning and of images; a fifth of the time, at most an epoch, warms up."""
    settings = phase.describe()
    return methods.scratch(
        **{name: settings[name] for name in _KEPT if name in settings},
        epochs=epochs,
        warmup_epochs=min(1.0, epochs / 5),
    )


def train_standalone(
    architecture: Architecture,
    space: SearchSpace,
    data: Data,
    phases: Sequence[Method],
    *,
    epochs: float,
    seed: int = 0,
    out: Path | None = None,
    **options: Any,
) -> nn.Module:
    """A sub-network's architecture built and trained on its own, from scratch, like the last of `phases`: the truth that
    rankings are held to. It starts as the super-network did, gates open where a phase opens them."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(Seed(seed).fold_in("stand-alone", str(architecture)).number())
        network = build(architecture, space)
    if any(phase.describe().get("se_bias_init") for phase in phases):
        methods.se_bias_init(network)
    train(network, data, scratch_like(phases[-1], epochs), seed=seed, out=out, evaluator=None, **options)
    return network.eval()


def _result(
    fabric: Fabric,
    model: nn.Module,
    loop: Loop,
    checkpointer: Checkpointer,
    train_log: TrainLog | None,
    latest: Latest,
    phases: list[Method],
    folder: Path | None,
    batch: int,
) -> TrainResult:
    """Writes the final weights and sums the run up."""
    weights = None
    if folder is not None:
        weights = folder / ("supernet.safetensors" if phases[-1].elastic else "weights.safetensors")
        if fabric.is_global_zero:
            about = {"methods": ",".join(phase.name for phase in phases), "steps": str(loop.position.total)}
            checkpoint.save_weights(weights, model.state_dict(), about)
    fabric.barrier()
    before = latest.checkpoint
    return TrainResult(
        steps=loop.position.total,
        images=loop.position.total * batch,
        seconds=checkpointer.seconds(),
        loss=train_log.loss if train_log is not None else float("nan"),
        accuracies=dict(train_log.accuracies) if train_log is not None else {},
        resumed_at=None if before is None else before.position.total,
        notes=latest.damaged,
        weights=weights,
    )


def _frozen(fabric: Fabric, teacher: nn.Module | None) -> Any:
    if teacher is None:
        return None
    fixed = teacher.to(fabric.device).eval()

    def answer(images: Tensor, *, with_features: bool = False) -> Any:
        network: Any = fixed.with_features if with_features else fixed
        with torch.no_grad(), fabric.autocast():
            return network(images)

    return answer


def _check(model: nn.Module, data: Data, phases: list[Method], options: Options, world: int) -> None:
    """Everything that can be wrong with a run, before anything is written."""
    if not phases:
        raise BadInput("a run must have at least one phase", value=0, remedy="Pass a method, e.g. methods.multipath().")
    if options.accumulate < 1:
        raise BadInput("accumulate must be at least 1", value=options.accumulate, remedy="1 turns it off.")
    for phase in phases:
        phase.check()
        gradient_sync.check_batch(options.batch, world * options.accumulate, data.size(phase.split), phase.split)
        if phase.separate != isinstance(model, MixedSupernet):
            kinds = ("separate operations (nets.MixedSupernet)", "shared weights (sn.Supernet)")
            raise BadInput(
                f"method {phase.name!r} trains a super-network of {kinds[0] if phase.separate else kinds[1]}",
                value=type(model).__name__,
                remedy="Build that one, or use methods.tfnas for separate operations.",
            )
        if phase.elastic != hasattr(model, "space"):
            kind, others = ("super-network", "finetune or scratch") if phase.elastic else ("plain network", "multipath")
            raise BadInput(
                f"method {phase.name!r} trains a {kind}", value=type(model).__name__, remedy=f"Use methods.{others}."
            )


def _space(model: nn.Module) -> SearchSpace:
    space = getattr(model, "space", None)
    if not isinstance(space, SearchSpace):
        raise BadInput("only the training of a super-network has a budget", remedy="Leave the budget out.")
    return space


def _origin(model: nn.Module, teacher: nn.Module | None, start: str | None) -> dict[str, str]:
    """What the run begins with: the starting weights and the teacher, by name."""
    if start is not None:
        return {"start": start, "teacher": "none" if teacher is None else start}
    return {
        "start": weights_name(model.state_dict()),
        "teacher": "none" if teacher is None else weights_name(teacher.state_dict()),
    }


def _recipe(
    model: nn.Module,
    data: Data,
    phases: list[Method],
    options: Options,
    fabric: Fabric,
    tables: Mapping[str, CostTable],
) -> dict[str, Any]:
    """All settings that decide the result: what must agree for a run to be resumed."""
    shapes = repr([(name, tuple(t.shape), str(t.dtype)) for name, t in model.state_dict().items()])
    recipe = {
        "methods": [phase.describe() for phase in phases],
        "data": data.identity(),
        "model": {"type": type(model).__name__, "tensors": sha256(shapes.encode())[:16]},
        "space": sha256(repr(getattr(model, "space", None)).encode())[:16],
        "tables": {name: sha256(repr(table).encode())[:16] for name, table in tables.items()},
        "seed": options.seed,
        "batch": options.batch,
        "shards": fabric.world_size * options.accumulate,
        "channels_last": options.channels_last,
        "precision": str(fabric.strategy.precision.precision),
    }
    plain: dict[str, Any] = json.loads(json.dumps(recipe))
    return plain


@final
class _threads:
    """torch's thread count inside the block; the old one is put back."""

    def __init__(self, count: int | None) -> None:
        if count is not None and count < 1:
            raise BadInput("threads must be at least 1", value=count, remedy="Leave it out to use torch's choice.")
        self._count, self._before = count, torch.get_num_threads()

    def __enter__(self) -> None:
        if self._count is not None:
            torch.set_num_threads(self._count)

    def __exit__(self, *_: object) -> None:
        torch.set_num_threads(self._before)
