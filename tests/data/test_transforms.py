"""Batched image operations against torchvision's functional ones, image by image."""

import pytest
import torch
import torchvision.transforms.v2.functional as tv
from torchvision.transforms.v2 import RandomErasing, RandomResizedCrop

from protosphere.data import transforms
from protosphere.data.augmentation import Augmentation, AugmentationPolicy, PaddedCrop

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
    boxes = transforms.random_resized_boxes(60, height, width, scale=(0.02, 1.0))
    hflip, vflip = torch.rand(60) < 0.5, torch.rand(60) < 0.5
    found = transforms.resized_crop(images, boxes, size, hflip=hflip, vflip=vflip)
    cases = zip(images, boxes.tolist(), hflip, vflip, found, strict=True)
    for image, box, horizontal, vertical, result in cases:
        expected = tv.resized_crop(image, *box, [size, size], antialias=True)
        expected = tv.horizontal_flip(expected) if horizontal else expected
        expected = tv.vertical_flip(expected) if vertical else expected
        torch.testing.assert_close(result, expected, rtol=0, atol=2e-6)


def test_a_policy_flips_as_often_as_it_says() -> None:
    image = torch.tensor([[0, 51], [102, 153]], dtype=torch.uint8)
    batch = image.expand(4000, 1, 2, 2)
    policy = AugmentationPolicy(2, None, hflip=0.25, vflip=0.75)
    corners = Augmentation(policy, (0.0,), (1.0,))(batch)[:, 0, 0, 0]
    counts = torch.bincount((corners * 5).round().long(), minlength=4) / 4000
    expected = torch.tensor([0.75 * 0.25, 0.25 * 0.25, 0.75 * 0.75, 0.25 * 0.75])
    assert (counts - expected).abs().max() < 0.03


def test_uint8_images_are_divided_by_255() -> None:
    images = torch.randint(0, 256, (20, 3, 16, 16), dtype=torch.uint8)
    boxes = transforms.random_resized_boxes(20, 16, 16, scale=(0.2, 1.0))
    torch.testing.assert_close(
        transforms.resized_crop(images, boxes, 16),
        transforms.resized_crop(images.float() / 255, boxes, 16),
    )


@pytest.mark.parametrize("size", [8, 6, 12])
def test_padded_crop(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal to torchvision's pad, crop and resize; every offset is drawn, the last included."""
    images = torch.randint(0, 256, (200, 3, 8, 8), dtype=torch.uint8)
    boxes = transforms.padded_boxes(200, 8, 8, padding=2)
    assert sorted(set(boxes[:, 0].tolist())) == sorted(set(boxes[:, 1].tolist())) == [0, 1, 2, 3, 4]
    monkeypatch.setattr(transforms, "padded_boxes", lambda *_, **__: boxes)
    policy = AugmentationPolicy(size, PaddedCrop(padding=2), hflip=0.0)
    found = Augmentation(policy, (0.0,), (1.0,))(images)
    for image, box, result in zip(tv.pad(images, [2, 2]) / 255, boxes.tolist(), found, strict=True):
        expected = tv.resize(tv.crop(image, *box), [size, size], antialias=True)
        torch.testing.assert_close(result, expected, rtol=0, atol=2e-6)


def test_boxes_lie_inside_and_have_torchvisions_distribution() -> None:
    """Means of position and sides within four standard errors, and equal deviations."""
    height, width, count = 48, 32, 4000
    boxes = transforms.random_resized_boxes(count, height, width, scale=(0.2, 1.0)).double()
    transform = RandomResizedCrop(8, scale=(0.2, 1.0))
    image = torch.empty(3, height, width)
    params = [transform.make_params([image]) for _ in range(count)]
    keys = ("top", "left", "height", "width")
    reference = torch.tensor([[draw[key] for key in keys] for draw in params]).double()
    for sample in (boxes, reference):
        assert (sample[:, :2] >= 0).all()
        assert (sample[:, 0] + sample[:, 2] <= height).all()
        assert (sample[:, 1] + sample[:, 3] <= width).all()
    for found, expected in zip(boxes.T, reference.T, strict=True):
        error = (found.var() / count + expected.var() / count).sqrt()
        assert abs(found.mean() - expected.mean()) < 4 * error
        assert float(found.std() / expected.std()) == pytest.approx(1, abs=0.08)


def test_boxes_reach_every_position() -> None:
    """The first and the last row and column are as likely as the others."""
    boxes = transforms.random_resized_boxes(9000, 6, 7, scale=(8 / 42, 10 / 42), ratio=(1.0, 1.0))
    assert boxes[:, 2:].unique(dim=0).tolist() == [[3, 3]]
    for column, positions in ((0, 4), (1, 5)):
        counts = torch.bincount(boxes[:, column])
        assert len(counts) == positions
        expected = 9000 / positions
        assert (counts - expected).abs().max() < 4 * expected**0.5


def test_padded_boxes_reach_every_position() -> None:
    boxes = transforms.padded_boxes(9000, 6, 7, padding=2)
    assert boxes[:, 2:].unique(dim=0).tolist() == [[6, 7]]
    for column in (0, 1):
        counts = torch.bincount(boxes[:, column])
        assert len(counts) == 5
        assert (counts - 1800).abs().max() < 4 * 1800**0.5
    assert not torch.equal(boxes[:, 0], boxes[:, 1])


def test_boxes_are_central_if_no_attempt_fits() -> None:
    for height, width, expected in ((4, 40, [0, 17, 4, 5]), (40, 4, [17, 0, 5, 4])):
        boxes = transforms.random_resized_boxes(3, height, width, scale=(1.0, 1.0))
        assert boxes.unique(dim=0).tolist() == [expected]


@pytest.mark.parametrize("name", ["brightness", "contrast", "saturation", "hue"])
def test_adjustments(name: str) -> None:
    images = _images()
    factors = torch.rand(len(images)) - 0.5 if name == "hue" else 2 * torch.rand(len(images))
    found = getattr(transforms, f"adjust_{name}")(images, factors)
    for image, factor, result in zip(images, factors.tolist(), found, strict=True):
        expected = getattr(tv, f"adjust_{name}")(image, factor)
        torch.testing.assert_close(result, expected, rtol=0, atol=3e-6 if name != "hue" else 1e-5)


def test_color_jitter_in_any_order() -> None:
    images = _images()
    factors = [2 * torch.rand(len(images)) for _ in range(3)] + [torch.rand(len(images)) - 0.5]
    order = torch.rand(len(images), 4).argsort(1)
    brightness, contrast, saturation, hue = factors
    found = transforms.color_jitter(images, brightness, contrast, saturation, hue, order)
    operations = [tv.adjust_brightness, tv.adjust_contrast, tv.adjust_saturation, tv.adjust_hue]
    for index, result in enumerate(found):
        expected = images[index]
        for position in order[index].tolist():
            factor = factors[position][index].item()
            expected = operations[position](expected, factor)
        torch.testing.assert_close(result, expected, rtol=0, atol=1e-4)


def test_grayscale() -> None:
    images = _images()
    torch.testing.assert_close(
        transforms.grayscale(images), tv.rgb_to_grayscale(images, 1), rtol=0, atol=1e-6
    )


@pytest.mark.parametrize("kernel_size", [3, 9])
def test_gaussian_blur(kernel_size: int) -> None:
    images = _images()
    sigmas = 0.1 + 2 * torch.rand(len(images))
    found = transforms.gaussian_blur(images, sigmas, kernel_size=kernel_size)
    for image, sigma, result in zip(images, sigmas.tolist(), found, strict=True):
        expected = tv.gaussian_blur(image, [kernel_size, kernel_size], [sigma, sigma])
        torch.testing.assert_close(result, expected, rtol=0, atol=1e-5)


@pytest.mark.bad_input
@pytest.mark.parametrize("kernel_size", [4, 25])
def test_blur_refuses_even_and_too_wide_kernels(kernel_size: int) -> None:
    message = "kernel_size must be odd and less than twice the side of the images"
    with pytest.raises(ValueError, match=message):
        transforms.gaussian_blur(_images(), torch.ones(40), kernel_size=kernel_size)


def test_erase() -> None:
    images = torch.randn(50, 3, 12, 9)
    boxes = transforms.random_erasing_boxes(50, 12, 9)
    found = transforms.erase(images, boxes)
    for image, box, result in zip(images, boxes.tolist(), found, strict=True):
        assert torch.equal(result, tv.erase(image, *box, v=torch.zeros(1, 1, 1)))


@pytest.mark.parametrize(("height", "width"), [(32, 32), (6, 40)])
def test_erased_boxes_have_torchvisions_distribution(height: int, width: int) -> None:
    """Means within four standard errors, equal deviations, the same fraction of empty boxes."""
    count = 4000
    boxes = transforms.random_erasing_boxes(count, height, width).double()
    transform = RandomErasing(p=1.0)
    params = [transform.make_params([torch.empty(3, height, width)]) for _ in range(count)]
    drawn = [
        [draw[key] if draw["v"] is not None else 0 for key in ("i", "j", "h", "w")]
        for draw in params
    ]
    reference = torch.tensor(drawn).double()
    assert (boxes[:, :2] >= 0).all()
    assert (boxes[:, 0] + boxes[:, 2] <= height).all()
    assert (boxes[:, 1] + boxes[:, 3] <= width).all()
    assert (boxes[:, 2] < height).all()
    assert (boxes[:, 3] < width).all()
    nonempty = [sample[:, 2:].prod(1) > 0 for sample in (boxes, reference)]
    assert float(nonempty[0].sum() / nonempty[1].sum()) == pytest.approx(1, abs=0.02)
    found, expected = (
        sample[mask] for sample, mask in zip((boxes, reference), nonempty, strict=True)
    )
    for one, other in zip(found.T, expected.T, strict=True):
        error = (one.var() / len(one) + other.var() / len(other)).sqrt()
        assert abs(one.mean() - other.mean()) < 4 * error
        assert float(one.std() / other.std()) == pytest.approx(1, abs=0.08)


def test_no_box_is_erased_if_no_attempt_fits() -> None:
    boxes = transforms.random_erasing_boxes(20, 4, 4, scale=(0.9, 1.0), ratio=(1.0, 1.0))
    assert not boxes[:, 2:].any()
    images = torch.randn(20, 3, 4, 4)
    assert torch.equal(transforms.erase(images, boxes), images)


def test_normalize() -> None:
    images = _images()
    mean, std = [0.5, 0.4, 0.3], [0.2, 0.3, 0.4]
    torch.testing.assert_close(
        transforms.normalize(images, mean, std), tv.normalize(images, mean, std)
    )
