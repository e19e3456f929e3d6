"""Published constants of the corruptions, one row per severity.

The values are those of the programs that made ImageNet-C (224 px) and CIFAR-10-C (32 px).

Reference: Hendrycks and Dietterich, Benchmarking Neural Network Robustness to Common Corruptions
and Perturbations, ICLR 2019; https://github.com/hendrycks/robustness.
"""

from collections.abc import Mapping
from typing import Any

# Images whose shorter side is smaller have the constants for 32 px, others those for 224 px.
SMALLEST_LARGE_IMAGE = 64

# gaussian_noise, speckle_noise: standard deviation. shot_noise: photons of a white pixel.
# impulse_noise: fraction of changed values. gaussian_blur: sigma. glass_blur: sigma, largest shift,
# iterations. defocus_blur: radius, sigma of the antialiasing. motion_blur: radius, sigma.
# zoom_blur: stop and step of the zoom factors from 1. snow: mean, deviation, zoom, threshold,
# radius, sigma, weight of the image. frost: weights of the image and the texture. fog: amount,
# decay. brightness: added value. contrast: factor. saturate: factor, shift. elastic_transform:
# amplitude, sigma and affine shift as fractions of the size. pixelate: factor. jpeg_compression:
# quality. spatter: mean, deviation, sigma, threshold, intensity (water) or sigma (mud), 1 for mud.
SMALL_IMAGES: Mapping[str, tuple[Any, ...]] = {
    "gaussian_noise": (0.04, 0.06, 0.08, 0.09, 0.10),
    "shot_noise": (500, 250, 100, 75, 50),
    "impulse_noise": (0.01, 0.02, 0.03, 0.05, 0.07),
    "defocus_blur": ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1.0, 0.2), (1.5, 0.1)),
    "glass_blur": ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
    "motion_blur": ((6, 1.0), (6, 1.5), (6, 2.0), (8, 2.0), (9, 2.5)),
    "zoom_blur": ((1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01)),
    "snow": (
        (0.1, 0.2, 1.0, 0.6, 8, 3.0, 0.95),
        (0.1, 0.2, 1.0, 0.5, 10, 4.0, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4.0, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6.0, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12.0, 0.8),
    ),
    "frost": ((1.0, 0.2), (1.0, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)),
    "fog": ((0.2, 3.0), (0.5, 3.0), (0.75, 2.5), (1.0, 2.0), (1.5, 1.75)),
    "brightness": (0.05, 0.1, 0.15, 0.2, 0.3),
    "contrast": (0.75, 0.5, 0.4, 0.3, 0.15),
    "elastic_transform": (
        (0.0, 0.0, 0.08),
        (0.05, 0.2, 0.07),
        (0.08, 0.06, 0.06),
        (0.1, 0.04, 0.05),
        (0.1, 0.03, 0.03),
    ),
    "pixelate": (0.95, 0.9, 0.85, 0.75, 0.65),
    "jpeg_compression": (80, 65, 58, 50, 40),
    "speckle_noise": (0.06, 0.1, 0.12, 0.16, 0.2),
    "gaussian_blur": (0.4, 0.6, 0.7, 0.8, 1.0),
    "spatter": (
        (0.62, 0.1, 0.7, 0.7, 0.5, 0),
        (0.65, 0.1, 0.8, 0.7, 0.5, 0),
        (0.65, 0.3, 1.0, 0.69, 0.5, 0),
        (0.65, 0.1, 0.7, 0.69, 0.6, 1),
        (0.65, 0.1, 0.5, 0.68, 0.6, 1),
    ),
    "saturate": ((0.3, 0.0), (0.1, 0.0), (1.5, 0.0), (2.0, 0.1), (2.5, 0.2)),
}

# The published lengths of elastic_transform are fractions of 244 px, for images of 224 px.
_ELASTIC = 244 / 224

LARGE_IMAGES: Mapping[str, tuple[Any, ...]] = {
    "gaussian_noise": (0.08, 0.12, 0.18, 0.26, 0.38),
    "shot_noise": (60, 25, 12, 5, 3),
    "impulse_noise": (0.03, 0.06, 0.09, 0.17, 0.27),
    "defocus_blur": ((3.0, 0.1), (4.0, 0.5), (6.0, 0.5), (8.0, 0.5), (10.0, 0.5)),
    "glass_blur": ((0.7, 1, 2), (0.9, 2, 1), (1.0, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
    "motion_blur": ((10, 3.0), (15, 5.0), (15, 8.0), (15, 12.0), (20, 15.0)),
    "zoom_blur": ((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03)),
    "snow": (
        (0.1, 0.3, 3.0, 0.5, 10, 4.0, 0.8),
        (0.2, 0.3, 2.0, 0.5, 12, 4.0, 0.7),
        (0.55, 0.3, 4.0, 0.9, 12, 8.0, 0.7),
        (0.55, 0.3, 4.5, 0.85, 12, 8.0, 0.65),
        (0.55, 0.3, 2.5, 0.85, 12, 12.0, 0.55),
    ),
    "frost": ((1.0, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75)),
    "fog": ((1.5, 2.0), (2.0, 2.0), (2.5, 1.7), (2.5, 1.5), (3.0, 1.4)),
    "brightness": (0.1, 0.2, 0.3, 0.4, 0.5),
    "contrast": (0.4, 0.3, 0.2, 0.1, 0.05),
    "elastic_transform": (
        (2 * _ELASTIC, 0.7 * _ELASTIC, 0.1 * _ELASTIC),
        (2 * _ELASTIC, 0.08 * _ELASTIC, 0.2 * _ELASTIC),
        (0.05 * _ELASTIC, 0.01 * _ELASTIC, 0.02 * _ELASTIC),
        (0.07 * _ELASTIC, 0.01 * _ELASTIC, 0.02 * _ELASTIC),
        (0.12 * _ELASTIC, 0.01 * _ELASTIC, 0.02 * _ELASTIC),
    ),
    "pixelate": (0.6, 0.5, 0.4, 0.3, 0.25),
    "jpeg_compression": (25, 18, 15, 10, 7),
    "speckle_noise": (0.15, 0.2, 0.35, 0.45, 0.6),
    "gaussian_blur": (1.0, 2.0, 3.0, 4.0, 6.0),
    "spatter": (
        (0.65, 0.3, 4.0, 0.69, 0.6, 0),
        (0.65, 0.3, 3.0, 0.68, 0.6, 0),
        (0.65, 0.3, 2.0, 0.68, 0.5, 0),
        (0.65, 0.3, 1.0, 0.65, 1.5, 1),
        (0.67, 0.4, 1.0, 0.65, 1.5, 1),
    ),
    "saturate": ((0.3, 0.0), (0.1, 0.0), (2.0, 0.0), (5.0, 0.1), (20.0, 0.2)),
}


def constants(name: str, *, severity: int, height: int, width: int) -> tuple[Any, ...]:
    """Return the constants of a corruption for images of this size.

    Args:
        name: Name of the corruption.
        severity: Severity, 1 to 5.
        height: Height of the images.
        width: Width of the images.

    >>> constants("contrast", severity=5, height=32, width=32)
    (0.15,)
    """
    is_small = min(height, width) < SMALLEST_LARGE_IMAGE
    row = (SMALL_IMAGES if is_small else LARGE_IMAGES)[name][severity - 1]
    return row if isinstance(row, tuple) else (row,)
