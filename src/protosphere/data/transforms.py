"""Augmentation of whole batches on the device, each image with its own parameters.

Each operation equals torchvision's functional one on every image by itself (float images in [0, 1]). Cropping, resizing
and flipping, and blurring too, are products with small matrices from both sides: one batched product for any mixture of
boxes, where a loop over images would launch thousands of kernels. No shape depends on a value, so all of it compiles.
"""

import math

import torch
from jaxtyping import Bool, Float, Integer, UInt8
from torch import Tensor

Images = (
    Float[Tensor, "images channels height width"] | UInt8[Tensor, "images channels height width"]
)
Boxes = Integer[Tensor, "images 4"]
Each = Float[Tensor, "images"]

_GRAY = (0.2989, 0.587, 0.114)


def random_boxes(
    count: int,
    height: int,
    width: int,
    *,
    scale: tuple[float, float],
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
    device: torch.device | str | None = None,
    generator: torch.Generator | None = None,
) -> Boxes:
    """Boxes to crop, drawn as torchvision's RandomResizedCrop draws them.

    An area uniform in ``scale`` of the image's, a ratio of sides log-uniform in ``ratio``, both sides rounded to whole
    pixels; ten attempts to fit the image, then its center at the nearest allowed ratio. The place is uniform.

    Args:
        count: how many.
        height: of the images.
        width: of the images.
        scale: least and largest share of the area.
        ratio: least and largest width by height.
        device: where to draw.
        generator: of that device.

    Returns:
        Top, left, height and width of each box.

    >>> random_boxes(2, 8, 8, scale=(1.0, 1.0), ratio=(1.0, 1.0))
    tensor([[0, 0, 8, 8],
            [0, 0, 8, 8]])
    """

    def uniform(*shape: int) -> Tensor:
        return torch.rand(shape, device=device, generator=generator)

    areas = height * width * (scale[0] + (scale[1] - scale[0]) * uniform(count, 10))
    low, high = math.log(ratio[0]), math.log(ratio[1])
    ratios = torch.exp(low + (high - low) * uniform(count, 10))
    widths, heights = (areas * ratios).sqrt().round().long(), (areas / ratios).sqrt().round().long()
    fits = (widths > 0) & (widths <= width) & (heights > 0) & (heights <= height)
    first = fits.to(torch.uint8).argmax(1, keepdim=True)
    whole = width / height
    fallback_width = width if whole <= ratio[1] else round(height * ratio[1])
    fallback_height = height if whole >= ratio[0] else round(width / ratio[0])
    found = fits.any(1)
    widths = torch.where(found, widths.gather(1, first).squeeze(1), fallback_width)
    heights = torch.where(found, heights.gather(1, first).squeeze(1), fallback_height)
    tops = (uniform(count) * (height - heights + 1)).long().clamp(max=height - heights)
    lefts = (uniform(count) * (width - widths + 1)).long().clamp(max=width - widths)
    tops = torch.where(found, tops, (height - heights) // 2)
    lefts = torch.where(found, lefts, (width - widths) // 2)
    return torch.stack([tops, lefts, heights, widths], 1)


def padded_boxes(
    count: int,
    height: int,
    width: int,
    *,
    padding: int,
    device: torch.device | str | None = None,
    generator: torch.Generator | None = None,
) -> Boxes:
    """Boxes of the images' own size at random places of the images once they are padded by so many pixels.

    >>> padded_boxes(1, 8, 8, padding=0)
    tensor([[0, 0, 8, 8]])
    """
    places = torch.rand(2, count, device=device, generator=generator)
    places = (places * (2 * padding + 1)).long().clamp(max=2 * padding)
    sides = torch.tensor([height, width], device=device).expand(count, 2)
    return torch.cat([places.T, sides], 1)


def _interpolation(
    starts: Tensor, lengths: Tensor, source: int, size: int
) -> Float[Tensor, "images size source"]:
    """Matrices that resize the pixels from ``starts`` on, ``lengths`` of them, to ``size``.

    Linear interpolation about pixel centers, widened to the step where the image shrinks (antialiasing). Weights stay
    inside the box, so its edge is repeated and not what lies beyond.
    """
    starts, lengths = starts[:, None, None].float(), lengths[:, None, None].float()
    step = lengths / size
    centers = starts + (torch.arange(size, device=starts.device)[:, None] + 0.5) * step - 0.5
    pixels = torch.arange(source, device=starts.device)
    width = step.clamp(min=1)
    weights = (1 - (centers - pixels).abs() / width).clamp(min=0)
    weights = torch.where((pixels >= starts) & (pixels < starts + lengths), weights, 0)
    return weights / weights.sum(-1, keepdim=True).clamp(min=1e-12)


def resized_crop(
    images: Images, boxes: Boxes, size: int, *, flips: Bool[Tensor, "images"] | None = None
) -> Float[Tensor, "images channels size size"]:
    """Cut a box from each image, resize it to a square, and mirror it where asked.

    Equal to torchvision's ``resized_crop`` (bilinear, antialiased) and ``horizontal_flip`` on float images.

    Args:
        images: bytes, which are divided by 255, or floats, which are not.
        boxes: top, left, height and width of each box, as :func:`random_boxes` draws them.
        size: the side of the result.
        flips: which of them to mirror.

    Returns:
        Float images.

    >>> image = torch.arange(4.0).reshape(1, 1, 2, 2)
    >>> resized_crop(image, torch.tensor([[0, 1, 2, 1]]), 2)
    tensor([[[[1., 1.],
              [3., 3.]]]])
    """
    rows = _interpolation(boxes[:, 0], boxes[:, 2], images.shape[2], size)
    columns = _interpolation(boxes[:, 1], boxes[:, 3], images.shape[3], size)
    if flips is not None:
        columns = torch.where(flips[:, None, None], columns.flip(1), columns)
    if not images.is_floating_point():
        rows = rows / 255
    return _from_both_sides(rows, images.to(rows.dtype), columns)


def _from_both_sides(rows: Tensor, images: Tensor, columns: Tensor) -> Tensor:
    """R X Cᵀ for each image and channel, in float32 also under autocast."""
    with torch.autocast(images.device.type, enabled=False):
        return rows[:, None] @ images @ columns.mT[:, None]


def gray(images: Float[Tensor, "images 3 height width"]) -> Float[Tensor, "images 1 height width"]:
    """The brightness of each pixel: 0.2989 R + 0.587 G + 0.114 B."""
    weights = torch.tensor(_GRAY, device=images.device, dtype=images.dtype)
    return (images * weights[:, None, None]).sum(1, keepdim=True)


def _blend(images: Tensor, other: Tensor | float, factors: Each) -> Tensor:
    factors = factors[:, None, None, None]
    return (factors * images + (1 - factors) * other).clamp(0, 1)


def adjust_brightness(images: Images, factors: Each) -> Images:
    """Each image times its factor, clamped to [0, 1]."""
    return _blend(images, 0.0, factors)


def adjust_contrast(images: Images, factors: Each) -> Images:
    """Each image away from (or to) its mean brightness by its factor."""
    return _blend(images, gray(images).mean((1, 2, 3), keepdim=True), factors)


def adjust_saturation(images: Images, factors: Each) -> Images:
    """Each pixel away from (or to) its own brightness by its image's factor."""
    return _blend(images, gray(images), factors)


def adjust_hue(images: Images, turns: Each) -> Images:
    """Each pixel's hue turned by its image's part of a full turn, −½ to ½; brightness and saturation (HSV) stay."""
    largest, smallest = images.amax(1), images.amin(1)
    chroma = largest - smallest
    red, green, blue = images.unbind(1)
    safe = torch.where(chroma == 0, 1, chroma)
    hue = torch.where(
        largest == red,
        (green - blue) / safe,
        torch.where(largest == green, 2 + (blue - red) / safe, 4 + (red - green) / safe),
    )
    sixths = (hue / 6 + turns[:, None, None]) % 1 * 6
    # In HSV each channel is a trapezoid of the hue: full for two sixths, none for two, a slope between.
    channels = [(sixths + shift) % 6 for shift in (5, 3, 1)]
    turned = [largest - chroma * torch.minimum(part, 4 - part).clamp(0, 1) for part in channels]
    return torch.stack(turned, 1)


def color_jitter(
    images: Images,
    brightness: Each,
    contrast: Each,
    saturation: Each,
    hue: Each,
    order: Integer[Tensor, "images 4"],
) -> Images:
    """The four adjustments, in an order of its own for each image.

    Args:
        images: float, three channels.
        brightness: factors.
        contrast: factors.
        saturation: factors.
        hue: parts of a turn.
        order: for each image a permutation of 0 (brightness), 1 (contrast), 2 (saturation), 3 (hue).
    """
    for turn in range(4):
        adjusted = (
            adjust_brightness(images, brightness),
            adjust_contrast(images, contrast),
            adjust_saturation(images, saturation),
            adjust_hue(images, hue),
        )
        chosen = order[:, turn, None, None, None]
        images = torch.where(
            chosen == 0,
            adjusted[0],
            torch.where(
                chosen == 1, adjusted[1], torch.where(chosen == 2, adjusted[2], adjusted[3])
            ),
        )
    return images


def gaussian_blur(images: Images, sigmas: Each, *, kernel_size: int) -> Images:
    """Each image blurred by a Gaussian of its own width, cut off at ``kernel_size`` (odd) pixels; edges mirrored."""
    height, width = images.shape[2:]
    rows, columns = (_blurring(sigmas, side, kernel_size) for side in (height, width))
    return _from_both_sides(rows, images, columns)


def _blurring(sigmas: Tensor, side: int, kernel_size: int) -> Float[Tensor, "images side side"]:
    half = kernel_size // 2
    if kernel_size % 2 == 0 or half >= side:
        raise ValueError(
            f"kernel_size must be odd and at most twice the image's side, {side}; got {kernel_size}"
        )
    offsets = torch.arange(-half, half + 1, device=sigmas.device)
    kernels = torch.exp(-((offsets / sigmas[:, None]) ** 2) / 2)
    kernels = kernels / kernels.sum(1, keepdim=True)
    places = torch.arange(side, device=sigmas.device)[:, None] + offsets
    places = places.abs()  # Mirrored at the first pixel …
    places = (side - 1) - ((side - 1) - places).abs()  # … and at the last.
    matrix = torch.zeros(len(sigmas), side, side, device=sigmas.device, dtype=kernels.dtype)
    index = places.expand(len(sigmas), -1, -1)
    return matrix.scatter_add_(2, index, kernels[:, None].expand(-1, side, -1))
