"""Digital corruptions: brightness, contrast, saturate, pixelate, JPEG and elastic transform."""

import io
import os
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Float64, UInt8
from torch import Tensor

from protosphere.data.corruption_filters import (
    Levels,
    gaussian_filter,
    sample_bilinear,
    to_levels,
    to_values,
)
from protosphere.data.corruption_random import RandomNumbers

# Weights of Pillow's filters are multiples of this power of two.
_FIXED_POINT = 2.0**22


def brightness(levels: Levels, added: float) -> Levels:
    """Add to the value V = max(R, G, B) of each pixel, at constant hue and saturation.

    Then R, G and B grow by the same factor; a black pixel becomes gray.
    """
    values = to_values(levels)
    highest = values.amax(1, keepdim=True)
    raised = (highest + added).clamp(max=1)
    return to_levels(torch.where(highest > 0, values * (raised / highest), raised))


def saturate(levels: Levels, factor: float, shift: float) -> Levels:
    """Change the saturation S of each pixel to factor·S + shift, at constant hue and value.

    A gray pixel has hue 0, so that a shift makes it red.
    """
    values = to_values(levels)
    highest, lowest = values.amax(1, keepdim=True), values.amin(1, keepdim=True)
    span = highest - lowest
    saturation = torch.where(highest > 0, span / highest, 0.0)
    saturation = saturation.mul_(factor).add_(shift).clamp_(0, 1)
    red = torch.tensor([0.0, 1.0, 1.0], dtype=torch.float64, device=levels.device)
    missing = torch.where(span > 0, (highest - values) / span, red[:, None, None])
    return to_levels(highest - saturation * highest * missing)


def contrast(levels: Levels, factor: float) -> Levels:
    """Scale the deviations from the mean of each channel: mean + factor·(x − mean)."""
    values = to_values(levels)
    means = values.mean((2, 3), keepdim=True)
    return to_levels((values - means).mul_(factor).add_(means))


def pixelate(levels: Levels, factor: float) -> Levels:
    """Reduce the size by a factor and enlarge it again, with Pillow's box filter.

    The result is Pillow's in every bit: its weights are whole multiples of 2⁻²², columns come
    before rows, and every step is rounded to a level.
    """
    pixels = levels.to(torch.float64)
    height, width = levels.shape[2:]
    for rows, columns in ((int(height * factor), int(width * factor)), (height, width)):
        pixels = _resize_axis(pixels, columns)
        pixels = _resize_axis(pixels.mT, rows).mT
    return pixels.to(torch.uint8)


def _resize_axis(
    pixels: Float64[Tensor, "images channels height width"], size: int
) -> Float64[Tensor, "images channels height size"]:
    weights = box_weights(pixels.shape[3], size).to(pixels.device)
    return torch.matmul(pixels, weights.T).add_(_FIXED_POINT / 2).div_(_FIXED_POINT).floor_()


@lru_cache(maxsize=32)
def box_weights(old: int, new: int) -> Float64[Tensor, "new old"]:
    """Return the whole numbers that Pillow's box filter weights pixels with."""
    scale = old / new
    width = max(scale, 1.0)
    centers = (torch.arange(new, dtype=torch.float64)[:, None] + 0.5) * scale
    pixels = torch.arange(old, dtype=torch.float64)
    # A pixel may lie at the edge of the box: both conditions and their rounding are Pillow's.
    distances = (pixels - centers + 0.5) * (1 / width)
    inside = (distances > -0.5) & (distances <= 0.5)
    inside &= pixels >= (centers - width / 2 + 0.5).floor()
    inside &= pixels < (centers + width / 2 + 0.5).floor()
    inside = inside.to(torch.float64)
    return (inside / inside.sum(1, keepdim=True) * _FIXED_POINT).round()


def jpeg_compression(levels: Levels, quality: int) -> Levels:
    """Compress as a JPEG file of this quality and decode it, with Pillow, on CPU threads."""
    pixels = levels.permute(0, 2, 3, 1).contiguous().cpu().numpy()
    threads = min(32, os.cpu_count() or 1)
    # Few large tasks: one per image would cost more than the work.
    parts = np.array_split(pixels, min(len(pixels), 4 * threads))
    with ThreadPoolExecutor(threads) as pool:
        decoded = list(pool.map(lambda part: [_through_jpeg(p, quality) for p in part], parts))
    stacked = torch.from_numpy(np.stack([image for part in decoded for image in part]))
    return stacked.to(levels.device).permute(0, 3, 1, 2).contiguous()


def _through_jpeg(
    pixels: UInt8[np.ndarray, "height width 3"], quality: int
) -> UInt8[np.ndarray, "height width 3"]:
    from PIL import Image  # noqa: PLC0415

    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "JPEG", quality=quality)
    with Image.open(stream) as image:
        return np.asarray(image)


def elastic_transform(
    levels: Levels, random: RandomNumbers, amplitude: float, sigma: float, shift: float
) -> Levels:
    """Move the image by a random affine map, then every pixel by a smooth random field.

    The affine map moves three corners of the central square by up to ``shift``; the field is
    uniform noise blurred by a Gaussian of deviation ``sigma``, times ``amplitude``.
    Both steps interpolate linearly; the first mirrors the image at the centers of its border
    pixels, the second at their edges.

    Args:
        levels: Images.
        random: Source of the map and the field.
        amplitude: Amplitude of the field as a fraction of the shorter side.
        sigma: Deviation as a fraction of the shorter side.
        shift: Largest shift of a corner as a fraction of the shorter side.
    """
    images, _, height, width = levels.shape
    side = min(height, width)
    numbers = random.uniform(6 + 2 * height * width).mul_(2).sub_(1)
    maps = inverse_affine_maps(numbers[:, :6].view(-1, 3, 2) * (shift * side), height, width)
    y = torch.arange(height, dtype=torch.float64, device=levels.device)[:, None]
    x = torch.arange(width, dtype=torch.float64, device=levels.device)
    m = maps[:, :, :, None, None]
    source_x = m[:, 0, 0] * x + m[:, 0, 1] * y + m[:, 0, 2]
    source_y = m[:, 1, 0] * x + m[:, 1, 1] * y + m[:, 1, 2]
    values = sample_bilinear(to_values(levels), source_y, source_x, "mirror")
    if amplitude > 0:
        field = numbers[:, 6:].reshape(images, 2, height, width)
        field = gaussian_filter(field, sigma * side, border="reflect", truncate=3.0)
        field.mul_(amplitude * side)
        values = sample_bilinear(values, y + field[:, 1], x + field[:, 0], "reflect")
    return to_levels(values)


def inverse_affine_maps(
    shifts: Float64[Tensor, "images 3 2"], height: int, width: int
) -> Float64[Tensor, "images 2 3"]:
    """Return the maps from the shifted corners of the central square back to the corners.

    A map (a b c; d e f) takes (x, y) to (ax + by + c, dx + ey + f). The first
    coordinate of the square's center comes from the height, as in the published program.
    """
    center = torch.tensor([height // 2, width // 2], dtype=torch.float64)
    side = min(height, width) // 3
    corners = center + side * torch.tensor([[1, 1], [1, -1], [-1, -1]], dtype=torch.float64)
    corners = corners.to(shifts.device)
    ones = torch.ones(*shifts.shape[:2], 1, dtype=torch.float64, device=shifts.device)
    moved = torch.cat([corners + shifts, ones], 2)
    solution: Tensor = torch.linalg.solve(moved, corners.expand_as(shifts))
    return solution.mT
