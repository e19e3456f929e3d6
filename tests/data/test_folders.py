"""Image folders: which files are found, fingerprints that see changes, and error messages."""

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from protosphere.data import file_digests
from protosphere.data.datasets import ChannelStatistics, DataError, Split, split_validation
from protosphere.data.folders import ImageFiles, load_folder
from support.images import write_image


def short_names(paths: tuple[str, ...]) -> list[str]:
    return ["/".join(Path(path).parts[-2:]) for path in paths]


def test_the_folders_of_train_are_the_classes(image_folder: Path) -> None:
    train, val = load_folder(image_folder)
    assert train.class_names == val.class_names == ("ant", "bee", "cat")
    assert (train.num_classes, train.channels, len(train), len(val)) == (3, 3, 11, 4)
    assert torch.bincount(train.labels).tolist() == [4, 5, 2]
    assert short_names(val.paths) == ["ant/0.JPEG", "bee/0.JPEG", "bee/1.png", "cat/0.JPEG"]
    assert val.labels.tolist() == [0, 1, 1, 2]
    assert load_folder(str(image_folder))[0].paths == train.paths


def test_files_are_a_split_with_imagenet_statistics(files: ImageFiles) -> None:
    assert isinstance(files, Split)
    assert files.evaluation_crop == "center"
    mean, std = files.channel_statistics()
    assert mean == (0.485, 0.456, 0.406)
    assert std == (0.229, 0.224, 0.225)
    assert isinstance(files.channel_statistics(), ChannelStatistics)


def test_val_is_preferred_to_test(image_folder: Path) -> None:
    write_image(image_folder / "test" / "ant" / "0.png")
    assert len(load_folder(image_folder)[1]) == 4
    (image_folder / "val").rename(image_folder.parent / "elsewhere")
    for name in ("bee", "cat"):
        write_image(image_folder / "test" / name / "0.png")
    assert short_names(load_folder(image_folder)[1].paths) == [
        "ant/0.png",
        "bee/0.png",
        "cat/0.png",
    ]


def test_hidden_files_are_not_images(image_folder: Path) -> None:
    before = load_folder(image_folder)[0].paths
    (image_folder / "train/ant/._0.png").write_bytes(b"\0\5\26\7")
    assert load_folder(image_folder)[0].paths == before


def test_the_test_split_can_be_optional(image_folder: Path) -> None:
    shutil.rmtree(image_folder / "val")
    train, test = load_folder(image_folder, require_test=False)
    assert (len(train), len(test), test.num_classes) == (11, 0, 3)


def test_class_folders_without_splits_are_training_images(image_folder: Path) -> None:
    flat = image_folder / "train"
    train, test = load_folder(flat, require_test=False)
    split, _ = load_folder(image_folder)
    assert (train.paths, train.class_names, len(test)) == (split.paths, split.class_names, 0)
    assert train.labels.tolist() == split.labels.tolist()
    assert error_of(flat) == (
        f"{flat} must have a folder val or test; it has class folders without splits "
        "(data.validation_fraction=0.1 evaluates on a tenth of the training images instead)"
    )


def test_a_class_can_be_called_train(tmp_path: Path) -> None:
    for name in ("bus", "train"):
        write_image(tmp_path / name / "0.png")
    assert load_folder(tmp_path, require_test=False)[0].class_names == ("bus", "train")
    write_image(tmp_path / "train" / "ant" / "0.png")
    assert load_folder(tmp_path, require_test=False)[0].class_names == ("ant",)


def test_a_list_selects_classes_and_sets_their_order(image_folder: Path, tmp_path: Path) -> None:
    classes = tmp_path / "classes.txt"
    classes.write_text(
        "\ufeff# of a hundred\ncat  a feline, 3\r\n\n  ant\n  # bee\n", encoding="utf-8"
    )
    train, val = load_folder(image_folder, classes=classes)
    assert train.class_names == ("cat", "ant")
    for split in (train, val):
        assert [Path(path).parent.name for path in split.paths] == [
            train.class_names[label] for label in split.labels
        ]
    assert torch.bincount(train.labels).tolist() == [2, 4]
    assert torch.bincount(val.labels).tolist() == [1, 1]


def test_names_with_spaces_and_hidden_folders(image_folder: Path, tmp_path: Path) -> None:
    for split in ("train", "val"):
        write_image(image_folder / split / "golden retriever/1.png")
        (image_folder / split / ".ipynb_checkpoints").mkdir()
    (tmp_path / "list.txt").write_text("golden retriever\n")
    train, _ = load_folder(image_folder, classes=tmp_path / "list.txt")
    assert train.class_names == ("golden retriever",)
    assert ".ipynb_checkpoints" not in load_folder(image_folder)[0].class_names


def test_split_validation_divides_files(files: ImageFiles) -> None:
    train, validation = split_validation(files, 0.5, seed=1)
    assert sorted([*train.paths, *validation.paths]) == sorted(files.paths)
    assert torch.bincount(validation.labels).tolist() == [2, 2, 1]
    for split in (train, validation):
        assert [Path(path).parent.name for path in split.paths] == [
            files.class_names[label] for label in split.labels
        ]


def test_the_fingerprint_is_stable_and_depends_on_order_labels_and_names(
    files: ImageFiles, image_folder: Path
) -> None:
    reference = files.fingerprint()
    assert load_folder(image_folder)[0].fingerprint() == reference
    labels = files.labels.clone()
    labels[0] = 1
    others = [
        files.subset(torch.arange(len(files)).flip(0)),
        files.subset(torch.arange(len(files) - 1)),
        ImageFiles(files.paths, labels, files.class_names, files.root),
        ImageFiles(files.paths, files.labels, ("ant", "bee", "dog"), files.root),
    ]
    assert len({reference, *(other.fingerprint() for other in others)}) == 5


@pytest.mark.parametrize("max_hashed_bytes", [1 << 30, 0], ids=["contents", "blocks"])
def test_the_fingerprint_sees_changed_pixels_under_the_same_names(
    max_hashed_bytes: int, image_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_digests, "_MAX_HASHED_BYTES", max_hashed_bytes)
    before = load_folder(image_folder)[0].fingerprint()
    path = image_folder / "train/bee/1.png"
    with Image.open(path) as image:
        pixels = np.array(image)
    pixels[0, 0] ^= 1
    Image.fromarray(pixels).save(path)
    assert load_folder(image_folder)[0].fingerprint() != before


@pytest.mark.parametrize("position", [0, 50_000, 99_999], ids=["start", "middle", "end"])
def test_large_folders_are_fingerprinted_by_size_and_blocks(
    position: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "image.jpg"
    files = ImageFiles((str(path),), torch.tensor([0]), ("ant",), str(tmp_path))

    def fingerprint(content: bytearray) -> str:
        path.write_bytes(content)
        return files.fingerprint()

    content = bytearray(100_000)
    whole = fingerprint(content)
    monkeypatch.setattr(file_digests, "_MAX_HASHED_BYTES", 99_999)
    before = fingerprint(content)
    assert before != whole
    assert fingerprint(bytearray(100_001)) != before
    content[position] = 1
    assert fingerprint(content) != before
    unread = bytearray(100_000)
    unread[25_000] = 1
    assert fingerprint(unread) == before, "documented: only blocks are read"
    monkeypatch.setattr(file_digests, "_MAX_HASHED_BYTES", 100_000)
    assert fingerprint(unread) not in (whole, before), "at the limit contents are hashed"


def test_many_files_are_hashed_in_their_order(
    files: ImageFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = files.fingerprint()
    monkeypatch.setattr(file_digests, "_FILES_PER_TASK", 3)
    assert files.fingerprint() == reference


def test_train_and_validation_of_equal_names_and_contents_have_different_fingerprints(
    image_folder: Path,
) -> None:
    shutil.rmtree(image_folder / "val")
    shutil.copytree(image_folder / "train", image_folder / "val")
    train, val = load_folder(image_folder)
    assert short_names(train.paths) == short_names(val.paths)
    assert train.fingerprint() != val.fingerprint()


def test_the_fingerprint_does_not_depend_on_where_the_folder_is(
    image_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = [split.fingerprint() for split in load_folder(image_folder)]
    (tmp_path / "a/b").mkdir(parents=True)
    moved = image_folder.rename(tmp_path / "a/b/train")
    monkeypatch.chdir(moved)
    for root in (moved, f"{moved}/", ".", "../train", Path("../../b/train")):
        assert [split.fingerprint() for split in load_folder(root)] == reference


@pytest.mark.skipif(sys.platform != "linux", reason="other systems may refuse such names")
def test_file_names_that_are_not_utf8(image_folder: Path) -> None:
    before = load_folder(image_folder)[0].fingerprint()
    source = image_folder / "train/ant/0.JPEG"
    for name in (b"\xff.png", b"\xfe.png"):
        shutil.copy(os.fsencode(source), os.fsencode(source.parent) + b"/" + name)
    train, _ = load_folder(image_folder)
    assert len(train) == 13
    fingerprint = train.fingerprint()
    assert fingerprint != before
    directory = os.fsencode(source.parent)
    os.rename(directory + b"/\xfe.png", directory + b"/\xfd.png")  # noqa: PTH104
    assert load_folder(image_folder)[0].fingerprint() != fingerprint


@pytest.mark.bad_input
def test_the_fingerprint_names_a_missing_file(files: ImageFiles) -> None:
    path = Path(files.paths[3])
    path.unlink()
    with pytest.raises(DataError) as caught:
        files.fingerprint()
    expected = "must be an image file; it cannot be read (No such file or directory)"
    assert str(caught.value) == f"{path} {expected}"


def error_of(path: Path, **options: Any) -> str:
    with pytest.raises(DataError) as caught:
        load_folder(path, **options)
    return str(caught.value)


@pytest.mark.bad_input
def test_missing_and_inconsistent_folders(tmp_path: Path) -> None:
    root = tmp_path / "images"
    train, val = root / "train", root / "val"
    assert error_of(root).startswith(f"{root} must be a folder of images; it does not exist")
    root.touch()
    assert error_of(root).startswith(f"{root} must be a folder of images; it is a file")
    root.unlink()
    root.mkdir()
    no_train = (
        f"{root} must be the folder that contains train, or one folder per class; "
        f"{train} does not exist"
    )
    assert error_of(root) == no_train
    val.mkdir()
    assert error_of(root) == no_train
    val.rmdir()
    train.mkdir()
    assert error_of(root).startswith(f"{root} must have a folder val or test; it has neither (")
    (val / "ant").mkdir(parents=True)
    assert error_of(root) == f"{train} must have a folder for each class; it has none"
    for name in ("ant", "bee", "cat", "dog", "eel"):
        write_image(train / name / "0.png")
    assert error_of(root) == (
        f"{val} must have a folder for each of the 5 classes; "
        "missing: bee, cat, dog, ... (4 in all)"
    )
    for name in ("ant", "bee", "cat", "dog", "eel", "fox"):
        write_image(val / name / "0.png")
    assert error_of(root) == f"{val} must have only the classes of train; unknown: fox"
    for name in ("gnu", "fox"):
        (train / name).mkdir()
        write_image(val / name / "0.png")
    assert error_of(root) == (
        f"{train} must have images of each class; classes without images: fox, gnu"
    )


@pytest.mark.bad_input
def test_missing_and_invalid_lists_of_classes(image_folder: Path, tmp_path: Path) -> None:
    classes = tmp_path / "classes.txt"
    unreadable = f"{classes} must be a text file of class names; it cannot be read"
    assert error_of(image_folder, classes=classes) == f"{unreadable} (No such file or directory)"
    train = image_folder / "train"
    for content, message in (
        (b"\xff\xfe\x00", f"{unreadable} (damaged or in another format)"),
        (b"# none\n\n", f"{classes} must have one class name per line; it has none"),
        (b"bee\nant\nbee again\n", f"{classes} must list each class once; repeated: bee"),
        (
            b"yak\nant\n../val/bee\nemu\nowl\n",
            f"{train} must have a folder for each of the 5 classes; "
            "missing: yak, ../val/bee, emu, ... (4 in all)",
        ),
    ):
        classes.write_bytes(content)
        assert error_of(image_folder, classes=classes) == message


@pytest.mark.bad_input
def test_a_missing_torchvision_is_named(
    image_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torchvision.datasets.folder", None)
    assert error_of(image_folder) == (
        'image folders need torchvision, which is not installed: pip install "protosphere[train]"'
    )
