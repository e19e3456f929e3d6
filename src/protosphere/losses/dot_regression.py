"""Dot regression (DR): attraction to the prototype of the class, without repulsion."""

from jaxtyping import Float
from torch import Tensor

from protosphere.geometry.sphere import cosines, squared_chords
from protosphere.losses.module import LossModule, PrototypeHead, head_prototypes
from protosphere.losses.reduction import Reduction, reduce_loss, reduce_weighted
from protosphere.losses.soft_targets import Labels, SoftTargets, read_labels
from protosphere.losses.targets import check_prototypes, loss_dtype
from protosphere.parallel import ProcessGroup


def dot_regression_loss(
    features: Float[Tensor, "samples dim"],
    prototypes: Float[Tensor, "classes dim"],
    labels: Labels,
    *,
    label_smoothing: float = 0.0,
    class_weights: Float[Tensor, "classes"] | None = None,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    group: ProcessGroup | None = None,
) -> Float[Tensor, "samples"] | Float[Tensor, ""]:
    """Dot regression: squared distance of the cosine with the prototype of the class from 1.

    ℓ_i = ½ (cos(z_i, w_{y_i}) − 1)², or ½ Σ_c q_ic (cos(z_i, w_c) − 1)² for class probabilities q.

    Args:
        features: Features z; the loss normalizes them.
        prototypes: Prototypes w, usually fixed at a simplex ETF.
        labels: Class index y of each sample; or class probabilities q, shape (samples, classes), or
            :class:`MixedLabels`.
        label_smoothing: Amount ε of label smoothing, from 0 to 1: q becomes (1 − ε) q + ε/K.
        class_weights: Weight of each class, applied to the samples of the class.
        ignore_index: Samples with this label are ignored.
        reduction: ``"mean"`` (divided by the sum of the weights), ``"sum"`` or ``"none"``.
        group: Process group whose ranks hold the batch together and all call the loss; None for a
            batch of this process alone.

    Returns:
        A scalar, or one value per sample for ``reduction="none"``, in float32 or wider.

    Raises:
        ValueError: Shapes that do not fit, labels out of range or bad class weights.

    >>> import torch
    >>> dot_regression_loss(torch.eye(2), torch.eye(2), torch.tensor([0, 0]), reduction="none")
    tensor([0.0000, 0.5000])

    Reference: Yang et al., "Inducing neural collapse in imbalanced learning", 2022.
    """
    check_prototypes(features, prototypes)
    targets = read_labels(
        labels,
        num_samples=len(features),
        num_classes=len(prototypes),
        ignore_index=ignore_index,
        class_weights=class_weights,
        label_smoothing=label_smoothing,
        dtype=loss_dtype(features, prototypes),
    )
    if isinstance(targets, SoftTargets):
        dtype = targets.class_weights.dtype
        values = _soft_values(targets.mask_rows(features.to(dtype)), prototypes.to(dtype), targets)
        return reduce_weighted(values, targets.expect(targets.class_weights), reduction, group)
    values = _values(targets.mask_rows(features), prototypes.index_select(0, targets.labels))
    return reduce_loss(values, targets, reduction=reduction, group=group)


class DotRegressionLoss(LossModule):
    """Dot regression: squared distance of the cosine with the prototype of the class from 1.

    ℓ_i = ½ (cos(z_i, w_{y_i}) − 1)², called as ``loss(features, head, labels)`` with a head that
    has prototypes w, usually a :class:`~protosphere.classifiers.FixedFrameClassifier`.

    Args:
        label_smoothing: Amount ε of label smoothing, from 0 to 1: q becomes (1 − ε) q + ε/K.
        class_weights: Weight of each class, applied to the samples of the class.
        ignore_index: Samples with this label are ignored.
        reduction: ``"mean"`` (divided by the sum of the weights), ``"sum"`` or ``"none"``.
        group: Process group whose ranks hold the batch together and all call the loss; None for a
            batch of this process alone.

    Raises:
        ValueError: An unknown reduction or bad class weights.
    """

    def __init__(
        self,
        *,
        label_smoothing: float = 0.0,
        class_weights: Tensor | None = None,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
        group: ProcessGroup | None = None,
    ) -> None:
        super().__init__(
            class_weights=class_weights,
            label_smoothing=label_smoothing,
            ignore_index=ignore_index,
            reduction=reduction,
            group=group,
        )

    def forward(self, features: Tensor, head: PrototypeHead, labels: Labels) -> Tensor:
        """Compute :func:`dot_regression_loss` with the prototypes of the head."""
        return dot_regression_loss(features, head_prototypes(head, self), labels, **self.options)


def _values(
    features: Float[Tensor, "samples dim"], prototypes: Float[Tensor, "samples dim"]
) -> Float[Tensor, "samples"]:
    # 1 − cos from the chord, which keeps its digits where the cosine is almost 1.
    return (squared_chords(features, prototypes) / 2).square() / 2


def _soft_values(
    features: Float[Tensor, "samples dim"],
    prototypes: Float[Tensor, "classes dim"],
    targets: SoftTargets,
) -> Float[Tensor, "samples"]:
    """Σ_c ω_c q_ic ½ (cos(z_i, w_c) − 1)², with a matrix only where all classes count."""
    values = features.new_zeros(len(features))
    for index, mass in targets.entries:
        weights = mass * targets.class_weights.index_select(0, index)
        values = values + weights * _values(features, prototypes.index_select(0, index))
    if targets.rest is not None:
        matrix = (1 - cosines(features, prototypes)).square() / 2
        values = values + (targets.rest * targets.class_weights * matrix).sum(1)
    return values
