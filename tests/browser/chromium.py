"""Chromium without a window, told what to do over the pipe that its debugger reads."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)
PATIENCE = 60  # seconds for any answer: it is slow only where nothing will come


class Chromium:
    """One page in one browser; keeps what it logged and what it asked the network for."""

    def __init__(self, home: Path) -> None:
        assert PROGRAM is not None
        theirs, self._to = os.pipe()
        self._from, ours = os.pipe()
        command = [PROGRAM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"]
        command += ["--disable-dev-shm-usage", "--remote-debugging-pipe", f"--user-data-dir={home}"]
        # The debugger reads 3 and writes 4, whatever numbers the pipes have here.
        script = f'exec "$0" "$@" 3<&{theirs} 4>&{ours}'
        self._process = subprocess.Popen(
            ["bash", "-c", script, *command, "about:blank"],
            pass_fds=(theirs, ours),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs)
        os.close(ours)
        self._rest, self._number, self._session = b"", 0, ""
        self.events: list[dict[str, Any]] = []
        pages = self.do("Target.getTargets")["targetInfos"]
        target = next(tab["targetId"] for tab in pages if tab["type"] == "page")
        attached = self.do("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for name in ("Page", "Runtime", "Log", "Network"):
            self.do(f"{name}.enable")

    def do(self, method: str, /, **settings: Any) -> dict[str, Any]:
        """One command of the protocol, and what it answers."""
        self._number += 1
        order = {"id": self._number, "method": method, "params": settings}
        if self._session:
            order["sessionId"] = self._session
        os.write(self._to, json.dumps(order).encode() + b"\0")
        while True:
            message = self._read()
            if message.get("id") == self._number:
                assert "error" not in message, message
                return dict(message["result"])
            self.events.append(message)

    def open(self, page: Path) -> None:
        """Load a page from disk, wholly."""
        self.visit(page.resolve().as_uri())

    def visit(self, url: str) -> None:
        """Load a page from its address, wholly."""
        self._load("Page.navigate", url=url)

    def reload(self) -> None:
        """Load the page again, wholly: else the end of it would pass for that of the next page."""
        self._load("Page.reload")

    def _load(self, how: str, **settings: Any) -> None:
        self.events.clear()
        self.do(how, **settings)
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._read())

    def ask(self, script: str) -> Any:
        """What an expression comes to in the page."""
        result = self.do("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait(self, script: str) -> None:
        """Until an expression holds in the page, which may load itself meanwhile."""
        end = time.monotonic() + PATIENCE
        while not self.ask(script):
            if time.monotonic() > end:
                raise TimeoutError(script)
            time.sleep(0.1)

    def click(self, element: str) -> None:
        """Press and release the mouse on what an expression finds."""
        place = {**self._place(element), "button": "left", "clickCount": 1}
        for kind in ("mousePressed", "mouseReleased"):
            self.do("Input.dispatchMouseEvent", type=kind, **place)

    def hover(self, element: str, share: float = 0.5) -> None:
        """Move the mouse over an element, to a share of its width."""
        self.do("Input.dispatchMouseEvent", type="mouseMoved", **self._place(element, share))

    def drag(self, element: str, start: float, end: float) -> None:
        """Drag the mouse over an element, from a share of its width to another."""
        first, last = self._place(element, start), self._place(element, end)
        held = {"button": "left", "buttons": 1, "clickCount": 1}
        self.do("Input.dispatchMouseEvent", type="mousePressed", **first, **held)
        for share in (0.5, 1.0):
            place = {axis: first[axis] + share * (last[axis] - first[axis]) for axis in first}
            self.do("Input.dispatchMouseEvent", type="mouseMoved", **place, **held)
        self.do("Input.dispatchMouseEvent", type="mouseReleased", **last, **held)

    def _place(self, element: str, share: float = 0.5) -> dict[str, float]:
        """The middle of what an expression finds, or another share of its width, in view."""
        self.ask(f"{element}.scrollIntoView({{block: 'center'}})")
        box = self.ask(
            f"(({{x, y, width, height}}) => [x + {share} * width, y + height / 2])"
            f"({element}.getBoundingClientRect())"
        )
        return {"x": box[0], "y": box[1]}

    def press(self, key: str) -> None:
        """A key, wherever the focus is."""
        for kind in ("keyDown", "keyUp"):
            self.do("Input.dispatchKeyEvent", type=kind, key=key)

    def size(self, width: int, height: int) -> None:
        """The window's, in the page's own pixels."""
        shape = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.do("Emulation.setDeviceMetricsOverride", **shape)

    def emulate(self, *, scheme: str = "light", media: str = "") -> None:
        """Light or dark, screen or print."""
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.do("Emulation.setEmulatedMedia", media=media, features=[feature])

    def named(self) -> list[tuple[str, str]]:
        """Role and name of everything that a screen reader is told of."""
        nodes = self.do("Accessibility.getFullAXTree")["nodes"]
        visible = [node for node in nodes if not node["ignored"]]
        return [(str(node["role"]["value"]), str(node["name"]["value"])) for node in visible
                if "name" in node]  # fmt: skip

    def picture(self) -> bytes:
        """The whole page as PNG."""
        whole = self.do("Page.captureScreenshot", captureBeyondViewport=True)
        return base64.b64decode(whole["data"])

    def printed(self) -> bytes:
        """The page as PDF."""
        return base64.b64decode(self.do("Page.printToPDF", printBackground=False)["data"])

    def drag_to(self, first: str, last: str) -> None:
        """Press the mouse on what one expression finds, and release it on what another does."""
        self.ask(f"{first}.scrollIntoView({{block: 'center'}})")
        middle = "(({x, y, width, height}) => [x + width / 2, y + height / 2])"
        ends = [self.ask(f"{middle}({end}.getBoundingClientRect())") for end in (first, last)]
        (x, y), (to_x, to_y) = ends
        mouse = {"button": "left", "clickCount": 1}
        self.do("Input.dispatchMouseEvent", type="mousePressed", x=x, y=y, **mouse)
        for part in range(1, 9):
            way = {"x": x + (to_x - x) * part / 8, "y": y + (to_y - y) * part / 8}
            self.do("Input.dispatchMouseEvent", type="mouseMoved", buttons=1, **way)
        self.do("Input.dispatchMouseEvent", type="mouseReleased", x=to_x, y=to_y, **mouse)

    def strike(self, key: str, *, shift: bool = False) -> None:
        """A key with what it does of itself: Enter and Space press a button, Tab moves on."""
        held, codes = {"modifiers": 8 if shift else 0}, {"Enter": 13, " ": 32, "Tab": 9}
        codes |= {"ArrowLeft": 37, "ArrowRight": 39, "Home": 36, "End": 35}
        typed = {"text": "\r" if key == "Enter" else key} if key in ("Enter", " ") else {}
        code = {"windowsVirtualKeyCode": codes[key]} if key in codes else {}
        self.do("Input.dispatchKeyEvent", type="keyDown", key=key, **held, **typed, **code)
        self.do("Input.dispatchKeyEvent", type="keyUp", key=key, **held, **code)

    def write(self, field: str, text: str) -> None:
        """Put a text into a field in place of what is there, as a reader does."""
        self.ask(f"({field}.focus(), {field}.select())")
        self.do("Input.insertText", text=text)

    def logged(self) -> list[dict[str, Any]]:
        """What the page's console and the browser had to say."""
        kinds = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
        return [event for event in self.events if event.get("method") in kinds]

    def requests(self) -> list[str]:
        """Every address that was asked for."""
        sent = [
            event for event in self.events if event.get("method") == "Network.requestWillBeSent"
        ]
        return [event["params"]["request"]["url"] for event in sent]

    def close(self) -> None:
        """End it; it is gone when this returns."""
        os.close(self._to)
        os.close(self._from)
        self._process.terminate()
        self._process.wait(timeout=PATIENCE)

    def _read(self) -> dict[str, Any]:
        """The next message, each ended by a zero."""
        end = time.monotonic() + PATIENCE
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._from], [], [], max(0.0, end - time.monotonic()))
            more = os.read(self._from, 1 << 16) if ready else b""
            if not more:
                raise TimeoutError("the browser does not answer")
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\0")
        return dict(json.loads(line))
