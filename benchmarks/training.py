"""Images a second of ``protosphere train``, as its own run folders log them; on a GPU.

The command itself is run, in a process of its own: ResNet-18 on CIFAR-100 (an .npz of arrays) with NONL at batch 512,
as the recipe has it and as an eager float32 loop; and ResNet-50 at 224 pixels on synthetic images at batch 1024.

    python benchmarks/training.py cifar100.npz
"""

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from harness import write

# Epochs that compile, record and warm up are left out.
_WARM = 3


def cases(data: str) -> dict[str, list[str]]:
    """The settings of each case."""
    cifar = ["cifar100-nonl", "data.source=arrays", f"data.path={data}"]
    large = [
        "data.source=synthetic",
        "data.classes=null",
        "data.num_classes=1000",
        "data.samples=4096",
    ]
    large += ["data.resolution=224", "optimization.epochs=7", "optimization.warmup_epochs=0"]
    eager = ["optimization.execution=eager", "optimization.precision=float32"]
    return {
        "resnet18, 32 px, batch 512": [*cifar, "optimization.epochs=12"],
        "resnet18, 32 px, batch 512, eager float32": [*cifar, *eager, "optimization.epochs=7"],
        "resnet50, 224 px, batch 1024, synthetic images": ["imagenet100-nonl", *large],
    }


def measured(recipe: str, settings: list[str]) -> dict[str, Any]:
    """Run the command and read what it logged."""
    quiet = [*settings, "evaluate_every=1000", "save_every=1000"]
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "protosphere",
            "train",
            recipe,
            "--out",
            f"{folder}/run",
            "--device",
            "cuda",
        ]
        done = subprocess.run(
            [*command, *(part for setting in quiet for part in ("--set", setting))],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            sys.exit(f"{recipe} failed:\n{done.stdout}{done.stderr}")
        lines = (Path(folder) / "run/metrics.jsonl").read_text().splitlines()
    epochs = [record for record in map(json.loads, lines) if record["kind"] == "train"]
    speeds = [record["images_per_second"] for record in epochs[_WARM:]]
    return {
        "images_per_second": round(statistics.median(speeds)),
        "slowest": round(min(speeds)),
        "fastest": round(max(speeds)),
        "epochs": len(speeds),
        "first_epoch_images_per_second": round(epochs[0]["images_per_second"]),
        "gpu_gib": epochs[-1]["gpu_gib"],
        "settings": [recipe, *settings],
    }


def table(record: dict[str, Any]) -> str:
    """The results as Markdown."""
    lines = [
        "| `protosphere train`, NONL | images a second | slowest to fastest epoch | GPU memory |",
        "|---|---:|---:|---:|",
    ]
    for name, result in record["cases"].items():
        spread = f"{result['slowest']:,} to {result['fastest']:,}"
        lines.append(
            f"| {name} | {result['images_per_second']:,} | {spread} | {result['gpu_gib']:.1f} GiB |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure all cases, print them and write ``results/training-gpu.json``."""
    if len(sys.argv) != 2:
        sys.exit(
            "one file must be named: CIFAR-100 as an .npz with x_train, y_train, x_test, y_test"
        )
    results: dict[str, Any] = {}
    for name, (recipe, *settings) in cases(sys.argv[1]).items():
        result = measured(recipe, settings)
        # Where the file lay is nobody's business.
        result["settings"] = [
            part for part in result["settings"] if not part.startswith("data.path=")
        ]
        results[name] = result
        print(name, json.dumps(result), flush=True)
        if len(results) > 1:
            fast, eager = list(results.values())[:2]
            ratio = round(fast["images_per_second"] / eager["images_per_second"], 2)
            print(
                "written to",
                write("training", {"cases": results, "times_eager_float32": ratio}),
                flush=True,
            )


if __name__ == "__main__":
    main()
