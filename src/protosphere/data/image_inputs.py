"""Images as callers have them: paths, Pillow images, NumPy arrays and tensors."""

import warnings
from collections.abc import Iterable
from os import PathLike, fspath
from typing import TYPE_CHECKING, TypeAlias, Union

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from protosphere.data.decoding import convert_image, decode_image, read_error
from protosphere.data.splits import DataError

if TYPE_CHECKING:
    import PIL.Image

# Pillow need not be installed.
ImageInput: TypeAlias = Union[
    str, PathLike[str], "PIL.Image.Image", UInt8[np.ndarray, "..."], UInt8[Tensor, "..."]
]


def list_images(images: ImageInput | Iterable[ImageInput]) -> list[ImageInput]:
    """Return one image, the images of a batch, or those of an iterable as a list.

    Args:
        images: A path, a Pillow image, an array or a tensor; an array or a tensor with four axes,
            which is a batch; or an iterable of images.
    """
    if isinstance(images, np.ndarray | Tensor):
        return list(images) if images.ndim == 4 else [images]
    if isinstance(images, str | PathLike) or not isinstance(images, Iterable):
        return [images]
    return list(images)


def check_image(image: ImageInput, channels: int) -> None:
    """Check the type and the shape of an image, without reading files.

    Args:
        image: The image, as :func:`read_image` takes it.
        channels: Number of channels that it will be read with.

    Raises:
        ValueError: The image has another type or shape.
    """
    if isinstance(image, np.ndarray):
        layout = "NumPy arrays of shape (height, width) or (height, width, channels)"
        shape, has_axes = tuple(image.shape), image.ndim in (2, 3)
        own_channels = shape[2] if image.ndim == 3 else 1
        is_uint8 = image.dtype == np.uint8
    elif isinstance(image, Tensor):
        layout = "tensors of shape (channels, height, width)"
        shape, has_axes = tuple(image.shape), image.ndim == 3
        own_channels = shape[0] if has_axes else 1
        is_uint8 = image.dtype == torch.uint8
    else:
        _check_readable(image, channels)
        return
    if not is_uint8:
        raise ValueError(f"images must be uint8 {layout}, got {image.dtype}")
    expected = (1, 2, 3, 4) if channels in (1, 3) else (channels,)
    if not has_axes or own_channels not in expected:
        numbers = "1 to 4" if channels in (1, 3) else channels
        raise ValueError(
            f"images must be uint8 {layout} with {numbers} channels, got shape {shape}"
        )
    if 0 in shape:
        raise ValueError(f"images must have at least one pixel, got shape {shape}")


def read_image(image: ImageInput, channels: int) -> UInt8[Tensor, "channels height width"]:
    """Return the pixels of an image.

    Files and Pillow images are rotated as their EXIF orientation says, and 16-bit images are scaled
    to 8 bits. Images with another number of channels are converted as Pillow converts them: alpha
    is dropped, colors become their luminance, and gray values are repeated.

    Args:
        image: A path; a Pillow image; a uint8 NumPy array of shape (height, width) or (height,
            width, channels); or a uint8 tensor of shape (channels, height, width). The channels are
            gray or RGB, with or without alpha.
        channels: 3 for color and 1 for grayscale. Any other number is that of an array or a tensor.

    Raises:
        DataError: The image cannot be read.
    """
    if isinstance(image, str | PathLike):
        decoded = decode_image(fspath(image), channels)
        if isinstance(decoded, str):
            raise DataError(decoded)
        return decoded
    if isinstance(image, np.ndarray):
        # A copy, because torch takes no read-only memory and no negative strides.
        pixels = torch.from_numpy(np.array(image, order="C"))
        image = pixels[None] if pixels.ndim == 2 else pixels.movedim(2, 0)
    if not isinstance(image, Tensor):
        return _convert(image, channels)
    if len(image) == channels:
        return image
    return _convert(_to_pillow(image), channels).to(image.device)


def _check_readable(image: object, channels: int) -> None:
    if not isinstance(image, str | PathLike):
        from PIL import Image  # noqa: PLC0415

        if not isinstance(image, Image.Image):
            raise ValueError(
                "images must be paths, Pillow images, uint8 NumPy arrays or uint8 tensors, "
                f"got {type(image).__name__}"
            )
        if 0 in image.size:
            raise ValueError(f"images must have at least one pixel, got size {image.size}")
    if channels not in (1, 3):
        raise ValueError(
            f"images with {channels} channels must be uint8 NumPy arrays or uint8 tensors, "
            f"got {type(image).__name__}"
        )


def _convert(image: "PIL.Image.Image", channels: int) -> Tensor:
    try:
        with warnings.catch_warnings(action="ignore"):
            return convert_image(image, channels)
    except Exception as error:  # Whatever a damaged file makes Pillow raise.
        reason = read_error(error)
        raise DataError(f"images must be readable; a Pillow image is not ({reason})") from None


def _to_pillow(image: Tensor) -> "PIL.Image.Image":
    from PIL import Image  # noqa: PLC0415

    pixels = image.movedim(0, 2).cpu().numpy()
    return Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)
