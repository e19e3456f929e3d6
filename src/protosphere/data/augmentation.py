"""Data augmentation: a frozen policy, and its application to batches on the device."""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, UInt8
from torch import Tensor

from protosphere.data import transforms
from protosphere.data.auto_augment import RandAugment, TrivialAugmentWide, auto_augment
from protosphere.data.evaluation_transform import EvaluationTransform
from protosphere.data.mixing import CutMix, Mixup, MixupOrCutMix
from protosphere.data.setting_checks import (
    ChosenByName,
    check_integer,
    check_interval,
    check_name,
    check_number,
    pydantic_settings,
)
from protosphere.data.splits import EvaluationCrop

__all__ = [
    "Augmentation",
    "AugmentationPolicy",
    "ColorJitter",
    "EvaluationTransform",
    "PaddedCrop",
    "RandomResizedCrop",
]


@pydantic_settings
@dataclass(frozen=True, kw_only=True)
class RandomResizedCrop:
    """Crop a random box and resize it, as torchvision's ``RandomResizedCrop`` does.

    Attributes:
        name: ``"random_resized"``.
        scale: Smallest and largest area of the box as a fraction of the image's area.
        ratio: Smallest and largest aspect ratio of the box, width by height.
    """

    name: Literal["random_resized"] = "random_resized"
    scale: tuple[float, float] = (0.2, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)

    def __post_init__(self) -> None:
        check_name(self.name, "random_resized")
        # Recipes hold lists, which are not hashable.
        object.__setattr__(self, "scale", check_interval("scale", self.scale, high=1.0))
        object.__setattr__(self, "ratio", check_interval("ratio", self.ratio))


@pydantic_settings
@dataclass(frozen=True, kw_only=True)
class PaddedCrop:
    """Pad with zeros and crop at a random position, as torchvision's ``RandomCrop`` does.

    Attributes:
        name: ``"padded"``.
        padding: Width of the border in pixels.
    """

    name: Literal["padded"] = "padded"
    padding: int = 4

    def __post_init__(self) -> None:
        check_name(self.name, "padded")
        check_integer("padding", self.padding, low=0)


@pydantic_settings
@dataclass(frozen=True)
class ColorJitter:
    """Change brightness, contrast, saturation and hue in random order, with a probability.

    The first three factors are uniform in ``[1 - strength, 1 + strength]``; the hue shift is
    uniform in ``[-hue, hue]``.

    Attributes:
        brightness: Strength of the brightness jitter, between 0 and 1.
        contrast: Strength of the contrast jitter, between 0 and 1.
        saturation: Strength of the saturation jitter, between 0 and 1.
        hue: Largest hue shift as a fraction of the color circle, between 0 and 0.5.
        p: Probability of jittering an image.
    """

    brightness: float
    contrast: float
    saturation: float
    hue: float
    p: float = 0.8

    def __post_init__(self) -> None:
        for name in ("brightness", "contrast", "saturation", "p"):
            check_number(name, getattr(self, name), low=0.0, high=1.0)
        check_number("hue", self.hue, low=0.0, high=0.5)


@pydantic_settings
@dataclass(frozen=True)
class AugmentationPolicy:
    """Random changes of the training images.

    Attributes:
        size: Side of the output images in pixels.
        crop: Random crop, or None to resize the whole image.
        hflip: Probability of a horizontal flip.
        vflip: Probability of a vertical flip.
        auto_augment: RandAugment, TrivialAugmentWide or None. It comes after crop and flips and
            rounds the pixels to 256 levels.
        color_jitter: Color jitter, or None. Needs color images.
        grayscale: Probability of removing the color. Needs color images.
        gaussian_blur: Probability of a Gaussian blur with a standard deviation of 0.1 to 2 pixels
            and a kernel of a tenth of ``size``. Needs images of at least 4 pixels.
        random_erasing: Probability of setting a random box to 0, the mean of each channel, after
            everything else. Area and shape are those of torchvision's ``RandomErasing``.
        num_views: Number of augmented copies of each image in a batch.
        mixing: Mixup, CutMix, one of both at random, or None. It needs one view. The training step
            mixes the augmented batch and its labels, see
            :func:`~protosphere.data.mixing.mix_images`; :class:`Augmentation` does not.

    Raises:
        ValueError: A setting is out of its range or has the wrong type.

    >>> AugmentationPolicy(32, PaddedCrop(padding=4), hflip=2.0)
    Traceback (most recent call last):
    ValueError: hflip must be between 0 and 1, got 2.0
    """

    size: int = 32
    crop: Annotated[RandomResizedCrop | PaddedCrop, ChosenByName()] | None = RandomResizedCrop()
    hflip: float = 0.5
    vflip: float = 0.0
    color_jitter: ColorJitter | None = None
    grayscale: float = 0.0
    gaussian_blur: float = 0.0
    num_views: int = 1
    auto_augment: Annotated[RandAugment | TrivialAugmentWide, ChosenByName()] | None = None
    random_erasing: float = 0.0
    mixing: Annotated[Mixup | CutMix | MixupOrCutMix, ChosenByName()] | None = None

    def __post_init__(self) -> None:
        check_integer("size", self.size, low=1)
        check_integer("num_views", self.num_views, low=1)
        for name in ("hflip", "vflip", "grayscale", "gaussian_blur", "random_erasing"):
            check_number(name, getattr(self, name), low=0.0, high=1.0)
        if not isinstance(self.crop, RandomResizedCrop | PaddedCrop | None):
            raise ValueError(
                f"crop must be a RandomResizedCrop, a PaddedCrop or None, got {self.crop!r}"
            )
        if not isinstance(self.color_jitter, ColorJitter | None):
            raise ValueError(
                f"color_jitter must be a ColorJitter or None, got {self.color_jitter!r}"
            )
        if not isinstance(self.auto_augment, RandAugment | TrivialAugmentWide | None):
            raise ValueError(
                "auto_augment must be a RandAugment, a TrivialAugmentWide or None, "
                f"got {self.auto_augment!r}"
            )
        if not isinstance(self.mixing, Mixup | CutMix | MixupOrCutMix | None):
            raise ValueError(
                f"mixing must be a Mixup, a CutMix, a MixupOrCutMix or None, got {self.mixing!r}"
            )
        if self.mixing is not None and self.num_views > 1:
            raise ValueError(f"mixing needs num_views to be 1, got {self.num_views}")
        if isinstance(self.crop, PaddedCrop) and self.crop.padding > self.size:
            raise ValueError(
                f"padding must be at most the size, {self.size}; got {self.crop.padding}"
            )
        if self.gaussian_blur and self.size < 4:
            raise ValueError(
                f"gaussian_blur needs images of at least 4 pixels, got size {self.size}"
            )

    @property
    def blur_kernel_size(self) -> int:
        """Width of the blur's kernel: a tenth of the size, odd, at least 3."""
        return max(3, self.size // 10 // 2 * 2 + 1)

    @property
    def needs_color(self) -> bool:
        """Whether the policy is for images with three channels only."""
        return self.color_jitter is not None or self.grayscale > 0


@dataclass(frozen=True)
class Augmentation:
    """Apply a policy to batches of images, and normalize them.

    Each call draws one view of each image; loaders repeat the images for more views.

    Attributes:
        policy: Random changes of the images.
        mean: Mean of each channel, subtracted at the end.
        std: Standard deviation of each channel, divided by at the end.
    """

    policy: AugmentationPolicy
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __call__(
        self,
        images: UInt8[Tensor, "images channels height width"],
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "images channels size size"]:
        """Draw random parameters for each image and apply them.

        Args:
            images: Pixels from 0 to 255, on any device.
            generator: Random generator of that device. None means its default generator.

        Returns:
            Normalized images.
        """
        policy, count, device = self.policy, len(images), images.device

        def uniform(*shape: int) -> Tensor:
            return torch.rand(shape, device=device, generator=generator)

        pixels = self._crop_and_flip(images, generator)
        if policy.auto_augment is not None:
            pixels = auto_augment(pixels, policy.auto_augment, generator)
        if policy.color_jitter is not None:
            jitter = policy.color_jitter
            strengths = (jitter.brightness, jitter.contrast, jitter.saturation, jitter.hue)
            factors = (2 * uniform(count, 4) - 1) * torch.tensor(strengths, device=device)
            factors = factors + torch.tensor([1.0, 1.0, 1.0, 0.0], device=device)
            order = uniform(count, 4).argsort(1)
            brightness, contrast, saturation, hue = factors.unbind(1)
            jittered = transforms.color_jitter(pixels, brightness, contrast, saturation, hue, order)
            pixels = _where(uniform(count) < jitter.p, jittered, pixels)
        if policy.grayscale:
            gray = transforms.grayscale(pixels).expand_as(pixels)
            pixels = _where(uniform(count) < policy.grayscale, gray, pixels)
        if policy.gaussian_blur:
            sigmas = 0.1 + 1.9 * uniform(count)
            blurred = transforms.gaussian_blur(pixels, sigmas, kernel_size=policy.blur_kernel_size)
            pixels = _where(uniform(count) < policy.gaussian_blur, blurred, pixels)
        pixels = transforms.normalize(pixels, self.mean, self.std)
        if policy.random_erasing:
            boxes = transforms.random_erasing_boxes(
                count, policy.size, policy.size, device=device, generator=generator
            )
            erased = transforms.erase(pixels, boxes)
            pixels = _where(uniform(count) < policy.random_erasing, erased, pixels)
        return pixels

    def _crop_and_flip(self, images: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return images of the output size with pixels in [0, 1]."""
        policy, device = self.policy, images.device
        count, _, height, width = images.shape
        crop = policy.crop
        flips = policy.hflip or policy.vflip
        if crop is None and not flips and height == width == policy.size:
            return images / 255
        if isinstance(crop, RandomResizedCrop):
            boxes = transforms.random_resized_boxes(
                count, height, width, scale=crop.scale, ratio=crop.ratio,
                device=device, generator=generator,
            )  # fmt: skip
        elif isinstance(crop, PaddedCrop):
            boxes = transforms.padded_boxes(
                count, height, width, padding=crop.padding, device=device, generator=generator
            )
            images = F.pad(images, [crop.padding] * 4)
        else:
            boxes = torch.tensor([0, 0, height, width], device=device).expand(count, 4)
        hflip, vflip = (
            torch.rand(count, device=device, generator=generator) < probability
            if probability
            else None
            for probability in (policy.hflip, policy.vflip)
        )
        return transforms.resized_crop(images, boxes, policy.size, hflip=hflip, vflip=vflip)

    def evaluation_transform(self, crop: EvaluationCrop = "resize") -> EvaluationTransform:
        """Return the transform for evaluation with the same output size and normalization."""
        return EvaluationTransform(self.policy.size, self.mean, self.std, crop)


def _where(mask: Bool[Tensor, "images"], changed: Tensor, unchanged: Tensor) -> Tensor:
    return torch.where(mask[:, None, None, None], changed, unchanged)
