"""Wrong input gets one sentence that says what must hold and what came."""

import pytest
import torch

from protosphere.losses import (
    CrossEntropyLoss,
    NONLLoss,
    NormFaceLoss,
    cross_entropy_loss,
    nonl_loss,
    normface_loss,
)
from support.table import TABLE, Row

pytestmark = pytest.mark.bad_input

every_loss = pytest.mark.parametrize("row", TABLE, ids=str)
X, W, Y = torch.randn(4, 3), torch.randn(5, 3), torch.tensor([0, 1, 2, 3])


@every_loss
def test_labels(row: Row) -> None:
    for labels, sentence in (
        (Y[:, None], r"labels must hold one class index per sample, shape \(4,\); got \(4, 1\)"),
        (Y[:3], r"labels must hold one class index per sample, shape \(4,\); got \(3,\)"),
        (Y.float(), r"labels must be integers; got torch.float32"),
        (Y > 1, r"labels must be integers; got torch.bool"),
        (Y - 1, r"labels must be .* or ignore_index=-100; got values from -1 to 2"),
    ):
        with pytest.raises(ValueError, match=sentence):
            row.call(row.function, X, W, labels, **row.options)


@pytest.mark.parametrize("row", [row for row in TABLE if row.on != "features"], ids=str)
def test_label_beyond_the_last_class(row: Row) -> None:
    with pytest.raises(
        ValueError,
        match=r"labels must be from 0 to 4, or ignore_index=-100; got values from 2 to 5",
    ):
        row.call(row.function, X, W, Y + 2, **row.options)


@every_loss
def test_options(row: Row) -> None:
    with pytest.raises(ValueError, match="reduction must be one of mean, sum, none; got 'average'"):
        row.call(row.function, X, W, Y, reduction="average", **row.options)
    for weights in (torch.ones(5, 1), torch.ones(3)):
        with pytest.raises(ValueError, match=r"class_weights must hold|labels must be from 0 to 2"):
            row.call(row.function, X, W, Y, class_weights=weights, **row.options)


@pytest.mark.parametrize("row", [row for row in TABLE if row.has_temperature], ids=str)
@pytest.mark.parametrize(
    "bad", [0.0, -1.0, 1e-40, float("nan"), float("inf"), "0.1", None, torch.tensor(-2.0)]
)
def test_temperature(row: Row, bad) -> None:
    with pytest.raises(ValueError, match=r"temperature must be a positive number; got"):
        row.call(row.function, X, W, Y, temperature=bad, **row.options)
    with pytest.raises(ValueError, match=r"temperature must be a (positive )?number; got"):
        row.module(temperature=bad)


@pytest.mark.parametrize("row", [row for row in TABLE if row.has_temperature], ids=str)
def test_temperature_of_many_numbers(row: Row) -> None:
    with pytest.raises(
        ValueError, match=r"temperature must be one number; got a tensor of shape \(4,\)"
    ):
        row.call(row.function, X, W, Y, temperature=torch.ones(4), **row.options)


@every_loss
def test_what_is_not_a_tensor(row: Row) -> None:
    tensors = {"prototypes": (X, W), "features": (X,), "logits": (X @ W.mT,)}[row.on]
    with pytest.raises(ValueError, match="labels must be a tensor; got list"):
        row.function(*tensors, Y.tolist())
    with pytest.raises(ValueError, match="must be a tensor; got ndarray"):
        row.function(tensors[0].numpy(), *tensors[1:], Y)
    with pytest.raises(ValueError, match="ignore_index must be an integer; got None"):
        row.function(*tensors, Y, ignore_index=None)


@every_loss
def test_a_module_checks_its_options_when_it_is_made(row: Row) -> None:
    with pytest.raises(ValueError, match="reduction must be one of mean, sum, none; got 'x'"):
        row.module(reduction="x")
    if row.has_form:
        with pytest.raises(ValueError, match="form must be one of auto, eager, chunked; got 'x'"):
            row.module(form="x")
    if row.has_temperature:
        with pytest.raises(
            ValueError, match="a module's temperature must be a number; got a tensor"
        ):
            row.module(temperature=torch.nn.Parameter(torch.tensor(0.1)))


@pytest.mark.parametrize("row", [row for row in TABLE if row.on == "prototypes"], ids=str)
def test_shapes_that_do_not_fit(row: Row) -> None:
    with pytest.raises(
        ValueError, match=r"prototypes must be .* \(num_classes, 3\), .* got shape \(5, 4\)"
    ):
        row.function(X, torch.randn(5, 4), Y)
    with pytest.raises(
        ValueError, match=r"features must be a floating-point matrix, .* got shape \(4, 3, 1\)"
    ):
        row.function(X[..., None], W, Y)
    with pytest.raises(
        ValueError, match=r"features must be a floating-point matrix, .* of torch.int64"
    ):
        row.function(X.long(), W, Y)
    with pytest.raises(ValueError, match=r"prototypes must hold at least one class; got none"):
        row.function(X, W[:0], Y)


@pytest.mark.parametrize("row", [row for row in TABLE if row.on == "logits"], ids=str)
def test_logits_that_are_not_a_matrix(row: Row) -> None:
    with pytest.raises(
        ValueError, match=r"logits must be a floating-point matrix, .* got shape \(4,\)"
    ):
        row.function(X[:, 0], Y)


def test_bias() -> None:
    with pytest.raises(
        ValueError, match=r"bias must hold one number per class, shape \(5,\); got \(4,\)"
    ):
        cross_entropy_loss(X, W, Y, bias=torch.ones(4))
    assert CrossEntropyLoss()(X, W, Y, bias=torch.zeros(5)) == cross_entropy_loss(X, W, Y)


def test_margin() -> None:
    for margin, kind in (
        (-0.1, "cosine"),
        (4.0, "angle"),
        (float("nan"), "cosine"),
        (float("inf"), "cosine"),
    ):
        with pytest.raises(ValueError, match=f"margin must be a number from 0 to .*; got {margin}"):
            normface_loss(X, W, Y, margin=margin, margin_kind=kind)
    with pytest.raises(ValueError, match="margin_kind must be one of cosine, angle; got 'arc'"):
        NormFaceLoss(margin=0.1, margin_kind="arc")


def test_min_temperature() -> None:
    with pytest.raises(ValueError, match="min_temperature must be a positive number; got 0"):
        nonl_loss(X, W, Y, min_temperature=0)
    with pytest.raises(ValueError, match="min_temperature must be a positive number; got -1"):
        NONLLoss(min_temperature=-1)


def test_nonl_refuses_a_learned_temperature_without_a_floor() -> None:
    with pytest.raises(ValueError, match="needs min_temperature; got none"):
        nonl_loss(X, W, Y, temperature=torch.tensor(0.1, requires_grad=True))
    with pytest.raises(
        ValueError, match="negatives must be one of samples, prototypes, both; got 'all'"
    ):
        NONLLoss(negatives="all")


def test_form() -> None:
    with pytest.raises(ValueError, match="form must be one of auto, eager, chunked; got 'fused'"):
        nonl_loss(X, W, Y, form="fused")
