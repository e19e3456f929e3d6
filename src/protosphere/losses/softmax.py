"""Sample against prototypes: cross-entropy on raw features, and NormFace on the sphere with optional margins."""

import math
from numbers import Real
from typing import Literal

import torch
from jaxtyping import Float, Integer
from torch import Tensor

from protosphere.geometry.sphere import compute_dtype, squared_chords
from protosphere.kernels.masked_logsumexp import (
    Form,
    check_choices,
    masked_logsumexp,
    read_temperature,
)
from protosphere.losses.module import Criterion
from protosphere.losses.targets import (
    Reduction,
    Samples,
    Temperature,
    check_prototypes,
    read_labels,
    reduce_anchors,
)

MarginKind = Literal["cosine", "angle"]


def cross_entropy_loss(
    features: Float[Tensor, "samples dim"],
    prototypes: Float[Tensor, "classes dim"],
    labels: Integer[Tensor, "samples"],
    *,
    bias: Float[Tensor, "classes"] | None = None,
    temperature: Temperature = 1.0,
    class_weights: Float[Tensor, "classes"] | None = None,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    form: Form = "auto",
) -> Float[Tensor, "samples"] | Float[Tensor, ""]:
    """Cross-entropy of a linear classifier on raw features, the baseline of every comparison.

    ℓ_i = log Σ_c exp((z_i·w_c + b_c)/τ) − (z_i·w_{y_i} + b_{y_i})/τ

    Args:
        features: z, as they come from the encoder.
        prototypes: w, the rows of the linear layer.
        labels: y, one class per sample.
        bias: b, one number per class.
        temperature: τ, a positive number or a tensor of one.
        class_weights: one weight per class, for the anchors.
        ignore_index: samples with this label do not exist.
        reduction: ``"mean"`` (by the weights of the kept samples), ``"sum"`` or ``"none"``.
        form: how the classes are summed: ``"eager"``, ``"chunked"`` (never the whole matrix) or by size.

    Returns:
        One number, or one per sample for ``reduction="none"``, in float32 or wider.

    Raises:
        ValueError: shapes that do not fit, a label out of range, a temperature that is not positive.

    >>> cross_entropy_loss(torch.eye(3), torch.eye(3), torch.arange(3))
    tensor(0.5514)
    """
    check_prototypes(features, prototypes)
    temperature = read_temperature(temperature)
    if bias is not None and bias.shape != prototypes.shape[:1]:
        raise ValueError(
            f"bias must hold one number per class, shape ({len(prototypes)},); got {tuple(bias.shape)}"
        )
    samples = read_labels(
        labels, samples=len(features), num_classes=len(prototypes), ignore_index=ignore_index
    )
    scaled_bias = None if bias is None else bias.to(compute_dtype(bias)) / temperature
    others = masked_logsumexp(
        samples.blank_ignored(features),
        prototypes,
        temperature=temperature,
        similarity="dot",
        pull="key_of_anchor",
        leave_out="pulled",
        partners=samples.labels,
        key_log_weights=scaled_bias,
        form=form,
    )
    target = others.pulled if scaled_bias is None else others.pulled + scaled_bias[samples.labels]
    return softmax_loss(others.values, target, samples, class_weights, reduction)


def normface_loss(
    features: Float[Tensor, "samples dim"],
    prototypes: Float[Tensor, "classes dim"],
    labels: Integer[Tensor, "samples"],
    *,
    temperature: Temperature = 0.1,
    margin: float = 0.0,
    margin_kind: MarginKind = "cosine",
    class_weights: Float[Tensor, "classes"] | None = None,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    form: Form = "auto",
) -> Float[Tensor, "samples"] | Float[Tensor, ""]:
    """NormFace, the softmax loss on the sphere: each sample against all prototypes.

    ℓ_i = log Σ_c exp(S_ic) − S_{i y_i},   S_ic = cos(z_i, w_c)/τ

    A margin m makes the target harder, in numerator and denominator alike: S_{i y_i} becomes (cos θ − m)/τ for
    ``margin_kind="cosine"`` (CosFace) or cos(θ + m)/τ for ``"angle"`` (ArcFace).

    Args:
        features: z; the loss normalizes them.
        prototypes: w; the loss normalizes them.
        labels: y, one class per sample.
        temperature: τ, a positive number or a tensor of one, which can be learned.
        margin: m, from 0 to 2 for cosines and to π for angles.
        margin_kind: what the margin is added to.
        class_weights: one weight per class, for the anchors.
        ignore_index: samples with this label do not exist.
        reduction: ``"mean"`` (by the weights of the kept samples), ``"sum"`` or ``"none"``.
        form: how the classes are summed: ``"eager"``, ``"chunked"`` (never the whole matrix) or by size.

    Returns:
        One number, or one per sample for ``reduction="none"``, in float32 or wider.

    Raises:
        ValueError: shapes that do not fit, a label out of range, a temperature that is not positive, a bad margin.

    >>> normface_loss(torch.eye(3), torch.eye(3), torch.arange(3), temperature=0.2)
    tensor(0.0134)

    Reference: Wang et al., "NormFace: L2 hypersphere embedding for face verification", 2017.
    """
    check_prototypes(features, prototypes)
    temperature = read_temperature(temperature)
    _check_margin(margin, margin_kind)
    samples = read_labels(
        labels, samples=len(features), num_classes=len(prototypes), ignore_index=ignore_index
    )
    features = samples.blank_ignored(features)
    others = masked_logsumexp(
        features,
        prototypes,
        temperature=temperature,
        pull="key_of_anchor",
        leave_out="pulled",
        partners=samples.labels,
        form=form,
    )
    target = others.pulled
    if margin and margin_kind == "cosine":
        target = target - margin / temperature
    elif margin:
        squares = squared_chords(features, prototypes.index_select(0, samples.labels))
        sines = _root(squares) * _root(1 - squares / 4)
        # (cos(θ + m) − 1)/τ: the primitive counts cosines from 1.
        target = (
            target * math.cos(margin)
            + (math.cos(margin) - 1 - sines * math.sin(margin)) / temperature
        )
    return softmax_loss(others.values, target, samples, class_weights, reduction)


class CrossEntropyLoss(Criterion):
    """Cross-entropy as a module; the formula is :func:`cross_entropy_loss`."""

    def __init__(
        self,
        *,
        temperature: float = 1.0,
        class_weights: Tensor | None = None,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
        form: Form = "auto",
    ) -> None:
        super().__init__(
            class_weights,
            temperature=temperature,
            ignore_index=ignore_index,
            reduction=reduction,
            form=form,
        )

    def forward(
        self,
        features: Tensor,
        prototypes: Tensor,
        labels: Tensor,
        *,
        bias: Tensor | None = None,
        temperature: Temperature | None = None,
    ) -> Tensor:
        """The loss; a ``temperature`` given here, as a head that learns it does, comes before the module's own."""
        return cross_entropy_loss(
            features, prototypes, labels, bias=bias, **self.options(temperature)
        )


class NormFaceLoss(Criterion):
    """NormFace as a module; the formula is :func:`normface_loss`."""

    def __init__(
        self,
        *,
        temperature: float = 0.1,
        margin: float = 0.0,
        margin_kind: MarginKind = "cosine",
        class_weights: Tensor | None = None,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
        form: Form = "auto",
    ) -> None:
        _check_margin(margin, margin_kind)
        super().__init__(
            class_weights,
            temperature=temperature,
            margin=margin,
            margin_kind=margin_kind,
            ignore_index=ignore_index,
            reduction=reduction,
            form=form,
        )

    def forward(
        self,
        features: Tensor,
        prototypes: Tensor,
        labels: Tensor,
        *,
        temperature: Temperature | None = None,
    ) -> Tensor:
        """The loss; a ``temperature`` given here, as a head that learns it does, comes before the module's own."""
        return normface_loss(features, prototypes, labels, **self.options(temperature))


def softmax_loss(
    others: Tensor,
    target: Tensor,
    samples: Samples,
    class_weights: Tensor | None,
    reduction: Reduction,
) -> Tensor:
    """log(e^target + e^others) − target as a softplus.

    The target is left out of the sum on purpose: near collapse log-sum-exp minus target is a difference of equal
    numbers, and the gradient 1 − p has no digits left in float32.
    """
    # Not F.softplus, which is x beyond 20 and so off by 2e-9 there.
    values = torch.logaddexp(others - target, others.new_zeros(()))
    return reduce_anchors(values, samples, class_weights=class_weights, reduction=reduction)


def _root(values: Tensor) -> Tensor:
    """Square root with a zero gradient at 0, where the slope is infinite and the direction undefined."""
    positive = values > 0
    return torch.where(positive, torch.where(positive, values, 1).sqrt(), 0)


def _check_margin(margin: float, margin_kind: MarginKind) -> None:
    check_choices(margin_kind=(margin_kind, MarginKind))
    # Beyond these the target would lie past its opposite.
    largest = {"cosine": 2.0, "angle": math.pi}[margin_kind]
    if not isinstance(margin, Real) or not 0 <= margin <= largest:
        raise ValueError(
            f"margin must be a number from 0 to {largest:.4g} for {margin_kind=}; got {margin!r}"
        )
