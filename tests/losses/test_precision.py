"""Half precision: finite for every temperature, and gradients that keep their digits near collapse, autocast or not."""

import contextlib

import pytest
import torch

from protosphere.geometry import simplex_etf
from protosphere.losses import ntce_loss
from support.table import TABLE, Row

CLASSES, EACH, DIM = 10, 8, 64
LABELS = torch.arange(CLASSES * EACH) % CLASSES
HALVES = (torch.bfloat16, torch.float16)
# Losses from logits are given rounded similarities: what they cost near collapse is the caller's choice.
ON_VECTORS = [row for row in TABLE if row.on != "logits"]


def _features(spread: float | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Scattered for None; else a simplex whose samples lie ``spread`` (as an angle) away from their prototypes."""
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
        for form in ("eager", "chunked") if row.has_form else (None,):
            features, prototypes = (
                tensor.to(dtype).requires_grad_() for tensor in _features(spread)
            )
            settings = row.settings(temperature=temperature, form=form)
            value = row.call(row.function, features, prototypes, LABELS, **settings)
            value.backward()
            assert torch.isfinite(value)
            assert torch.isfinite(features.grad).all()
            assert prototypes.grad is None or torch.isfinite(prototypes.grad).all()


def _gradients(
    row: Row, inputs: list[torch.Tensor], scale: float, settings: dict
) -> list[torch.Tensor]:
    leaves = [tensor.detach().clone().requires_grad_() for tensor in inputs]
    (row.call(row.function, *leaves, LABELS, **settings) * scale).backward()
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
def test_gradients_in_half_precision_are_within_one_percent(row, dtype, autocast, spread) -> None:
    """Against float64 on the same rounded inputs, with the backward inside autocast too, as many people write it."""
    compared = 0
    for temperature in (0.01, 0.07, 0.1, 0.5, 1.0) if row.has_temperature else (None,):
        for form in ("eager", "chunked") if row.has_form else (None,):
            settings = row.settings(temperature=temperature, form=form)
            rounded = [tensor.to(dtype) for tensor in _features(spread)]
            exact = _gradients(row, [tensor.double() for tensor in rounded], 1.0, settings)
            if max(float(gradient.abs().max()) for gradient in exact) < 1e-30:
                continue  # The loss is at its minimum: the gradient underflows in any 32-bit number.
            scale = _loss_scale(exact, dtype)
            context = torch.autocast("cpu", dtype) if autocast else contextlib.nullcontext()
            with context:
                ours = _gradients(row, rounded, scale, settings)
            for got, wanted in zip(ours, exact, strict=True):
                compared += 1
                assert (got - wanted).norm() <= 0.01 * wanted.norm(), (temperature, form)
    assert compared


@pytest.mark.parametrize("each", [1, 8])
def test_ntce_keeps_its_digits_to_the_end(each: int) -> None:
    """Samples of a class that differ by 0.003 rad, and classes of one sample, whose share of its sum is almost 1."""
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


@pytest.mark.parametrize("row", [row for row in TABLE if row.on_sphere], ids=str)
def test_a_zero_feature_gets_a_zero_gradient(row: Row) -> None:
    for form in ("eager", "chunked") if row.has_form else (None,):
        features, prototypes = (tensor.float() for tensor in _features(None))
        features[3] = 0
        features.requires_grad_()
        value = row.call(
            row.function, features, prototypes, LABELS, **row.settings(temperature=0.1, form=form)
        )
        value.backward()
        assert torch.isfinite(value)
        assert torch.equal(features.grad[3], torch.zeros(DIM))
        assert torch.isfinite(features.grad).all()
