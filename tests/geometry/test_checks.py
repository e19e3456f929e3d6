"""Checks of features, labels and counts: what is accepted, and what the errors say."""

import numpy as np
import pytest
import torch

from protosphere.geometry.checks import check_at_least, check_features, check_labels

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.uint16, torch.int32, torch.int64]


def test_matching_features_and_labels_are_accepted() -> None:
    for dtype in FLOATS:
        check_features(torch.ones(4, 3, dtype=dtype))
        check_features(torch.ones(4, 3, dtype=dtype), dim=3)
    for dtype in INTEGERS:
        check_labels(torch.zeros(4, dtype=dtype), 4)
    check_features(np.ones((4, 3), dtype=np.float32), dim=3)
    check_labels(np.zeros(4, dtype=np.uint64), 4)
    check_at_least("num_classes", np.int64(2), 2)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("features", "message"),
    [
        (torch.ones(4), r"features must have shape \(samples, 3\), got \(4,\)"),
        (torch.ones(4, 2), r"features must have shape \(samples, 3\), got \(4, 2\)"),
        (torch.ones(4, 3, dtype=torch.long), "features must be float16, .* got torch.int64"),
        (torch.ones(4, 3).to(torch.float8_e5m2), "features must be float16, .*float8_e5m2"),
        (np.ones((4, 3), dtype=complex), "features must be float16, .* got complex128"),
    ],
)
def test_bad_features(features: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_features(features, dim=3)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (torch.zeros(4), "labels must be integer class indices, got torch.float32"),
        (torch.zeros(4, dtype=torch.bool), "labels must be integer .* got torch.bool"),
        (torch.zeros(4, dtype=torch.complex64), "labels must be integer .* got torch.complex64"),
        (np.zeros(4), "labels must be integer class indices, got float64"),
        (torch.zeros(5), "labels must be integer class indices"),  # dtype before shape
        (
            torch.zeros(4, 1, dtype=torch.long),
            r"labels must hold one class index per sample, shape \(4,\), got \(4, 1\)",
        ),
    ],
)
def test_bad_labels(labels: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_labels(labels, 4)


@pytest.mark.bad_input
def test_lists_are_not_arrays() -> None:
    with pytest.raises(TypeError, match="features must be a tensor or a NumPy array, got list"):
        check_features([[1.0]])
    with pytest.raises(TypeError, match="labels must be a tensor or a NumPy array, got list"):
        check_labels([1], 1)


@pytest.mark.bad_input
@pytest.mark.parametrize("value", [True, 1, -3, 2.0, "3", None])
def test_bad_counts(value: object) -> None:
    with pytest.raises(ValueError, match="num_classes must be an integer of at least 2, got"):
        check_at_least("num_classes", value, 2)
