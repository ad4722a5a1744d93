"""A real OpenSSH server on 127.0.0.1 with keys of its own, for as long as a test needs it."""

import getpass
import shlex
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SSHD = "/usr/sbin/sshd"
CONFIG = """
ListenAddress 127.0.0.1:{port}
HostKey {folder}/host
AuthorizedKeysFile {folder}/user.pub
PidFile {folder}/sshd.pid
PermitRootLogin yes
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
StrictModes no
"""


def missing() -> str:
    """Why there can be no server here; empty if there can."""
    if not Path(SSHD).exists():
        return f"no {SSHD} (Debian's openssh-server)"
    return (
        "" if shutil.which("ssh") and shutil.which("ssh-keygen") else "no ssh or ssh-keygen (Debian's openssh-client)"
    )


@contextmanager
def ssh_server(folder: Path) -> Iterator[str]:
    """Start a server; the words with which ssh reaches it."""
    for name in ("host", "user"):
        words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(words, check=True, capture_output=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (folder / "sshd_config").write_text(CONFIG.format(port=port, folder=folder))
    (folder / "known").write_text(f"[127.0.0.1]:{port} {(folder / 'host.pub').read_text()}")
    if getpass.getuser() == "root":
        Path("/run/sshd").mkdir(exist_ok=True)
    with (folder / "sshd.log").open("wb") as log:
        server = subprocess.Popen([SSHD, "-D", "-e", "-f", str(folder / "sshd_config")], stderr=log)
    try:
        _wait(port, server, folder / "sshd.log")
        options = [f"UserKnownHostsFile={folder / 'known'}", "IdentitiesOnly=yes", "BatchMode=yes", "LogLevel=ERROR"]
        words = ["ssh", "-F", "none", "-T", "-p", str(port), "-i", str(folder / "user")]
        yield shlex.join([*words, *(f"-o{option}" for option in options), f"{getpass.getuser()}@127.0.0.1"])
    finally:
        server.terminate()
        server.wait(10)


def _wait(port: int, server: subprocess.Popen, log: Path) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise RuntimeError(f"sshd ended: {log.read_text()}")
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise RuntimeError(f"sshd does not listen: {log.read_text()}")
