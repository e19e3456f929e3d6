"""Sample against prototypes: cross-entropy on raw features, and NormFace on the sphere."""

import math
from numbers import Real
from typing import Literal

import torch
from jaxtyping import Float, Integer
from torch import Tensor, nn

from protosphere.geometry.sphere import compute_dtype, squared_chords
from protosphere.kernels.dispatch import Form, masked_logsumexp
from protosphere.kernels.problem import check_choices, read_temperature
from protosphere.losses.module import (
    CosineHead,
    LinearHead,
    LossModule,
    cosine_head_parameters,
    linear_head_parameters,
)
from protosphere.losses.reduction import Reduction, reduce_loss, reduce_weighted
from protosphere.losses.targets import Targets, Temperature, check_prototypes, read_targets

MarginKind = Literal["cosine", "angle"]


def cross_entropy_loss(
    features: Float[Tensor, "samples dim"],
    prototypes: Float[Tensor, "classes dim"],
    labels: Integer[Tensor, "samples"],
    *,
    bias: Float[Tensor, "classes"] | None = None,
    temperature: Temperature = 1.0,
    label_smoothing: float = 0.0,
    class_weights: Float[Tensor, "classes"] | None = None,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    form: Form = "auto",
) -> Float[Tensor, "samples"] | Float[Tensor, ""]:
    """Cross-entropy of a linear classifier on raw features, the baseline of every comparison.

    ℓ_i = log Σ_c exp(s_ic) − Σ_c q_ic s_ic, with s_ic = (z_i·w_c + b_c)/τ and
    q_ic = (1 − ε)·[c = y_i] + ε/K.

    With class weights ω the value is Σ_c ω_c q_ic (log Σ_c' exp(s_ic') − s_ic) and the mean divides
    by Σ_i Σ_c ω_c q_ic. The matrix q is never built.

    Args:
        features: Features z as the encoder returns them.
        prototypes: Prototypes w, the weight of the linear layer.
        labels: Class index y of each sample.
        bias: Bias b of each class.
        temperature: Temperature τ, a positive number or a tensor with one element.
        label_smoothing: Amount ε of label smoothing, from 0 to 1.
        class_weights: Weight of each class, applied to the samples of the class.
        ignore_index: Samples with this label are ignored.
        reduction: ``"mean"`` (divided by the sum of the weights), ``"sum"`` or ``"none"``.
        form: ``"eager"``, ``"chunked"`` (never holds the whole matrix of logits), or ``"auto"``,
            which chooses by size.

    Returns:
        A scalar, or one value per sample for ``reduction="none"``, in float32 or wider.

    Raises:
        ValueError: Shapes that do not fit, labels out of range, bad class weights, or an option out
            of its range.

    >>> cross_entropy_loss(torch.eye(3), torch.eye(3), torch.arange(3))
    tensor(0.5514)
    >>> cross_entropy_loss(torch.eye(3), torch.eye(3), torch.arange(3), label_smoothing=0.1)
    tensor(0.6181)
    """
    check_prototypes(features, prototypes)
    temperature = read_temperature(temperature)
    _check_label_smoothing(label_smoothing)
    if bias is not None and bias.shape != prototypes.shape[:1]:
        raise ValueError(
            f"bias must hold one number per class, shape ({len(prototypes)},); "
            f"got {tuple(bias.shape)}"
        )
    targets = read_targets(
        labels,
        num_samples=len(features),
        num_classes=len(prototypes),
        ignore_index=ignore_index,
        class_weights=class_weights,
    )
    if label_smoothing:
        # Two terms use the tensors. Their gradients must not be rounded before they are added.
        features, prototypes = (
            tensor.to(compute_dtype(tensor)) for tensor in (features, prototypes)
        )
    features = targets.mask_rows(features)
    scaled_bias = None if bias is None else bias.to(compute_dtype(bias)) / temperature
    others = masked_logsumexp(
        features,
        prototypes,
        temperature=temperature,
        similarity="dot",
        positives="key_of_anchor",
        exclude="positives",
        positive_index=targets.labels,
        key_log_weights=scaled_bias,
        form=form,
    )
    positive_logits = others.positive_logits
    if scaled_bias is not None:
        positive_logits = positive_logits + scaled_bias[targets.labels]
    values = cross_entropy(others.values, positive_logits)
    if not label_smoothing:
        return reduce_loss(values, targets, reduction=reduction)
    return _smoothed(
        values,
        positive_logits,
        features,
        prototypes,
        scaled_bias,
        targets,
        temperature=temperature,
        label_smoothing=label_smoothing,
        reduction=reduction,
    )


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

    ℓ_i = log Σ_c exp(S_ic) − S_{i y_i}, with S_ic = cos(z_i, w_c)/τ.

    A margin m replaces the logit of the sample's own class in both terms: by (cos θ − m)/τ for
    ``margin_kind="cosine"`` (CosFace), by cos(θ + m)/τ for ``"angle"`` (ArcFace). Past θ + m = π
    the angle margin is (cos θ + cos m − 1)/τ, which continues it without a jump and keeps
    attracting.

    Args:
        features: Features z; the loss normalizes them.
        prototypes: Prototypes w; the loss normalizes them.
        labels: Class index y of each sample.
        temperature: Temperature τ, a positive number or a tensor with one element, which may
            require a gradient.
        margin: Margin m, from 0 to 2 for cosines and from 0 to π for angles.
        margin_kind: Whether the margin is subtracted from the cosine (``"cosine"``) or added to the
            angle (``"angle"``).
        class_weights: Weight of each class, applied to the samples of the class.
        ignore_index: Samples with this label are ignored.
        reduction: ``"mean"`` (divided by the sum of the weights), ``"sum"`` or ``"none"``.
        form: ``"eager"``, ``"chunked"`` (never holds the whole matrix of logits), or ``"auto"``,
            which chooses by size.

    Returns:
        A scalar, or one value per sample for ``reduction="none"``, in float32 or wider.

    Raises:
        ValueError: Shapes that do not fit, labels out of range, bad class weights, or an option out
            of its range.

    >>> normface_loss(torch.eye(3), torch.eye(3), torch.arange(3), temperature=0.2)
    tensor(0.0134)

    Reference: Wang et al., "NormFace: L2 hypersphere embedding for face verification", 2017.
    """
    check_prototypes(features, prototypes)
    temperature = read_temperature(temperature)
    _check_margin(margin, margin_kind)
    targets = read_targets(
        labels,
        num_samples=len(features),
        num_classes=len(prototypes),
        ignore_index=ignore_index,
        class_weights=class_weights,
    )
    features = targets.mask_rows(features)
    others = masked_logsumexp(
        features,
        prototypes,
        temperature=temperature,
        positives="key_of_anchor",
        exclude="positives",
        positive_index=targets.labels,
        form=form,
    )
    positive_logits = others.positive_logits
    if margin and margin_kind == "cosine":
        positive_logits = positive_logits - margin / temperature
    elif margin:
        squares = squared_chords(features, prototypes.index_select(0, targets.labels))
        positive_logits = _with_angle_margin(positive_logits, squares, margin, temperature)
    values = cross_entropy(others.values, positive_logits)
    return reduce_loss(values, targets, reduction=reduction)


class CrossEntropyLoss(LossModule):
    """Cross-entropy of a linear classifier on raw features.

    ℓ_i = log Σ_c exp(s_ic) − Σ_c q_ic s_ic, with s_ic = z_i·w_c + b_c and
    q_ic = (1 − ε)·[c = y_i] + ε/K; called as ``loss(features, head, labels)`` with a
    :class:`~protosphere.classifiers.LinearClassifier` or ``nn.Linear`` that has w and b.

    Args:
        label_smoothing: Amount ε of label smoothing, from 0 to 1.
        class_weights: Weight of each class, applied to the samples of the class.
        ignore_index: Samples with this label are ignored.
        reduction: ``"mean"`` (divided by the sum of the weights), ``"sum"`` or ``"none"``.
        form: ``"eager"``, ``"chunked"`` (never holds the whole matrix of logits), or ``"auto"``,
            which chooses by size.

    Raises:
        ValueError: An option out of its range or bad class weights.

    >>> loss = CrossEntropyLoss(label_smoothing=0.1)
    >>> loss(torch.randn(8, 16), nn.Linear(16, 3), torch.arange(8) % 3).shape
    torch.Size([])
    """

    def __init__(
        self,
        *,
        label_smoothing: float = 0.0,
        class_weights: Tensor | None = None,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
        form: Form = "auto",
    ) -> None:
        _check_label_smoothing(label_smoothing)
        super().__init__(
            class_weights=class_weights,
            label_smoothing=label_smoothing,
            ignore_index=ignore_index,
            reduction=reduction,
            form=form,
        )

    def forward(self, features: Tensor, head: LinearHead | nn.Linear, labels: Tensor) -> Tensor:
        """Compute :func:`cross_entropy_loss` with the weight and the bias of the head."""
        weight, bias = linear_head_parameters(head, self)
        return cross_entropy_loss(features, weight, labels, bias=bias, **self.options)


class NormFaceLoss(LossModule):
    """NormFace, the softmax loss on the sphere: each sample against all prototypes.

    ℓ_i = log Σ_c exp(S_ic) − S_{i y_i}, with S_ic = cos(z_i, w_c)/τ; called as
    ``loss(features, head, labels)`` with a :class:`~protosphere.classifiers.CosineClassifier` that
    has the prototypes w and the temperature τ.

    Args:
        margin: Margin m, from 0 to 2 for cosines and from 0 to π for angles.
        margin_kind: Whether the margin is subtracted from the cosine of the sample with its
            prototype (``"cosine"``, as in CosFace) or added to the angle (``"angle"``, as in
            ArcFace).
        class_weights: Weight of each class, applied to the samples of the class.
        ignore_index: Samples with this label are ignored.
        reduction: ``"mean"`` (divided by the sum of the weights), ``"sum"`` or ``"none"``.
        form: ``"eager"``, ``"chunked"`` (never holds the whole matrix of logits), or ``"auto"``,
            which chooses by size.

    Raises:
        ValueError: An option out of its range or bad class weights.
    """

    def __init__(
        self,
        *,
        margin: float = 0.0,
        margin_kind: MarginKind = "cosine",
        class_weights: Tensor | None = None,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
        form: Form = "auto",
    ) -> None:
        _check_margin(margin, margin_kind)
        super().__init__(
            class_weights=class_weights,
            margin=margin,
            margin_kind=margin_kind,
            ignore_index=ignore_index,
            reduction=reduction,
            form=form,
        )

    def forward(self, features: Tensor, head: CosineHead, labels: Tensor) -> Tensor:
        """Compute :func:`normface_loss` with the prototypes and the temperature of the head."""
        prototypes, temperature = cosine_head_parameters(head, self)
        return normface_loss(features, prototypes, labels, temperature=temperature, **self.options)


def cross_entropy(
    others: Float[Tensor, "samples"], positive_logits: Float[Tensor, "samples"]
) -> Float[Tensor, "samples"]:
    """Return log(e^positive + e^others) − positive as a softplus.

    The positive is not part of the other sum on purpose: near collapse log-sum-exp minus positive
    is a difference of equal numbers, and its gradient 1 − p has no digits left in float32.

    Args:
        others: Log-sum-exp of the logits of the other classes.
        positive_logits: Logit of the sample's own class.
    """
    # Not F.softplus, which is x beyond 20 and so off by 2e-9 there.
    return torch.logaddexp(others - positive_logits, others.new_zeros(()))


def _smoothed(
    values: Tensor,
    positive_logits: Tensor,
    features: Tensor,
    prototypes: Tensor,
    scaled_bias: Tensor | None,
    targets: Targets,
    *,
    temperature: float | Tensor,
    label_smoothing: float,
    reduction: Reduction,
) -> Tensor:
    """Mix the cross-entropy of the label with that of the uniform distribution and reduce.

    The second one needs the weighted mean of each sample's logits only, which is the logit of the
    weighted mean of the prototypes.
    """
    dtype, num_classes = values.dtype, len(prototypes)
    class_weights = (
        values.new_ones(num_classes)
        if targets.class_weights is None
        else targets.class_weights.to(dtype)
    )
    total_weight = class_weights.sum()
    with torch.autocast(values.device.type, enabled=False):
        logit_sums = features.to(dtype) @ (class_weights @ prototypes.to(dtype)) / temperature
        if scaled_bias is not None:
            logit_sums = logit_sums + class_weights @ scaled_bias.to(dtype)
    log_sums = values + positive_logits
    own = (1 - label_smoothing) * targets.sample_weights(dtype)
    fraction = label_smoothing / num_classes
    kept = targets.kept
    weighted = own * values + fraction * (total_weight * log_sums - logit_sums)
    weights = own + fraction * total_weight
    return reduce_weighted(torch.where(kept, weighted, 0), torch.where(kept, weights, 0), reduction)


def _with_angle_margin(
    positive_logits: Tensor, squares: Tensor, margin: float, temperature: float | Tensor
) -> Tensor:
    """Return (cos(θ + m) − 1)/τ, or past θ + m = π (cos θ + cos m − 2)/τ.

    Args:
        positive_logits: (cos θ − 1)/τ; the primitive measures cosines from 1.
        squares: Squared chords 2 − 2 cos θ.
        margin: Margin m.
        temperature: Temperature τ.
    """
    cosine, sine = math.cos(margin), math.sin(margin)
    sines = _safe_sqrt(squares) * _safe_sqrt(1 - squares / 4)
    inside = positive_logits * cosine + (cosine - 1 - sines * sine) / temperature
    beyond = positive_logits + (cosine - 1) / temperature
    return torch.where(squares > 2 * (1 + cosine), beyond, inside)


def _safe_sqrt(values: Tensor) -> Tensor:
    """Square root with a zero gradient at 0, where the slope is infinite."""
    positive = values > 0
    return torch.where(positive, torch.where(positive, values, 1).sqrt(), 0)


def _check_label_smoothing(label_smoothing: float) -> None:
    if (
        isinstance(label_smoothing, bool)
        or not isinstance(label_smoothing, Real)
        or not 0 <= label_smoothing <= 1
    ):
        raise ValueError(f"label_smoothing must be a number from 0 to 1, got {label_smoothing!r}")


def _check_margin(margin: float, margin_kind: MarginKind) -> None:
    check_choices(margin_kind=(margin_kind, MarginKind))
    # A larger margin would put the target beyond the opposite of the prototype.
    largest = {"cosine": 2.0, "angle": math.pi}[margin_kind]
    if isinstance(margin, bool) or not isinstance(margin, Real) or not 0 <= margin <= largest:
        raise ValueError(
            f"margin must be a number from 0 to {largest:.4g} for margin_kind={margin_kind!r}, "
            f"got {margin!r}"
        )
