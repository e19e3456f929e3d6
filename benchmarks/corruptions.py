"""Time to corrupt images with all 15 corruptions at 5 severities, and agreement of GPU and CPU.

    python benchmarks/corruptions.py cifar100.npz                # all test images
    python benchmarks/corruptions.py cifar100.npz --images 500   # fewer; writes no results

The data are an .npz file with ``x_test``, images as (number, height, width, 3). On a machine with a
GPU both devices corrupt the first 200 images too, and their levels are compared.
"""

import argparse
import time
from typing import Any

import numpy as np
import torch
from rich.progress import track

import harness
from protosphere.data.corruptions import CORRUPTIONS, SEVERITIES, corrupt

COMPARED = 200


def seconds_of(images: torch.Tensor, name: str) -> float:
    """Return the time of one corruption at all severities."""
    corrupt(images[:8], name, severity=1)  # The first call also loads libraries and textures.
    if images.is_cuda:
        torch.cuda.synchronize()
    start = time.perf_counter()
    for severity in SEVERITIES:
        corrupt(images, name, severity=severity)
    if images.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - start


def compare_devices(images: torch.Tensor, name: str) -> dict[str, float]:
    """Return the largest difference between GPU and CPU in levels, and how many values differ."""
    differences = torch.stack(
        [
            corrupt(images.cuda(), name, severity=severity).cpu().int()
            - corrupt(images, name, severity=severity).int()
            for severity in SEVERITIES
        ]
    ).abs()
    return {
        "largest_difference": int(differences.max()),
        "fraction_different": float((differences > 0).double().mean()),
    }


def table(record: dict[str, Any]) -> str:
    """Return the results as a Markdown table."""
    seconds = {name: case["seconds"] for name, case in record["cases"].items()}
    slowest = max(seconds, key=lambda name: seconds[name])
    lines = [
        "| images | 15 corruptions at 5 severities | slowest | largest difference of GPU and CPU "
        "| values that differ |",
        "|---|---:|---:|---:|---:|",
    ]
    cells = [
        f"{record['num_images']:,} of {record['size']} pixels",
        f"{sum(seconds.values()):.1f} s",
        f"{slowest}, {seconds[slowest]:.1f} s",
    ]
    compared = [case for case in record["cases"].values() if "largest_difference" in case]
    if compared:
        largest = max(case["largest_difference"] for case in compared)
        fraction = max(case["fraction_different"] for case in compared)
        cells += [f"{largest} of 255 levels", f"at most {100 * fraction:.2g}%"]
    lines.append(f"| {' | '.join(cells + ['–'] * (5 - len(cells)))} |")
    return "\n".join(lines)


def main() -> None:
    """Measure all corruptions, print the table and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", help="file with x_test (.npz)")
    parser.add_argument("--images", type=int, help="number of images; writes no results")
    options = parser.parse_args()
    pixels = np.load(options.data)["x_test"][: options.images]
    images = torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    on_device = images.to(device)
    cases: dict[str, Any] = {}
    for name in track(CORRUPTIONS, description="corruptions", transient=True):
        cases[name] = {"seconds": round(seconds_of(on_device, name), 3)}
        if device == "cuda":
            cases[name] |= compare_devices(images[:COMPARED], name)
    record = {"num_images": len(images), "size": images.shape[-1], "cases": cases}
    print(table(record))
    if options.images is None:
        print(f"\nwritten to {harness.write('corruptions', record)}")


if __name__ == "__main__":
    main()
