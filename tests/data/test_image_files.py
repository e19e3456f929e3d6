"""Images to classify: what is found in folders and archives, and what is reported."""

import logging
from pathlib import Path

import numpy as np
import pytest
import torch

from protosphere.data.datasets import DataError
from protosphere.data.image_files import find_images, load_images
from support.images import write_image

COLOR = np.arange(2 * 4 * 5 * 3, dtype=np.uint8).reshape(2, 4, 5, 3)


def test_files_are_kept_and_folders_are_searched(tmp_path: Path) -> None:
    names = ("b.PNG", "a.jpg", "sub/c.webp", "sub/d.npz")
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "sub/notes.txt").touch()
    (tmp_path / "sub/._c.webp").touch()
    (tmp_path / "folder.png").mkdir()
    found = find_images([tmp_path / "sub/notes.txt", tmp_path])
    assert found == [tmp_path / "sub/notes.txt", *sorted(tmp_path / name for name in names)]


def test_an_empty_folder_is_skipped_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.png").touch()
    with caplog.at_level(logging.WARNING):
        assert find_images([tmp_path / "empty", tmp_path / "a.png"]) == [tmp_path / "a.png"]
    assert caplog.messages == [f"{tmp_path / 'empty'} has no images and is skipped"]


@pytest.mark.bad_input
def test_missing_images_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere must be a file or a folder; it does not exist"):
        find_images([tmp_path / "nowhere"])
    with pytest.raises(DataError, match="must have images in it; it has none"):
        find_images([tmp_path])
    with pytest.raises(DataError, match="the list of paths must have images in it"):
        find_images([])


def test_images_come_in_order_and_problems_in_their_place(tmp_path: Path) -> None:
    files = [tmp_path / f"{index}.png" for index in range(5)]
    for index, file in enumerate(files):
        write_image(file, seed=index)
    files[2].write_text("not an image")
    loaded = list(load_images(iter(files), channels=3, threads=1))
    assert [image.name for image in loaded] == [str(file) for file in files]
    assert [image.problem is None for image in loaded] == [True, True, False, True, True]
    assert loaded[2].image is None
    assert loaded[2].problem == (
        f"{files[2]} must be an image file; it cannot be read (damaged or in another format)"
    )
    assert loaded[4].image is not None
    assert loaded[4].image.shape[0] == 3
    (gray,) = load_images(files[:1], channels=1)
    assert gray.image is not None
    assert gray.image.shape[0] == 1


def test_all_image_arrays_of_an_archive_are_read(tmp_path: Path) -> None:
    path = tmp_path / "images.npz"
    np.savez(path, many=COLOR, one=COLOR[0], gray=COLOR[..., 0], labels=np.arange(2))
    loaded = list(load_images([path], channels=3))
    assert [image.name.removeprefix(f"{path}:") for image in loaded] == [
        "many[0]",
        "many[1]",
        "one[0]",
        "gray[0]",
        "gray[1]",
    ]
    expected = torch.from_numpy(COLOR).movedim(3, 1)
    assert loaded[1].image is not None
    assert torch.equal(loaded[1].image, expected[1])
    assert loaded[4].image is not None
    assert torch.equal(loaded[4].image, expected[1, :1].expand(3, -1, -1))
    (first, *_) = load_images([path], channels=1)
    assert first.image is not None
    weights = torch.tensor([0.299, 0.587, 0.114])[:, None, None]
    assert torch.equal(first.image[0], (expected[0] * weights).sum(0).round().to(torch.uint8))


@pytest.mark.bad_input
def test_unusable_archives_are_reported(tmp_path: Path) -> None:
    paths = [tmp_path / f"{name}.npz" for name in ("damaged", "empty", "numbers")]
    paths[0].write_bytes(b"not an archive")
    np.savez(paths[1], labels=np.arange(3))
    np.savez(paths[2], images=np.zeros((2, 4, 4), np.int64))
    problems = [image.problem for image in load_images(paths, channels=3)]
    assert problems == [
        f"{paths[0]} must be an .npz file of plain arrays; it is damaged or in another format",
        f"{paths[1]} must have arrays of images; it has none",
        "images of images in numbers.npz must be uint8 or floats between 0 and 1, got int64",
    ]
