"""Datasets: contents, reproducible stratified splits, fingerprints, and messages for bad input."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from protosphere.data import datasets
from protosphere.data.datasets import (
    DataError,
    ImageDataset,
    ImageSet,
    Split,
    load_arrays,
    load_digits,
    load_synthetic,
    load_torchvision,
    split_validation,
)
from protosphere.data.splits import to_uint8


def splits(dataset: ImageDataset) -> tuple[ImageSet, ImageSet]:
    assert isinstance(dataset.train, ImageSet)
    assert isinstance(dataset.test, ImageSet)
    return dataset.train, dataset.test


def test_digits() -> None:
    dataset = load_digits()
    train, test = splits(dataset)
    assert (dataset.name, len(train), len(test)) == ("digits", 1198, 599)
    assert train.images.shape[1:] == (1, 8, 8)
    assert train.images.max() == 255
    assert train.class_names == tuple("0123456789")
    assert torch.bincount(test.labels).min() >= 58
    assert torch.equal(splits(load_digits())[0].images, train.images)


def test_image_sets_are_splits() -> None:
    split = load_digits().train
    assert isinstance(split, Split)
    assert (split.num_classes, split.channels, split.evaluation_crop) == (10, 1, "resize")


def test_split_validation_is_stratified_disjoint_and_reproducible() -> None:
    labels = torch.tensor([0] * 30 + [1] * 10 + [2] * 60)[torch.randperm(100)]
    images = torch.arange(100, dtype=torch.uint8)[:, None, None, None]
    split = ImageSet(images, labels, ("a", "b", "c"))
    train, validation = split_validation(split, 0.1, seed=3)
    assert torch.bincount(validation.labels).tolist() == [3, 1, 6]
    indices = [part.images.flatten().tolist() for part in (train, validation)]
    assert sorted(indices[0] + indices[1]) == list(range(100))
    assert all(part == sorted(part) for part in indices), "both keep the order"
    for part in (train, validation):
        assert torch.equal(part.labels, labels[part.images.flatten().long()])
    again = split_validation(split, 0.1, seed=3)[1]
    assert torch.equal(validation.images, again.images)
    assert not torch.equal(validation.images, split_validation(split, 0.1, seed=4)[1].images)


@pytest.mark.parametrize(
    "layout", ["bytes", "floats", "grayscale", "channels last", "channels first"]
)
def test_arrays(layout: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (10, 3, 5, 6), dtype=np.uint8)
    layouts: dict[str, np.ndarray] = {
        "bytes": images,
        "floats": images / 255,
        "grayscale": images[:, 0],
        "channels last": np.moveaxis(images, 1, 3),
        "channels first": images,
    }
    stored = layouts[layout]
    labels = np.arange(10) % 2
    path = tmp_path / "images.npz"
    np.savez(path, x_train=stored, y_train=labels, x_test=stored[:4], y_test=labels[:4])
    dataset = load_arrays(path)
    train, test = splits(dataset)
    expected = images[:, :1] if layout == "grayscale" else images
    np.testing.assert_array_equal(train.images.numpy(), expected)
    assert train.labels.tolist() == labels.tolist()
    assert len(test) == 4
    assert train.class_names == ("class 0", "class 1")
    assert dataset.name == "images"
    names = np.array(["yes", "no"])
    np.savez(path, x_train=stored, y_train=labels, x_test=stored, y_test=labels, class_names=names)
    assert load_arrays(str(path)).test.class_names == ("yes", "no")


def test_floating_point_images_are_rounded_to_the_nearest_level() -> None:
    levels = np.array([0.0, 0.001, 0.003, 0.5, 0.999, 1.0], np.float32).reshape(6, 1, 1)
    assert to_uint8(levels, source="test").flatten().tolist() == [0, 0, 1, 128, 255, 255]


def test_cifar_as_torchvision_stores_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torchvision

    class Small(torchvision.datasets.CIFAR10):  # type: ignore[misc]
        def __init__(self, root: Path, train: bool, download: bool) -> None:
            level = 0 if train else 100
            self.data = np.full((20, 32, 32, 3), level, np.uint8) + np.arange(3, dtype=np.uint8)
            self.targets = [index % 10 for index in range(20)]
            self.classes = list("abcdefghij")

    monkeypatch.setattr(torchvision.datasets, "CIFAR10", Small)
    train, test = splits(load_torchvision("cifar10", root=tmp_path))
    assert train.images.shape == (20, 3, 32, 32)
    assert train.images[0, :, 0, 0].tolist() == [0, 1, 2]
    assert test.images[0, :, 0, 0].tolist() == [100, 101, 102]
    assert train.labels.tolist() == [index % 10 for index in range(20)]
    assert train.class_names == tuple("abcdefghij")


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "kmnist"])
def test_grayscale_sets_of_torchvision(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torchvision

    class Small:
        classes = ("zero", "one")

        def __init__(self, root: Path, train: bool, download: bool) -> None:
            self.data = torch.full((4, 28, 28), 7 if train else 9, dtype=torch.uint8)
            self.targets = torch.tensor([0, 1, 0, 1])

    monkeypatch.setattr(torchvision.datasets, datasets.TORCHVISION[name], Small)
    train, test = splits(load_torchvision(name, root=tmp_path))
    assert train.images.shape == (4, 1, 28, 28)
    assert (int(train.images.max()), int(test.images.max())) == (7, 9)
    assert test.class_names == ("zero", "one")


def test_every_torchvision_name_exists_there() -> None:
    import torchvision

    assert all(hasattr(torchvision.datasets, name) for name in datasets.TORCHVISION.values())


def synthetic(num_classes: int = 3, num_samples: int = 9, image_size: int = 4) -> ImageSet:
    dataset = load_synthetic(
        num_classes=num_classes, num_samples=num_samples, image_size=image_size
    )
    return splits(dataset)[0]


def test_synthetic_images_have_a_center_per_class() -> None:
    dataset = load_synthetic(num_classes=7, num_samples=700, image_size=6, channels=2, seed=3)
    train, test = splits(dataset)
    assert train.images.shape == (700, 2, 6, 6)
    assert torch.bincount(train.labels).tolist() == [100] * 7
    assert not torch.equal(train.images, test.images)
    again = load_synthetic(num_classes=7, num_samples=700, image_size=6, channels=2, seed=3)
    assert torch.equal(splits(again)[0].images, train.images)
    other = load_synthetic(num_classes=7, num_samples=700, image_size=6, channels=2, seed=4)
    assert not torch.equal(splits(other)[0].images, train.images)
    for label in range(7):
        means = [part.images[part.labels == label].float().mean(0) for part in (train, test)]
        assert (means[0] - means[1]).abs().max() < 25, "train and test share the centers"


def test_channel_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    split = synthetic(7, 50, 6)
    mean, std = split.channel_statistics()
    pixels = split.images.double() / 255
    assert mean == pytest.approx(pixels.mean((0, 2, 3)).tolist(), rel=1e-12)
    assert std == pytest.approx(pixels.std((0, 2, 3), correction=0).tolist(), rel=1e-9)
    assert split.channel_statistics().mean == mean
    constant = ImageSet(torch.full_like(split.images, 255), split.labels, split.class_names)
    assert min(constant.channel_statistics().std) > 0, "they are divided by"


def test_subsets_keep_images_and_labels_together() -> None:
    split = synthetic()
    part = split.subset(torch.tensor([5, 2]))
    assert torch.equal(part.images, split.images[[5, 2]])
    assert part.labels.tolist() == [2, 2]
    assert part.class_names == split.class_names


def test_fingerprints_see_changes() -> None:
    split = synthetic()
    assert split.fingerprint() == synthetic().fingerprint()
    changed, relabeled = (split.subset(torch.arange(9)) for _ in range(2))
    changed.images[3, 0, 0, 0] ^= 1
    relabeled.labels[2] = 0
    renamed = ImageSet(split.images, split.labels, ("a", "b", "c"))
    assert len({part.fingerprint() for part in (split, changed, relabeled, renamed)}) == 4


GOOD_ARRAYS: dict[str, Any] = {
    "x_train": np.zeros((4, 8, 8, 3), np.uint8),
    "y_train": np.array([0, 1, 0, 1]),
    "x_test": np.zeros((4, 8, 8, 3), np.uint8),
    "y_test": np.array([0, 1, 0, 1], np.uint64),
}


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x_train": np.zeros((4, 5), np.uint8)}, r"with 1 or 3 channels, got \(4, 5\)"),
        ({"x_train": np.zeros((0, 5, 5), np.uint8)}, "with 1 or 3 channels"),
        ({"x_train": np.zeros((4, 0, 8, 3), np.uint8)}, "with 1 or 3 channels"),
        ({"x_train": np.full((4, 5, 5), 2.0)}, "must be between 0 and 1, got 2 to 2"),
        ({"x_train": np.full((4, 5, 5), -0.1)}, "must be between 0 and 1, got -0.1 to -0.1"),
        ({"x_train": np.full((4, 5, 5), np.nan)}, "must be between 0 and 1, got nan"),
        (
            {"x_train": np.zeros((4, 5, 5), np.int32)},
            "must be uint8 or floats between 0 and 1, got int32",
        ),
        (
            {"x_test": np.zeros((4, 8, 8), np.uint8)},
            "must have the same number of channels, got 3 and 1",
        ),
        (
            {"y_train": np.arange(3)},
            r"one per image, of shape \(4,\); got int64 of shape \(3,\)",
        ),
        (
            {"y_train": np.zeros(4)},
            r"must be integers, one per image, of shape \(4,\); got float64 of shape \(4,\)",
        ),
        ({"y_train": np.array([0, 1, -1, 0])}, "must be between 0 and 1, got -1 to 1"),
        (
            {"y_train": np.array([0, 1, 0, 300_000_000_000])},
            "each class must have a training image; got label 300000000000 with 4 training",
        ),
        ({"class_names": np.array(["only"])}, "must be between 0 and 0, got 0 to 1"),
        ({"class_names": np.array(["a", "a"])}, "class_names of data.npz must be a one-dim"),
        ({"class_names": np.array("ab")}, r"array of distinct strings, got <U2 of shape \(\)"),
        ({"class_names": np.array([b"a", b"b"])}, "array of distinct strings, got |S1"),
    ],
)
def test_invalid_arrays_are_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    np.savez(path, **GOOD_ARRAYS)
    assert load_arrays(path).train.num_classes == 2
    np.savez(path, **(GOOD_ARRAYS | change))
    with pytest.raises(DataError, match=message):
        load_arrays(path)


@pytest.mark.bad_input
def test_unusable_array_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    with pytest.raises(DataError, match=r"must be an .npz file; it does not exist"):
        load_arrays(path)
    np.savez(path, x_train=GOOD_ARRAYS["x_train"])
    with pytest.raises(DataError, match="missing: y_train, x_test, y_test"):
        load_arrays(path)
    path.write_bytes(pickle.dumps({"x_train": 1}))
    with pytest.raises(DataError, match=r"must be an .npz file of plain arrays; it is damaged"):
        load_arrays(path)


@pytest.mark.bad_input
def test_missing_torchvision_datasets_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torchvision

    def no_network(*_: object, **__: object) -> None:
        raise OSError("no network")

    with pytest.raises(DataError, match=r"dataset must be one of mnist, .*; got 'cifar11'"):
        load_torchvision("cifar11")
    with pytest.raises(DataError, match=r"cifar100 must be in .*, or be downloaded"):
        load_torchvision("cifar100", root=tmp_path)
    monkeypatch.setattr(torchvision.datasets, "MNIST", no_network)
    with pytest.raises(DataError, match=r"mnist could not be downloaded to .*: no network"):
        load_torchvision("mnist", root=tmp_path, download=True)


@pytest.mark.bad_input
@pytest.mark.parametrize("fraction", [0, 1, 1.5, -0.1])
def test_invalid_validation_fractions_are_refused(fraction: float) -> None:
    message = f"fraction must be greater than 0 and less than 1, got {fraction}"
    with pytest.raises(DataError, match=message):
        split_validation(synthetic(), fraction)


@pytest.mark.bad_input
@pytest.mark.parametrize(("fraction", "sides"), [(0.1, (2, 0)), (0.9, (0, 2))])
def test_each_class_needs_images_in_both_splits(fraction: float, sides: tuple[int, int]) -> None:
    message = f"for training and for validation, got {sides[0]} and {sides[1]} for"
    with pytest.raises(DataError, match=message):
        split_validation(synthetic(5, 10, 2), fraction)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((1, 3, 2), "num_classes must be at least 2, got 1"),
        ((5, 3, 2), "num_samples must be at least num_classes, got 3 for 5 classes"),
        ((2, 3, 0), "image_size must be at least 1, got 0"),
    ],
)
def test_invalid_synthetic_sizes_are_refused(sizes: tuple[int, int, int], message: str) -> None:
    with pytest.raises(DataError, match=message):
        synthetic(*sizes)
