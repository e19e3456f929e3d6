"""Every loss equals its loop over scalars to 1e-12, in value and gradient, on unusual batches."""

from typing import Any

import pytest
import torch

from protosphere.kernels import Form
from protosphere.losses import cross_entropy_loss
from support.losses import TABLE, cross_entropy
from support.scalar_loops import Row, assert_close, gradients, probabilities, reduce

F64 = torch.float64


def _batch(
    labels: list[int], classes: int, dim: int = 4
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return (
        torch.randn(len(labels), dim, dtype=F64),
        torch.randn(classes, dim, dtype=F64),
        torch.tensor(labels),
    )


def _repeated() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    features, prototypes, labels = _batch([0, 1, 0, 1, 2, 2], 3)
    features[2], features[4] = features[0], features[0]
    return features, prototypes, labels


def _strided() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    labels = torch.tensor([0, 9, 1, 9, 2, 9, 0, 9, 1, 9])[::2]
    return torch.randn(4, 10, dtype=F64).t()[::2], torch.randn(8, 3, dtype=F64).t()[:, ::2], labels


BATCHES = {
    "plain": lambda: _batch([0, 1, 2, 0, 1, 2, 2], 3),
    "as many classes as dimensions": lambda: _batch([0, 1, 2, 3, 3, 1], 4),
    "more classes than samples": lambda: _batch([7, 2, 7, 5], 9),
    "one sample, many classes": lambda: _batch([4], 6),
    "one sample of each class": lambda: _batch([2, 0, 1], 3),
    "repeated samples": _repeated,
    "absent classes": lambda: _batch([0, 4, 0, 4, 4], 5),
    "one class only": lambda: _batch([1, 1, 1, 1], 3),
    "one class only, more classes than samples": lambda: _batch([3, 3], 5),
    "a lone sample in its class": lambda: _batch([0, 0, 1, 0], 2),
    "ignored in the middle": lambda: _batch([0, 1, -100, 1, 0, -100, 2], 3),
    "ignored, more classes than samples": lambda: _batch([6, -100, 6, 3], 8),
    "ignored but for one": lambda: _batch([-100, 1, -100], 2),
    "ignored altogether": lambda: _batch([-100, -100, -100], 2),
    "not contiguous": _strided,
}


def _check(row: Row, batch: str, form: str | None) -> None:
    features, prototypes, labels = BATCHES[batch]()
    temperature = {"temperature": 0.3} if row.has_temperature else {}
    for reduction in ("mean", "sum", "none"):
        for weights in (None, torch.linspace(0.5, 2.0, len(prototypes), dtype=F64)):
            # detach() and not clone(): the copy would be contiguous.
            x, w = features.detach().requires_grad_(), prototypes.detach().requires_grad_()
            settings = row.settings(
                **temperature, form=form, reduction=reduction, class_weights=weights
            )
            got = row.call(x, w, labels, **settings)
            listed = None if weights is None else weights.tolist()
            expected = row.expected(
                x, w, labels, weights=listed, reduction=reduction, **temperature
            )
            assert_close(got, expected)
            for ours, theirs in zip(gradients(got, x, w), gradients(expected, x, w), strict=True):
                assert_close(ours, theirs)


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("row", [row for row in TABLE if row.has_form], ids=str)
@pytest.mark.long
def test_loss_equals_its_definition(row: Row, batch: str, form: str) -> None:
    _check(row, batch, form)


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("row", [row for row in TABLE if not row.has_form], ids=str)
def test_loss_without_forms_equals_its_definition(row: Row, batch: str) -> None:
    _check(row, batch, None)


@pytest.mark.parametrize("label_smoothing", [0.0, 0.3])
def test_cross_entropy_has_a_bias(form: Form, label_smoothing: float) -> None:
    features, prototypes, labels = BATCHES["ignored in the middle"]()
    bias = torch.randn(3, dtype=F64)
    inputs = [tensor.requires_grad_() for tensor in (features, prototypes, bias)]
    options: dict[str, Any] = {"bias": bias, "temperature": 0.7}
    got = cross_entropy_loss(
        features, prototypes, labels, form=form, label_smoothing=label_smoothing, **options
    )
    q = probabilities(labels, 3, label_smoothing)
    expected = reduce(cross_entropy(features, prototypes, q, **options), None, "mean")
    assert_close(got, expected)
    for ours, theirs in zip(gradients(got, *inputs), gradients(expected, *inputs), strict=True):
        assert_close(ours, theirs)


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_label_smoothing_equals_that_of_torch(label_smoothing: float, reduction: str) -> None:
    features, prototypes, labels = BATCHES["ignored in the middle"]()
    bias = torch.randn(3, dtype=F64)
    options: dict[str, Any] = {"label_smoothing": label_smoothing, "reduction": reduction}
    expected = torch.nn.functional.cross_entropy(features @ prototypes.mT + bias, labels, **options)
    got = cross_entropy_loss(features, prototypes, labels, bias=bias, **options)
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)
