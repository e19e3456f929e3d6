"""``protosphere prototypes``: from a file of features to a classifier, its classes changed, scored and exported."""

import csv
import io
import json
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from typer.testing import CliRunner

from protosphere.classifiers import PrototypeClassifier
from protosphere.cli.app import app

runner = CliRunner()
NAMES = ["ant", "bee", "cat"]


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Features of three classes in two parts, and of a fourth without labels."""
    generator = np.random.default_rng(0)
    centers = generator.normal(size=(4, 8)) * 3
    for name, count in (("train", 120), ("test", 60)):
        labels = np.arange(count) % 3
        features = (centers[labels] + generator.normal(size=(count, 8))).astype(np.float32)
        np.savez(
            tmp_path / f"{name}.npz", features=features, labels=labels, class_names=np.array(NAMES)
        )
    np.savez(
        tmp_path / "dogs.npz",
        features=(centers[3] + generator.normal(size=(20, 8))).astype(np.float32),
    )
    return tmp_path


def _said(*arguments: str | Path) -> str:
    result = runner.invoke(app, ["prototypes", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_from_features_to_predictions_and_back(files: Path) -> None:
    saved = files / "classifier.safetensors"
    assert "3 classes from 120 samples in 8 dimensions" in _said(
        "build", files / "train.npz", "--out", saved
    )
    with np.load(files / "train.npz") as train, np.load(files / "test.npz") as test:
        own = PrototypeClassifier().fit(train["features"], np.array(NAMES)[train["labels"]])
        share = own.score(test["features"], np.array(NAMES)[test["labels"]])
        shares, names = own.predict_proba(test["features"]), own.predict(test["features"])
    assert f"{100 * share:.2f} % of 60 samples" in _said("score", saved, files / "test.npz")
    before = _said("predict", saved, files / "test.npz")
    rows = list(csv.DictReader(io.StringIO(before)))
    assert [row["class"] for row in rows] == names.tolist()
    assert [float(row["confidence"]) for row in rows] == pytest.approx(
        shares.max(1).tolist(), abs=1e-6
    )
    # A class is added and used by one command, and taken out without a trace.
    added = _said("add", saved, "dog", files / "dogs.npz", "--predict", files / "dogs.npz")
    assert [row["class"] for row in csv.DictReader(io.StringIO(added))].count("dog") >= 18
    assert "dog" in PrototypeClassifier.load(saved).classes_
    assert "dog removed; 3 classes" in _said("remove", saved, "dog")
    assert _said("predict", saved, files / "test.npz") == before
    as_json = json.loads(_said("predict", saved, files / "test.npz", "--format", "json"))
    assert [row["class"] for row in as_json] == names.tolist()


def test_export_and_calibration(files: Path) -> None:
    saved = files / "classifier.safetensors"
    _said(
        "build",
        files / "train.npz",
        "--out",
        saved,
        "--rule",
        "nearest",
        "--calibrate",
        files / "test.npz",
    )
    classifier = PrototypeClassifier.load(saved)
    assert classifier.rule == "nearest"
    assert classifier.temperature_ != 0.1
    for _ in range(2):  # Once more, in its own place.
        _said("export", saved, files / "classifier.onnx")
    assert json.loads((files / "classifier.classes.json").read_text()) == NAMES
    session = onnxruntime.InferenceSession(str(files / "classifier.onnx"))
    with np.load(files / "test.npz") as test:
        (shares,) = session.run(["probabilities"], {"features": test["features"]})
        np.testing.assert_allclose(
            shares, classifier.predict_proba(test["features"]), rtol=0, atol=1e-5
        )


def test_classes_that_are_numbers(files: Path) -> None:
    with np.load(files / "train.npz") as train:
        np.savez(files / "plain.npz", features=train["features"], labels=train["labels"])
    saved = files / "classifier.safetensors"
    _said("build", files / "plain.npz", "--out", saved)
    _said("add", saved, "7", files / "dogs.npz")
    with np.load(files / "train.npz") as train:
        np.savez(
            files / "bytes.npz",
            features=train["features"],
            labels=np.array([b"a", b"b", b"c"])[train["labels"]],
        )
    _said("build", files / "bytes.npz", "--out", files / "texts.safetensors")
    assert PrototypeClassifier.load(files / "texts.safetensors").classes_.tolist() == [
        "a",
        "b",
        "c",
    ]
    assert PrototypeClassifier.load(saved).classes_.tolist() == [0, 1, 2, 7]


@pytest.mark.bad_input
def test_what_is_refused(files: Path) -> None:
    saved = files / "classifier.safetensors"
    _said("build", files / "train.npz", "--out", saved)
    content = saved.read_bytes()
    (files / "mine.classes.json").write_text("mine")
    (files / "other.onnx").write_bytes(b"other")
    np.savez(files / "narrow.npz", features=np.ones((4, 5), np.float32), labels=np.zeros(4, int))
    np.savez(
        files / "bad.npz", features=np.full((4, 8), np.nan, np.float32), labels=np.zeros(4, int)
    )
    rows = np.eye(8, dtype=np.float32)[:4]
    np.savez(
        files / "opposed.npz", features=np.concatenate([rows, -rows[:1]]), labels=[0, 1, 2, 3, 0]
    )
    np.savez(files / "shares.npz", features=rows, labels=np.linspace(0, 1, 4))
    for arguments, message in (
        (
            ["build", files / "opposed.npz", "--out", files / "x"],
            "must have a common direction; those of 0 are zero or",
        ),
        (
            ["build", files / "shares.npz", "--out", files / "x"],
            "must be whole numbers or texts, one a sample, (4,); got",
        ),
        (
            ["build", files / "test.npz", "--out", files / "train.npz"],
            "--out must be new, or a classifier to replace;",
        ),
        (["export", saved, files / "train.npz"], "a classifier is exported to an .onnx file; got"),
        (
            ["export", saved, files / "mine.onnx"],
            "mine.classes.json must be new, or both of an earlier export;",
        ),
        (
            ["export", saved, files / "other.onnx"],
            "other.classes.json must be new, or both of an earlier export;",
        ),
        (["remove", saved, "dog"], "a class that is removed must be there; there is no 'dog'"),
        (["add", saved, "bee", files / "dogs.npz"], "there is a class 'bee' already"),
        (
            ["add", saved, "dog", files / "narrow.npz"],
            "X has 5 features, but PrototypeClassifier is expecting 8",
        ),
        (["predict", saved, files / "narrow.npz"], "X has 5 features"),
        (
            ["predict", saved, files / "test.npz", "--format", "xml"],
            "--format must be csv or json; got xml",
        ),
        (
            ["predict", files / "train.npz", files / "test.npz"],
            "must be a saved PrototypeClassifier",
        ),
        (["score", saved, files / "dogs.npz"], "must hold labels under the key 'labels'"),
        (["build", files / "bad.npz", "--out", files / "x"], "contains NaN or infinity"),
        (
            ["build", files / "train.npz", "--out", files / "x", "--rule", "dot"],
            "rule must be 'cosine' or 'nearest'",
        ),
        (["build", files / "nothing.npz", "--out", files / "x"], "must be a file; there is none"),
    ):
        result = runner.invoke(app, ["prototypes", *map(str, arguments)])
        assert result.exit_code == 1, (arguments, result.output)
        assert message in result.stderr, arguments
        assert result.stderr.count("\n") == 1
    assert saved.read_bytes() == content
    assert not (files / "x").exists()
