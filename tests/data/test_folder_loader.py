"""The folder loader: crops that only seed, epoch and index determine, workers, and messages."""

import gc
import multiprocessing
import os
import pickle
import sys
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms import v2

from protosphere.data.augmentation import (
    Augmentation,
    AugmentationPolicy,
    PaddedCrop,
    RandomResizedCrop,
)
from protosphere.data.datasets import DataError
from protosphere.data.folder_loader import FolderLoader, _CroppedImages
from protosphere.data.folders import IMAGENET_STATISTICS, ImageFiles
from protosphere.data.loaders import Loader
from protosphere.data.sampling import epoch_order, sample_seed

MEAN, STD = IMAGENET_STATISTICS
POLICY = AugmentationPolicy(16)


def augmentation(policy: AugmentationPolicy = POLICY) -> Augmentation:
    return Augmentation(policy, MEAN, STD)


def folder_loader(
    files: ImageFiles, policy: AugmentationPolicy = POLICY, *, workers: int = 0
) -> FolderLoader:
    return FolderLoader(files, augmentation(policy), device="cpu", workers=workers)


def read(path: str) -> Tensor:
    with Image.open(path) as image:
        pixels: Tensor = v2.functional.pil_to_tensor(image.convert("RGB"))
    return pixels


def denormalize(images: Tensor) -> Tensor:
    mean, std = (torch.tensor(values)[:, None, None] for values in (MEAN, STD))
    return ((images * std + mean) * 255).round().to(torch.uint8)


def assert_same_batches(first: list[tuple[Tensor, ...]], second: list[tuple[Tensor, ...]]) -> None:
    assert first
    for tensors, others in zip(first, second, strict=True):
        assert len(tensors) == 2
        assert all(map(torch.equal, tensors, others))


def test_it_is_a_loader(files: ImageFiles) -> None:
    loader = folder_loader(files)
    assert isinstance(loader, Loader)
    assert (len(loader), loader.device) == (11, torch.device("cpu"))


@pytest.mark.parametrize("ratio", [(3 / 4, 4 / 3), (0.3, 0.4)])
def test_crops_are_torchvisions_in_the_order_of_the_epoch(
    ratio: tuple[float, float], files: ImageFiles
) -> None:
    loader = folder_loader(files, AugmentationPolicy(16, RandomResizedCrop(ratio=ratio)))
    crop = v2.RandomResizedCrop(16, scale=(0.2, 1.0), ratio=ratio, antialias=True)
    order = epoch_order(len(files), seed=3, epoch=2)
    expected = []
    for index in order.tolist():
        torch.manual_seed(sample_seed(3, 2, index))
        expected.append(crop(read(files.paths[index]))[None])
    ((images, labels),) = loader.batches(len(files), seed=3, epoch=2)
    assert images.dtype == torch.uint8
    assert torch.equal(images, torch.stack(expected))
    assert torch.equal(labels, files.labels[order])


@pytest.mark.parametrize(("crop", "side"), [(PaddedCrop(padding=2), 16), (None, 18)])
def test_other_policies_crop_the_center(
    crop: PaddedCrop | None, side: int, files: ImageFiles
) -> None:
    policy = AugmentationPolicy(16, crop)
    loader = folder_loader(files, policy)
    center = v2.Compose([v2.Resize(side, antialias=True), v2.CenterCrop(16)])
    order = epoch_order(11, seed=0, epoch=0).tolist()
    expected = torch.stack([center(read(files.paths[index])) for index in order])
    ((images, labels),) = loader.batches(11, seed=0, epoch=0)
    assert torch.equal(images[:, 0], expected)
    torch.manual_seed(5)
    prepared, same_labels = loader.prepare(images, labels)
    torch.manual_seed(5)
    assert torch.equal(prepared, augmentation(policy)(images[:, 0]))
    assert torch.equal(same_labels, labels)


def test_the_device_does_not_crop_again(files: ImageFiles) -> None:
    loader = folder_loader(files, AugmentationPolicy(16, hflip=1.0))
    images, labels = next(loader.batches(4, seed=0, epoch=0))
    prepared, _ = loader.prepare(images, labels)
    assert torch.equal(denormalize(prepared), images[:, 0].flip(3))


def test_each_view_has_its_own_crop_and_views_follow_each_other(files: ImageFiles) -> None:
    loader = folder_loader(files, AugmentationPolicy(16, hflip=0.0, num_views=2))
    images, labels = next(loader.batches(4, seed=0, epoch=0))
    assert images.shape == (4, 2, 3, 16, 16)
    assert not torch.equal(images[:, 0], images[:, 1])
    prepared, repeated = loader.prepare(images, labels)
    assert torch.equal(denormalize(prepared), torch.cat([images[:, 0], images[:, 1]]))
    assert torch.equal(repeated, torch.cat([labels, labels]))
    clean, _ = next(loader.evaluation_batches(4))
    assert clean.shape == (4, 3, 16, 16)


def test_a_process_reads_its_part_of_each_batch(files: ImageFiles) -> None:
    whole = list(folder_loader(files).batches(4, seed=0, epoch=1))
    parts = [
        list(folder_loader(files).batches(4, seed=0, epoch=1, shard=(rank, 3))) for rank in range(3)
    ]
    assert [len(labels) for (_, labels), *_ in parts] == [2, 1, 1]
    joined: list[tuple[torch.Tensor, ...]] = [
        (torch.cat([images for images, _ in step]), torch.cat([labels for _, labels in step]))
        for step in zip(*parts, strict=True)
    ]
    assert_same_batches(whole, joined)


def test_processes_read_evaluation_batches_in_turn(files: ImageFiles) -> None:
    whole: list[tuple[Tensor, ...]] = list(folder_loader(files).evaluation_batches(4))
    assert len(whole) == 3
    own: list[tuple[Tensor, ...]]
    for count in (2, 3):
        for rank in range(count):
            own = list(folder_loader(files).evaluation_batches(4, shard=(rank, count)))
            assert_same_batches(own, whole[rank::count])
    assert not list(folder_loader(files).evaluation_batches(4, shard=(3, 4)))


def test_seed_and_epoch_determine_the_batches(files: ImageFiles) -> None:
    loader = folder_loader(files)
    reference = list(loader.batches(3, seed=0, epoch=1))
    assert_same_batches(reference, list(loader.batches(3, seed=0, epoch=1)))
    assert_same_batches(reference[2:], list(loader.batches(3, seed=0, epoch=1, first=2)))
    assert not list(loader.batches(3, seed=0, epoch=1, first=3))
    for seed, epoch in ((0, 2), (1, 1), (-1, 1)):
        other = next(loader.batches(3, seed=seed, epoch=epoch))
        assert not torch.equal(reference[0][0], other[0])
    abandoned = loader.batches(3, seed=0, epoch=5)
    next(abandoned)
    assert_same_batches(reference, list(loader.batches(3, seed=0, epoch=1)))


def test_full_batches_have_every_sample_once(files: ImageFiles) -> None:
    even = files.subset(torch.arange(9))
    loader = folder_loader(even, AugmentationPolicy(16, None))
    batches = list(loader.batches(3, seed=0, epoch=0))
    images = torch.cat([images for images, _ in batches])
    expected = next(loader.batches(9, seed=1, epoch=0))[0][:, 0]
    assert (images == expected).flatten(2).all(2).sum(0).tolist() == [1] * 9
    assert torch.bincount(torch.cat([labels for _, labels in batches])).tolist() == [4, 5]
    assert [len(labels) for _, labels in loader.batches(4, seed=0, epoch=0)] == [4, 4]
    assert [len(labels) for _, labels in loader.batches(100, seed=0, epoch=0)] == [9]


def test_evaluation_is_in_order_and_crops_the_center(files: ImageFiles) -> None:
    batches = list(folder_loader(files).evaluation_batches(4))
    assert [len(labels) for _, labels in batches] == [4, 4, 3]
    assert torch.equal(torch.cat([labels for _, labels in batches]), files.labels)
    center = v2.Compose([v2.Resize(round(16 / 0.875), antialias=True), v2.CenterCrop(16)])
    images = torch.cat([images for images, _ in batches])
    assert torch.equal(
        denormalize(images), torch.stack([center(read(path)) for path in files.paths])
    )
    transform = augmentation().evaluation_transform(files.evaluation_crop)
    prepared = transform.prepare([read(path) for path in files.paths], "cpu")
    torch.testing.assert_close(images, prepared)


def test_evaluation_does_not_disturb_a_running_epoch(files: ImageFiles) -> None:
    loader = folder_loader(files)
    expected = list(loader.batches(3, seed=0, epoch=0))
    running = loader.batches(3, seed=0, epoch=0)
    first = next(running)
    assert len(list(loader.evaluation_batches(5))) == 3
    assert_same_batches(expected, [first, *running])


def test_the_global_generator_is_not_used(files: ImageFiles) -> None:
    before = torch.get_rng_state()
    loader = folder_loader(files)
    list(loader.batches(4, seed=0, epoch=0))
    list(loader.evaluation_batches(4))
    assert torch.equal(torch.get_rng_state(), before)


def test_the_dataset_can_be_sent_to_a_spawned_process(files: ImageFiles) -> None:
    transform = augmentation().evaluation_transform("center")
    dataset = _CroppedImages(augmentation(), transform.crop_pixels)
    copy = pickle.loads(pickle.dumps(dataset))
    for key in ((files.paths[0], (0, 1, 2)), (files.paths[0], None)):
        image = dataset[key]
        assert isinstance(image, Tensor)
        assert torch.equal(copy[key], image)


@pytest.mark.whole_program
def test_the_number_of_workers_does_not_change_the_batches(files: ImageFiles) -> None:
    alone, loader = (folder_loader(files, workers=workers) for workers in (0, 2))
    for epoch in (0, 1):
        assert_same_batches(
            list(alone.batches(2, seed=7, epoch=epoch)),
            list(loader.batches(2, seed=7, epoch=epoch)),
        )
    assert len(list(islice(loader.batches(2, seed=7, epoch=2), 2))) == 2
    assert_same_batches(
        list(alone.batches(2, seed=7, epoch=3, first=1)),
        list(loader.batches(2, seed=7, epoch=3, first=1)),
    )
    assert_same_batches(list(alone.evaluation_batches(3)), list(loader.evaluation_batches(3)))


@pytest.mark.whole_program
def test_workers_stop_at_once_even_if_the_loader_is_in_a_cycle(files: ImageFiles) -> None:
    before = set(multiprocessing.active_children())
    loader = folder_loader(files, workers=1)
    running = loader.batches(2, seed=0, epoch=0)
    next(running)
    (worker,) = set(multiprocessing.active_children()) - before
    loader.cycle = (loader, running)
    del loader, running
    gc.collect()
    assert worker.exitcode == 0


@pytest.mark.whole_program
def test_workers_are_not_in_the_process_group_of_the_parent(files: ImageFiles) -> None:
    before = set(multiprocessing.active_children())
    loader = folder_loader(files, workers=1)
    next(loader.batches(2, seed=0, epoch=0))
    (worker,) = set(multiprocessing.active_children()) - before
    assert worker.pid is not None
    assert os.getpgid(worker.pid) != os.getpgid(0)


@pytest.mark.compiled
def test_prepare_compiles_without_graph_breaks(files: ImageFiles) -> None:
    loader = folder_loader(files)
    batch = next(loader.batches(4, seed=0, epoch=0))
    images, labels = torch.compile(loader.prepare, fullgraph=True)(*batch)
    assert images.shape == (4, 3, 16, 16)
    assert torch.equal(labels, batch[1])


def damage(kind: str, path: Path) -> str:
    """Damage a file and return the expected message."""
    content = path.read_bytes()
    if kind == "missing":
        path.unlink()
        return f"{path} must be an image file; it cannot be read (No such file or directory)"
    path.write_bytes(
        {"truncated": content[: len(content) // 2], "text": b"not an image", "empty": b""}[kind]
    )
    return f"{path} must be an image file; it cannot be read (damaged or in another format)"


@pytest.mark.bad_input
@pytest.mark.parametrize("kind", ["missing", "truncated", "text", "empty"])
@pytest.mark.parametrize("sample", [0, 1], ids=["jpeg", "png"])
def test_an_unreadable_image_is_named(kind: str, sample: int, files: ImageFiles) -> None:
    loader = folder_loader(files)
    message = damage(kind, Path(files.paths[sample]))
    for batches in (loader.batches(11, seed=0, epoch=0), loader.evaluation_batches(4)):
        with pytest.raises(DataError) as caught:
            list(batches)
        assert str(caught.value) == message


@pytest.mark.bad_input
@pytest.mark.whole_program
def test_workers_report_an_unreadable_image_and_go_on(files: ImageFiles) -> None:
    loader = folder_loader(files, workers=2)
    path = Path(files.paths[0])
    content = path.read_bytes()
    message = damage("truncated", path)
    with pytest.raises(DataError) as caught:
        list(loader.batches(2, seed=0, epoch=0))
    assert str(caught.value) == message
    path.write_bytes(content)
    assert len(list(loader.batches(2, seed=0, epoch=0))) == 5


@pytest.mark.bad_input
def test_an_earlier_epoch_cannot_be_continued(files: ImageFiles) -> None:
    loader = folder_loader(files)
    earlier, later = (loader.batches(2, seed=0, epoch=epoch) for epoch in (0, 1))
    next(earlier)
    next(later)
    with pytest.raises(DataError, match="an epoch must be finished before another one starts"):
        next(earlier)
    assert len(list(later)) == 4


@pytest.mark.bad_input
def test_a_negative_number_of_workers_is_refused(files: ImageFiles) -> None:
    with pytest.raises(DataError, match="workers must be at least 0, got -1"):
        folder_loader(files, workers=-1)


@pytest.mark.bad_input
def test_a_missing_torchvision_is_named(files: ImageFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision.transforms.v2", None)
    with pytest.raises(DataError, match="image folders need torchvision, which is not installed"):
        folder_loader(files)


def test_16_bit_images_keep_their_levels(tmp_path: Path) -> None:
    ramp = np.linspace(0, 65535, 32 * 32).reshape(32, 32).astype(np.uint16)
    path = tmp_path / "ramp.png"
    Image.fromarray(ramp).save(path)
    files = ImageFiles((str(path),), torch.tensor([0]), ("ramp",))
    plain = replace(augmentation(AugmentationPolicy(28)), mean=(0.0,), std=(1.0,))
    loader = FolderLoader(files, plain, device="cpu", workers=0)
    images, _ = next(loader.evaluation_batches(1))
    center = torch.from_numpy((ramp / 65535).astype(np.float32))[2:30, 2:30]
    torch.testing.assert_close(images[0, 0], center, rtol=0, atol=0.01)


@pytest.mark.parametrize("workers", [0, 1])
def test_samples_are_crops_of_the_first_epoch_and_do_not_disturb_another(
    files: ImageFiles, workers: int
) -> None:
    loader = folder_loader(files, workers=workers)
    first = list(loader.batches(2, seed=3, epoch=0, shard=(1, 2)))
    second = list(loader.batches(2, seed=3, epoch=1))
    assert len(first) == len(second) > 2
    again = []
    for batch in loader.batches(2, seed=3, epoch=1):
        again.append(batch)
        some = list(loader.sample_batches(2, num_batches=2, seed=3, shard=(1, 2)))
        assert_same_batches(some, first[:2])
    assert_same_batches(again, second)
    assert len(list(loader.sample_batches(2, num_batches=99, seed=3))) == len(first)
