"""A local server that shows the report of runs in progress and rebuilds it when files change."""

import json
import os
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path
from typing import Any, TypeAlias

from protosphere.report.content import Note, Section
from protosphere.report.create import create_report
from protosphere.report.page import create_page
from protosphere.report.read import ReportError, read_sources
from protosphere.runs.folder import RunFolder

ADDRESS = "127.0.0.1"
# Names by which a browser on this machine, or at the other end of an SSH tunnel, calls the server.
# Pages of other sites whose name resolves to 127.0.0.1 send their own name.
_HOSTS = (ADDRESS, "localhost")
_INTERVAL_S = 2.0
# A large report takes seconds to build: it must not take all the time of a core.
_PAUSE_RATIO = 4.0
_SUFFIXES = (".json", ".jsonl", ".yaml", ".safetensors")
# Runs are searched three levels deep, and the results of benchmarks are in a folder of the run.
_DEPTH = 5
_HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}

Fingerprint: TypeAlias = tuple[tuple[str, int, int], ...]


def read_fingerprint(sources: Sequence[Path]) -> Fingerprint:
    """Return path, size and time of change of every file that a report may read.

    For the locks of runs, the number is 1 while a process uses the run.

    Args:
        sources: Files and folders; those that do not exist are left out.
    """
    return tuple(sorted(row for source in sources for row in _files(source, _DEPTH)))


def _files(path: Path | str, depth: int) -> Iterator[tuple[str, int, int]]:
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.is_dir():
                    # Checkpoints are large, change often and are not shown.
                    if depth > 1 and entry.name != "checkpoints" and entry.name[0] != ".":
                        yield from _files(entry.path, depth - 1)
                elif entry.name == ".lock":
                    yield entry.path, RunFolder(path).is_locked(), 0
                elif entry.name.endswith(_SUFFIXES):
                    status = entry.stat()
                    yield entry.path, status.st_size, status.st_mtime_ns
    except NotADirectoryError:
        status = Path(path).stat()
        yield str(path), status.st_size, status.st_mtime_ns
    except OSError:  # It was removed meanwhile, or cannot be read; the report says the latter.
        return


@dataclass(frozen=True)
class Snapshot:
    """A page and what became of the last attempt to build it.

    Attributes:
        page: The page.
        version: Text that is different for each page and each server.
        problem: Why the page could not be built again; None if it is up to date.
    """

    page: str
    version: str
    problem: str | None = None


class WatchedReport:
    """The newest page of sources that change.

    Nothing is read as long as nobody asks for the page.

    Args:
        sources: Files and folders that the page is built from.
        build: Function that returns the page, given its version.
        fallback: Function that returns the page to show before the first one could be built, given
            its version.
        clock: Function that returns the time in seconds.
    """

    def __init__(
        self,
        sources: Sequence[Path],
        build: Callable[[str], str],
        fallback: Callable[[str], str],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sources, self._clock = tuple(sources), clock
        self._build, self._fallback = build, fallback
        self._server = secrets.token_hex(4)
        self._count = 0
        self._seen: Fingerprint | None = None
        self._next_look = clock()
        self._building = threading.Lock()
        self._snapshot: Snapshot | None = None

    def snapshot(self) -> Snapshot:
        """Return the newest page; it is built again if files changed since the last time."""
        # While one request builds the page, the others get the last one.
        if self._building.acquire(blocking=self._snapshot is None):
            try:
                if self._snapshot is None or self._clock() >= self._next_look:
                    self._snapshot = self._look()
            finally:
                self._building.release()
        assert self._snapshot is not None
        return self._snapshot

    def _look(self) -> Snapshot:
        """Return the last page, or a new one if files have changed."""
        started = self._clock()
        # Files that change while they are read are read again next time.
        fingerprint = read_fingerprint(self._sources)
        last = self._snapshot
        if last is None or fingerprint != self._seen:
            self._seen = fingerprint
            last = self._create(last)
        now = self._clock()
        self._next_look = now + max(_INTERVAL_S, _PAUSE_RATIO * (now - started))
        return last

    def _create(self, last: Snapshot | None) -> Snapshot:
        self._count += 1
        version = f"{self._server}-{self._count}"
        try:
            return Snapshot(self._build(version), version)
        # A run that is being written may be in any state: the page before it stays.
        except Exception as error:
            words = str(error) if isinstance(error, ValueError) else repr(error)
            problem = f"The page could not be built again: {words}"
            if last is None:
                return Snapshot(self._fallback(version), version, problem)
            return Snapshot(last.page, last.version, problem)


def watch_sources(
    sources: Sequence[Path], *, clock: Callable[[], float] = time.monotonic
) -> WatchedReport:
    """Return the report of runs in progress.

    Args:
        sources: As of a report; a folder may still be empty.
        clock: Function that returns the time in seconds.

    Raises:
        ReportError: A source does not exist.
    """
    for source in sources:
        if not source.exists():
            raise ReportError(f"a source of a report must be a folder or a file, got {source}")

    def build(version: str) -> str:
        script = _script(version)
        try:
            report = read_sources(sources)
        except ReportError as error:
            reason = str(error)
            note = f"{reason[:1].upper()}{reason[1:]}. Runs appear here as soon as they start."
            section = Section("overview", "Overview", "", (Note(note, "missing"),))
            return create_page("No run yet", "", [section], live_script=script)
        return create_report(report, live_script=script)

    def fallback(version: str) -> str:
        return create_page("No page yet", "", [], live_script=_script(version))

    return WatchedReport(sources, build, fallback, clock=clock)


def _script(version: str) -> str:
    script = resources.files("protosphere.report") / "assets" / "watch.js"
    return script.read_text(encoding="utf-8").replace("@VERSION@", version)


class _Handler(BaseHTTPRequestHandler):
    """Answer GET and HEAD of the page and its version, and nothing else."""

    server: "ReportServer"
    server_version, sys_version = "protosphere", ""
    protocol_version = "HTTP/1.1"
    timeout = 60  # Of a connection that sends nothing.

    def do_GET(self) -> None:
        """Answer with the page or its version."""
        self._answer()

    def do_HEAD(self) -> None:
        """Answer with the headers of GET."""
        self._answer()

    def _answer(self) -> None:
        name, separator, port = self.headers.get("Host", "").partition(":")
        if name.lower() not in _HOSTS or (separator and not port.isdecimal()):
            message = f"this server answers requests to {' and '.join(_HOSTS)} only"
            self._send(HTTPStatus.FORBIDDEN, message, "text/plain")
        elif self.path == "/":
            self._send(HTTPStatus.OK, self.server.report.snapshot().page, "text/html")
        elif self.path == "/version":
            snapshot = self.server.report.snapshot()
            answer = {"version": snapshot.version, "problem": snapshot.problem}
            self._send(HTTPStatus.OK, json.dumps(answer), "application/json")
        else:
            self._send(HTTPStatus.NOT_FOUND, "not found", "text/plain")

    def _send(self, status: HTTPStatus, text: str, kind: str) -> None:
        # Halves of surrogate pairs, as in file names that are not UTF-8, cannot be sent.
        body = text.encode(errors="replace")
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            with suppress(ConnectionError):  # The reader has gone.
                self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


class ReportServer(ThreadingHTTPServer):
    """A server of a report on 127.0.0.1.

    Args:
        report: The report.
        port: Port; 0 for any free one.

    Raises:
        ValueError: The port cannot be used.
    """

    def __init__(self, report: WatchedReport, port: int) -> None:
        self.report = report
        try:
            super().__init__((ADDRESS, port), _Handler)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise ValueError(f"port {port} of {ADDRESS} cannot be used: {reason}") from None

    @property
    def url(self) -> str:
        """Address of the page."""
        return f"http://{ADDRESS}:{self.server_port}/"

    def serve_until(self, should_stop: Callable[[], bool]) -> None:
        """Answer requests until a function returns True; it is asked twice a second.

        Args:
            should_stop: The function.
        """
        self.timeout = 0.5
        while not should_stop():
            self.handle_request()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore connections that end before they are answered."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)
