"""What snugnet uses of wandb 0.31, with its signatures and rules; `test_trackers` compares them with the real package
where that is installed."""

RUNS = []


class errors:
    class UsageError(Exception):
        pass


class Run:
    def __init__(self, id, settings):
        self.id, self.settings, self.rows, self.code = id, settings, [], None
        RUNS.append(self)

    def log(self, data, step=None, commit=None):
        assert isinstance(data, dict) and all(isinstance(v, float) for v in data.values())
        assert self.code is None and (not self.rows or step >= self.rows[-1][0])
        self.rows.append((step, data))

    def finish(self, exit_code=None):
        self.code = exit_code


def init(
    entity=None, project=None, dir=None, id=None, name=None, notes=None, tags=None, config=None,
    config_exclude_keys=None, config_include_keys=None, allow_val_change=None, group=None, job_type=None, mode=None,
    force=None, reinit=None, resume=None, resume_from=None, fork_from=None, save_code=None, tensorboard=None,
    sync_tensorboard=None, monitor_gym=None, settings=None, anonymous=None,
):  # fmt: skip
    assert isinstance(config, dict) and resume in (None, "allow", "never", "must", "auto")
    if project == "forbidden":
        raise errors.UsageError("No API key configured.\nUse `wandb login` to log in.")
    return Run(id or f"made{len(RUNS)}", {"project": project, "dir": dir, "name": name, "resume": resume})
