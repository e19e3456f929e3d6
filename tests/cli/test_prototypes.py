"""``protosphere prototypes``: a classifier built from features, changed, scored and exported."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from protosphere.classifiers import PrototypeClassifier
from support.commands import invoke, refusal, run_command

NAMES = ["ant", "bee", "cat"]


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Labeled features of three classes in two files, and features of a fourth class."""
    generator = np.random.default_rng(0)
    centers = generator.normal(size=(4, 8)) * 3
    for name, num_samples in (("train", 120), ("test", 60)):
        labels = np.arange(num_samples) % 3
        features = centers[labels] + generator.normal(size=(num_samples, 8))
        _save(tmp_path / f"{name}.npz", features, labels, NAMES)
    _save(tmp_path / "dogs.npz", centers[3] + generator.normal(size=(20, 8)))
    return tmp_path


@pytest.fixture
def saved(files: Path) -> Path:
    """A classifier of the three classes."""
    path = files / "classifier.safetensors"
    _prototypes("build", files / "train.npz", "--out", path)
    return path


def _save(
    path: Path,
    features: np.ndarray,
    labels: np.ndarray | None = None,
    class_names: list[str] | None = None,
) -> Path:
    arrays = {"features": np.asarray(features, np.float32)}
    if labels is not None:
        arrays["labels"] = np.asarray(labels)
    if class_names is not None:
        arrays["class_names"] = np.array(class_names)
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return path


def _prototypes(*arguments: object) -> str:
    return run_command("prototypes", *arguments)


def _rows(output: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(output)))


def test_a_classifier_is_that_of_the_library(files: Path, saved: Path) -> None:
    with np.load(files / "train.npz") as train, np.load(files / "test.npz") as test:
        own = PrototypeClassifier().fit(train["features"], np.array(NAMES)[train["labels"]])
        accuracy = own.score(test["features"], np.array(NAMES)[test["labels"]])
        probabilities = own.predict_proba(test["features"]).max(1).tolist()
        classes = own.predict(test["features"]).tolist()
        scores = own.rejection_score(test["features"]).tolist()
    output = _prototypes("score", saved, files / "test.npz")
    # All classes have as many samples, so that both accuracies are equal.
    line = f"accuracy {100 * accuracy:.2f}%, balanced accuracy {100 * accuracy:.2f}%"
    assert output == f"{line} on 60 samples\n"
    rows = _rows(_prototypes("predict", saved, files / "test.npz"))
    assert [row["class"] for row in rows] == classes
    confidences = [float(row["confidence"]) for row in rows]
    assert confidences == pytest.approx(probabilities, abs=1e-6)
    found = [float(row["rejection_score"]) for row in rows]
    assert found == pytest.approx(scores, abs=1e-6)
    content = json.loads(_prototypes("predict", saved, files / "test.npz", "--format", "json"))
    assert [record["class"] for record in content["predictions"]] == classes


def test_build_says_what_was_built(files: Path) -> None:
    out = files / "a.safetensors"
    output = _prototypes("build", files / "train.npz", "--out", out)
    expected = "3 classes from 120 samples in 8 dimensions, temperature 0.1, saved to"
    assert output == f"{expected} {out}\n"


@pytest.mark.parametrize("shrinkage", [None, 0.3])
def test_a_whitened_classifier(files: Path, shrinkage: Any) -> None:
    out, test = files / "whitened.safetensors", files / "test.npz"
    options = [] if shrinkage is None else ["--shrinkage", shrinkage]
    build = ["build", files / "train.npz", "--out", out, "--whitening", "shrunk", *options]
    output = _prototypes(*build)
    amount = 0.3 if shrinkage == 0.3 else 8 / (8 + 117)
    assert f"in 8 dimensions, whitened with shrinkage {amount:.3g}, temperature 0.1," in output
    with np.load(files / "train.npz") as train, np.load(test) as arrays:
        own = PrototypeClassifier(whitening="shrunk", shrinkage=shrinkage or "auto")
        own.fit(train["features"], np.array(NAMES)[train["labels"]])
        queries = arrays["features"]
    rows = _rows(_prototypes("predict", out, test))
    assert [row["class"] for row in rows] == own.predict(queries).tolist()
    with np.load(files / "dogs.npz") as dogs:
        own.add_class("dog", dogs["features"])
    _prototypes("add", out, "dog", files / "dogs.npz")
    _prototypes("remove", out, "bee")
    own.remove_class("bee")
    rows = _rows(_prototypes("predict", out, test))
    found = [float(row["rejection_score"]) for row in rows]
    assert found == pytest.approx(own.rejection_score(queries).tolist(), abs=1e-6)
    _prototypes("export", out, files / "whitened.onnx")
    session = onnxruntime.InferenceSession(str(files / "whitened.onnx"))
    (probabilities,) = session.run(["probabilities"], {"features": queries})
    np.testing.assert_allclose(probabilities, own.predict_proba(queries), rtol=0, atol=1e-4)


def test_a_shrinkage_by_cross_validation(tmp_path: Path) -> None:
    """Half of the labels are wrong, so that cross-validation does not choose ``auto``."""
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 4, 300)
    noise = generator.normal(size=(300, 60)) * np.linspace(0.5, 4, 60)
    features = 2 * generator.normal(size=(4, 60))[labels] + noise
    labels[::2] = (labels[::2] + generator.integers(1, 4, 150)) % 4
    np.savez(tmp_path / "train.npz", features=features.astype(np.float32), labels=labels)
    expected = PrototypeClassifier(whitening="shrunk", shrinkage="cv").fit(features, labels)
    assert expected.shrinkage_ is not None
    assert abs(expected.shrinkage_ - 60 / (60 + 296)) > 0.1
    options = ["--whitening", "shrunk", "--shrinkage", "cv"]
    out = tmp_path / "a.safetensors"
    output = _prototypes("build", tmp_path / "train.npz", "--out", out, *options)
    assert f"whitened with shrinkage {expected.shrinkage_:.3g}," in output


@pytest.mark.parametrize("kind", [np.uint8, np.int64])
@pytest.mark.parametrize("labels", [np.array([0.0, 1, 1, 0]), np.array([False, True, True, False])])
def test_features_and_labels_may_be_of_other_types(
    tmp_path: Path, kind: Any, labels: np.ndarray
) -> None:
    features = np.array([[9, 1], [1, 8], [2, 9], [7, 1]], kind)
    path, out = _save(tmp_path / "a.npz", features, labels), tmp_path / "a.safetensors"
    _prototypes("build", path, "--out", out)
    assert "accuracy 100.00%" in _prototypes("score", out, path)


def test_info_describes_a_classifier(files: Path, saved: Path) -> None:
    lines = ["3 classes in 8 dimensions, rule cosine, temperature 0.1"]
    lines += [f"{name}: 40 samples" for name in NAMES]
    assert _prototypes("info", saved).splitlines() == lines
    out = files / "whitened.safetensors"
    options = ["--whitening", "shrunk", "--shrinkage", "0.5", "--rule", "nearest"]
    _prototypes("build", files / "train.npz", "--out", out, *options)
    first = _prototypes("info", out).splitlines()[0]
    assert first.endswith("rule nearest, whitened with shrinkage 0.5, temperature 0.1")


def test_a_class_is_added_and_removed_without_a_trace(files: Path, saved: Path) -> None:
    before = _prototypes("predict", saved, files / "test.npz")
    dogs = files / "dogs.npz"
    result = invoke("prototypes", "add", saved, "dog", dogs, "--predict", dogs)
    assert result.exit_code == 0, result.output
    assert [row["class"] for row in _rows(result.stdout)].count("dog") >= 18
    assert result.stderr == "Added dog from 20 samples; the classifier has 4 classes\n"
    assert "dog" in PrototypeClassifier.load(saved).classes_
    output = _prototypes("remove", saved, "dog")
    assert output == "Removed dog; the classifier has 3 classes\n"
    assert _prototypes("predict", saved, files / "test.npz") == before


def test_one_class_is_singular(saved: Path) -> None:
    _prototypes("remove", saved, "ant")
    assert "the classifier has 1 class\n" in _prototypes("remove", saved, "bee")


def test_classes_that_the_classifier_does_not_know_are_named(files: Path, saved: Path) -> None:
    with np.load(files / "test.npz") as test:
        path = _save(files / "other.npz", test["features"], test["labels"], ["ant", "bee", "cow"])
    result = invoke("prototypes", "score", saved, path)
    assert result.exit_code == 0
    assert result.stderr == "The classifier does not know 1 class of the file, such as cow\n"


@pytest.fixture
def uneven(files: Path, saved: Path) -> Path:
    """Samples at the prototypes, 4 of ant and 1 of bee; one ant and the bee have other labels."""
    rows = PrototypeClassifier.load(saved).prototypes_[[0, 0, 0, 0, 1]]
    return _save(files / "uneven.npz", rows, np.array([0, 0, 0, 1, 2]), NAMES)


def test_predictions_come_with_accuracies_if_there_are_labels(saved: Path, uneven: Path) -> None:
    # Three of five are correct: all 3 labeled ant, none of 1 labeled bee, none of 1 labeled cat.
    line = "accuracy 60.00%, balanced accuracy 33.33% on 5 samples\n"
    result = invoke("prototypes", "predict", saved, uneven)
    assert result.stderr == line
    assert [row["class"] for row in _rows(result.stdout)] == ["ant", "ant", "ant", "ant", "bee"]
    assert _prototypes("score", saved, uneven) == line
    accuracies = {"num_samples": 5, "accuracy": 0.6, "balanced_accuracy": 1 / 3}
    assert json.loads(_prototypes("score", saved, uneven, "--json")) == accuracies
    result = invoke("prototypes", "predict", saved, uneven, "--format", "json")
    assert result.stderr == ""
    content = json.loads(result.stdout)
    assert len(content.pop("predictions")) == 5
    assert content == accuracies


def test_predictions_have_no_accuracy_without_labels(files: Path, saved: Path) -> None:
    dogs = files / "dogs.npz"
    assert invoke("prototypes", "predict", saved, dogs).stderr == ""
    content = json.loads(_prototypes("predict", saved, dogs, "--format", "json"))
    assert list(content) == ["num_samples", "predictions"]


def test_labels_of_another_key_or_of_unknown_classes(files: Path, saved: Path) -> None:
    rows = PrototypeClassifier.load(saved).prototypes_[:2]
    path = files / "keys.npz"
    np.savez(path, features=rows, labels=np.array(["cow", "bee"]), truth=np.array(["ant", "bee"]))
    result = invoke("prototypes", "predict", saved, path, "--labels", "truth")
    assert result.stderr == "accuracy 100.00%, balanced accuracy 100.00% on 2 samples\n"
    result = invoke("prototypes", "predict", saved, path)
    assert result.stderr.splitlines() == [
        "accuracy 50.00%, balanced accuracy 50.00% on 2 samples",
        "The classifier does not know 1 class of the file, such as cow",
    ]
    message = refusal("prototypes", "predict", saved, path, "--labels", "targets")
    assert "must have labels under the key 'targets'" in message


def test_labels_that_are_no_classes_do_not_prevent_predictions(files: Path, saved: Path) -> None:
    path = _save(files / "floats.npz", np.eye(8)[:4], np.linspace(0, 1, 4))
    result = invoke("prototypes", "predict", saved, path)
    assert result.exit_code == 0
    assert len(_rows(result.stdout)) == 4
    assert result.stderr.startswith(
        "No accuracy: labels in floats.npz must be whole numbers or strings"
    )
    assert result.stderr.count("\n") == 1
    message = refusal("prototypes", "predict", saved, path, "--labels", "labels")
    assert message.startswith("labels in floats.npz must be whole numbers or strings")


def test_labels_without_a_known_class_have_no_accuracy(files: Path, saved: Path) -> None:
    path = _save(files / "numbers.npz", np.eye(8)[:4], np.arange(4))
    expected = (
        "no label in numbers.npz is a class of the classifier; its classes include ant, "
        "the labels 0"
    )
    assert refusal("prototypes", "score", saved, path) == expected
    assert refusal("prototypes", "predict", saved, path, "--labels", "labels") == expected
    result = invoke("prototypes", "predict", saved, path)
    assert result.exit_code == 0
    assert result.stderr == f"No accuracy: {expected}\n"


def test_export_computes_the_probabilities_of_the_classifier(files: Path) -> None:
    saved, out = files / "classifier.safetensors", files / "classifier.onnx"
    test = files / "test.npz"
    options = ["--rule", "nearest", "--calibrate", test]
    _prototypes("build", files / "train.npz", "--out", saved, *options)
    classifier = PrototypeClassifier.load(saved)
    assert classifier.rule == "nearest"
    assert classifier.temperature_ != 0.1
    _prototypes("export", saved, out)
    assert json.loads((files / "classifier.classes.json").read_text()) == NAMES
    session = onnxruntime.InferenceSession(str(out))
    with np.load(test) as arrays:
        (found,) = session.run(["probabilities"], {"features": arrays["features"]})
        expected = classifier.predict_proba(arrays["features"])
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


def test_classes_may_be_numbers_or_bytes(files: Path) -> None:
    with np.load(files / "train.npz") as train:
        plain = _save(files / "plain.npz", train["features"], train["labels"])
        names = np.array([b"a", b"b", b"c"])[train["labels"]]
        encoded = _save(files / "bytes.npz", train["features"], names)
    numbers, texts = files / "numbers.safetensors", files / "texts.safetensors"
    _prototypes("build", plain, "--out", numbers)
    _prototypes("add", numbers, "7", files / "dogs.npz")
    assert PrototypeClassifier.load(numbers).classes_.tolist() == [0, 1, 2, 7]
    assert "classes of this classifier are numbers, such as 0, got dog" in refusal(
        "prototypes", "add", numbers, "dog", files / "dogs.npz"
    )
    _prototypes("build", encoded, "--out", texts)
    assert PrototypeClassifier.load(texts).classes_.tolist() == ["a", "b", "c"]


def test_classes_may_be_true_and_false(files: Path) -> None:
    saved, path = files / "a.safetensors", files / "a.npz"
    _prototypes("build", _save(path, np.eye(8)[:2], np.array([False, True])), "--out", saved)
    message = refusal("prototypes", "remove", saved, "1")
    assert message == "classes of this classifier are True and False, got 1"
    for name, other in (("False", True), ("True", False)):
        _prototypes("remove", saved, name)
        assert PrototypeClassifier.load(saved).classes_.tolist() == [other]
        _prototypes("add", saved, name, files / "dogs.npz")
        assert PrototypeClassifier.load(saved).classes_.tolist() == [False, True]


@pytest.mark.bad_input
def test_a_classifier_is_saved_to_safetensors_only(files: Path) -> None:
    for name in ("classifier", "classifier.npz", "classifier.pt"):
        out = files / name
        message = refusal("prototypes", "build", files / "train.npz", "--out", out)
        assert message == f"--out must be a file that ends in .safetensors, got {out}"
        assert not out.exists()


@pytest.mark.bad_input
def test_files_are_checked_before_the_work(files: Path, saved: Path) -> None:
    missing = files / "missing" / "new.safetensors"
    nothing = files / "nothing.npz"  # It is not read: the output is wrong already.
    message = refusal("prototypes", "build", nothing, "--out", missing)
    assert message == f"--out must be in a folder that exists, got {missing}"
    onnx = files / "missing" / "new.onnx"
    message = refusal("prototypes", "export", nothing, onnx)
    assert message == f"OUT must be in a folder that exists, got {onnx}"


@pytest.mark.bad_input
def test_a_classifier_is_replaced_only_with_overwrite(files: Path, saved: Path) -> None:
    before = saved.read_bytes()
    build = ["prototypes", "build", files / "test.npz", "--out"]
    message = refusal(*build, saved)
    assert message == f"--out must be a new file, or --overwrite be given, got {saved}"
    assert saved.read_bytes() == before
    run_command(*build, saved, "--overwrite")
    assert saved.read_bytes() != before
    other = files / "features.safetensors"
    other.write_bytes(b"mine")
    message = refusal(*build, other, "--overwrite")
    assert message == f"--overwrite replaces a saved classifier, got {other}"
    assert other.read_bytes() == b"mine"


@pytest.mark.bad_input
def test_an_export_is_replaced_only_with_overwrite(files: Path, saved: Path) -> None:
    out, names = files / "a.onnx", files / "a.classes.json"
    _prototypes("export", saved, out)
    message = refusal("prototypes", "export", saved, out)
    assert message == f"OUT must be a new file, or --overwrite be given, got {out}"
    _prototypes("export", saved, out, "--overwrite")
    for kept, removed in ((out, names), (names, out)):
        removed.rename(files / "moved")
        message = refusal("prototypes", "export", saved, out, "--overwrite")
        assert message.startswith("--overwrite replaces an earlier export, a.onnx and a.classes")
        assert message.endswith(f"got {kept} alone")
        (files / "moved").rename(removed)
    message = refusal("prototypes", "export", saved, files / "train.npz")
    assert message == f"OUT must be an .onnx file, got {files / 'train.npz'}"


@pytest.mark.bad_input
def test_what_is_refused_changes_no_file(files: Path, saved: Path) -> None:
    content = saved.read_bytes()
    rows = np.eye(8)[:4]
    narrow = _save(files / "narrow.npz", np.ones((4, 5)), np.zeros(4, int))
    empty = _save(files / "empty.npz", np.ones((0, 8)), np.zeros(0, int))
    zeros = _save(files / "zeros.npz", np.zeros((4, 8)), np.zeros(4, int))
    nan = _save(files / "nan.npz", np.full((4, 8), np.nan), np.zeros(4, int))
    opposed = _save(
        files / "opposed.npz", np.concatenate([rows, -rows[:1]]), np.array([0, 1, 2, 3, 0])
    )
    floats = _save(files / "floats.npz", rows, np.linspace(0, 1, 4))
    outside = _save(files / "outside.npz", rows, np.arange(4), NAMES)
    test, dogs, train = files / "test.npz", files / "dogs.npz", files / "train.npz"
    new = files / "new.safetensors"
    for arguments, message in (
        (["build", opposed, "--out", new], "samples of a class must have a common direction"),
        (["build", floats, "--out", new], "labels in floats.npz must be whole numbers or strings"),
        (["build", outside, "--out", new], "must be between 0 and 2, one for each class name"),
        (["build", empty, "--out", new], "features in empty.npz must have samples and dimensions"),
        (
            ["build", zeros, "--out", new, "--whitening", "shrunk"],
            "features in zeros.npz must not all be zero",
        ),
        (["score", saved, zeros], "features in zeros.npz must not all be zero"),
        (["build", nan, "--out", new], "features must be finite"),
        (["build", files / "nothing.npz", "--out", new], "nothing.npz"),
        (
            ["build", train, "--out", new, "--shrinkage", "0.3"],
            "--shrinkage 0.3 must come with --whitening shrunk",
        ),
        (
            ["build", train, "--out", new, "--whitening", "shrunk", "--shrinkage", "lots"],
            "--shrinkage must be auto, cv or a number between 0 and 1, got lots",
        ),
        (["info", files], "is a folder, not a saved PrototypeClassifier"),
        (["info", train], "is damaged or not a saved PrototypeClassifier"),
        (["remove", saved, "dog"], "there is no class 'dog' to remove"),
        (["add", saved, "bee", dogs], "there is already a class 'bee'"),
        (["add", saved, "dog", narrow], "features in narrow.npz must have 8 dimensions"),
        (["predict", saved, narrow], "features in narrow.npz must have 8 dimensions"),
        (["predict", saved, nan], "features must be finite"),
        (["predict", train, test], "is damaged or not a saved PrototypeClassifier"),
        (["score", saved, dogs], "'labels'"),
    ):
        assert message in refusal("prototypes", *arguments)
    assert saved.read_bytes() == content
    assert not new.exists()
