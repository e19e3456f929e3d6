"""Measure benchmarks: one process per case, median times, peak memory beyond the inputs, JSON.

A benchmark is a dictionary of cases. A case is a function that creates its inputs and returns the
step to be measured.
"""

import argparse
import ctypes
import gc
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from rich.progress import track

from protosphere.runs.metadata import source_commit

RESULTS = Path(__file__).parent / "results"
REPEATS = 5
Case = Callable[[], Callable[[], None]]


def machine() -> dict[str, Any]:
    """Return the hardware and the versions that the numbers were measured with."""
    cpu = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        names = [
            line
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ]
        cpu = names[0].split(":", 1)[1].strip() if names else cpu
    description = {
        "cpu": cpu,
        "threads": torch.get_num_threads(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    if torch.cuda.is_available():
        description["gpu"] = torch.cuda.get_device_name()
    return description


def commit() -> str:
    """Return the measured commit, marked ``-dirty`` if the tree had changes.

    The environment variable ``GIT_COMMIT`` names the commit of a tree that was copied without git.
    """
    return source_commit() or "unknown"


class PeakMemory:
    """Context manager: peak memory of a block beyond what was in use before it."""

    def __enter__(self) -> "PeakMemory":
        gc.collect()
        self.bytes = 0
        if torch.cuda.is_available():
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            self._before = torch.cuda.memory_allocated()
        else:
            # Memory that the allocator kept from an earlier step would hide what this one needs.
            ctypes.CDLL("libc.so.6").malloc_trim(0)
            Path("/proc/self/clear_refs").write_text("5")
            self._before = self._status("VmRSS")
        return self

    def __exit__(self, *_: object) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
            self.bytes = torch.cuda.max_memory_allocated() - self._before
        else:
            self.bytes = self._status("VmHWM") - self._before

    @staticmethod
    def _status(key: str) -> int:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(f"{key}:"):
                return int(line.split()[1]) * 1024
        raise RuntimeError(f"/proc/self/status must contain {key} to measure memory")


def _measure(case: Case, repeats: int) -> dict[str, float]:
    step = case()
    step()  # The first step also pays for starting threads and loading libraries.
    memory = []
    for _ in range(3):
        with PeakMemory() as peak:
            step()
        memory.append(peak.bytes)
    # Short steps are repeated for a quarter of a second, above the noise of clock and scheduler.
    start = time.perf_counter()
    _timed(step, 1)
    number = max(1, int(0.25 / (time.perf_counter() - start)))
    seconds = [_timed(step, number) for _ in range(repeats)]
    return {
        "seconds": round(statistics.median(seconds), 6),
        "spread": round((max(seconds) - min(seconds)) / statistics.median(seconds), 3),
        "peak_mib": round(statistics.median(memory) / 2**20, 1),
    }


def _timed(step: Callable[[], None], number: int) -> float:
    start = time.perf_counter()
    for _ in range(number):
        step()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / number


def write(name: str, record: dict[str, Any]) -> Path:
    """Write a record with date, commit and machine to ``results/NAME.json``.

    On a machine with a GPU the file is ``results/NAME-gpu.json``.
    """
    origin = {
        "benchmark": name,
        "date": datetime.now(UTC).date().isoformat(),
        "commit": commit(),
        "machine": machine(),
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}{'-gpu' if torch.cuda.is_available() else ''}.json"
    path.write_text(json.dumps(origin | record, indent=1) + "\n")
    return path


def run(
    name: str,
    cases: dict[str, Case],
    show: Callable[[dict[str, Any]], str],
    details: Callable[[], dict[str, Any]] | None = None,
) -> None:
    """Measure the cases, each in a fresh process; print the table and write ``results/NAME.json``.

    Args:
        name: Name of the benchmark.
        cases: Cases by name.
        show: Function that turns the record into a table.
        details: Function that returns further entries of the record; called once, in this process.
    """
    parser = argparse.ArgumentParser(description=f"Benchmark {name}.")
    parser.add_argument(
        "--case", choices=cases, help="measure one case in this process and print JSON"
    )
    parser.add_argument("--repeats", type=int, default=REPEATS, help="timed repetitions per case")
    parser.add_argument(
        "--only",
        default="",
        help="measure the cases whose name contains this text; writes no results",
    )
    arguments = parser.parse_args()
    if arguments.case:
        print(json.dumps(_measure(cases[arguments.case], arguments.repeats)))
        return
    results: dict[str, Any] = {}
    for case in track(
        [case for case in cases if arguments.only in case], description=name, transient=True
    ):
        command = [sys.executable, sys.argv[0], "--case", case, "--repeats", str(arguments.repeats)]
        completed = subprocess.run(command, capture_output=True, text=True, check=False)
        if completed.returncode:
            sys.exit(f"{case} failed:\n{completed.stderr}")
        results[case] = json.loads(completed.stdout)
    if arguments.only:
        print(json.dumps(results, indent=1))
        return
    record = {"repeats": arguments.repeats, "cases": results} | (details() if details else {})
    path = write(name, record)
    print(show(record))
    print(f"\nwritten to {path}")
