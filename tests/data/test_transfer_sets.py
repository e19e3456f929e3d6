"""Sets to transfer to: official splits and labels, folders, arrays, and what is refused."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision

from protosphere.data.datasets import load_digits
from protosphere.data.folders import ImageFiles
from protosphere.data.splits import DataError
from protosphere.data.transfer_sets import (
    TransferSet,
    load_transfer_set,
    parse_target,
    stratified_mask,
    transfer_set,
)
from support import transfer_trees as trees


def _names(target: TransferSet, split: str) -> list[str]:
    images = getattr(target, split).images
    assert isinstance(images, ImageFiles)
    return [Path(path).stem for path in images.paths]


def test_food101(tmp_path: Path) -> None:
    trees.write_food101(tmp_path)
    target = load_transfer_set("food101", root=tmp_path)
    assert (target.name, target.metric) == ("food101", "top1")
    assert target.class_names == ("pizza", "waffles")
    assert target.train.targets.tolist() == [1, 1, 0, 0]
    assert target.test.targets.tolist() == [0, 1]
    for label in (0, 1):
        assert target.is_validation[target.train.targets == label].sum() == 1


def test_dtd_has_its_first_split_and_official_validation_images(tmp_path: Path) -> None:
    trees.write_dtd(tmp_path)
    target = load_transfer_set("dtd", root=tmp_path)
    assert target.class_names == ("banded", "striped")
    assert _names(target, "train") == ["striped_0", "banded_0", "striped_1", "banded_1"]
    assert target.train.targets.tolist() == [1, 0, 1, 0]
    assert target.is_validation.tolist() == [False, False, True, True]
    assert _names(target, "test") == ["striped_2", "banded_2"]
    assert target.metric == "top1"


def test_pets(tmp_path: Path) -> None:
    trees.write_pets(tmp_path)
    target = load_transfer_set("pets", root=tmp_path)
    assert target.class_names == ("Abyssinian", "American Bulldog")
    assert target.train.targets.tolist() == [0, 0, 0, 1, 1, 1]
    assert _names(target, "test")[-1] == "american_bulldog_5"
    assert target.is_validation.sum() == 2
    assert target.metric == "mean_per_class"


def test_flowers102(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trees.write_flowers102(tmp_path)
    monkeypatch.setattr(torchvision.datasets.Flowers102, "_check_integrity", lambda _: True)
    target = load_transfer_set("flowers102", root=tmp_path)
    assert target.num_classes == 102
    assert target.train.targets.tolist() == [1, 0, 101, 101, 0]
    assert target.is_validation.tolist() == [False, False, False, True, True]
    assert target.test.targets.tolist() == [0, 1]
    assert target.metric == "mean_per_class"


def test_cars_as_its_authors_packed_them(tmp_path: Path) -> None:
    trees.write_cars(tmp_path)
    target = load_transfer_set("cars", root=tmp_path)
    assert target.class_names == ("Acura TL 2012", "Audi A5 2012")
    assert target.train.targets.tolist() == [0, 1, 1, 0]
    assert target.test.targets.tolist() == [1, 0]
    assert target.metric == "top1"


def test_voc2007_has_several_labels_and_difficult_objects_do_not_count(tmp_path: Path) -> None:
    splits = {
        "train": [[("cat", 0), ("cat", 0), ("sofa", 1)], [("dog", 1)]],
        "val": [[("dog", 0), ("dog", 1)]],
        "test": [[("person", 1), ("person", 0)], []],
    }
    trees.write_voc2007(tmp_path, splits)
    target = load_transfer_set("voc2007", root=tmp_path)
    cat, dog, person, sofa = (
        target.class_names.index(name) for name in ("cat", "dog", "person", "sofa")
    )
    train = target.train.targets
    assert train.shape == (3, 20)
    assert train[0].nonzero().flatten().tolist() == [cat, sofa]
    assert train[0, [cat, sofa]].tolist() == [1, -1]
    assert train[:, dog].tolist() == [0, -1, 1]
    assert target.is_validation.tolist() == [False, False, True]
    assert target.test.targets[:, person].tolist() == [1, 0]
    assert int(target.test.targets.abs().sum()) == 1
    assert target.metric == "map"


def test_a_fingerprint_changes_with_the_labels_of_voc2007(tmp_path: Path) -> None:
    image = [[("cat", 0)]]
    prints = []
    for name in ("cat", "dog"):
        folder = tmp_path / name
        trees.write_voc2007(folder, {"train": [[(name, 0)]], "val": image, "test": image})
        prints.append(load_transfer_set("voc2007", root=folder).train.fingerprint)
    assert prints[0] != prints[1]


def test_a_folder_with_train_and_test(tmp_path: Path) -> None:
    trees.write_folder(tmp_path / "pots", {"train": {"a": 5, "b": 10}, "val": {"a": 1, "b": 1}})
    target = load_transfer_set(str(tmp_path / "pots"))
    assert (target.name, target.metric, target.class_names) == ("pots", "top1", ("a", "b"))
    counts = torch.bincount(target.train.targets[target.is_validation])
    assert counts.tolist() == [1, 2]
    assert len(target.test) == 2


def test_a_folder_with_val_and_test_chooses_on_val(tmp_path: Path) -> None:
    splits = {"train": {"a": 2, "b": 2}, "val": {"a": 1, "b": 2}, "test": {"a": 1, "b": 1}}
    trees.write_folder(tmp_path, splits)
    target = load_transfer_set(f"pets={tmp_path}")
    assert (target.name, target.metric) == ("pets", "mean_per_class")
    assert target.train.targets.tolist() == [0, 0, 1, 1, 0, 1, 1]
    assert target.is_validation.tolist() == [False] * 4 + [True] * 3
    assert all("/test/" in path for path in target.test.images.paths)


def test_arrays(tmp_path: Path) -> None:
    images = np.zeros((8, 8, 8), np.uint8)
    labels = np.array([0, 1] * 4)
    path = tmp_path / "numbers.npz"
    np.savez(path, x_train=images, y_train=labels, x_test=images[:2], y_test=labels[:2])
    target = load_transfer_set(str(path))
    assert (target.name, len(target.train), len(target.test)) == ("numbers", 8, 2)
    assert target.train.images.channels == 1


def test_the_validation_part_is_seeded_and_has_a_fifth_of_each_class() -> None:
    digits = load_digits()
    one, same, other = (
        transfer_set("digits", "top1", digits.train, digits.test, seed=seed).is_validation
        for seed in (1, 1, 2)
    )
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    labels = digits.train.labels
    for label in range(10):
        members = labels == label
        assert one[members].sum() == round(0.2 * int(members.sum()))


def test_a_class_with_one_sample_is_not_held_out() -> None:
    mask = stratified_mask(torch.tensor([3, 0, 0, 3, 7]), fraction=0.9, seed=0)
    assert not mask[4]
    assert mask.sum() == 2


@pytest.mark.bad_input
def test_an_unknown_name_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(DataError, match=r"got 'cifar1O' \(did you mean cifar10\?\)"):
        parse_target("cifar1O")
    with pytest.raises(DataError, match=r"did you mean fine\?"):
        parse_target("fien", others=["fine"])


@pytest.mark.bad_input
@pytest.mark.parametrize("text", ["there/is/nothing", "nothing.npz", "cars=nothing"])
def test_a_missing_path_is_named(text: str) -> None:
    with pytest.raises(DataError, match=r"nothing(\.npz)?.* does not exist"):
        parse_target(text)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    "name", ["food101", "cifar10", "dtd", "pets", "flowers102", "voc2007", "fashion-mnist"]
)
def test_missing_data_say_that_they_can_be_downloaded(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"{name} must be in {tmp_path}, or be .*--download"):
        load_transfer_set(name, root=tmp_path)


@pytest.mark.bad_input
def test_a_failed_download_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no network")

    monkeypatch.setattr(torchvision.datasets.DTD, "_download", refuse)
    with pytest.raises(DataError, match=f"dtd could not be downloaded to {tmp_path}: no network"):
        load_transfer_set("dtd", root=tmp_path, download=True)


@pytest.mark.bad_input
def test_cars_cannot_be_downloaded(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"--to cars=PATH: the official download .* is gone"):
        load_transfer_set("cars", root=tmp_path, download=True)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("splits", "message"),
    [
        ({"train": {"a": 1, "b": 1}, "test": {"a": 1}}, "missing: b"),
        ({"train": {"a": 1}, "test": {"a": 1, "b": 1}}, "unknown: b"),
        ({"train": {"a": 1, "b": 1}}, "must have the folders train and test .* only train"),
        ({"a": {"": 1}, "b": {"": 1}}, "train and test .* class folders without splits"),
    ],
)
def test_folders_whose_classes_do_not_match(
    tmp_path: Path, splits: dict[str, dict[str, int]], message: str
) -> None:
    trees.write_folder(tmp_path, splits)
    with pytest.raises(DataError, match=message):
        load_transfer_set(str(tmp_path))


@pytest.mark.bad_input
def test_a_class_without_training_images_is_named(tmp_path: Path) -> None:
    images = np.zeros((4, 8, 8), np.uint8)
    labels = np.array([0, 0, 1, 1])
    path = tmp_path / "numbers.npz"
    np.savez(path, x_train=images, y_train=labels, x_test=images, y_test=labels + 1)
    with pytest.raises(DataError, match=r"test images of numbers must have training .* class 2"):
        load_transfer_set(str(path))


@pytest.mark.bad_input
def test_damaged_annotations_and_voc2007_in_another_folder_are_named(tmp_path: Path) -> None:
    image = [[("cat", 0)]]
    trees.write_voc2007(tmp_path, {"train": image, "val": image, "test": [[("whale", 0)]]})
    with pytest.raises(DataError, match=r"000003.xml must have objects of the 20 .* 'whale'"):
        load_transfer_set("voc2007", root=tmp_path)
    (tmp_path / "VOCdevkit/VOC2007/Annotations/000001.xml").write_text("<annotation>")
    with pytest.raises(DataError, match=r"000001.xml must be an annotation file"):
        load_transfer_set("voc2007", root=tmp_path)
    with pytest.raises(DataError, match="VOCdevkit of --root"):
        load_transfer_set(f"voc2007={tmp_path}")
