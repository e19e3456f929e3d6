"""Folders of images: what is found, crops that only seed, epoch and index decide, and sentences for what is wrong."""

import gc
import multiprocessing
import os
import pickle
import sys
from dataclasses import replace
from itertools import count, islice
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms import v2

from protosphere.data.augmentation import Augmentation
from protosphere.data.datasets import DataError, hold_out
from protosphere.data.folders import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    FileFeed,
    ImageFiles,
    _Cut,
    decoded,
    load_folder,
    middle,
    sample_seed,
)

RESIZED = Augmentation(16, "resized", flip=0.5, mean=IMAGENET_MEAN, std=IMAGENET_STD)
COUNTS = {"train": {"ant": 4, "bee": 5, "cat": 2}, "val": {"ant": 1, "bee": 2, "cat": 1}}


def write(path: Path, *, seed: int = 0) -> None:
    rng = np.random.default_rng(seed)
    height, width = rng.integers(20, 50, 2)
    path.parent.mkdir(parents=True, exist_ok=True)
    coarse = Image.fromarray(rng.integers(0, 256, (5, 6, 3), dtype=np.uint8))
    coarse.resize((int(width), int(height))).save(path)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "images"
    seeds = count()
    for part, counts in COUNTS.items():
        for name, number in counts.items():
            for index in range(number):
                ending = ("JPEG", "png", "jpg")[index % 3]
                write(root / part / name / f"{index}.{ending}", seed=next(seeds))
    (root / "train" / "ant" / "notes.txt").write_text("not an image")
    return root


@pytest.fixture
def files(tree: Path) -> ImageFiles:
    return load_folder(tree)[0]


def read(path: str) -> Tensor:
    with Image.open(path) as image:
        return v2.functional.pil_to_tensor(image.convert("RGB"))


def named(paths: tuple[str, ...]) -> list[str]:
    return ["/".join(Path(path).parts[-2:]) for path in paths]


def as_bytes(images: Tensor) -> Tensor:
    mean, std = (torch.tensor(part)[:, None, None] for part in (IMAGENET_MEAN, IMAGENET_STD))
    return ((images * std + mean) * 255).round().to(torch.uint8)


def assert_same(one: list[tuple[Tensor, ...]], other: list[tuple[Tensor, ...]]) -> None:
    assert [len(batch) for batch in one] == [len(batch) for batch in other] == [2] * len(one)
    for first, second in zip(one, other, strict=True):
        assert all(map(torch.equal, first, second))


def test_all_folders_of_train_are_classes(tree: Path) -> None:
    train, val = load_folder(tree)
    assert train.class_names == val.class_names == ("ant", "bee", "cat")
    assert (train.num_classes, train.channels, len(train), len(val)) == (3, 3, 11, 4)
    assert torch.bincount(train.labels).tolist() == [4, 5, 2]
    assert named(val.paths) == ["ant/0.JPEG", "bee/0.JPEG", "bee/1.png", "cat/0.JPEG"]
    assert val.labels.tolist() == [0, 1, 1, 2]
    assert load_folder(str(tree))[0].paths == train.paths


def test_test_stands_in_for_val_but_val_goes_first(tree: Path) -> None:
    write(tree / "test" / "ant" / "0.png")
    assert len(load_folder(tree)[1]) == 4
    (tree / "val").rename(tree.parent / "elsewhere")
    for name in ("bee", "cat"):
        write(tree / "test" / name / "0.png")
    assert named(load_folder(tree)[1].paths) == ["ant/0.png", "bee/0.png", "cat/0.png"]


def test_a_list_chooses_classes_and_decides_their_labels(tree: Path, tmp_path: Path) -> None:
    listed = tmp_path / "classes.txt"
    listed.write_text(
        "\ufeff# of a hundred\ncat  a feline, 3\r\n\n  ant\n  # bee\n", encoding="utf-8"
    )
    train, val = load_folder(tree, classes=listed)
    assert train.class_names == ("cat", "ant")
    for part in (train, val):
        assert [Path(path).parent.name for path in part.paths] == [
            train.class_names[label] for label in part.labels
        ]
    assert torch.bincount(train.labels).tolist() == [2, 4]
    assert torch.bincount(val.labels).tolist() == [1, 1]


def test_hold_out_splits_files(files: ImageFiles) -> None:
    rest, held = hold_out(files, 0.5, seed=1)
    assert sorted([*rest.paths, *held.paths]) == sorted(files.paths)
    assert torch.bincount(held.labels).tolist() == [2, 2, 1]
    for part in (rest, held):
        assert [Path(path).parent.name for path in part.paths] == [
            files.class_names[label] for label in part.labels
        ]


def test_crops_are_those_of_torchvision(files: ImageFiles) -> None:
    feed = FileFeed(files, RESIZED, device="cpu", workers=0)
    crop = v2.RandomResizedCrop(16, scale=RESIZED.scale, antialias=True)
    expected = []
    for index, path in enumerate(files.paths):
        torch.manual_seed(sample_seed(3, 2, index))
        expected.append(crop(read(path)))
    ((images, labels),) = feed.batches(len(files), seed=3, epoch=2)
    assert images.dtype == torch.uint8
    assert images.shape == (11, 1, 3, 16, 16)
    # The order is not that of the files, so each image is looked for among all.
    matches = (images == torch.stack(expected)).flatten(2).all(2)
    assert matches.sum(0).tolist() == matches.sum(1).tolist() == [1] * 11
    assert torch.equal(files.labels[matches.int().argmax(1)], labels)


@pytest.mark.parametrize(("crop", "side"), [("padded", 16), ("none", 18)])
def test_the_other_crops_take_the_middle(crop: str, side: int, files: ImageFiles) -> None:
    policy = Augmentation(16, crop, padding=2)  # type: ignore[arg-type]
    feed = FileFeed(files, policy, device="cpu", workers=0)
    middle = v2.Compose([v2.Resize(side, antialias=True), v2.CenterCrop(16)])
    expected = torch.stack([middle(read(path)) for path in files.paths])
    ((images, labels),) = feed.batches(11, seed=0, epoch=0)
    assert (images == expected).flatten(2).all(2).sum(0).tolist() == [1] * 11
    torch.manual_seed(5)
    prepared, same = feed.prepared(images, labels)
    torch.manual_seed(5)
    assert torch.equal(prepared, policy(images[:, 0]))
    assert torch.equal(same, labels)


def test_the_rest_of_the_augmentation_does_not_crop_again(files: ImageFiles) -> None:
    policy = Augmentation(16, "resized", flip=1.0, mean=IMAGENET_MEAN, std=IMAGENET_STD)
    feed = FileFeed(files, policy, device="cpu", workers=0)
    images, labels = next(feed.batches(4, seed=0, epoch=0))
    prepared, _ = feed.prepared(images, labels)
    assert torch.equal(as_bytes(prepared), images[:, 0].flip(3))


def test_each_view_is_cut_anew_and_views_come_one_after_the_other(files: ImageFiles) -> None:
    feed = FileFeed(files, replace(RESIZED, flip=0.0), device="cpu", views=2, workers=0)
    images, labels = next(feed.batches(4, seed=0, epoch=0))
    assert images.shape == (4, 2, 3, 16, 16)
    assert not torch.equal(images[:, 0], images[:, 1])
    prepared, twice = feed.prepared(images, labels)
    assert torch.equal(as_bytes(prepared), torch.cat([images[:, 0], images[:, 1]]))
    assert torch.equal(twice, torch.cat([labels, labels]))
    clean, _ = next(feed.in_order(4))
    assert clean.shape == (4, 3, 16, 16)


def test_seed_and_epoch_decide_and_nothing_else(files: ImageFiles) -> None:
    feed = FileFeed(files, RESIZED, device="cpu", workers=0)
    one = list(feed.batches(3, seed=0, epoch=1))
    assert_same(one, list(feed.batches(3, seed=0, epoch=1)))
    assert_same(one[2:], list(feed.batches(3, seed=0, epoch=1, first=2)))
    assert not list(feed.batches(3, seed=0, epoch=1, first=3))
    for seed, epoch in ((0, 2), (1, 1), (-1, 1)):
        assert not torch.equal(one[0][0], next(feed.batches(3, seed=seed, epoch=epoch))[0])
    abandoned = feed.batches(3, seed=0, epoch=5)
    next(abandoned)
    assert_same(one, list(feed.batches(3, seed=0, epoch=1)))
    assert len({sample_seed(*key) for key in np.ndindex(10, 10, 100)}) == 10_000


def test_whole_batches_have_every_sample_once(files: ImageFiles) -> None:
    even = files.chosen(torch.arange(9))
    feed = FileFeed(even, Augmentation(16), device="cpu", workers=0)
    assert (len(feed), feed.device) == (9, torch.device("cpu"))
    batches = list(feed.batches(3, seed=0, epoch=0))
    images = torch.cat([images for images, _ in batches])
    expected = next(feed.batches(9, seed=1, epoch=0))[0][:, 0]
    assert (images == expected).flatten(2).all(2).sum(0).tolist() == [1] * 9
    assert torch.bincount(torch.cat([labels for _, labels in batches])).tolist() == [4, 5]
    assert [len(labels) for _, labels in feed.batches(4, seed=0, epoch=0)] == [4, 4]
    assert [len(labels) for _, labels in feed.batches(100, seed=0, epoch=0)] == [9]


def test_evaluation_is_in_order_and_takes_the_middle(files: ImageFiles) -> None:
    feed = FileFeed(files, RESIZED, device="cpu", workers=0)
    found = list(feed.in_order(4))
    assert [len(labels) for _, labels in found] == [4, 4, 3]
    assert torch.equal(torch.cat([labels for _, labels in found]), files.labels)
    middle = v2.Compose([v2.Resize(round(16 / 0.875), antialias=True), v2.CenterCrop(16)])
    expected = torch.stack([middle(read(path)) for path in files.paths])
    assert torch.equal(as_bytes(torch.cat([images for images, _ in found])), expected)


def test_evaluation_in_the_middle_of_an_epoch(files: ImageFiles) -> None:
    feed = FileFeed(files, RESIZED, device="cpu", workers=0)
    expected = list(feed.batches(3, seed=0, epoch=0))
    running = feed.batches(3, seed=0, epoch=0)
    begun = next(running)
    assert len(list(feed.in_order(5))) == 3
    assert_same(expected, [begun, *running])


def test_the_global_generator_is_left_alone(files: ImageFiles) -> None:
    before = torch.get_rng_state()
    feed = FileFeed(files, RESIZED, device="cpu", workers=0)
    list(feed.batches(4, seed=0, epoch=0))
    list(feed.in_order(4))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("mode", ["L", "LA", "P", "P, transparent", "CMYK", "RGBA", "1"])
def test_whatever_a_file_holds_is_read_as_rgb(mode: str, tmp_path: Path) -> None:
    colors = Image.fromarray(np.full((20, 30, 3), (200, 40, 90), np.uint8))
    path = tmp_path / ("some.jpg" if mode == "CMYK" else "some.png")
    if mode == "P, transparent":
        colors.convert("P").save(path, transparency=bytes(range(256)))
    else:
        colors.convert(mode).save(path)
    feed = FileFeed(
        ImageFiles((str(path),), torch.tensor([0]), ("a",)),
        Augmentation(16),
        device="cpu",
        workers=0,
    )
    ((images, _),) = feed.in_order(1)
    assert images.shape == (1, 3, 16, 16)
    if mode in ("P, transparent", "P", "RGBA", "CMYK"):
        tolerance = {"CMYK": 3, "RGBA": 0}.get(mode, 40)
        mean = (images * 255).mean((0, 2, 3))
        torch.testing.assert_close(
            mean, torch.tensor([200.0, 40, 90]), rtol=0, atol=tolerance + 1e-3
        )
    elif mode != "1":
        assert torch.equal(images[:, 0], images[:, 2])


def test_the_cut_can_be_sent_to_a_process_that_is_not_forked(files: ImageFiles) -> None:
    cut = _Cut(RESIZED, 1)
    key = (files.paths[0], (0, 1, 2))
    assert torch.equal(pickle.loads(pickle.dumps(cut))[key], cut[key])


@pytest.mark.whole_program
def test_workers_change_nothing(files: ImageFiles) -> None:
    own, feed = (FileFeed(files, RESIZED, device="cpu", workers=workers) for workers in (0, 2))
    for epoch in (0, 1):
        assert_same(
            list(own.batches(2, seed=7, epoch=epoch)), list(feed.batches(2, seed=7, epoch=epoch))
        )
    assert len(list(islice(feed.batches(2, seed=7, epoch=2), 2))) == 2
    assert_same(
        list(own.batches(2, seed=7, epoch=3, first=1)),
        list(feed.batches(2, seed=7, epoch=3, first=1)),
    )
    assert_same(list(own.in_order(3)), list(feed.in_order(3)))


@pytest.mark.whole_program
def test_workers_end_at_once_even_if_the_feed_is_part_of_a_cycle(files: ImageFiles) -> None:
    before = set(multiprocessing.active_children())
    feed = FileFeed(files, RESIZED, device="cpu", workers=1)
    running = feed.batches(2, seed=0, epoch=0)
    next(running)
    (worker,) = set(multiprocessing.active_children()) - before
    feed.itself = (feed, running)  # type: ignore[attr-defined]
    del feed, running
    gc.collect()
    assert worker.exitcode == 0


@pytest.mark.compiled
def test_the_rest_compiles_whole(files: ImageFiles) -> None:
    feed = FileFeed(files, RESIZED, device="cpu", workers=0)
    batch = next(feed.batches(4, seed=0, epoch=0))
    images, labels = torch.compile(feed.prepared, fullgraph=True)(*batch)
    assert images.shape == (4, 3, 16, 16)
    assert torch.equal(labels, batch[1])


def damaged(kind: str, path: Path) -> str:
    """Damage a file, and say what must be said of it."""
    content = path.read_bytes()
    if kind == "missing":
        path.unlink()
        return f"{path} must be an image; it cannot be read (No such file or directory)"
    path.write_bytes(
        {"truncated": content[: len(content) // 2], "text": b"no image at all", "empty": b""}[kind]
    )
    return f"{path} must be an image; it cannot be read (damaged or none)"


@pytest.mark.bad_input
@pytest.mark.parametrize("kind", ["missing", "truncated", "text", "empty"])
@pytest.mark.parametrize("sample", [0, 1], ids=["jpeg", "png"])
def test_an_unreadable_image_is_named(kind: str, sample: int, files: ImageFiles) -> None:
    feed = FileFeed(files, RESIZED, device="cpu", workers=0)
    sentence = damaged(kind, Path(files.paths[sample]))
    for batches in (feed.batches(11, seed=0, epoch=0), feed.in_order(4)):
        with pytest.raises(DataError) as caught:
            list(batches)
        assert str(caught.value) == sentence


@pytest.mark.bad_input
@pytest.mark.whole_program
def test_an_unreadable_image_is_named_by_a_worker_and_the_feed_goes_on(files: ImageFiles) -> None:
    feed = FileFeed(files, RESIZED, device="cpu", workers=2)
    path = Path(files.paths[0])
    content = path.read_bytes()
    sentence = damaged("truncated", path)
    with pytest.raises(DataError) as caught:
        list(feed.batches(2, seed=0, epoch=0))
    assert str(caught.value) == sentence
    path.write_bytes(content)
    assert len(list(feed.batches(2, seed=0, epoch=0))) == 5


@pytest.mark.bad_input
def test_an_earlier_epoch_cannot_be_continued(files: ImageFiles) -> None:
    feed = FileFeed(files, RESIZED, device="cpu", workers=0)
    earlier, later = (feed.batches(2, seed=0, epoch=epoch) for epoch in (0, 1))
    next(earlier)
    next(later)
    with pytest.raises(
        DataError, match="batches must all be taken before others are begun; others have been"
    ):
        next(earlier)
    assert len(list(later)) == 4
    with pytest.raises(DataError, match="workers must be 0 or more; got -1"):
        FileFeed(files, RESIZED, device="cpu", workers=-1)


def sentence_of(path: Path, **options: Path) -> str:
    with pytest.raises(DataError) as caught:
        load_folder(path, **options)
    return str(caught.value)


@pytest.mark.bad_input
def test_folders_that_are_missing_or_do_not_agree(tmp_path: Path) -> None:
    root = tmp_path / "images"
    train, val = root / "train", root / "val"
    assert sentence_of(root) == f"{root} must be a folder of images; there is none"
    root.mkdir()
    assert sentence_of(root) == f"{root} must have a folder train; it is not there"
    train.mkdir()
    assert sentence_of(root) == f"{root} must have a folder val or test; neither is there"
    (val / "ant").mkdir(parents=True)
    assert sentence_of(root) == f"{train} must have a folder for each class; it has none"
    for name in ("ant", "bee", "cat", "dog", "eel"):
        write(train / name / "0.png")
    assert (
        sentence_of(root)
        == f"{val} must have a folder for each of the 5 classes; it lacks 4 (bee, cat, dog, ...)"
    )
    for name in ("ant", "bee", "cat", "dog", "eel", "fox"):
        write(val / name / "0.png")
    assert sentence_of(root) == f"{val} must have the classes of train only; got 1 more (fox)"
    for name in ("gnu", "fox"):
        (train / name).mkdir()
        write(val / name / "0.png")
    assert (
        sentence_of(root) == f"{train} must have images of each class; it has none of 2 (fox, gnu)"
    )


@pytest.mark.bad_input
def test_lists_that_are_missing_or_wrong(tree: Path, tmp_path: Path) -> None:
    listed = tmp_path / "classes.txt"
    unreadable = f"{listed} must be a text of class names; it cannot be read"
    assert sentence_of(tree, classes=listed) == f"{unreadable} (No such file or directory)"
    for content, sentence in (
        (b"\xff\xfe\x00", f"{unreadable} (damaged or none)"),
        (b"# none\n\n", f"{listed} must name a class a line; it names none"),
        (b"bee\nant\nbee again\n", f"{listed} must name each class once; got bee more than once"),
        (
            b"yak\nant\n../val/bee\nemu\nowl\n",
            f"{tree / 'train'} must have a folder for each of the 5 classes; it lacks 4 (yak, ../val/bee, emu, ...)",
        ),
    ):
        listed.write_bytes(content)
        assert sentence_of(tree, classes=listed) == sentence


@pytest.mark.bad_input
def test_torchvision_is_asked_for(
    files: ImageFiles, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sentence = 'folders need torchvision, which is missing: pip install "protosphere[train]"'
    for part in ("datasets.folder", "transforms.v2"):
        monkeypatch.setitem(sys.modules, f"torchvision.{part}", None)
    assert sentence_of(tree) == sentence
    with pytest.raises(DataError) as caught:
        FileFeed(files, RESIZED, device="cpu")
    assert str(caught.value) == sentence


def test_gray_images_of_sixteen_bits_keep_their_levels(tmp_path: Path) -> None:
    ramp = np.linspace(0, 65535, 32 * 32).reshape(32, 32).astype(np.uint16)
    for part in ("train", "val"):
        (tmp_path / part / "ramp").mkdir(parents=True)
        Image.fromarray(ramp).save(tmp_path / part / "ramp/1.png")
    images, _ = next(
        FileFeed(load_folder(tmp_path)[0], Augmentation(28), device="cpu", workers=0).in_order(1)
    )
    middle = torch.from_numpy((ramp / 65535).astype(np.float32))[2:30, 2:30]
    torch.testing.assert_close(images[0, 0], middle, rtol=0, atol=0.01)


def test_names_with_spaces_and_hidden_folders(tree: Path, tmp_path: Path) -> None:
    for part in ("train", "val"):
        (tree / part / "golden retriever").mkdir()
        write(tree / part / "golden retriever/1.png")
        (tree / part / ".ipynb_checkpoints").mkdir()
    (tmp_path / "list.txt").write_text("golden retriever\n")
    assert load_folder(tree, classes=tmp_path / "list.txt")[0].class_names == ("golden retriever",)
    assert ".ipynb_checkpoints" not in load_folder(tree)[0].class_names


def test_fingerprints_tell_sets_apart_wherever_they_are(tree: Path, tmp_path: Path) -> None:
    train, test = load_folder(tree)
    assert train.fingerprint() == load_folder(tree)[0].fingerprint() != test.fingerprint()
    tree.rename(tmp_path / "elsewhere")
    moved, _ = load_folder(tmp_path / "elsewhere")
    assert moved.fingerprint() == train.fingerprint()
    assert moved.chosen(torch.arange(len(moved)).flip(0)).fingerprint() != train.fingerprint()


@pytest.mark.whole_program
def test_workers_are_not_reached_by_what_is_sent_to_the_group(files: ImageFiles) -> None:
    before = set(multiprocessing.active_children())
    feed = FileFeed(files, RESIZED, device="cpu", workers=1)
    next(feed.batches(2, seed=0, epoch=0))
    (worker,) = set(multiprocessing.active_children()) - before
    assert os.getpgid(worker.pid) != os.getpgid(0)


def test_images_are_turned_as_their_camera_noted(tmp_path: Path) -> None:
    pixels = np.arange(6 * 4 * 3, dtype=np.uint8).reshape(6, 4, 3)
    note = Image.Exif()
    note[274] = 6  # Orientation: to be turned by 90° clockwise.
    Image.fromarray(np.rot90(pixels)).save(tmp_path / "turned.png", exif=note)
    assert decoded(str(tmp_path / "turned.png")).equal(torch.from_numpy(pixels).movedim(2, 0))


@pytest.mark.bad_input
@pytest.mark.parametrize(
    "levels", [np.full((4, 4), 0.5, np.float32), np.full((4, 4), 70000, np.int32)]
)
def test_pixels_of_no_known_range_are_refused(levels: np.ndarray, tmp_path: Path) -> None:
    Image.fromarray(levels).save(tmp_path / "strange.tif")
    assert "its pixels are neither of eight nor of sixteen bits" in decoded(
        str(tmp_path / "strange.tif")
    )


def test_a_very_long_image_is_shortened_before_it_is_enlarged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its middle is what it was, and no image of some thousand times the size is made on the way."""
    image = torch.randint(0, 256, (3, 5, 2001), dtype=torch.uint8)
    expected = v2.functional.center_crop(
        v2.functional.resize(image, [18], antialias=True), [16, 16]
    )
    seen = []
    resize = v2.functional.resize
    monkeypatch.setattr(
        v2.functional,
        "resize",
        lambda image, *rest, **named: seen.append(image.shape) or resize(image, *rest, **named),
    )
    found = middle(image, 16)
    assert seen == [(3, 5, 21)]
    assert (found.float() - expected.float()).abs().mean() < 3
    tall = middle(image.mT.contiguous(), 16)
    assert (tall.int() - found.mT.int()).abs().max() <= 1, "to rounding of bytes"


def test_the_statistics_of_imagenet() -> None:
    assert (IMAGENET_MEAN, IMAGENET_STD) == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
