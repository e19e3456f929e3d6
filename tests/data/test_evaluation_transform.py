"""The evaluation transform: one crop for batches, single images and images of different sizes."""

import pytest
import torch
import torchvision.transforms.v2.functional as tv

from protosphere.data.augmentation import EvaluationTransform
from protosphere.data.decoding import center_crop
from protosphere.data.splits import EvaluationCrop

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)
SIZES = [(20, 30), (16, 16), (40, 20)]
IMAGES = [torch.randint(0, 256, (3, *size), dtype=torch.uint8) for size in SIZES]


@pytest.mark.parametrize("crop", ["center", "resize"])
def test_images_of_different_sizes_are_prepared_as_each_alone(crop: EvaluationCrop) -> None:
    transform = EvaluationTransform(16, MEAN, STD, crop)
    batch = transform.prepare(IMAGES, "cpu")
    assert batch.shape == (3, 3, 16, 16)
    torch.testing.assert_close(batch, torch.cat([transform(image[None]) for image in IMAGES]))
    same_size = transform.prepare([IMAGES[0], IMAGES[0].flip(2)], "cpu")
    torch.testing.assert_close(same_size, transform(torch.stack([IMAGES[0], IMAGES[0].flip(2)])))


def test_center_is_torchvisions_resize_and_center_crop() -> None:
    found = EvaluationTransform(14, MEAN, STD, "center").prepare(IMAGES, "cpu")
    for image, prepared in zip(IMAGES, found, strict=True):
        square = tv.center_crop(tv.resize(image, [16], antialias=True), [14, 14])
        expected = tv.normalize(square.float() / 255, list(MEAN), list(STD))
        torch.testing.assert_close(prepared, expected, rtol=0, atol=1e-5)


def test_cropped_images_only_need_normalizing() -> None:
    transform = EvaluationTransform(14, MEAN, STD, "center")
    cropped = torch.stack([center_crop(image, 14) for image in IMAGES])
    assert torch.equal(torch.stack(list(map(transform.crop_pixels, IMAGES))), cropped)
    torch.testing.assert_close(transform.normalize(cropped), transform.prepare(IMAGES, "cpu"))


@pytest.mark.bad_input
def test_an_unknown_crop_is_refused() -> None:
    with pytest.raises(ValueError, match="crop must be 'center' or 'resize', got 'middle'"):
        EvaluationTransform(14, MEAN, STD, "middle")  # type: ignore[arg-type]
