"""A headless Chromium, spoken to through its DevTools protocol over a pair of pipes: no port, no driver program.

Pipes:     Chromium reads commands from descriptor 3 and writes answers and events to descriptor 4, JSON behind which
           comes a zero byte (`--remote-debugging-pipe`).
Loaded:    a navigation has an id, and so has the end of its loading: that of the empty page which Chromium starts with
           may come at any time.
Noted:     everything that a page says in its console, every exception, and every request that it makes.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
TIMEOUT_S = 60.0
WITHOUT = "no Chromium on the PATH: install Debian's package `chromium` to have the report opened in it"
_FLAGS = (
    "--headless=new",
    "--no-sandbox",  # Containers seldom allow it, and the page is ours.
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
    "--remote-debugging-pipe",
)
_LAUNCH = """import os, sys
os.dup2(int(sys.argv[1]), 3)
os.dup2(int(sys.argv[2]), 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


def find_chromium() -> str | None:
    return next((found for name in NAMES if (found := shutil.which(name))), None)


@dataclass(slots=True)
class Noted:
    console: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


class Chromium:
    """One browser with one page; `with` ends it."""

    def __init__(self, program: str, profile: Path) -> None:
        self.noted = Noted()
        self._last = 0
        self._buffer = b""
        self._page = ""
        self._loaded: set[str] = set()
        """Navigations whose page is there with all that belongs to it."""
        to_browser, self._commands = os.pipe()
        self._answers, from_browser = os.pipe()
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (to_browser, from_browser)]
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                _LAUNCH,
                *map(str, ends),
                program,
                *_FLAGS,
                f"--user-data-dir={profile}",
                "about:blank",
            ],
            pass_fds=ends,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for end in (to_browser, from_browser, *ends):
            os.close(end)
        self._session = self._attach()

    def open(self, page: Path, *, width: int, height: int, scheme: str = "light") -> None:
        """Returns when it is loaded. `scheme` is light or dark."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **metrics)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        begun = self.call("Page.navigate", url=page.as_uri())
        assert "errorText" not in begun, begun
        self._handle_until(lambda: begun["loaderId"] in self._loaded)

    def evaluate(self, expression: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def screenshot(self, path: Path, *, whole_page: bool) -> None:
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole_page)
        path.write_bytes(base64.b64decode(answer["data"]))

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._call(method, parameters, self._session)

    def close(self) -> None:
        self._process.kill()
        self._process.wait(TIMEOUT_S)
        for descriptor in (self._commands, self._answers):
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()

    def _attach(self) -> str:
        try:
            self._call("Target.setDiscoverTargets", {"discover": True}, None)
            self._handle_until(lambda: bool(self._page))  # It answers before it has opened one.
            chosen = {"targetId": self._page, "flatten": True}
            session: str = self._call("Target.attachToTarget", chosen, None)["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network"):
                self._call(f"{domain}.enable", {}, session)
            self._call("Page.setLifecycleEventsEnabled", {"enabled": True}, session)
        except BaseException:
            self.close()
            raise
        return session

    def _call(self, method: str, parameters: dict[str, Any], session: str | None) -> dict[str, Any]:
        self._last += 1
        command = {"id": self._last, "method": method, "params": parameters}
        os.write(self._commands, json.dumps(command | ({"sessionId": session} if session else {})).encode() + b"\0")
        deadline = time.monotonic() + TIMEOUT_S
        while (message := self._read(deadline)).get("id") != self._last:
            self._handle(message)
        assert "error" not in message, f"{method}: {message['error']}"
        result: dict[str, Any] = message["result"]
        return result

    def _handle_until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not condition():
            self._handle(self._read(deadline))

    def _read(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._answers], [], [], max(deadline - time.monotonic(), 0))
            more = os.read(self._answers, 1 << 20) if ready else b""
            if not more:
                raise TimeoutError("Chromium did not answer" if not ready else "Chromium has ended")
            self._buffer += more
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message

    def _handle(self, event: dict[str, Any]) -> None:
        method, parameters = event.get("method"), event.get("params", {})
        match method:
            case "Target.targetCreated" if parameters["targetInfo"]["type"] == "page":
                self._page = self._page or parameters["targetInfo"]["targetId"]
            case "Page.lifecycleEvent" if parameters["name"] == "load":
                self._loaded.add(parameters["loaderId"])
            case "Runtime.consoleAPICalled" | "Runtime.exceptionThrown" | "Log.entryAdded":
                self.noted.console.append(json.dumps(parameters))
            case "Network.requestWillBeSent":
                self.noted.requests.append(parameters["request"]["url"])
            case _:
                pass  # Chromium tells much more than anybody asked for.
