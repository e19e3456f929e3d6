"""The label-noise study on digits against loops over images, and wrong input."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protosphere.data.datasets import DataError
from protosphere.recipes import build, catalog
from protosphere.recipes.loading import Run, load_run
from protosphere.recipes.runner import run_recipe
from protosphere.recipes.schema import apply_overrides
from protosphere.studies import label_noise as study
from protosphere.studies.label_noise import LabelNoiseRow, check_label_noise, run_label_noise

NOISE = "data.label_noise={name: symmetric, fraction: 0.3}"


def _train(folder: Path, *overrides: str, name: str = "digits-ce") -> Run:
    quick = ("schedule.epochs=2", "evaluation.every=2", "evaluation.metrics=cheap")
    recipe = apply_overrides(catalog.get_recipe(name), [*quick, *overrides])
    for _ in run_recipe(recipe, folder, build.load_dataset(recipe)):
        pass
    return load_run(folder)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return _train(tmp_path_factory.mktemp("runs") / "run", NOISE)


@pytest.fixture(scope="module")
def rows(run: Run) -> dict[str, LabelNoiseRow]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(study, "_CHUNK_ROWS", 500)  # Several chunks.
        return {row.classifier: row for row in run_label_noise(run)}


def test_the_head_against_loops(run: Run, rows: dict[str, LabelNoiseRow]) -> None:
    row, dataset = rows["head"], run.dataset("test")
    clean = build.load_dataset(apply_overrides(run.recipe, ["data.label_noise=null"]))
    train: Any = dataset.train
    test: Any = dataset.test
    predicted = run.predict(train.images).classes.tolist()
    triples = list(zip(predicted, train.labels.tolist(), clean.train.labels.tolist(), strict=True))
    wrong = [one for one in triples if one[1] != one[2]]
    assert (row.num_wrong, row.num_train) == (len(wrong), len(triples))
    assert row.num_wrong / row.num_train == pytest.approx(0.3, abs=0.01)
    assert row.given_accuracy == pytest.approx(sum(p == g for p, g, _ in triples) / len(triples))
    assert row.true_accuracy == pytest.approx(sum(p == t for p, _, t in triples) / len(triples))
    assert row.memorized == pytest.approx(sum(p == g for p, g, _ in wrong) / len(wrong))
    assert row.corrected == pytest.approx(sum(p == t for p, _, t in wrong) / len(wrong))
    on_test = run.predict(test.images).classes
    assert row.accuracy == pytest.approx(float((on_test == test.labels).double().mean()))
    assert (row.noise, row.fraction) == ("symmetric", 0.3)


def test_class_means_are_those_of_the_given_labels(
    run: Run, rows: dict[str, LabelNoiseRow]
) -> None:
    train, test = run.features("train"), run.features("test")
    unit, others = (
        np.asarray(one.features, np.float64)
        / np.linalg.norm(np.asarray(one.features, np.float64), axis=1, keepdims=True)
        for one in (train, test)
    )
    given = np.asarray(train.labels)
    means = np.stack([unit[given == index].mean(0) for index in range(10)])
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    row = rows["class_means"]
    accuracy = ((others @ means.T).argmax(1) == np.asarray(test.labels)).mean()
    assert row.accuracy == pytest.approx(accuracy)
    assert row.given_accuracy == pytest.approx(((unit @ means.T).argmax(1) == given).mean())
    assert 0 < rows["whitened_class_means"].accuracy <= 1


def test_rows_are_kept(
    run: Run, rows: dict[str, LabelNoiseRow], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("features are computed again")

    monkeypatch.setattr(study, "encode_split", refuse)
    assert {row.classifier: row for row in run_label_noise(run)} == rows
    with pytest.raises(AssertionError, match="computed again"):
        run_label_noise(run, recompute=True)


def test_a_contrastive_run_has_no_head(tmp_path: Path) -> None:
    run = _train(tmp_path / "run", NOISE, "data.long_tail=0.1", name="digits-scl")
    rows = run_label_noise(run)
    assert [row.classifier for row in rows] == ["class_means", "whitened_class_means"]


@pytest.mark.bad_input
def test_runs_without_noise_are_refused(tmp_path: Path) -> None:
    run = _train(tmp_path / "run", "schedule.epochs=1")
    with pytest.raises(DataError, match=r"must be trained with label noise \(data.label_noise\)"):
        run_label_noise(run)
    with pytest.raises(DataError, match="digits-ce must be trained with label noise"):
        check_label_noise(run.recipe)
