"""Image operations on whole batches on the device, each image with its own parameters.

Each operation equals torchvision's functional one on every single image (float images in [0, 1]).
Crop, resize, flip and blur multiply by small matrices from both sides: one batched product for any
mixture of boxes, where a loop over images would launch thousands of kernels. No shape depends on a
value, so everything compiles.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

import torch
from jaxtyping import Bool, Float, Integer, UInt8
from torch import Tensor

Images = (
    Float[Tensor, "images channels height width"] | UInt8[Tensor, "images channels height width"]
)
Boxes = Integer[Tensor, "images 4"]
PerImage = Float[Tensor, "images"]

_GRAYSCALE_WEIGHTS = (0.2989, 0.587, 0.114)


def random_resized_boxes(
    count: int,
    height: int,
    width: int,
    *,
    scale: tuple[float, float],
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
    device: torch.device | str | None = None,
    generator: torch.Generator | None = None,
) -> Boxes:
    """Draw crop boxes with the distribution of torchvision's ``RandomResizedCrop``.

    The area is uniform in ``scale`` and the aspect ratio log-uniform in ``ratio``; both sides are
    rounded to whole pixels. If none of ten attempts fits into the image, the box is its center at
    the nearest allowed ratio. The position is uniform.

    Args:
        count: Number of boxes.
        height: Height of the images.
        width: Width of the images.
        scale: Smallest and largest area as a fraction of the image's area.
        ratio: Smallest and largest aspect ratio, width by height.
        device: Device of the boxes.
        generator: Random generator of that device. None means its default generator.

    Returns:
        Top, left, height and width of each box.

    >>> random_resized_boxes(2, 8, 8, scale=(1.0, 1.0), ratio=(1.0, 1.0))
    tensor([[0, 0, 8, 8],
            [0, 0, 8, 8]])
    """

    def uniform(*shape: int) -> Tensor:
        return torch.rand(shape, device=device, generator=generator)

    area = height * width
    widths, heights = _random_sides(uniform(count, 10), uniform(count, 10), area, scale, ratio)
    fits = (widths > 0) & (widths <= width) & (heights > 0) & (heights <= height)
    first = fits.to(torch.uint8).argmax(1, keepdim=True)
    image_ratio = width / height
    fallback_width = width if image_ratio <= ratio[1] else round(height * ratio[1])
    fallback_height = height if image_ratio >= ratio[0] else round(width / ratio[0])
    found = fits.any(1)
    widths = torch.where(found, widths.gather(1, first).squeeze(1), fallback_width)
    heights = torch.where(found, heights.gather(1, first).squeeze(1), fallback_height)
    tops = (uniform(count) * (height - heights + 1)).long().clamp(max=height - heights)
    lefts = (uniform(count) * (width - widths + 1)).long().clamp(max=width - widths)
    tops = torch.where(found, tops, (height - heights) // 2)
    lefts = torch.where(found, lefts, (width - widths) // 2)
    return torch.stack([tops, lefts, heights, widths], 1)


def _random_sides(
    first: Float[Tensor, "images attempts"],
    second: Float[Tensor, "images attempts"],
    area: int,
    scale: tuple[float, float],
    ratio: tuple[float, float],
) -> tuple[Integer[Tensor, "images attempts"], Integer[Tensor, "images attempts"]]:
    """Turn uniform numbers into sides whose product is uniform and whose ratio is log-uniform."""
    areas = area * (scale[0] + (scale[1] - scale[0]) * first)
    low, high = math.log(ratio[0]), math.log(ratio[1])
    ratios = torch.exp(low + (high - low) * second)
    return (areas * ratios).sqrt().round().long(), (areas / ratios).sqrt().round().long()


def padded_boxes(
    count: int,
    height: int,
    width: int,
    *,
    padding: int,
    device: torch.device | str | None = None,
    generator: torch.Generator | None = None,
) -> Boxes:
    """Draw boxes of the original image size at random positions of padded images.

    Args:
        count: Number of boxes.
        height: Height of the images before padding.
        width: Width of the images before padding.
        padding: Width of the border on each side in pixels.
        device: Device of the boxes.
        generator: Random generator of that device. None means its default generator.

    Returns:
        Top, left, height and width of each box.

    >>> padded_boxes(1, 8, 8, padding=0)
    tensor([[0, 0, 8, 8]])
    """
    offsets = torch.rand(2, count, device=device, generator=generator)
    offsets = (offsets * (2 * padding + 1)).long().clamp(max=2 * padding)
    sides = torch.tensor([height, width], device=device).expand(count, 2)
    return torch.cat([offsets.T, sides], 1)


def random_erasing_boxes(
    count: int,
    height: int,
    width: int,
    *,
    scale: tuple[float, float] = (0.02, 0.33),
    ratio: tuple[float, float] = (0.3, 3.3),
    device: torch.device | str | None = None,
    generator: torch.Generator | None = None,
) -> Boxes:
    """Draw boxes with the distribution of torchvision's ``RandomErasing``.

    The area is uniform in ``scale`` and the aspect ratio log-uniform in ``ratio``; both sides are
    rounded to whole pixels and less than those of the image. If none of ten attempts gives such
    sides, the box is empty. The position is uniform.

    Args:
        count: Number of boxes.
        height: Height of the images.
        width: Width of the images.
        scale: Smallest and largest area as a fraction of the image's area.
        ratio: Smallest and largest aspect ratio, height by width.
        device: Device of the boxes.
        generator: Random generator of that device. None means its default generator.

    Returns:
        Top, left, height and width of each box.

    >>> random_erasing_boxes(1, 8, 8, scale=(0.25, 0.25), ratio=(1.0, 1.0))[:, 2:]
    tensor([[4, 4]])
    """

    def uniform(*shape: int) -> Tensor:
        return torch.rand(shape, device=device, generator=generator)

    area = height * width
    heights, widths = _random_sides(uniform(count, 10), uniform(count, 10), area, scale, ratio)
    fits = (heights < height) & (widths < width)
    first = fits.to(torch.uint8).argmax(1, keepdim=True)
    found = fits.any(1)
    heights, widths = (
        torch.where(found, sides.gather(1, first).squeeze(1), 0) for sides in (heights, widths)
    )
    tops = (uniform(count) * (height - heights + 1)).long().clamp(max=height - heights)
    lefts = (uniform(count) * (width - widths + 1)).long().clamp(max=width - widths)
    return torch.stack([tops, lefts, heights, widths], 1)


def erase(
    images: Float[Tensor, "images channels height width"], boxes: Boxes
) -> Float[Tensor, "images channels height width"]:
    """Set the pixels in the box of each image to 0."""
    return torch.where(box_masks(boxes, images.shape[2], images.shape[3]), 0, images)


def box_masks(boxes: Boxes, height: int, width: int) -> Bool[Tensor, "images 1 height width"]:
    """Return which pixels lie in the box (top, left, height, width) of each image.

    >>> box_masks(torch.tensor([[0, 1, 2, 1]]), 2, 2)
    tensor([[[[False,  True],
              [False,  True]]]])
    """

    def inside(start: Tensor, length: Tensor, side: int) -> Tensor:
        pixels = torch.arange(side, device=boxes.device)
        return (pixels >= start[:, None]) & (pixels < (start + length)[:, None])

    rows = inside(boxes[:, 0], boxes[:, 2], height)
    columns = inside(boxes[:, 1], boxes[:, 3], width)
    return (rows[:, :, None] & columns[:, None, :])[:, None]


def _interpolation(
    starts: Tensor, lengths: Tensor, source: int, size: int
) -> Float[Tensor, "images size source"]:
    """Return matrices that resize ``lengths`` pixels from ``starts`` on to ``size`` pixels.

    Linear interpolation between pixel centers, with a support as wide as the step where the image
    shrinks (antialiasing). Pixels outside the box have no weight: its edge is repeated instead.
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
    images: Images,
    boxes: Boxes,
    size: int,
    *,
    hflip: Bool[Tensor, "images"] | None = None,
    vflip: Bool[Tensor, "images"] | None = None,
) -> Float[Tensor, "images channels size size"]:
    """Crop a box from each image, resize it to a square, and flip some images.

    Equal to torchvision's ``resized_crop`` (bilinear, antialiased), ``horizontal_flip`` and
    ``vertical_flip`` on float images.

    Args:
        images: Images of type uint8, which are divided by 255, or float, which are not.
        boxes: Top, left, height and width of each box.
        size: Side of the output in pixels.
        hflip: Mask of the images to flip horizontally, or None.
        vflip: Mask of the images to flip vertically, or None.

    Returns:
        Float images.

    >>> image = torch.arange(4.0).reshape(1, 1, 2, 2)
    >>> resized_crop(image, torch.tensor([[0, 1, 2, 1]]), 2)
    tensor([[[[1., 1.],
              [3., 3.]]]])
    """
    rows = _interpolation(boxes[:, 0], boxes[:, 2], images.shape[2], size)
    columns = _interpolation(boxes[:, 1], boxes[:, 3], images.shape[3], size)
    if hflip is not None:
        columns = torch.where(hflip[:, None, None], columns.flip(1), columns)
    if vflip is not None:
        rows = torch.where(vflip[:, None, None], rows.flip(1), rows)
    if not images.is_floating_point():
        rows = rows / 255
    return _multiply_both_sides(rows, images.to(rows.dtype), columns)


def _multiply_both_sides(rows: Tensor, images: Tensor, columns: Tensor) -> Tensor:
    """Return R X Cᵀ for each image and channel, in float32 also under autocast."""
    with torch.autocast(images.device.type, enabled=False):
        return rows[:, None] @ images @ columns.mT[:, None]


def grayscale(
    images: Float[Tensor, "images 3 height width"],
) -> Float[Tensor, "images 1 height width"]:
    """Return the luminance of each pixel: 0.2989 R + 0.587 G + 0.114 B."""
    weights = torch.tensor(_GRAYSCALE_WEIGHTS, device=images.device, dtype=images.dtype)
    return (images * weights[:, None, None]).sum(1, keepdim=True)


def _blend(images: Tensor, other: Tensor | float, factors: PerImage) -> Tensor:
    factors = factors[:, None, None, None]
    return (factors * images + (1 - factors) * other).clamp(0, 1)


def adjust_brightness(images: Images, factors: PerImage) -> Images:
    """Multiply each image by its factor and clamp to [0, 1]."""
    return _blend(images, 0.0, factors)


def adjust_contrast(images: Images, factors: PerImage) -> Images:
    """Blend each image with its mean luminance by its factor."""
    return _blend(images, grayscale(images).mean((1, 2, 3), keepdim=True), factors)


def adjust_saturation(images: Images, factors: PerImage) -> Images:
    """Blend each image with its grayscale version by its factor."""
    return _blend(images, grayscale(images), factors)


def adjust_hue(images: Images, shifts: PerImage) -> Images:
    """Shift the hue (HSV) of each image by a fraction of the color circle between −½ and ½."""
    largest, smallest = images.amax(1), images.amin(1)
    chroma = largest - smallest
    red, green, blue = images.unbind(1)
    safe = torch.where(chroma == 0, 1, chroma)
    hue = torch.where(
        largest == red,
        (green - blue) / safe,
        torch.where(largest == green, 2 + (blue - red) / safe, 4 + (red - green) / safe),
    )
    sixths = (hue / 6 + shifts[:, None, None]) % 1 * 6
    # In HSV each channel is a trapezoid of the hue: full for two sixths of the circle, zero for
    # two, linear between.
    angles = [(sixths + offset) % 6 for offset in (5, 3, 1)]
    shifted = [largest - chroma * torch.minimum(angle, 4 - angle).clamp(0, 1) for angle in angles]
    return torch.stack(shifted, 1)


def color_jitter(
    images: Images,
    brightness: PerImage,
    contrast: PerImage,
    saturation: PerImage,
    hue: PerImage,
    order: Integer[Tensor, "images 4"],
) -> Images:
    """Adjust brightness, contrast, saturation and hue, in a separate order for each image.

    Args:
        images: Float images with three channels.
        brightness: Brightness factor of each image.
        contrast: Contrast factor of each image.
        saturation: Saturation factor of each image.
        hue: Hue shift of each image as a fraction of the color circle.
        order: For each image a permutation of 0 (brightness), 1 (contrast), 2 (saturation) and
            3 (hue).
    """
    for position in range(4):
        adjusted = (
            adjust_brightness(images, brightness),
            adjust_contrast(images, contrast),
            adjust_saturation(images, saturation),
            adjust_hue(images, hue),
        )
        operation = order[:, position, None, None, None]
        images = torch.where(
            operation == 0,
            adjusted[0],
            torch.where(
                operation == 1, adjusted[1], torch.where(operation == 2, adjusted[2], adjusted[3])
            ),
        )
    return images


def gaussian_blur(images: Images, sigmas: PerImage, *, kernel_size: int) -> Images:
    """Blur each image with a Gaussian of its own width; the edges are reflected.

    Args:
        images: Float images.
        sigmas: Standard deviation of each image's Gaussian in pixels.
        kernel_size: Width of the kernel in pixels, odd.

    Raises:
        ValueError: The kernel is even or too wide for the images.
    """
    height, width = images.shape[2:]
    rows, columns = (_blur_matrices(sigmas, side, kernel_size) for side in (height, width))
    return _multiply_both_sides(rows, images, columns)


def _blur_matrices(
    sigmas: Tensor, side: int, kernel_size: int
) -> Float[Tensor, "images side side"]:
    half = kernel_size // 2
    if kernel_size % 2 == 0 or half >= side:
        raise ValueError(
            f"kernel_size must be odd and less than twice the side of the images, {side}; "
            f"got {kernel_size}"
        )
    offsets = torch.arange(-half, half + 1, device=sigmas.device)
    kernels = torch.exp(-((offsets / sigmas[:, None]) ** 2) / 2)
    kernels = kernels / kernels.sum(1, keepdim=True)
    positions = torch.arange(side, device=sigmas.device)[:, None] + offsets
    positions = positions.abs()  # Reflect at the first pixel ...
    positions = (side - 1) - ((side - 1) - positions).abs()  # ... and at the last.
    matrix = torch.zeros(len(sigmas), side, side, device=sigmas.device, dtype=kernels.dtype)
    index = positions.expand(len(sigmas), -1, -1)
    return matrix.scatter_add_(2, index, kernels[:, None].expand(-1, side, -1))


def normalize(
    images: Float[Tensor, "images channels height width"],
    mean: Sequence[float],
    std: Sequence[float],
) -> Float[Tensor, "images channels height width"]:
    """Subtract the mean of each channel and divide by its standard deviation."""
    means, stds = (_channels(tuple(values), images.device) for values in (mean, std))
    return (images - means) / stds


def _channels(values: tuple[float, ...], device: torch.device) -> Float[Tensor, "channels 1 1"]:
    """Return values on a device, created once: a CUDA graph cannot capture their copy to it."""
    if torch.compiler.is_compiling():
        return torch.tensor(values, device=device)[:, None, None]
    return _cached_channels(values, device)


@lru_cache(maxsize=64)
def _cached_channels(values: tuple[float, ...], device: torch.device) -> Tensor:
    return torch.tensor(values, device=device)[:, None, None]
