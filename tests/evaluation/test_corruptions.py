"""Errors under corruption against loops over scalars, and mCE worked by hand."""

import math

import pytest
import torch

from protosphere.data.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS, SEVERITIES
from protosphere.evaluation.corruptions import (
    ALEXNET,
    Reference,
    average_errors,
    corruption_errors,
    errors_by_severity,
    find_unordered,
    mean_corruption_error,
    measure_errors,
    relative_corruption_error,
)
from support.training import small_objective, small_split


def _random_errors(seed: int) -> dict[tuple[str, int], float]:
    values = torch.rand(len(CORRUPTIONS + EXTRA_CORRUPTIONS), 5, generator=_generator(seed))
    return {
        (name, severity): values[row, severity - 1].item()
        for row, name in enumerate(CORRUPTIONS + EXTRA_CORRUPTIONS)
        for severity in SEVERITIES
    }


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _loop_mce(errors: dict, reference: dict, clean: float = 0.0, base: float = 0.0) -> float:
    total = 0.0
    for name in CORRUPTIONS:
        numerator = denominator = 0.0
        for severity in range(1, 6):
            numerator += errors[name, severity] - clean
            denominator += reference[name, severity] - base
        total += numerator / denominator
    return total / 15


def test_mce_is_the_mean_of_ratios_of_sums_over_severities() -> None:
    errors, base = _random_errors(0), _random_errors(1)
    reference = Reference("base", average_errors(base), clean_error=0.1)
    averages = average_errors(errors)
    assert mean_corruption_error(averages, reference) == pytest.approx(_loop_mce(errors, base))
    assert relative_corruption_error(averages, 0.05, reference) == pytest.approx(
        _loop_mce(errors, base, 0.05, 0.1)
    )
    ratios = corruption_errors(averages, reference)
    assert list(ratios) == list(CORRUPTIONS)
    assert ratios["fog"] == pytest.approx(
        sum(errors["fog", s] for s in SEVERITIES) / sum(base["fog", s] for s in SEVERITIES)
    )


def test_a_model_has_an_mce_of_one_relative_to_itself() -> None:
    averages = average_errors(_random_errors(0))
    own = Reference("itself", averages, clean_error=0.01)
    assert mean_corruption_error(averages, own) == pytest.approx(1)
    assert relative_corruption_error(averages, 0.01, own) == pytest.approx(1)


def test_the_published_table_of_resnet_50() -> None:
    # Table 1 of Hendrycks and Dietterich: AlexNet has 100, and its errors average 79 percent.
    assert list(ALEXNET.errors) == list(CORRUPTIONS)
    assert mean_corruption_error(ALEXNET.errors, ALEXNET) == pytest.approx(1)
    assert math.fsum(ALEXNET.errors.values()) / 15 == pytest.approx(0.7886, abs=1e-3)
    # ResNet-50: clean 23.9, mCE 76.7, relative mCE 105.0; its normalized errors as printed there.
    printed = dict(
        zip(
            CORRUPTIONS,
            (80, 82, 83, 75, 89, 78, 80, 78, 75, 66, 57, 71, 85, 77, 77),
            strict=True,
        )
    )
    errors = {name: printed[name] / 100 * ALEXNET.errors[name] for name in CORRUPTIONS}
    assert mean_corruption_error(errors, ALEXNET) == pytest.approx(0.767, abs=3e-3)
    assert relative_corruption_error(errors, 0.239, ALEXNET) == pytest.approx(1.05, abs=1e-2)


def test_what_is_incomplete_or_undefined_has_no_value() -> None:
    errors = _random_errors(0)
    del errors["snow", 3]
    averages = average_errors(errors)
    assert "snow" not in averages
    assert len(averages) == 18
    assert mean_corruption_error(averages, ALEXNET) is None
    assert relative_corruption_error(averages, 0.2, ALEXNET) is None
    whole = average_errors(_random_errors(0))
    assert relative_corruption_error(whole, None, ALEXNET) is None
    assert mean_corruption_error(whole, Reference("zero", dict.fromkeys(CORRUPTIONS, 0.0))) is None
    perfect = Reference("no decline", dict.fromkeys(CORRUPTIONS, 0.3), clean_error=0.3)
    assert relative_corruption_error(whole, 0.2, perfect) is None
    assert relative_corruption_error(whole, 0.2, Reference("no clean", ALEXNET.errors)) is None


def test_severities_that_are_asked_for_are_averaged() -> None:
    errors = _random_errors(0)
    for severity in (1, 3, 5):
        del errors["fog", severity]
    assert "fog" not in average_errors(errors)
    expected = (errors["fog", 2] + errors["fog", 4]) / 2
    assert average_errors(errors, severities=(2, 4))["fog"] == pytest.approx(expected)


def test_extra_corruptions_do_not_count() -> None:
    errors = _random_errors(0)
    changed = errors | {(name, s): 1.0 for name in EXTRA_CORRUPTIONS for s in SEVERITIES}
    first, second = (average_errors(one) for one in (errors, changed))
    assert first != second
    assert mean_corruption_error(first, ALEXNET) == mean_corruption_error(second, ALEXNET)
    assert errors_by_severity(errors) == errors_by_severity(changed)


def test_means_by_severity_and_exceptions() -> None:
    errors = {
        ("fog", 1): 0.1,
        ("fog", 2): 0.2,
        ("fog", 3): 0.4,
        ("snow", 1): 0.3,
        ("snow", 2): 0.2,
        ("snow", 4): 0.2,
    }
    assert errors_by_severity(errors) == pytest.approx({1: 0.2, 2: 0.2})
    assert find_unordered(errors) == {"snow": [(1, 2)]}
    assert find_unordered({("fog", 2): 0.1, ("fog", 1): 0.1}) == {}


@pytest.mark.parametrize("batch_size", [70, 16])
def test_errors_of_head_and_class_means(batch_size: int) -> None:
    objective, split = small_objective(), small_split()
    means = torch.randn(5, objective.head.prototypes.shape[1], generator=_generator(0))
    pixels = split.images / 255
    objective.eval()
    with torch.no_grad():
        features = objective.encoder(pixels)
    wrong = [0, 0]
    for feature, label in zip(features, split.labels.tolist(), strict=True):
        for index, vectors in enumerate((objective.head.prototypes, means)):
            cosines = [torch.cosine_similarity(feature, vector, dim=0) for vector in vectors]
            wrong[index] += max(range(5), key=lambda c: cosines[c].item()) != label
    objective.train()
    batches = zip(pixels.split(batch_size), split.labels.split(batch_size), strict=True)
    measured = measure_errors(objective, batches, means=means)
    assert measured.head == pytest.approx(wrong[0] / 70)
    assert measured.class_means == pytest.approx(wrong[1] / 70)
    assert measured.num_images == 70
    assert objective.training
    plain = measure_errors(objective, [(pixels, split.labels)])
    assert plain.class_means is None


@pytest.mark.bad_input
def test_no_images() -> None:
    with pytest.raises(ValueError, match="batches must hold at least one image, got none"):
        measure_errors(small_objective(), [])
