"""What is done to the images of a batch: a frozen policy of augmentations, drawn and applied on the device."""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from torch import Tensor

from protosphere.data import transforms


@dataclass(frozen=True)
class Augmentation:
    """A policy: which operations, how strong, how often. Images go in as bytes and come out normalized.

    Attributes:
        size: the side of the images that come out.
        crop: ``"resized"`` cuts a random box and resizes it, ``"padded"`` shifts within a border of zeros, ``"none"``
            resizes the whole image.
        scale: of resized crops: least and largest share of the area.
        padding: of padded crops, in pixels.
        flip: the probability of mirroring.
        jitter: strengths of brightness, contrast, saturation and hue; all 0 for none.
        jitter_probability: how often colors are jittered.
        gray_probability: how often they are taken out.
        blur_probability: how often images are blurred.
        blur_kernel: the width of the blur's kernel in pixels, odd.
        mean: of each channel, subtracted at the end.
        std: of each channel, divided by at the end.
    """

    size: int
    crop: Literal["resized", "padded", "none"] = "none"
    scale: tuple[float, float] = (0.2, 1.0)
    padding: int = 4
    flip: float = 0.0
    jitter: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    jitter_probability: float = 0.8
    gray_probability: float = 0.0
    blur_probability: float = 0.0
    blur_kernel: int = 23
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    def __call__(
        self,
        images: UInt8[Tensor, "images channels height width"],
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "images channels size size"]:
        """Draw parameters for each image and apply them.

        Args:
            images: bytes, on any device.
            generator: of that device; without it the global one.
        """
        count, _, height, width = images.shape
        device = images.device

        def drawn(*shape: int) -> Tensor:
            return torch.rand(shape, device=device, generator=generator)

        if self.crop == "none" and not self.flip and height == width == self.size:
            floats = images / 255
        else:
            boxes = self._boxes(count, height, width, device, generator)
            if self.crop == "padded":
                images = F.pad(images, [self.padding] * 4)
            flips = drawn(count) < self.flip if self.flip else None
            floats = transforms.resized_crop(images, boxes, self.size, flips=flips)
        if any(self.jitter):
            strengths = torch.tensor(self.jitter, device=device)
            factors = (2 * drawn(count, 4) - 1) * strengths
            factors = factors + torch.tensor([1.0, 1.0, 1.0, 0.0], device=device)
            brightness, contrast, saturation, hue = factors.unbind(1)
            order = drawn(count, 4).argsort(1)
            jittered = transforms.color_jitter(floats, brightness, contrast, saturation, hue, order)
            floats = _sometimes(drawn(count) < self.jitter_probability, jittered, floats)
        if self.gray_probability:
            floats = _sometimes(
                drawn(count) < self.gray_probability,
                transforms.gray(floats).expand_as(floats),
                floats,
            )
        if self.blur_probability:
            blurred = transforms.gaussian_blur(
                floats, 0.1 + 1.9 * drawn(count), kernel_size=self.blur_kernel
            )
            floats = _sometimes(drawn(count) < self.blur_probability, blurred, floats)
        mean, std = (
            torch.tensor(part, device=device)[:, None, None] for part in (self.mean, self.std)
        )
        return (floats - mean) / std

    def _boxes(
        self,
        count: int,
        height: int,
        width: int,
        device: torch.device,
        generator: torch.Generator | None,
    ) -> transforms.Boxes:
        if self.crop == "resized":
            return transforms.random_boxes(
                count, height, width, scale=self.scale, device=device, generator=generator
            )
        if self.crop == "padded":
            return transforms.padded_boxes(
                count, height, width, padding=self.padding, device=device, generator=generator
            )
        return torch.tensor([0, 0, height, width], device=device).expand(count, 4)

    def clean(self) -> "Augmentation":
        """The same size and normalization with nothing random: for evaluation."""
        return Augmentation(size=self.size, mean=self.mean, std=self.std)


def _sometimes(chosen: Tensor, one: Tensor, other: Tensor) -> Tensor:
    return torch.where(chosen[:, None, None, None], one, other)
