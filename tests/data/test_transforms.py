"""Augmentation on the device against torchvision's functional operations, image by image."""

import pytest
import torch
import torchvision.transforms.v2.functional as tv
from torchvision.transforms.v2 import RandomResizedCrop

from protosphere.data import transforms
from protosphere.data.augmentation import Augmentation

SIDES = [(32, 32, 32), (17, 40, 24), (64, 48, 16)]  # height, width, size of the result


def _images(height: int = 12, width: int = 9, count: int = 40) -> torch.Tensor:
    images = torch.rand(count, 3, height, width)
    images[0] = 0.5  # gray: no hue, no saturation
    images[1, :, 0] = torch.tensor([1.0, 0.0, 0.0])[:, None]
    images[2] = 0.0
    return images


@pytest.mark.parametrize(("height", "width", "size"), SIDES)
def test_resized_crop_and_flip(height: int, width: int, size: int) -> None:
    images = torch.rand(60, 3, height, width)
    boxes = transforms.random_boxes(60, height, width, scale=(0.02, 1.0))
    flips = torch.rand(60) < 0.5
    found = transforms.resized_crop(images, boxes, size, flips=flips)
    for image, box, flip, mine in zip(images, boxes.tolist(), flips, found, strict=True):
        expected = tv.resized_crop(image, *box, [size, size], antialias=True)
        expected = tv.horizontal_flip(expected) if flip else expected
        torch.testing.assert_close(mine, expected, rtol=0, atol=2e-6)


def test_bytes_become_floats() -> None:
    images = torch.randint(0, 256, (20, 3, 16, 16), dtype=torch.uint8)
    boxes = transforms.random_boxes(20, 16, 16, scale=(0.2, 1.0))
    torch.testing.assert_close(
        transforms.resized_crop(images, boxes, 16),
        transforms.resized_crop(images.float() / 255, boxes, 16),
    )


@pytest.mark.parametrize("size", [8, 6, 12])
def test_padded_crops(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As torchvision pads, crops and resizes, borders of zeros included; every place is drawn."""
    images = torch.randint(0, 256, (200, 3, 8, 8), dtype=torch.uint8)
    boxes = transforms.padded_boxes(200, 8, 8, padding=2)
    assert sorted(set(boxes[:, 0].tolist())) == sorted(set(boxes[:, 1].tolist())) == [0, 1, 2, 3, 4]
    monkeypatch.setattr(transforms, "padded_boxes", lambda *_, **__: boxes)
    found = Augmentation(size, "padded", padding=2)(images)
    for image, box, mine in zip(tv.pad(images, [2, 2]) / 255, boxes.tolist(), found, strict=True):
        expected = tv.resize(tv.crop(image, *box), [size, size], antialias=True)
        torch.testing.assert_close(mine, expected, rtol=0, atol=2e-6)


def test_boxes_lie_inside_and_are_spread_as_torchvisions() -> None:
    """The same distribution: means and deviations of area, ratio and place, within four standard errors."""
    height, width, count = 48, 32, 4000
    boxes = transforms.random_boxes(count, height, width, scale=(0.2, 1.0)).double()
    transform = RandomResizedCrop(8, scale=(0.2, 1.0))
    image = torch.empty(3, height, width)
    drawn = [transform.make_params([image]) for _ in range(count)]
    theirs = torch.tensor(
        [[one["top"], one["left"], one["height"], one["width"]] for one in drawn]
    ).double()
    for some in (boxes, theirs):
        assert (some[:, :2] >= 0).all()
        assert (some[:, 0] + some[:, 2] <= height).all()
        assert (some[:, 1] + some[:, 3] <= width).all()
    for column in range(4):
        mine, other = boxes[:, column], theirs[:, column]
        error = (mine.var() / count + other.var() / count).sqrt()
        assert abs(mine.mean() - other.mean()) < 4 * error
        assert float(mine.std() / other.std()) == pytest.approx(1, abs=0.08)


def test_boxes_where_no_attempt_fits() -> None:
    assert transforms.random_boxes(3, 4, 40, scale=(1.0, 1.0)).unique(dim=0).tolist() == [
        [0, 17, 4, 5]
    ]
    assert transforms.random_boxes(3, 40, 4, scale=(1.0, 1.0)).unique(dim=0).tolist() == [
        [17, 0, 5, 4]
    ]


@pytest.mark.parametrize("name", ["brightness", "contrast", "saturation", "hue"])
def test_adjustments(name: str) -> None:
    images = _images()
    factors = torch.rand(len(images)) - 0.5 if name == "hue" else 2 * torch.rand(len(images))
    found = getattr(transforms, f"adjust_{name}")(images, factors)
    for image, factor, mine in zip(images, factors.tolist(), found, strict=True):
        expected = getattr(tv, f"adjust_{name}")(image, factor)
        torch.testing.assert_close(mine, expected, rtol=0, atol=3e-6 if name != "hue" else 1e-5)


def test_color_jitter_in_any_order() -> None:
    images = _images()
    factors = [2 * torch.rand(len(images)) for _ in range(3)] + [torch.rand(len(images)) - 0.5]
    order = torch.rand(len(images), 4).argsort(1)
    found = transforms.color_jitter(images, *factors, order)
    operations = [tv.adjust_brightness, tv.adjust_contrast, tv.adjust_saturation, tv.adjust_hue]
    for index, mine in enumerate(found):
        expected = images[index]
        for place in order[index].tolist():
            expected = operations[place](expected, factors[place][index].item())
        torch.testing.assert_close(mine, expected, rtol=0, atol=1e-4)


def test_gray() -> None:
    images = _images()
    torch.testing.assert_close(
        transforms.gray(images), tv.rgb_to_grayscale(images, 1), rtol=0, atol=1e-6
    )


@pytest.mark.parametrize("kernel_size", [3, 9])
def test_blur(kernel_size: int) -> None:
    images = _images()
    sigmas = 0.1 + 2 * torch.rand(len(images))
    found = transforms.gaussian_blur(images, sigmas, kernel_size=kernel_size)
    for image, sigma, mine in zip(images, sigmas.tolist(), found, strict=True):
        expected = tv.gaussian_blur(image, [kernel_size, kernel_size], [sigma, sigma])
        torch.testing.assert_close(mine, expected, rtol=0, atol=1e-5)


@pytest.mark.bad_input
@pytest.mark.parametrize("kernel_size", [4, 25])
def test_blur_refuses_kernels_that_make_no_sense(kernel_size: int) -> None:
    with pytest.raises(
        ValueError, match=r"kernel_size must be odd and at most twice the image's side, 12; got"
    ):
        transforms.gaussian_blur(_images(), torch.ones(40), kernel_size=kernel_size)
