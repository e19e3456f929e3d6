"""Dot regression (DR): attraction to the prototype of the class, without repulsion."""

from jaxtyping import Float, Integer
from torch import Tensor

from protosphere.geometry.sphere import squared_chords
from protosphere.losses.module import LossModule, PrototypeHead, head_prototypes
from protosphere.losses.reduction import Reduction, reduce_loss
from protosphere.losses.targets import check_prototypes, read_targets


def dot_regression_loss(
    features: Float[Tensor, "samples dim"],
    prototypes: Float[Tensor, "classes dim"],
    labels: Integer[Tensor, "samples"],
    *,
    class_weights: Float[Tensor, "classes"] | None = None,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
) -> Float[Tensor, "samples"] | Float[Tensor, ""]:
    """Dot regression: squared distance of the cosine with the prototype of the class from 1.

    ℓ_i = ½ (cos(z_i, w_{y_i}) − 1)²

    Args:
        features: Features z; the loss normalizes them.
        prototypes: Prototypes w, usually fixed at a simplex ETF.
        labels: Class index y of each sample.
        class_weights: Weight of each class, applied to the samples of the class.
        ignore_index: Samples with this label are ignored.
        reduction: ``"mean"`` (divided by the sum of the weights), ``"sum"`` or ``"none"``.

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
    targets = read_targets(
        labels,
        num_samples=len(features),
        num_classes=len(prototypes),
        ignore_index=ignore_index,
        class_weights=class_weights,
    )
    # 1 − cos from the chord, which keeps its digits where the cosine is almost 1.
    distances = (
        squared_chords(targets.mask_rows(features), prototypes.index_select(0, targets.labels)) / 2
    )
    return reduce_loss(distances.square() / 2, targets, reduction=reduction)


class DotRegressionLoss(LossModule):
    """Dot regression: squared distance of the cosine with the prototype of the class from 1.

    ℓ_i = ½ (cos(z_i, w_{y_i}) − 1)², called as ``loss(features, head, labels)`` with a head that
    has prototypes w, usually a :class:`~protosphere.classifiers.FixedFrameClassifier`.

    Args:
        class_weights: Weight of each class, applied to the samples of the class.
        ignore_index: Samples with this label are ignored.
        reduction: ``"mean"`` (divided by the sum of the weights), ``"sum"`` or ``"none"``.

    Raises:
        ValueError: An unknown reduction or bad class weights.
    """

    def __init__(
        self,
        *,
        class_weights: Tensor | None = None,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(
            class_weights=class_weights, ignore_index=ignore_index, reduction=reduction
        )

    def forward(self, features: Tensor, head: PrototypeHead, labels: Tensor) -> Tensor:
        """Compute :func:`dot_regression_loss` with the prototypes of the head."""
        return dot_regression_loss(features, head_prototypes(head, self), labels, **self.options)
