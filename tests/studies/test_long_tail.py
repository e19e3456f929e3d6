"""The long-tail study on digits: its numbers against loops, its file, and wrong input."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, recall_score
from sklearn.preprocessing import normalize as unit_rows

from protosphere.classifiers import class_means
from protosphere.data.datasets import DataError
from protosphere.evaluation.long_tail import balanced_temperature
from protosphere.geometry import cosines
from protosphere.recipes import build, catalog
from protosphere.recipes.loading import Run, load_run
from protosphere.recipes.runner import run_recipe
from protosphere.recipes.schema import apply_overrides
from protosphere.runs.results import read_result
from protosphere.studies import long_tail as study
from protosphere.studies.long_tail import (
    LongTailRow,
    check_long_tail,
    paper_accuracy,
    run_long_tail,
)

Train = Callable[..., Run]


@pytest.fixture(scope="module")
def train_run(tmp_path_factory: pytest.TempPathFactory) -> Train:
    """Train a digits recipe for one epoch."""

    def train(*overrides: str, name: str = "digits-nonl") -> Run:
        quick = ("schedule.epochs=1", "evaluation.metrics=cheap")
        recipe = apply_overrides(catalog.get_recipe(name), [*quick, *overrides])
        folder = tmp_path_factory.mktemp("runs") / "run"
        for _ in run_recipe(recipe, folder, build.load_dataset(recipe)):
            pass
        return load_run(folder)

    return train


@pytest.fixture(scope="module")
def run(train_run: Train) -> Run:
    return train_run("data.long_tail=0.05")


@pytest.fixture(scope="module")
def rows(run: Run) -> tuple[LongTailRow, ...]:
    return run_long_tail(run)


def _row(rows: tuple[LongTailRow, ...], classifier: str, group: str) -> LongTailRow:
    (row,) = [row for row in rows if (row.classifier, row.group) == (classifier, group)]
    return row


def _predictions(run: Run) -> dict[str, np.ndarray]:
    """Predictions for the test images, by ways that share little with the study."""
    test: Any = run.dataset("test").test
    head = run.predict(test.images).classes.numpy()
    features = {split: run.features(split).features for split in ("train", "test")}
    unit = {split: unit_rows(np.asarray(one, np.float64)) for split, one in features.items()}
    labels = np.asarray(run.features("train").labels)
    means = unit_rows(np.stack([unit["train"][labels == one].mean(0) for one in range(10)]))
    return {"head": head, "class_means": (unit["test"] @ means.T).argmax(1)}


def test_accuracies_are_those_of_scikit_learn(run: Run, rows: tuple[LongTailRow, ...]) -> None:
    labels = run.dataset("test").test.labels.numpy()
    counts = np.bincount(run.dataset("test").train.labels.numpy())
    groups = {"many": counts > 100, "medium": (counts >= 20) & (counts <= 100), "few": counts < 20}
    assert all(members.any() for members in groups.values())
    for classifier, predictions in _predictions(run).items():
        overall = _row(rows, classifier, "all")
        assert overall.accuracy == pytest.approx(accuracy_score(labels, predictions))
        assert (overall.train_images, overall.test_images) == (counts.sum(), len(labels))
        for group, members in groups.items():
            some = members[labels]
            row = _row(rows, classifier, group)
            assert row.accuracy == pytest.approx(accuracy_score(labels[some], predictions[some]))
            assert row.num_classes == members.sum()
            assert row.train_images == counts[members].sum()
        recalls = recall_score(labels, predictions, average=None)
        assert _row(rows, classifier, "balanced").accuracy == pytest.approx(recalls.mean())
        by_class = [row for row in rows if (row.classifier, row.group) == (classifier, "class")]
        assert [row.class_name for row in by_class] == list(run.class_names)
        assert [row.accuracy for row in by_class] == pytest.approx(recalls.tolist())
        assert [row.train_images for row in by_class] == counts.tolist()


def test_every_classifier_has_rows(rows: tuple[LongTailRow, ...]) -> None:
    names = list(dict.fromkeys(row.classifier for row in rows))
    assert names == [
        "head",
        "logit_adjusted_head",
        "class_means",
        "calibrated_class_means",
        "whitened_class_means",
    ]
    plain, calibrated = (
        [row.accuracy for row in rows if row.classifier == name]
        for name in ("class_means", "calibrated_class_means")
    )
    assert plain == calibrated
    first = _row(rows, "class_means", "all")
    second = _row(rows, "calibrated_class_means", "all")
    assert first.temperature == 0.2
    assert second.temperature != pytest.approx(0.2)
    assert second.nll is not None
    assert first.nll is not None
    assert second.nll < first.nll
    assert all(row.nll is None for row in rows if row.group != "all")


def test_rows_are_kept_and_read_again(
    run: Run, rows: tuple[LongTailRow, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = read_result(run.path / "benchmarks" / "long_tail.json", LongTailRow)
    assert stored.rows == rows

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("features are computed again")

    monkeypatch.setattr(study, "encode_split", refuse)
    assert run_long_tail(run) == rows
    for options in ({"recompute": True}, {"logit_adjustment": 0.5}):
        with pytest.raises(AssertionError, match="computed again"):
            run_long_tail(run, **options)


def test_progress_is_reported(run: Run, rows: tuple[LongTailRow, ...]) -> None:
    seen: list[float] = []
    assert run_long_tail(run, recompute=True, progress=seen.append) == rows
    assert seen == sorted(seen)
    assert seen[-1] == pytest.approx(1)


def test_noise_and_validation_images(train_run: Train) -> None:
    """Groups follow the true labels; the temperature is fitted to the validation images."""
    run = train_run(
        "data.long_tail=0.05",
        "data.label_noise={name: symmetric, fraction: 0.4}",
        "data.validation_fraction=0.2",
        "loss.logit_adjustment=1",
        name="digits-ce",
    )
    rows = run_long_tail(run)
    clean = apply_overrides(run.recipe, ["data.label_noise=null"])
    counts = build.count_classes(build.load_dataset(clean, split="test"))
    by_class = [row for row in rows if (row.classifier, row.group) == ("head", "class")]
    assert [row.train_images for row in by_class] == list(counts)
    assert counts != build.count_classes(run.dataset("test"))
    assert {row.test_images for row in rows if row.group == "all"} == {599}
    # The loss was adjusted in training: nothing is adjusted once more.
    assert "logit_adjusted_head" not in {row.classifier for row in rows}
    settings = read_result(run.path / "benchmarks" / "long_tail.json", LongTailRow).settings
    assert settings["validation"] == run.dataset("validation").test.fingerprint()
    train, held_out = run.features("train"), run.features("validation")
    train_labels, labels = (torch.as_tensor(one.labels) for one in (train, held_out))
    means = class_means(torch.as_tensor(train.features), train_labels, num_classes=10).means
    values = cosines(torch.as_tensor(held_out.features).double(), means)
    temperature = _row(rows, "calibrated_class_means", "all").temperature
    assert temperature == pytest.approx(balanced_temperature(values, labels), rel=1e-4)
    assert settings["logit_adjustment"] is None


@pytest.mark.parametrize("override", ["data.sampler=balanced", "loss.class_weights=balanced"])
def test_a_run_that_was_balanced_in_training_is_not_adjusted(
    run: Run, override: str, tmp_path: Path
) -> None:
    path = shutil.copytree(run.path, tmp_path / "run")
    balanced = replace(run, path=path, recipe=apply_overrides(run.recipe, [override]))
    assert "logit_adjusted_head" not in {row.classifier for row in run_long_tail(balanced)}


def test_a_group_without_classes_has_no_row(train_run: Train) -> None:
    rows = run_long_tail(train_run("data.long_tail=0.3", name="digits-scl"))
    assert {row.group for row in rows} == {"all", "many", "medium", "balanced", "class"}
    assert "logit_adjusted_head" not in {row.classifier for row in rows}


def test_numbers_of_the_paper(run: Run) -> None:
    def paper(name: str, *overrides: str, num_classes: int) -> float | None:
        recipe = apply_overrides(catalog.get_recipe(name), overrides)
        names = tuple(str(index) for index in range(num_classes))
        return paper_accuracy(replace(run, recipe=recipe, class_names=names))

    arrays = ("data.source=arrays", "data.path=cifar100.npz")
    assert paper("cifar100-lt-nonl", num_classes=100) == 40.0
    assert paper("cifar10-lt-etf-dr", "data.long_tail=0.1", num_classes=10) == 88.0
    assert paper("cifar100-lt-ntce", "data.long_tail=0.02", *arrays, num_classes=100) == 43.7
    for override in (
        "data.long_tail=0.05",
        "data.long_tail=null",
        "loss.name=scl",
        "data.label_noise={name: symmetric, fraction: 0.2}",
        "data.source=digits",
    ):
        assert paper("cifar100-lt-nonl", override, num_classes=100) is None
    groups = "data.class_groups=cifar100-superclasses"
    assert paper("cifar100-lt-nonl", groups, num_classes=20) is None
    assert paper("cifar100-lt-nonl", *arrays, num_classes=10) is None


@pytest.mark.bad_input
def test_runs_on_balanced_data_are_refused(train_run: Train) -> None:
    run = train_run()
    with pytest.raises(
        DataError, match=r"must be of different size: all have 116 to 122 .* many-shot"
    ):
        run_long_tail(run)
    with pytest.raises(DataError, match="the classes of digits-nonl must be of different size"):
        check_long_tail(run.recipe)
    check_long_tail(apply_overrides(run.recipe, ["data.long_tail=0.9"]))
    assert not (run.path / "benchmarks").exists()


@pytest.mark.bad_input
def test_wrong_options_are_refused(run: Run) -> None:
    for value in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="logit_adjustment must be a positive number, got"):
            run_long_tail(run, logit_adjustment=value)


def test_classes_of_different_size_need_no_long_tail(tmp_path: Path) -> None:
    """Imbalanced data of one's own are a long tail."""
    images = np.random.default_rng(0).integers(0, 256, (160, 8, 8), dtype=np.uint8)
    labels = np.repeat([0, 1], [120, 40])
    path = tmp_path / "own.npz"
    np.savez(path, x_train=images, y_train=labels, x_test=images[::8], y_test=labels[::8])
    override = [f"data={{source: arrays, path: {path}}}"]
    check_long_tail(apply_overrides(catalog.get_recipe("digits-ce"), override))
