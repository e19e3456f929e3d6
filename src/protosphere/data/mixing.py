"""Mixup and CutMix on the device: each image is mixed with the one before it in the batch.

For the same parameters the results equal those of torchvision's ``MixUp`` and ``CutMix``, which
draw one weight for the whole batch; here every image has its own. No shape depends on a value and
nothing is copied to the host, so everything compiles and can be captured as a CUDA graph.
"""

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from protosphere.data.setting_checks import check_name, check_number, pydantic_settings
from protosphere.data.transforms import Boxes, PerImage, box_masks

Images = Float[Tensor, "images channels height width"]

# Smallest and largest parameter of the beta distribution: outside, single precision is too coarse.
_ALPHAS = (0.001, 1000.0)


@pydantic_settings
@dataclass(frozen=True, kw_only=True)
class Mixup:
    """Blend each image with another one: λ x + (1 − λ) x′ with λ ~ Beta(alpha, alpha).

    Attributes:
        name: ``"mixup"``.
        alpha: Both parameters of the beta distribution. Smaller values mix less.
        p: Probability of mixing an image.

    Reference: Zhang et al., mixup: Beyond Empirical Risk Minimization, ICLR 2018.
    """

    name: Literal["mixup"] = "mixup"
    alpha: float = 0.2
    p: float = 1.0

    def __post_init__(self) -> None:
        check_name(self.name, "mixup")
        check_number("alpha", self.alpha, low=_ALPHAS[0], high=_ALPHAS[1])
        check_number("p", self.p, low=0.0, high=1.0)


@pydantic_settings
@dataclass(frozen=True, kw_only=True)
class CutMix:
    """Replace a box of each image by the same box of another one.

    The area of the box is 1 − λ of the image with λ ~ Beta(alpha, alpha), its center uniform. Boxes
    are clipped at the border, and the labels are weighted by the area that remains.

    Attributes:
        name: ``"cutmix"``.
        alpha: Both parameters of the beta distribution. 1 is the uniform distribution.
        p: Probability of mixing an image.

    Reference: Yun et al., CutMix: Regularization Strategy to Train Strong Classifiers with
    Localizable Features, ICCV 2019.
    """

    name: Literal["cutmix"] = "cutmix"
    alpha: float = 1.0
    p: float = 1.0

    def __post_init__(self) -> None:
        check_name(self.name, "cutmix")
        check_number("alpha", self.alpha, low=_ALPHAS[0], high=_ALPHAS[1])
        check_number("p", self.p, low=0.0, high=1.0)


@pydantic_settings
@dataclass(frozen=True, kw_only=True)
class MixupOrCutMix:
    """Apply mixup or CutMix to each image, chosen at random.

    Attributes:
        name: ``"mixup_or_cutmix"``.
        mixup_alpha: Both parameters of mixup's beta distribution.
        cutmix_alpha: Both parameters of CutMix's beta distribution.
        cutmix_p: Probability of CutMix among the mixed images.
        p: Probability of mixing an image.
    """

    name: Literal["mixup_or_cutmix"] = "mixup_or_cutmix"
    mixup_alpha: float = 0.2
    cutmix_alpha: float = 1.0
    cutmix_p: float = 0.5
    p: float = 1.0

    def __post_init__(self) -> None:
        check_name(self.name, "mixup_or_cutmix")
        for name in ("mixup_alpha", "cutmix_alpha"):
            check_number(name, getattr(self, name), low=_ALPHAS[0], high=_ALPHAS[1])
        for name in ("cutmix_p", "p"):
            check_number(name, getattr(self, name), low=0.0, high=1.0)


Mixing = Mixup | CutMix | MixupOrCutMix


class MixedImages(NamedTuple):
    """Mixed images and the weight of each image's own label.

    The label of the image before it in the batch, ``labels.roll(1)``, has the rest of the weight.
    """

    images: Images
    weights: PerImage


def mix_images(
    images: Images, mixing: Mixing, generator: torch.Generator | None = None
) -> MixedImages:
    """Mix each image with the one before it in the batch, with its own random parameters.

    Args:
        images: Normalized images, on any device.
        mixing: Kind of mixing.
        generator: Random generator of that device. None means its default generator.

    Returns:
        Mixed images, and the weight of each image's own label.

    >>> images = torch.rand(4, 3, 8, 8)
    >>> mixed, weights = mix_images(images, Mixup(alpha=0.2))
    >>> others = 1 - weights
    >>> labels = torch.tensor([0, 1, 2, 3])
    >>> labels.roll(1)  # These labels have the weights ``others``.
    tensor([3, 0, 1, 2])
    """
    count, _, height, width = images.shape

    def uniform() -> Tensor:
        return torch.rand(count, device=images.device, generator=generator)

    def beta(alpha: float) -> Tensor:
        return symmetric_beta(uniform(), uniform(), alpha)

    def draw_boxes(alpha: float) -> Tensor:
        return cutmix_boxes(beta(alpha), uniform(), uniform(), height, width)

    is_mixed = uniform() < mixing.p
    if isinstance(mixing, Mixup):
        return mixup(images, torch.where(is_mixed, beta(mixing.alpha), 1))
    if isinstance(mixing, CutMix):
        return cutmix(images, torch.where(is_mixed[:, None], draw_boxes(mixing.alpha), 0))
    is_cutmix = uniform() < mixing.cutmix_p
    weights = torch.where(is_mixed & ~is_cutmix, beta(mixing.mixup_alpha), 1)
    boxes = draw_boxes(mixing.cutmix_alpha)
    boxes = torch.where((is_mixed & is_cutmix)[:, None], boxes, 0)
    # An image without mixup has weight 1, and one without CutMix has an empty box.
    blended, cut = mixup(images, weights), cutmix(images, boxes)
    pixels = torch.where(box_masks(boxes, height, width), cut.images, blended.images)
    return MixedImages(pixels, weights * cut.weights)


def mixup(images: Images, weights: PerImage) -> MixedImages:
    """Blend each image with the one before it: λ x + (1 − λ) x′.

    Args:
        images: Float images.
        weights: Weight λ of each image, between 0 and 1.

    >>> images = torch.tensor([1.0, 5.0]).reshape(2, 1, 1, 1)
    >>> mixup(images, torch.tensor([1.0, 0.75])).images.flatten()
    tensor([1., 4.])
    """
    fractions = weights.to(images.dtype)[:, None, None, None]
    return MixedImages(images * fractions + images.roll(1, 0) * (1 - fractions), weights)


def cutmix(images: Images, boxes: Boxes) -> MixedImages:
    """Replace a box of each image by the same box of the image before it.

    Args:
        images: Float images.
        boxes: Top, left, height and width of each box, within the image.

    Returns:
        Mixed images, and the fraction of each image outside its box.

    >>> images = torch.stack([torch.zeros(1, 2, 2), torch.ones(1, 2, 2)])
    >>> mixed, weights = cutmix(images, torch.tensor([[0, 1, 2, 1], [0, 0, 0, 0]]))
    >>> mixed[0, 0]
    tensor([[0., 1.],
            [0., 1.]])
    >>> weights
    tensor([0.5000, 1.0000])
    """
    height, width = images.shape[2:]
    pixels = torch.where(box_masks(boxes, height, width), images.roll(1, 0), images)
    return MixedImages(pixels, 1 - boxes[:, 2] * boxes[:, 3] / (height * width))


def cutmix_boxes(
    weights: PerImage, rows: PerImage, columns: PerImage, height: int, width: int
) -> Boxes:
    """Return CutMix's boxes, as torchvision computes them.

    A box has the center (⌊rows · height⌋, ⌊columns · width⌋) and half sides of ½ √(1 − λ) of the
    image's sides, rounded down; it is clipped at the border.

    Args:
        weights: Weight λ of each image, between 0 and 1.
        rows: Vertical position of each center as a fraction of the height, in [0, 1).
        columns: Horizontal position of each center as a fraction of the width, in [0, 1).
        height: Height of the images.
        width: Width of the images.

    Returns:
        Top, left, height and width of each box.

    >>> half = torch.tensor([0.5])
    >>> cutmix_boxes(torch.tensor([0.75]), half, half, 8, 8)
    tensor([[2, 2, 4, 4]])
    """
    radius = 0.5 * (1 - weights).sqrt()
    starts, lengths = [], []
    for positions, side in ((rows, height), (columns, width)):
        center = (positions * side).long().clamp(max=side - 1)
        half = (radius * side).long()
        start = (center - half).clamp(min=0)
        starts.append(start)
        lengths.append((center + half).clamp(max=side) - start)
    return torch.stack(starts + lengths, 1)


def symmetric_beta(
    first: Float[Tensor, "*shape"], second: Float[Tensor, "*shape"], alpha: float
) -> Float[Tensor, "*shape"]:
    """Turn two uniform numbers in [0, 1) into one of the distribution Beta(alpha, alpha).

    λ = ½ + ½ c √((1 − q) / (q + (1 − q) c²)) with q = u^(1/alpha) and c = cos 2πv: a symmetric beta
    variate is a function of Student's t with 2 alpha degrees of freedom, which the polar method
    draws without rejection.

    Args:
        first: Uniform numbers u.
        second: Uniform numbers v.
        alpha: Both parameters of the distribution.

    >>> symmetric_beta(torch.tensor([0.25]), torch.tensor([0.0]), 0.5)
    tensor([0.9841])

    Reference: Devroye, Random variate generation in one line of code, WSC 1996.
    """
    logs = first.log() / alpha  # −∞ at u = 0 is correct: q = 0.
    power, rest = logs.exp(), -torch.expm1(logs)
    cosine = torch.cos(2 * math.pi * second)
    return (0.5 + 0.5 * cosine * (rest / (power + rest * cosine**2)).sqrt()).clamp(0, 1)
