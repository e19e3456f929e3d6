"""RandAugment and TrivialAugmentWide on whole batches on the device.

Each image has its own operation, magnitude and sign, and gets what torchvision's transform of the
same name makes of the uint8 image: pixels are rounded to the levels 0 to 255 first, and every
operation returns such levels. Shear, translation and rotation are one gather with an affine map
per image; color and sharpness are one blend; brightness, contrast, posterize, solarize,
autocontrast and equalize are one lookup in a table of 256 levels per image and channel. Each stage
leaves images with other operations as they are, so that no shape depends on a value and everything
compiles.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Integer
from torch import Tensor

from protosphere.data.setting_checks import check_integer, check_name, pydantic_settings
from protosphere.data.transforms import grayscale

Images = Float[Tensor, "images channels height width"]
PerImage = Float[Tensor, "images"]

OPERATIONS = (
    "Identity",
    "ShearX",
    "ShearY",
    "TranslateX",
    "TranslateY",
    "Rotate",
    "Brightness",
    "Color",
    "Contrast",
    "Sharpness",
    "Posterize",
    "Solarize",
    "AutoContrast",
    "Equalize",
)
_INDEX = {name: index for index, name in enumerate(OPERATIONS)}
# These change in the opposite direction for half of the images.
_NUM_SIGNED = len(OPERATIONS) - 4


@pydantic_settings
@dataclass(frozen=True, kw_only=True)
class RandAugment:
    """Apply random operations one after the other, as torchvision's ``RandAugment`` does.

    Attributes:
        name: ``"rand_augment"``.
        num_ops: Number of operations.
        magnitude: Strength of all operations, from 0 to ``num_magnitude_bins - 1``.
        num_magnitude_bins: Number of strengths.

    Reference: Cubuk et al., RandAugment: Practical Automated Data Augmentation with a Reduced
    Search Space, NeurIPS 2020.
    """

    name: Literal["rand_augment"] = "rand_augment"
    num_ops: int = 2
    magnitude: int = 9
    num_magnitude_bins: int = 31

    def __post_init__(self) -> None:
        check_name(self.name, "rand_augment")
        check_integer("num_ops", self.num_ops, low=1)
        check_integer("magnitude", self.magnitude, low=0)
        check_integer("num_magnitude_bins", self.num_magnitude_bins, low=2)
        if self.magnitude >= self.num_magnitude_bins:
            raise ValueError(
                f"magnitude must be less than num_magnitude_bins, {self.num_magnitude_bins}; "
                f"got {self.magnitude}"
            )


@pydantic_settings
@dataclass(frozen=True, kw_only=True)
class TrivialAugmentWide:
    """Apply one random operation of random strength, as torchvision's ``TrivialAugmentWide`` does.

    Attributes:
        name: ``"trivial_augment_wide"``.
        num_magnitude_bins: Number of strengths.

    Reference: Müller and Hutter, TrivialAugment: Tuning-free Yet State-of-the-Art Data
    Augmentation, ICCV 2021.
    """

    name: Literal["trivial_augment_wide"] = "trivial_augment_wide"
    num_magnitude_bins: int = 31

    def __post_init__(self) -> None:
        check_name(self.name, "trivial_augment_wide")
        check_integer("num_magnitude_bins", self.num_magnitude_bins, low=2)


def auto_augment(
    images: Images,
    policy: RandAugment | TrivialAugmentWide,
    generator: torch.Generator | None = None,
) -> Images:
    """Draw operations, strengths and signs for each image and apply them.

    Args:
        images: Pixels in [0, 1] with one or three channels. They are rounded to 256 levels.
        policy: What to draw.
        generator: Random generator of the images' device. None means its default generator.

    Returns:
        Images whose pixels are multiples of 1/255.

    Raises:
        ValueError: The images have neither one nor three channels.

    >>> images = torch.rand(2, 3, 8, 8)
    >>> auto_augment(images, TrivialAugmentWide()).shape
    torch.Size([2, 3, 8, 8])
    """
    count, _, height, width = images.shape
    bins = policy.num_magnitude_bins
    table = _device_table(policy.name, bins, height, width, images.device)

    def uniform() -> Tensor:
        return torch.rand(count, device=images.device, generator=generator)

    def integers(high: int) -> Tensor:
        return (uniform() * high).long().clamp(max=high - 1)

    levels = (images * 255).round()
    for _ in range(policy.num_ops if isinstance(policy, RandAugment) else 1):
        operations = integers(len(OPERATIONS))
        if isinstance(policy, RandAugment):
            magnitudes = table[operations, policy.magnitude]
        else:
            magnitudes = table[operations, integers(bins)]
        is_negative = (uniform() < 0.5) & (operations < _NUM_SIGNED)
        magnitudes = torch.where(is_negative, -magnitudes, magnitudes)
        levels = apply_operations(levels, operations, magnitudes)
    return levels / 255


def apply_operations(
    levels: Images, operations: Integer[Tensor, "images"], magnitudes: PerImage
) -> Images:
    """Apply one operation to each image.

    Args:
        levels: Whole numbers from 0 to 255, with one or three channels.
        operations: Index in ``OPERATIONS`` for each image.
        magnitudes: Magnitude of each image's operation with its sign, as torchvision has it: shear
            in pixels per pixel, translation in pixels, rotation in degrees, change of a factor of
            1, number of bits, or threshold as a fraction of 255.

    Returns:
        Whole numbers from 0 to 255.

    Raises:
        ValueError: The images have neither one nor three channels.

    >>> white = torch.full((1, 1, 2, 2), 255.0)
    >>> apply_operations(white, torch.tensor([11]), torch.tensor([0.5])).unique()  # Solarize
    tensor([0.])
    """
    if levels.shape[1] not in (1, 3):
        raise ValueError(f"auto_augment needs images with 1 or 3 channels, got {levels.shape[1]}")
    for stage, names in _STAGES:
        if levels.device.type == "cpu" and not torch.compiler.is_compiling():
            # Looking at the values costs nothing here, and spares the work on most of the images.
            in_stage = torch.isin(operations, torch.tensor([_INDEX[name] for name in names]))
            index = in_stage.nonzero().squeeze(1)
            changed = stage(levels[index], operations[index], magnitudes[index])
            levels = levels.index_copy(0, index, changed)
        else:
            levels = stage(levels, operations, magnitudes)
    return levels


def magnitude_table(
    name: Literal["rand_augment", "trivial_augment_wide"],
    bins: int,
    height: int,
    width: int,
    *,
    device: torch.device | str = "cpu",
) -> Float[Tensor, "operations bins"]:
    """Return torchvision's magnitudes of all operations; 0 for operations without one.

    Args:
        name: Name of the policy.
        bins: Number of strengths.
        height: Height of the images.
        width: Width of the images.
        device: Device of the table.

    >>> magnitude_table("trivial_augment_wide", 31, 32, 32)[5, -1]  # degrees
    tensor(135.)
    """
    if name == "rand_augment":
        shear, shift, angle, factor, bits = 0.3, 150.0 / 331.0, 30.0, 0.9, 4
        shifts = (shift * width, shift * height)
    else:
        shear, angle, factor, bits = 0.99, 135.0, 0.99, 6
        shifts = (32.0, 32.0)
    largest = (shear, shear, *shifts, angle, factor, factor, factor, factor)
    rows = [torch.linspace(0.0, value, bins, device=device) for value in largest]
    posterize = (8 - (torch.arange(bins, device=device) / ((bins - 1) / bits))).round()
    none = torch.zeros(bins, device=device)
    rows = [none, *rows, posterize, torch.linspace(1.0, 0.0, bins, device=device), none, none]
    return torch.stack(rows)


def _device_table(
    name: Literal["rand_augment", "trivial_augment_wide"],
    bins: int,
    height: int,
    width: int,
    device: torch.device,
) -> Tensor:
    # Not torch.compiler.assume_constant_result: it imports the compiler, which takes seconds.
    if torch.compiler.is_compiling():
        return magnitude_table(name, bins, height, width, device=device)
    return _cached_table(name, bins, height, width, device)


@lru_cache(maxsize=64)
def _cached_table(
    name: Literal["rand_augment", "trivial_augment_wide"],
    bins: int,
    height: int,
    width: int,
    device: torch.device,
) -> Tensor:
    # A copy from the host cannot be captured in a CUDA graph: it is made once, before the capture.
    return magnitude_table(name, bins, height, width).to(device)


def _move(levels: Tensor, operations: Tensor, magnitudes: Tensor) -> Tensor:
    """Shear, translate or rotate: nearest pixel of the inverse affine map, 0 outside the image."""
    channels, height, width = levels.shape[1:]

    def only(name: str, values: Tensor) -> Tensor:
        return torch.where(operations == _INDEX[name], values, 0)[:, None, None]

    angles = only("Rotate", magnitudes * (math.pi / 180))
    sines, cosines = angles.sin(), angles.cos()
    shear_x, shear_y = only("ShearX", magnitudes), only("ShearY", magnitudes)
    shift_x, shift_y = (only(f"Translate{axis}", magnitudes.trunc()) for axis in "XY")
    x = torch.arange(width, device=levels.device) - (width - 1) / 2
    y = torch.arange(height, device=levels.device)[:, None] - (height - 1) / 2
    # The fixed point of a shear is the corner of the image, that of a rotation the center.
    source_x = cosines * x + (shear_x - sines) * y + (shear_x * (height / 2) - shift_x)
    source_y = (shear_y + sines) * x + cosines * y + (shear_y * (width / 2) - shift_y)
    columns = (source_x + (width - 1) / 2).round().long()
    rows = (source_y + (height - 1) / 2).round().long()
    inside = (columns >= 0) & (columns < width) & (rows >= 0) & (rows < height)
    index = rows.clamp(0, height - 1) * width + columns.clamp(0, width - 1)
    index = index.flatten(1)[:, None].expand(-1, channels, -1)
    moved = levels.flatten(2).gather(2, index).view_as(levels)
    return torch.where(inside[:, None], moved, 0)


def _blend(levels: Tensor, operations: Tensor, magnitudes: Tensor) -> Tensor:
    """Change color or sharpness: blend with the gray or the blurred image."""
    operations, magnitudes = operations[:, None, None, None], magnitudes[:, None, None, None]
    is_color, is_sharpness = (operations == _INDEX[name] for name in ("Color", "Sharpness"))
    # Weight 5 for the pixel itself and 1 for its neighbors; pixels at the border are left alone.
    sums = F.avg_pool2d(levels, 3, stride=1, padding=1, divisor_override=1)
    blurred = ((sums + 4 * levels) / 13).round()
    rows, columns = (torch.arange(side, device=levels.device) for side in levels.shape[2:])
    inner = ((rows > 0) & (rows < len(rows) - 1))[:, None]
    inner = inner & (columns > 0) & (columns < len(columns) - 1)
    other = torch.where(is_sharpness & inner, blurred - levels, 0)
    factors = torch.ones_like(magnitudes)
    if levels.shape[1] == 3:  # The color of a grayscale image cannot change.
        other = torch.where(is_color, _gray(levels), other)
        factors = torch.where(is_color, 1 + magnitudes, factors)
    weights = torch.where(is_color | is_sharpness, -magnitudes, 0)
    return (levels * factors + other * weights).clamp(0, 255).floor()


def _gray(levels: Tensor) -> Tensor:
    return grayscale(levels).floor() if levels.shape[1] == 3 else levels


def _look_up(levels: Tensor, operations: Tensor, magnitudes: Tensor) -> Tensor:
    """Replace each level of each image and channel by another one, the same for all pixels."""
    index = levels.flatten(2).long()
    lowest, highest = levels.amin((2, 3))[..., None], levels.amax((2, 3))[..., None]
    means = _gray(levels).mean((1, 2, 3))[:, None, None]
    operations, magnitudes = operations[:, None, None], magnitudes[:, None, None]
    table = torch.arange(256.0, device=levels.device)

    bits = torch.where(operations == _INDEX["Posterize"], magnitudes, 8).long()
    steps = torch.bitwise_left_shift(torch.ones_like(bits), 8 - bits)
    ranges = (highest - lowest) * (1 / 255)
    stretched = (table - lowest) / torch.where(ranges == 0, 1, ranges)
    brightened = table * (1 + magnitudes)
    found = table
    for name, values in (
        ("Brightness", brightened),
        ("Contrast", brightened + means * -magnitudes),
        ("Posterize", (table / steps).floor() * steps),
        ("Solarize", torch.where(table >= 255 * magnitudes, 255 - table, table)),
        ("AutoContrast", torch.where(ranges == 0, table, stretched)),
        ("Equalize", _equalize_table(index, highest.long())),
    ):
        found = torch.where(operations == _INDEX[name], values, found)
    found = found.clamp(0, 255).floor().expand(-1, levels.shape[1], -1)
    return found.gather(2, index).view_as(levels)


def _equalize_table(
    index: Integer[Tensor, "images channels pixels"], highest: Integer[Tensor, "images channels 1"]
) -> Float[Tensor, "images channels 256"]:
    """Return the levels that equalize the histogram of each image and channel."""
    counts = torch.zeros((*index.shape[:2], 256), dtype=torch.long, device=index.device)
    counts.scatter_add_(2, index, torch.ones_like(index))
    below = counts.cumsum(2) - counts
    steps = (index.shape[2] - counts.gather(2, highest)) // 255
    levels = (below + steps // 2) // steps.clamp(min=1)
    return torch.where(steps == 0, torch.arange(256, device=index.device), levels).float()


# Each stage leaves the images with other operations as they are.
_STAGES = (
    (_move, ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate")),
    (_blend, ("Color", "Sharpness")),
    (_look_up, ("Brightness", "Contrast", "Posterize", "Solarize", "AutoContrast", "Equalize")),
)
