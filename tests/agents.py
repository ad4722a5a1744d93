"""Agents for tests: commands that start one on this machine, and what may stand in its place."""

import shlex
import sys
from pathlib import Path

import snugnet.devices.agent

SOURCE = Path(snugnet.devices.agent.__file__)
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
