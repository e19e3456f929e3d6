"""Decode image files, and crop the center of an image."""

import importlib
import warnings
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from protosphere.data.splits import DataError

# Side of the center crop as a fraction of the shorter side of an image.
CROP_FRACTION = 0.875


def decode_image(path: str, channels: int = 3) -> Tensor | str:
    """Read an image file.

    Images are rotated as their EXIF orientation says, and 16-bit images are scaled to 8 bits.

    Args:
        path: Path of the file.
        channels: 3 for color and 1 for grayscale; other images are converted.

    Returns:
        A uint8 tensor of shape (channels, height, width), or a message that says why the file
        cannot be read.
    """
    from PIL import Image  # noqa: PLC0415

    try:
        with warnings.catch_warnings(action="ignore"), Image.open(path) as image:
            return convert_image(image, channels)
    except Exception as error:  # Whatever a damaged file makes Pillow raise.
        return f"{path} must be an image file; it cannot be read ({read_error(error)})"


def convert_image(image: Any, channels: int = 3) -> UInt8[Tensor, "channels height width"]:
    """Return the pixels of a Pillow image, rotated and converted as :func:`decode_image` does.

    Args:
        image: A ``PIL.Image.Image`` of any mode.
        channels: 3 for color and 1 for grayscale.

    Raises:
        DataError: The pixels have neither 8 nor 16 bits.
    """
    converted = _to_8_bits(_rotate(image)).convert("RGB" if channels == 3 else "L")
    pixels = torch.from_numpy(np.array(converted))
    return pixels.movedim(2, 0).contiguous() if channels == 3 else pixels[None]


def _to_8_bits(image: Any) -> Any:
    """Scale 16-bit grayscale images, which Pillow would clip at 255."""
    if not image.mode.startswith(("I", "F")):
        return image
    from PIL import Image  # noqa: PLC0415

    levels = np.asarray(image)
    if image.mode == "F" or levels.min() < 0 or levels.max() > 65535:
        raise DataError("pixels must have 8 or 16 bits")
    return Image.fromarray((levels.astype(np.float64) / 257).round().astype(np.uint8))


def _rotate(image: Any) -> Any:
    """Rotate an image as its EXIF orientation says."""
    from PIL import ImageOps  # noqa: PLC0415

    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # Whatever damaged EXIF data make the parser raise: the pixels may be intact.
        return image


def center_crop(
    image: UInt8[Tensor, "*batch height width"], size: int, crop_fraction: float = CROP_FRACTION
) -> UInt8[Tensor, "*batch size size"]:
    """Resize an image with torchvision and crop the central square.

    Args:
        image: Pixels from 0 to 255.
        size: Side of the square in pixels.
        crop_fraction: Side of the square as a fraction of the shorter side of the image.
    """
    resized = _resize(image, round(size / crop_fraction))
    square: Tensor = import_torchvision("transforms.v2.functional").center_crop(
        resized, [size, size]
    )
    return square


def central_square(
    image: UInt8[Tensor, "*batch height width"], size: int
) -> UInt8[Tensor, "*batch side side"]:
    """Resize an image as :func:`center_crop` does, and keep a square of the whole shorter side.

    The square lies around the pixels that :func:`center_crop` keeps, so that the center crop of the
    square is the center crop of the image.

    Args:
        image: Pixels from 0 to 255.
        size: Side of the center crop in pixels.

    Returns:
        A square of side ``round(size / CROP_FRACTION)``.
    """
    side = round(size / CROP_FRACTION)
    resized = _resize(image, side)
    # Both crops are rounded to whole pixels; this is where the smaller one begins in the larger.
    inner = round((side - size) / 2)
    top, left = (round((length - size) / 2) - inner for length in resized.shape[-2:])
    return resized[..., top : top + side, left : left + side]


def _resize(image: Tensor, shorter_side: int) -> Tensor:
    functional = import_torchvision("transforms.v2.functional")
    # Enlarged as a whole, a very long image could take gigabytes. Its ends do not reach the crop;
    # the same number of pixels is cut off at both ends.
    longest = 4 * min(image.shape[-2:])
    sides = [min(side, longest + side % 2) for side in image.shape[-2:]]
    resized: Tensor = functional.resize(
        functional.center_crop(image, sides), [shorter_side], antialias=True
    )
    return resized


def read_error(error: Exception) -> str:
    """Return why a file cannot be read: the system's reason, or that its content is invalid."""
    if isinstance(error, DataError):
        return str(error)
    reason = error.strerror if isinstance(error, OSError) else None
    return reason or "damaged or in another format"


def import_torchvision(module: str) -> Any:
    """Import a module of torchvision.

    Raises:
        DataError: torchvision is not installed.
    """
    try:
        return importlib.import_module(f"torchvision.{module}")
    except ImportError as error:
        raise DataError(
            "image folders need torchvision, which is not installed: "
            'pip install "protosphere[train]"'
        ) from error
