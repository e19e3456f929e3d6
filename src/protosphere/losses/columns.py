"""The log-sums of NTCE and NONL: over the samples of a column, with a queue, and over a row."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from protosphere.kernels.dispatch import Form, MaskedLogSumExp, masked_logsumexp
from protosphere.kernels.problem import PositiveLogitsFrom
from protosphere.losses.contrast import add_in_logs
from protosphere.losses.queue import QueuedFeatures
from protosphere.losses.soft_losses import LogitsOfFeatures
from protosphere.losses.soft_targets import SoftTargets
from protosphere.losses.targets import CompactLabels, Targets, Temperature, loss_dtype
from protosphere.parallel import ProcessGroup, sum_over


def compact_logits(
    features: Tensor,
    prototypes: Tensor,
    targets: SoftTargets,
    temperature: Temperature,
    form: Form,
    group: ProcessGroup | None,
) -> LogitsOfFeatures:
    """Logits of the classes of the batch, or of all where all have a probability or a rank."""
    if group is None:
        targets, prototypes = targets.compact(prototypes)
    return LogitsOfFeatures.read(features, prototypes, targets, temperature=temperature, form=form)


def column_sums(
    features: Tensor,
    prototypes: Tensor,
    targets: Targets,
    compact: CompactLabels,
    positive_logits_from: PositiveLogitsFrom,
    temperature: Temperature,
    form: Form,
) -> MaskedLogSumExp:
    """For each compact label, the log-sum over the samples of other classes."""
    return masked_logsumexp(
        compact.select(prototypes),
        targets.mask_rows(features),
        temperature=temperature,
        positives="anchor_of_key",
        positive_logits_from=positive_logits_from,
        exclude="positives",
        positive_index=compact.inverse,
        key_log_weights=targets.key_log_weights(features),
        form=form,
    )


class ColumnSums(NamedTuple):
    """The log-sums of the columns of a batch with a queue, and the logits of its positives.

    Attributes:
        values: For each compact label, the log-sum over the samples and entries of other classes.
        positive_logits: Logit of each sample with its own prototype.
        keys_per_sample: How many keys a sample of the batch stands for: 1 without rescaling.
    """

    values: Float[Tensor, "compact"]
    positive_logits: Float[Tensor, "samples"]
    keys_per_sample: Float[Tensor, ""] | None = None


def column_sums_with_queue(
    features: Tensor,
    prototypes: Tensor,
    targets: Targets,
    compact: CompactLabels,
    positive_logits_from: PositiveLogitsFrom,
    temperature: Temperature,
    form: Form,
    *,
    queue: QueuedFeatures | None,
    group: ProcessGroup | None,
) -> ColumnSums:
    """:func:`column_sums` and the entries of a queue, which may rescale the repulsion of features.

    Only the gradients with respect to features are rescaled, so that they are computed apart from
    all others then.

    Args:
        features: Features of the batch.
        prototypes: Prototypes of all classes.
        targets: Targets of the batch.
        compact: Compact labels of the batch.
        positive_logits_from: How positive logits are computed.
        temperature: Temperature τ.
        form: Form of the primitive.
        queue: The queue, or None.
        group: Process group that holds batch and queue together.
    """
    options = (targets, compact, positive_logits_from)
    if queue is None:
        return ColumnSums(*column_sums(features, prototypes, *options, temperature, form))
    of_queue = _queue_sums(queue, prototypes, targets, compact, temperature, form)
    if not queue.rescale:
        values, positives = column_sums(features, prototypes, *options, temperature, form)
        return ColumnSums(add_in_logs(values, of_queue), positives)
    constant = temperature.detach() if isinstance(temperature, Tensor) else temperature
    of_features = column_sums(features, prototypes.detach(), *options, constant, form)
    of_others = column_sums(features.detach(), prototypes, *options, temperature, form)
    counts = torch.stack((targets.kept.sum(), queue.kept.sum())).to(of_others.values.dtype)
    num_samples, num_entries = sum_over(counts, group)
    factor = 1 + num_entries / num_samples.clamp(min=1)

    def join(part: Tensor, other: Tensor, factor: Tensor | float) -> Tensor:
        # What is added is zero and has the gradient of the features; −∞ has none.
        joined = other + factor * (part - part.detach())
        return torch.where(part == -torch.inf, other, joined)

    return ColumnSums(
        add_in_logs(join(of_features.values, of_others.values, factor), of_queue),
        join(of_features.positive_logits, of_others.positive_logits, 1.0),
        factor,
    )


def row_sums(
    features: Tensor, prototypes: Tensor, targets: Targets, temperature: Temperature, form: Form
) -> MaskedLogSumExp:
    """For each sample, the log-sum over the prototypes of other classes."""
    return masked_logsumexp(
        targets.mask_rows(features),
        prototypes,
        temperature=temperature,
        positives="key_of_anchor",
        exclude="positives",
        positive_index=targets.labels,
        form=form,
    )


def _queue_sums(
    queue: QueuedFeatures,
    prototypes: Float[Tensor, "classes dim"],
    targets: Targets,
    compact: CompactLabels,
    temperature: Temperature,
    form: Form,
) -> Float[Tensor, "compact"]:
    """For each compact label, the log-sum over the entries of other classes."""
    column = _columns_of(queue, len(prototypes), targets, compact)[:, None]
    pair_log_weights = torch.zeros_like(
        column, dtype=loss_dtype(queue.features, prototypes, temperature)
    )
    return masked_logsumexp(
        compact.select(prototypes),
        queue.features,
        temperature=temperature,
        key_log_weights=queue.key_log_weights(queue.features),
        pair_index=column.clamp(min=0),
        pair_log_weights=pair_log_weights.masked_fill(column >= 0, -torch.inf),
        form=form,
    ).values


def _columns_of(
    queue: QueuedFeatures, num_classes: int, targets: Targets, compact: CompactLabels
) -> Int[Tensor, "keys"]:
    """Return the compact label of each entry, −1 if no sample of the batch is of its class."""
    if compact.classes is None:
        return queue.labels
    numbers = queue.labels.new_full((num_classes + 1,), -1)
    # Ignored samples are written to a place that is not read.
    places = targets.labels.masked_fill(~targets.kept, num_classes)
    return numbers.scatter(0, places, compact.inverse)[queue.labels]
