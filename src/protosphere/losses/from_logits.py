"""NormFace, NTCE and NONL from logits, for any ``criterion(output, target)``."""

import torch
from jaxtyping import Float
from torch import Tensor

from protosphere.geometry.sphere import compute_dtype
from protosphere.kernels.eager import logsumexp
from protosphere.losses.contrast import (
    Negatives,
    add_in_logs,
    check_negatives,
    check_negatives_of_soft_labels,
    contrast_over_group,
    contrast_with_all,
    cross_entropy,
    reduce_contrast,
)
from protosphere.losses.large_logits import LargeLogitWarning
from protosphere.losses.module import LossModule
from protosphere.losses.reduction import Reduction, reduce_loss
from protosphere.losses.soft_losses import LogitsMatrix, soft_cross_entropy, soft_nonl, soft_ntce
from protosphere.losses.soft_targets import (
    Labels,
    SoftNegatives,
    SoftTargets,
    kept_samples,
    read_labels,
)
from protosphere.losses.targets import (
    CompactLabels,
    Targets,
    check_features,
    check_logit_adjustment,
)
from protosphere.parallel import ProcessGroup, logsumexp_over


def normface_from_logits(
    logits: Float[Tensor, "samples classes"],
    labels: Labels,
    *,
    label_smoothing: float = 0.0,
    logit_adjustment: Float[Tensor, "classes"] | None = None,
    class_weights: Float[Tensor, "classes"] | None = None,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    group: ProcessGroup | None = None,
) -> Float[Tensor, "samples"] | Float[Tensor, ""]:
    """NormFace from scaled cosines: each sample against all prototypes.

    ℓ_i = log Σ_c exp(S_ic) − S_{i y_i}, with the logits S.

    Args:
        logits: Cosines divided by the temperature, as
            :class:`~protosphere.classifiers.CosineClassifier` returns them.
        labels: Class index y of each sample; or class probabilities q, shape (samples, classes), or
            :class:`MixedLabels`.
        label_smoothing: Amount ε of label smoothing, from 0 to 1: q becomes (1 − ε) q + ε/K.
        logit_adjustment: Number added to the logits of each class in the loss only, usually
            t · log(class frequency).
        class_weights: Weight of each class, applied to the samples of the class.
        ignore_index: Samples with this label are ignored.
        reduction: ``"mean"`` (divided by the sum of the weights), ``"sum"`` or ``"none"``.
        group: Process group whose ranks hold the batch together and all call the loss; None for a
            batch of this process alone.

    Returns:
        A scalar, or one value per sample for ``reduction="none"``, in float32 or wider.

    Raises:
        ValueError: Shapes that do not fit, labels out of range, bad class weights, or an unknown
            option.

    >>> normface_from_logits(5 * torch.eye(3), torch.arange(3))
    tensor(0.0134)
    """
    logits, targets = _read_inputs(logits, labels, class_weights, ignore_index, label_smoothing)
    if logit_adjustment is not None:
        check_logit_adjustment(logit_adjustment, logits.shape[1])
        logits = logits + logit_adjustment.to(logits.dtype)
    if isinstance(targets, SoftTargets):
        return soft_cross_entropy(LogitsMatrix(logits, targets), reduction, group)
    values = cross_entropy(_row_log_sums(logits, targets), _positive_logits(logits, targets))
    return reduce_loss(values, targets, reduction=reduction, group=group)


def ntce_from_logits(
    logits: Float[Tensor, "samples classes"],
    labels: Labels,
    *,
    label_smoothing: float = 0.0,
    class_weights: Float[Tensor, "classes"] | None = None,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    group: ProcessGroup | None = None,
) -> Float[Tensor, "samples"] | Float[Tensor, ""]:
    """NTCE from scaled cosines: the prototype of the sample's class against all samples.

    ℓ_i = log Σ_{j=1..M} exp(S_{j y_i}) − S_{i y_i}, with the logits S.

    Args:
        logits: Cosines divided by the temperature, as
            :class:`~protosphere.classifiers.CosineClassifier` returns them.
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
        ValueError: Shapes that do not fit, labels out of range, bad class weights, or an unknown
            option.

    >>> ntce_from_logits(5 * torch.eye(3), torch.arange(3))
    tensor(0.0134)
    """
    logits, targets = _read_inputs(logits, labels, class_weights, ignore_index, label_smoothing)
    if isinstance(targets, SoftTargets):
        return soft_ntce(LogitsMatrix(logits, targets), reduction, group)
    columns, positive_logits = _column_log_sums(logits, targets), _positive_logits(logits, targets)
    compact = CompactLabels(targets.labels, None, logits.shape[1])
    if group is None:
        values = contrast_with_all(columns[targets.labels], positive_logits, targets, compact)
    else:
        values = contrast_over_group(columns, positive_logits, targets, compact, group)
    return reduce_loss(values, targets, reduction=reduction, group=group)


def nonl_from_logits(
    logits: Float[Tensor, "samples classes"],
    labels: Labels,
    *,
    negatives: Negatives = "samples",
    soft_negatives: SoftNegatives = "excluded",
    label_smoothing: float = 0.0,
    class_weights: Float[Tensor, "classes"] | None = None,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    group: ProcessGroup | None = None,
) -> Float[Tensor, "samples"] | Float[Tensor, ""]:
    """NONL from scaled cosines: the prototype against the samples of other classes only.

    ℓ_i = log Σ_{j: y_j ≠ y_i} exp(S_{j y_i}) − S_{i y_i}, with the logits S.

    The loss decreases without bound as logits grow, so they must be cosines over a temperature that
    is fixed or bounded from below. After an ordinary linear layer training diverges.

    Args:
        logits: Cosines divided by the temperature, as
            :class:`~protosphere.classifiers.CosineClassifier` returns them.
        labels: Class index y of each sample; or class probabilities q, shape (samples, classes), or
            :class:`MixedLabels`.
        negatives: Negatives in the sum: the ``"samples"`` of other classes, the ``"prototypes"`` of
            other classes, or ``"both"``, as in :func:`nonl_loss`.
        soft_negatives: Weight of a sample as a negative of class c with soft labels, beside its
            most probable class, which has weight 0: 0 if q_jc > 1/K and otherwise 1
            (``"excluded"``), or 1 − q_jc / max_c' q_jc' (``"weighted"``).
        label_smoothing: Amount ε of label smoothing, from 0 to 1: q becomes (1 − ε) q + ε/K.
        class_weights: Weight of each class, applied to the samples of the class.
        ignore_index: Samples with this label are ignored.
        reduction: ``"mean"`` (divided by the sum of the weights), ``"sum"`` or ``"none"``.
        group: Process group whose ranks hold the batch together and all call the loss; None for a
            batch of this process alone.

    Returns:
        A scalar, or one value per sample for ``reduction="none"``, in float32 or wider.

    Raises:
        ValueError: Shapes that do not fit, labels out of range, bad class weights, or an unknown
            option.

    >>> nonl_from_logits(5 * torch.eye(3), torch.arange(3))
    tensor(-4.3069)
    """
    check_negatives(negatives, soft_negatives, label_smoothing)
    logits, targets = _read_inputs(logits, labels, class_weights, ignore_index, label_smoothing)
    if isinstance(targets, SoftTargets):
        check_negatives_of_soft_labels(negatives)
        return soft_nonl(LogitsMatrix(logits, targets), soft_negatives, reduction, group)
    if negatives == "prototypes":
        log_sums = _row_log_sums(logits, targets)
    else:
        log_sums = logsumexp_over(_column_log_sums(logits, targets), group)[targets.labels]
    if negatives == "both":
        log_sums = add_in_logs(_row_log_sums(logits, targets), log_sums)
    return reduce_contrast(log_sums, _positive_logits(logits, targets), targets, reduction, group)


class NormFaceFromLogits(LossModule):
    """NormFace from scaled cosines: each sample against all prototypes.

    ℓ_i = log Σ_c exp(S_ic) − S_{i y_i}, with the logits S; called as ``loss(logits, labels)`` with
    the output of a cosine head, :class:`~protosphere.classifiers.CosineClassifier`, which has the
    temperature.

    Args:
        label_smoothing: Amount ε of label smoothing, from 0 to 1: q becomes (1 − ε) q + ε/K.
        logit_adjustment: Number added to the logits of each class in the loss only, usually
            t · log(class frequency).
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
        logit_adjustment: Tensor | None = None,
        class_weights: Tensor | None = None,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
        group: ProcessGroup | None = None,
    ) -> None:
        super().__init__(
            class_weights=class_weights,
            label_smoothing=label_smoothing,
            logit_adjustment=logit_adjustment,
            ignore_index=ignore_index,
            reduction=reduction,
            group=group,
        )

    def forward(self, logits: Tensor, labels: Labels) -> Tensor:
        """Compute :func:`normface_from_logits`."""
        return normface_from_logits(logits, labels, **self.options)


class NTCEFromLogits(LossModule):
    """NTCE from scaled cosines: the prototype of the sample's class against all samples.

    ℓ_i = log Σ_{j=1..M} exp(S_{j y_i}) − S_{i y_i}, with the logits S; called as
    ``loss(logits, labels)`` with the output of a cosine head,
    :class:`~protosphere.classifiers.CosineClassifier`, which has the temperature.

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

    def forward(self, logits: Tensor, labels: Labels) -> Tensor:
        """Compute :func:`ntce_from_logits`."""
        return ntce_from_logits(logits, labels, **self.options)


class NONLFromLogits(LossModule):
    """NONL from scaled cosines: the prototype against the samples of other classes only.

    ℓ_i = log Σ_{j: y_j ≠ y_i} exp(S_{j y_i}) − S_{i y_i}, with the logits S; called as
    ``loss(logits, labels)`` with the output of a cosine head,
    :class:`~protosphere.classifiers.CosineClassifier`, which has the temperature.

    The loss decreases without bound as logits grow: after an ordinary linear layer training
    diverges. The module warns once when a logit exceeds 100 in absolute value, which no cosine over
    a temperature of 0.01 or more does. On a GPU the warning comes some steps later, because nothing
    waits for the device; in compiled code and CUDA graphs there is none.

    Args:
        negatives: Negatives in the sum: the ``"samples"`` of other classes, the ``"prototypes"`` of
            other classes, or ``"both"``.
        soft_negatives: Weight of a sample as a negative of class c with soft labels, beside its
            most probable class, which has weight 0: 0 if q_jc > 1/K and otherwise 1
            (``"excluded"``), or 1 − q_jc / max_c' q_jc' (``"weighted"``).
        label_smoothing: Amount ε of label smoothing, from 0 to 1: q becomes (1 − ε) q + ε/K.
        class_weights: Weight of each class, applied to the samples of the class.
        ignore_index: Samples with this label are ignored.
        reduction: ``"mean"`` (divided by the sum of the weights), ``"sum"`` or ``"none"``.
        group: Process group whose ranks hold the batch together and all call the loss; None for a
            batch of this process alone.

    Raises:
        ValueError: An unknown option or bad class weights.
    """

    def __init__(
        self,
        *,
        negatives: Negatives = "samples",
        soft_negatives: SoftNegatives = "excluded",
        label_smoothing: float = 0.0,
        class_weights: Tensor | None = None,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
        group: ProcessGroup | None = None,
    ) -> None:
        check_negatives(negatives, soft_negatives, label_smoothing)
        super().__init__(
            class_weights=class_weights,
            label_smoothing=label_smoothing,
            negatives=negatives,
            soft_negatives=soft_negatives,
            ignore_index=ignore_index,
            reduction=reduction,
            group=group,
        )
        self._large_logits = LargeLogitWarning()

    def forward(self, logits: Tensor, labels: Labels) -> Tensor:
        """Compute :func:`nonl_from_logits`."""
        value = nonl_from_logits(logits, labels, **self.options)
        if not torch.compiler.is_compiling():
            self._large_logits.check(
                logits.detach(), kept_samples(labels, self._options["ignore_index"])
            )
        return value


def _read_inputs(
    logits: Tensor,
    labels: Labels,
    class_weights: Tensor | None,
    ignore_index: int,
    label_smoothing: float,
) -> tuple[Tensor, Targets | SoftTargets]:
    check_features(logits, name="logits")
    targets = read_labels(
        labels,
        num_samples=len(logits),
        num_classes=logits.shape[1],
        ignore_index=ignore_index,
        class_weights=class_weights,
        label_smoothing=label_smoothing,
        dtype=compute_dtype(logits),
    )
    return targets.mask_rows(logits.to(compute_dtype(logits))), targets


def _positive_logits(logits: Tensor, targets: Targets) -> Float[Tensor, "samples"]:
    return logits.gather(1, targets.labels[:, None]).squeeze(1)


def _row_log_sums(logits: Tensor, targets: Targets) -> Float[Tensor, "samples"]:
    """For each sample, the log-sum over the other classes in its row."""
    return logsumexp(logits.scatter(1, targets.labels[:, None], -torch.inf), 1)


def _column_log_sums(logits: Tensor, targets: Targets) -> Float[Tensor, "classes"]:
    """For each class, the log-sum over samples of other classes in its column."""
    others = logits.scatter(1, targets.labels[:, None], -torch.inf)
    others = others.masked_fill(~targets.kept[:, None], -torch.inf)
    return logsumexp(others, 0)
