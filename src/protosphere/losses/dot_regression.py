"""Dot regression (DR): pull each feature onto the fixed prototype of its class, with no repulsion."""

from jaxtyping import Float, Integer
from torch import Tensor

from protosphere.geometry.sphere import squared_chords
from protosphere.losses.module import Criterion
from protosphere.losses.targets import Reduction, check_prototypes, read_labels, reduce_anchors


def dot_regression_loss(
    features: Float[Tensor, "samples dim"],
    prototypes: Float[Tensor, "classes dim"],
    labels: Integer[Tensor, "samples"],
    *,
    class_weights: Float[Tensor, "classes"] | None = None,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
) -> Float[Tensor, "samples"] | Float[Tensor, ""]:
    """Dot regression onto prototypes that do not move, usually a simplex ETF.

    ℓ_i = ½ (cos(z_i, w_{y_i}) − 1)²

    Args:
        features: z; the loss normalizes them.
        prototypes: w, fixed: :class:`~protosphere.classifiers.FixedFrameClassifier` holds them.
        labels: y, one class per sample.
        class_weights: one weight per class, for the anchors.
        ignore_index: samples with this label do not exist.
        reduction: ``"mean"`` (by the weights of the kept samples), ``"sum"`` or ``"none"``.

    Returns:
        One number, or one per sample for ``reduction="none"``, in float32 or wider.

    Raises:
        ValueError: shapes that do not fit, a label out of range.

    >>> import torch
    >>> dot_regression_loss(torch.eye(2), torch.eye(2), torch.tensor([0, 0]), reduction="none")
    tensor([0.0000, 0.5000])

    Reference: Yang et al., "Inducing neural collapse in imbalanced learning", 2022.
    """
    check_prototypes(features, prototypes)
    samples = read_labels(
        labels, samples=len(features), num_classes=len(prototypes), ignore_index=ignore_index
    )
    # 1 − cos from the chord, which keeps its digits where the cosine is almost 1.
    shortfall = (
        squared_chords(samples.blank_ignored(features), prototypes.index_select(0, samples.labels))
        / 2
    )
    return reduce_anchors(
        shortfall.square() / 2, samples, class_weights=class_weights, reduction=reduction
    )


class DotRegressionLoss(Criterion):
    """Dot regression as a module; the formula is :func:`dot_regression_loss`."""

    def __init__(
        self,
        *,
        class_weights: Tensor | None = None,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(class_weights, ignore_index=ignore_index, reduction=reduction)

    def forward(self, features: Tensor, prototypes: Tensor, labels: Tensor) -> Tensor:
        """The loss."""
        return dot_regression_loss(features, prototypes, labels, **self.options())
