"""A headless Chromium, driven through its debugging pipe: real keys, real wheels, real pixels, and no package for it."""

from __future__ import annotations

import base64
import io
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

_NAMES = ("chromium", "/usr/bin/chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_PATIENCE = 60.0  # seconds
_KEYS = {
    "ArrowRight": 39,
    "ArrowLeft": 37,
    "ArrowUp": 38,
    "ArrowDown": 40,
    "Tab": 9,
    "Home": 36,
    "End": 35,
    "Enter": 13,
}


def program() -> str | None:
    """Where a browser is, or None."""
    return next((found for name in _NAMES if (found := shutil.which(name))), None)


class Browser:
    """One page of a browser, closed at the end of a `with` block."""

    def __init__(self, folder: Path, width: int = 1200, height: int = 900) -> None:
        found = program()
        assert found is not None
        ours_read, theirs_write = os.pipe()
        theirs_read, ours_write = os.pipe()
        options = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--remote-debugging-pipe",
            "--no-first-run",
            "--host-resolver-rules=MAP * ~NOTFOUND",  # a page that loads something from elsewhere fails to
            f"--user-data-dir={folder / 'profile'}",
            "about:blank",
        ]
        # The browser reads commands from file descriptor 3 and writes to 4.
        move = (
            "import os, sys; r, w = (os.dup2(int(fd), 50 + i) for i, fd in enumerate(sys.argv[1:3])); "
            "os.dup2(r, 3); os.dup2(w, 4); os.execv(sys.argv[3], sys.argv[3:])"
        )
        self._process = subprocess.Popen(
            [sys.executable, "-c", move, str(theirs_read), str(theirs_write), found, *options],
            pass_fds=(theirs_read, theirs_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_read)
        os.close(theirs_write)
        self._read, self._write = ours_read, ours_write
        os.set_blocking(self._read, False)
        self._rest, self._count, self._session = b"", 0, ""
        self.complaints: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.size(width, height)

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(_PATIENCE)
        os.close(self._read)
        os.close(self._write)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and wait for its answer."""
        self._count += 1
        message: dict[str, Any] = {"id": self._count, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + _PATIENCE
        while time.monotonic() < until:
            for answer in self._answers():
                if answer.get("id") == self._count:
                    assert "error" not in answer, answer["error"]
                    return answer["result"]
            time.sleep(0.005)
        raise TimeoutError(f"the browser did not answer {method}")

    def _answers(self) -> list[dict[str, Any]]:
        try:
            chunk = os.read(self._read, 1 << 20)
        except BlockingIOError:
            return []
        *whole, self._rest = (self._rest + chunk).split(b"\0")
        found = [json.loads(part) for part in whole]
        for event in found:
            self._listen(event)
        return found

    def _listen(self, event: dict[str, Any]) -> None:
        method, values = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(values["exceptionDetails"]))
        if method == "Runtime.consoleAPICalled" and values["type"] in ("error", "warning", "assert"):
            self.complaints.append(json.dumps(values["args"]))
        if method == "Log.entryAdded" and values["entry"]["level"] in ("error", "warning"):
            self.complaints.append(values["entry"]["text"])

    def size(self, width: int, height: int = 900) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def media(self, **features: str) -> None:
        """What the reader's system prefers, as media(prefers_color_scheme="dark")."""
        named = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.call("Emulation.setEmulatedMedia", features=named)

    def open(self, page: Path, fragment: str = "") -> None:
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=page.resolve().as_uri() + fragment)
        self.wait("document.documentElement?.dataset.ready === 'yes' && document.readyState === 'complete'")

    def ask(self, expression: str) -> Any:
        """The value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait(self, condition: str) -> None:
        until = time.monotonic() + _PATIENCE
        while not self.ask(condition):
            assert time.monotonic() < until, f"in vain: {condition}"
            time.sleep(0.02)

    def press(self, key: str, times: int = 1) -> None:
        """Press a key, as the reader would."""
        code = _KEYS.get(key, ord(key.upper()) if len(key) == 1 else 0)
        named: dict[str, Any] = {"key": key, "windowsVirtualKeyCode": code}
        text = {"text": key} if len(key) == 1 else {"text": "\r"} if key == "Enter" else {}
        for _ in range(times):
            self.call("Input.dispatchKeyEvent", type="keyDown", **named, **text)
            self.call("Input.dispatchKeyEvent", type="keyUp", **named)

    def wheel(self, x: float, y: float, turn: float) -> None:
        self.call("Input.dispatchMouseEvent", type="mouseWheel", x=x, y=y, deltaX=0, deltaY=turn)

    def hover(self, x: float, y: float) -> None:
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def picture(self, whole: bool = False) -> np.ndarray:
        """The pixels of the window, or of the whole page, (height, width, 3)."""
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole, **self._clip(whole))[
            "data"
        ]
        return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB"))

    def _clip(self, whole: bool) -> dict[str, Any]:
        if not whole:
            return {}
        box = self.call("Page.getLayoutMetrics")["cssContentSize"]
        return {"clip": {"x": 0, "y": 0, "width": box["width"], "height": box["height"], "scale": 1}}


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if program() is None:
        pytest.skip("there is no Chromium on this machine")
    with Browser(tmp_path_factory.mktemp("browser")) as found:
        yield found
