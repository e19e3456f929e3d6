"""The log-sums of NTCE and NONL: over the samples of a column, with a queue, and over a row."""

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from protosphere.kernels.dispatch import Form, MaskedLogSumExp, masked_logsumexp
from protosphere.kernels.problem import PositiveLogitsFrom
from protosphere.losses.contrast import add_in_logs
from protosphere.losses.queue import QueuedFeatures
from protosphere.losses.soft_losses import LogitsOfFeatures
from protosphere.losses.soft_targets import SoftTargets
from protosphere.losses.targets import CompactLabels, Targets, Temperature
from protosphere.parallel import ProcessGroup


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


def add_queue(
    log_sums: Float[Tensor, "compact"],
    queue: QueuedFeatures | None,
    prototypes: Float[Tensor, "classes dim"],
    targets: Targets,
    compact: CompactLabels,
    *,
    exclude: Literal["none", "own_class"],
    temperature: Temperature,
    form: Form,
) -> Float[Tensor, "compact"]:
    """Add the entries of a queue to the log-sums over samples of the batch.

    Args:
        log_sums: Log-sum of each compact label.
        queue: The queue, or None to return the log-sums themselves.
        prototypes: Prototypes of all classes.
        targets: Targets of the batch.
        compact: Compact labels of the batch.
        exclude: Whether the sum of a class excludes the entries of the class.
        temperature: Temperature τ.
        form: Form of the primitive.
    """
    if queue is None:
        return log_sums
    pair_index = pair_log_weights = None
    if exclude == "own_class":
        column = _columns_of(queue, len(prototypes), targets, compact)
        pair_index = column.clamp(min=0)[:, None]
        pair_log_weights = torch.zeros_like(pair_index, dtype=log_sums.dtype)
        pair_log_weights = pair_log_weights.masked_fill(column[:, None] >= 0, -torch.inf)
    of_queue = masked_logsumexp(
        compact.select(prototypes),
        queue.features,
        temperature=temperature,
        key_log_weights=queue.key_log_weights(queue.features),
        pair_index=pair_index,
        pair_log_weights=pair_log_weights,
        form=form,
    )
    return add_in_logs(log_sums, of_queue.values)


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
