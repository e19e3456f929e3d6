"""Small sets of real images in the layout that their authors and torchvision use."""

import json
from pathlib import Path

import numpy as np
from PIL import Image
from scipy.io import savemat
from sklearn.datasets import load_digits

_DIGITS = load_digits()


def digit_image(index: int, size: tuple[int, int] = (20, 16)) -> Image.Image:
    """A digit of scikit-learn as a color image of a size."""
    pixels = (_DIGITS.images[index] * (255 / 16)).astype(np.uint8)
    return Image.fromarray(pixels).convert("RGB").resize(size)


def _save(path: Path, index: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    digit_image(index).save(path)


def write_food101(root: Path) -> None:
    """Two training and one test image of two classes."""
    splits = {
        "train": {"waffles": ["waffles/1", "waffles/2"], "pizza": ["pizza/1", "pizza/2"]},
        "test": {"pizza": ["pizza/3"], "waffles": ["waffles/3"]},
    }
    folder = root / "food-101"
    (folder / "meta").mkdir(parents=True)
    for split, content in splits.items():
        (folder / "meta" / f"{split}.json").write_text(json.dumps(content))
        for names in content.values():
            for index, name in enumerate(names):
                _save(folder / "images" / f"{name}.jpg", index)


def write_dtd(root: Path) -> None:
    """One training, one validation and one test image of two classes."""
    folder = root / "dtd" / "dtd"
    (folder / "labels").mkdir(parents=True)
    for number, split in enumerate(("train", "val", "test")):
        names = [f"{name}/{name}_{number}.jpg" for name in ("striped", "banded")]
        (folder / "labels" / f"{split}1.txt").write_text("\n".join(names) + "\n")
        for index, name in enumerate(names):
            _save(folder / "images" / name, index)


def write_pets(root: Path) -> None:
    """Three training and two test images of two breeds."""
    folder = root / "oxford-iiit-pet"
    (folder / "annotations").mkdir(parents=True)
    for split, numbers in {"trainval": (1, 2, 3), "test": (4, 5)}.items():
        lines = []
        for label, breed in ((1, "Abyssinian"), (2, "american_bulldog")):
            for number in numbers:
                _save(folder / "images" / f"{breed}_{number}.jpg", number)
                lines.append(f"{breed}_{number} {label} 1 1")
        (folder / "annotations" / f"{split}.txt").write_text("\n".join(lines) + "\n")


def write_flowers102(root: Path) -> None:
    """Three training, two validation and two test images; the labels begin at 1."""
    folder = root / "flowers-102"
    for index in range(1, 8):
        _save(folder / "jpg" / f"image_{index:05d}.jpg", index)
    savemat(folder / "imagelabels.mat", {"labels": np.array([[1, 2, 102, 1, 2, 102, 1]])})
    splits = {"trnid": [[2, 1, 3]], "valid": [[6, 7]], "tstid": [[4, 5]]}
    savemat(folder / "setid.mat", {name: np.array(ids) for name, ids in splits.items()})


def write_cars(root: Path) -> None:
    """Two training images and one test image of each of two models."""
    folder = root / "stanford_cars"
    (folder / "devkit").mkdir(parents=True)
    names = np.array(["Acura TL 2012", "Audi A5 2012"], dtype=object)
    savemat(folder / "devkit" / "cars_meta.mat", {"class_names": names})
    files = {"train": folder / "devkit" / "cars_train_annos.mat"}
    files["test"] = folder / "cars_test_annos_withlabels.mat"
    for split, labels in {"train": (1, 2, 2, 1), "test": (2, 1)}.items():
        rows = []
        for number, label in enumerate(labels):
            _save(folder / f"cars_{split}" / f"{number}.jpg", number)
            rows.append((label, f"{number}.jpg"))
        annotations = np.array(rows, dtype=[("class", object), ("fname", object)])
        savemat(files[split], {"annotations": annotations})


def write_voc2007(root: Path, splits: dict[str, list[list[tuple[str, int]]]]) -> None:
    """Write images with objects.

    Args:
        root: Folder of ``VOCdevkit``.
        splits: For ``train``, ``val`` and ``test``, the objects of each image: class, and 1 if it
            is marked as difficult.
    """
    folder = root / "VOCdevkit" / "VOC2007"
    for name in ("ImageSets/Main", "JPEGImages", "Annotations"):
        (folder / name).mkdir(parents=True)
    numbers: dict[str, list[str]] = {}
    for split, images in splits.items():
        for objects in images:
            count = sum(map(len, numbers.values()))
            number = f"{count + 1:06d}"
            numbers.setdefault(split, []).append(number)
            _save(folder / "JPEGImages" / f"{number}.jpg", count)
            nodes = "".join(
                f"<object><name>{name}</name><pose>Left</pose><difficult>{difficult}</difficult>"
                "<part><name>head</name></part></object>"
                for name, difficult in objects
            )
            text = f"<annotation><filename>{number}.jpg</filename>{nodes}</annotation>"
            (folder / "Annotations" / f"{number}.xml").write_text(text)
    numbers["trainval"] = sorted(numbers["train"] + numbers["val"])
    for split, names in numbers.items():
        (folder / "ImageSets" / "Main" / f"{split}.txt").write_text("\n".join(names) + "\n")


def write_folder(root: Path, splits: dict[str, dict[str, int]]) -> None:
    """Write images of digits as SPLIT/CLASS/NUMBER.png, so many of each class."""
    for split, counts in splits.items():
        for name, count in counts.items():
            for number in range(count):
                _save(root / split / name / f"{number}.png", number)
