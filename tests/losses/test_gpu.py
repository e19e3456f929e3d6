"""On a GPU: the values of the CPU, no synchronization, and CUDA graphs."""

from typing import Any

import pytest
import torch

from protosphere.losses import NONLFromLogits
from support.losses import TABLE
from support.scalar_loops import Row

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here"),
    # Warnings of torch on graphs, on TF32 and on the debug mode that finds synchronizations.
    pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream"),
    pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
every_loss = pytest.mark.parametrize("row", TABLE, ids=str)


def _batch(
    samples: int = 96, classes: int = 7, dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(samples, 16, generator=generator)
    prototypes = torch.randn(classes, 16, generator=generator)
    labels = torch.randint(0, classes, (samples,), generator=generator)
    labels[5] = -100
    return features.to(dtype), prototypes.to(dtype), labels


@every_loss
@pytest.mark.parametrize("classes", [7, 200])
def test_equals_the_cpu(row: Row, classes: int) -> None:
    for form in row.forms:
        settings = row.settings(temperature=0.2, form=form)
        results = []
        for device in ("cpu", "cuda"):
            features, prototypes, labels = (
                tensor.to(device) for tensor in _batch(classes=classes, dtype=torch.float64)
            )
            x, w = features.requires_grad_(), prototypes.requires_grad_()
            value = row.call(x, w, labels, **settings)
            gradients = torch.autograd.grad(value, (x, w), allow_unused=True)
            results.append(
                [None if tensor is None else tensor.cpu() for tensor in (value, *gradients)]
            )
        for cpu, gpu in zip(*results, strict=True):
            torch.testing.assert_close(gpu, cpu, rtol=1e-11, atol=1e-13)


@every_loss
def test_never_synchronizes_with_the_device(row: Row) -> None:
    weights = torch.rand(7, device="cuda")
    for form in row.forms:
        features, prototypes, labels = (tensor.cuda() for tensor in _batch())
        x, w = features.requires_grad_(), prototypes.requires_grad_()
        settings = row.settings(temperature=0.2, form=form, class_weights=weights)
        row.call(x, w, labels, **settings).backward()
        torch.cuda.set_sync_debug_mode("error")
        try:
            row.call(x, w, labels, **settings).backward()
        finally:
            torch.cuda.set_sync_debug_mode("default")


@every_loss
def test_replays_from_a_cuda_graph(row: Row) -> None:
    for form in row.forms:
        features, prototypes, labels = (tensor.cuda() for tensor in _batch())
        x, w = features.requires_grad_(), prototypes.requires_grad_()
        settings = row.settings(temperature=0.2, form=form)

        def step(
            x: torch.Tensor = x,
            w: torch.Tensor = w,
            labels: torch.Tensor = labels,
            settings: dict[str, Any] = settings,
        ) -> tuple[torch.Tensor, torch.Tensor]:
            value = row.call(x, w, labels, **settings)
            return value, torch.autograd.grad(value, x)[0]

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
        graph.replay()
        for replayed, plain in zip(captured, step(), strict=True):
            torch.testing.assert_close(replayed, plain, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("row", [row for row in TABLE if row.inputs != "logits"], ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_gradients_in_half_precision_are_within_one_percent(row: Row, dtype: torch.dtype) -> None:
    for form in row.forms:
        settings = row.settings(temperature=0.2, form=form)
        features, prototypes, labels = (tensor.cuda() for tensor in _batch(dtype=dtype))
        gradients = []
        for wide in (False, True):
            x, w = (
                (tensor.double() if wide else tensor).detach().requires_grad_()
                for tensor in (features, prototypes)
            )
            with torch.autocast("cuda", dtype, enabled=not wide):
                (row.call(x, w, labels, **settings) * 1024).backward()
            gradients.append(x.grad.double())
        assert (gradients[0] - gradients[1]).norm() <= 0.01 * gradients[1].norm()


@pytest.mark.compiled
@pytest.mark.filterwarnings("ignore")  # Warnings of the compiler, none about the losses.
@every_loss
def test_compiles_with_cuda_graphs(row: Row) -> None:
    features, prototypes, labels = (tensor.cuda() for tensor in _batch())
    for form in row.forms:
        torch.compiler.reset()
        settings = row.settings(temperature=0.2, form=form)

        def loss(
            x: torch.Tensor, w: torch.Tensor, y: torch.Tensor, settings: dict[str, Any] = settings
        ) -> torch.Tensor:
            return row.call(x, w, y, **settings)

        compiled = torch.compile(loss, fullgraph=True, mode="reduce-overhead")
        for _ in range(3):
            x, w = features.clone().requires_grad_(), prototypes.clone().requires_grad_()
            torch.compiler.cudagraph_mark_step_begin()
            value = compiled(x, w, labels)
            gradient = torch.autograd.grad(value, x)[0]
        plain = loss(x, w, labels)
        torch.testing.assert_close(value, plain, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(gradient, torch.autograd.grad(plain, x)[0], rtol=1e-3, atol=1e-5)


def test_large_logits_are_warned_of_later_and_without_synchronization() -> None:
    loss = NONLFromLogits()
    logits = 30 * torch.randn(64, 10, device="cuda")
    logits[0, 0] = 500
    labels = torch.arange(64, device="cuda") % 10
    loss(logits, labels)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        with pytest.warns(UserWarning, match="got a logit of 500 .* use CosineClassifier"):
            loss(logits, labels)
        loss(logits, labels)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_large_logits_in_a_cuda_graph_do_not_disturb_it() -> None:
    loss, labels = NONLFromLogits(), torch.arange(64, device="cuda") % 10
    logits = torch.full((64, 10), 500.0, device="cuda")
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        value = loss(logits, labels)
    graph.replay()
    assert torch.isfinite(value)
