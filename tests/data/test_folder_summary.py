"""The summary of a folder: counts, sizes, and files that cannot be read, found without decoding."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from protosphere.data import folder_summary
from protosphere.data.datasets import DataError
from protosphere.data.folder_summary import summarize_folder
from support.images import write_drawings, write_image


def write(path: Path, width: int, height: int, mode: str = "RGB") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
    Image.fromarray(pixels).convert(mode).save(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for index, (width, height) in enumerate([(30, 20), (40, 60), (50, 50), (100, 10)]):
        write(tmp_path / "ant" / f"{index}.jpg", width, height)
    write(tmp_path / "bee" / "0.png", 70, 40)
    return tmp_path


def test_counts_and_sizes(folder: Path) -> None:
    fractions: list[float] = []
    summary = summarize_folder(folder, progress=fractions.append)
    assert (summary.class_names, summary.counts) == (("ant", "bee"), (4, 1))
    assert (summary.num_classes, summary.num_train, summary.num_test) == (2, 5, 0)
    assert (summary.imbalance, summary.median_count) == (4.0, 2.5)
    assert summary.sizes == ((30, 20), (40, 60), (50, 50), (100, 10), (70, 40))
    assert summary.median_size == (50, 40)
    assert (summary.shorter_side, summary.shorter_side_range) == (40, (10, 50))
    assert (summary.test_folder, summary.problems, summary.num_grayscale) == (None, (), 0)
    assert fractions == [1.0]


def test_both_splits_are_read(image_folder: Path) -> None:
    summary = summarize_folder(image_folder)
    assert (summary.counts, summary.num_test, summary.test_folder) == ((4, 5, 2), 4, "val")
    assert len(summary.sizes) == 15
    (image_folder / "val").rename(image_folder / "test")
    assert summarize_folder(str(image_folder)).test_folder == "test"


def test_drawings_are_what_they_are_said_to_be(tmp_path: Path) -> None:
    write_drawings(tmp_path, classes=4, per_class=3, size=40, seed=1)
    summary = summarize_folder(tmp_path)
    assert summary.class_names == ("bar", "circle", "cross", "ring")
    assert summary.counts == (3, 3, 3, 3)
    assert len(set(summary.sizes)) > 6
    assert all(40 <= side <= 48 for size in summary.sizes for side in size)


@pytest.mark.parametrize("mode", ["L", "1", "LA", "I;16"])
def test_images_without_color_are_counted(mode: str, folder: Path) -> None:
    if mode == "I;16":
        Image.fromarray(np.zeros((9, 9), np.uint16)).save(folder / "bee/1.png")
    else:
        write(folder / "bee/1.png", 20, 20, mode)
    assert summarize_folder(folder).num_grayscale == 1


@pytest.mark.parametrize("kind", ["truncated", "text", "empty"])
@pytest.mark.parametrize("name", ["ant/2.jpg", "bee/0.png"])
def test_unreadable_files_are_named(kind: str, name: str, folder: Path) -> None:
    write(folder / "bee/9.png", 20, 20)
    path = folder / name
    content = path.read_bytes()
    path.write_bytes({"truncated": content[:-90], "text": b"not an image", "empty": b""}[kind])
    summary = summarize_folder(folder)
    expected = "must be an image file; it cannot be read (damaged or in another format)"
    assert summary.problems == (f"{path} {expected}",)
    assert len(summary.sizes) == 5


def test_bytes_after_the_end_of_an_image_are_no_damage(folder: Path) -> None:
    path = folder / "ant/0.jpg"
    path.write_bytes(path.read_bytes() + bytes(1000))
    summary = summarize_folder(folder)
    assert not summary.problems
    assert summary.sizes[0] == (30, 20)


def test_complete_images_are_not_decoded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder / "bee/1.webp", 33, 21)
    monkeypatch.setattr(folder_summary, "decode_image", None)
    assert summarize_folder(folder).sizes[-1] == (33, 21)


def test_many_files_are_read_in_order(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = summarize_folder(folder)
    monkeypatch.setattr(folder_summary, "_FILES_PER_TASK", 2)
    fractions: list[float] = []
    assert summarize_folder(folder, progress=fractions.append) == expected
    assert fractions == [0.4, 0.8, 1.0]


def error_of(path: Path) -> str:
    with pytest.raises(DataError) as caught:
        summarize_folder(path)
    return str(caught.value)


@pytest.mark.bad_input
def test_what_is_no_folder_of_classes_is_refused(tmp_path: Path) -> None:
    assert error_of(tmp_path / "nowhere").startswith(f"{tmp_path / 'nowhere'} must be a folder")
    write_image(tmp_path / "0.png")
    assert "or one folder per class" in error_of(tmp_path)
    write_image(tmp_path / "ant/0.png")
    assert error_of(tmp_path) == f"{tmp_path} must have at least two class folders; it has one: ant"
    (tmp_path / "bee").mkdir()
    assert error_of(tmp_path) == (
        f"{tmp_path} must have images of each class; classes without images: bee"
    )
    for name in ("ant", "bee"):
        (tmp_path / name / "0.png").write_bytes(b"nothing")
    message = error_of(tmp_path)
    assert message.startswith(f"{tmp_path} must have images that can be read; {tmp_path}/ant/0.png")
