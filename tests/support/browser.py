"""A headless Chromium that is driven over a pipe with the Chrome DevTools Protocol.

It needs no package and no port: with ``--remote-debugging-pipe`` the browser reads commands from
file descriptor 3 and writes answers to descriptor 4, each a JSON text that ends with a zero byte.
"""

import base64
import fcntl
import itertools
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

# Software WebGL, and nothing that Chromium does on its own.
_OPTIONS = (
    "--headless",
    "--remote-debugging-pipe",
    "--use-gl=angle",
    "--use-angle=swiftshader",
    "--enable-unsafe-swiftshader",
    "--disable-gpu-compositing",  # Only WebGL: without a GPU, pages are drawn faster without it.
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-dev-shm-usage",  # It is too small in most containers.
    "--disable-extensions",
    "--disable-sync",
    "--hide-scrollbars",
    "--no-first-run",
)
_TIMEOUT_S = 60.0


class BrowserError(Exception):
    """The browser could not be started, did not answer, or a script in the page failed."""


def find_chromium() -> str | None:
    """Return the path of an installed Chromium or Chrome, or None."""
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    return next((path for name in names if (path := shutil.which(name))), None)


class Browser:
    """A running browser.

    Args:
        process: The process.
        commands: File descriptor that commands are written to.
        answers: File descriptor that answers are read from.
        log: File with the standard error of the process.
    """

    def __init__(
        self, process: "subprocess.Popen[bytes]", commands: int, answers: int, log: Path
    ) -> None:
        self._process, self._log = process, log
        self._commands, self._answers = commands, answers
        self._received = b""
        self._ids = itertools.count(1)
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its result; events that come before it are kept."""
        number = next(self._ids)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._commands, data) :]
        deadline = time.monotonic() + _TIMEOUT_S
        while True:
            answer = self._receive(method, deadline)
            if answer.get("id") != number:
                self.events.append(answer)
            elif "error" in answer:
                raise BrowserError(f"{method} failed: {answer['error']['message']}")
            else:
                result: dict[str, Any] = answer["result"]
                return result

    def _receive(self, method: str, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._received:
            remaining = max(deadline - time.monotonic(), 0)
            if not select.select([self._answers], [], [], remaining)[0]:
                raise BrowserError(f"no answer to {method} within {_TIMEOUT_S:g} s")
            part = os.read(self._answers, 1 << 20)
            if not part:
                lines = self._log.read_text(errors="replace").splitlines()
                raise BrowserError(f"the browser ended during {method}: " + "\n".join(lines[-20:]))
            self._received += part
        first, self._received = self._received.split(b"\0", 1)
        message: dict[str, Any] = json.loads(first)
        return message

    def open(self, url: str, *, width: int = 1280, height: int = 800) -> "Page":
        """Open a page in a new tab and wait until it is loaded.

        Args:
            url: Address of the page.
            width: Width of the view in CSS pixels; below 600 a phone is emulated.
            height: Height of the view in CSS pixels.
        """
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        page = Page(self, target, attached["sessionId"])
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.call(f"{domain}.enable")
        page.resize(width, height)
        page.call("Page.navigate", url=url)
        page.wait("location.href !== 'about:blank' && document.readyState === 'complete'")
        return page


class Page:
    """A tab of the browser."""

    def __init__(self, browser: Browser, target: str, session: str) -> None:
        self._browser, self._target, self._session = browser, target, session
        self._media: dict[str, str] = {}

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command to the tab and return its result."""
        return self._browser.call(method, self._session, **parameters)

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression, or of the promise that it gives."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            text = details.get("exception", {}).get("description", details["text"])
            raise BrowserError(f"{text} in {expression}")
        return answer["result"].get("value")

    def wait(self, condition: str, timeout_s: float = 15.0) -> Any:
        """Wait until an expression is true, and return its value."""
        deadline = time.monotonic() + timeout_s
        while True:
            # A new document may end the promise of the old one.
            with suppress(BrowserError):
                value = self.evaluate(_POLL.replace("CONDITION", condition))
                if value:
                    return value
            if time.monotonic() > deadline:
                raise BrowserError(f"not true within {timeout_s:g} s: {condition}")

    def events(self, *methods: str) -> list[dict[str, Any]]:
        """Return the parameters of the events with these names, in order."""
        self.evaluate("0")  # What came before the answer is kept.
        return [
            event["params"]
            for event in self._browser.events
            if event.get("sessionId") == self._session and event["method"] in methods
        ]

    def messages(self) -> list[str]:
        """Return errors and warnings of the console, and exceptions that nothing caught."""
        found = []
        for event in self.events(
            "Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"
        ):
            if "exceptionDetails" in event:
                details = event["exceptionDetails"]
                found.append(details.get("exception", {}).get("description", details["text"]))
            elif "entry" in event and event["entry"]["level"] in ("warning", "error"):
                found.append(event["entry"]["text"])
            elif event.get("type") in ("warning", "error", "assert"):
                arguments = (value.get("value", value) for value in event["args"])
                found.append(" ".join(map(str, arguments)))
        return found

    def requests(self) -> list[str]:
        """Return the addresses that the page requested."""
        events = self.events("Network.requestWillBeSent", "Network.webSocketCreated")
        return [event["request"]["url"] if "request" in event else event["url"] for event in events]

    def resize(self, width: int, height: int, *, scale: float = 1) -> None:
        """Set the size of the view; below 600 pixels it is the view of a phone."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=width < 600,
        )

    def emulate(self, *, medium: str | None = None, color_scheme: str | None = None) -> None:
        """Emulate a medium (``"print"`` or ``"screen"``) or a preferred color scheme."""
        self._media |= {} if medium is None else {"medium": medium}
        self._media |= {} if color_scheme is None else {"color_scheme": color_scheme}
        features = [{"name": "prefers-color-scheme", "value": self._media.get("color_scheme", "")}]
        medium = self._media.get("medium", "")
        self.call("Emulation.setEmulatedMedia", media=medium, features=features)

    def drag(self, start: tuple[float, float], end: tuple[float, float], *, steps: int = 5) -> None:
        """Press the left button at a point of the view, move to another one and release it."""
        mouse = {"button": "left", "clickCount": 1}
        self._mouse("mouseMoved", start)
        self._mouse("mousePressed", start, **mouse)
        for step in range(1, steps + 1):
            x, y = (a + (b - a) * step / steps for a, b in zip(start, end, strict=True))
            self._mouse("mouseMoved", (x, y), buttons=1, button="left")
        self._mouse("mouseReleased", end, **mouse)

    def click(self, selector: str) -> None:
        """Click on the center of an element, with the mouse."""
        point = self.evaluate(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            "e.scrollIntoView({block: 'center', behavior: 'instant'});"
            "const r = e.getBoundingClientRect();"
            "return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        self.drag(point, point, steps=0)

    def _mouse(self, kind: str, point: tuple[float, float], **parameters: Any) -> None:
        self.call("Input.dispatchMouseEvent", type=kind, x=point[0], y=point[1], **parameters)

    def screenshot(self, *, whole_page: bool = False) -> bytes:
        """Return the view, or the whole page, as a PNG file."""
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole_page)
        return base64.b64decode(answer["data"])

    def pdf(self) -> bytes:
        """Print the page and return the PDF file."""
        return base64.b64decode(self.call("Page.printToPDF", printBackground=True)["data"])

    def close(self) -> None:
        """Close the tab."""
        self._browser.call("Target.closeTarget", targetId=self._target)


_POLL = """new Promise((resolve) => {
  const end = performance.now() + 500;
  const look = () => {
    const value = (CONDITION);
    if (value || performance.now() > end) resolve(value);
    else setTimeout(look, 20);
  };
  look();
})"""


def _pipe() -> tuple[int, int]:
    """A pipe whose descriptors are not the numbers 3 and 4, which the shell sets."""
    low = os.pipe()
    high = tuple(fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10) for descriptor in low)
    for descriptor in low:
        os.close(descriptor)
    return high[0], high[1]


@contextmanager
def open_browser(path: str) -> Iterator[Browser]:
    """Start a browser, and end it with its files when the block ends.

    Args:
        path: Program of Chromium or Chrome.
    """
    command_read, command_write = _pipe()
    answer_read, answer_write = _pipe()
    options = [*_OPTIONS, *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    # The shell gives the pipes the numbers that Chromium expects.
    script = f'exec 3<&{command_read} 4>&{answer_write} "$0" "$@"'
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        log = Path(profile, "log")
        with log.open("wb") as errors:
            process = subprocess.Popen(
                ["bash", "-c", script, path, *options, f"--user-data-dir={profile}", "about:blank"],
                pass_fds=(command_read, answer_write),
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
            )
        os.close(command_read)
        os.close(answer_write)
        browser = Browser(process, command_write, answer_read, log)
        try:
            yield browser
        finally:
            with suppress(BrowserError, OSError):
                browser.call("Browser.close")
            os.close(command_write)
            os.close(answer_read)
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
