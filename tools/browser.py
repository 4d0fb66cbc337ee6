"""A headless Chromium, driven over its DevTools protocol: what tests of the page and its screenshots are made with."""

import base64
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Self

from websockets.sync.client import ClientConnection, connect

NAMES = ("chromium", "chromium-browser", "google-chrome")  # as Debian and others call it
START_SECONDS = 60.0
ANSWER_SECONDS = 30.0  # liveness bounds, both

_FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--mute-audio", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-default-apps", "--disable-sync"),
    *("--disable-extensions", "--disable-dev-shm-usage", "--remote-debugging-port=0"),
)

# Windows' codes of keys, and what those write that write something.
_KEYS: Mapping[str, tuple[int, str]] = {
    "Tab": (9, ""),
    "Enter": (13, "\r"),
    "Escape": (27, ""),
    " ": (32, " "),
}
_SHIFT = 8

Event = dict[str, Any]


def find_browser() -> str | None:
    """Its path; None where there is none."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class BrowserError(Exception):
    """The browser, or a script in a page, has failed."""


class Browser:
    """A context; its process and its profile are gone behind it."""

    def __init__(self, path: str, environment: Mapping[str, str] | None = None) -> None:
        """environment: the whole of it; None: ours"""
        self._path = path
        self._environment = environment

    def __enter__(self) -> Self:
        self._profile = tempfile.TemporaryDirectory(prefix="triptych-browser-", ignore_cleanup_errors=True)
        self._log = (Path(self._profile.name) / "log").open("w+")
        command = [self._path, *_FLAGS, f"--user-data-dir={self._profile.name}", "about:blank"]
        self._process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=self._log, env=dict(self._environment or {}) or None
        )
        try:
            self._connection = connect(self._address(), max_size=None)
        except BaseException:
            self.__exit__()
            raise
        self._number = 0
        self._tabs: dict[str, Tab] = {}
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(timeout=10)
        self._log.close()
        self._profile.cleanup()

    def open(self, beside: "Tab | None" = None) -> "Tab":
        """An empty page, in sight.

        beside: a tab in whose window it is, and which it hides; None: a window of its own, with no cookies, no storage
        and no connections of others
        """
        context = beside.context if beside else self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        tab = self._tabs[session] = Tab(self, session, context, target)
        for domain in ("Page", "Runtime", "Log", "Network", "Accessibility"):
            tab.call(f"{domain}.enable")
        return tab

    def close(self, tab: "Tab") -> None:
        """The last one of a window takes with it what the window has kept."""
        self._tabs.pop(tab.session)
        if any(other.context == tab.context for other in self._tabs.values()):
            self.call("Target.closeTarget", targetId=tab.target)
        else:
            self.call("Target.disposeBrowserContext", browserContextId=tab.context)

    def call(self, method: str, session: str = "", **params: Any) -> dict[str, Any]:
        """What the browser answers; events that come meanwhile go to their tabs. Raises BrowserError."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        self._connection.send(json.dumps(message | ({"sessionId": session} if session else {})))
        until = time.monotonic() + ANSWER_SECONDS
        while True:
            answer = self.receive(until - time.monotonic())
            if answer is None:
                raise BrowserError(f"{method} was not answered within {ANSWER_SECONDS:g} s")
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise BrowserError(f"{method}: {answer['error']['message']}")
                result: dict[str, Any] = answer["result"]
                return result

    def receive(self, seconds: float) -> dict[str, Any] | None:
        """The next message, handed to its tab where it is an event; None where none comes in time."""
        connection: ClientConnection = self._connection
        try:
            message: dict[str, Any] = json.loads(connection.recv(timeout=max(0.0, seconds)))
        except TimeoutError:
            return None
        tab = self._tabs.get(message.get("sessionId", ""))
        if tab is not None and "method" in message:
            tab.events.append(message)
        return message

    def _address(self) -> str:
        """Where it listens, as it writes down once it does."""
        told = Path(self._profile.name) / "DevToolsActivePort"
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until and self._process.poll() is None:
            lines = told.read_text().split() if told.exists() else []
            if len(lines) == 2:
                return f"ws://127.0.0.1:{lines[0]}{lines[1]}"
            time.sleep(0.02)
        raise BrowserError(f"{self._path} did not start: {_tail(self._log)}")


class Tab:
    """One page. events: all that the browser has told of it, in order."""

    def __init__(self, browser: Browser, session: str, context: str, target: str) -> None:
        self.session = session
        self.context = context
        self.target = target
        self.events: list[Event] = []
        self._browser = browser

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        return self._browser.call(method, self.session, **params)

    def close(self) -> None:
        self._browser.close(self)

    def show(self) -> None:
        """Brings it to the front of its window; the one that was there is hidden."""
        self.call("Page.bringToFront")

    def go(self, url: str) -> None:
        """Returns once the page and what it consists of are there."""
        self.events_of("Page.loadEventFired", take=True)
        failed = self.call("Page.navigate", url=url).get("errorText")
        if failed:
            raise BrowserError(f"{url}: {failed}")
        self.wait_event("Page.loadEventFired")

    def evaluate(self, script: str) -> Any:
        """The value of an expression, of what it promises if it promises something. Raises BrowserError."""
        answer = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise BrowserError(details.get("exception", {}).get("description") or details["text"])
        return answer["result"].get("value")

    def wait(self, condition: str, seconds: float = 15.0) -> Any:
        """The first value of an expression that counts as true. Raises BrowserError where there is none in time."""
        return self.evaluate(
            f"""new Promise((resolve, reject) => {{
              const until = performance.now() + {seconds * 1000};
              const look = () => {{
                const value = ({condition});
                if (value) resolve(value);
                else if (performance.now() > until) reject(new Error({json.dumps(f"never so: {condition}")}));
                else setTimeout(look, 10);
              }};
              look();
            }})"""
        )

    def events_of(self, method: str, take: bool = False) -> list[Event]:
        """take: forget them"""
        found = [event for event in self.events if event["method"] == method]
        if take:
            self.events = [event for event in self.events if event["method"] != method]
        return found

    def wait_event(self, method: str, seconds: float = ANSWER_SECONDS) -> Event:
        until = time.monotonic() + seconds
        while not (found := self.events_of(method)):
            if self._browser.receive(until - time.monotonic()) is None:
                raise BrowserError(f"{method} did not come within {seconds:g} s")
        return found[0]

    def press(self, key: str, shift: bool = False) -> None:
        """As somebody at the keyboard does."""
        code, text = _KEYS[key]
        event = {"key": key, "code": {" ": "Space"}.get(key, key), "windowsVirtualKeyCode": code}
        event |= {"modifiers": _SHIFT if shift else 0}
        self.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", text=text, **event)
        self.call("Input.dispatchKeyEvent", type="keyUp", **event)

    def type(self, text: str) -> None:
        """Into whatever has the focus."""
        self.call("Input.insertText", text=text)

    def prefer(self, **features: str) -> None:
        """Media features as the browser's owner has them: prefers_color_scheme="dark"."""
        told = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.call("Emulation.setEmulatedMedia", features=told)

    def resize(self, width: int, height: int, scale: float = 1) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=False
        )

    def choose_files(self, paths: Sequence[Path]) -> None:
        """Answers the dialogue that the page has just opened; `catch_files` must have been called before."""
        opened = self.wait_event("Page.fileChooserOpened")
        self.call(
            "DOM.setFileInputFiles",
            files=[str(path) for path in paths],
            backendNodeId=opened["params"]["backendNodeId"],
        )

    def catch_files(self) -> None:
        """From now on no dialogue opens where the page asks for a file."""
        self.call("Page.setInterceptFileChooserDialog", enabled=True)

    def picture(self) -> bytes:
        """The whole page as PNG."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        taken = self.call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
        return base64.b64decode(taken["data"])


def _tail(log: IO[str]) -> str:
    log.flush()
    log.seek(0)
    return log.read()[-1000:]
