"""Agents for tests: commands that start one on this machine, and what may stand in its place."""

import shlex
import sys
from pathlib import Path

import snugnet.devices.agent

SOURCE = Path(snugnet.devices.agent.__file__)
MEETING = """clock, said = cpu_clock(self._threads), time.monotonic()
        open(os.path.join({folder!r}, {label!r}), "a").close()
        while not set({labels!r}) <= set(os.listdir({folder!r})):
            if time.monotonic() > said + 60:
                raise Refused("the others are not timed")
            time.sleep(0.01)
"""
ALONE = "import sys, runpy; sys.modules.update({names}); runpy.run_path({path!r}, run_name='__main__')"


def agent_command(*without: str, source: Path = SOURCE) -> str:
    """Start the agent by itself, in a Python where torch, snugnet and `without` cannot be imported."""
    names = "{name: None for name in " + repr(("torch", "snugnet", *without)) + "}"
    return shlex.join([sys.executable, "-c", ALONE.format(names=names, path=str(source))])


def with_pid(file: Path, command: str) -> str:
    """The same command, with its process number in a file."""
    return shlex.join(["sh", "-c", f"echo $$ > {shlex.quote(str(file))}; exec {command}"])


def changed(folder: Path, old: str, new: str) -> Path:
    """An agent with another text somewhere in it."""
    text = SOURCE.read_text()
    assert old in text
    file = folder / "changed-agent.py"
    file.write_text(text.replace(old, new))
    return file


def meeting(folder: Path, *labels: str) -> dict[str, str]:
    """Commands of agents that pass for boards of their own, by label; they refuse a pass unless all are asked for one."""
    commands = {}
    for label in labels:
        (folder / "timed").mkdir(exist_ok=True)
        (folder / f"agent-{label}").mkdir()
        wait = MEETING.format(folder=str(folder / "timed"), label=label, labels=labels)
        file = changed(folder / f"agent-{label}", MEETING.splitlines(keepends=True)[0], wait)
        file.write_text(file.read_text().replace('"boot": boot()', f'"boot": "of {label}"'))
        commands[label] = agent_command(source=file)
    return commands
