"""Detection of unknown images with a short run, against scikit-learn and the run's predictions."""

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import average_precision_score, roc_auc_score

from protosphere.data.splits import DataError, ImageSet
from protosphere.evaluation.ood import OOD_SCORES, OodScore
from protosphere.recipes.loading import Run, load_run
from protosphere.runs.results import read_result
from protosphere.studies import ood
from protosphere.studies.data_sources import ImageSource, load_source
from protosphere.studies.ood import OodRow, run_ood
from support.short_runs import short_run

pytestmark = pytest.mark.long


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return load_run(short_run(tmp_path, "nonl"))


def _noise(count: int = 50, *, channels: int = 1, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    shape = (count, channels, 8, 8)
    return torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)


def _source(images: torch.Tensor, *names: str, name: str = "noise") -> ImageSource:
    labels = torch.zeros(len(images), dtype=torch.long)
    return ImageSource(name, ImageSet(images, labels, names or ("unknown",)), names)


def test_scores_equal_those_of_predictions(run: Run) -> None:
    noise = _noise()
    seen: list[float] = []
    rows = {row.score: row for row in run_ood(run, [_source(noise)], progress=seen.append)}
    assert tuple(rows) == OOD_SCORES
    assert seen[-1] == pytest.approx(1)
    assert seen == sorted(seen)
    test = run.dataset("test").test
    assert isinstance(test, ImageSet)
    known, unknown = run.predict(test.images), run.predict(noise)
    labels = [1] * 160 + [0] * 50
    expected: dict[OodScore, torch.Tensor] = {
        "cosine": -torch.cat([known.rejection_scores, unknown.rejection_scores]),
        "softmax": torch.cat([known.confidences, unknown.confidences]),
    }
    for name, scores in expected.items():
        row = rows[name]
        assert row.auroc == pytest.approx(roc_auc_score(labels, scores), abs=1e-4)
        assert row.aupr == pytest.approx(average_precision_score(labels, scores), abs=1e-3)
        accepted = scores[:160].sort(descending=True).values[151]  # 152 of 160 are 95%.
        assert row.fpr95 == pytest.approx(
            float((scores[160:] >= accepted).double().mean()), abs=0.021
        )
        assert (row.num_known, row.num_unknown, row.shared_classes) == (160, 50, 0)


def test_the_distance_to_the_prototypes_equals_least_squares(run: Run) -> None:
    noise = _noise()
    (row,) = (row for row in run_ood(run, [_source(noise)]) if row.score == "subspace")
    prototypes = run.objective.head.prototypes.detach().double().numpy()
    residuals = []
    with torch.no_grad():
        test = torch.as_tensor(run.features("test").features)
        other = run.objective.encoder(run.transform(noise))
    for feature in torch.cat([test, other]).double().numpy():
        unit = feature / np.linalg.norm(feature)
        weights, *_ = np.linalg.lstsq(prototypes.T, unit, rcond=None)
        residuals.append(-np.linalg.norm(unit - prototypes.T @ weights))
    assert row.auroc == pytest.approx(roc_auc_score([1] * 160 + [0] * 50, residuals), abs=1e-6)


def test_what_the_folder_has_is_not_computed_again(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = _source(_noise()), _source(_noise(seed=1), name="more")
    rows = run_ood(run, [first])
    more = run_ood(run, [second, first])
    assert more[len(OOD_SCORES) :] == rows
    assert [row.against for row in more] == ["more"] * 6 + ["noise"] * 6
    path = run.path / "benchmarks/ood.json"
    assert read_result(path, OodRow).rows == rows + more[: len(OOD_SCORES)]

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr(ood, "encode_split", refuse)
    assert run_ood(run, [first, second]) == rows + more[: len(OOD_SCORES)]
    with pytest.raises(AssertionError):
        run_ood(run, [first], recompute=True)
    with pytest.raises(AssertionError):
        run_ood(run, [first], num_neighbors=3)


def test_rows_have_the_name_that_a_source_has_now(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = _source(_noise()), _source(_noise(seed=1), name="more")
    rows = run_ood(run, [first, second])

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr(ood, "encode_split", refuse)
    renamed = run_ood(run, [_source(_noise(), "3", "cat", name="other")])
    assert renamed == tuple(
        replace(row, against="other", shared_classes=1) for row in rows[: len(OOD_SCORES)]
    )
    path = run.path / "benchmarks/ood.json"
    assert read_result(path, OodRow).rows == renamed + rows[len(OOD_SCORES) :]


def test_a_class_that_both_have_is_warned_of(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "protosphere"):
        rows = run_ood(run, [_source(_noise(), "3", "cat", "4")])
    assert {row.shared_classes for row in rows} == {2}
    assert caplog.messages == [
        f"noise has classes of {run.path} (3 and 1 more): their images count as unknown although "
        "they are not"
    ]


def test_sources(tmp_path: Path, run: Run) -> None:
    """Arrays and folders, in color for a run on gray images: the same pixels, the same rows."""
    gray = _noise(20)
    color = gray.expand(-1, 3, -1, -1)
    np.savez(tmp_path / "gray.npz", pictures=gray.numpy(), y=np.zeros(20, int))
    np.savez(
        tmp_path / "color.npz",
        x_train=np.zeros((3, 8, 8), np.uint8),
        x_test=color.numpy(),
        class_names=np.array(["noise"]),
    )
    for index, image in enumerate(color):
        for split in ("test/noise", "train/noise"):
            (tmp_path / "images" / split).mkdir(parents=True, exist_ok=True)
            pixels = image.movedim(0, 2).numpy().repeat(2, 0).repeat(2, 1)
            Image.fromarray(pixels).save(tmp_path / f"images/{split}/{index:02}.png")
    arrays, colored, folder = (
        load_source(str(tmp_path / name)) for name in ("gray.npz", "color.npz", "images")
    )
    assert [len(source.images) for source in (arrays, colored, folder)] == [20, 20, 20]
    assert (arrays.class_names, colored.class_names) == ((), ("noise",))
    assert (folder.name, folder.class_names) == ("images", ("noise",))
    rows = run_ood(run, [arrays, colored, folder])
    values = [[row.auroc for row in rows[start : start + 6]] for start in (0, 6, 12)]
    assert values[0] == values[1]
    assert all(value is not None and 0 <= value <= 1 for value in values[2])
    flat = load_source(str(tmp_path / "images/test/noise"))
    assert len(flat.images) == 20


def test_a_registered_dataset_is_its_test_images() -> None:
    source = load_source("digits")
    assert (source.name, source.class_names) == ("digits", tuple("0123456789"))
    assert len(source.images) == 599


@pytest.mark.bad_input
def test_what_is_refused(tmp_path: Path, run: Run) -> None:
    test = run.dataset("test").test
    assert isinstance(test, ImageSet)
    with pytest.raises(ValueError, match=r"must not be the test images of .* themselves, got me"):
        run_ood(run, [ImageSource("me", test)])
    same = [_source(_noise(), name=name) for name in ("a", "b")]
    with pytest.raises(ValueError, match="sources must have different images, a and b have the s"):
        run_ood(run, same)
    assert not (run.path / "benchmarks/ood.json").exists()
    with pytest.raises(DataError, match="there are no validation images"):
        run_ood(run, [_source(_noise())], split="validation")
    np.savez(tmp_path / "two.npz", a=_noise().numpy(), b=_noise().numpy())
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.npz").write_text("no archive")
    for source, message in (
        ("cifar11", r"a folder or an \.npz file; got 'cifar11' \(did you mean cifar10\?\)"),
        (tmp_path / "none.npz", "does not exist"),
        (tmp_path / "two.npz", "must have x_test or one array of images; it has a, b"),
        (tmp_path / "empty", "must have images in it; it has none"),
        (tmp_path / "text.npz", "damaged or in another format"),
    ):
        with pytest.raises(DataError, match=message):
            load_source(str(source))
    with pytest.raises(DataError, match="cifar10 must be in"):
        load_source("cifar10", root=tmp_path)
