"""The choice of the penalty against a loop over scikit-learn's fits."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score

from protosphere.evaluation.average_precision import mean_average_precision
from protosphere.evaluation.logistic_regression import (
    LogisticRegressionFit,
    fit_logistic_regression,
    fit_one_vs_rest,
)
from protosphere.evaluation.regularization import (
    Criterion,
    ValidationCurve,
    accuracy,
    choose_one_vs_rest,
    choose_regularization,
    regularization_grid,
)
from support.logistic import mixture

GRID = [0.1, 1.0, 30.0, 1000.0]


@pytest.mark.parametrize("criterion", ["accuracy", "mean_per_class_accuracy"])
def test_the_choice_is_that_of_a_loop_over_scikit_learn(criterion: Criterion) -> None:
    features, labels = mixture(110, 5, 4)
    keep = (labels != 3) | (torch.arange(110) % 3 == 0)  # classes of different sizes
    features, labels = features[keep], labels[keep]
    train, validation = (features[:50], labels[:50]), (features[50:], labels[50:])
    done: list[float] = []
    choice = choose_regularization(
        train,
        validation,
        num_classes=4,
        grid=GRID,
        criterion=criterion,
        tol=1e-8,
        progress=done.append,
    )
    expected = []
    for l2 in GRID:
        model = LogisticRegression(C=1 / l2, solver="newton-cholesky", tol=1e-8).fit(*train)
        predictions = model.predict(validation[0].numpy())
        if criterion == "accuracy":
            expected.append(float((predictions == validation[1].numpy()).mean()))
        else:
            expected.append(balanced_accuracy_score(validation[1], predictions))
    assert choice.scores == pytest.approx(expected)
    assert len(set(expected)) > 2
    assert choice.l2 == GRID[int(np.argmax(expected))]
    assert choice.grid == tuple(GRID)
    assert choice.converged
    assert done == sorted(done)
    assert done[-1] == 1
    both = fit_logistic_regression(features, labels, num_classes=4, l2=choice.l2, tol=1e-8)
    torch.testing.assert_close(choice.fit.weight, both.weight, rtol=1e-5, atol=1e-7)


def test_of_equal_strengths_the_strongest_is_chosen() -> None:
    features, labels = mixture(60, 4, 3)
    split = (features + 50.0 * labels[:, None], labels)
    choice = choose_regularization(split, split, num_classes=3, grid=[0.1, 1.0, 0.5])
    assert choice.scores == (1.0, 1.0, 1.0)
    assert choice.l2 == 1.0


@pytest.mark.parametrize(
    ("margins", "ends"),
    [
        ([1.0, -1.0, -1.0], [False, False, True]),  # worse twice
        ([1.0, 0.9, 0.8], [False, False, True]),  # only the loss, which decides
        ([-1.0, 1.0, 0.98, 0.97], [False, False, False, False]),  # the loss has hardly risen
        ([1.0, -1.0, 1.1, -1.0, -2.0], [False, False, False, False, True]),  # in between, better
        ([-1.0, -1.2, -1.4], [False, False, True]),
    ],
)
def test_a_curve_ends_after_two_strengths_that_are_clearly_worse(
    margins: list[float], ends: list[bool]
) -> None:
    """One sample, whose logit is above the other one by a margin."""
    curve = ValidationCurve((torch.ones(1, 1), torch.tensor([1])), accuracy)
    found = []
    for index, margin in enumerate(margins):
        weight = torch.tensor([[0.0], [margin]])
        found.append(curve(LogisticRegressionFit(weight, torch.zeros(2), -index, 1.0, 1, True)))
    assert found == ends
    assert list(curve.scores.values()) == [float(margin > 0) for margin in margins]
    assert list(curve.losses.values()) == pytest.approx(np.log1p(np.exp(-np.array(margins))))


@pytest.mark.parametrize(("gain", "ends"), [(0.04, True), (0.06, False)])
def test_a_curve_goes_on_while_the_score_gets_better_than_its_error(
    gain: float, ends: bool
) -> None:
    """Of 100 samples half are right at the smallest loss: the standard error is 0.05."""
    scores = iter([0.5, 0.5 + gain, 0.5 + gain])
    split = (torch.ones(100, 1), torch.ones(100, dtype=torch.long))
    curve = ValidationCurve(split, lambda logits, labels: next(scores))
    fits = [
        LogisticRegressionFit(torch.tensor([[0.0], [-slope]]), torch.zeros(2), slope, 1.0, 1, True)
        for slope in (0.0, 1.0, 2.0)
    ]
    assert [curve(fit) for fit in fits] == [False, False, ends]


def test_penalties_that_overfit_are_not_fitted() -> None:
    features, labels = mixture(150, 20, 3)
    train, validation = (features[:45], labels[:45]), (features[45:], labels[45:])
    grid = [10.0 ** (4 - index) for index in range(9)]
    choice = choose_regularization(train, validation, num_classes=3, grid=grid)
    scores = []
    for l2 in grid:
        model = LogisticRegression(C=1 / l2, tol=1e-6, max_iter=2000).fit(*train)
        scores.append(model.score(*validation))
    assert choice.l2 == grid[int(np.argmax(scores))]
    assert choice.grid == tuple(grid[: len(choice.grid)])
    assert len(choice.grid) < 9
    assert choice.scores == pytest.approx(scores[: len(choice.grid)])


def test_a_class_may_be_absent_from_a_split() -> None:
    features, labels = mixture(90, 4, 3)
    train = (features[labels != 2], labels[labels != 2])
    choice = choose_regularization(train, (features, labels), num_classes=3, grid=[1.0, 10.0])
    assert max(choice.scores) <= 2 / 3
    assert choice.fit.bias.isfinite().all()  # the refit has seen it


def test_one_vs_rest_is_chosen_by_mean_average_precision() -> None:
    features, labels = mixture(100, 8, 3)
    targets = torch.stack([labels == 0, labels == 1, labels != 2], 1)
    ignore = torch.zeros(100, 3, dtype=torch.bool)
    ignore[::7, 1] = True
    splits = [(features[part], targets[part]) for part in (slice(0, 50), slice(50, 100))]
    choice = choose_one_vs_rest(splits[0], splits[1], grid=GRID, ignore=ignore, tol=1e-8)
    expected = []
    for l2 in GRID:
        fit = fit_one_vs_rest(*splits[0], l2=l2, sample_weight=(~ignore[:50]).double(), tol=1e-8)
        scores = fit.scores(splits[1][0])
        expected.append(mean_average_precision(scores, splits[1][1], ignore=ignore[50:]))
    assert choice.scores == pytest.approx(expected)
    assert choice.l2 == GRID[int(np.argmax(expected))]
    both = fit_one_vs_rest(
        features, targets, l2=choice.l2, sample_weight=(~ignore).double(), tol=1e-8
    )
    torch.testing.assert_close(choice.fit.weight, both.weight, rtol=1e-5, atol=1e-7)


def test_the_grid_has_equal_ratios() -> None:
    grid = regularization_grid()
    assert grid[0] == 1e6
    assert grid[-1] == 1e-6
    assert np.diff(np.log(grid)) == pytest.approx(-np.log(1e12) / 24)


@pytest.mark.bad_input
def test_a_wrong_grid_is_one_sentence() -> None:
    with pytest.raises(ValueError, match="smallest must be positive and below largest"):
        regularization_grid(smallest=1.0, largest=0.1)
    features, labels = mixture(9, 2, 3)
    with pytest.raises(ValueError, match="l2 must be a positive number"):
        choose_regularization((features, labels), (features, labels), num_classes=3, grid=[])
    with pytest.raises(ValueError, match=r"same dimension, got shapes \(9, 2\) and \(9, 1\)"):
        choose_regularization(
            (features, labels), (features[:, :1], labels), num_classes=3, grid=[1.0]
        )
