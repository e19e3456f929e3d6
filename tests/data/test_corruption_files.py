"""Corrupted images on disk: arrays as of CIFAR-10-C, and folders as of ImageNet-C."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from protosphere.data.corruption_files import open_corruption_files
from protosphere.data.decoding import center_crop, decode_image
from protosphere.data.evaluation_transform import EvaluationTransform
from protosphere.data.folder_memory import load_into_memory
from protosphere.data.folders import ImageFiles
from protosphere.data.image_batches import pixel_batches
from protosphere.data.splits import DataError, ImageSet
from support.images import write_image

CLASSES = ("cat", "dog", "owl")
LABELS = np.array([2, 0, 1, 1])


def write_arrays(folder: Path, *names: str, size: int = 8) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    folder.mkdir(exist_ok=True)
    np.save(folder / "labels.npy", np.tile(LABELS, 5))
    arrays = {name: rng.integers(0, 256, (20, size, size, 3), dtype=np.uint8) for name in names}
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    return arrays


def write_folders(folder: Path, *names: str, size: int = 16) -> None:
    for name in names:
        for severity in (1, 2):
            for number, class_name in enumerate(CLASSES):
                place = folder / name / str(severity) / class_name
                place.mkdir(parents=True)
                for index in range(number + 1):
                    level = 40 * severity + 10 * number + index
                    image = Image.new("RGB", (size, size), (level, 0, 255))
                    image.save(place / f"ILSVRC2012_val_{index}.JPEG")


def test_arrays_hold_the_severities_one_after_the_other(tmp_path: Path) -> None:
    arrays = write_arrays(tmp_path, "fog", "snow")
    source = open_corruption_files(tmp_path, class_names=CLASSES, corruptions=["fog", "snow"])
    for severity in (1, 5):
        images = source.images("snow", severity)
        assert isinstance(images, ImageSet)
        assert images.class_names == CLASSES
        assert images.labels.tolist() == LABELS.tolist()
        for index in range(4):
            pixels = arrays["snow"][4 * (severity - 1) + index]
            assert np.array_equal(images.images[index].numpy(), pixels.transpose(2, 0, 1))


@pytest.mark.parametrize("group", ["", "weather"])
def test_folders_of_corruption_severity_and_class(tmp_path: Path, group: str) -> None:
    write_folders(tmp_path / group, "fog", "frost")
    (tmp_path / group / "fog" / "2" / "cat" / "._hidden.JPEG").write_bytes(b"")
    # A run may know fewer classes, in another order.
    source = open_corruption_files(
        tmp_path, class_names=("owl", "cat"), corruptions=["fog"], severities=(2,)
    )
    images = source.images("fog", 2)
    assert isinstance(images, ImageFiles)
    assert images.labels.tolist() == [0, 0, 0, 1]
    transform = EvaluationTransform(16, (0.5,) * 3, (0.5,) * 3, crop="center")
    batches = list(
        pixel_batches(images, transform, device="cpu", batch_size=3, workers=0, crop_fraction=1.0)
    )
    assert [len(batch) for batch in batches] == [3, 1]
    for pixels, path in zip(torch.cat(batches), images.paths, strict=True):
        decoded = decode_image(path)
        assert isinstance(decoded, torch.Tensor)
        assert torch.equal(pixels, decoded)


def test_files_of_other_sizes_are_resized(tmp_path: Path) -> None:
    write_folders(tmp_path, "fog", size=24)
    source = open_corruption_files(
        tmp_path, class_names=CLASSES, corruptions=["fog"], severities=(1,)
    )
    transform = EvaluationTransform(16, (0.5,) * 3, (0.5,) * 3, crop="center")
    (batch,) = pixel_batches(source.images("fog", 1), transform, device="cpu", crop_fraction=1.0)
    assert batch.shape == (6, 3, 16, 16)


def test_clean_files_are_cropped_as_in_evaluation(tmp_path: Path) -> None:
    paths = [tmp_path / f"{index}.png" for index in range(3)]
    for index, path in enumerate(paths):
        write_image(path, seed=index)
    files = ImageFiles(tuple(map(str, paths)), torch.tensor([0, 0, 1]), ("a", "b"), str(tmp_path))
    transform = EvaluationTransform(14, (0.5,) * 3, (0.5,) * 3, crop="center")
    decoded = [decode_image(path) for path in files.paths]
    expected = torch.stack([center_crop(image, 14) for image in decoded])  # type: ignore[arg-type]
    memory = load_into_memory(files, size=14, workers=0)
    for images in (files, memory):
        batches = pixel_batches(images, transform, device="cpu", batch_size=2, workers=0)
        assert torch.equal(torch.cat(list(batches)), expected)
    arrays = ImageSet(expected, files.labels, files.class_names)
    whole = EvaluationTransform(7, (0.5,) * 3, (0.5,) * 3)
    assert torch.equal(torch.cat(list(pixel_batches(arrays, whole, device="cpu"))), expected)


def _refusal(folder: Path, corruptions: tuple[str, ...] = ("fog",), classes=CLASSES) -> str:
    with pytest.raises(DataError) as error:
        open_corruption_files(
            folder, class_names=classes, corruptions=corruptions, severities=(1, 2)
        ).images(corruptions[0], 1)
    return str(error.value).replace(str(folder), "FOLDER")


@pytest.mark.bad_input
def test_refused_arrays(tmp_path: Path) -> None:
    write_arrays(tmp_path, "fog")
    assert _refusal(tmp_path, ("fog", "snow", "frost")) == (
        "FOLDER must have an array for each corruption; missing: snow.npy, frost.npy"
    )
    assert _refusal(tmp_path, classes=("a",) * 10) == (
        "FOLDER/labels.npy must have the 10 classes of the run; it has 3"
    )
    np.save(tmp_path / "fog.npy", np.zeros((4, 8, 8, 3), np.uint8))
    assert _refusal(tmp_path) == (
        "FOLDER/fog.npy must have shape (20, height, width, 3), one image per label; got "
        "(4, 8, 8, 3)"
    )
    (tmp_path / "fog.npy").write_bytes(b"no array")
    assert _refusal(tmp_path).startswith("FOLDER/fog.npy must be an array in NumPy's format")
    np.save(tmp_path / "labels.npy", np.arange(20))
    assert "must hold the labels of the test images 5 times" in _refusal(tmp_path)
    np.save(tmp_path / "labels.npy", np.zeros((2, 2)))
    assert "must hold one class index per image; got float64" in _refusal(tmp_path)


@pytest.mark.bad_input
def test_refused_folders(tmp_path: Path) -> None:
    assert _refusal(tmp_path / "none") == (
        "FOLDER must be a folder of corrupted images; it does not exist"
    )
    assert _refusal(tmp_path).endswith("it has neither fog nor labels.npy")
    write_folders(tmp_path, "fog")
    assert _refusal(tmp_path, ("fog", "snow")) == (
        "FOLDER must have a folder for each corruption; missing: snow"
    )
    assert _refusal(tmp_path, classes=("ant", "bee", "cow", "cat", "eel")) == (
        "FOLDER/fog/1 must have a folder for each class of the run; missing: ant, bee, cow, ... "
        "(4 in all)"
    )
    for path in (tmp_path / "fog" / "1" / "dog").iterdir():
        path.unlink()
    assert _refusal(tmp_path).startswith(
        "FOLDER/fog/1 must have images of each class; dog has none"
    )
    (tmp_path / "fog" / "2").rename(tmp_path / "fog" / "3")
    assert _refusal(tmp_path) == "FOLDER/fog must have a folder for each severity; missing: 2"
