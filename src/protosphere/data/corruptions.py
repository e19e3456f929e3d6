"""The corruptions of ImageNet-C and CIFAR-10-C, computed from clean images on their device.

Names, formulas and constants are those of the published benchmark. Everything is computed in
float64 and truncated to levels 0 to 255 as in the published programs; images are not compressed
again as JPEG files, as those of ImageNet-C are. Known differences from the published programs:

- Random numbers, and the textures of frost unless their folder is given.
- Affine maps interpolate at exact positions, OpenCV's at multiples of 1/32 pixel.
- Images that are not square are supported: each axis is treated like that of a square.
- Images of other sizes than 32 and 224 px have the constants of 32 px if their shorter side is
  less than 64 px, otherwise those of 224 px. Lengths in pixels are not scaled, but those of
  ``elastic_transform`` are, since they are published as fractions of the size.
"""

from collections.abc import Callable

import torch
from jaxtyping import UInt8
from torch import Tensor

from protosphere.data import corruption_blur as blur
from protosphere.data import corruption_digital as digital
from protosphere.data import corruption_noise as noise
from protosphere.data import corruption_weather as weather
from protosphere.data.corruption_constants import SMALLEST_LARGE_IMAGE, constants
from protosphere.data.corruption_filters import Levels
from protosphere.data.corruption_random import RandomNumbers
from protosphere.data.corruption_spatter import spatter
from protosphere.data.frost_textures import FrostTextures, procedural_frost_textures
from protosphere.data.setting_checks import check_integer
from protosphere.data.splits import DataError

CORRUPTIONS = (
    "gaussian_noise",
    "shot_noise",
    "impulse_noise",
    "defocus_blur",
    "glass_blur",
    "motion_blur",
    "zoom_blur",
    "snow",
    "frost",
    "fog",
    "brightness",
    "contrast",
    "elastic_transform",
    "pixelate",
    "jpeg_compression",
)
"""Names of the 15 corruptions of ImageNet-C."""
EXTRA_CORRUPTIONS = ("speckle_noise", "gaussian_blur", "spatter", "saturate")
"""Names of its four extra corruptions."""
SEVERITIES = (1, 2, 3, 4, 5)
# Changes whenever an image would be corrupted in another way than before, or its frost texture.
CORRUPTIONS_VERSION = 1

_SMALLEST_SIDE = 8
# Pixel values that are processed together: more do not fit into the caches of a CPU.
_CHUNK = {"cpu": 1 << 20, "cuda": 1 << 23}

# Called with the images, random numbers where there are any, and the constants.
_RANDOM: dict[str, Callable[..., Levels]] = {
    "gaussian_noise": noise.gaussian_noise,
    "shot_noise": noise.shot_noise,
    "impulse_noise": noise.impulse_noise,
    "glass_blur": blur.glass_blur,
    "motion_blur": blur.motion_blur,
    "snow": weather.snow,
    "frost": weather.frost,
    "fog": weather.fog,
    "elastic_transform": digital.elastic_transform,
    "speckle_noise": noise.speckle_noise,
    "spatter": spatter,
}
_DETERMINISTIC: dict[str, Callable[..., Levels]] = {
    "defocus_blur": blur.defocus_blur,
    "zoom_blur": blur.zoom_blur,
    "brightness": digital.brightness,
    "contrast": digital.contrast,
    "pixelate": digital.pixelate,
    "jpeg_compression": digital.jpeg_compression,
    "gaussian_blur": blur.gaussian_blur,
    "saturate": digital.saturate,
}


def corrupt(
    images: UInt8[Tensor, "images 3 height width"],
    name: str,
    *,
    severity: int,
    seed: int = 0,
    first_index: int = 0,
    frost: FrostTextures | None = None,
) -> UInt8[Tensor, "images 3 height width"]:
    """Corrupt clean images.

    The result for an image depends on the image, its index, the name, the severity and the seed;
    it does not depend on the other images of the batch. On a GPU it is the same up to rounding:
    single pixels differ by one level.

    Args:
        images: Clean images of at least 8 × 8 pixels, on any device.
        name: One of ``CORRUPTIONS`` or ``EXTRA_CORRUPTIONS``.
        severity: Severity, 1 to 5.
        seed: Seed of everything random.
        first_index: Index of the first image in the dataset.
        frost: Textures of the corruption ``frost``. None means the procedural ones.

    Returns:
        Corrupted images on the device of the images.

    Raises:
        ValueError: The images are not uint8 with three channels or too small, the name is unknown,
            or the severity or an index is out of range.
        DataError: A texture of frost is not larger than the images.

    >>> images = torch.full((2, 3, 32, 32), 128, dtype=torch.uint8)
    >>> corrupt(images, "brightness", severity=5).unique()
    tensor([204], dtype=torch.uint8)

    Reference: Hendrycks and Dietterich, Benchmarking Neural Network Robustness to Common
    Corruptions and Perturbations, ICLR 2019.
    """
    _check(images, name, severity, seed, first_index)
    height, width = images.shape[2:]
    parameters = constants(name, severity=severity, height=height, width=width)
    if name == "frost":
        textures = _frost_crops(frost or procedural_frost_textures(), height, width)
        parameters = (*parameters, [texture.to(images.device) for texture in textures])
    size = max(1, _CHUNK.get(images.device.type, 1 << 20) // (3 * height * width))
    done = torch.empty_like(images)
    for start in range(0, len(images), size):
        chunk = images[start : start + size]
        random = RandomNumbers(
            seed=seed,
            name=name,
            severity=severity,
            first_index=first_index + start,
            num_images=len(chunk),
            device=images.device,
        )
        if name in _RANDOM:
            done[start : start + size] = _RANDOM[name](chunk, random, *parameters)
        else:
            done[start : start + size] = _DETERMINISTIC[name](chunk, *parameters)
    return done


def _check(images: Tensor, name: str, severity: int, seed: int, first_index: int) -> None:
    names = CORRUPTIONS + EXTRA_CORRUPTIONS
    if name not in names:
        raise ValueError(f"name must be one of {', '.join(names)}; got {name!r}")
    check_integer("severity", severity, low=1)
    if severity not in SEVERITIES:
        raise ValueError(f"severity must be at most {SEVERITIES[-1]}, got {severity}")
    check_integer("seed", seed, low=0)
    check_integer("first_index", first_index, low=0)
    if images.dtype != torch.uint8:
        raise ValueError(f"images must be uint8 with levels 0 to 255, got {images.dtype}")
    if images.ndim != 4 or images.shape[1] != 3:
        raise ValueError(
            "images must have three channels, shape (images, 3, height, width); got "
            f"{tuple(images.shape)} (repeat the channel of gray images)"
        )
    if min(images.shape[2:]) < _SMALLEST_SIDE:
        raise ValueError(
            f"images must have at least {_SMALLEST_SIDE} × {_SMALLEST_SIDE} pixels, got "
            f"{images.shape[2]} × {images.shape[3]}"
        )


def _frost_crops(frost: FrostTextures, height: int, width: int) -> tuple[Tensor, ...]:
    """Return the textures at the scale for images of this size."""
    # Small images: a linear reduction to a fifth, which takes the middle pixel of each five.
    start, step = (2, 5) if min(height, width) < SMALLEST_LARGE_IMAGE else (0, 1)
    textures = tuple(texture[:, start::step, start::step] for texture in frost.textures)
    for texture in textures:
        if texture.shape[1] <= height or texture.shape[2] <= width:
            raise DataError(
                f"frost textures must be larger than the images, {height * step} × {width * step} "
                f"pixels; got {texture.shape[1] * step} × {texture.shape[2] * step}"
            )
    return textures
