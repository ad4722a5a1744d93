"""Headless Chromium over its debugging pipe: no driver, no network, no further package.

Commands and events are JSON objects that end with a zero byte, written to the browser's file descriptor 3 and read from
its 4. Every wait has an end.
"""

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--disable-dev-shm-usage",
    "--mute-audio",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
]
PATIENCE = 60.0  # seconds; a loaded machine is slow, a hung browser must not hang the tests


def find_chromium() -> str:
    return next(
        (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), ""
    )


class Browser:
    """One browser with one page."""

    def __init__(self, program: str, profile: Path) -> None:
        self._program, self._profile = program, profile
        self._number, self._rest, self._session = 0, b"", ""
        self.events: list[dict[str, Any]] = []

    def __enter__(self) -> "Browser":
        theirs_in, self._write = os.pipe()
        self._read, theirs_out = os.pipe()
        words = [self._program, *FLAGS, f"--user-data-dir={self._profile}", "about:blank"]
        script = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'
        self._process = subprocess.Popen(
            ["bash", "-c", script, "chromium", *words],
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")
        return self

    def __exit__(self, *_: object) -> None:
        self._session = ""
        try:
            self.send("Browser.close")
            self._process.wait(10)
        except (RuntimeError, OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        os.close(self._write)
        os.close(self._read)

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command and its answer; events that arrive meanwhile are kept."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        answer = self._until(lambda m: m.get("id") == self._number, method)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def open(self, path: Path, *, width: int = 1100, dark: bool = False) -> None:
        """Load a file and wait until it is drawn; `events` then holds what happened on the way."""
        self.events.clear()
        self.send(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}],
        )
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600
        )
        self.send("Page.navigate", url=path.resolve().as_uri())
        self._until(lambda m: m.get("method") == "Page.loadEventFired", "load")
        self.wait_frame()

    def wait_frame(self) -> None:
        """Two frames later everything asked for is on the screen."""
        self.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))")

    def evaluate(self, expression: str) -> Any:
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(str(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        codes = {"ArrowLeft": 37, "ArrowRight": 39, "Home": 36, "End": 35, "Tab": 9, "Enter": 13, "PageDown": 34}
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=codes[key])

    def picture(self, path: Path) -> Path:
        """The whole page as PNG."""
        size = self.send("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        data = self.send("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(data))
        return path

    def complaints(self) -> list[str]:
        """Errors, warnings and exceptions since the page was opened."""
        found = []
        for event in self.events:
            words = event.get("params", {})
            if event["method"] == "Runtime.exceptionThrown":
                found.append(str(words["exceptionDetails"]))
            elif event["method"] == "Runtime.consoleAPICalled" and words["type"] in ("error", "warning", "assert"):
                found.append(str(words["args"]))
            elif event["method"] == "Log.entryAdded" and words["entry"]["level"] in ("error", "warning"):
                found.append(words["entry"]["text"])
        return found

    def requests(self) -> list[str]:
        """Every address asked for since the page was opened."""
        return [e["params"]["request"]["url"] for e in self.events if e["method"] == "Network.requestWillBeSent"]

    def _until(self, wanted: Callable[[dict[str, Any]], bool], what: str) -> dict[str, Any]:
        for event in self.events:
            if wanted(event):
                return event
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            message = self._next(end)
            if "method" in message:
                self.events.append(message)
            if wanted(message):
                return message
        raise RuntimeError(f"the browser did not answer {what} within {PATIENCE:.0f} s")

    def _next(self, end: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._read], [], [], max(0.0, end - time.monotonic()))
            data = os.read(self._read, 1 << 20) if ready else b""
            if not data:
                raise RuntimeError("the browser is silent" if not ready else "the browser is gone")
            self._rest += data
        line, self._rest = self._rest.split(b"\0", 1)
        return json.loads(line)
