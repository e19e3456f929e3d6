"""NormFace, NTCE and NONL from logits, for any ``criterion(output, target)``."""

import warnings
from typing import Any

import torch
from jaxtyping import Float, Integer
from torch import Tensor

from protosphere.geometry.sphere import compute_dtype
from protosphere.kernels.eager import logsumexp
from protosphere.kernels.problem import can_read_values, check_choices, inside_functorch
from protosphere.losses.module import LossModule
from protosphere.losses.prototype_contrast import (
    Negatives,
    add_in_logs,
    contrast_with_all,
    reduce_contrast,
)
from protosphere.losses.reduction import Reduction, reduce_loss
from protosphere.losses.softmax import cross_entropy
from protosphere.losses.targets import CompactLabels, Targets, check_features, read_targets

# No cosine over a temperature of 0.01 or more is larger. One percent is for cosines in bfloat16.
_LARGEST_LOGIT = 100.0
_TOLERANCE = 1.01


def normface_from_logits(
    logits: Float[Tensor, "samples classes"],
    labels: Integer[Tensor, "samples"],
    *,
    class_weights: Float[Tensor, "classes"] | None = None,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
) -> Float[Tensor, "samples"] | Float[Tensor, ""]:
    """NormFace from scaled cosines: each sample against all prototypes.

    ℓ_i = log Σ_c exp(S_ic) − S_{i y_i}, with the logits S.

    Args:
        logits: Cosines divided by the temperature, as
            :class:`~protosphere.classifiers.CosineClassifier` returns them.
        labels: Class index y of each sample.
        class_weights: Weight of each class, applied to the samples of the class.
        ignore_index: Samples with this label are ignored.
        reduction: ``"mean"`` (divided by the sum of the weights), ``"sum"`` or ``"none"``.

    Returns:
        A scalar, or one value per sample for ``reduction="none"``, in float32 or wider.

    Raises:
        ValueError: Shapes that do not fit, labels out of range, bad class weights, or an unknown
            option.

    >>> normface_from_logits(5 * torch.eye(3), torch.arange(3))
    tensor(0.0134)
    """
    logits, targets = _read_inputs(logits, labels, class_weights, ignore_index)
    values = cross_entropy(_row_log_sums(logits, targets), _positive_logits(logits, targets))
    return reduce_loss(values, targets, reduction=reduction)


def ntce_from_logits(
    logits: Float[Tensor, "samples classes"],
    labels: Integer[Tensor, "samples"],
    *,
    class_weights: Float[Tensor, "classes"] | None = None,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
) -> Float[Tensor, "samples"] | Float[Tensor, ""]:
    """NTCE from scaled cosines: the prototype of the sample's class against all samples.

    ℓ_i = log Σ_{j=1..M} exp(S_{j y_i}) − S_{i y_i}, with the logits S.

    Args:
        logits: Cosines divided by the temperature, as
            :class:`~protosphere.classifiers.CosineClassifier` returns them.
        labels: Class index y of each sample.
        class_weights: Weight of each class, applied to the samples of the class.
        ignore_index: Samples with this label are ignored.
        reduction: ``"mean"`` (divided by the sum of the weights), ``"sum"`` or ``"none"``.

    Returns:
        A scalar, or one value per sample for ``reduction="none"``, in float32 or wider.

    Raises:
        ValueError: Shapes that do not fit, labels out of range, bad class weights, or an unknown
            option.

    >>> ntce_from_logits(5 * torch.eye(3), torch.arange(3))
    tensor(0.0134)
    """
    logits, targets = _read_inputs(logits, labels, class_weights, ignore_index)
    values = contrast_with_all(
        _column_log_sums(logits, targets),
        _positive_logits(logits, targets),
        targets,
        CompactLabels(targets.labels, None, logits.shape[1]),
    )
    return reduce_loss(values, targets, reduction=reduction)


def nonl_from_logits(
    logits: Float[Tensor, "samples classes"],
    labels: Integer[Tensor, "samples"],
    *,
    negatives: Negatives = "samples",
    class_weights: Float[Tensor, "classes"] | None = None,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
) -> Float[Tensor, "samples"] | Float[Tensor, ""]:
    """NONL from scaled cosines: the prototype against the samples of other classes only.

    ℓ_i = log Σ_{j: y_j ≠ y_i} exp(S_{j y_i}) − S_{i y_i}, with the logits S.

    The loss decreases without bound as logits grow, so they must be cosines over a temperature that
    is fixed or bounded from below. After an ordinary linear layer training diverges.

    Args:
        logits: Cosines divided by the temperature, as
            :class:`~protosphere.classifiers.CosineClassifier` returns them.
        labels: Class index y of each sample.
        negatives: Negatives in the sum: the ``"samples"`` of other classes, the ``"prototypes"`` of
            other classes, or ``"both"``, as in :func:`nonl_loss`.
        class_weights: Weight of each class, applied to the samples of the class.
        ignore_index: Samples with this label are ignored.
        reduction: ``"mean"`` (divided by the sum of the weights), ``"sum"`` or ``"none"``.

    Returns:
        A scalar, or one value per sample for ``reduction="none"``, in float32 or wider.

    Raises:
        ValueError: Shapes that do not fit, labels out of range, bad class weights, or an unknown
            option.

    >>> nonl_from_logits(5 * torch.eye(3), torch.arange(3))
    tensor(-4.3069)
    """
    check_choices(negatives=(negatives, Negatives))
    logits, targets = _read_inputs(logits, labels, class_weights, ignore_index)
    if negatives == "prototypes":
        log_sums = _row_log_sums(logits, targets)
    else:
        log_sums = _column_log_sums(logits, targets)
    if negatives == "both":
        log_sums = add_in_logs(_row_log_sums(logits, targets), log_sums)
    return reduce_contrast(log_sums, _positive_logits(logits, targets), targets, reduction)


class NormFaceFromLogits(LossModule):
    """NormFace from scaled cosines: each sample against all prototypes.

    ℓ_i = log Σ_c exp(S_ic) − S_{i y_i}, with the logits S; called as ``loss(logits, labels)`` with
    the output of a cosine head, :class:`~protosphere.classifiers.CosineClassifier`, which has the
    temperature.

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

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Compute :func:`normface_from_logits`."""
        return normface_from_logits(logits, labels, **self.options)


class NTCEFromLogits(LossModule):
    """NTCE from scaled cosines: the prototype of the sample's class against all samples.

    ℓ_i = log Σ_{j=1..M} exp(S_{j y_i}) − S_{i y_i}, with the logits S; called as
    ``loss(logits, labels)`` with the output of a cosine head,
    :class:`~protosphere.classifiers.CosineClassifier`, which has the temperature.

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

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
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
        class_weights: Weight of each class, applied to the samples of the class.
        ignore_index: Samples with this label are ignored.
        reduction: ``"mean"`` (divided by the sum of the weights), ``"sum"`` or ``"none"``.

    Raises:
        ValueError: An unknown option or bad class weights.
    """

    def __init__(
        self,
        *,
        negatives: Negatives = "samples",
        class_weights: Tensor | None = None,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
    ) -> None:
        check_choices(negatives=(negatives, Negatives))
        super().__init__(
            class_weights=class_weights,
            negatives=negatives,
            ignore_index=ignore_index,
            reduction=reduction,
        )
        self._large_logits = _LargeLogitWarning()

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Compute :func:`nonl_from_logits`."""
        value = nonl_from_logits(logits, labels, **self.options)
        if not torch.compiler.is_compiling():
            self._large_logits.check(logits.detach(), labels != self._options["ignore_index"])
        return value


class _LargeLogitWarning:
    """Warns once about logits that no cosine head returns, without waiting for a device."""

    def __init__(self) -> None:
        self.warned = False
        self._on_host: Tensor | None = None
        self._copied: torch.cuda.Event | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Events and pinned memory belong to a process.
        return {"warned": self.warned, "_on_host": None, "_copied": None}

    def check(self, logits: Tensor, kept: Tensor) -> None:
        """Look at the logits of kept samples, or at those of an earlier call on a GPU."""
        if self.warned or logits.numel() == 0 or inside_functorch():
            return
        largest = None
        if can_read_values(logits):
            largest = float(_largest(logits, kept))
        elif logits.device.type == "cuda" and not torch.cuda.is_current_stream_capturing():
            largest = self._largest_of_earlier_call(logits, kept)
        if largest is not None and largest > _TOLERANCE * _LARGEST_LOGIT:
            self.warned = True
            warnings.warn(
                "NONLFromLogits expects cosines divided by a temperature but got a logit of "
                f"{largest:.4g} in absolute value; after an ordinary linear layer the loss "
                "decreases without bound, use CosineClassifier as the head",
                UserWarning,
                stacklevel=5,
            )

    def _largest_of_earlier_call(self, logits: Tensor, kept: Tensor) -> float | None:
        """Return the value whose copy has arrived, if any, and start the next copy."""
        largest = None
        if self._copied is not None and self._on_host is not None:
            if not self._copied.query():
                return None
            largest = float(self._on_host)
        if self._on_host is None:
            self._on_host = torch.zeros((), dtype=torch.float32, pin_memory=True)
        self._on_host.copy_(_largest(logits, kept), non_blocking=True)
        self._copied = torch.cuda.Event()
        self._copied.record(torch.cuda.current_stream(logits.device))
        return largest


def _largest(logits: Tensor, kept: Tensor) -> Float[Tensor, ""]:
    """Return the largest absolute logit of the kept samples."""
    return logits.abs().amax(1).masked_fill(~kept, 0).amax().float()


def _read_inputs(
    logits: Tensor, labels: Tensor, class_weights: Tensor | None, ignore_index: int
) -> tuple[Tensor, Targets]:
    check_features(logits, name="logits")
    targets = read_targets(
        labels,
        num_samples=len(logits),
        num_classes=logits.shape[1],
        ignore_index=ignore_index,
        class_weights=class_weights,
    )
    return targets.mask_rows(logits.to(compute_dtype(logits))), targets


def _positive_logits(logits: Tensor, targets: Targets) -> Float[Tensor, "samples"]:
    return logits.gather(1, targets.labels[:, None]).squeeze(1)


def _row_log_sums(logits: Tensor, targets: Targets) -> Float[Tensor, "samples"]:
    """For each sample, the log-sum over the other classes in its row."""
    return logsumexp(logits.scatter(1, targets.labels[:, None], -torch.inf), 1)


def _column_log_sums(logits: Tensor, targets: Targets) -> Float[Tensor, "samples"]:
    """For each sample, the log-sum over samples of other classes in the column of its class."""
    others = logits.scatter(1, targets.labels[:, None], -torch.inf)
    others = others.masked_fill(~targets.kept[:, None], -torch.inf)
    return logsumexp(others, 0)[targets.labels]
