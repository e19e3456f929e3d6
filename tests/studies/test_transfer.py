"""The transfer of trained runs: numbers of scikit-learn, cached features, resumed benchmarks."""

import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from protosphere.data.splits import DataError, ImageSet
from protosphere.data.transfer_sets import TransferSet, load_transfer_set
from protosphere.encoders import Encoder
from protosphere.evaluation.transfer import evaluate_transfer
from protosphere.recipes.build import load_dataset
from protosphere.recipes.loading import Run, load_run, read_recipe
from protosphere.recipes.runner import run_recipe
from protosphere.runs import RunFolderError
from protosphere.studies import transfer
from protosphere.studies.transfer import TransferRow, fine_set, paper_transfer, run_transfer
from support import transfer_trees as trees

GROUPS = {"round": ["0", "6", "8", "9"], "straight": ["1", "4", "7"], "bent": ["2", "3", "5"]}


def _train(folder: Path, recipe_name: str, *settings: str) -> Path:
    recipe = read_recipe(recipe_name, ["schedule.epochs=2", "evaluation.metrics=cheap", *settings])
    list(run_recipe(recipe, folder, load_dataset(recipe)))
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run with a projection, and one trained on groups of classes."""
    root = tmp_path_factory.mktemp("runs")
    (root / "groups.json").write_text(json.dumps(GROUPS))
    settings = [f"data.class_groups={root / 'groups.json'}", "data.validation_fraction=0.2"]
    return {
        "scl": _train(root / "scl", "digits-scl"),
        "groups": _train(root / "groups", "digits-ce", *settings),
    }


@pytest.fixture
def run(folders: dict[str, Path]) -> Run:
    """The run with a projection; tests share its folder, so that their images differ."""
    return load_run(folders["scl"])


@pytest.fixture
def target(tmp_path: Path, request: pytest.FixtureRequest) -> TransferSet:
    """Digits of three classes upside down, of another size, in an .npz file."""
    data = load_digits()
    images = np.kron(data.images[:, ::-1] * (255 / 16), np.ones((2, 2))).astype(np.uint8)
    images[:, 0, 0] = zlib.crc32(request.node.name.encode()) % 256
    chosen = np.flatnonzero(data.target < 3)
    train, test = chosen[:150], chosen[150:330]
    path = tmp_path / f"{request.node.name}.npz"
    np.savez(
        path,
        x_train=images[train],
        y_train=data.target[train],
        x_test=images[test],
        y_test=data.target[test],
    )
    return load_transfer_set(str(path))


@contextmanager
def _counted(run: Run) -> Iterator[list[int]]:
    """Record the number of images of each pass through the backbone."""
    sizes: list[int] = []
    backbone: Any = run.objective.encoder.backbone
    handle = backbone.register_forward_hook(lambda _, inputs, __: sizes.append(len(inputs[0])))
    try:
        yield sizes
    finally:
        handle.remove()


def _features(run: Run, images: object) -> torch.Tensor:
    assert isinstance(images, ImageSet)
    encoder = run.objective.encoder
    assert isinstance(encoder, Encoder)
    with torch.no_grad():
        return encoder.forward_features(run.transform(images.images))


def test_numbers_are_those_of_scikit_learn_on_features_before_the_projection(
    run: Run, target: TransferSet
) -> None:
    train, test = (_features(run, split.images) for split in (target.train, target.test))
    assert train.shape[1] == run.objective.encoder.feature_dim != run.objective.encoder.out_dim
    scale = float((train.double() - train.double().mean(0)).square().mean().sqrt())
    model = LogisticRegression(C=0.1, tol=1e-8, max_iter=5000)
    model.fit((train.double() / scale).numpy(), target.train.targets)
    expected = model.score((test.double() / scale).numpy(), target.test.targets)
    (row,) = run_transfer(run, target, classifiers=["logistic"], cs=[0.1])
    assert row.value == row.top1 == pytest.approx(expected)
    assert (row.target, row.metric, row.chosen_c) == (target.name, "top1", 0.1)
    assert (row.num_train, row.num_test, row.num_classes) == (150, 180, 3)
    assert (row.shots, row.num_draws, row.std) == (None, None, None)


def test_one_row_for_each_classifier_and_number_of_images(run: Run, target: TransferSet) -> None:
    fractions: list[float] = []
    rows = run_transfer(
        run, target, cs=[0.1, 1.0], shots=[2, 1], num_draws=3, progress=fractions.append
    )
    assert [(row.classifier, row.shots) for row in rows] == [
        ("logistic", None),
        ("class_means", None),
        ("whitened_class_means", None),
        ("knn", None),
        ("class_means", 1),
        ("class_means", 2),
        ("whitened_class_means", 2),
    ]
    assert all(row.value > 0.5 for row in rows)
    assert rows[5].num_train == 6
    assert rows[5].num_draws == 3
    assert rows[5].std is not None
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0
    names = {path.name for path in (run.path / "benchmarks").glob(f"*{target.name}.json")}
    assert names == {f"transfer-{target.name}.json", f"few-shot-{target.name}.json"}


def test_features_are_computed_once_and_again_for_other_weights(
    run: Run, target: TransferSet
) -> None:
    with _counted(run) as sizes:
        (first,) = run_transfer(run, target, classifiers=["class_means"])
        assert sizes == [150, 180]
        run_transfer(run, target, classifiers=["knn"])
        run_transfer(run, target, classifiers=["knn"], use_cache=False)
        assert sizes == [150, 180]
        run_transfer(run, target, classifiers=["whitened_class_means"], use_cache=False)
        assert sizes == [150, 180] * 2
        run_transfer(run, target, classifiers=["whitened_class_means"], recompute=True)
        assert sizes == [150, 180] * 3
        with torch.no_grad():
            for weight in run.objective.encoder.parameters():
                weight.add_(0.05)
        (other,) = run_transfer(run, target, classifiers=["class_means"])
        assert sizes == [150, 180] * 4
    assert other.value != first.value
    with _counted(same := load_run(run.path)) as sizes:
        assert run_transfer(same, target, classifiers=["class_means"])[0].value == first.value
        assert sizes == []


def test_an_interrupted_benchmark_continues(
    run: Run, target: TransferSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted: list[str] = []

    def interrupt(features: Any, *, classifier: Any, **keywords: Any) -> Any:
        if classifier == "knn" and "knn" not in fitted:
            fitted.append("knn")
            raise KeyboardInterrupt
        fitted.append(classifier)
        return evaluate_transfer(features, classifier, **keywords)

    monkeypatch.setattr(transfer, "evaluate_transfer", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_transfer(run, target, cs=[1.0])
    assert fitted == ["logistic", "class_means", "whitened_class_means", "knn"]
    rows = run_transfer(run, target, cs=[1.0])
    assert fitted[4:] == ["knn"]
    assert [row.classifier for row in rows] == [
        "logistic",
        "class_means",
        "whitened_class_means",
        "knn",
    ]
    run_transfer(run, target, cs=[0.5], classifiers=["logistic"])
    assert fitted[5:] == ["logistic"]


def test_coarse_to_fine(folders: dict[str, Path]) -> None:
    run = load_run(folders["groups"])
    assert run.class_names == tuple(GROUPS)
    fine = fine_set(run)
    digits = load_dataset(read_recipe("digits-ce"))
    assert fine.class_names == digits.train.class_names
    assert torch.equal(fine.train.targets, digits.train.labels)
    assert torch.equal(fine.test.targets, digits.test.labels)
    (row,) = run_transfer(run, fine, classifiers=["whitened_class_means"])
    assert row.target == "fine"
    assert row.value > 0.8
    unit = torch.nn.functional.normalize(_features(run, fine.train.images))
    assert len(unit) == row.num_train == 1198


def test_several_labels_per_color_image_and_an_encoder_of_gray_ones(
    run: Run, tmp_path: Path
) -> None:
    names = ["cat", "dog", "sofa"]
    labels = load_digits().target
    # The images are digits in their order; their classes are those of the digit.
    objects = [
        [(name, 0) for bit, name in enumerate(names) if labels[i] >> bit & 1] for i in range(60)
    ]
    splits = {"train": objects[:20], "val": objects[20:40], "test": objects[40:]}
    trees.write_voc2007(tmp_path, splits)
    voc = load_transfer_set("voc2007", root=tmp_path)
    rows = run_transfer(run, voc, cs=[0.01, 1.0], shots=[1])
    assert [(row.classifier, row.metric, row.top1) for row in rows] == [("logistic", "map", None)]
    assert rows[0].num_classes == 20
    assert 0.4 < rows[0].value <= 1


def test_the_paper_has_numbers_for_imagenet_runs(run: Run) -> None:
    assert paper_transfer(run, "cars") is None
    recipe = read_recipe("imagenet1k-nonl")
    imagenet = Run(**{**vars(run), "recipe": recipe})
    assert paper_transfer(imagenet, "cars") == 38.1
    assert paper_transfer(imagenet, "voc2007") == 68.3
    assert paper_transfer(imagenet, "digits") is None


def test_rows_can_be_read_without_the_benchmark(run: Run, target: TransferSet) -> None:
    from protosphere.runs.results import read_result

    rows = run_transfer(run, target, classifiers=["knn"])
    result = read_result(run.path / "benchmarks" / f"transfer-{target.name}.json", TransferRow)
    assert result.rows == rows
    assert result.settings["test"] == target.test.fingerprint


@pytest.mark.bad_input
def test_what_cannot_be_transferred_is_refused(run: Run, target: TransferSet) -> None:
    with pytest.raises(DataError, match=r"trained on groups of classes \(data.class_groups\)"):
        fine_set(run)
    with pytest.raises(DataError, match=r"shots must be at most 49, .* got 51"):
        run_transfer(run, target, shots=[1, 51])


@pytest.mark.bad_input
def test_other_data_than_those_of_the_run_are_refused(folders: dict[str, Path]) -> None:
    metadata = folders["groups"] / "data.json"
    content = metadata.read_text()
    try:
        metadata.write_text(json.dumps(json.loads(content) | {"train_fingerprint": "other"}))
        with pytest.raises(RunFolderError, match="other training images"):
            fine_set(load_run(folders["groups"]))
    finally:
        metadata.write_text(content)
