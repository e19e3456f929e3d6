"""Sample against samples: supervised contrastive loss (SCL), and the prototype loss that shares its minimizers."""

import torch
from jaxtyping import Float, Integer
from torch import Tensor

from protosphere.geometry.sphere import compute_dtype, normalize
from protosphere.kernels.eager import logsumexp
from protosphere.kernels.masked_logsumexp import Form, masked_logsumexp, read_temperature
from protosphere.losses.module import Criterion
from protosphere.losses.slots import ClassSlots, class_slots
from protosphere.losses.targets import (
    Reduction,
    Samples,
    Temperature,
    check_features,
    read_labels,
    reduce_anchors,
)


def scl_loss(
    features: Float[Tensor, "samples dim"],
    labels: Integer[Tensor, "samples"],
    *,
    temperature: Temperature = 0.1,
    class_weights: Float[Tensor, "classes"] | None = None,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    form: Form = "auto",
) -> Float[Tensor, "samples"] | Float[Tensor, ""]:
    """Supervised contrastive loss: each sample against all others, pulled to those of its class.

    ℓ_i = log Σ_{j≠i} exp(a_i·a_j/τ) − mean_{l ∈ P(i)} a_i·a_l/τ,   P(i) the others of the same class

    All views are samples: for v views of M images pass (v·M, d) features and labels of that length. No factor τ/τ_base.

    Args:
        features: a; the loss normalizes them.
        labels: one class per sample.
        temperature: τ, a positive number or a tensor of one.
        class_weights: one weight per class, for the anchors.
        ignore_index: samples with this label do not exist.
        reduction: ``"mean"`` (by the weights of the kept samples), ``"sum"`` or ``"none"``.
        form: how the samples are summed: ``"eager"``, ``"chunked"`` (never the whole matrix) or by size.

    Returns:
        One number, or one per sample for ``reduction="none"``, in float32 or wider. A sample without a positive is
        left out: it adds 0 and does not count in the mean.

    Raises:
        ValueError: shapes that do not fit, a negative label, a temperature that is not positive.

    >>> two_of_each = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    >>> scl_loss(two_of_each, torch.tensor([0, 0, 1, 1]), temperature=0.5)
    tensor(0.2395)

    Reference: Khosla et al., "Supervised contrastive learning", 2020, the form with the sum outside the logarithm.
    """
    samples, features = _read(features, labels, temperature, class_weights, ignore_index)
    slots = class_slots(samples)
    others = masked_logsumexp(
        features,
        features,
        temperature=temperature,
        pull="same_label",
        leave_out="same_index",
        anchor_labels=slots.of_samples,
        key_labels=slots.of_samples.masked_fill(~samples.kept, -1),
        key_log_weights=samples.key_log_weights(features),
        form=form,
    )
    positives = slots.sizes(samples, features.dtype)[slots.of_samples] - 1
    kept = positives > 0
    values = torch.where(kept, others.values, 0) - others.pulled / positives.clamp(min=1)
    return reduce_anchors(
        values, samples, kept=kept, class_weights=class_weights, reduction=reduction
    )


def prototype_loss(
    features: Float[Tensor, "samples dim"],
    labels: Integer[Tensor, "samples"],
    *,
    temperature: Temperature = 0.1,
    class_weights: Float[Tensor, "classes"] | None = None,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    form: Form = "auto",
) -> Float[Tensor, "samples"] | Float[Tensor, ""]:
    """Prototype loss: each sample against the class means of the batch, weighted by their sizes.

    ℓ_i = log( Σ_c (n_c − [c = y_i]) exp(a_i·μ_c/τ) ) − a_i·μ_{y_i}/τ,   μ_c = mean of the unit features of class c

    The means are not normalized again; a class of weight 0 drops out. It has the same minimizers as SCL, at
    O(M · K · d).

    Args:
        features: a; the loss normalizes them. All views are samples, as in :func:`scl_loss`.
        labels: one class per sample.
        temperature: τ, a positive number or a tensor of one.
        class_weights: one weight per class, for the anchors.
        ignore_index: samples with this label do not exist.
        reduction: ``"mean"`` (by the weights of the kept samples), ``"sum"`` or ``"none"``.
        form: how the classes are summed: ``"eager"``, ``"chunked"`` (never the whole matrix) or by size.

    Returns:
        One number, or one per sample for ``reduction="none"``, in float32 or wider. A sample alone in its class is
        kept; a sample alone in the batch has nothing to be held against and is left out.

    Raises:
        ValueError: shapes that do not fit, a negative label, a temperature that is not positive.

    >>> two_of_each = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    >>> prototype_loss(two_of_each, torch.tensor([0, 0, 1, 1]), temperature=0.5)
    tensor(0.2395)

    Reference: "Neural Collapse by Design", ICML 2026, equation 6.
    """
    samples, features = _read(features, labels, temperature, class_weights, ignore_index)
    slots = class_slots(samples)
    unit = normalize(features)
    counts = slots.sizes(samples, unit.dtype)
    others = masked_logsumexp(
        unit,
        _class_sums(unit, slots) / counts.clamp(min=1)[:, None],
        temperature=temperature,
        similarity="dot",
        pull="key_of_anchor",
        leave_out="pulled",
        partners=slots.of_samples,
        key_log_weights=counts.log(),
        form=form,
    )
    # The own class enters the sum with weight n − 1. Divided by the numerator it is a constant, log(n − 1), so the
    # similarity to the own mean is left only where it does not cancel.
    own_weight = (counts[slots.of_samples] - 1).clamp(min=0).log()
    values = logsumexp(torch.stack((others.values - others.pulled, own_weight)), 0)
    kept = samples.kept.sum() > 1
    return reduce_anchors(
        values, samples, kept=kept, class_weights=class_weights, reduction=reduction
    )


class SCLLoss(Criterion):
    """SCL as a module; the formula is :func:`scl_loss`."""

    def __init__(
        self,
        *,
        temperature: float = 0.1,
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
        self, features: Tensor, labels: Tensor, *, temperature: Temperature | None = None
    ) -> Tensor:
        """The loss; a ``temperature`` given here comes before the module's own."""
        return scl_loss(features, labels, **self.options(temperature))


class PrototypeLoss(Criterion):
    """The prototype loss as a module; the formula is :func:`prototype_loss`."""

    def __init__(
        self,
        *,
        temperature: float = 0.1,
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
        self, features: Tensor, labels: Tensor, *, temperature: Temperature | None = None
    ) -> Tensor:
        """The loss; a ``temperature`` given here comes before the module's own."""
        return prototype_loss(features, labels, **self.options(temperature))


def _read(
    features: Tensor,
    labels: Tensor,
    temperature: Temperature,
    class_weights: Tensor | None,
    ignore_index: int,
) -> tuple[Samples, Tensor]:
    check_features(features)
    read_temperature(temperature)
    num_classes = None if class_weights is None or class_weights.ndim != 1 else len(class_weights)
    samples = read_labels(
        labels, samples=len(features), num_classes=num_classes, ignore_index=ignore_index
    )
    # Upcast once: these losses use the features more than once, and gradients that almost cancel must not be rounded
    # to half precision before they are added.
    return samples, samples.blank_ignored(features.to(compute_dtype(features)))


def _class_sums(unit: Tensor, slots: ClassSlots) -> Tensor:
    return unit.new_zeros(slots.number, unit.shape[1]).index_add(0, slots.of_samples, unit)
