"""Average precision against a loop from VOC's definition and scikit-learn; accuracy per class."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, balanced_accuracy_score

from protosphere.evaluation.average_precision import (
    eleven_point_average_precision,
    mean_average_precision,
    mean_per_class_accuracy,
)

# Score, whether it is positive, whether it is ignored; few scores, so that many are equal.
sample = st.tuples(
    st.sampled_from([0.0, 0.25, 0.5]) | st.floats(-1, 1, width=32), st.booleans(), st.booleans()
)
samples = st.lists(sample, min_size=1, max_size=40).filter(
    lambda rows: any(positive and not ignored for _, positive, ignored in rows)
)


def oracle(rows: list[tuple[float, bool, bool]]) -> float:
    """Mean over recalls 0, 0.1, …, 1 of the best precision of a threshold with such a recall."""
    counted = [(score, positive) for score, positive, ignored in rows if not ignored]
    num_positives = sum(positive for _, positive in counted)
    total = 0.0
    for tenths in range(11):
        best = 0.0
        for threshold, _ in counted:
            retrieved = [positive for score, positive in counted if score >= threshold]
            hits = sum(retrieved)
            if 10 * hits >= tenths * num_positives:
                best = max(best, hits / len(retrieved))
        total += best / 11
    return total


def columns(rows: list[tuple[float, bool, bool]]) -> tuple[torch.Tensor, ...]:
    scores, positive, ignored = zip(*rows, strict=True)
    return (
        torch.tensor(scores, dtype=torch.float64)[:, None],
        torch.tensor(positive)[:, None],
        torch.tensor(ignored)[:, None],
    )


@given(rows=samples)
@settings(max_examples=60, deadline=None)
def test_average_precision_is_that_of_the_definition(
    rows: list[tuple[float, bool, bool]],
) -> None:
    scores, targets, ignore = columns(rows)
    result = eleven_point_average_precision(scores, targets, ignore=ignore)
    assert float(result) == pytest.approx(oracle(rows), rel=1e-12)
    order = torch.arange(len(rows) - 1, -1, -1)
    again = eleven_point_average_precision(scores[order], targets[order], ignore=ignore[order])
    assert torch.equal(again, result)


def test_average_precision_by_hand() -> None:
    # Precisions 1, 1/2, 2/3, 3/4, 3/5 at recalls 1/3, 1/3, 2/3, 1, 1: recalls up to 0.3 have 1, the
    # seven others 3/4.
    scores = torch.tensor([[5.0], [4.0], [3.0], [2.0], [1.0]])
    targets = torch.tensor([[1], [0], [1], [1], [0]])
    assert float(eleven_point_average_precision(scores, targets)) == pytest.approx(
        (4 + 7 * 0.75) / 11
    )


def test_labels_are_independent_and_one_without_positives_is_left_out() -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.rand(50, 4, generator=generator)
    targets = torch.rand(50, 4, generator=generator) < 0.3
    targets[:, 2] = False
    result = eleven_point_average_precision(scores, targets.long())
    single = [
        eleven_point_average_precision(scores[:, [k]], targets[:, [k]]).item() for k in (0, 1, 3)
    ]
    assert result[[0, 1, 3]].tolist() == single
    assert result[2].isnan()
    assert mean_average_precision(scores, targets) == pytest.approx(sum(single) / 3)


def test_average_precision_is_that_of_scikit_learn_where_the_definitions_agree() -> None:
    """All recalls are tenths and precision falls: the steps are the interpolation without r = 0."""
    targets = torch.tensor([1] * 5 + [0, 1, 1] + [0, 0, 1, 1, 1, 0, 0])
    assert int(targets.sum()) == 10
    scores = torch.arange(len(targets), 0, -1.0)
    eleven = float(eleven_point_average_precision(scores[:, None], targets[:, None]))
    best, steps = [], []
    for tenths in range(1, 11):
        hits = targets.cumsum(0)
        precision = hits / torch.arange(1, len(targets) + 1)
        best.append(float(precision[hits >= tenths].max()))
        steps.append(float(precision[hits == tenths][0]))
    assert average_precision_score(targets, scores) == pytest.approx(sum(steps) / 10)
    assert eleven == pytest.approx((1 + sum(best)) / 11)
    # Ranked perfectly, or by a constant, both are 1 and the fraction of positives.
    perfect, constant = targets.float()[:, None], torch.zeros(len(targets), 1)
    for ranking in (perfect, constant):
        expected = average_precision_score(targets, ranking[:, 0])
        result = float(eleven_point_average_precision(ranking, targets[:, None]))
        assert result == pytest.approx(expected)


@pytest.mark.filterwarnings("ignore:y_pred contains classes not in y_true")
def test_mean_per_class_accuracy_is_balanced_accuracy() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 5, (60,), generator=generator)
    labels[labels == 3] = 7
    predictions = torch.randint(0, 9, (60,), generator=generator)
    predictions[:30] = labels[:30]
    expected = balanced_accuracy_score(labels, predictions)
    assert mean_per_class_accuracy(predictions, labels) == pytest.approx(expected)


@pytest.mark.bad_input
def test_wrong_input_is_one_sentence() -> None:
    scores, targets = torch.rand(3, 2), torch.ones(3, 2, dtype=torch.long)
    with pytest.raises(ValueError, match=r"got shapes \(3, 2\) and \(2, 2\)"):
        eleven_point_average_precision(scores, targets[:2])
    with pytest.raises(ValueError, match="scores must be numbers, got NaN"):
        eleven_point_average_precision(scores / 0 * 0, targets)
    with pytest.raises(ValueError, match="at least one label, got none"):
        mean_average_precision(scores, targets * 0)
    with pytest.raises(ValueError, match=r"got shapes \(3,\) and \(0,\)"):
        mean_per_class_accuracy(torch.arange(3), torch.arange(0))
