r"""Memory and time of one step with a batch that does not fit on the GPU, encoded in pieces.

ResNet-50, 224 pixels, 1000 classes, bfloat16, synthetic images on the device. A step of 1,024
images is compared with a step of 16,384 that encodes pieces (``training.micro_batch_size``) and has
the gradient of the whole batch, and with the usual accumulation of gradients, whose negatives are
those of the piece. The steps are those of ``protosphere train`` without compilation.

    python benchmarks/large_batches.py
    python benchmarks/large_batches.py --device cpu --num-images 16 \
        --small-batch 4 --pieces 4 --size 32

Memory is the peak of the allocator without the images of the dataset, which are stated apart. A
step with a learning rate of 0 leaves the weights alone, so that all gradients are of the same ones.
"""

import argparse
import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

import harness
from protosphere.data.augmentation import Augmentation
from protosphere.data.loaders import MemoryLoader
from protosphere.data.splits import ImageSet
from protosphere.recipes.build import create_objective, create_train_config
from protosphere.recipes.loading import read_recipe
from protosphere.training import Objective
from protosphere.training.step import EagerStep

LOSSES = ("nonl", "ntce")
NUM_CLASSES = 1000
# What synthetic images, whose pixels are uniform, are normalized with.
_MEAN, _STD = (0.5,) * 3, (1 / math.sqrt(12),) * 3
_REPEATS = 3


def measure(loss: str, loader: MemoryLoader, options: argparse.Namespace) -> dict[str, Any]:
    """Measure the steps of one loss.

    Args:
        loss: Name of the loss.
        loader: Loader of the images.
        options: Options of the command line.

    Returns:
        The cases by name.
    """
    recipe = read_recipe(f"imagenet1k-{loss}", ["training.compile=false"])
    objective = create_objective(
        recipe, num_classes=NUM_CLASSES, in_channels=3, device=loader.device
    )
    objective.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    small, large = options.small_batch, options.num_images
    index = torch.arange(large, device=loader.device)

    def step(batch_size: int, piece: int | None = None) -> EagerStep:
        overrides = [f"training.batch_size={batch_size}", "training.compile=false"]
        overrides += [f"training.micro_batch_size={piece}"] if piece else []
        config = create_train_config(read_recipe(recipe.name, overrides), device=loader.device)
        return EagerStep(objective, loader, config)

    def run(take_step: EagerStep, batch_size: int) -> Callable[[], None]:
        return lambda: _ignore(take_step((index[:batch_size],), step=0, lr=0.0))

    whole = run(step(small), small)
    whole()  # The first step also loads libraries and selects algorithms.
    results = {"small": _measure(whole, loader, small, repeats=_REPEATS)}
    exact: list[Tensor] = []
    for piece in options.pieces:
        exact_step = step(large, piece)
        case = _measure(run(exact_step, large), loader, large, repeats=1)
        results[f"exact/{piece}"] = case | {"piece": piece}
        if not exact:
            exact = _gradients(objective)
            exact_step.prepare(step=0, lr=0.0)  # The same augmentation again.
            accumulate = partial(_accumulate, objective, loader, index.split(piece))
            rival = _measure(accumulate, loader, large, repeats=1)
            cosine = _cosine(exact, _gradients(objective))
            results[f"accumulated/{piece}"] = rival | {"piece": piece, "cosine": cosine}
    return results


def _accumulate(objective: Objective, loader: MemoryLoader, parts: tuple[Tensor, ...]) -> None:
    """Accumulate the gradients of the mean of the losses of all parts."""
    objective.zero_grad(set_to_none=True)
    for part in parts:
        images, labels = loader.prepare(part)
        with torch.autocast(loader.device.type, torch.bfloat16):
            loss = objective(images, labels) / len(parts)
        loss.backward()


def _measure(
    step: Callable[[], None], loader: MemoryLoader, num_images: int, *, repeats: int
) -> dict[str, Any]:
    """Return the time and the peak memory of a step, without the images of the dataset."""
    stored = loader.split.images.numel()
    seconds = []
    for _ in range(repeats):
        with harness.PeakMemory() as peak:
            before = torch.cuda.memory_allocated() if loader.device.type == "cuda" else stored
            start = time.perf_counter()
            step()
            if loader.device.type == "cuda":
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - start)
    return {
        "images": num_images,
        "seconds": round(min(seconds), 4),
        "peak_gib": round((before - stored + peak.bytes) / 2**30, 3),
    }


def _gradients(objective: Objective) -> list[Tensor]:
    return [p.grad.clone() for p in objective.parameters() if p.grad is not None]


def _cosine(first: list[Tensor], second: list[Tensor]) -> float:
    products = [
        torch.stack([(a.double() * b.double()).sum() for a, b in zip(x, y, strict=True)]).sum()
        for x, y in ((first, second), (first, first), (second, second))
    ]
    return float(products[0] / (products[1] * products[2]).sqrt())


def _ignore(_: object) -> None:
    """Drop a result, so that a step holds nothing."""


def table(record: dict[str, Any]) -> str:
    """Return the steps as a Markdown table."""
    lines = [
        "| loss | step | images | peak memory | fraction of the small step | seconds "
        "| images per second | cosine with the exact gradient |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for loss, cases in record["losses"].items():
        for name, case in cases.items():
            kind = name.split("/")[0]
            title = {
                "small": "whole batch",
                "exact": f"pieces of {case.get('piece', 0):,}, exact",
                "accumulated": f"pieces of {case.get('piece', 0):,}, gradients accumulated",
            }[kind]
            cosine = f"{case['cosine']:.3f}" if "cosine" in case else "1" if "piece" in case else ""
            lines.append(
                f"| {loss.upper()} | {title} | {case['images']:,} | {case['peak_gib']:.1f} GiB "
                f"| {case['peak_gib'] / cases['small']['peak_gib']:.3f} | {case['seconds']:.2f} "
                f"| {case['images'] / case['seconds']:,.0f} | {cosine} |"
            )
    return "\n".join(lines)


def source(record: dict[str, Any]) -> str:
    """Return the line beneath the table: machine, and the memory of the dataset."""
    machine = record["machine"]
    return (
        f"{machine['gpu']}, torch {machine['torch']}, not compiled; memory without the "
        f"{record['dataset_gib']:.1f} GiB of the images; commit {record['commit']}."
    )


def main() -> None:
    """Measure all steps, print them and write ``results/large_batches-gpu.json``."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--num-images", type=int, default=16384, help="images of the large batch")
    parser.add_argument("--small-batch", type=int, default=1024, help="images of the small batch")
    parser.add_argument("--pieces", type=int, nargs="+", default=[1024, 512], help="piece sizes")
    parser.add_argument("--size", type=int, default=224, help="side of the images in pixels")
    options = parser.parse_args()
    device = torch.device(options.device)
    generator = torch.Generator(device).manual_seed(0)
    split = ImageSet(
        torch.randint(
            0,
            256,
            (options.num_images, 3, options.size, options.size),
            dtype=torch.uint8,
            device=device,
            generator=generator,
        ),
        torch.randint(0, NUM_CLASSES, (options.num_images,), device=device, generator=generator),
        tuple(f"class {index}" for index in range(NUM_CLASSES)),
    )
    policy = read_recipe("imagenet1k-nonl", [f"augmentation.size={options.size}"]).augmentation
    loader = MemoryLoader(split, Augmentation(policy, _MEAN, _STD))
    record: dict[str, Any] = {
        "classes": NUM_CLASSES,
        "size": options.size,
        "dataset_gib": round(split.images.numel() / 2**30, 3),
        "losses": {},
    }
    for loss in LOSSES:
        record["losses"][loss] = measure(loss, loader, options)
        print(table(record), flush=True)
        if options.size == parser.get_default("size"):
            print("written to", harness.write("large_batches", record), flush=True)


if __name__ == "__main__":
    main()
