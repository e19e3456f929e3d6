"""Calibration of short runs against scipy and scikit-learn on the same images."""

import math
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from scipy.special import softmax
from sklearn.metrics import log_loss

from protosphere.data.splits import DataError
from protosphere.recipes.loading import Run, load_run
from protosphere.runs.results import read_result
from protosphere.studies import calibration
from protosphere.studies.calibration import (
    CalibrationResult,
    CalibrationRow,
    ReliabilityRow,
    run_calibration,
)
from support.short_runs import short_run

pytestmark = pytest.mark.long


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return load_run(short_run(tmp_path, "nonl"))


Samples = tuple[np.ndarray, np.ndarray]


def _logits(run: Run, split: Literal["validation", "test"], classifier: str) -> Samples:
    """Logits by NumPy, from the features that ``Run.features`` computes."""
    content = run.features(split)
    features = torch.as_tensor(content.features).double().numpy()
    if classifier == "class_means":
        train = run.features("train")
        unit = torch.nn.functional.normalize(torch.as_tensor(train.features).double()).numpy()
        rows = [unit[np.asarray(train.labels) == label].mean(0) for label in range(10)]
        weights = np.stack(rows)
    else:
        assert content.prototypes is not None
        weights = torch.as_tensor(content.prototypes).double().numpy()
    weights /= np.linalg.norm(weights, axis=1, keepdims=True)
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    temperature = float(getattr(run.objective.head, "temperature", 0.1))
    return unit @ weights.T / temperature, np.asarray(content.labels)


def _check(result: CalibrationResult, classifier: str, fit: Samples, report: Samples) -> None:
    """Compare with scipy's temperature and scikit-learn's likelihood."""
    before, after = (row for row in result.rows if row.classifier == classifier)
    assert (before.state, before.temperature, after.state) == ("before", 1.0, "after")
    found = minimize_scalar(
        lambda log_t: log_loss(fit[1], softmax(fit[0] / math.exp(log_t), axis=1), labels=range(10)),
        bracket=(-1, 1),
        tol=1e-12,
    )
    assert after.temperature == pytest.approx(math.exp(found.x), rel=1e-4)
    logits, labels = report
    for row in (before, after):
        probabilities = softmax(logits / row.temperature, axis=1)
        brier = ((probabilities - np.eye(10)[labels]) ** 2).sum(1).mean()
        expected = log_loss(labels, probabilities, labels=range(10))
        assert row.nll == pytest.approx(expected, rel=1e-4)
        assert row.brier == pytest.approx(brier, rel=1e-4)
        assert row.accuracy == pytest.approx((probabilities.argmax(1) == labels).mean())
        bins = [
            one
            for one in result.reliability
            if (one.classifier, one.state) == (classifier, row.state)
        ]
        assert sum(one.num_samples for one in bins) == row.num_reported
        error = sum(
            one.num_samples * abs(one.accuracy - one.confidence) / row.num_reported
            for one in bins
            if one.accuracy is not None and one.confidence is not None
        )
        assert row.ece == pytest.approx(error, abs=1e-9)
    assert after.nll < before.nll


@pytest.mark.parametrize("classifier", ["head", "class_means"])
def test_a_run_without_validation_images_is_divided(run: Run, classifier: str) -> None:
    seen: list[float] = []
    result = run_calibration(run, seed=3, progress=seen.append)
    assert [row.classifier for row in result.rows] == ["head"] * 2 + ["class_means"] * 2
    assert {row.fitted_on for row in result.rows} == {"half of the test images"}
    assert {row.reported_on for row in result.rows} == {"the other half"}
    assert {(row.num_fitted, row.num_reported) for row in result.rows} == {(80, 80)}
    assert seen[-1] == pytest.approx(1)
    order = torch.randperm(160, generator=torch.Generator().manual_seed(3)).numpy()
    logits, labels = _logits(run, "test", classifier)
    fit, report = order[:80], order[80:]
    _check(result, classifier, (logits[fit], labels[fit]), (logits[report], labels[report]))


def test_a_run_with_validation_images_is_fitted_on_them(tmp_path: Path) -> None:
    run = load_run(short_run(tmp_path, "ce", "data.validation_fraction=0.3"))
    assert run.split == "validation"
    result = run_calibration(run)
    row = result.rows[0]
    assert (row.fitted_on, row.reported_on) == ("validation images", "test images")
    assert row.num_reported == 160
    assert row.num_fitted == len(run.dataset("validation").test)
    _check(
        result,
        "class_means",
        _logits(run, "validation", "class_means"),
        _logits(run, "test", "class_means"),
    )


def test_a_contrastive_run_has_only_class_means(tmp_path: Path) -> None:
    run = load_run(short_run(tmp_path, "scl", epochs=1))
    result = run_calibration(run)
    assert [row.classifier for row in result.rows] == ["class_means"] * 2


def test_a_learned_temperature_is_a_number(tmp_path: Path) -> None:
    """Warnings are errors here, and torch warns of a number with a gradient."""
    run = load_run(short_run(tmp_path, "normface", "loss.learn_temperature=true", epochs=1))
    assert len(run_calibration(run).rows) == 4


def test_the_result_is_kept(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    result = run_calibration(run)
    folder = run.path / "benchmarks"
    assert read_result(folder / "calibration.json", CalibrationRow).rows == result.rows
    assert read_result(folder / "reliability.json", ReliabilityRow).rows == result.reliability
    assert len(result.reliability) == 4 * 15

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError

    with monkeypatch.context() as patch:
        patch.setattr(calibration, "encode_split", refuse)
        assert run_calibration(run) == result
        for options in ({"recompute": True}, {"seed": 1}, {"num_bins": 10}):
            with pytest.raises(AssertionError):
                run_calibration(run, **options)
    # A call that was interrupted between the two files.
    (folder / "reliability.json").unlink()
    assert run_calibration(run) == result


@pytest.mark.bad_input
def test_one_image_cannot_be_divided(run: Run) -> None:
    dataset = run.dataset("test")
    with pytest.raises(DataError, match=r"at least two test images.* got 1"):
        calibration._halves(dataset.test.subset(torch.tensor([0])), "test", 0)
