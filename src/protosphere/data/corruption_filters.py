"""Linear filters of the corruptions as matrices: one per axis, with the border built in.

All of them compute in float64, so that CPU and GPU agree and no TF32 multiplication is used.
"""

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal

import torch
from jaxtyping import Float64, Int64, UInt8
from torch import Tensor

Values = Float64[Tensor, "images channels height width"]
Levels = UInt8[Tensor, "images channels height width"]
Border = Literal["nearest", "reflect", "mirror"]

# A level that is reached up to rounding counts as reached, or truncation would take one off.
_ROUNDING = 1e-6
# Number of pixels up to which a map with several terms is one matrix.
_LARGEST_DENSE = 40 * 40


def to_values(levels: Levels) -> Values:
    """Return pixels in [0, 1]."""
    return levels.to(torch.float64).div_(255)


def to_levels(values: Float64[Tensor, "*shape"]) -> UInt8[Tensor, "*shape"]:
    """Clip pixels to [0, 1] and truncate them to levels 0 to 255, as the published programs do.

    >>> to_levels(torch.tensor([-1, 0.999, 2], dtype=torch.float64))
    tensor([  0, 254, 255], dtype=torch.uint8)
    """
    return (values.clamp(0, 1) * 255).add_(_ROUNDING).to(torch.uint8)


def border_index(
    positions: Int64[Tensor, "*shape"], size: int, border: Border
) -> Int64[Tensor, "*shape"]:
    """Return the pixel that stands for each position on an axis, also outside of the image.

    Args:
        positions: Positions on the axis.
        size: Number of pixels of the axis.
        border: ``nearest``: a a | a b c | c c. ``reflect``: b a | a b c | c b.
            ``mirror``: c b | a b c | b a.

    >>> border_index(torch.tensor([-2, -1, 3, 4]), 3, "mirror")
    tensor([2, 1, 1, 0])
    """
    if border == "nearest" or size == 1:
        return positions.clamp(0, size - 1)
    if border == "reflect":
        folded = positions.remainder(2 * size)
        return torch.minimum(folded, 2 * size - 1 - folded)
    folded = positions.remainder(2 * size - 2)
    return torch.minimum(folded, 2 * size - 2 - folded)


def filter_matrix(
    weights: Float64[Tensor, "taps"], size: int, border: Border
) -> Float64[Tensor, "size size"]:
    """Return the matrix that correlates an axis with an odd number of weights."""
    reach = len(weights) // 2
    positions = torch.arange(size)[:, None] + torch.arange(-reach, reach + 1)
    matrix = torch.zeros(size, size, dtype=torch.float64)
    return matrix.scatter_add_(
        1, border_index(positions, size, border), weights.expand(size, -1).contiguous()
    )


def gaussian_weights(sigma: float, radius: int) -> Float64[Tensor, "taps"]:
    """Return normalized Gaussian weights at the distances -radius to radius."""
    distances = torch.arange(-radius, radius + 1, dtype=torch.float64)
    if sigma == 0:
        return (distances == 0).to(torch.float64)
    return torch.softmax(distances.square() / (-2 * sigma * sigma), 0)


@lru_cache(maxsize=64)
def gaussian_matrix(
    size: int, sigma: float, border: Border, truncate: float
) -> Float64[Tensor, "size size"]:
    """Return the matrix of a Gaussian filter that is cut off at ``truncate`` deviations."""
    radius = int(truncate * sigma + 0.5)
    return filter_matrix(gaussian_weights(sigma, radius), size, border)


def gaussian_filter(
    values: Values, sigma: float, *, border: Border = "nearest", truncate: float = 4.0
) -> Values:
    """Blur images with a Gaussian, as scipy's and scikit-image's filters of that name do."""
    rows, columns = (gaussian_matrix(s, sigma, border, truncate) for s in values.shape[2:])
    return LinearMap(rows[None], columns[None])(values)


@dataclass(frozen=True, eq=False)
class LinearMap:
    """The map X ↦ Σ_k R_k X C_kᵀ of every channel X of an image.

    Attributes:
        rows: Matrices R_k on the rows.
        columns: Matrices C_k on the columns.
    """

    rows: Float64[Tensor, "terms height height"]
    columns: Float64[Tensor, "terms width width"]

    def __call__(self, values: Values) -> Values:
        """Apply the map to images."""
        if len(self.rows) > 1 and values[0, 0].numel() <= _LARGEST_DENSE:
            return (values.flatten(2) @ self.dense.to(values.device).T).view_as(values)
        planes = values.flatten(0, 1)
        total = torch.zeros_like(planes)
        for row, column in zip(self.rows, self.columns, strict=True):
            left = row.to(values.device).expand(len(planes), -1, -1)
            total.baddbmm_(left, planes @ column.to(values.device).T)
        return total.view_as(values)

    @cached_property
    def dense(self) -> Float64[Tensor, "pixels pixels"]:
        """The map as one matrix: for small images one large product is the fastest."""
        return torch.einsum("kab,kcd->acbd", self.rows, self.columns).reshape(
            self.rows.shape[1] * self.columns.shape[1], -1
        )


@lru_cache(maxsize=256)
def zoom_matrix(size: int, factor: float) -> Float64[Tensor, "size size"]:
    """Return the matrix that magnifies the center of an axis by linear interpolation.

    The central ⌈size/factor⌉ pixels become round(factor·⌈size/factor⌉) ones whose ends are the
    centers of the first and the last of them, as by ``scipy.ndimage.zoom``; the central ``size``
    are kept.
    """
    crop = math.ceil(size / factor)
    length = round(crop * factor)
    kept = torch.arange(size) + (length - size) // 2
    positions = kept.to(torch.float64) * ((crop - 1) / max(length - 1, 1))
    low = positions.floor().clamp(max=max(crop - 2, 0))
    index = (low.long() + (size - crop) // 2)[:, None]
    weight = (positions - low)[:, None]
    matrix = torch.zeros(size, size, dtype=torch.float64)
    matrix.scatter_add_(1, index, 1 - weight)
    return matrix.scatter_add_(1, (index + 1).clamp(max=size - 1), weight)


def sample_bilinear(
    values: Values,
    y: Float64[Tensor, "images height width"],
    x: Float64[Tensor, "images height width"],
    border: Border,
) -> Values:
    """Return the images at these positions by bilinear interpolation."""
    images, channels, height, width = values.shape
    flat = values.flatten(2)
    top, left = y.floor(), x.floor()
    weight_y, weight_x = (y - top)[:, None], (x - left)[:, None]
    rows = [border_index(top.long() + shift, height, border) * width for shift in (0, 1)]
    columns = [border_index(left.long() + shift, width, border) for shift in (0, 1)]

    def at(row: int, column: int) -> Tensor:
        index = (rows[row] + columns[column]).view(images, 1, -1).expand(-1, channels, -1)
        return flat.gather(2, index).view_as(values)

    upper = torch.lerp(at(0, 0), at(0, 1), weight_x)
    lower = torch.lerp(at(1, 0), at(1, 1), weight_x)
    return torch.lerp(upper, lower, weight_y)
