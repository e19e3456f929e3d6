"""Logistic regression against scikit-learn, autograd, strong convexity and its own twins."""

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from protosphere.evaluation import linear_objective
from protosphere.evaluation.linear_objective import principal_coordinates
from protosphere.evaluation.logistic_regression import (
    LogisticRegressionFit,
    fit_logistic_regression,
    fit_one_vs_rest,
    fit_one_vs_rest_path,
    fit_regularization_path,
)
from support.logistic import digits, mixture, objective

TIGHT: dict[str, Any] = {"tol": 1e-8, "max_iter": 3000}


def sklearn_fit(
    features: Tensor, labels: Tensor, l2: float, weight: Tensor | None = None
) -> LogisticRegression:
    # newton-cholesky has digits to spare where lbfgs gives up; both minimize the same function.
    model = LogisticRegression(C=1 / l2, solver="newton-cholesky", tol=1e-12, max_iter=200)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it falls back to lbfgs if the Hessian is singular
        return model.fit(features.numpy(), labels.numpy(), None if weight is None else weight)


def assert_equal_fits(one: LogisticRegressionFit, other: LogisticRegressionFit) -> None:
    torch.testing.assert_close(one.weight, other.weight, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(one.bias, other.bias, rtol=1e-5, atol=1e-6)
    assert one.loss == pytest.approx(other.loss, rel=1e-9)


@pytest.mark.parametrize("l2", [100.0, 1.0, 0.01])
def test_coefficients_and_objective_are_those_of_scikit_learn(l2: float) -> None:
    features, labels = digits(250)
    fit = fit_logistic_regression(features, labels, num_classes=10, l2=l2, **TIGHT)
    model = sklearn_fit(features, labels, l2)
    weight, bias = torch.tensor(model.coef_), torch.tensor(model.intercept_)
    assert fit.converged
    assert fit.loss == pytest.approx(float(objective(weight, bias, features, labels, l2)), rel=1e-9)
    torch.testing.assert_close(fit.weight, weight, rtol=0, atol=2e-5)
    torch.testing.assert_close(fit.bias, bias - bias.mean(), rtol=0, atol=2e-4)
    assert fit.predict(features).tolist() == model.predict(features.numpy()).tolist()


def test_lbfgs_of_scikit_learn_has_the_same_objective() -> None:
    features, labels = mixture(120, 6, 4)
    fit = fit_logistic_regression(features, labels, num_classes=4, l2=0.5)
    model = LogisticRegression(C=2.0, tol=1e-8, max_iter=2000).fit(features, labels)
    weight, bias = torch.tensor(model.coef_), torch.tensor(model.intercept_)
    assert fit.loss == pytest.approx(
        float(objective(weight, bias, features, labels, 0.5)), rel=1e-6
    )


def test_two_classes_are_the_sigmoid_of_scikit_learn() -> None:
    features, labels = mixture(80, 5, 2)
    fit = fit_logistic_regression(features, labels, num_classes=2, l2=2.0, **TIGHT)
    model = sklearn_fit(features, labels, 2.0)
    torch.testing.assert_close(fit.weight[1:] - fit.weight[:1], torch.tensor(model.coef_))
    torch.testing.assert_close(fit.bias[1:] - fit.bias[:1], torch.tensor(model.intercept_))
    probabilities = fit.scores(features).softmax(1)
    expected = torch.tensor(model.predict_proba(features.numpy()))
    torch.testing.assert_close(probabilities, expected, rtol=1e-6, atol=1e-8)


@given(
    shape=st.tuples(st.integers(3, 30), st.integers(1, 12), st.integers(3, 5)),
    exponent=st.floats(-1, 6),
    seed=st.integers(0, 99),
)
@settings(max_examples=10, deadline=None)
def test_the_gap_that_strong_convexity_allows_is_small(
    shape: tuple[int, int, int], exponent: float, seed: int
) -> None:
    """F − F* ≤ ‖∇F‖² / 2 l2 where the bias is optimal: for any sizes, scales and penalties."""
    features, labels = mixture(*shape, seed=seed)
    scales = torch.logspace(-2, 2, features.shape[1], dtype=torch.float64)
    features, l2 = features * scales, 10.0**exponent
    fit = fit_logistic_regression(features, labels, num_classes=shape[2], l2=l2, **TIGHT)
    present = fit.bias.isfinite()
    weight, bias = fit.weight.requires_grad_(), fit.bias.requires_grad_()
    value = objective(weight, bias, features, labels, l2)
    slopes = torch.autograd.grad(value, [weight, bias])
    assert fit.converged
    assert float(slopes[0].square().sum()) / (2 * l2) <= 1e-6 * fit.loss
    assert float(value.detach()) == pytest.approx(fit.loss, rel=1e-12)
    assert float(slopes[1][present].abs().max()) <= 1e-4 * len(features)


def test_a_path_is_the_fits_from_nothing_in_the_order_of_the_grid() -> None:
    features, labels = mixture(90, 6, 4)
    grid = [0.3, 30.0, 3.0, 0.3]
    done: list[float] = []
    path = fit_regularization_path(
        features, labels, num_classes=4, grid=grid, progress=done.append, **TIGHT
    )
    assert [fit.l2 for fit in path] == grid
    assert done == pytest.approx([1 / 3, 2 / 3, 1])
    for fit in path:
        cold = fit_logistic_regression(features, labels, num_classes=4, l2=fit.l2, **TIGHT)
        assert_equal_fits(fit, cold)


@pytest.mark.parametrize("num_classes", [2, 4])
def test_a_fit_continues_from_an_earlier_one(num_classes: int) -> None:
    features, labels = mixture(90, 6, num_classes)
    options: dict[str, Any] = {"num_classes": num_classes, "l2": 0.5, **TIGHT}
    cold = fit_logistic_regression(features, labels, **options)
    warm = fit_logistic_regression(features, labels, init=cold, **options)
    assert cold.iterations > 5
    assert warm.iterations <= 1
    assert_equal_fits(warm, cold)


def test_weights_are_repeated_samples() -> None:
    features, labels = mixture(60, 5, 3)
    repeats = torch.arange(60) % 4
    options: dict[str, Any] = {"num_classes": 3, "l2": 0.5, **TIGHT}
    weighted = fit_logistic_regression(features, labels, sample_weight=repeats.double(), **options)
    repeated = fit_logistic_regression(
        features.repeat_interleave(repeats, 0), labels.repeat_interleave(repeats), **options
    )
    assert_equal_fits(weighted, repeated)


def test_a_path_ends_where_it_is_told_to() -> None:
    features, labels = mixture(60, 4, 3)
    options: dict[str, Any] = {"num_classes": 3, **TIGHT}
    grid, seen = [0.1, 100.0, 1.0, 10.0], []

    def stop(fit: LogisticRegressionFit) -> bool:
        seen.append(fit.l2)
        return fit.l2 <= 1.0

    path = fit_regularization_path(features, labels, grid=grid, stop=stop, **options)
    assert seen == [100.0, 10.0, 1.0]
    assert [fit.l2 for fit in path] == [100.0, 1.0, 10.0]
    assert_equal_fits(path[1], fit_logistic_regression(features, labels, l2=1.0, **options))


def test_one_vs_rest_is_a_binary_fit_for_each_label() -> None:
    features, labels = mixture(100, 6, 3)
    targets = torch.stack([labels == 0, labels != 1, labels == 2], 1)
    path = fit_one_vs_rest_path(features, targets, grid=[0.1, 10.0], **TIGHT)
    for fit in path:
        assert fit.converged
        for label in range(3):
            model = sklearn_fit(features, targets[:, label], fit.l2)
            expected = torch.tensor(model.coef_[0])
            torch.testing.assert_close(fit.weight[label], expected, rtol=1e-5, atol=1e-7)
            assert float(fit.bias[label]) == pytest.approx(model.intercept_[0], rel=1e-5)
        alone = fit_one_vs_rest(features, targets[:, 1:2].long(), l2=fit.l2, **TIGHT)
        torch.testing.assert_close(alone.weight[0], fit.weight[1], rtol=1e-5, atol=1e-7)


def test_one_vs_rest_leaves_samples_out_for_a_label() -> None:
    features, labels = mixture(60, 4, 2)
    targets = torch.stack([labels, 1 - labels], 1)
    weight = torch.ones(60, 2, dtype=torch.float64)
    weight[:20, 0] = 0
    fit = fit_one_vs_rest(features, targets, l2=1.0, sample_weight=weight, **TIGHT)
    shorter = fit_one_vs_rest(features[20:], targets[20:], l2=1.0, **TIGHT)
    whole = fit_one_vs_rest(features, targets, l2=1.0, sample_weight=weight[:, 1], **TIGHT)
    torch.testing.assert_close(fit.weight[0], shorter.weight[0], rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(fit.weight[1], whole.weight[1], rtol=1e-5, atol=1e-7)


def test_labels_of_all_or_no_samples_are_constant() -> None:
    features, labels = mixture(30, 3, 2)
    targets = torch.stack([torch.zeros(30), labels, torch.ones(30)], 1).long()
    fit = fit_one_vs_rest(features, targets, l2=1.0)
    assert fit.bias[[0, 2]].tolist() == [-torch.inf, torch.inf]
    assert not fit.weight[[0, 2]].any()
    assert fit.bias[1].isfinite()


def test_an_absent_class_changes_nothing_and_is_never_predicted() -> None:
    features, labels = mixture(60, 4, 3)
    fit = fit_logistic_regression(features, labels, num_classes=3, l2=1.0, **TIGHT)
    labels = torch.tensor([1, 2, 4])[labels]
    gaps = fit_logistic_regression(features, labels, num_classes=6, l2=1.0, **TIGHT)
    torch.testing.assert_close(gaps.weight[[1, 2, 4]], fit.weight)
    assert gaps.bias[[0, 3, 5]].tolist() == [-torch.inf] * 3
    assert (
        gaps.predict(features).tolist() == torch.tensor([1, 2, 4])[fit.predict(features)].tolist()
    )
    again = fit_logistic_regression(
        features, labels // 2, num_classes=6, l2=1.0, init=gaps, **TIGHT
    )
    assert again.converged
    only = fit_logistic_regression(features, torch.full((60,), 2), num_classes=4, l2=1.0)
    assert only.converged
    assert only.predict(features).unique().tolist() == [2]


def test_more_dimensions_than_samples() -> None:
    features, labels = mixture(24, 40, 3)
    fit = fit_logistic_regression(features, labels, num_classes=3, l2=1.0, **TIGHT)
    model = sklearn_fit(features, labels, 1.0)
    torch.testing.assert_close(fit.weight, torch.tensor(model.coef_), rtol=1e-4, atol=1e-6)


def test_wild_scales_and_constant_features() -> None:
    """Newton's method in coordinates of unit variance, with the penalty of the original ones."""
    features, labels = mixture(90, 6, 3)
    scales = torch.tensor([1e-5, 1e-2, 1.0, 1e3, 1e5, 0.0], dtype=torch.float64)
    shifts = torch.tensor([0.0, 5.0, -2.0, 1e5, 0.0, 7.0], dtype=torch.float64)
    scaled = features * scales + shifts
    for dtype, rel in [(torch.float64, 1e-9), (torch.float32, 1e-4)]:
        fit = fit_logistic_regression(scaled.to(dtype), labels, num_classes=3, l2=1.0, tol=1e-6)
        best = fit_logistic_regression(scaled, labels, num_classes=3, l2=1.0, tol=1e-9)
        weight, bias = best.weight.requires_grad_(), best.bias
        value = objective(weight, bias, scaled, labels, 1.0)
        # In the metric of a bound of the Hessian: N · max x² · ½ + l2 for each column.
        slope = torch.autograd.grad(value, weight)[0]
        spread = (features - features.mean(0)) * scales
        gap = slope.square() / (1e-3 * spread.square().sum(0) + 1)
        assert float(gap.sum()) <= 1e-8 * best.loss
        assert fit.converged
        assert fit.loss == pytest.approx(best.loss, rel=rel)
        assert float(best.weight[:, -1].detach().abs().max()) < 1e-9


def test_limits_of_the_penalty() -> None:
    features, labels = mixture(90, 2, 3)
    labels[:15] = 0
    strong = fit_logistic_regression(features, labels, num_classes=3, l2=1e12, **TIGHT)
    frequencies = labels.bincount() / 90
    assert float(strong.weight.abs().max()) < 1e-6
    torch.testing.assert_close(strong.bias.softmax(0), frequencies.double(), rtol=1e-5, atol=0)
    weak = fit_logistic_regression(features, labels, num_classes=3, l2=1e-10, **TIGHT)
    model = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(features, labels)
    assert weak.converged
    expected = torch.tensor(model.coef_ - model.coef_.mean(0))
    torch.testing.assert_close(weak.weight, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("setting", ["blocks", "no axes"])
def test_blocks_and_plain_axes_have_the_same_minimum(
    setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    features, labels = mixture(90, 6, 4)
    weight = torch.linspace(0.5, 2, 90, dtype=torch.float64)
    options: dict[str, Any] = {"num_classes": 4, "l2": 0.5, "sample_weight": weight, **TIGHT}
    whole = fit_logistic_regression(features, labels, **options)
    if setting == "blocks":
        monkeypatch.setattr(linear_objective, "_BLOCK_ENTRIES", {"cpu": 50})
    else:
        monkeypatch.setattr(linear_objective, "_MAX_AXES", 0)
        assert principal_coordinates(features, None).axes is None
    assert_equal_fits(fit_logistic_regression(features, labels, **options), whole)


def test_float32_reaches_the_minimum_of_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    features, labels = mixture(400, 8, 5)
    exact = fit_logistic_regression(features, labels, num_classes=5, l2=1.0, **TIGHT)
    monkeypatch.setattr(linear_objective, "_SMALL_ENTRIES", 0)
    assert principal_coordinates(features.float(), None).values.dtype == torch.float32
    fit = fit_logistic_regression(features.float(), labels, num_classes=5, l2=1.0)
    assert fit.converged
    assert fit.weight.dtype == torch.float32
    value = objective(fit.weight.double(), fit.bias.double(), features, labels, 1.0)
    assert float(value) == pytest.approx(exact.loss, rel=1e-7)
    # A tolerance beyond float32 ends, and says that it was not met.
    beyond = fit_logistic_regression(features.float(), labels, num_classes=5, l2=1.0, tol=1e-14)
    assert not beyond.converged
    assert beyond.iterations < 200
    assert beyond.loss == pytest.approx(exact.loss, rel=1e-7)


def test_a_fit_says_that_it_has_not_converged() -> None:
    features, labels = mixture(90, 6, 4)
    fit = fit_logistic_regression(features, labels, num_classes=4, l2=0.1, max_iter=2)
    assert (fit.iterations, fit.converged) == (2, False)


def test_the_loss_is_that_of_the_returned_coefficients() -> None:
    """Even where the iterations ended early with a part that is common to all classes."""
    features, labels = mixture(90, 6, 4)
    weight = torch.full((4, 6), 3.0, dtype=torch.float64)
    init = LogisticRegressionFit(weight, weight[:, 0], 1.0, 1.0, 1, True)
    fit = fit_logistic_regression(features, labels, num_classes=4, l2=0.1, init=init, max_iter=1)
    expected = objective(fit.weight, fit.bias, features, labels, 0.1)
    assert fit.loss == pytest.approx(float(expected), rel=1e-12)


def test_products_are_in_full_precision_and_the_setting_returns() -> None:
    features, labels = mixture(60, 4, 3)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            fit = fit_logistic_regression(features.float(), labels, num_classes=3, l2=1.0)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)
    exact = fit_logistic_regression(features, labels, num_classes=3, l2=1.0)
    torch.testing.assert_close(fit.weight.double(), exact.weight, rtol=1e-3, atol=1e-5)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"features": torch.tensor([[1.0], [torch.nan], [2.0]])}, "NaN or infinity in sample 1"),
        ({"features": torch.ones(3, 1, dtype=torch.long)}, "must be floating-point numbers"),
        ({"labels": torch.tensor([0, 1])}, r"shape \(3,\); got \(2,\)"),
        ({"labels": torch.tensor([0, 1, 3])}, "from 0 to 2, got values from 0 to 3"),
        ({"l2": 0.0}, r"l2 must be a positive number, got \[0.0\]"),
        ({"tol": 0.0}, "tol must be positive"),
        ({"sample_weight": torch.tensor([1.0, -1.0, 1.0])}, "not negative"),
        ({"sample_weight": torch.ones(2)}, r"shape \(3,\), got \(2,\)"),
        (
            {"init": LogisticRegressionFit(torch.ones(3, 2), torch.ones(3), 1.0, 1.0, 1, True)},
            r"weight of shape \(3, 1\), got \(3, 2\)",
        ),
    ],
)
def test_wrong_input_is_one_sentence(changes: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"features": torch.rand(3, 1), "labels": torch.arange(3)}
    with pytest.raises(ValueError, match=message):
        fit_logistic_regression(**arguments | {"num_classes": 3, "l2": 1.0} | changes)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (torch.tensor([0, 1, 1]), "one column per label"),
        (torch.tensor([[0], [1], [2]]), "must be 0 or 1, got values from 0 to 2"),
        (torch.tensor([[1], [1], [1]]), "positive and negative samples, got none"),
    ],
)
def test_wrong_targets_are_one_sentence(targets: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fit_one_vs_rest(torch.rand(3, 1), targets, l2=1.0)
