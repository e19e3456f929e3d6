"""Groups of classes: superclasses of CIFAR-100 and groups of a file."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from protosphere.data.class_groups import (
    CIFAR100_SUPERCLASSES,
    group_classes,
    read_class_groups,
    relabel,
)
from protosphere.data.datasets import load_digits
from protosphere.data.folder_memory import load_into_memory
from protosphere.data.folders import ImageFiles
from protosphere.data.splits import DataError, ImageSet

PARITY = {"odd": ["1", "3", "5", "7", "9"], "even": ["0", "2", "4", "6", "8"]}
# Superclass of each class of CIFAR-100 in alphabetical order, as the dataset's own files have it.
COARSE_OF_FINE = [
    4, 1, 14, 8, 0, 6, 7, 7, 18, 3, 3, 14, 9, 18, 7, 11, 3, 9, 7, 11, 6, 11, 5, 10, 7, 6, 13, 15,
    3, 15, 0, 11, 1, 10, 12, 14, 16, 9, 11, 5, 5, 19, 8, 8, 15, 13, 14, 17, 18, 10, 16, 4, 17, 4,
    2, 0, 17, 4, 18, 17, 10, 3, 2, 12, 12, 16, 12, 1, 9, 19, 2, 10, 0, 1, 16, 12, 9, 13, 15, 13,
    16, 19, 2, 4, 6, 19, 5, 5, 8, 19, 18, 1, 2, 15, 6, 0, 17, 8, 14, 13,
]  # fmt: skip


def _digits() -> ImageSet:
    digits = load_digits().train
    assert isinstance(digits, ImageSet)
    return digits


def test_superclasses_of_cifar100() -> None:
    names = sorted(name for members in CIFAR100_SUPERCLASSES.values() for name in members)
    assert len(set(names)) == 100
    assert {len(members) for members in CIFAR100_SUPERCLASSES.values()} == {5}
    images = torch.zeros(100, 1, 1, 1, dtype=torch.uint8)
    fine = ImageSet(images, torch.arange(100), tuple(names))
    coarse = group_classes(fine, CIFAR100_SUPERCLASSES)
    assert coarse.labels.tolist() == COARSE_OF_FINE
    assert coarse.class_names == tuple(CIFAR100_SUPERCLASSES)
    numbered = replace(fine, class_names=tuple(f"class {index}" for index in range(100)))
    assert group_classes(numbered, CIFAR100_SUPERCLASSES).labels.tolist() == COARSE_OF_FINE


def test_groups_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "groups.json"
    path.write_text(json.dumps(PARITY))
    digits = _digits()
    grouped = group_classes(digits, read_class_groups(path))
    assert grouped.class_names == ("odd", "even")
    for before, after in zip(digits.labels.tolist(), grouped.labels.tolist(), strict=True):
        assert after == 1 - before % 2
    assert torch.equal(grouped.images, digits.images)
    assert grouped.fingerprint() != digits.fingerprint()


def test_images_on_disk_and_decoded_ones_are_grouped(files: ImageFiles) -> None:
    groups = {"animal": ["cat"], "insect": ["ant", "bee"]}
    expected = [0 if "cat" in Path(path).parts else 1 for path in files.paths]
    on_disk = group_classes(files, groups)
    assert (on_disk.labels.tolist(), on_disk.paths) == (expected, files.paths)
    memory = load_into_memory(files, size=16, workers=0)
    grouped = group_classes(memory, groups)
    assert grouped.labels.tolist() == expected
    assert grouped.class_names == ("animal", "insect")
    assert grouped.fingerprint() == on_disk.fingerprint() != memory.fingerprint()


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ({"odd": PARITY["odd"], "even": ["0", "2"]}, "3 are in no group: 4, 6, 8"),
        (PARITY | {"more": ["10"]}, "1 are not classes of the data: 10"),
        (PARITY | {"more": ["3"]}, "each class once; 3 is in odd and in more"),
        (CIFAR100_SUPERCLASSES, "100 are not classes of the data: beaver, dolphin, otter, ..."),
    ],
)
def test_groups_that_do_not_match_are_refused(groups: dict[str, list[str]], message: str) -> None:
    with pytest.raises(DataError, match=message):
        group_classes(_digits(), groups)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "it is not JSON"),
        ("[1]", "it has another structure"),
        ('{"a": "b", "c": ["d"]}', "it has another structure"),
        ('{"a": [], "c": ["d"]}', "it has another structure"),
        ('{"a": ["b"]}', "must have at least 2 groups of classes, got 1"),
        ('{"a": ["b"], "a": ["c"]}', "it has the group 'a' twice"),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "groups.json"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        read_class_groups(path)


@pytest.mark.bad_input
def test_missing_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none.json does not exist$"):
        read_class_groups(tmp_path / "none.json")
    with pytest.raises(DataError, match=r"cannot be read \(Is a directory\)"):
        read_class_groups(tmp_path)


@pytest.mark.bad_input
def test_other_kinds_of_splits_are_refused() -> None:
    with pytest.raises(TypeError, match="labels of str cannot be replaced"):
        relabel("split", torch.zeros(1))  # type: ignore[type-var]
