"""``protosphere measure`` on a 4 GB file: time and anonymous memory.

python benchmarks/measure_file.py
"""

import argparse
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

import numpy as np

from harness import write

SAMPLES, CLASSES, DIM = 512_000, 1000, 2048


def _write_features(path: Path, samples: int) -> None:
    """Write an .npz of features, labels and prototypes in blocks, with shuffled samples."""
    rng = np.random.default_rng(0)
    means = rng.standard_normal((CLASSES, DIM), dtype=np.float32)
    labels = rng.permutation(np.arange(samples) % CLASSES)
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in (("labels", labels), ("prototypes", means)):
            with archive.open(f"{name}.npy", "w") as file:
                np.lib.format.write_array(file, array)
        header = {"descr": "<f4", "fortran_order": False, "shape": (samples, DIM)}
        with archive.open("features.npy", "w", force_zip64=True) as file:
            np.lib.format.write_array_header_1_0(file, header)
            for start in range(0, samples, 4096):
                block = labels[start : start + 4096]
                file.write(
                    (
                        means[block] + rng.standard_normal((len(block), DIM), dtype=np.float32)
                    ).tobytes()
                )


def _anonymous_memory(process: int) -> int:
    """Return the anonymous memory in bytes, without pages of the memory-mapped file."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon")), 0)


def main() -> None:
    """Run the benchmark, print the record and write it."""
    parser = argparse.ArgumentParser(description="Benchmark the command on a large file.")
    parser.add_argument("--samples", type=int, default=SAMPLES)
    samples = parser.parse_args().samples
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "features.npz"
        _write_features(path, samples)
        command = [sys.executable, "-m", "protosphere", "measure", str(path)]
        started, peak = time.perf_counter(), 0
        with subprocess.Popen(command) as process:
            while process.poll() is None:
                peak = max(peak, _anonymous_memory(process.pid))
                time.sleep(0.02)
        if process.returncode:
            sys.exit(process.returncode)
        record = {
            "shape": {"samples": samples, "classes": CLASSES, "dim": DIM},
            "file_gb": round(path.stat().st_size / 1e9, 2),
            "seconds": round(time.perf_counter() - started, 1),
            "own_memory_mib": round(peak / 2**20),
        }
    print(record)
    if samples == SAMPLES:
        print(f"wrote {write('measure_file', record)}")


if __name__ == "__main__":
    main()
