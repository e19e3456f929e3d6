"""Precision: finite for every temperature, and accurate gradients near collapse."""

import contextlib
from typing import Any

import pytest
import torch

from protosphere.geometry import simplex_etf
from protosphere.losses import ntce_loss, scl_loss
from support.losses import TABLE
from support.scalar_loops import Row

CLASSES, EACH, DIM = 10, 8, 64
LABELS = torch.arange(CLASSES * EACH) % CLASSES
HALVES = (torch.bfloat16, torch.float16)
# Losses from logits get logits that are rounded already.
ON_VECTORS = [row for row in TABLE if row.inputs != "logits"]


def _features(spread: float | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Scattered for None; else a simplex with samples at an angle ``spread`` to their vertex."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(len(LABELS), DIM, dtype=torch.float64, generator=generator)
    drift = torch.randn(CLASSES, DIM, dtype=torch.float64, generator=generator)
    if spread is None:
        return noise, drift
    frame = simplex_etf(CLASSES, DIM)
    return 5 * (frame[LABELS] + spread * noise / DIM**0.5), 2 * (frame + spread * drift / DIM**0.5)


@pytest.mark.parametrize("row", TABLE, ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("spread", [0.0, None], ids=["collapsed", "scattered"])
def test_value_and_gradient_are_finite(row: Row, dtype: torch.dtype, spread: float | None) -> None:
    for temperature in (0.01, 0.07, 0.5, 1.0) if row.has_temperature else (None,):
        for form in row.forms:
            features, prototypes = (
                tensor.to(dtype).requires_grad_() for tensor in _features(spread)
            )
            settings = row.settings(temperature=temperature, form=form)
            value = row.call(features, prototypes, LABELS, **settings)
            gradients = torch.autograd.grad(value, (features, prototypes), allow_unused=True)
            assert torch.isfinite(value)
            assert all(gradient is None or torch.isfinite(gradient).all() for gradient in gradients)


def _gradients(
    row: Row, inputs: list[torch.Tensor], scale: float, settings: dict[str, Any]
) -> list[torch.Tensor]:
    leaves = [tensor.detach().clone().requires_grad_() for tensor in inputs]
    value = row.call(leaves[0], leaves[1], LABELS, **settings)
    (value * scale).backward()
    return [leaf.grad.double() / scale for leaf in leaves if leaf.grad is not None]


def _loss_scale(gradients: list[torch.Tensor], dtype: torch.dtype) -> float:
    """As a gradient scaler finds it: the largest gradient well inside the range of the dtype."""
    largest = max(float(gradient.abs().max()) for gradient in gradients)
    return (
        1.0
        if dtype == torch.bfloat16
        else 2.0 ** torch.tensor(1000 / largest).log2().floor().item()
    )


@pytest.mark.parametrize("row", ON_VECTORS, ids=str)
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("autocast", [False, True], ids=["plain", "autocast"])
@pytest.mark.parametrize("spread", [None, 0.1, 0.01], ids=lambda spread: f"spread {spread}")
@pytest.mark.long
def test_gradients_in_half_precision_are_within_one_percent(
    row: Row, dtype: torch.dtype, autocast: bool, spread: float | None
) -> None:
    """Against float64 on the same rounded inputs, with the backward pass inside autocast too."""
    compared = 0
    for temperature in (0.01, 0.07, 0.1, 0.5, 1.0) if row.has_temperature else (None,):
        for form in row.forms:
            settings = row.settings(temperature=temperature, form=form)
            rounded = [tensor.to(dtype) for tensor in _features(spread)]
            exact = _gradients(row, [tensor.double() for tensor in rounded], 1.0, settings)
            if max(float(gradient.abs().max()) for gradient in exact) < 1e-30:
                continue  # At the minimum the gradient underflows in any 32-bit number.
            scale = _loss_scale(exact, dtype)
            context: Any = torch.autocast("cpu", dtype) if autocast else contextlib.nullcontext()
            with context:
                ours = _gradients(row, rounded, scale, settings)
            for got, wanted in zip(ours, exact, strict=True):
                compared += 1
                assert (got - wanted).norm() <= 0.01 * wanted.norm(), (temperature, form)
    assert compared


@pytest.mark.parametrize("each", [1, 8])
def test_ntce_is_accurate_very_near_collapse(each: int) -> None:
    """Samples 0.003 rad apart, and classes of one sample, whose probability is almost 1."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(CLASSES * each) % CLASSES
    noise = torch.randn(len(labels), DIM, dtype=torch.float64, generator=generator)
    features = (simplex_etf(CLASSES, DIM)[labels] + 0.003 * noise / DIM**0.5).float()
    prototypes = simplex_etf(CLASSES, DIM).float()
    for temperature in (0.05, 0.07, 0.1):
        for form in ("eager", "chunked"):
            gradients = []
            for dtype in (torch.float32, torch.float64):
                leaf = features.detach().to(dtype).clone().requires_grad_()
                ntce_loss(
                    leaf, prototypes.to(dtype), labels, temperature=temperature, form=form
                ).backward()
                gradients.append(leaf.grad.double())
            assert (gradients[0] - gradients[1]).norm() <= 0.01 * gradients[1].norm(), (
                temperature,
                form,
            )


@pytest.mark.parametrize("row", ON_VECTORS, ids=str)
@pytest.mark.parametrize("spread", [0.01, 1e-3], ids=lambda spread: f"spread {spread}")
def test_gradients_in_float32_are_within_one_percent_near_collapse(row: Row, spread: float) -> None:
    compared = 0
    for temperature in (0.05, 0.07, 0.1, 0.5) if row.has_temperature else (None,):
        for form in row.forms:
            settings = row.settings(temperature=temperature, form=form)
            rounded = [tensor.float() for tensor in _features(spread)]
            exact = _gradients(row, [tensor.double() for tensor in rounded], 1.0, settings)
            if max(float(gradient.abs().max()) for gradient in exact) < 1e-30:
                continue
            for got, expected in zip(_gradients(row, rounded, 1.0, settings), exact, strict=True):
                compared += 1
                assert (got - expected).norm() <= 0.01 * expected.norm(), (temperature, form)
    assert compared


def test_scl_is_accurate_with_unequal_and_ignored_samples_near_collapse() -> None:
    features = _features(1e-3)[0].float()
    labels = LABELS.clone()
    labels[:13], labels[20] = 0, -100
    features[:13] = features[0] + 1e-3 * torch.randn(13, DIM)
    for form in ("eager", "chunked"):
        gradients = []
        for dtype in (torch.float32, torch.float64):
            leaf = features.detach().to(dtype).requires_grad_()
            weights = torch.linspace(0.5, 2, CLASSES, dtype=dtype)
            scl_loss(leaf, labels, temperature=0.07, class_weights=weights, form=form).backward()
            assert leaf.grad is not None
            gradients.append(leaf.grad.double())
        assert (gradients[0] - gradients[1]).norm() <= 0.01 * gradients[1].norm(), form


@pytest.mark.parametrize("row", [row for row in TABLE if row.on_sphere], ids=str)
def test_a_zero_feature_gets_a_zero_gradient(row: Row) -> None:
    for form in row.forms:
        features, prototypes = (tensor.float() for tensor in _features(None))
        features[3] = 0
        features.requires_grad_()
        value = row.call(features, prototypes, LABELS, **row.settings(temperature=0.1, form=form))
        (gradient,) = torch.autograd.grad(value, features)
        assert torch.isfinite(value)
        assert torch.equal(gradient[3], torch.zeros(DIM))
        assert torch.isfinite(gradient).all()
