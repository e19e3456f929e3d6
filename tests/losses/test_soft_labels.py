"""Soft labels: every loss equals its loop over scalars, and the hard loss if they are one-hot."""

from collections.abc import Callable
from inspect import signature
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from protosphere.losses import MixedLabels, nonl_loss
from protosphere.losses.soft_targets import SoftTargets, read_labels
from support.losses import TABLE
from support.scalar_loops import Labels, Row, assert_close, gradients

F64 = torch.float64
ROWS = [row for row in TABLE if row.soft_labels]


class Batch(NamedTuple):
    """Features, prototypes, soft labels and options."""

    features: Tensor
    prototypes: Tensor
    labels: Labels
    options: dict[str, Any]


def _batch(labels: Labels, classes: int, **options: Any) -> Batch:
    samples = len(labels.labels if isinstance(labels, MixedLabels) else labels)
    features, prototypes = torch.randn(samples, 4, dtype=F64), torch.randn(classes, 4, dtype=F64)
    return Batch(features, prototypes, labels, options)


def _mixed(first: list[int], second: list[int], weights: list[float]) -> MixedLabels:
    return MixedLabels(torch.tensor(first), torch.tensor(second), torch.tensor(weights, dtype=F64))


def _sparse() -> Tensor:
    q = torch.rand(6, 4, dtype=F64) * (torch.rand(6, 4) < 0.6)
    q[3] = 0  # An ignored sample.
    q[[0, 1, 2, 4, 5], [0, 1, 2, 3, 0]] += 0.1
    return q / q.sum(1, keepdim=True).clamp(min=1e-9)


MIXED = ([0, 1, 2, 0, 1, 2], [1, 1, 0, 2, 0, 1], [0.7, 0.3, 1.0, 0.5, 0.0, 0.9])
IGNORED = ([0, -100, 2, 0, 1, 2], [1, 1, -100, 2, 0, -100], [0.7, 0.3, 1.0, 0.5, 0.2, 0.6])
LARGE = ([8, 1, 5, 8], [1, 1, 3, 2], [0.7, 0.3, 1.0, 0.5])
HARD = torch.tensor([0, 1, 2, 0, -100, 1])

BATCHES: dict[str, Callable[[], Batch]] = {
    "probabilities": lambda: _batch(torch.randn(6, 3, dtype=F64).softmax(1), 3),
    "probabilities, ignored": lambda: _batch(_sparse(), 4),
    "probabilities, smoothed": lambda: _batch(_sparse(), 4, label_smoothing=0.3),
    "more classes than samples": lambda: _batch(torch.randn(3, 5, dtype=F64).softmax(1), 5),
    "smoothed": lambda: _batch(HARD, 3, label_smoothing=0.2),
    "smoothed to uniform": lambda: _batch(HARD, 3, label_smoothing=1.0),
    "smoothed, more classes than samples": lambda: _batch(HARD[:3], 5, label_smoothing=0.1),
    "smoothed, one class only": lambda: _batch(torch.tensor([1, 1]), 3, label_smoothing=0.1),
    "mixed": lambda: _batch(_mixed(*MIXED), 3),
    "mixed, ignored": lambda: _batch(_mixed(*IGNORED), 3),
    "mixed, smoothed": lambda: _batch(_mixed(*IGNORED), 4, label_smoothing=0.1),
    "mixed, more classes than samples": lambda: _batch(_mixed(*LARGE), 10),
    "mixed, one top class": lambda: _batch(_mixed([1, 1, 1], [0, 2, 1], [0.7, 0.6, 0.5]), 3),
    "mixed, no negatives of one of two top classes": lambda: _batch(
        _mixed([1, 1, 1], [0, 2, 2], [0.5, 0.8, 0.5]), 3
    ),
    "ignored altogether": lambda: _batch(torch.zeros(2, 3, dtype=F64), 3),
}


def _check(row: Row, batch: str, form: str | None, **options: Any) -> None:
    x, w, labels, batch_options = BATCHES[batch]()
    options |= batch_options
    options |= {"temperature": 0.3} if row.has_temperature else {}
    weights = torch.linspace(0.5, 2.0, len(w), dtype=F64)
    x.requires_grad_(), w.requires_grad_()
    for reduction, class_weights in (("none", None), ("mean", weights), ("sum", weights)):
        settings = row.settings(
            form=form, reduction=reduction, class_weights=class_weights, **options
        )
        got = row.call(x, w, labels, **settings)
        listed = None if class_weights is None else class_weights.tolist()
        expected = row.expected(x, w, labels, weights=listed, reduction=reduction, **options)
        assert_close(got, expected)
        for ours, loop in zip(gradients(got, x, w), gradients(expected, x, w), strict=True):
            assert_close(ours, loop)


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("row", [row for row in ROWS if row.has_form], ids=str)
def test_loss_equals_its_definition(row: Row, batch: str, form: str) -> None:
    _check(row, batch, form)


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("row", [row for row in ROWS if not row.has_form], ids=str)
def test_loss_without_forms_equals_its_definition(row: Row, batch: str) -> None:
    _check(row, batch, None)


@pytest.mark.parametrize(
    "batch",
    ["probabilities, ignored", "mixed", "mixed, smoothed", "mixed, more classes than samples"],
)
@pytest.mark.parametrize("row", [row for row in ROWS if row.name.startswith("NONL")], ids=str)
def test_classes_of_a_sample_can_be_weighted_negatives(row: Row, batch: str, form: str) -> None:
    _check(row, batch, form, soft_negatives="weighted")


def test_a_term_without_negatives_drops_out_with_its_probability(form: Any) -> None:
    """Every sample has more than a third of class 0, which then has no negatives."""
    q = torch.tensor([[0.4, 0.6, 0.0], [0.35, 0.0, 0.65], [0.8, 0.1, 0.1]], dtype=F64)
    x, w, labels, _ = _batch(q, 3)
    values = nonl_loss(x, w, labels, soft_negatives="excluded", reduction="none", form=form)
    assert values[2] == 0
    mean = nonl_loss(x, w, labels, soft_negatives="excluded", form=form)
    assert mean.item() == pytest.approx((values.sum() / (0.6 + 0.65)).item(), rel=1e-12)
    row = next(row for row in ROWS if row.function is nonl_loss)
    expected = row.expected(
        x, w, labels, temperature=0.1, soft_negatives="excluded", reduction="none"
    )
    assert_close(values, expected)


@pytest.mark.parametrize("batch", ["probabilities, ignored", "mixed, smoothed", "hard"])
@pytest.mark.parametrize(
    "row",
    [row for row in ROWS if "logit_adjustment" in signature(row.function).parameters],
    ids=str,
)
def test_logit_adjustment_is_added_to_the_logits(row: Row, batch: str, form: str) -> None:
    x, w, labels, options = _batch(HARD, 3) if batch == "hard" else BATCHES[batch]()
    adjustment = torch.randn(len(w), dtype=F64)
    inputs = [tensor.requires_grad_() for tensor in (x, w, adjustment)]
    options |= {"temperature": 0.3} if row.has_temperature else {}
    options["logit_adjustment"] = adjustment
    got = row.call(x, w, labels, **row.settings(form=form, **options))
    expected = row.expected(x, w, labels, **options)
    assert_close(got, expected)
    for ours, loop in zip(gradients(got, *inputs), gradients(expected, *inputs), strict=True):
        assert_close(ours, loop)
    if row.temperature != "head":
        options.pop("temperature", None)
    module = row.call_module(x, w, labels, **row.settings(form=form, **options))
    assert module == row.call(x, w, labels, **row.settings(form=form, **options))


def test_a_division_that_rounds_up_leaves_the_top_class_excluded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Compiled code on a GPU may return more than 1 for x / x, and log(1 − x / x) would be NaN."""
    divide = torch.Tensor.__truediv__

    def rounded_up(self: torch.Tensor, other: Any) -> torch.Tensor:
        return divide(self, other) * (1 + 2e-7)

    weights = torch.rand(64, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(64) % 5
    mixed = MixedLabels(labels, labels.roll(1), weights)
    targets = read_labels(
        mixed,
        num_samples=64,
        num_classes=5,
        ignore_index=-100,
        class_weights=None,
        label_smoothing=0.0,
        dtype=torch.float32,
    )
    assert isinstance(targets, SoftTargets)
    monkeypatch.setattr(torch.Tensor, "__truediv__", rounded_up)
    pairs = targets.negative_weights("weighted").pairs
    assert pairs is not None
    assert not pairs.isnan().any()
    top = torch.where(weights >= 0.5, 0, 1)
    assert (pairs.gather(1, top[:, None]) == -torch.inf).all()
