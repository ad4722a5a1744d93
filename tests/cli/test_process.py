"""How the process of a quick verb begins and ends: nothing is missing, only later; files and output are whole."""

import subprocess
import sys

LATER = """
from snugnet.cli import process
process.prepare("search")
import inspect, os, sys, torch
module = sys.modules["torch._meta_registrations"]
inspect.getmodule(torch.nn.Linear.forward)  # looks at the file of every module
assert type(module).__name__ == "_Later", type(module)
assert torch.nn.functional.interpolate(torch.ones(1, 1, 4, 4), size=(2, 2), mode="bicubic").shape[-1] == 2
assert "OPENBLAS_NUM_THREADS" not in os.environ
assert callable(module.register_meta)  # the first look runs it
assert type(module).__name__ == "module"
assert torch.empty(2, 3, device="meta").cumsum(0).shape == (2, 3)
"""
ENDING = """
import atexit, sys, threading, time
from snugnet.cli import process
atexit.register(print, "last")
threading.Thread(target=lambda: (time.sleep(0.2), print("thread"))).start()
sys.stdout.write("first\\n")
process.leave(sys.argv[1], 3)
"""


def python(*code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", *code], capture_output=True, text=True, check=False)


def test_what_a_quick_verb_does_not_need_is_there_when_asked_for() -> None:
    ended = python(LATER)
    assert ended.returncode == 0, ended.stderr


def test_every_verb_ends_with_its_code_after_threads_and_what_was_to_come_last() -> None:
    for verb in ("search", "train"):
        ended = python(ENDING, verb)
        assert ended.returncode == 3
        assert ended.stdout.split() == ["first", "thread", "last"]
        assert ended.stderr == ""
