"""The corruption spatter: drops of water or mud on the lens.

Water has light edges: Canny's edges of the drops, the distance to them, its equalized histogram and
an emboss filter. Each step is OpenCV's function of that name, on whole batches.
"""

import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from protosphere.data.corruption_filters import (
    Border,
    Levels,
    Values,
    border_index,
    gaussian_filter,
    to_levels,
    to_values,
)
from protosphere.data.corruption_random import RandomNumbers

Plane = Float64[Tensor, "images height width"]
Mask = Bool[Tensor, "images height width"]

_WATER = (175, 238, 238)
_MUD = (63, 42, 20)
_LOW, _HIGH = 50, 150
# Tangents of 22.5 and 67.5 degrees as OpenCV's fixed-point numbers have them.
_TANGENT, _COTANGENT = 13573 / 2**15, 13573 / 2**15 + 2
_FARTHEST = 20.0
# Lengths of a step to the side, along the diagonal, and of a knight of chess.
_SIDE, _DIAGONAL, _KNIGHT = 1.0, 1.4, 2.1969
_EMBOSS = ((-2, -1, 0), (-1, 1, 1), (0, 1, 2))
_ROUNDING = 1e-6


def spatter(
    levels: Levels,
    random: RandomNumbers,
    mean: float,
    deviation: float,
    sigma: float,
    threshold: float,
    strength: float,
    is_mud: int,
) -> Levels:
    """Add drops of water, or cover with drops of mud.

    Drops are where blurred normal numbers exceed a threshold. An image without drops stays as it
    is, where the published program divides 0 by 0.

    Args:
        levels: Images.
        random: Source of the drops.
        mean: Mean of the normal numbers.
        deviation: Deviation of the normal numbers.
        sigma: Deviation of the blur of the numbers.
        threshold: Smaller numbers are not drops.
        strength: Intensity of water, or deviation of the blur of mud.
        is_mud: 1 for mud and 0 for water.
    """
    height, width = levels.shape[2:]
    numbers = random.normal(height * width).view(-1, 1, height, width)
    liquid = gaussian_filter(numbers.mul_(deviation).add_(mean), sigma)
    values = to_values(levels)
    if is_mud:
        cover = gaussian_filter((liquid > threshold).to(torch.float64), strength)
        cover = torch.where(cover < 0.8, 0.0, cover)
        return to_levels(torch.lerp(values, _color(values, _MUD), cover))
    liquid = torch.where(liquid < threshold, 0.0, liquid)
    drops = to_levels(liquid).squeeze(1).to(torch.float64)
    light = drops * embossed_distance(canny_edges(drops))
    highest = light.amax((1, 2), keepdim=True)
    light = torch.where(highest > 0, light / highest, 0.0).mul_(strength)
    return to_levels(values + light[:, None] * _color(values, _WATER))


def _color(values: Values, color: tuple[int, int, int]) -> Float64[Tensor, "3 1 1"]:
    return values.new_tensor(color).div_(255)[:, None, None]


def canny_edges(plane: Plane) -> Mask:
    """Return Canny's edges of images with levels 0 to 255, with the thresholds 50 and 150.

    Gradients are Sobel's with continued border pixels, their magnitude is |g_x| + |g_y|. An edge is
    a maximum of the magnitude across itself, above 150 or connected to such one above 50.
    """
    at = _Shifts(plane, "nearest")
    down = (at(1, -1) + 2 * at(1, 0) + at(1, 1)) - (at(-1, -1) + 2 * at(-1, 0) + at(-1, 1))
    right = (at(-1, 1) + 2 * at(0, 1) + at(1, 1)) - (at(-1, -1) + 2 * at(0, -1) + at(1, -1))
    size = down.abs() + right.abs()
    near = _Shifts(size, None)
    slope_y, slope_x = down.abs(), right.abs()
    is_steep = slope_y > _COTANGENT * slope_x
    is_flat = slope_y < _TANGENT * slope_x
    # Both gradients of one sign: the neighbors across are at the top left and the bottom right.
    falls = (down < 0) != (right < 0)
    before = torch.where(falls, near(-1, 1), near(-1, -1))
    after = torch.where(falls, near(1, -1), near(1, 1))
    is_peak = (size > before) & (size > after)
    is_peak = torch.where(is_steep, (size > near(-1, 0)) & (size >= near(1, 0)), is_peak)
    is_peak = torch.where(is_flat, (size > near(0, -1)) & (size >= near(0, 1)), is_peak)
    candidates = is_peak & (size > _LOW)
    edges = candidates & (size > _HIGH)
    while True:
        reached = torch.nn.functional.max_pool2d(edges[:, None].float(), 3, 1, 1).squeeze(1) > 0
        grown = candidates & reached
        if torch.equal(grown, edges):
            return edges
        edges = grown


def embossed_distance(edges: Mask) -> Plane:
    """Return levels 0 to 255 that are light on one side of the edges."""
    at = _Shifts(truncated_distance(edges), "mirror")
    smooth = _box(at).div_(9).add_(_ROUNDING).floor_()
    at = _Shifts(equalize_histogram(smooth), "mirror")
    embossed = torch.zeros_like(smooth)
    for y, row in enumerate(_EMBOSS):
        for x, weight in enumerate(row):
            embossed.add_(at(y - 1, x - 1), alpha=weight)
    return _box(_Shifts(embossed.clamp_(0, 255), "mirror")).div_(9).add_(0.5).floor_()


def truncated_distance(edges: Mask) -> Plane:
    """Return the distance to the nearest edge by steps of OpenCV's 5 × 5 mask, at most 20."""
    steps = [
        (y, x, {1: _SIDE, 2: _DIAGONAL, 5: _KNIGHT}[y * y + x * x])
        for y in range(-2, 3)
        for x in range(-2, 3)
        if y * y + x * x in (1, 5) or abs(y) == abs(x) == 1
    ]
    distance = torch.where(edges, 0.0, _FARTHEST).to(torch.float64)
    # No path that is shorter has more steps than this.
    for _ in range(int(_FARTHEST)):
        at = _Shifts(distance - _FARTHEST, None, reach=2)
        nearer = distance.clone()
        for y, x, length in steps:
            torch.minimum(nearer, at(y, x) + (_FARTHEST + length), out=nearer)
        if torch.equal(nearer, distance):
            break
        distance = nearer
    return distance


def equalize_histogram(plane: Plane) -> Plane:
    """Map levels 0 to 255 of each image so that they are about equally frequent."""
    index = plane.long().flatten(1)
    counts = torch.zeros(len(index), 256, dtype=torch.float64, device=plane.device)
    counts.scatter_add_(1, index, torch.ones_like(index, dtype=torch.float64))
    lowest = index.amin(1, keepdim=True)
    others = index.shape[1] - counts.gather(1, lowest)
    table = (counts.cumsum(1) - counts.gather(1, lowest)) * (255 / others.clamp(min=1))
    table = torch.where(others > 0, table.round(), lowest.to(torch.float64))
    return table.gather(1, index).view_as(plane)


class _Shifts:
    """Shifted versions of a plane: ``shifts(1, 0)`` has the pixel below at each place."""

    def __init__(self, plane: Plane, border: Border | None, reach: int = 1) -> None:
        """Pad the plane; ``None`` as border means zeros outside."""
        self.reach, (self.height, self.width) = reach, plane.shape[1:]
        if border is None:
            self.padded = torch.nn.functional.pad(plane, (reach,) * 4)
        else:
            rows, columns = (
                border_index(torch.arange(-reach, size + reach), size, border).to(plane.device)
                for size in (self.height, self.width)
            )
            self.padded = plane[:, rows][:, :, columns]

    def __call__(self, y: int, x: int) -> Plane:
        top, left = self.reach + y, self.reach + x
        return self.padded[:, top : top + self.height, left : left + self.width]


def _box(at: _Shifts) -> Plane:
    total = at(-1, -1).clone()
    for y in (-1, 0, 1):
        for x in (-1, 0, 1):
            if (y, x) != (-1, -1):
                total += at(y, x)
    return total
