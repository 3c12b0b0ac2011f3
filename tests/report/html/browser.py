"""A real browser: headless Chromium, spoken to over its debugging pipe (no port, no further package)."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.waiting import patience

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_PIPES = (3, 4)  # where Chromium reads commands and writes answers


def program() -> str | None:
    """The browser's path; None where there is none."""
    return next((found for name in PROGRAMS if (found := shutil.which(name))), None)


class Tab:
    """One page of the browser. ``events`` are all that it told, as (method, parameters)."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers = commands, answers
        self._rest = b""
        self._number = 0
        self._session: str | None = None
        self.events: list[tuple[str, dict[str, Any]]] = []
        target = self("Target.createTarget", url="about:blank")["targetId"]
        self._session = self("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self(f"{domain}.enable")

    def __call__(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its result; ``RuntimeError`` where the browser refuses."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return dict(answer["result"])

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            new = os.read(self._answers, 1 << 16)
            if not new:
                raise RuntimeError("the browser has gone")
            self._rest += new
        message, _, self._rest = self._rest.partition(b"\0")
        document: dict[str, Any] = json.loads(message)
        if "method" in document:
            self.events.append((document["method"], document.get("params", {})))
        return document

    def open(self, page: Path | str, *, width: int = 1280, height: int = 900, scripts: bool = True) -> None:
        """Show a page, and wait until it is loaded and painted."""
        self("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        self("Emulation.setScriptExecutionDisabled", value=not scripts)
        self.events.clear()
        self("Page.navigate", url=page.as_uri() if isinstance(page, Path) else page)
        while not any(method == "Page.loadEventFired" for method, _ in self.events):
            self._read()
        if scripts:
            self.value("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def value(self, expression: str) -> Any:
        """What the expression (or the promise that it is) is in the page; ``RuntimeError`` for an exception."""
        answer = self("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(str(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def press(self, key: str, *, text: str = "") -> None:
        """One key, pressed and let go."""
        for kind in ("keyDown", "keyUp"):
            self("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=_KEYS[key], text=text)

    def move(self, x: float, y: float) -> None:
        """The pointer to a place of the window."""
        self("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def emulate(self, *, media: str = "", **features: str) -> None:
        """Another medium (``print``), or features such as ``prefers_color_scheme="dark"``."""
        wanted = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self("Emulation.setEmulatedMedia", media=media, features=wanted)

    def screenshot(self, path: Path, *, clip: dict[str, float] | None = None) -> None:
        """What is to be seen, as PNG."""
        more = {"clip": {"scale": 1, **clip}, "captureBeyondViewport": True} if clip else {}
        path.write_bytes(base64.b64decode(self("Page.captureScreenshot", format="png", **more)["data"]))

    def pdf(self) -> bytes:
        """The page as a printer gets it."""
        return base64.b64decode(self("Page.printToPDF", printBackground=True)["data"])

    def requests(self) -> list[str]:
        """The addresses that were asked for since the page was opened, but for the page itself."""
        asked = [event["request"]["url"] for method, event in self.events if method == "Network.requestWillBeSent"]
        return [url for url in asked[1:] if not url.startswith("data:")]

    def complaints(self) -> list[str]:
        """What the console and the browser's log say, exceptions among it."""
        found = []
        for method, event in self.events:
            if method == "Log.entryAdded":
                found.append(event["entry"]["text"])
            elif method == "Runtime.consoleAPICalled":
                found.append(f"console.{event['type']}")
            elif method == "Runtime.exceptionThrown":
                found.append(event["exceptionDetails"]["text"])
        return found


_KEYS = {"Tab": 9, "Enter": 13, "ArrowRight": 39, "ArrowLeft": 37}


@contextmanager
def browser(profile: Path) -> Iterator[Tab]:
    """A browser of its own, ended afterwards; ``profile`` is an empty directory for what it keeps."""
    command_out, command_in = os.pipe()
    answer_out, answer_in = os.pipe()
    argv = [
        *(program() or "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
        *("--remote-debugging-pipe", "--no-first-run", "--disable-background-networking", "--disable-sync"),
        *("--disable-component-update", "--hide-scrollbars", f"--user-data-dir={profile}"),
    ]
    # The shell puts the pipes where Chromium looks for them, whatever numbers they have here.
    words = ["bash", "-c", f'exec "$@" {_PIPES[0]}<&{command_out} {_PIPES[1]}>&{answer_in}', "browser", *argv]
    log = (profile / "browser.log").open("wb")
    child = subprocess.Popen(words, pass_fds=(command_out, answer_in), stdout=log, stderr=log, start_new_session=True)
    os.close(command_out)
    os.close(answer_in)
    try:
        yield Tab(command_in, answer_out)
    finally:
        os.close(command_in)
        os.close(answer_out)
        try:
            child.wait(patience(10))
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        log.close()
