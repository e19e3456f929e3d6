"""Blur corruptions: Gaussian, defocus, glass, motion and zoom blur."""

import math
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from protosphere.data.corruption_filters import (
    Levels,
    LinearMap,
    Values,
    border_index,
    filter_matrix,
    gaussian_filter,
    gaussian_weights,
    to_levels,
    to_values,
    zoom_matrix,
)
from protosphere.data.corruption_random import RandomNumbers


def gaussian_blur(levels: Levels, sigma: float) -> Levels:
    """Blur with a Gaussian that is cut off at four deviations; the border pixels continue."""
    return to_levels(gaussian_filter(to_values(levels), sigma))


def defocus_blur(levels: Levels, radius: float, antialias: float) -> Levels:
    """Correlate with an antialiased disk; the image is mirrored at the border pixels.

    Args:
        levels: Images.
        radius: Radius of the disk.
        antialias: Deviation of the Gaussian that blurs the disk.
    """
    return to_levels(_defocus_map(*levels.shape[2:], radius, antialias)(to_values(levels)))


@lru_cache(maxsize=5)
def _defocus_map(height: int, width: int, radius: float, antialias: float) -> LinearMap:
    kernel = disk(radius, antialias)
    center = len(kernel) // 2
    used = kernel.any(1).nonzero().squeeze(1).tolist()
    lines = torch.eye(height, dtype=torch.float64)
    y = torch.arange(height)
    rows = [lines[border_index(y + row - center, height, "mirror")] for row in used]
    columns = [filter_matrix(kernel[row], width, "mirror") for row in used]
    return LinearMap(torch.stack(rows), torch.stack(columns))


@lru_cache(maxsize=16)
def disk(radius: float, antialias: float) -> Float64[Tensor, "side side"]:
    """Return a normalized disk, blurred by a Gaussian of 3 × 3 pixels (5 × 5 past radius 8)."""
    half, reach = (8, 1) if radius <= 8 else (int(radius), 2)
    axis = torch.arange(-half, half + 1, dtype=torch.float64)
    inside = (axis[:, None].square() + axis.square() <= radius * radius).to(torch.float64)
    blur = filter_matrix(gaussian_weights(antialias, reach), len(axis), "mirror")
    return blur @ (inside / inside.sum()) @ blur.T


def zoom_blur(levels: Levels, stop: float, step: float) -> Levels:
    """Average the image and its magnifications by the factors from 1 up to ``stop``.

    Args:
        levels: Images.
        stop: End of the factors, as ``numpy.arange`` has it.
        step: Distance of two factors.
    """
    return to_levels(_zoom_map(*levels.shape[2:], stop, step)(to_values(levels)))


@lru_cache(maxsize=5)
def _zoom_map(height: int, width: int, stop: float, step: float) -> LinearMap:
    factors = np.arange(1, stop, step).tolist()
    rows, columns = (
        torch.stack(
            [torch.eye(size, dtype=torch.float64), *(zoom_matrix(size, f) for f in factors)]
        )
        for size in (height, width)
    )
    return LinearMap(rows / len(rows), columns)


def motion_blur(levels: Levels, random: RandomNumbers, radius: int, sigma: float) -> Levels:
    """Blur along a line at a random angle of -45 to 45 degrees."""
    angles = random.uniform(1).squeeze(1).mul_(90).sub_(45)
    return blur_along_line(levels, angles, radius=radius, sigma=sigma)


def blur_along_line(
    levels: Levels, angles: Float64[Tensor, "images"], *, radius: int, sigma: float
) -> Levels:
    """Blur along a line with the weights of half a Gaussian, as ImageMagick's motion blur does.

    A pixel (y, x) becomes the mean of (y + ⌈i sin θ − ½⌉, x + ⌈i cos θ − ½⌉) for i = 0, …, 2·radius
    with weights proportional to exp(−i²/2σ²), rounded to the nearest level. Border pixels continue.

    Args:
        levels: Images.
        angles: Angle θ of each image in degrees.
        radius: Half of the number of steps along the line.
        sigma: Deviation of the Gaussian.
    """
    images, channels, height, width = levels.shape
    steps = torch.arange(2 * radius + 1, dtype=torch.float64)
    weights = torch.softmax(steps.square() / (-2 * sigma * sigma), 0).tolist()
    # The angles are used on the CPU: a step may lie halfway between two pixels.
    radians = angles.cpu().mul(math.pi / 180)[:, None, None]
    y, x = (
        (steps * part - 0.5).ceil().long().to(levels.device).movedim(2, 0)
        for part in (radians.sin(), radians.cos())
    )
    flat = levels.flatten(2).to(torch.float64)
    blurred = torch.zeros_like(flat)
    row_axis = torch.arange(height, device=levels.device)
    column_axis = torch.arange(width, device=levels.device)
    for weight, shift_y, shift_x in zip(weights, y, x, strict=True):
        rows = border_index(row_axis + shift_y, height, "nearest")
        columns = border_index(column_axis + shift_x, width, "nearest")
        index = (rows[:, :, None] * width + columns[:, None, :]).view(images, 1, -1)
        blurred.add_(flat.gather(2, index.expand(-1, channels, -1)), alpha=weight)
    return blurred.add_(0.5 + 1e-6).to(torch.uint8).view_as(levels)


def glass_blur(
    levels: Levels, random: RandomNumbers, sigma: float, reach: int, iterations: int
) -> Levels:
    """Blur, replace pixels by random ones nearby, and blur again.

    From the bottom right to the top left each inner pixel is replaced by the present value of a
    pixel at most ``reach`` away. The published program means to exchange the two, but its exchange
    of two views of an array copies one over the other, and the published images are made so.

    Args:
        levels: Images.
        random: Source of the shifts.
        sigma: Deviation of both blurs.
        reach: Largest shift to the top or left; shifts to the bottom and right are smaller by one.
        iterations: Number of passes over the image.
    """
    height, width = levels.shape[2:]
    shuffled = gaussian_blur(levels, sigma).flatten(2)
    numbers = random.uniform(iterations * 2 * height * width)
    shifts = numbers.mul_(2 * reach).floor_().long().sub_(reach)
    shifts = shifts.view(-1, iterations, 2, height, width)
    for iteration in range(iterations):
        sources = copied_from(shifts[:, iteration, 0], shifts[:, iteration, 1], reach)
        shuffled = shuffled.gather(2, sources[:, None].expand_as(shuffled))
    return to_levels(gaussian_filter(to_values(shuffled.view_as(levels)), sigma))


def copied_from(
    dy: Int64[Tensor, "images height width"], dx: Int64[Tensor, "images height width"], reach: int
) -> Int64[Tensor, "images pixels"]:
    """Return the pixel whose first value each pixel has after one pass of copies.

    A copy from a pixel that has been replaced already is a copy of where that one was copied from.
    Instead of following these links one after the other, all of them are doubled in length until
    none can be left.
    """
    height, width = dy.shape[1:]
    y = torch.arange(height, device=dy.device)[:, None]
    x = torch.arange(width, device=dy.device)

    def is_replaced(rows: Tensor, columns: Tensor) -> Tensor:
        inside = (rows > reach) & (rows <= height - reach)
        return inside & (columns > reach) & (columns <= width - reach)

    own = (y * width + x).expand_as(dy)
    changes = is_replaced(y, x)
    source = torch.where(changes, (y + dy) * width + x + dx, own)
    links_on = changes & is_replaced(y + dy, x + dx) & (source > own)
    link = torch.where(links_on, source, own).flatten(1)
    source = source.flatten(1)
    for _ in range((height * width).bit_length()):
        link = link.gather(1, link)
    return source.gather(1, link)


def magnify(values: Values, factor: float) -> Values:
    """Magnify the centers of images by bilinear interpolation, at the same size."""
    rows, columns = (zoom_matrix(size, factor)[None] for size in values.shape[2:])
    return LinearMap(rows, columns)(values)
