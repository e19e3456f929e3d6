"""The weighted mean of NormFace and NONL: its weight, its temperature, and its queue."""

from typing import Any

import pytest
import torch
from torch import Tensor

from protosphere.classifiers import CosineClassifier
from protosphere.losses import (
    FeatureQueue,
    NormFaceNONLLoss,
    nonl_loss,
    normface_loss,
    normface_nonl_loss,
)

F64 = torch.float64
CLASSES, DIM = 4, 5


def _batch(samples: int = 9) -> tuple[Tensor, Tensor, Tensor]:
    features = torch.randn(samples, DIM, dtype=F64)
    return features, torch.randn(CLASSES, DIM, dtype=F64), torch.arange(samples) % CLASSES


def test_the_weight_leads_from_nonl_to_normface() -> None:
    batch = _batch()
    normface, nonl = (loss(*batch, temperature=0.3) for loss in (normface_loss, nonl_loss))
    assert normface_nonl_loss(*batch, normface_weight=1.0, temperature=0.3) == normface
    assert normface_nonl_loss(*batch, normface_weight=0.0, temperature=0.3) == nonl
    default = normface_nonl_loss(*batch, temperature=0.3)
    torch.testing.assert_close(default, (normface + nonl) / 2, rtol=1e-14, atol=0)
    head = CosineClassifier(DIM, CLASSES, temperature=0.3).double()
    with torch.no_grad():
        head.prototypes.copy_(batch[1])
    assert NormFaceNONLLoss()(batch[0], head, batch[2]) == default


def test_a_batch_of_one_class_has_the_part_of_normface_only() -> None:
    features, prototypes, _ = _batch()
    labels = torch.full((9,), 2)
    value = normface_nonl_loss(features, prototypes, labels, normface_weight=0.3)
    expected = 0.3 * normface_loss(features, prototypes, labels)
    torch.testing.assert_close(value, expected, rtol=1e-14, atol=0)


def test_min_temperature_is_a_floor_of_both_parts() -> None:
    batch = _batch()
    at_floor = normface_nonl_loss(*batch, temperature=0.5)
    for low in (0.1, torch.tensor(0.1, dtype=F64)):
        assert normface_nonl_loss(*batch, temperature=low, min_temperature=0.5) == at_floor


def test_gradients_of_the_two_parts_are_added_before_they_are_rounded() -> None:
    features, prototypes, labels = _batch()
    gradients = []
    for dtype in (torch.bfloat16, torch.float32):
        x, w = (t.bfloat16().to(dtype).requires_grad_() for t in (features, prototypes))
        value = normface_nonl_loss(x, w, labels)
        gradients.append([g.bfloat16() for g in torch.autograd.grad(value, (x, w))])
    for narrow, wide in zip(*gradients, strict=True):
        assert torch.equal(narrow, wide)


def test_entries_of_a_queue_are_keys_of_nonl_only() -> None:
    features, prototypes, labels = _batch()
    head = CosineClassifier(DIM, CLASSES, temperature=0.3).double()
    with torch.no_grad():
        head.prototypes.copy_(prototypes)
    queue = FeatureQueue(6, DIM)
    loss = NormFaceNONLLoss(normface_weight=0.3, queue=queue)
    earlier = torch.randn(6, DIM, dtype=F64)
    queue.add(earlier, torch.tensor([0, 1, 2, 3, 3, 3]))
    entries = queue.read()
    normface = normface_loss(features, prototypes, labels, temperature=0.3)
    nonl = nonl_loss(features, prototypes, labels, temperature=0.3, queue=entries)
    assert nonl != nonl_loss(features, prototypes, labels, temperature=0.3)
    expected = 0.3 * normface + 0.7 * nonl
    torch.testing.assert_close(loss(features, head, labels), expected, rtol=1e-14, atol=0)
    # Samples of the batch have taken the place of the entries.
    assert loss(features, head, labels) != expected
    without = 0.3 * normface + 0.7 * nonl_loss(features, prototypes, labels, temperature=0.3)
    torch.testing.assert_close(loss.eval()(features, head, labels), without, rtol=1e-14, atol=0)


@pytest.mark.bad_input
@pytest.mark.parametrize("bad", [-0.1, 1.5, float("nan"), "0.5", True, None])
def test_weights_that_are_refused(bad: Any) -> None:
    message = "normface_weight must be a number from 0 to 1, got"
    with pytest.raises(ValueError, match=message):
        normface_nonl_loss(*_batch(), normface_weight=bad)
    with pytest.raises(ValueError, match=message):
        NormFaceNONLLoss(normface_weight=bad)


@pytest.mark.bad_input
def test_a_learned_temperature_without_a_lower_bound_is_refused() -> None:
    features, prototypes, labels = _batch()
    learned = torch.tensor(0.1, dtype=F64, requires_grad=True)
    with pytest.raises(ValueError, match="requires min_temperature"):
        normface_nonl_loss(features, prototypes, labels, temperature=learned)
    head = CosineClassifier(DIM, CLASSES, learn_temperature=True).double()
    with pytest.raises(ValueError, match="requires min_temperature"):
        NormFaceNONLLoss()(features, head, labels)
