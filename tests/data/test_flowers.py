"""Flowers-102 from the files of its authors."""

from pathlib import Path

import numpy as np
import pytest
import torchvision
from PIL import Image
from scipy.io import savemat

from protosphere.data.flowers import load_flowers102
from protosphere.data.folders import ImageFiles
from protosphere.data.splits import DataError


def test_training_and_validation_images_are_the_training_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files are those of the authors, with seven images instead of 8,189."""
    folder = tmp_path / "flowers-102"
    (folder / "jpg").mkdir(parents=True)
    for index in range(1, 8):
        pixels = np.full((5, 4, 3), 30 * index, np.uint8)
        Image.fromarray(pixels).save(folder / "jpg" / f"image_{index:05d}.jpg")
    savemat(folder / "imagelabels.mat", {"labels": np.array([[1, 2, 102, 1, 2, 102, 3]])})
    splits = {"trnid": [[2, 1]], "valid": [[6, 7]], "tstid": [[3, 4, 5]]}
    savemat(folder / "setid.mat", {name: np.array(ids) for name, ids in splits.items()})
    monkeypatch.setattr(torchvision.datasets.Flowers102, "_check_integrity", lambda _: True)
    dataset = load_flowers102(tmp_path)
    assert isinstance(dataset.train, ImageFiles)
    assert dataset.train.labels.tolist() == [1, 0, 101, 2]
    assert [Path(path).name for path in dataset.train.paths] == [
        "image_00002.jpg",
        "image_00001.jpg",
        "image_00006.jpg",
        "image_00007.jpg",
    ]
    assert dataset.test.labels.tolist() == [101, 0, 1]
    assert dataset.train.num_classes == 102


@pytest.mark.bad_input
def test_a_missing_dataset_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"flowers102 must be in .*--download"):
        load_flowers102(tmp_path)
