"""A real browser without a screen, where there is one: opens pages, clicks, takes pictures (DevTools protocol)."""

from __future__ import annotations

import base64
import itertools
import json
import shutil
import subprocess
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from linglue.io.images import Image

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
OPTIONS = (
    "--headless=new",
    "--no-sandbox",
    "--use-angle=swiftshader",
    "--enable-unsafe-swiftshader",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
)


class Browser:
    """One page of a headless Chromium; closes with its block. Skips the test where there is no Chromium.

    Args:
        folder: for its profile.
        size: of the page, in pixels.
    """

    def __init__(self, folder: Path, size: tuple[int, int] = (1100, 2000)) -> None:
        client = pytest.importorskip("websockets.sync.client")
        program = next(filter(None, map(shutil.which, PROGRAMS)), None)
        if program is None:
            pytest.skip("needs Chromium (Debian: apt install chromium)")
        command = [program, *OPTIONS, f"--user-data-dir={folder / 'profile'}", "--window-size={},{}".format(*size)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        port = int(self._wait_for(folder / "profile" / "DevToolsActivePort").split()[0])
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json") as answer:
            page = next(target for target in json.load(answer) if target["type"] == "page")
        self._open = ExitStack()
        self._socket = self._open.enter_context(client.connect(page["webSocketDebuggerUrl"], max_size=None))
        self._numbers = itertools.count(1)

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()
        self._process.kill()
        self._process.wait()

    def open(self, address: str) -> None:
        """Begin to load a page."""
        self._call("Page.navigate", url=address)

    def text(self) -> str:
        """What can be read on the page."""
        expression = "document.body ? document.body.innerText : ''"
        return str(self._call("Runtime.evaluate", expression=expression)["result"].get("value", ""))

    def wait_for_text(self, wanted: str, seconds: float = 120) -> None:
        """Until the page says something."""
        deadline = time.monotonic() + seconds
        while wanted not in self.text():
            assert time.monotonic() < deadline, f"{wanted!r} is not in {self.text()!r}"
            time.sleep(0.3)

    def place(self, selector: str) -> tuple[float, float]:
        """The middle of the first element that a CSS selector finds."""
        element = f"document.querySelector({json.dumps(selector)})"
        expression = f"(r=>[r.x+r.width/2,r.y+r.height/2])({element}.getBoundingClientRect())"
        found = self._call("Runtime.evaluate", expression=expression, returnByValue=True)["result"]["value"]
        return float(found[0]), float(found[1])

    def click(self, x: float, y: float) -> None:
        """Press and release the left button."""
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            pressed = {} if kind == "mouseMoved" else {"button": "left", "clickCount": 1}
            self._call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **pressed)
            time.sleep(0.3)

    def picture(self) -> Image:
        """(H, W, 3) what the page looks like."""
        data = base64.b64decode(self._call("Page.captureScreenshot", format="png")["data"])
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
        assert pixels is not None
        return np.asarray(pixels[..., ::-1], dtype=np.uint8)

    def wait_for_picture(self, good: Any, seconds: float = 120) -> Image:
        """The first picture about which `good` says True."""
        deadline = time.monotonic() + seconds
        while True:
            seen = self.picture()
            if good(seen) or time.monotonic() > deadline:
                return seen
            time.sleep(1)

    def _call(self, method: str, **values: Any) -> dict[str, Any]:
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": values}))
        while True:
            answer = json.loads(self._socket.recv(timeout=120))
            if answer.get("id") == number:
                return dict(answer["result"])

    def _wait_for(self, file: Path) -> str:
        deadline = time.monotonic() + 60
        while not file.is_file() or not file.read_text().strip():
            if time.monotonic() > deadline or self._process.poll() is not None:
                pytest.skip("Chromium does not start here")
            time.sleep(0.1)
        return file.read_text()
