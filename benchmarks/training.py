"""Images per second of ``protosphere train`` on a GPU, as its run folders log them.

Each case runs the command in its own process: ResNet-18 on CIFAR-100 (an .npz of arrays) with NONL
at batch size 512, as the recipe has it and as an eager float32 loop, and ResNet-50 on synthetic
images of 224 pixels at batch size 1024.

    python benchmarks/training.py cifar100.npz
    python benchmarks/training.py cifar100.npz --mixing    # only with mixup and without
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from harness import write

# Epochs that compile, capture the CUDA graph and warm up are not counted.
_WARMUP_EPOCHS = 3


def cases(data: str) -> dict[str, list[str]]:
    """Return the recipe and the overrides of each case.

    Args:
        data: Path of CIFAR-100 as an ``.npz``.
    """
    cifar = ["cifar100-nonl", "data.source=arrays", f"data.path={data}"]
    eager = ["training.compile=false", "training.precision=fp32"]
    large = ["imagenet100-nonl", "data.source=synthetic", "data.num_classes=1000"]
    large += ["data.num_samples=4096", "data.image_size=224"]
    large += ["schedule.warmup_epochs=0", "schedule.warmup_lr=null"]
    return {
        "resnet18, 32 px, batch 512": [*cifar, "schedule.epochs=12"],
        "resnet18, 32 px, batch 512, eager float32": [*cifar, *eager, "schedule.epochs=7"],
        "resnet50, 224 px, batch 1024, synthetic images": [*large, "schedule.epochs=7"],
    }


def mixing_cases(data: str) -> dict[str, list[str]]:
    """Return the cases with and without mixed images.

    Args:
        data: Path of CIFAR-100 as an ``.npz``.
    """
    recipe = ["cifar100-nonl", "data.source=arrays", f"data.path={data}", "schedule.epochs=12"]
    return {
        "resnet18, 32 px, batch 512": recipe,
        "resnet18, 32 px, batch 512, mixup": [
            *recipe,
            "augmentation.mixing={name: mixup, alpha: 0.2}",
        ],
    }


def measure(recipe: str, overrides: list[str]) -> dict[str, Any]:
    """Run the command and return the speeds that it logged."""
    never = ["evaluation.every=1000", "checkpoint.every=1000"]
    options = [part for setting in [*overrides, *never] for part in ("--set", setting)]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "protosphere", "train", recipe, "--out", f"{folder}/run"]
        completed = subprocess.run(
            [*command, "--device", "cuda", *options], capture_output=True, text=True, check=False
        )
        if completed.returncode:
            sys.exit(f"{recipe} failed:\n{completed.stdout}{completed.stderr}")
        lines = (Path(folder) / "run/metrics.jsonl").read_text().splitlines()
    epochs = [record for record in map(json.loads, lines) if record["kind"] == "train"]
    speeds = [record["images_per_second"] for record in epochs[_WARMUP_EPOCHS:]]
    return {
        "images_per_second": round(statistics.median(speeds)),
        "slowest": round(min(speeds)),
        "fastest": round(max(speeds)),
        "epochs": len(speeds),
        "first_epoch_images_per_second": round(epochs[0]["images_per_second"]),
        "gpu_gib": epochs[-1]["gpu_gib"],
        # The path of the data is of no interest to readers of the results.
        "settings": [recipe, *(text for text in overrides if not text.startswith("data.path="))],
    }


def table(record: dict[str, Any]) -> str:
    """Return the results as a Markdown table."""
    lines = [
        "| `protosphere train`, NONL | images per second | slowest to fastest epoch | GPU memory |",
        "|---|---:|---:|---:|",
    ]
    for name, result in record["cases"].items():
        interval = f"{result['slowest']:,} to {result['fastest']:,}"
        lines.append(
            f"| {name} | {result['images_per_second']:,} | {interval} "
            f"| {result['gpu_gib']:.1f} GiB |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure all cases, print them and write ``results/training-gpu.json``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", help="CIFAR-100 as an .npz with x_train, y_train, x_test, y_test")
    parser.add_argument(
        "--mixing", action="store_true", help="measure mixup, and write results/mixing-gpu.json"
    )
    options = parser.parse_args()
    results: dict[str, Any] = {}
    chosen = mixing_cases(options.data) if options.mixing else cases(options.data)
    name = "mixing" if options.mixing else "training"
    ratio_name = "times_with_mixup" if options.mixing else "times_eager_float32"
    for case, (recipe, *overrides) in chosen.items():
        results[case] = measure(recipe, overrides)
        print(case, json.dumps(results[case]), flush=True)
        if len(results) > 1:
            first, second = list(results.values())[:2]
            ratio = round(first["images_per_second"] / second["images_per_second"], 2)
            path = write(name, {"cases": results, ratio_name: ratio})
            print("written to", path, flush=True)


if __name__ == "__main__":
    main()
