"""Soft labels on a GPU: the values of the CPU, no synchronization, and CUDA graphs."""

import pytest
import torch
from torch import Tensor

from protosphere.losses import MixedLabels
from support.losses import TABLE
from support.scalar_loops import Labels, Row

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here"),
    pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
soft_losses = pytest.mark.parametrize("row", [row for row in TABLE if row.soft_labels], ids=str)
kinds = pytest.mark.parametrize("kind", ["probabilities", "mixed"])
SMOOTHING = {"probabilities": 0.0, "mixed": 0.1}


def _batch(
    kind: str, device: str, classes: int = 7, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Labels]:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(96, 16, generator=generator).to(device, dtype)
    prototypes = torch.randn(classes, 16, generator=generator).to(device, dtype)
    labels = torch.randint(0, classes, (96,), generator=generator)
    labels[5] = -100
    weights = torch.rand(96, generator=generator)
    q = torch.randn(96, classes, generator=generator).softmax(1)
    mixed = MixedLabels(labels.to(device), labels.roll(1).to(device), weights.to(device))
    soft = q.to(device) if kind == "probabilities" else mixed
    return features.requires_grad_(), prototypes.requires_grad_(), soft


@soft_losses
@kinds
@pytest.mark.parametrize("classes", [7, 300])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_equals_the_cpu(row: Row, kind: str, classes: int, smoothing: float) -> None:
    for form in row.forms:
        settings = row.settings(temperature=0.2, form=form, label_smoothing=smoothing)
        results = []
        for device in ("cpu", "cuda"):
            x, w, soft = _batch(kind, device, classes, torch.float64)
            value = row.call(x, w, soft, **settings)
            results.append([t.cpu() for t in (value, *torch.autograd.grad(value, (x, w)))])
        for cpu, gpu in zip(*results, strict=True):
            torch.testing.assert_close(gpu, cpu, rtol=1e-11, atol=1e-13)


@soft_losses
@kinds
def test_never_synchronizes_with_the_device(row: Row, kind: str) -> None:
    weights = torch.rand(7, device="cuda")
    for form in row.forms:
        x, w, soft = _batch(kind, "cuda")
        settings = row.settings(
            temperature=0.2, form=form, class_weights=weights, label_smoothing=SMOOTHING[kind]
        )
        row.call(x, w, soft, **settings).backward()
        torch.cuda.set_sync_debug_mode("error")
        try:
            row.call(x, w, soft, **settings).backward()
        finally:
            torch.cuda.set_sync_debug_mode("default")


@soft_losses
@kinds
def test_replays_from_a_cuda_graph(row: Row, kind: str) -> None:
    for form in row.forms:
        x, w, soft = _batch(kind, "cuda")
        settings = row.settings(temperature=0.2, form=form, label_smoothing=SMOOTHING[kind])

        def step() -> tuple[Tensor, Tensor]:
            value = row.call(x, w, soft, **settings)  # noqa: B023
            return value, torch.autograd.grad(value, x)[0]  # noqa: B023

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = step()
        with torch.no_grad():
            x.copy_(torch.randn_like(x))
            if isinstance(soft, MixedLabels):
                soft.weights.copy_(torch.rand(96))
        graph.replay()
        for replayed, plain in zip(captured, step(), strict=True):
            torch.testing.assert_close(replayed, plain, rtol=1e-5, atol=1e-6)
