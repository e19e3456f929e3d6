"""Wrong soft labels, and losses and options that take none, get one sentence."""

from typing import Any

import pytest
import torch

from protosphere.losses import (
    CrossEntropyLoss,
    MixedLabels,
    NONLFromLogits,
    NONLLoss,
    NormFaceFromLogits,
    NormFaceLoss,
    nonl_from_logits,
    nonl_loss,
    normface_loss,
)
from support.losses import TABLE
from support.scalar_loops import Row

pytestmark = pytest.mark.bad_input

soft_losses = pytest.mark.parametrize("row", [row for row in TABLE if row.soft_labels], ids=str)
X, W, Y = torch.randn(4, 3), torch.randn(5, 3), torch.tensor([0, 1, 2, 3])
Q = torch.rand(4, 5).softmax(1)
MIXED = MixedLabels(Y, Y.roll(1), torch.full((4,), 0.7))


@soft_losses
@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (2 * Q, "labels must hold probabilities that sum to 1 in each row, .* got a sum of 2"),
        (Q + 0.001, r"probabilities that sum to 1 .* got a sum of 1.005"),
        (Q * torch.nan, "labels must hold probabilities that sum to 1 .* got a sum of nan"),
        (torch.tensor([[1.5, -0.5, 0, 0, 0]] * 4), "probabilities of at least 0, got -0.5"),
        (Q.clone().requires_grad_(), "labels must be constant, got requires_grad=True; detach"),
        (Q[:3], r"one probability per sample and class, shape \(4, 5\); got \(3, 5\)"),
        (Q[:, :4], r"one probability per sample and class, shape \(4, 5\); got \(4, 4\)"),
        ((Q > 0.2).long(), r"labels of shape \(4, 5\) must be floating-point .* got torch.int64"),
        (Q > 0.2, r"must be floating-point class probabilities, got torch.bool; convert"),
        (MIXED._replace(labels=Y - 1), "labels must be from 0 to 4 or ignore_index=-100, got"),
        (MIXED._replace(other_labels=Y + 2), "other_labels must be from 0 to 4 .* got values"),
        (MIXED._replace(other_labels=Y[:3]), r"other_labels must hold one class index .* \(3,\)"),
        (MIXED._replace(weights=torch.full((4,), 1.5)), "weights .* between 0 and 1, got 1.5"),
        (MIXED._replace(weights=torch.full((4,), torch.nan)), "between 0 and 1, got nan"),
        (MIXED._replace(weights=torch.ones(3)), r"weights .* one number per sample.* \(3,\)"),
        (MIXED._replace(weights=Y), "weights of MixedLabels must be a floating-point tensor, got"),
        (MIXED._replace(weights=0.7), "must be a floating-point tensor, got float"),  # type: ignore[arg-type]
        (
            MIXED._replace(weights=torch.full((4,), 0.7).requires_grad_()),
            "weights of MixedLabels must be constant, got requires_grad=True",
        ),
    ],
)
def test_labels(row: Row, labels: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        row.call(X, W, labels, **row.options)


@soft_losses
def test_probabilities_may_be_rounded(row: Row) -> None:
    for dtype in (torch.float16, torch.bfloat16):
        row.call(X, W, torch.rand(4, 5).softmax(1).to(dtype), **row.options)


@soft_losses
def test_class_weights_and_smoothing(row: Row) -> None:
    with pytest.raises(ValueError, match=r"class_weights must hold one weight .* got \(3,\)"):
        row.call(X, W, Q, class_weights=torch.ones(3), **row.options)
    message = "label_smoothing must be a number from 0 to 1, got 1.5"
    with pytest.raises(ValueError, match=message):
        row.call(X, W, Y, label_smoothing=1.5, **row.options)
    with pytest.raises(ValueError, match=message):
        row.module(label_smoothing=1.5)


@pytest.mark.parametrize("row", [row for row in TABLE if row.inputs == "features"], ids=str)
def test_losses_without_prototypes_take_class_indices_only(row: Row) -> None:
    with pytest.raises(ValueError, match="must be class indices for this loss, got MixedLabels"):
        row.call(X, W, MIXED)
    with pytest.raises(ValueError, match=r"must be integers \(class indices\), got torch.float32"):
        row.call(X, W, Q)


@pytest.mark.parametrize("labels", [Q, MIXED, Y], ids=["probabilities", "mixed", "smoothed"])
def test_margins_and_other_negatives(labels: Any) -> None:
    options: dict[str, Any] = {"label_smoothing": 0.1 if labels is Y else 0.0}
    message = "margin must be 0 with soft labels or label smoothing, got 0.2"
    with pytest.raises(ValueError, match=message):
        normface_loss(X, W, labels, margin=0.2, **options)
    others: tuple[Any, ...] = ("prototypes", "both")
    for negatives in others:
        message = f'negatives must be "samples" with soft labels .* got "{negatives}"'
        with pytest.raises(ValueError, match=message):
            nonl_loss(X, W, labels, negatives=negatives, **options)
        with pytest.raises(ValueError, match=message):
            nonl_from_logits(X, X[:, :3].softmax(1), negatives=negatives)


def test_modules_refuse_options_that_exclude_each_other() -> None:
    with pytest.raises(ValueError, match="margin must be 0 with soft labels"):
        NormFaceLoss(margin=0.2, label_smoothing=0.1)
    for module in (NONLLoss, NONLFromLogits):
        with pytest.raises(ValueError, match='negatives must be "samples" with soft labels'):
            module(negatives="both", label_smoothing=0.1)
        with pytest.raises(ValueError, match="soft_negatives must be one of weighted, excluded"):
            module(soft_negatives="none")  # type: ignore[arg-type]


@pytest.mark.parametrize("module", [CrossEntropyLoss, NormFaceLoss, NormFaceFromLogits])
@pytest.mark.parametrize(
    ("adjustment", "message"),
    [
        ([0.0], "logit_adjustment must be a tensor, got list"),
        (torch.ones(5, 1), r"logit_adjustment must hold one number per class.* got \(5, 1\)"),
        (torch.zeros(5).log(), "logit_adjustment must be finite, got -inf"),
    ],
)
def test_logit_adjustment(module: Any, adjustment: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        module(logit_adjustment=adjustment)


def test_logit_adjustment_of_another_number_of_classes() -> None:
    with pytest.raises(ValueError, match=r"one number per class, shape \(5,\); got \(3,\)"):
        normface_loss(X, W, Y, logit_adjustment=torch.zeros(3))
    with pytest.raises(ValueError, match=r"one number per class, shape \(5,\); got \(3,\)"):
        NormFaceFromLogits(logit_adjustment=torch.zeros(3))(X @ W.mT, Y)
