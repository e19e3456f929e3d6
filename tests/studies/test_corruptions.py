"""Errors of trained runs on corrupted photographs, computed and from disk; resumed benchmarks."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from protosphere.classifiers import class_means
from protosphere.data.corruptions import CORRUPTIONS, SEVERITIES, corrupt
from protosphere.data.folders import ImageFiles
from protosphere.data.frost_textures import FrostTextures
from protosphere.data.splits import DataError, ImageSet
from protosphere.recipes.build import load_dataset
from protosphere.recipes.datasets import ArraysData
from protosphere.recipes.loading import Run, load_run, read_recipe
from protosphere.recipes.runner import run_recipe
from protosphere.runs.results import read_result
from protosphere.studies import corruptions as study
from protosphere.studies.corruption_summary import (
    find_reference,
    reference_of,
    summarize_corruptions,
)
from protosphere.studies.corruptions import CorruptionRow, check_baseline, run_corruptions
from support.corruption_runs import NUM_TEST, SIZE, train_crops, write_crops


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("crops")
    write_crops(root / "crops.npz")
    return train_crops(root / "run", root / "crops.npz")


@pytest.fixture
def run(folder: Path) -> Iterator[Run]:
    yield load_run(folder)
    for path in (folder / "benchmarks").glob("*.json"):
        path.unlink()


def _test_images(run: Run) -> ImageSet:
    images = run.dataset("test").test
    assert isinstance(images, ImageSet)
    return images


def _error(run: Run, images: torch.Tensor, labels: torch.Tensor) -> float:
    wrong = 0
    for image, label in zip(images, labels, strict=True):
        wrong += int(run.predict(image[None]).classes[0]) != int(label)
    return wrong / len(labels)


def test_errors_are_those_of_corrupted_images_one_by_one(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: list[torch.Tensor] = []

    def collected(*arguments: Any, **options: Any) -> torch.Tensor:
        batches.append(corrupt(*arguments, **options))
        return batches[-1]

    monkeypatch.setattr(study, "corrupt", collected)
    rows = run_corruptions(
        run, corruptions=["gaussian_noise", "contrast"], severities=[2, 5], seed=3, batch_size=7
    )
    assert [(row.corruption, row.severity) for row in rows] == [
        ("clean", 0),
        ("gaussian_noise", 2),
        ("gaussian_noise", 5),
        ("contrast", 2),
        ("contrast", 5),
    ]
    test = _test_images(run)
    pixels, measured = test.images, torch.cat(batches).split(NUM_TEST)
    for number, row in enumerate(rows):
        if row.severity:
            pixels = torch.cat(
                [
                    corrupt(
                        image[None],
                        row.corruption,
                        severity=row.severity,
                        seed=3,
                        first_index=index,
                    )
                    for index, image in enumerate(test.images)
                ]
            )
            assert torch.equal(measured[number - 1], pixels)
        assert row.error == pytest.approx(_error(run, pixels, test.labels))
        assert row.num_images == NUM_TEST
        assert row.class_means_error is None
    assert rows[0].error < 0.3, "the photographs can be told apart"
    assert len({row.error for row in rows}) > 1


def test_class_means_are_those_of_the_training_features(run: Run) -> None:
    (row,) = run_corruptions(run, corruptions=[], class_means=True)
    (train, train_labels), (test, labels) = (
        (torch.as_tensor(one.features), torch.as_tensor(one.labels))
        for one in (run.features("train"), run.features("test"))
    )
    means = class_means(train, train_labels, num_classes=2).means
    normalize = torch.nn.functional.normalize
    cosines = normalize(test.double()) @ normalize(means).mT
    expected = (cosines.argmax(1) != labels).double().mean().item()
    assert row.class_means_error == pytest.approx(expected)


def _count_calls(monkeypatch: pytest.MonkeyPatch, stop_at: int | None = None) -> list[Any]:
    calls: list[Any] = []

    def counted(images: torch.Tensor, name: str, *, severity: int, **options: Any) -> torch.Tensor:
        if len(calls) == stop_at:
            raise KeyboardInterrupt
        calls.append((name, severity))
        return corrupt(images, name, severity=severity, **options)

    monkeypatch.setattr(study, "corrupt", counted)
    return calls


def test_an_interrupted_benchmark_resumes_and_computes_nothing_twice(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted: dict[str, Any] = {"corruptions": ["fog", "contrast"], "severities": [1, 4]}
    with monkeypatch.context() as patch:
        _count_calls(patch, stop_at=2)
        with pytest.raises(KeyboardInterrupt):
            run_corruptions(run, **wanted)
    path = run.path / "benchmarks" / "corruptions.json"
    stored = read_result(path, CorruptionRow)
    assert [row.corruption for row in stored.rows] == ["clean", "fog", "fog"]

    calls = _count_calls(monkeypatch)
    rows = run_corruptions(run, **wanted)
    assert calls == [("contrast", 1), ("contrast", 4)]
    assert rows[:3] == stored.rows
    assert run_corruptions(run, **wanted) == rows
    assert len(calls) == 2
    # Another severity is added; what was asked for is returned.
    more = run_corruptions(run, corruptions=["fog"], severities=[4, 5])
    assert [(row.corruption, row.severity) for row in more] == [
        ("clean", 0),
        ("fog", 4),
        ("fog", 5),
    ]
    assert calls[2:] == [("fog", 5)]
    run_corruptions(run, **wanted, recompute=True)
    assert len(calls) == 7
    # What was not asked for stays.
    assert run_corruptions(run, corruptions=["fog"], severities=[5])[1] == more[2]
    assert len(calls) == 7
    # Another seed and other textures give other images.
    run_corruptions(run, **wanted, seed=1)
    textures = FrostTextures((torch.zeros(3, 400, 400, dtype=torch.uint8),), "here")
    run_corruptions(run, **wanted, seed=1, frost=textures)
    assert len(calls) == 15
    # So do other formulas.
    monkeypatch.setattr(study, "CORRUPTIONS_VERSION", 0)
    run_corruptions(run, **wanted, seed=1, frost=textures)
    assert len(calls) == 19


def test_class_means_add_to_errors_that_are_there(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study, "CORRUPTIONS_VERSION", "class means")  # Nothing is there yet.
    plain = run_corruptions(run, corruptions=["fog", "contrast"], severities=[1])
    both = run_corruptions(run, corruptions=["fog"], severities=[1], class_means=True)
    assert [row.error for row in both] == [row.error for row in plain[:2]]
    assert all(row.class_means_error is not None for row in both)
    monkeypatch.setattr(study, "measure_errors", None)  # All further rows are there.
    assert run_corruptions(run, corruptions=["fog", "contrast"], severities=[1]) == plain
    assert run_corruptions(run, corruptions=["fog"], severities=[1], class_means=True) == both


def test_progress_ends_at_one(run: Run) -> None:
    seen: list[float] = []
    run_corruptions(
        run, corruptions=["contrast"], severities=[1], class_means=True, progress=seen.append
    )
    assert seen == sorted(seen)
    assert seen[-1] == pytest.approx(1)


def test_arrays_from_disk_are_the_computed_corruptions(run: Run, tmp_path: Path) -> None:
    test = _test_images(run)
    images = [corrupt(test.images, "snow", severity=severity, seed=5) for severity in SEVERITIES]
    np.save(tmp_path / "snow.npy", torch.cat(images).permute(0, 2, 3, 1).numpy())
    np.save(tmp_path / "labels.npy", np.tile(test.labels.numpy(), 5))
    rows = run_corruptions(run, corruptions=["snow"], folder=tmp_path)
    assert rows == run_corruptions(run, corruptions=["snow"], seed=5)
    assert (run.path / "benchmarks" / "corruption-files.json").exists()
    # Without the clean images there is no clean error.
    assert isinstance(run.recipe.data, ArraysData)
    data = Path(run.recipe.data.path)
    try:
        data.rename(tmp_path / "away.npz")
        assert (
            run_corruptions(load_run(run.path), corruptions=["snow"], folder=tmp_path) == rows[1:]
        )
    finally:
        (tmp_path / "away.npz").rename(data)


def test_folders_of_clean_and_corrupted_images(tmp_path: Path) -> None:
    """Image files are cropped before they are corrupted; those of ImageNet-C have been."""
    rng = np.random.default_rng(0)
    for split, number in (("train", 4), ("val", 3)):
        for name in ("a", "b"):
            for index in range(number):
                place = tmp_path / "data" / split / name
                place.mkdir(parents=True, exist_ok=True)
                coarse = Image.fromarray(rng.integers(0, 256, (5, 6, 3), dtype=np.uint8))
                coarse.resize((30 + index, 24)).save(place / f"{index}.png")
    recipe = read_recipe(
        "digits-nonl",
        [
            f"data={{source: folder, path: {tmp_path / 'data'}, workers: 0}}",
            f"augmentation={{size: {SIZE}}}",
            "training.batch_size=4",
            "schedule.epochs=1",
        ],
    )
    list(run_recipe(recipe, tmp_path / "run", load_dataset(recipe)))
    run = load_run(tmp_path / "run")
    rows = run_corruptions(run, corruptions=["fog"], severities=[1, 2], batch_size=4)
    files = run.dataset("test").test
    assert isinstance(files, ImageFiles)
    squares = torch.stack(
        [run.transform.crop_pixels(torch.from_numpy(_pixels(path))) for path in files.paths]
    )
    for row in rows[1:]:
        fog = corrupt(squares, "fog", severity=row.severity)
        with torch.no_grad():
            logits = run.objective.head(run.objective.encoder(run.transform.normalize(fog)))
        wrong = (logits.argmax(1) != files.labels).float().mean().item()
        assert row.error == pytest.approx(wrong)
        for index, (image, label) in enumerate(zip(fog, files.labels.tolist(), strict=True)):
            place = tmp_path / "c" / "fog" / str(row.severity) / "ab"[label]
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image.permute(1, 2, 0).numpy()).save(place / f"{index}.png")
    stored = run_corruptions(
        run, corruptions=["fog"], severities=[1, 2], folder=tmp_path / "c", class_means=True
    )
    assert [row.error for row in stored] == [row.error for row in rows]
    assert all(row.class_means_error is not None for row in stored)


def _pixels(path: str) -> np.ndarray:
    return np.array(Image.open(path)).transpose(2, 0, 1).copy()


def _rows(scale: float, names: tuple[str, ...] = CORRUPTIONS) -> list[CorruptionRow]:
    rows = [CorruptionRow("clean", 0, 0.1, None, 9)]
    return rows + [
        CorruptionRow(name, severity, scale * (0.2 + 0.1 * severity), None, 9)
        for name in names
        for severity in SEVERITIES
    ]


def test_summary_by_hand() -> None:
    base = reference_of("base", _rows(1.0))
    assert base.clean_error == 0.1
    assert base.errors["snow"] == pytest.approx(0.5)
    summary = summarize_corruptions(_rows(0.5), base)
    assert summary.mce == pytest.approx(0.5)
    assert summary.relative_mce == pytest.approx((0.25 - 0.1) / (0.5 - 0.1))
    assert summary.mean_error == pytest.approx(0.25)
    assert summary.by_severity == pytest.approx({s: 0.1 + 0.05 * s for s in SEVERITIES})
    assert summary.unordered == {}
    assert summary.class_means_mean_error is None
    some = [row for row in _rows(0.5, ("fog", "spatter")) if row.severity in (0, 2)]
    partial = summarize_corruptions(some, base)
    assert partial.mce is None
    assert partial.relative_mce is None
    assert partial.errors == pytest.approx({"fog": 0.2, "spatter": 0.2})
    assert partial.mean_error == pytest.approx(0.2)
    assert summarize_corruptions([some[0]]).mean_error is None


def test_alexnet_is_the_reference_of_imagenet_only(run: Run) -> None:
    assert find_reference(run.class_names) is None
    imagenet = find_reference([f"n{index:08}" for index in range(1000)])
    assert imagenet is not None
    assert imagenet.name == "AlexNet"


@pytest.mark.bad_input
def test_refused(run: Run, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"a corruption must be one of .*; got 'rain'"):
        run_corruptions(run, corruptions=["rain"])
    with pytest.raises(ValueError, match="a severity must be a whole number from 1 to 5, got 6"):
        run_corruptions(run, severities=[6])
    with pytest.raises(DataError, match="must be a folder of corrupted images; it does not exist"):
        run_corruptions(run, folder=tmp_path / "none")
    gray = Run(**(run.__dict__ | {"channels": 1}))
    with pytest.raises(DataError, match=r"corruptions need color images; those of .* are gray"):
        run_corruptions(gray)
    assert not (folder / "benchmarks").exists() or not list((folder / "benchmarks").iterdir())
    check_baseline(run, run)
    renamed = Run(**(run.__dict__ | {"class_names": ("flower", "china")}))
    with pytest.raises(DataError, match="has others, or the same in another order"):
        check_baseline(run, renamed)
    fewer = Run(**(run.__dict__ | {"class_names": ("a", "b", "c")}))
    with pytest.raises(DataError, match="has 3 instead of 2"):
        check_baseline(run, fewer)
    others = Run(**(run.__dict__ | {"_datasets": {}}))
    data = run.dataset("test")
    half = data.test.subset(torch.arange(10))
    others._datasets["test"] = type(data)(**(data.__dict__ | {"test": half}))
    with pytest.raises(DataError, match=r"must have the test images of .*; .* has others"):
        check_baseline(run, others)
    others._datasets["test"] = type(data)(
        **(data.__dict__ | {"test": data.test.subset(torch.arange(0))})
    )
    with pytest.raises(DataError, match=r"corruptions need test images; .* has none"):
        run_corruptions(others)
