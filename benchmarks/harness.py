"""How things are measured: each case in a process of its own, medians, peak memory beyond the inputs, results as JSON.

A benchmark is a dictionary of cases. A case is a function that makes its inputs and returns the step to be measured.
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

RESULTS = Path(__file__).parent / "results"
REPEATS = 5
Case = Callable[[], Callable[[], None]]


def machine() -> dict[str, Any]:
    """What the numbers were measured on and with."""
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
    """The commit that was measured, marked if the tree had changes; ``GIT_COMMIT`` names that of a copied tree."""
    if named := os.environ.get("GIT_COMMIT"):
        return named
    here = Path(__file__).parent
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--exclude=*", "--abbrev=12"],
        cwd=here,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or "unknown"


class _PeakMemory:
    """The most memory in use during a block, beyond what was in use before it."""

    def __enter__(self) -> "_PeakMemory":
        gc.collect()
        self.bytes = 0
        if torch.cuda.is_available():
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            self._before = torch.cuda.memory_allocated()
        else:
            # Memory that the allocator still holds from an earlier step would otherwise hide what this one takes.
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
        raise RuntimeError(f"/proc/self/status must name {key} to measure memory; it does not")


def _measure(case: Case, repeats: int) -> dict[str, float]:
    step = case()
    step()  # The first one also pays for starting threads and libraries.
    memory = []
    for _ in range(3):
        with _PeakMemory() as peak:
            step()
        memory.append(peak.bytes)
    # Short steps are repeated for a quarter of a second; they would drown in the noise of the clock and the scheduler.
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
    """Write ``results/NAME.json``, with date, commit and machine; on a GPU ``results/NAME-gpu.json``."""
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
    facts: Callable[[], dict[str, Any]] | None = None,
) -> None:
    """Measure the cases, each in a fresh process; print ``show(results)`` and write ``results/NAME.json``.

    ``facts`` are found once, in this process, and written beside the cases.
    """
    parser = argparse.ArgumentParser(description=f"Benchmark {name}.")
    parser.add_argument(
        "--case", choices=cases, help="measure this one in this process and print it as JSON"
    )
    parser.add_argument(
        "--repeats", type=int, default=REPEATS, help="steps per case, after one that does not count"
    )
    parser.add_argument(
        "--only", default="", help="cases whose name contains this; nothing is written then"
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
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{case} failed:\n{done.stderr}")
        results[case] = json.loads(done.stdout)
    if arguments.only:
        print(json.dumps(results, indent=1))
        return
    record = {"repeats": arguments.repeats, "cases": results} | (facts() if facts else {})
    path = write(name, record)
    print(show(record))
    print(f"\nwritten to {path}")
