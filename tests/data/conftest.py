"""A small folder of images."""

from itertools import count
from pathlib import Path

import pytest

from protosphere.data.folders import ImageFiles, load_folder
from support.images import write_image

COUNTS = {"train": {"ant": 4, "bee": 5, "cat": 2}, "val": {"ant": 1, "bee": 2, "cat": 1}}


@pytest.fixture
def image_folder(tmp_path: Path) -> Path:
    root = tmp_path / "images"
    seeds = count()
    for split, counts in COUNTS.items():
        for name, number in counts.items():
            for index in range(number):
                suffix = ("JPEG", "png", "jpg")[index % 3]
                write_image(root / split / name / f"{index}.{suffix}", seed=next(seeds))
    (root / "train" / "ant" / "notes.txt").write_text("not an image")
    return root


@pytest.fixture
def files(image_folder: Path) -> ImageFiles:
    return load_folder(image_folder)[0]
