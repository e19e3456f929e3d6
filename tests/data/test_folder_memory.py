"""Folders in memory: equal to streaming in evaluation, and of the same files."""

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms import v2

from protosphere.data import folder_memory
from protosphere.data.augmentation import (
    Augmentation,
    AugmentationPolicy,
    PaddedCrop,
    RandomResizedCrop,
)
from protosphere.data.datasets import DataError, Split
from protosphere.data.decoding import center_crop, central_square, decode_image
from protosphere.data.folder_loader import FolderLoader
from protosphere.data.folder_memory import (
    MemoryImages,
    fits_in_memory,
    load_into_memory,
    memory_limit,
    stored_side,
)
from protosphere.data.folders import IMAGENET_STATISTICS, ImageFiles
from protosphere.data.loaders import Loader, MemoryLoader

STD = torch.tensor(IMAGENET_STATISTICS.std)[:, None, None]


def augmentation(policy: AugmentationPolicy) -> Augmentation:
    return Augmentation(policy, *IMAGENET_STATISTICS)


def load(files: ImageFiles, size: int = 16) -> MemoryImages:
    return load_into_memory(files, size=size, workers=0)


def square_files(folder: Path, sides: list[int]) -> ImageFiles:
    rng = np.random.default_rng(0)
    paths = [folder / f"{index}.png" for index in range(len(sides))]
    for path, side in zip(paths, sides, strict=True):
        Image.fromarray(rng.integers(0, 256, (side, side, 3), dtype=np.uint8)).save(path)
    labels = torch.arange(len(sides)) % 2
    return ImageFiles(tuple(map(str, paths)), labels, ("a", "b"), str(folder))


@pytest.mark.parametrize("shape", [(37, 20), (20, 37), (41, 41), (23, 25), (19, 18), (5, 301)])
@pytest.mark.parametrize("size", [15, 16, 17, 28])
def test_the_center_of_the_square_is_the_center_of_the_image(
    shape: tuple[int, int], size: int
) -> None:
    image = torch.randint(0, 256, (3, *shape), dtype=torch.uint8)
    square = central_square(image, size)
    side = round(size / 0.875)
    assert square.shape == (3, side, side)
    assert torch.equal(center_crop(square, size), center_crop(image, size))


def test_the_square_is_as_wide_as_the_shorter_side() -> None:
    image = torch.randint(0, 256, (3, 32, 60), dtype=torch.uint8)
    assert torch.equal(central_square(image, 28), image[:, :, 14:46])


@pytest.mark.parametrize("size", [15, 16, 24])
def test_evaluation_equals_that_of_the_folder_loader(size: int, files: ImageFiles) -> None:
    policy = AugmentationPolicy(size)
    streamed = FolderLoader(files, augmentation(policy), device="cpu", workers=0)
    memory = MemoryLoader(load(files, size), augmentation(policy))
    for (images, labels), (same, same_labels) in zip(
        memory.evaluation_batches(4), streamed.evaluation_batches(4), strict=True
    ):
        assert torch.equal(labels, same_labels)
        assert torch.equal(images, same)


def test_small_squares_of_one_size_are_kept_unchanged(tmp_path: Path) -> None:
    files = square_files(tmp_path, [18] * 5)
    for size in (16, 20):  # The side that is kept for 16 is 18, for 20 it would be 23.
        split = load(files, size)
        pixels = [decode_image(path) for path in files.paths]
        assert torch.equal(split.images, torch.stack([p for p in pixels if isinstance(p, Tensor)]))
        policy = AugmentationPolicy(size)
        ((images, _),) = MemoryLoader(split, augmentation(policy)).evaluation_batches(5)
        loader = FolderLoader(files, augmentation(policy), device="cpu", workers=0)
        ((streamed, _),) = loader.evaluation_batches(5)
        levels = (images - streamed) * STD * 255
        assert float(levels.abs().max()) <= 1 + 1e-4, "equal up to rounding to bytes"


@pytest.mark.parametrize("sides", [[18, 18, 17], [19, 19, 19]])
def test_other_squares_are_resized(sides: list[int], tmp_path: Path) -> None:
    files = square_files(tmp_path, sides)
    split = load(files)
    assert split.images.shape == (3, 3, 18, 18)
    for path, stored in zip(files.paths, split.images, strict=True):
        image = decode_image(path)
        assert isinstance(image, Tensor)
        assert torch.equal(stored, v2.functional.resize(image, [18], antialias=True))


def test_it_is_the_split_of_its_files(files: ImageFiles) -> None:
    split = load(files)
    assert isinstance(split, Split)
    for name in ("class_names", "num_classes", "channels", "evaluation_crop"):
        assert getattr(split, name) == getattr(files, name)
    assert split.fingerprint() == files.fingerprint()
    assert split.channel_statistics() == files.channel_statistics()
    assert torch.equal(split.labels, files.labels)
    index = torch.tensor([7, 2, 3])
    subset = split.subset(index)
    assert torch.equal(subset.images, load(files.subset(index)).images)
    assert subset.fingerprint() == files.subset(index).fingerprint()
    assert subset.labels.tolist() == files.labels[index].tolist()
    assert split.to("meta").images.device == split.to("meta").labels.device == torch.device("meta")


def test_it_trains_from_crops_of_the_square(files: ImageFiles) -> None:
    policy = AugmentationPolicy(16, RandomResizedCrop(), num_views=2)
    loader = MemoryLoader(load(files), augmentation(policy), sampler="balanced")
    assert isinstance(loader, Loader)
    (index,) = next(loader.batches(4, seed=0, epoch=0))
    torch.manual_seed(3)
    images, labels = loader.prepare(index)
    torch.manual_seed(3)
    expected = augmentation(policy)(loader.split.images[torch.cat([index, index])])
    assert torch.equal(images, expected)
    assert torch.equal(labels, files.labels[index].repeat(2))


def test_a_policy_without_a_crop_trains_on_the_evaluation_crop(files: ImageFiles) -> None:
    policy = AugmentationPolicy(16, None, hflip=0.0)
    loader = MemoryLoader(load(files), augmentation(policy))
    images, _ = loader.prepare(torch.arange(11))
    evaluated, _ = next(loader.evaluation_batches(11))
    torch.testing.assert_close(images, evaluated)
    padded = AugmentationPolicy(16, PaddedCrop(padding=0), hflip=0.0)
    whole, _ = MemoryLoader(load(files), augmentation(padded)).prepare(torch.arange(11))
    assert not torch.allclose(whole, evaluated), "a padded crop is one of the whole square"


@pytest.mark.whole_program
def test_workers_do_not_change_the_images_and_progress_is_reported(
    files: ImageFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_memory, "_IMAGES_PER_TASK", 4)
    fractions: list[float] = []
    split = load_into_memory(files, size=16, workers=2, progress=fractions.append)
    assert torch.equal(split.images, load(files).images)
    assert fractions == [4 / 11, 8 / 11, 1.0]
    pickle.dumps(folder_memory._Squares(3, 16))


def test_the_global_generator_is_not_used(files: ImageFiles) -> None:
    before = torch.get_rng_state()
    load(files)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_split_may_be_empty(files: ImageFiles) -> None:
    split = load(files.subset(torch.empty(0, dtype=torch.long)))
    assert (len(split), split.num_classes, split.images.shape) == (0, 3, (0, 3, 18, 18))


def test_what_fits_is_counted_in_bytes() -> None:
    assert [stored_side(size) for size in (28, 32, 224)] == [32, 37, 256]
    number = 3 * 100 * 32 * 32
    assert fits_in_memory(100, 28, limit_bytes=number)
    assert not fits_in_memory(100, 28, limit_bytes=number - 1)
    assert not fits_in_memory(10**12, 28), "no machine has this much memory"
    assert fits_in_memory(1, 28)


def test_the_limit_is_a_quarter_of_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    for memory, limit in ((4000, 1000), (64 << 30, 16 << 30), (1 << 40, 16 << 30)):
        monkeypatch.setattr(folder_memory, "_main_memory", lambda value=memory: value)
        assert memory_limit() == limit


def test_a_container_limits_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    texts: dict[str, list[str]] = {}
    monkeypatch.setattr(folder_memory, "_lines", lambda path: texts.get(path, []))
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert folder_memory._main_memory() == memory
    for limit, expected in (("max", memory), ("4096", 4096)):
        texts["/sys/fs/cgroup/memory.max"] = [limit]
        assert folder_memory._main_memory() == expected


@pytest.mark.bad_input
def test_an_unreadable_image_is_named(files: ImageFiles) -> None:
    path = Path(files.paths[5])
    path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(DataError) as caught:
        load(files)
    expected = "must be an image file; it cannot be read (damaged or in another format)"
    assert str(caught.value) == f"{path} {expected}"
    with pytest.raises(DataError, match="size must be at least 1, got 0"):
        load(files, 0)


@pytest.mark.compiled
def test_prepare_compiles_without_graph_breaks(files: ImageFiles) -> None:
    loader = MemoryLoader(load(files), augmentation(AugmentationPolicy(16, None)))
    prepare = torch.compile(loader.prepare, fullgraph=True, backend="eager")
    images, _ = prepare(torch.arange(4))
    assert images.shape == (4, 3, 16, 16)
