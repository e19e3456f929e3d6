"""NormFace, NTCE and NONL with prototypes that are sharded over processes.

Features and labels of all ranks are gathered, and each rank computes the logits of all samples with
its own prototypes. The value of a sample is computed on the rank that has the prototype of its
class: NTCE and NONL need the column of that class only, and NormFace the log-sums of the rows, of
which every rank has a part. Besides the features, one number per sample travels for each log-sum.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from protosphere.geometry.sphere import compute_dtype, squared_chords
from protosphere.kernels.dispatch import Form, MaskedLogSumExp, masked_logsumexp
from protosphere.kernels.problem import PositiveLogitsFrom
from protosphere.losses.contrast import (
    Negatives,
    add_in_logs,
    bounded_temperature,
    contrast_with_all,
    cross_entropy,
    reduce_contrast,
)
from protosphere.losses.margins import MarginKind, with_angle_margin
from protosphere.losses.queue import FeatureQueue
from protosphere.losses.reduction import Reduction, reduce_loss
from protosphere.losses.soft_targets import Labels, SoftNegatives
from protosphere.losses.targets import (
    CompactLabels,
    Targets,
    Temperature,
    check_features,
    check_logit_adjustment,
    compact_labels,
    read_targets,
)
from protosphere.parallel import (
    ProcessGroup,
    Shards,
    gather_rows,
    logsumexp_over,
    row_counts,
    sum_over,
)
from protosphere.parallel.shards import with_own_gradient


def sharded_normface_loss(
    features: Float[Tensor, "samples dim"],
    prototypes: Float[Tensor, "own_classes dim"],
    labels: Labels,
    *,
    shards: Shards,
    temperature: Temperature,
    margin: float = 0.0,
    margin_kind: MarginKind = "cosine",
    label_smoothing: float = 0.0,
    logit_adjustment: Float[Tensor, "classes"] | None = None,
    class_weights: Float[Tensor, "classes"] | None = None,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    form: Form = "auto",
    group: ProcessGroup | None,
) -> Float[Tensor, "samples"] | Float[Tensor, ""]:
    """:func:`~protosphere.losses.normface_loss` of the batch of all ranks, on every rank.

    The gradient of the features is world_size times the part of this rank, to be averaged over
    ranks; that of the prototypes is complete and must not be averaged.

    Args:
        features: Features of this rank.
        prototypes: Prototypes of the classes of this rank.
        labels: Class index of each sample, among all classes.
        shards: How the classes are divided over the ranks.
        temperature: Temperature τ.
        margin: Margin m.
        margin_kind: Whether the margin is one of cosines or of angles.
        label_smoothing: Must be 0.
        logit_adjustment: Number added to the logits of each of all classes.
        class_weights: Weight of each of all classes.
        ignore_index: Samples with this label are ignored.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        form: Form of the primitive.
        group: Process group; it must be that of the shards.

    Returns:
        A scalar, or one value per sample of this rank for ``reduction="none"``.

    Raises:
        ValueError: Shapes that do not fit, labels that are no class indices, another group, or an
            option that sharded prototypes do not have.
    """
    _check_options(shards, group, label_smoothing)
    batch = _gather(features, prototypes, labels, shards, ignore_index, class_weights)
    offsets = None
    if logit_adjustment is not None:
        check_logit_adjustment(logit_adjustment, shards.num_rows)
        offsets = logit_adjustment.to(compute_dtype(logit_adjustment))[shards.own]
    rows = batch.rows(temperature, offsets, form)
    positive_logits = rows.positive_logits
    if margin and margin_kind == "cosine":
        positive_logits = positive_logits - margin / temperature
    elif margin:
        squares = squared_chords(batch.features, batch.own_prototypes())
        positive_logits = with_angle_margin(positive_logits, squares, margin, temperature)
    if offsets is not None and len(offsets):
        positive_logits = positive_logits + offsets[batch.own_index]
    values = cross_entropy(rows.values, positive_logits)
    return batch.reduce(values, reduction)


def sharded_ntce_loss(
    features: Float[Tensor, "samples dim"],
    prototypes: Float[Tensor, "own_classes dim"],
    labels: Labels,
    *,
    shards: Shards,
    temperature: Temperature,
    label_smoothing: float = 0.0,
    class_weights: Float[Tensor, "classes"] | None = None,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    form: Form = "auto",
    group: ProcessGroup | None,
) -> Float[Tensor, "samples"] | Float[Tensor, ""]:
    """:func:`~protosphere.losses.ntce_loss` of the batch of all ranks, on every rank.

    Args, gradients and errors are those of :func:`sharded_normface_loss`.
    """
    _check_options(shards, group, label_smoothing)
    batch = _gather(features, prototypes, labels, shards, ignore_index, class_weights)
    columns, compact = batch.columns("chords", temperature, form)
    negatives = columns.values.index_select(0, compact.inverse)
    values = contrast_with_all(negatives, columns.positive_logits, batch.targets, compact)
    return batch.reduce(values, reduction)


def sharded_nonl_loss(
    features: Float[Tensor, "samples dim"],
    prototypes: Float[Tensor, "own_classes dim"],
    labels: Labels,
    *,
    shards: Shards,
    temperature: Temperature,
    min_temperature: float | None = None,
    negatives: Negatives = "samples",
    soft_negatives: SoftNegatives = "excluded",  # noqa: ARG001  Labels are class indices.
    label_smoothing: float = 0.0,
    class_weights: Float[Tensor, "classes"] | None = None,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    form: Form = "auto",
    group: ProcessGroup | None,
) -> Float[Tensor, "samples"] | Float[Tensor, ""]:
    """:func:`~protosphere.losses.nonl_loss` of the batch of all ranks, on every rank.

    Args, gradients and errors are those of :func:`sharded_normface_loss`, and those of the options
    of NONL.
    """
    temperature = bounded_temperature(temperature, min_temperature)
    _check_options(shards, group, label_smoothing)
    batch = _gather(features, prototypes, labels, shards, ignore_index, class_weights)
    if negatives == "prototypes":
        result = batch.rows(temperature, None, form)
        log_sums = result.values
    else:
        result, compact = batch.columns("matrix", temperature, form)
        log_sums = result.values.index_select(0, compact.inverse)
    if negatives == "both":
        log_sums = add_in_logs(batch.rows(temperature, None, form).values, log_sums)
    loss = reduce_contrast(
        log_sums, result.positive_logits, batch.targets, reduction, group=shards.group
    )
    return batch.own_samples(loss) if reduction == "none" else loss


def class_shards(head: object, queue: FeatureQueue | None = None) -> Shards | None:
    """Return how the classes of a head are divided; None for a head that has all of them.

    Args:
        head: The head of a loss.
        queue: The queue of the loss.

    Raises:
        ValueError: The classes are divided, and the loss has a queue.
    """
    shards: Shards | None = getattr(head, "shards", None)
    if shards is None or len(shards.sizes) == 1:
        return None
    if queue is not None:
        raise ValueError("queue must be None with sharded prototypes, got a FeatureQueue")
    return shards


class _GatheredBatch(NamedTuple):
    """The samples of all ranks, those of this rank first, and the prototypes of this rank.

    Attributes:
        features: Features of all ranks, 0 for ignored samples.
        prototypes: Prototypes of this rank, with a gradient that is not to be averaged.
        targets: Labels of all ranks; only the samples of the classes of this rank are kept.
        own_index: Index of the prototype of each sample on this rank, 0 where another rank has it.
        key_log_weights: −∞ for ignored samples, otherwise 0.
        sizes: Number of samples of each rank.
        shards: How the classes are divided.
    """

    features: Float[Tensor, "all_samples dim"]
    prototypes: Float[Tensor, "own_classes dim"]
    targets: Targets
    own_index: Int[Tensor, "all_samples"]
    key_log_weights: Float[Tensor, "all_samples"]
    sizes: list[int]
    shards: Shards

    @property
    def is_own(self) -> Bool[Tensor, "all_samples"]:
        """Whether this rank has the prototype of a sample."""
        return self.targets.kept

    @property
    def _start(self) -> int:
        """Position of the samples of this rank in the order of ranks."""
        return sum(self.sizes[: self.shards.rank])

    def own_samples(self, values: Float[Tensor, "all_samples"]) -> Float[Tensor, "samples"]:
        """Return the values of the samples of this rank, each of which some rank has, or 0."""
        total = sum_over(values.roll(self._start), self.shards.group)
        return total[self._start : self._start + self.sizes[self.shards.rank]]

    def reduce(
        self, values: Float[Tensor, "all_samples"], reduction: Reduction
    ) -> Float[Tensor, "samples"] | Float[Tensor, ""]:
        """Reduce the values of the samples of all ranks."""
        result = reduce_loss(values, self.targets, reduction=reduction, group=self.shards.group)
        return self.own_samples(result) if reduction == "none" else result

    def own_prototypes(self) -> Float[Tensor, "all_samples dim"]:
        """Return the prototype of each sample; another one where this rank does not have it."""
        return self._padded_if_empty().index_select(0, self.own_index)

    def columns(
        self, positive_logits_from: PositiveLogitsFrom, temperature: Temperature, form: Form
    ) -> tuple[MaskedLogSumExp, CompactLabels]:
        """For each class of this rank, the log-sum over the samples of other classes.

        One more label stands for the samples of the classes of other ranks.
        """
        num_classes = len(self.prototypes)
        if num_classes < len(self.own_index):
            inverse = torch.where(self.is_own, self.own_index, num_classes)
            compact = CompactLabels(inverse, None, num_classes + 1)
            anchors = _padded(self.prototypes)
        else:
            compact = compact_labels(self.own_index, self.is_own, None)
            anchors = compact.select(self.prototypes)
        result = masked_logsumexp(
            anchors,
            self.features,
            temperature=temperature,
            positives="anchor_of_key",
            positive_logits_from=positive_logits_from,
            exclude="positives",
            positive_index=compact.inverse,
            key_log_weights=self.key_log_weights,
            form=form,
        )
        return result, compact

    def rows(
        self, temperature: Temperature, offsets: Float[Tensor, "own_classes"] | None, form: Form
    ) -> MaskedLogSumExp:
        """For each sample, the log-sum over the prototypes of other classes on all ranks."""
        has_classes = len(self.prototypes) > 0
        result = masked_logsumexp(
            self.features,
            self._padded_if_empty(),
            temperature=temperature,
            positives="key_of_anchor",
            exclude="positives",
            positive_index=self.own_index,
            key_log_weights=offsets if has_classes else None,
            form=form,
        )
        log_sums = result.values
        if has_classes:
            # Samples of other ranks exclude the first prototype in place of their own.
            first = (
                result.positive_logits if offsets is None else result.positive_logits + offsets[0]
            )
            log_sums = torch.where(self.is_own, log_sums, add_in_logs(log_sums, first))
        log_sums = logsumexp_over(log_sums.roll(self._start), self.shards.group)
        return MaskedLogSumExp(log_sums.roll(-self._start), result.positive_logits)

    def _padded_if_empty(self) -> Tensor:
        return self.prototypes if len(self.prototypes) else _padded(self.prototypes)


def _padded(prototypes: Float[Tensor, "rows dim"]) -> Float[Tensor, "rows_and_1 dim"]:
    """Add a prototype that is 0, so that its gradient is 0 too."""
    # Also on ranks without a class the result depends on their prototypes: otherwise autograd would
    # leave out the collectives of the backward pass there.
    return torch.cat((prototypes, prototypes.new_zeros(1, prototypes.shape[1])))


def _gather(
    features: Tensor,
    prototypes: Tensor,
    labels: Labels,
    shards: Shards,
    ignore_index: int,
    class_weights: Tensor | None,
) -> _GatheredBatch:
    """Check the input and gather the samples of all ranks."""
    check_features(features)
    own_rows = shards.sizes[shards.rank]
    if prototypes.shape != (own_rows, features.shape[1]):
        raise ValueError(
            "prototypes must be those of this rank and as wide as the features, shape "
            f"({own_rows}, {features.shape[1]}); got {tuple(prototypes.shape)}"
        )
    if not isinstance(labels, Tensor) or labels.ndim != 1:
        raise ValueError(
            "labels must be class indices, one per sample, with sharded prototypes, "
            f"got {f'shape {tuple(labels.shape)}' if isinstance(labels, Tensor) else 'MixedLabels'}"
        )
    targets = read_targets(
        labels,
        num_samples=len(features),
        num_classes=shards.num_rows,
        ignore_index=ignore_index,
        class_weights=class_weights,
    )
    # In the backward pass, gradients of all ranks are added in at least float32.
    own_features = targets.mask_rows(features.to(compute_dtype(features)))
    assert shards.group is not None  # Several ranks have one.
    sizes = row_counts(len(features), shards.group, device=features.device)
    everyone = gather_rows(own_features, shards.group, sizes=sizes, dtype=features.dtype)
    classes = gather_rows(targets.labels.masked_fill(~targets.kept, -1), shards.group, sizes=sizes)
    own = shards.own
    is_own = (classes >= own.start) & (classes < own.stop)
    return _GatheredBatch(
        everyone,
        with_own_gradient(prototypes, shards.group),
        Targets(classes.clamp(min=0), is_own, False, shards.num_rows, class_weights),
        torch.where(is_own, classes - own.start, 0),
        everyone.detach().new_zeros(len(classes)).masked_fill(classes < 0, -torch.inf),
        sizes,
        shards,
    )


def _check_options(shards: Shards, group: ProcessGroup | None, label_smoothing: float) -> None:
    if group is not shards.group:
        given = "no group" if group is None else "another one"
        raise ValueError(
            f"a loss of sharded prototypes must have the process group of the head, got {given}"
        )
    if label_smoothing:
        raise ValueError(
            f"label_smoothing must be 0 with sharded prototypes, got {label_smoothing}"
        )
