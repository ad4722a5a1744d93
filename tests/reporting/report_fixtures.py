"""A made-up run, written through the project's own functions, and a browser to look at its page."""

import json
import os
from pathlib import Path

import pytest
from browser import Browser, find_chromium
from made_up_run import make_run


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory) -> Path:
    return make_run(tmp_path_factory.mktemp("made-up") / "run")


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    program = find_chromium()
    if not program:
        reason = "no Chromium on this machine: scripts/install-chromium.sh installs it (as root, on Debian)"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    with Browser(program, tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.fixture
def embedded():
    """The numbers inside a page."""

    def read(text: str) -> dict:
        body = text.split('<script type="application/json" id="numbers">')[1].split("</script>")[0]
        return json.loads(body)

    return read
