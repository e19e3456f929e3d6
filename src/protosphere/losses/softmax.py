"""Sample against prototypes: cross-entropy on raw features, and NormFace on the sphere."""

from jaxtyping import Float
from torch import Tensor, nn

from protosphere.geometry.sphere import compute_dtype, squared_chords
from protosphere.kernels.dispatch import Form, masked_logsumexp
from protosphere.kernels.problem import read_temperature
from protosphere.losses.contrast import cross_entropy
from protosphere.losses.margins import (
    MarginKind,
    check_margin,
    raise_margin_with_soft_labels,
    with_angle_margin,
)
from protosphere.losses.module import (
    CosineHead,
    LinearHead,
    LossModule,
    cosine_head_parameters,
    linear_head_parameters,
)
from protosphere.losses.reduction import Reduction, reduce_loss
from protosphere.losses.sharded import class_shards, sharded_normface_loss
from protosphere.losses.soft_losses import LogitsOfFeatures, soft_cross_entropy
from protosphere.losses.soft_targets import Labels, SoftTargets, read_labels
from protosphere.losses.targets import (
    Temperature,
    check_logit_adjustment,
    check_prototypes,
    loss_dtype,
)
from protosphere.parallel import ProcessGroup


def cross_entropy_loss(
    features: Float[Tensor, "samples dim"],
    prototypes: Float[Tensor, "classes dim"],
    labels: Labels,
    *,
    bias: Float[Tensor, "classes"] | None = None,
    temperature: Temperature = 1.0,
    label_smoothing: float = 0.0,
    logit_adjustment: Float[Tensor, "classes"] | None = None,
    class_weights: Float[Tensor, "classes"] | None = None,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    form: Form = "auto",
    group: ProcessGroup | None = None,
) -> Float[Tensor, "samples"] | Float[Tensor, ""]:
    """Cross-entropy of a linear classifier on raw features, the baseline of every comparison.

    ℓ_i = log Σ_c exp(s_ic) − Σ_c q_ic s_ic, with s_ic = (z_i·w_c + b_c)/τ and
    q_ic = [c = y_i] for class indices y.

    With class weights ω the value is Σ_c ω_c q_ic (log Σ_c' exp(s_ic') − s_ic) and the mean divides
    by Σ_i Σ_c ω_c q_ic. The matrix q is built only if it is given.

    Args:
        features: Features z as the encoder returns them.
        prototypes: Prototypes w, the weight of the linear layer.
        labels: Class index y of each sample; or class probabilities q, shape (samples, classes), or
            :class:`MixedLabels`.
        bias: Bias b of each class.
        temperature: Temperature τ, a positive number or a tensor with one element.
        label_smoothing: Amount ε of label smoothing, from 0 to 1: q becomes (1 − ε) q + ε/K.
        logit_adjustment: Number added to the logits of each class in the loss only, usually
            t · log(class frequency).
        class_weights: Weight of each class, applied to the samples of the class.
        ignore_index: Samples with this label are ignored.
        reduction: ``"mean"`` (divided by the sum of the weights), ``"sum"`` or ``"none"``.
        form: ``"eager"``, ``"chunked"`` (never holds the whole matrix of logits), or ``"auto"``,
            which chooses by size.
        group: Process group whose ranks hold the batch together and all call the loss; None for a
            batch of this process alone.

    Returns:
        A scalar, or one value per sample for ``reduction="none"``, in float32 or wider.

    Raises:
        ValueError: Shapes that do not fit, labels out of range, bad class weights, or an option out
            of its range.

    >>> import torch
    >>> cross_entropy_loss(torch.eye(3), torch.eye(3), torch.arange(3))
    tensor(0.5514)
    >>> cross_entropy_loss(torch.eye(3), torch.eye(3), torch.arange(3), label_smoothing=0.1)
    tensor(0.6181)
    """
    check_prototypes(features, prototypes)
    temperature = read_temperature(temperature)
    if bias is not None and bias.shape != prototypes.shape[:1]:
        raise ValueError(
            f"bias must hold one number per class, shape ({len(prototypes)},); "
            f"got {tuple(bias.shape)}"
        )
    scaled_bias = None if bias is None else bias.to(compute_dtype(bias)) / temperature
    offsets = _add_adjustment(scaled_bias, logit_adjustment, len(prototypes))
    targets = read_labels(
        labels,
        num_samples=len(features),
        num_classes=len(prototypes),
        ignore_index=ignore_index,
        class_weights=class_weights,
        label_smoothing=label_smoothing,
        dtype=loss_dtype(features, prototypes, temperature),
    )
    if isinstance(targets, SoftTargets):
        logits = LogitsOfFeatures.read(
            features,
            prototypes,
            targets,
            temperature=temperature,
            similarity="dot",
            offsets=offsets,
            form=form,
        )
        return soft_cross_entropy(logits, reduction, group)
    others = masked_logsumexp(
        targets.mask_rows(features),
        prototypes,
        temperature=temperature,
        similarity="dot",
        positives="key_of_anchor",
        exclude="positives",
        positive_index=targets.labels,
        key_log_weights=offsets,
        form=form,
    )
    positive_logits = others.positive_logits
    if offsets is not None:
        positive_logits = positive_logits + offsets[targets.labels]
    values = cross_entropy(others.values, positive_logits)
    return reduce_loss(values, targets, reduction=reduction, group=group)


def normface_loss(
    features: Float[Tensor, "samples dim"],
    prototypes: Float[Tensor, "classes dim"],
    labels: Labels,
    *,
    temperature: Temperature = 0.1,
    margin: float = 0.0,
    margin_kind: MarginKind = "cosine",
    label_smoothing: float = 0.0,
    logit_adjustment: Float[Tensor, "classes"] | None = None,
    class_weights: Float[Tensor, "classes"] | None = None,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    form: Form = "auto",
    group: ProcessGroup | None = None,
) -> Float[Tensor, "samples"] | Float[Tensor, ""]:
    """NormFace, the softmax loss on the sphere: each sample against all prototypes.

    ℓ_i = log Σ_c exp(S_ic) − S_{i y_i}, with S_ic = cos(z_i, w_c)/τ; for class probabilities q
    log Σ_c exp(S_ic) − Σ_c q_ic S_ic.

    A margin m replaces the logit of the sample's own class in both terms: by (cos θ − m)/τ for
    ``margin_kind="cosine"`` (CosFace), by cos(θ + m)/τ for ``"angle"`` (ArcFace). Past θ + m = π
    the angle margin is (cos θ + cos m − 1)/τ, which continues it without a jump and keeps
    attracting.

    Args:
        features: Features z; the loss normalizes them.
        prototypes: Prototypes w; the loss normalizes them.
        labels: Class index y of each sample; or class probabilities q, shape (samples, classes), or
            :class:`MixedLabels`.
        temperature: Temperature τ, a positive number or a tensor with one element, which may
            require a gradient.
        margin: Margin m, from 0 to 2 for cosines and from 0 to π for angles.
        margin_kind: Whether the margin is subtracted from the cosine (``"cosine"``) or added to the
            angle (``"angle"``).
        label_smoothing: Amount ε of label smoothing, from 0 to 1: q becomes (1 − ε) q + ε/K.
        logit_adjustment: Number added to the logits of each class in the loss only, usually
            t · log(class frequency).
        class_weights: Weight of each class, applied to the samples of the class.
        ignore_index: Samples with this label are ignored.
        reduction: ``"mean"`` (divided by the sum of the weights), ``"sum"`` or ``"none"``.
        form: ``"eager"``, ``"chunked"`` (never holds the whole matrix of logits), or ``"auto"``,
            which chooses by size.
        group: Process group whose ranks hold the batch together and all call the loss; None for a
            batch of this process alone.

    Returns:
        A scalar, or one value per sample for ``reduction="none"``, in float32 or wider.

    Raises:
        ValueError: Shapes that do not fit, labels out of range, bad class weights, or an option out
            of its range.

    >>> import torch
    >>> normface_loss(torch.eye(3), torch.eye(3), torch.arange(3), temperature=0.2)
    tensor(0.0134)

    Reference: Wang et al., "NormFace: L2 hypersphere embedding for face verification", 2017.
    """
    check_prototypes(features, prototypes)
    temperature = read_temperature(temperature)
    check_margin(margin, margin_kind, label_smoothing=label_smoothing)
    offsets = _add_adjustment(None, logit_adjustment, len(prototypes))
    targets = read_labels(
        labels,
        num_samples=len(features),
        num_classes=len(prototypes),
        ignore_index=ignore_index,
        class_weights=class_weights,
        label_smoothing=label_smoothing,
        dtype=loss_dtype(features, prototypes, temperature),
    )
    if isinstance(targets, SoftTargets):
        if margin:
            raise_margin_with_soft_labels(margin)
        logits = LogitsOfFeatures.read(
            features, prototypes, targets, temperature=temperature, offsets=offsets, form=form
        )
        return soft_cross_entropy(logits, reduction, group)
    features = targets.mask_rows(features)
    others = masked_logsumexp(
        features,
        prototypes,
        temperature=temperature,
        positives="key_of_anchor",
        exclude="positives",
        positive_index=targets.labels,
        key_log_weights=offsets,
        form=form,
    )
    positive_logits = others.positive_logits
    if margin and margin_kind == "cosine":
        positive_logits = positive_logits - margin / temperature
    elif margin:
        squares = squared_chords(features, prototypes.index_select(0, targets.labels))
        positive_logits = with_angle_margin(positive_logits, squares, margin, temperature)
    if offsets is not None:
        positive_logits = positive_logits + offsets[targets.labels]
    values = cross_entropy(others.values, positive_logits)
    return reduce_loss(values, targets, reduction=reduction, group=group)


class CrossEntropyLoss(LossModule):
    """Cross-entropy of a linear classifier on raw features.

    ℓ_i = log Σ_c exp(s_ic) − Σ_c q_ic s_ic, with s_ic = z_i·w_c + b_c and
    q_ic = [c = y_i] for class indices y; called as ``loss(features, head, labels)`` with a
    :class:`~protosphere.classifiers.LinearClassifier` or ``nn.Linear`` that has w and b.

    Args:
        label_smoothing: Amount ε of label smoothing, from 0 to 1: q becomes (1 − ε) q + ε/K.
        logit_adjustment: Number added to the logits of each class in the loss only, usually
            t · log(class frequency).
        class_weights: Weight of each class, applied to the samples of the class.
        ignore_index: Samples with this label are ignored.
        reduction: ``"mean"`` (divided by the sum of the weights), ``"sum"`` or ``"none"``.
        form: ``"eager"``, ``"chunked"`` (never holds the whole matrix of logits), or ``"auto"``,
            which chooses by size.
        group: Process group whose ranks hold the batch together and all call the loss; None for a
            batch of this process alone.

    Raises:
        ValueError: An option out of its range or bad class weights.

    >>> import torch
    >>> loss = CrossEntropyLoss(label_smoothing=0.1)
    >>> loss(torch.randn(8, 16), nn.Linear(16, 3), torch.arange(8) % 3).shape
    torch.Size([])
    """

    def __init__(
        self,
        *,
        label_smoothing: float = 0.0,
        logit_adjustment: Tensor | None = None,
        class_weights: Tensor | None = None,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
        form: Form = "auto",
        group: ProcessGroup | None = None,
    ) -> None:
        super().__init__(
            class_weights=class_weights,
            label_smoothing=label_smoothing,
            logit_adjustment=logit_adjustment,
            ignore_index=ignore_index,
            reduction=reduction,
            form=form,
            group=group,
        )

    def forward(self, features: Tensor, head: LinearHead | nn.Linear, labels: Labels) -> Tensor:
        """Compute :func:`cross_entropy_loss` with the weight and the bias of the head."""
        weight, bias = linear_head_parameters(head, self)
        return cross_entropy_loss(features, weight, labels, bias=bias, **self.options)


class NormFaceLoss(LossModule):
    """NormFace, the softmax loss on the sphere: each sample against all prototypes.

    ℓ_i = log Σ_c exp(S_ic) − S_{i y_i}, with S_ic = cos(z_i, w_c)/τ; called as
    ``loss(features, head, labels)`` with a :class:`~protosphere.classifiers.CosineClassifier` that
    has the prototypes w and the temperature τ, or of many classes with a
    :class:`~protosphere.classifiers.ShardedCosineClassifier`.

    Args:
        margin: Margin m, from 0 to 2 for cosines and from 0 to π for angles.
        margin_kind: Whether the margin is subtracted from the cosine of the sample with its
            prototype (``"cosine"``, as in CosFace) or added to the angle (``"angle"``, as in
            ArcFace).
        label_smoothing: Amount ε of label smoothing, from 0 to 1: q becomes (1 − ε) q + ε/K.
        logit_adjustment: Number added to the logits of each class in the loss only, usually
            t · log(class frequency).
        class_weights: Weight of each class, applied to the samples of the class.
        ignore_index: Samples with this label are ignored.
        reduction: ``"mean"`` (divided by the sum of the weights), ``"sum"`` or ``"none"``.
        form: ``"eager"``, ``"chunked"`` (never holds the whole matrix of logits), or ``"auto"``,
            which chooses by size.
        group: Process group whose ranks hold the batch together and all call the loss; None for a
            batch of this process alone.

    Raises:
        ValueError: An option out of its range or bad class weights.
    """

    def __init__(
        self,
        *,
        margin: float = 0.0,
        margin_kind: MarginKind = "cosine",
        label_smoothing: float = 0.0,
        logit_adjustment: Tensor | None = None,
        class_weights: Tensor | None = None,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
        form: Form = "auto",
        group: ProcessGroup | None = None,
    ) -> None:
        check_margin(margin, margin_kind, label_smoothing=label_smoothing)
        super().__init__(
            class_weights=class_weights,
            margin=margin,
            margin_kind=margin_kind,
            label_smoothing=label_smoothing,
            logit_adjustment=logit_adjustment,
            ignore_index=ignore_index,
            reduction=reduction,
            form=form,
            group=group,
        )

    def forward(self, features: Tensor, head: CosineHead, labels: Labels) -> Tensor:
        """Compute :func:`normface_loss` with the prototypes and the temperature of the head."""
        prototypes, temperature = cosine_head_parameters(head, self)
        shards = class_shards(head)
        if shards is not None:
            return sharded_normface_loss(
                features, prototypes, labels, shards=shards, temperature=temperature, **self.options
            )
        return normface_loss(features, prototypes, labels, temperature=temperature, **self.options)


def _add_adjustment(
    offsets: Tensor | None, logit_adjustment: Tensor | None, num_classes: int
) -> Float[Tensor, "classes"] | None:
    """Return the sum of two numbers per class, None if there are none."""
    if logit_adjustment is None:
        return offsets
    check_logit_adjustment(logit_adjustment, num_classes)
    logit_adjustment = logit_adjustment.to(compute_dtype(logit_adjustment))
    return logit_adjustment if offsets is None else offsets + logit_adjustment
