"""Weather corruptions: snow, frost and fog."""

from collections.abc import Sequence

import torch
from jaxtyping import Float64, UInt8
from torch import Tensor

from protosphere.data.corruption_blur import blur_along_line, magnify
from protosphere.data.corruption_filters import Levels, to_levels, to_values
from protosphere.data.corruption_random import RandomNumbers, inverse_normal

# Weights of red, green and blue in gray.
_LUMA = (0.299, 0.587, 0.114)


def fog(levels: Levels, random: RandomNumbers, amount: float, decay: float) -> Levels:
    """Add a plasma fractal p and scale back: (x + amount·p)·m/(m + amount), m the image's maximum.

    The fractal has the smallest power of two that covers the image as its side.
    """
    height, width = levels.shape[2:]
    size = 1 << (max(height, width) - 1).bit_length()
    cloud = plasma_fractal(random.uniform(size * size - 1), decay)[:, None, :height, :width]
    values = to_values(levels)
    highest = values.amax((1, 2, 3), keepdim=True)
    return to_levels((values + amount * cloud).mul_(highest / (highest + amount)))


def plasma_fractal(
    uniform: Float64[Tensor, "images numbers"], decay: float
) -> Float64[Tensor, "images side side"]:
    """Return height maps in [0, 1] by the diamond-square algorithm on a torus.

    Starting from a corner of height 0, the center of each square of known heights, then the
    middle of each edge, becomes the mean of its four neighbors plus a uniform number of ±w². The
    side of the squares is halved and w is divided by ``decay`` until no pixel is left; w starts at
    100.

    Args:
        uniform: Numbers in (0, 1), side² − 1 for each map, where the side is a power of two. In
            each round, the centers come first, then the middles of horizontal edges, then those of
            vertical edges.
        decay: Factor by which w decreases.
    """
    count = uniform.shape[1]
    side = 1 << ((count + 1).bit_length() - 1) // 2
    heights = uniform.new_zeros(len(uniform), side, side)
    step, wibble, used = side, 100.0, 0

    def noise(cells: int) -> Tensor:
        numbers = uniform[:, used : used + cells * cells].mul(2).sub_(1)
        return numbers.mul_(wibble * wibble).view(-1, cells, cells)

    while step >= 2:
        half, cells = step // 2, side // step
        corners = heights[:, ::step, ::step]
        pairs = corners + corners.roll(-1, 1)
        centers = (pairs + pairs.roll(-1, 2)) / 4 + noise(cells)
        heights[:, half::step, half::step] = centers
        used += cells * cells
        sums = centers + centers.roll(1, 1) + corners + corners.roll(-1, 2)
        heights[:, ::step, half::step] = sums / 4 + noise(cells)
        used += cells * cells
        sums = centers + centers.roll(1, 2) + corners + corners.roll(-1, 1)
        heights[:, half::step, ::step] = sums / 4 + noise(cells)
        used += cells * cells
        step, wibble = half, wibble / decay
    heights -= heights.amin((1, 2), keepdim=True)
    return heights / heights.amax((1, 2), keepdim=True)


def snow(
    levels: Levels,
    random: RandomNumbers,
    mean: float,
    deviation: float,
    factor: float,
    threshold: float,
    radius: int,
    sigma: float,
    weight: float,
) -> Levels:
    """Whiten the image and add blurred flakes, and the same flakes turned by 180 degrees.

    Flakes are the normal numbers above a threshold, magnified, and blurred along a line at a random
    angle of -135 to -45 degrees.

    Args:
        levels: Images.
        random: Source of the flakes and the angle.
        mean: Mean of the normal numbers.
        deviation: Deviation of the normal numbers.
        factor: Magnification.
        threshold: Smaller numbers are not flakes.
        radius: Radius of the blur.
        sigma: Deviation of the blur.
        weight: Weight of the image against the whitened one.
    """
    height, width = levels.shape[2:]
    # The last number is that of the angle.
    uniform = random.uniform(height * width + 1)
    flakes = inverse_normal(uniform[:, :-1]).reshape(-1, 1, height, width)
    flakes = magnify(flakes.mul_(deviation).add_(mean), factor)
    layer = to_levels(torch.where(flakes < threshold, 0.0, flakes))
    angles = uniform[:, -1] * 90 - 135
    layer = to_values(blur_along_line(layer, angles, radius=radius, sigma=sigma))
    values = to_values(levels)
    gray = (values * values.new_tensor(_LUMA)[:, None, None]).sum(1, keepdim=True)
    whitened = torch.maximum(values, gray.mul_(1.5).add_(0.5))
    return to_levels(torch.lerp(whitened, values, weight) + layer + layer.flip(2, 3))


def frost(
    levels: Levels,
    random: RandomNumbers,
    image_weight: float,
    texture_weight: float,
    textures: Sequence[UInt8[Tensor, "3 _ _"]],
) -> Levels:
    """Blend the image with a random crop of a random texture.

    Args:
        levels: Images.
        random: Source of the choice of the texture and the place of the crop.
        image_weight: Weight of the image.
        texture_weight: Weight of the texture.
        textures: Pictures that are larger than the images.
    """
    height, width = levels.shape[2:]
    uniform = random.uniform(3)
    chosen = (uniform[:, 0] * len(textures)).long()
    crops = torch.empty_like(levels)
    y = torch.arange(height, device=levels.device)
    x = torch.arange(width, device=levels.device)
    for number, texture in enumerate(textures):
        images = (chosen == number).nonzero().squeeze(1)
        rooms = (texture.shape[1] - height, texture.shape[2] - width)
        top, left = ((uniform[images, 1 + i] * rooms[i]).long()[:, None] for i in range(2))
        cut = texture.to(levels.device)[:, (top + y)[:, :, None], (left + x)[:, None, :]]
        crops[images] = cut.transpose(0, 1)
    return to_levels(image_weight * to_values(levels) + texture_weight * to_values(crops))
