"""What snugnet uses of mlflow 3.17, with its signatures and rules; `test_trackers` compares them with the real package
where that is installed."""

import re

RUNS, _active = {}, []
BROKEN = False


class exceptions:
    class MlflowException(Exception):
        pass


class _Info:
    def __init__(self, run_id):
        self.run_id = run_id


class ActiveRun:
    def __init__(self, run_id, name):
        self.info, self.name, self.rows, self.params, self.status = _Info(run_id), name, [], {}, "RUNNING"


def active_run():
    return _active[-1] if _active else None


def start_run(
    run_id=None, experiment_id=None, run_name=None, nested=False, parent_run_id=None, tags=None, description=None,
    log_system_metrics=None,
):  # fmt: skip
    if _active and not nested:
        raise Exception(f"Run with UUID {_active[-1].info.run_id} is already active.")
    run = RUNS[run_id] if run_id else ActiveRun(f"run{len(RUNS)}", run_name)
    RUNS[run.info.run_id] = run
    run.status = "RUNNING"
    _active.append(run)
    return run


def log_params(params, synchronous=None, run_id=None):
    for name, value in params.items():
        known = active_run().params.setdefault(name, str(value))
        if known != str(value) or len(known) > 6000:
            raise exceptions.MlflowException(f"parameter {name} cannot change or be so long")


def log_metrics(metrics, step=None, synchronous=None, run_id=None, timestamp=None, model_id=None, dataset=None):
    if BROKEN:
        raise exceptions.MlflowException("API request to http://127.0.0.1:9 failed")
    for name, value in metrics.items():
        assert re.fullmatch(r"[/\w.\- :]*", name) and isinstance(value, float), name
    active_run().rows.append((step, dict(metrics)))


def end_run(status="FINISHED"):
    _active.pop().status = status
