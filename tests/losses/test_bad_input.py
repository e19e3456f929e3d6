"""Bad input gets one sentence that says what must hold and what came."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from protosphere.classifiers import CosineClassifier, LinearClassifier
from protosphere.losses import (
    CrossEntropyLoss,
    NONLLoss,
    NormFaceLoss,
    cross_entropy_loss,
    nonl_loss,
    normface_loss,
)
from support.losses import TABLE
from support.scalar_loops import Row

pytestmark = pytest.mark.bad_input

every_loss = pytest.mark.parametrize("row", TABLE, ids=str)
with_temperature = pytest.mark.parametrize(
    "row", [row for row in TABLE if row.has_temperature], ids=str
)
on_prototypes = pytest.mark.parametrize(
    "row", [row for row in TABLE if row.inputs == "prototypes"], ids=str
)
X, W, Y = torch.randn(4, 3), torch.randn(5, 3), torch.tensor([0, 1, 2, 3])


@every_loss
@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (Y[:, None], r"labels must hold one class index per sample, shape \(4,\); got \(4, 1\)"),
        (Y[:3], r"labels must hold one class index per sample, shape \(4,\); got \(3,\)"),
        (Y.float(), r"labels must be integers \(class indices\), got torch.float32"),
        (Y > 1, r"labels must be integers \(class indices\), got torch.bool"),
        (Y - 1, r"labels must be .* or ignore_index=-100, got values from -1 to 2"),
        (Y.tolist(), "labels must be a tensor, got list"),
    ],
)
def test_labels(row: Row, labels: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        row.call(X, W, labels, **row.options)


@pytest.mark.parametrize("row", [row for row in TABLE if row.inputs != "features"], ids=str)
def test_label_beyond_the_last_class(row: Row) -> None:
    message = "labels must be from 0 to 4 or ignore_index=-100, got values from 2 to 5"
    with pytest.raises(ValueError, match=message):
        row.call(X, W, Y + 2, **row.options)


@every_loss
def test_options(row: Row) -> None:
    with pytest.raises(ValueError, match="reduction must be one of mean, sum, none, got 'average'"):
        row.call(X, W, Y, reduction="average", **row.options)
    with pytest.raises(ValueError, match="ignore_index must be an integer, got None"):
        row.call(X, W, Y, ignore_index=None, **row.options)


@every_loss
@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (torch.ones(5, 1), r"class_weights must hold one weight per class.* got \(5, 1\)"),
        (torch.ones(3), r"class_weights must hold .* got \(3,\)|labels must be from 0 to 2"),
        ([1.0] * 5, "class_weights must be a tensor, got list"),
        (torch.tensor([1, 1, torch.nan, 1, 1]), "class_weights must be finite .*, got nan"),
        (torch.tensor([1.0, 1, -2, 1, 1]), "class_weights must be .* not negative, got -2"),
        (torch.tensor([1, 1, torch.inf, 1, 1]), "class_weights must be finite .*, got inf"),
    ],
)
def test_class_weights(row: Row, weights: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        row.call(X, W, Y, class_weights=weights, **row.options)


@every_loss
@pytest.mark.parametrize(
    "weights", [[1.0], torch.ones(5, 1), torch.tensor([1, torch.nan]), torch.tensor([-1.0])]
)
def test_module_checks_class_weights(row: Row, weights: Any) -> None:
    with pytest.raises(ValueError, match="class_weights must"):
        row.module(class_weights=weights)


BAD_TEMPERATURES = [0.0, -1.0, 1e-40, float("nan"), float("inf"), "0.1", None, True]


@with_temperature
@pytest.mark.parametrize("bad", [*BAD_TEMPERATURES, torch.tensor(-2.0)])
def test_temperature(row: Row, bad: Any) -> None:
    with pytest.raises(ValueError, match=r"temperature must be a positive number, got"):
        row.call(X, W, Y, temperature=bad, **row.options)


@pytest.mark.parametrize("row", [row for row in TABLE if row.temperature == "module"], ids=str)
@pytest.mark.parametrize("bad", [*BAD_TEMPERATURES, nn.Parameter(torch.tensor(0.1))])
def test_temperature_of_a_module(row: Row, bad: Any) -> None:
    with pytest.raises(ValueError, match=r"temperature .*must be a positive number, got"):
        row.module(temperature=bad)


@with_temperature
def test_temperature_with_several_elements(row: Row) -> None:
    message = r"temperature must be one .*number, got a tensor of shape \(4,\)"
    with pytest.raises(ValueError, match=message):
        row.call(X, W, Y, temperature=torch.ones(4), **row.options)


@every_loss
def test_inputs_that_are_not_tensors(row: Row) -> None:
    tensors: dict[str, tuple[Tensor, ...]] = {
        "prototypes": (X, W),
        "features": (X,),
        "logits": (X @ W.mT,),
    }
    first, *others = tensors[row.inputs]
    with pytest.raises(ValueError, match="must be a tensor, got ndarray"):
        row.function(first.numpy(), *others, Y)


@every_loss
def test_module_checks_its_options(row: Row) -> None:
    with pytest.raises(ValueError, match="reduction must be one of mean, sum, none, got 'x'"):
        row.module(reduction="x")


@pytest.mark.parametrize("row", [row for row in TABLE if row.has_form], ids=str)
def test_form(row: Row) -> None:
    message = "form must be one of auto, eager, chunked, got 'fused'"
    with pytest.raises(ValueError, match=message):
        row.call(X, W, Y, form="fused", **row.options)
    with pytest.raises(ValueError, match=message):
        row.module(form="fused")


@on_prototypes
@pytest.mark.parametrize(
    ("features", "prototypes", "message"),
    [
        (X, torch.randn(5, 4), r"prototypes must be .* \(num_classes, 3\); got shape \(5, 4\)"),
        (X[..., None], W, r"features must be a floating-point matrix .* got shape \(4, 3, 1\)"),
        (X.long(), W, "features must be a floating-point matrix .* torch.int64"),
        (X, W[:0], "prototypes must hold at least one class, got none"),
    ],
)
def test_shapes_that_do_not_fit(
    row: Row, features: Tensor, prototypes: Tensor, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        row.function(features, prototypes, Y)


@pytest.mark.parametrize("row", [row for row in TABLE if row.inputs == "logits"], ids=str)
def test_logits_that_are_not_a_matrix(row: Row) -> None:
    message = r"logits must be a floating-point matrix .* got shape \(4,\)"
    with pytest.raises(ValueError, match=message):
        row.function(X[:, 0], Y)


@pytest.mark.parametrize("row", [row for row in TABLE if row.temperature == "head"], ids=str)
@pytest.mark.parametrize("head", [nn.Linear(3, 5), LinearClassifier(3, 5), W], ids=type)
def test_head_without_a_temperature(row: Row, head: Any) -> None:
    message = rf"requires a head with .* such as CosineClassifier, got {type(head).__name__}"
    with pytest.raises(ValueError, match=message):
        row.module(**row.options)(X, head, Y)


@on_prototypes
def test_call_with_logits_and_labels(row: Row) -> None:
    message = r"must be called as loss\(features, head, labels\), .* NONLFromLogits"
    with pytest.raises(TypeError, match=message):
        row.module(**row.options)(X, Y)


@pytest.mark.parametrize(
    "row", [row for row in TABLE if row.inputs in ("logits", "features")], ids=str
)
def test_call_with_features_head_and_labels(row: Row) -> None:
    message = rf"must be called as loss\({row.inputs}, labels\), got three .* NONLLoss"
    with pytest.raises(TypeError, match=message):
        row.module(**row.options)(X, CosineClassifier(3, 5), Y)


@on_prototypes
def test_head_without_prototypes(row: Row) -> None:
    with pytest.raises(ValueError, match=r"requires a .*head.*, got SimpleNamespace"):
        row.module(**row.options)(X, SimpleNamespace(), Y)


def test_cross_entropy_refuses_a_cosine_head() -> None:
    message = "requires a linear head, .* got CosineClassifier; .* NormFaceLoss"
    with pytest.raises(ValueError, match=message):
        CrossEntropyLoss()(X, CosineClassifier(3, 5), Y)


def test_bias() -> None:
    message = r"bias must hold one number per class, shape \(5,\); got \(4,\)"
    with pytest.raises(ValueError, match=message):
        cross_entropy_loss(X, W, Y, bias=torch.ones(4))


@pytest.mark.parametrize("bad", [-0.1, 1.5, float("nan"), "0.1", True])
def test_label_smoothing(bad: Any) -> None:
    message = "label_smoothing must be a number from 0 to 1, got"
    with pytest.raises(ValueError, match=message):
        cross_entropy_loss(X, W, Y, label_smoothing=bad)
    with pytest.raises(ValueError, match=message):
        CrossEntropyLoss(label_smoothing=bad)


@pytest.mark.parametrize(
    ("margin", "kind"),
    [
        (-0.1, "cosine"),
        (4.0, "angle"),
        (float("nan"), "cosine"),
        (float("inf"), "cosine"),
        (True, "angle"),
    ],
)
def test_margin(margin: Any, kind: Any) -> None:
    message = f"margin must be a number from 0 to .*, got {margin}"
    with pytest.raises(ValueError, match=message):
        normface_loss(X, W, Y, margin=margin, margin_kind=kind)
    with pytest.raises(ValueError, match=message):
        NormFaceLoss(margin=margin, margin_kind=kind)


def test_margin_kind() -> None:
    kind: Any = "arc"
    with pytest.raises(ValueError, match="margin_kind must be one of cosine, angle, got 'arc'"):
        NormFaceLoss(margin=0.1, margin_kind=kind)


def test_min_temperature() -> None:
    with pytest.raises(ValueError, match="min_temperature must be a positive number, got 0"):
        nonl_loss(X, W, Y, min_temperature=0)
    with pytest.raises(ValueError, match="min_temperature must be a positive number, got -1"):
        CosineClassifier(3, 5, learn_temperature=True, min_temperature=-1)
    with pytest.raises(ValueError, match="min_temperature has no effect"):
        CosineClassifier(3, 5, min_temperature=0.1)


def test_nonl_refuses_a_learned_temperature_without_a_lower_bound() -> None:
    learned = torch.tensor(0.1, requires_grad=True)
    with pytest.raises(ValueError, match=r"requires min_temperature .* got min_temperature=None"):
        nonl_loss(X, W, Y, temperature=learned)
    head = CosineClassifier(3, 5, learn_temperature=True)
    with pytest.raises(ValueError, match="requires min_temperature"):
        NONLLoss()(X, head, Y)
    bounded = CosineClassifier(3, 5, learn_temperature=True, min_temperature=0.05)
    assert torch.isfinite(NONLLoss()(X, bounded, Y))


def test_negatives() -> None:
    negatives: Any = "all"
    message = "negatives must be one of samples, prototypes, both, got 'all'"
    with pytest.raises(ValueError, match=message):
        NONLLoss(negatives=negatives)
