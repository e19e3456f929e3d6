"""The benchmark of wrong labels: which labels are wrong, and how results are summarized."""

from collections.abc import Callable
from types import ModuleType

import numpy as np
import pytest


@pytest.fixture
def wrong_labels(import_benchmark: Callable[[str], ModuleType]) -> ModuleType:
    """The benchmark."""
    return import_benchmark("wrong_labels")


def test_the_fraction_of_each_class_is_wrong(wrong_labels: ModuleType) -> None:
    labels = np.array([3, 5, 9])[np.arange(60) % 3]
    assert wrong_labels.with_wrong_labels(labels, 0.0, 0) is labels
    wrong = wrong_labels.with_wrong_labels(labels, 0.4, 0)
    for name in (3, 5, 9):
        assert (wrong[labels == name] != name).sum() == 8
    assert set(wrong) == {3, 5, 9}
    assert (wrong_labels.with_wrong_labels(labels, 0.4, 1) != wrong).any()


def test_all_classifiers_learn_digits_with_wrong_labels(wrong_labels: ModuleType) -> None:
    results = wrong_labels.measure("digits", 0.2, 0)
    assert tuple(results) == tuple(wrong_labels.CLASSIFIERS)
    assert all(0.85 < result["accuracy"] < 0.98 for result in results.values())
    assert results[wrong_labels.BASELINE]["C"] in wrong_labels.C_VALUES
    assert results["LinearDiscriminantAnalysis, tuned"]["shrinkage"] in wrong_labels.SHRINKAGES
    assert 0 < results[wrong_labels.CHOSEN]["shrinkage"] < 1
    assert "shrinkage" not in results["class means"]


def test_the_table_shows_means_and_the_difference(wrong_labels: ModuleType) -> None:
    def run(first: float, others: float) -> dict[str, dict[str, float]]:
        names = list(wrong_labels.CLASSIFIERS)
        values = {name: {"accuracy": others, "seconds": 4.0} for name in names}
        return values | {wrong_labels.CHOSEN: {"accuracy": first, "seconds": 2.0, "shrinkage": 0.5}}

    rows = [
        {"fraction": 0.0, "classifiers": wrong_labels.summarize([run(0.8, 0.9)])},
        {"fraction": 0.4, "classifiers": wrong_labels.summarize([run(0.7, 0.6), run(0.8, 0.6)])},
    ]
    entry = {"samples": 1000, "dim": 8, "classes": 3, "rows": rows}
    lines = wrong_labels.table({"sets": {"some": entry}}).splitlines()
    assert lines[2].startswith("| some (1,000 × 8, 3 classes) | 0% | **90.0** | **90.0** | 80.0 |")
    assert lines[2].endswith("| -10.0 | 2, 4 |")
    assert lines[3].startswith("|  | 40% | 60.0 ± 0.0 | 60.0 ± 0.0 | **75.0** ± 7.1 |")
    assert lines[3].endswith("| +15.0 | 2, 4 |")
