"""Images as callers have them: files, Pillow images, arrays and tensors have the same pixels."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from protosphere.data.decoding import decode_image
from protosphere.data.image_inputs import check_image, list_images, read_image
from protosphere.data.splits import DataError
from support.images import IMAGE_KINDS, write_image_of_kind

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 5, 3), dtype=np.uint8)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("kind", IMAGE_KINDS)
def test_files_and_pillow_images_are_decoded_alike(
    kind: str, channels: int, tmp_path: Path
) -> None:
    path = tmp_path / "image"
    write_image_of_kind(path, kind, PIXELS)
    expected = decode_image(str(path), channels)
    assert isinstance(expected, Tensor)
    assert torch.equal(read_image(path, channels), expected)
    assert torch.equal(read_image(str(path), channels), expected)
    with Image.open(path) as image:
        assert torch.equal(read_image(image, channels), expected)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("mode", ["L", "LA", "RGB", "RGBA"])
@pytest.mark.parametrize("read", [np.asarray, lambda image: np.array(image)[::-1][::-1]])
def test_arrays_and_tensors_have_the_pixels_of_their_file(
    mode: str, channels: int, read: Callable[[Any], np.ndarray], tmp_path: Path
) -> None:
    """Also read-only arrays, and those with negative strides."""
    image = Image.fromarray(PIXELS).convert(mode)
    image.save(tmp_path / "image.png")
    expected = decode_image(str(tmp_path / "image.png"), channels)
    assert isinstance(expected, Tensor)
    array = read(image)
    assert torch.equal(read_image(array, channels), expected)
    layers = np.array(array)[..., None] if array.ndim == 2 else np.array(array)
    assert torch.equal(read_image(layers, channels), expected)
    check_image(layers, channels)
    tensor = torch.from_numpy(layers).movedim(2, 0)
    check_image(tensor, channels)
    assert torch.equal(read_image(tensor, channels), expected)


def test_other_numbers_of_channels_are_kept() -> None:
    image = torch.randint(0, 256, (5, 4, 4), dtype=torch.uint8)
    check_image(image, 5)
    assert torch.equal(read_image(image, 5), image)
    assert torch.equal(read_image(image.movedim(0, 2).numpy(), 5), image)


def test_one_image_and_several() -> None:
    pillow, array = Image.fromarray(PIXELS), PIXELS
    tensor = torch.from_numpy(PIXELS).movedim(2, 0)
    for image in ("a.png", Path("a.png"), pillow, array, array[..., 0], tensor):
        (single,) = list_images(image)
        assert single is image
        assert [id(item) for item in list_images(iter([image, image]))] == [id(image)] * 2
    assert [image.shape for image in list_images(np.stack([array, array]))] == [(6, 5, 3)] * 2
    assert [image.shape for image in list_images(torch.stack([tensor] * 3))] == [(3, 6, 5)] * 3


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("image", "channels", "message"),
    [
        (3, 3, "images must be paths, Pillow images, .* or uint8 tensors, got int"),
        (PIXELS / 255, 3, r"uint8 NumPy arrays of shape \(height, width\) .*, got float64"),
        (torch.ones(3, 4, 4), 3, r"uint8 tensors of shape \(channels, .*, got torch.float32"),
        (PIXELS.transpose(2, 0, 1), 3, r"with 1 to 4 channels, got shape \(3, 6, 5\)"),
        (PIXELS[0, 0], 3, r"got shape \(3,\)"),
        (torch.zeros(4, 4, dtype=torch.uint8), 1, r"got shape \(4, 4\)"),
        (torch.zeros(2, 4, 4, dtype=torch.uint8), 5, r"with 5 channels, got shape \(2, 4, 4\)"),
        (torch.zeros(1, 0, 8, dtype=torch.uint8), 1, r"one pixel, got shape \(1, 0, 8\)"),
        (np.zeros((0, 8), np.uint8), 1, r"one pixel, got shape \(0, 8\)"),
        (Image.new("L", (0, 8)), 1, r"one pixel, got size \(0, 8\)"),
        ("image.png", 5, "images with 5 channels must be uint8 NumPy arrays .*, got str"),
    ],
)
def test_other_types_and_shapes_are_refused(image: Any, channels: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_image(image, channels)


@pytest.mark.bad_input
def test_images_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    (tmp_path / "broken.png").write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"broken.png must be an image file; it cannot be read"):
        read_image(tmp_path / "broken.png", 3)
    with pytest.raises(DataError, match=r"a Pillow image is not \(pixels must have 8 or 16"):
        read_image(Image.new("F", (4, 4), 0.5), 3)
