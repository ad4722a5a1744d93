"""One thread per test process: several processes with several threads each crawl on few cores."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import hypothesis
import pytest
import torch

torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
hypothesis.settings.register_profile("house", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.load_profile("house")


@pytest.fixture(scope="module")
def one_thread():
    """For tests that fork: OpenMP's threads do not come along, and a child that waits for them waits for ever."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def snug(capsys):
    """Run the command line in this process: `code, out, err = snug("zoo", "--json")`."""
    from snugnet.cli import execute

    def call(*words: str) -> tuple[int, str, str]:
        code = execute(list(words))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call
