"""Decoding: any mode as RGB, camera orientation, 16 bits, and messages for unreadable files."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms import v2

from protosphere.data.decoding import center_crop, decode_image


def decode(path: Path, channels: int = 3) -> Tensor:
    image = decode_image(str(path), channels)
    assert isinstance(image, Tensor), image
    return image


@pytest.mark.parametrize(
    ("mode", "tolerance"), [("P", 40), ("CMYK", 3), ("RGBA", 0), ("RGB", 0), ("P, alpha", 40)]
)
def test_color_modes_are_read_as_rgb(mode: str, tolerance: float, tmp_path: Path) -> None:
    image = Image.fromarray(np.full((20, 30, 3), (200, 40, 90), np.uint8))
    path = tmp_path / ("image.jpg" if mode == "CMYK" else "image.png")
    options: dict[str, Any] = {"transparency": bytes(range(256))} if mode == "P, alpha" else {}
    image.convert(mode.split(",", maxsplit=1)[0]).save(path, **options)
    pixels = decode(path)
    assert pixels.shape == (3, 20, 30)
    expected = torch.tensor([200.0, 40, 90])
    torch.testing.assert_close(pixels.float().mean((1, 2)), expected, rtol=0, atol=tolerance + 1e-3)


@pytest.mark.parametrize("mode", ["L", "LA", "1"])
def test_grayscale_modes_are_read_as_rgb(mode: str, tmp_path: Path) -> None:
    levels = np.repeat(np.array([[0, 60, 255]], np.uint8), 4, axis=0)
    Image.fromarray(levels).convert(mode, dither=Image.Dither.NONE).save(tmp_path / "image.png")
    pixels = decode(tmp_path / "image.png")
    assert pixels.shape == (3, 4, 3)
    assert torch.equal(pixels[0], pixels[2])
    assert pixels[0, 0].tolist() == [0, 0 if mode == "1" else 60, 255]


def test_color_images_are_read_as_grayscale(tmp_path: Path) -> None:
    Image.fromarray(np.full((4, 6, 3), (200, 40, 90), np.uint8)).save(tmp_path / "image.png")
    pixels = decode(tmp_path / "image.png", channels=1)
    assert pixels.shape == (1, 4, 6)
    assert pixels.unique().tolist() == [round(0.299 * 200 + 0.587 * 40 + 0.114 * 90)]


@pytest.mark.parametrize("channels", [1, 3])
def test_16_bit_images_keep_their_levels(channels: int, tmp_path: Path) -> None:
    ramp = np.linspace(0, 65535, 32 * 32).reshape(32, 32).astype(np.uint16)
    Image.fromarray(ramp).save(tmp_path / "ramp.png")
    pixels = decode(tmp_path / "ramp.png", channels)
    expected = torch.from_numpy((ramp / 257.0).round().astype(np.uint8))
    assert torch.equal(pixels, expected.expand(channels, -1, -1))


def test_images_are_rotated_as_their_camera_noted(tmp_path: Path) -> None:
    pixels = np.arange(6 * 4 * 3, dtype=np.uint8).reshape(6, 4, 3)
    exif = Image.Exif()
    exif[274] = 6  # Orientation: rotate by 90° clockwise.
    Image.fromarray(np.rot90(pixels)).save(tmp_path / "rotated.png", exif=exif)
    assert torch.equal(decode(tmp_path / "rotated.png"), torch.from_numpy(pixels).movedim(2, 0))


def test_damaged_orientation_is_ignored(tmp_path: Path) -> None:
    pixels = np.arange(6 * 4 * 3, dtype=np.uint8).reshape(6, 4, 3)
    Image.fromarray(pixels).save(tmp_path / "image.png", exif=b"Exif\0\0MM\0*" + bytes(range(99)))
    assert torch.equal(decode(tmp_path / "image.png"), torch.from_numpy(pixels).movedim(2, 0))


@pytest.mark.bad_input
@pytest.mark.parametrize(
    "levels", [np.full((4, 4), 0.5, np.float32), np.full((4, 4), 70000, np.int32)]
)
def test_other_bit_depths_are_refused(levels: np.ndarray, tmp_path: Path) -> None:
    path = tmp_path / "image.tif"
    Image.fromarray(levels).save(path)
    message = decode_image(str(path))
    expected = "must be an image file; it cannot be read (pixels must have 8 or 16 bits)"
    assert message == f"{path} {expected}"


def test_center_crop_takes_a_fraction_of_the_shorter_side() -> None:
    image = torch.randint(0, 256, (3, 40, 20), dtype=torch.uint8)
    for fraction, side in ((0.875, 18), (1.0, 16)):
        resized = v2.functional.resize(image, [side], antialias=True)
        expected = v2.functional.center_crop(resized, [16, 16])
        assert torch.equal(center_crop(image, 16, fraction), expected)
        batch = torch.stack([image, image.flip(2)])
        assert torch.equal(center_crop(batch, 16, fraction)[0], expected)


def test_a_very_long_image_is_cut_before_it_is_enlarged(monkeypatch: pytest.MonkeyPatch) -> None:
    """The result stays the same, and no image of a thousand times the size is made on the way."""
    image = torch.randint(0, 256, (3, 5, 2001), dtype=torch.uint8)
    expected = v2.functional.center_crop(
        v2.functional.resize(image, [18], antialias=True), [16, 16]
    )
    shapes: list[tuple[int, ...]] = []
    resize = v2.functional.resize

    def spy(image: Tensor, size: list[int], **options: bool) -> Tensor:
        shapes.append(tuple(image.shape))
        return resize(image, size, **options)

    monkeypatch.setattr(v2.functional, "resize", spy)
    found = center_crop(image, 16)
    assert shapes == [(3, 5, 21)]
    assert (found.float() - expected.float()).abs().mean() < 3
    tall = center_crop(image.mT.contiguous(), 16)
    assert (tall.int() - found.mT.int()).abs().max() <= 1, "equal up to rounding to bytes"
