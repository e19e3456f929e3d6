"""Sources of images: what comes out, splits that are fair and repeat, and sentences for what is wrong."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from protosphere.data import sources
from protosphere.data.datasets import DataError, ImageSet, hold_out, load, synthetic


def test_digits() -> None:
    digits = load("digits")
    assert (len(digits.train), len(digits.test)) == (1198, 599)
    assert digits.train.images.shape[1:] == (1, 8, 8)
    assert digits.train.images.max() == 255
    assert digits.train.class_names == tuple("0123456789")
    counts = torch.bincount(digits.test.labels)
    assert counts.min() >= 58
    assert torch.equal(load("digits").train.labels, digits.train.labels)


def test_hold_out_is_stratified_disjoint_and_repeats() -> None:
    labels = torch.tensor([0] * 30 + [1] * 10 + [2] * 60)[torch.randperm(100)]
    images = torch.arange(100, dtype=torch.uint8)[:, None, None, None]
    whole = ImageSet(images, labels, ("a", "b", "c"))
    rest, held = hold_out(whole, 0.1, seed=3)
    assert torch.bincount(held.labels).tolist() == [3, 1, 6]
    assert sorted([*rest.images.flatten().tolist(), *held.images.flatten().tolist()]) == list(
        range(100)
    )
    again = hold_out(whole, 0.1, seed=3)[1]
    assert torch.equal(held.images, again.images)
    assert not torch.equal(held.images, hold_out(whole, 0.1, seed=4)[1].images)


@pytest.mark.parametrize("layout", ["bytes", "floats", "gray", "channels last", "channels first"])
def test_arrays(layout: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (10, 3, 5, 6), dtype=np.uint8)
    stored = {
        "bytes": images,
        "floats": images / 255,
        "gray": images[:, 0],
        "channels last": np.moveaxis(images, 1, 3),
        "channels first": images,
    }[layout]
    labels = np.arange(10) % 2
    np.savez(
        tmp_path / "some.npz", x_train=stored, y_train=labels, x_test=stored[:4], y_test=labels[:4]
    )
    found = load("arrays", path=tmp_path / "some.npz")
    expected = images[:, :1] if layout == "gray" else images
    np.testing.assert_array_equal(found.train.images.numpy(), expected)
    assert len(found.test) == 4
    assert found.train.class_names == ("class 0", "class 1")


def test_cifar_as_torchvision_stores_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torchvision

    class Small(torchvision.datasets.CIFAR10):
        def __init__(self, root: Path, train: bool, download: bool) -> None:
            self.data = np.zeros((20, 32, 32, 3), np.uint8) + np.arange(3, dtype=np.uint8)
            self.targets = [index % 10 for index in range(20)]
            self.classes = list("abcdefghij")

    monkeypatch.setattr(torchvision.datasets, "CIFAR10", Small)
    found = load("cifar10", root=tmp_path)
    assert found.train.images.shape == (20, 3, 32, 32)
    assert found.train.images[0, :, 0, 0].tolist() == [0, 1, 2]


def test_synthetic_and_its_statistics() -> None:
    source = synthetic(7, samples=50, resolution=6)
    assert torch.bincount(source.train.labels).min() == 7
    assert not torch.equal(source.train.images, source.test.images)
    mean, std = source.train.channel_statistics()
    floats = source.train.images.double() / 255
    assert mean == pytest.approx(floats.mean((0, 2, 3)).tolist(), rel=1e-12)
    assert std == pytest.approx(floats.std((0, 2, 3), correction=0).tolist(), rel=1e-9)


@pytest.mark.bad_input
def test_what_is_missing_or_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = {"x_train": np.zeros((4, 5, 5), np.uint8), "y_train": np.arange(4) % 2}
    good |= {"x_test": good["x_train"], "y_test": good["y_train"]}
    for change, message in (
        (
            {"x_train": np.zeros((4, 5), np.uint8)},
            r"with 1 or 3 channels; got \(4, 5\)",
        ),
        (
            {"x_train": np.zeros((0, 5, 5), np.uint8), "y_train": np.zeros(0, int)},
            "with 1 or 3 channels",
        ),
        ({"x_train": np.full((4, 5, 5), 2.0)}, "must lie between 0 and 1; they do not"),
        ({"x_train": np.full((4, 5, 5), np.nan)}, "must lie between 0 and 1; they do not"),
        (
            {"x_train": np.zeros((4, 5, 5), np.int32)},
            "must be bytes or floats between 0 and 1; got int32",
        ),
        ({"y_train": np.arange(3)}, r"must be one whole number per image, \(4,\); got \(3,\)"),
        ({"y_train": np.array([0, 1, -1, 0])}, r"must lie in 0..1; got -1..1"),
        ({"class_names": np.array(["only"])}, r"must lie in 0..0; got 0..1"),
    ):
        np.savez(tmp_path / "some.npz", **(good | change))
        with pytest.raises(DataError, match=message):
            load("arrays", path=tmp_path / "some.npz")
    np.savez(tmp_path / "some.npz", x_train=good["x_train"])
    with pytest.raises(DataError, match="it has no y_train, x_test, y_test"):
        load("arrays", path=tmp_path / "some.npz")
    (tmp_path / "some.npz").write_bytes(pickle.dumps({"x_train": 1}))
    with pytest.raises(DataError, match=r"must be an .npz of plain arrays; it is damaged or none"):
        load("arrays", path=tmp_path / "some.npz")
    for name, options, message in (
        ("arrays", {"path": tmp_path / "none.npz"}, "must be a file; there is none"),
        ("arrays", {}, "no path was given"),
        ("cifar11", {}, "a data set must be one of digits, mnist, .* got 'cifar11'"),
        ("cifar100", {"root": tmp_path}, "cifar100 must be in .*, or be downloaded"),
    ):
        with pytest.raises(DataError, match=message):
            load(name, **options)

    def no_network(*_: object, **__: object) -> None:
        raise OSError("no network")

    import torchvision

    monkeypatch.setattr(torchvision.datasets, "MNIST", no_network)
    with pytest.raises(
        DataError, match=r"mnist must be downloaded to .*; that failed \(no network\)"
    ):
        load("mnist", root=tmp_path, download=True)
    whole = synthetic(5, samples=10, resolution=2).train
    with pytest.raises(
        DataError, match="class 0 must have samples on both sides; it has 2 and 0 are held out"
    ):
        hold_out(whole, 0.1)
    with pytest.raises(DataError, match=r"must lie between 0 and 1; got 1.5"):
        hold_out(whole, 1.5)
    with pytest.raises(DataError, match="two classes and a sample of each"):
        synthetic(5, samples=3, resolution=2)


def test_every_named_source_is_one_that_torchvision_has() -> None:
    import torchvision

    assert all(hasattr(torchvision.datasets, kind) for kind in sources.TORCHVISION.values())


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x_test": np.zeros((4, 8, 8), np.uint8)}, "must have as many channels; got 3 and 1"),
        (
            {"y_train": np.zeros(4)},
            r"must be one whole number per image, \(4,\); got \(4,\) of float64",
        ),
        (
            {"y_train": np.array([0, 1, 0, 300_000_000_000])},
            "must number the classes, each with a training image; got 3000",
        ),
        ({"x_train": np.zeros((4, 0, 8, 3), np.uint8)}, "must be"),
        (
            {"class_names": np.array(["a", "a"])},
            "class_names of data.npz must be a list of different texts",
        ),
        ({"class_names": np.array("ab")}, "must be a list of different texts"),
        ({"class_names": np.array([b"a", b"b"])}, "must be a list of different texts"),
    ],
)
def test_arrays_that_do_not_fit(change: dict, message: str, tmp_path: Path) -> None:
    images, labels = np.zeros((4, 8, 8, 3), np.uint8), np.array([0, 1, 0, 1])
    content = {
        "x_train": images,
        "y_train": labels,
        "x_test": images,
        "y_test": labels.astype(np.uint64),
    }
    np.savez(tmp_path / "data.npz", **content)
    assert load("arrays", path=tmp_path / "data.npz").train.num_classes == 2
    np.savez(tmp_path / "data.npz", **(content | change))
    with pytest.raises(DataError, match=message):
        load("arrays", path=tmp_path / "data.npz")


def test_fingerprints_tell_sets_apart() -> None:
    one, again = (synthetic(3, samples=9, resolution=4).train for _ in range(2))
    assert one.fingerprint() == again.fingerprint()
    changed = one.chosen(torch.arange(9))
    changed.images[3, 0, 0, 0] ^= 1
    relabeled = one.chosen(torch.arange(9))
    relabeled.labels[2] = 0
    assert len({part.fingerprint() for part in (one, changed, relabeled)}) == 3
