"""``train`` and ``evaluate`` say which classes have nearly the same prototype, and only then."""

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from protosphere.cli.train import coinciding_note
from protosphere.data.datasets import load_digits
from protosphere.data.splits import ImageSet, Split
from protosphere.recipes.loading import read_recipe
from protosphere.recipes.monitor import BestEvaluation
from protosphere.runs import RunFolder
from protosphere.runs.arrays import keep_best_arrays, read_arrays, write_arrays
from protosphere.runs.metadata import write_class_names
from support.commands import run_command, set_options

NAMES = ("0", "1", "2", "3", "three")


def _name_threes(split: Split) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images of the digits 0 to 3, every second 3 of them in a class of its own."""
    assert isinstance(split, ImageSet)
    images, labels = split.images.numpy(), split.labels.numpy()
    images, labels = images[labels < 4], labels[labels < 4]
    labels[np.flatnonzero(labels == 3)[::2]] = 4
    return images, labels


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Options for data of which the images of two classes are alike."""
    path = tmp_path_factory.mktemp("data") / "threes.npz"
    dataset = load_digits()
    x_train, y_train = _name_threes(dataset.train)
    x_test, y_test = _name_threes(dataset.test)
    np.savez(
        path,
        x_train=x_train,
        y_train=y_train,
        x_test=x_test,
        y_test=y_test,
        class_names=np.array(NAMES),
    )
    return set_options(data__source="arrays", data__path=str(path), schedule__epochs=15)


@pytest.fixture(scope="module")
def trained(data: list[str], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A run in which two prototypes have merged, and the lines that ``train`` has printed."""
    run = tmp_path_factory.mktemp("runs") / "run"
    options = [*data, *set_options(loss__temperature=1.5, evaluation__every=5)]
    output = run_command("train", "digits-normface", "--out", run, "--device", "cpu", *options)
    return run, output.splitlines()


def _expected(run: Path) -> str:
    cosine = float(read_arrays(RunFolder(run))["prototype_cosines"][3, 4])
    assert cosine > 0.95
    return (
        f"The prototypes of 3 and three have nearly the same direction (cosine {cosine:.3f}), so "
        "that the head can hardly tell these classes apart. A temperature below 1.5 "
        "(loss.temperature) may separate them."
    )


def test_train_says_it_once_before_its_last_line(trained: tuple[Path, list[str]]) -> None:
    run, lines = trained
    assert lines[-2] == _expected(run)
    assert lines[-1].startswith("Done. ")
    assert sum("prototypes" in line for line in lines) == 1


def test_evaluate_says_it_after_the_accuracies(trained: tuple[Path, list[str]]) -> None:
    run, _ = trained
    lines = run_command("evaluate", run, "--device", "cpu").splitlines()
    place = lines.index(_expected(run))
    assert lines[place - 1].startswith("  training accuracy ")
    assert lines[place + 1].startswith("Neural collapse ")


def test_json_has_the_pairs(trained: tuple[Path, list[str]]) -> None:
    run, _ = trained
    record = json.loads(run_command("evaluate", run, "--device", "cpu", "--json"))
    (pair,) = record["coinciding_prototypes"]
    assert (pair["class"], pair["other"]) == ("3", "three")
    assert f"(cosine {pair['cosine']:.3f})" in _expected(run)
    assert record["num_coinciding_prototypes"] == 1


def test_a_run_that_separates_its_classes_says_nothing(tmp_path: Path) -> None:
    command = ["train", "digits-normface", "--out", tmp_path / "run", "--device", "cpu"]
    assert "prototypes" not in run_command(*command, *set_options(schedule__epochs=2))
    record = json.loads(run_command("evaluate", tmp_path / "run", "--device", "cpu", "--json"))
    assert record["coinciding_prototypes"] == []
    assert record["num_coinciding_prototypes"] == 0
    assert "prototypes of" not in run_command("evaluate", tmp_path / "run", "--device", "cpu")


@pytest.mark.parametrize(("best_step", "is_said"), [(10, True), (20, False), (None, False)])
def test_the_arrays_are_those_of_the_best_evaluation_if_a_metric_is_monitored(
    tmp_path: Path, best_step: int | None, is_said: bool
) -> None:
    folder = RunFolder(tmp_path)
    merged, separate = np.eye(12)[[0, 1, 1]], np.eye(12)[:3]
    write_class_names(folder, ["ant", "bee", "cat"])
    write_arrays(folder, {"prototypes": merged}, step=10)
    keep_best_arrays(folder, 10)
    write_arrays(folder, {"prototypes": separate}, step=20)
    best = None if best_step is None else BestEvaluation(best_step, 0.5)
    note = coinciding_note(best, read_recipe("digits-nonl"), folder)
    assert ("The prototypes of bee and cat" in note) is is_said


def test_nothing_is_said_if_the_arrays_are_gone(tmp_path: Path) -> None:
    assert coinciding_note(None, read_recipe("digits-nonl"), RunFolder(tmp_path)) == ""
