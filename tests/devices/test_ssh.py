"""A board over SSH: the written agent behind a real OpenSSH server on this machine."""

import shlex
import subprocess
import sys

import pytest
import torch

import ssh_server
from agents import SOURCE
from snugnet.devices import Command, OnnxRuntime
from snugnet.devices.timing import TimingSettings, time_on
from snugnet.errors import DeviceLost, DeviceMissing

pytestmark = pytest.mark.skipif(bool(ssh_server.missing()), reason=ssh_server.missing() or "here")
GIVEN = torch.ones(1, 3, 16, 16)


@pytest.fixture(scope="module")
def ssh(tmp_path_factory):
    with ssh_server.ssh_server(tmp_path_factory.mktemp("ssh")) as words:
        yield words


def over(ssh: str, *, then: str = "") -> str:
    """The agent over SSH; `then` is a remote command in its place."""
    return f"{ssh} {shlex.quote(then or shlex.join([sys.executable, '-P', str(SOURCE)]))}"


def test_it_measures(ssh):
    device = Command(command=over(ssh))
    assert device.fingerprint() == {**OnnxRuntime().fingerprint(), "device": "command"}
    module = torch.nn.Sequential(
        torch.nn.Conv2d(3, 1024, 3), torch.nn.Conv2d(1024, 64, 1)
    ).eval()  # some 400 kB to send
    subjects = {"a": device.prepare(module, GIVEN), "b": device.prepare(torch.nn.Conv2d(3, 4, 3).eval(), GIVEN)}
    found = time_on(device, subjects, TimingSettings(least_passes=5, most_passes=5))
    assert found.estimates["a"].ms > found.estimates["b"].ms > 0


def test_a_login_that_speaks_first_is_understood(ssh):
    device = Command(command=over(ssh, then=f"echo Welcome; exec {shlex.join([sys.executable, '-P', str(SOURCE)])}"))
    assert device.cores() >= 1


def test_a_lost_connection_is_named_and_the_next_call_goes_on(ssh, tmp_path):
    """The server's process of this connection is ended, as when a board loses its power."""
    remote = f"echo $PPID > {tmp_path / 'pid'}; exec {shlex.join([sys.executable, '-P', str(SOURCE)])}"
    device = Command(command=over(ssh, then=remote))
    module = torch.nn.Conv2d(3, 4, 3).eval()
    prepared = device.prepare(module, GIVEN)
    subprocess.run(["kill", "-9", (tmp_path / "pid").read_text().strip()], check=True)
    with pytest.raises(DeviceLost, match="exit code 255"):
        device.time(prepared, 1)
    assert device.time(device.prepare(module, GIVEN), 1) > 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda words: over(words, then="snugnet-agent"), "exit code 127 and said .*not found"),
        (lambda words: over(words.replace("-i ", "-i /nowhere")), "exit code 255 and said .*Permission denied"),
        (
            lambda words: over(words).replace("127.0.0.1", "no-such-host.invalid"),
            "exit code 255 and said .*no-such-host",
        ),
    ],
    ids=["no agent there", "another key", "no such board"],
)
def test_what_ssh_says_is_passed_on(ssh, change, message):
    with pytest.raises(DeviceMissing, match=message) as caught:
        Command(command=change(ssh))
    assert "\n" not in str(caught.value)
