"""The deterministic transform of images in evaluation and prediction."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from protosphere.data import transforms
from protosphere.data.decoding import center_crop
from protosphere.data.splits import EvaluationCrop


@dataclass(frozen=True)
class EvaluationTransform:
    """Crop, resize and normalize images without randomness.

    Attributes:
        size: Side of the output images in pixels.
        mean: Mean of each channel, subtracted.
        std: Standard deviation of each channel, divided by.
        crop: ``"center"`` takes the central square, as
            :func:`~protosphere.data.decoding.center_crop` does; ``"resize"`` resizes the whole
            image.
    """

    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    crop: EvaluationCrop = "resize"

    def __post_init__(self) -> None:
        if self.crop not in ("center", "resize"):
            raise ValueError(f"crop must be 'center' or 'resize', got {self.crop!r}")

    def __call__(
        self, images: UInt8[Tensor, "images channels height width"]
    ) -> Float[Tensor, "images channels size size"]:
        """Transform a batch of images of the same size, on their device."""
        return self.normalize(self.crop_pixels(images))

    def prepare(
        self, images: Sequence[UInt8[Tensor, "_ _ _"]], device: torch.device | str
    ) -> Float[Tensor, "images channels size size"]:
        """Transform images of any sizes to a batch.

        Args:
            images: Images of shape (channels, height, width) with pixels from 0 to 255. They are
                cropped on their own device.
            device: Device of the batch.
        """
        cropped = [self.crop_pixels(image) for image in images]
        if len({image.shape for image in cropped}) == 1:
            return self.normalize(torch.stack(cropped).to(device))
        return torch.cat([self.normalize(image[None].to(device)) for image in cropped])

    def crop_pixels(self, images: UInt8[Tensor, "*batch"]) -> UInt8[Tensor, "*cropped"]:
        """Return the central square of one image or a batch, or the whole images to be resized."""
        return center_crop(images, self.size) if self.crop == "center" else images

    def normalize(
        self, images: UInt8[Tensor, "images channels height width"]
    ) -> Float[Tensor, "images channels size size"]:
        """Resize cropped images to the output size where they differ from it, and normalize."""
        count, _, height, width = images.shape
        if height == width == self.size:
            pixels = images / 255
        else:
            boxes = torch.tensor([0, 0, height, width], device=images.device).expand(count, 4)
            pixels = transforms.resized_crop(images, boxes, self.size)
        return transforms.normalize(pixels, self.mean, self.std)
