"""A headless Chromium that opens a page and acts as a user would.

The functions speak the DevTools protocol (https://chromedevtools.github.io).
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from websockets.sync.client import connect

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from websockets.sync.client import ClientConnection

NAMES = (
    *("chromium-headless-shell", "chrome-headless-shell", "chromium"),
    *("chromium-browser", "google-chrome", "google-chrome-stable"),
)


def find_browser() -> str | None:
    """Return the path of a Chromium, `ROXXEL_BROWSER` before those of the PATH."""
    wanted = os.environ.get("ROXXEL_BROWSER")
    return next(filter(None, map(shutil.which, [wanted] if wanted else NAMES)), None)


class Page:
    """One tab, with what it wrote to its console.

    Attributes:
        errors: Errors and warnings of the console, and uncaught exceptions.
    """

    def __init__(self, connection: ClientConnection, timeout_s: float = 600.0) -> None:
        self.errors: list[str] = []
        self._connection, self._timeout_s = connection, timeout_s
        self._ids = itertools.count()
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method of the protocol and return its result."""
        number = next(self._ids)
        message = {"id": number, "method": method, "params": params}
        self._connection.send(json.dumps(message))
        while True:
            answer = self._receive()
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]

    def open(
        self, path: Path, width: int, height: int = 900, *, is_phone: bool = False
    ) -> None:
        """Open a file in a window of this size, and wait until it is loaded."""
        self.call("Emulation.setTouchEmulationEnabled", enabled=is_phone)
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=is_phone,
        )
        self.call("Page.navigate", url=path.resolve().as_uri())
        self.wait("document.readyState === 'complete'")

    def run(self, expression: str) -> Any:
        """Return the value of a JavaScript expression, or of its promise."""
        done = self.call(
            "Runtime.evaluate",
            expression=expression,
            awaitPromise=True,
            returnByValue=True,
        )
        if "exceptionDetails" in done:
            raise RuntimeError(f"{expression}: {done['exceptionDetails']}")
        return done["result"].get("value")

    def wait(self, condition: str) -> None:
        """Wait for a JavaScript condition, which the page tests before each frame."""
        self.run(
            "new Promise((done, fail) => { const start = performance.now();"
            "const look = () => {"
            f"if ({condition}) done();"
            f"else if (performance.now() - start > {1000 * self._timeout_s / 2})"
            f" fail(new Error({json.dumps(condition)}));"
            "else requestAnimationFrame(look); }; look(); })"
        )

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        """Send an event of the mouse: `mouseMoved`, `mousePressed`, ..."""
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def click(self, x: float, y: float) -> None:
        """Click the left button."""
        self.mouse("mouseMoved", x, y)
        for kind in ("mousePressed", "mouseReleased"):
            self.mouse(kind, x, y, button="left", clickCount=1)

    def tap(self, x: float, y: float) -> None:
        """Touch the screen for a moment; the page must be open with `is_phone`."""
        for kind, points in (("touchStart", [{"x": x, "y": y}]), ("touchEnd", [])):
            self.call("Input.dispatchTouchEvent", type=kind, touchPoints=points)

    def drag(self, start: tuple[float, float], stop: tuple[float, float]) -> None:
        """Press the left button at `start`, and release it at `stop`."""
        self.mouse("mouseMoved", *start)
        self.mouse("mousePressed", *start, button="left", clickCount=1)
        middle = ((start[0] + stop[0]) / 2, (start[1] + stop[1]) / 2)
        for place in (middle, stop):
            self.mouse("mouseMoved", *place, button="left", buttons=1)
        self.mouse("mouseReleased", *stop, button="left", clickCount=1)

    def _receive(self) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self._connection.recv(self._timeout_s))
        params = answer.get("params", {})
        match answer.get("method"):
            case "Runtime.exceptionThrown":
                self.errors.append(json.dumps(params["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if params["type"] in {"error", "warning"}:
                self.errors.append(json.dumps(params["args"]))
            case "Log.entryAdded" if params["entry"]["level"] in {"error", "warning"}:
                self.errors.append(json.dumps(params["entry"]))
            case _:
                pass
        return answer


@contextmanager
def opened(browser: str, profile: Path) -> Generator[Page]:
    """Start a browser with its own profile, and end it after the block."""
    process = subprocess.Popen(
        [
            browser,
            *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"),
            *("--disable-dev-shm-usage", "--hide-scrollbars"),
            *("--remote-debugging-port=0", f"--user-data-dir={profile}"),
            "about:blank",
        ],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        start_new_session=True,  # its helpers end with it
    )
    try:
        assert process.stderr is not None
        place = next(
            line.split()[-1] for line in process.stderr if "DevTools listening" in line
        )
        with connect(place, max_size=None) as connection:
            targets = _call(connection, "Target.getTargets")["targetInfos"]
            tab = next(t["targetId"] for t in targets if t["type"] == "page")
        url = f"{place.split('/devtools/')[0]}/devtools/page/{tab}"
        with connect(url, max_size=None) as connection:
            yield Page(connection)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stderr is not None:
            process.stderr.close()


def _call(connection: ClientConnection, method: str) -> dict[str, Any]:
    connection.send(json.dumps({"id": 0, "method": method}))
    while True:
        answer: dict[str, Any] = json.loads(connection.recv(60.0))
        if answer.get("id") == 0:
            return answer["result"]
