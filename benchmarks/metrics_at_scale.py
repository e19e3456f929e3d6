"""The metrics at the size of ImageNet on a GPU: 1,281,167 samples, 1000 classes, 2048 dimensions.

python benchmarks/metrics_at_scale.py            (add --samples 100000 for a quick run)
"""

import argparse
import json
import sys
import time
from typing import Any

import torch
import torchvision
from torch import Tensor, nn

from harness import write
from protosphere.metrics import NeuralCollapse, measure

SAMPLES, CLASSES, DIM, BATCH = 1_281_167, 1000, 2048, 8192


class Stream:
    """Reproducible synthetic features: classes with random means and decaying spectra.

    Args:
        samples: Number of samples.
    """

    def __init__(self, samples: int) -> None:
        self.samples = samples
        generator = torch.Generator("cuda").manual_seed(0)
        self.centers = torch.randn(CLASSES, DIM, device="cuda", generator=generator)
        self.decay = torch.logspace(0, -2, DIM, device="cuda")
        self.labels = torch.randint(0, CLASSES, (samples,), device="cuda", generator=generator)

    def batch(self, start: int) -> tuple[Tensor, Tensor]:
        """Return the batch that starts at this sample."""
        labels = self.labels[start : start + BATCH]
        generator = torch.Generator("cuda").manual_seed(start + 1)
        noise = torch.randn(len(labels), DIM, device="cuda", generator=generator)
        return self.centers[labels] + noise * self.decay, labels


def _clock() -> float:
    torch.cuda.synchronize()
    return time.perf_counter()


def _streamed(stream: Stream) -> tuple[dict[str, Any], dict[str, float]]:
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    metric = NeuralCollapse(DIM, CLASSES, stream.centers, memory_budget=20 << 30).cuda()
    update_seconds = 0.0
    for start in range(0, stream.samples, BATCH):
        batch = stream.batch(start)
        started = _clock()
        metric.update(*batch)
        update_seconds += _clock() - started
    update_peak = torch.cuda.max_memory_allocated() - before
    started = _clock()
    values = {name: float(value) for name, value in metric.compute().items()}
    return {
        "seconds_from_the_last_batch": round(_clock() - started, 2),
        "seconds_of_updates": round(update_seconds, 2),
        "peak_gib": round((torch.cuda.max_memory_allocated() - before) / 2**30, 2),
        "peak_gib_while_accumulating": round(update_peak / 2**30, 2),
    }, values


def _measured(stream: Stream, streamed: dict[str, float]) -> dict[str, Any]:
    """Measure the same samples at once, class by class through Gram matrices."""
    features = torch.cat([stream.batch(start)[0] for start in range(0, stream.samples, BATCH)])
    started = _clock()
    measured = measure(features, stream.labels, stream.centers)
    seconds = _clock() - started
    differences = {
        name: abs(streamed[name] - value) / max(abs(value), 1e-12)
        for name, value in measured.items()
        if name in streamed
    }
    worst = max(differences, key=differences.__getitem__)
    return {
        "seconds": round(seconds, 2),
        "largest_relative_difference": differences[worst],
        "of": worst,
    }


def _overhead(
    model: nn.Module, images: Tensor, classes: int, dim: int, batches: int
) -> dict[str, float]:
    """Time a pass that computes features, with and without the cheap metrics."""
    labels = torch.randint(0, classes, (len(images),), device="cuda")
    metric = NeuralCollapse(dim, classes, torch.randn(classes, dim), metrics="cheap").cuda()

    @torch.inference_mode()
    def seconds(with_metrics: bool) -> float:
        started = _clock()
        for _ in range(batches):
            with torch.autocast("cuda", torch.bfloat16):
                features = model(images)
            if with_metrics:
                metric.update(features, labels)
        return _clock() - started

    seconds(True), seconds(False)
    pairs = [(seconds(False), seconds(True)) for _ in range(7)]
    plain, with_metrics = (sorted(column)[len(column) // 2] for column in zip(*pairs, strict=True))
    return {
        "images_per_second": round(batches * len(images) / plain),
        "with_metrics": round(batches * len(images) / with_metrics),
        "added_percent": round(100 * (with_metrics / plain - 1), 2),
    }


def _models() -> dict[str, Any]:
    wide = torchvision.models.resnet50()
    wide.fc = nn.Identity()
    small = torchvision.models.resnet18()
    small.conv1, small.maxpool, small.fc = (
        nn.Conv2d(3, 64, 3, 1, 1, bias=False),
        nn.Identity(),
        nn.Identity(),
    )
    results = {}
    for name, model, size, batch, classes, dim in (
        ("ResNet-50, 224 px, batch 256, K = 1000, d = 2048", wide, 224, 256, 1000, 2048),
        ("ResNet-18, 32 px, batch 512, K = 100, d = 512", small, 32, 512, 100, 512),
    ):
        prepared = model.cuda().eval().to(memory_format=torch.channels_last)
        images = torch.randn(batch, 3, size, size, device="cuda").to(
            memory_format=torch.channels_last
        )
        results[name] = _overhead(prepared, images, classes, dim, 40 if size == 224 else 200)
    return results


def main() -> None:
    """Run the benchmark, print the record and write it."""
    parser = argparse.ArgumentParser(description="Benchmark the metrics at scale.")
    parser.add_argument("--samples", type=int, default=SAMPLES)
    samples = parser.parse_args().samples
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs a GPU")
    stream = Stream(samples)
    streamed, values = _streamed(stream)
    print(json.dumps(streamed), flush=True)
    record = {
        "shape": {"samples": samples, "classes": CLASSES, "dim": DIM, "batch": BATCH},
        "all_metrics_streamed": streamed,
        "values": values,
        "all_metrics_stored_on_the_gpu": _measured(stream, values),
        "cheap_metrics_during_a_pass": _models(),
    }
    print(json.dumps(record, indent=1))
    if samples == SAMPLES:
        print(f"wrote {write('metrics_at_scale', record)}")


if __name__ == "__main__":
    main()
