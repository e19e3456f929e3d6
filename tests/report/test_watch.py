"""The watched report: rebuilt when files change, and a server for this machine alone."""

import http.client
import json
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from protosphere.cli.app import app
from protosphere.report.read import ReportError
from protosphere.report.watch import (
    ReportServer,
    WatchedReport,
    read_fingerprint,
    watch_sources,
)
from protosphere.runs.folder import RunFolder


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Pages:
    """A report that counts how often it is built, and can be made to fail."""

    def __init__(self, source: Path) -> None:
        self.built = 0
        self.error: Exception | None = None
        self.build_time_s = 0.0
        self.clock = Clock()
        self.report = WatchedReport([source], self.build, self.fallback, clock=self.clock)

    def build(self, version: str) -> str:
        self.built += 1
        self.clock.now += self.build_time_s
        if self.error is not None:
            raise self.error
        return f"page {self.built} of {version}"

    def fallback(self, version: str) -> str:
        return f"no page yet, {version}"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "runs/one"
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text('{"step": 1}\n')
    return tmp_path / "runs"


@pytest.fixture
def pages(source: Path) -> Pages:
    return Pages(source)


def test_the_page_is_built_again_only_if_files_changed(pages: Pages, source: Path) -> None:
    first = pages.report.snapshot()
    pages.clock.now += 10
    assert pages.report.snapshot() == first
    with (source / "one/metrics.jsonl").open("a") as file:
        file.write('{"step": 2}\n')
    pages.clock.now += 10
    second = pages.report.snapshot()
    assert pages.built == 2
    assert second.version != first.version
    assert second.page == f"page 2 of {second.version}"


def test_changes_within_two_seconds_are_built_together(pages: Pages, source: Path) -> None:
    pages.report.snapshot()
    for name in ("two", "three"):
        (source / f"{name}.json").write_text("{}")
        pages.clock.now += 0.9
        pages.report.snapshot()
    assert pages.built == 1
    pages.clock.now += 0.3
    pages.report.snapshot()
    assert pages.built == 2


def test_a_slow_report_is_built_less_often(pages: Pages, source: Path) -> None:
    pages.build_time_s = 5.0
    pages.report.snapshot()
    (source / "new.json").write_text("{}")
    pages.clock.now += 15
    pages.report.snapshot()
    assert pages.built == 1
    pages.clock.now += 6
    pages.report.snapshot()
    assert pages.built == 2


def test_a_failure_keeps_the_last_page_and_says_why(pages: Pages, source: Path) -> None:
    good = pages.report.snapshot()
    pages.error = ValueError("metrics.jsonl is damaged")
    (source / "new.json").write_text("{}")
    pages.clock.now += 10
    failed = pages.report.snapshot()
    assert (failed.page, failed.version) == (good.page, good.version)
    assert failed.problem == "The page could not be built again: metrics.jsonl is damaged"
    pages.error = None
    (source / "new.json").write_text("[1]")
    pages.clock.now += 10
    assert pages.report.snapshot().problem is None


def test_without_a_first_page_there_is_a_fallback(pages: Pages) -> None:
    pages.error = KeyError("recipe")
    snapshot = pages.report.snapshot()
    assert snapshot.page == f"no page yet, {snapshot.version}"
    assert snapshot.problem == "The page could not be built again: KeyError('recipe')"


def test_what_changes_a_fingerprint(source: Path) -> None:
    before = read_fingerprint([source])
    checkpoints = source / "one/checkpoints/step-1"
    checkpoints.mkdir(parents=True)
    (checkpoints / "weights.safetensors").write_text("large")
    (source / "one/model.onnx").write_text("not read by reports")
    assert read_fingerprint([source]) == before
    (source / "later/a/b/benchmarks").mkdir(parents=True)
    (source / "later/a/b/benchmarks/ood.json").write_text("{}")
    assert len(read_fingerprint([source])) == len(before) + 1
    file = source / "one/metrics.jsonl"
    assert len(read_fingerprint([file, source / "missing"])) == 1


def test_a_run_that_ends_without_writing_changes_its_fingerprint(source: Path) -> None:
    (source / "one/recipe.yaml").write_text("name: one\n")
    with RunFolder(source / "one").lock():
        running = read_fingerprint([source])
    ended = read_fingerprint([source])
    assert len(running) == len(ended)
    assert running != ended


@pytest.fixture
def server(pages: Pages) -> Iterator[ReportServer]:
    stop = threading.Event()
    with ReportServer(pages.report, 0) as server:
        thread = threading.Thread(target=server.serve_until, args=(stop.is_set,))
        thread.start()
        yield server
        stop.set()
        socket.create_connection(("127.0.0.1", server.server_port)).close()
        thread.join()


def _request(
    server: ReportServer, path: str, *, method: str = "GET", host: str | None = None
) -> tuple[http.client.HTTPResponse, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    headers = {} if host is None else {"Host": host}
    connection.request(method, path, headers=headers)
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    return response, text


def test_the_server_answers_with_the_page_and_its_version(server: ReportServer) -> None:
    response, page = _request(server, "/")
    assert response.status == 200
    assert response.headers["Content-Type"] == "text/html; charset=utf-8"
    assert response.headers["Cache-Control"] == "no-store"
    answer = json.loads(_request(server, "/version")[1])
    assert page == f"page 1 of {answer['version']}"
    assert answer["problem"] is None
    head, nothing = _request(server, "/", method="HEAD")
    assert head.headers["Content-Length"] == str(len(page))
    assert nothing == ""


@pytest.mark.parametrize("path", ["/runs/one/metrics.jsonl", "/../etc/passwd", "/?x"])
def test_other_paths_are_not_found(server: ReportServer, path: str) -> None:
    assert _request(server, path)[0].status == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_other_methods_are_refused(server: ReportServer, method: str) -> None:
    assert _request(server, "/", method=method)[0].status == 501


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8080", 200),  # an SSH tunnel
        ("LOCALHOST", 200),
        ("attacker.example", 403),  # a name that resolves to 127.0.0.1
        ("127.0.0.1.attacker.example:80", 403),
        ("localhost:80@attacker.example", 403),
        ("", 403),
    ],
)
def test_only_names_of_this_machine_are_answered(
    server: ReportServer, host: str, status: int
) -> None:
    response, text = _request(server, "/version", host=host)
    assert response.status == status
    assert ("version" in text) == (status == 200)


def test_only_this_machine_can_connect(server: ReportServer) -> None:
    assert server.server_address[0] == "127.0.0.1"


def test_a_port_in_use_is_refused_in_one_sentence(server: ReportServer, pages: Pages) -> None:
    sentence = f"port {server.server_port} of 127.0.0.1 cannot be used: address already in use"
    with pytest.raises(ValueError, match=f"^{sentence}$"):
        ReportServer(pages.report, server.server_port)


def test_a_reader_that_leaves_is_ignored(
    server: ReportServer, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.create_connection(("127.0.0.1", server.server_port)) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        connection.sendall(b"GET / HTTP/1.1\r\nHo")
    assert _request(server, "/")[0].status == 200
    assert capfd.readouterr().err == ""


@pytest.mark.whole_program
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_says_where_the_page_is_and_ends_on_a_signal(
    tmp_path: Path, number: signal.Signals
) -> None:
    command = [sys.executable, "-m", "protosphere", "report", str(tmp_path), "--watch"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            url = next(word for word in line.split() if word.startswith("http://127.0.0.1:"))
            with urllib.request.urlopen(url, timeout=20) as response:
                page = response.read().decode()
            process.send_signal(number)
            assert process.wait(20) == 0
        finally:
            process.kill()  # A failure must not wait for a server that runs until it is stopped.
    assert "<h1>No run yet</h1>" in page
    assert f"there is none in {tmp_path}" in page


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--watch", "--out", "page.html"], "--out cannot be used with --watch"),
        (["--port", "8000"], "--port must be given together with --watch"),
    ],
)
def test_options_without_effect_are_refused(
    source: Path, options: list[str], sentence: str
) -> None:
    result = CliRunner().invoke(app, ["report", str(source), *options])
    assert result.exit_code == 1
    assert sentence in result.stderr
    assert result.stdout == ""


def test_a_missing_source_is_refused_but_an_empty_one_is_not(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match=r"must be a folder or a file, got .*missing"):
        watch_sources([tmp_path / "missing"])
    assert "No run yet" in watch_sources([tmp_path]).snapshot().page
