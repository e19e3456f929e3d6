"""Sample against samples: supervised contrastive loss (SCL) and the prototype loss."""

import torch
from jaxtyping import Float, Integer
from torch import Tensor
from torch.compiler import is_compiling

from protosphere.geometry.sphere import compute_dtype, normalize
from protosphere.kernels.dispatch import Form, masked_logsumexp
from protosphere.kernels.eager import logsumexp
from protosphere.kernels.problem import read_temperature
from protosphere.kernels.ring import ring_logsumexp
from protosphere.losses.module import LossModule
from protosphere.losses.queue import FeatureQueue, QueuedFeatures, check_queue
from protosphere.losses.reduction import Reduction, reduce_loss
from protosphere.losses.targets import (
    CompactLabels,
    Targets,
    Temperature,
    check_features,
    compact_labels,
    read_targets,
)
from protosphere.parallel import ProcessGroup, gather_numbers, gather_rows, row_counts, sum_over


def scl_loss(
    features: Float[Tensor, "samples dim"],
    labels: Integer[Tensor, "samples"],
    *,
    temperature: Temperature = 0.1,
    class_weights: Float[Tensor, "classes"] | None = None,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    form: Form = "auto",
    queue: QueuedFeatures | None = None,
    group: ProcessGroup | None = None,
) -> Float[Tensor, "samples"] | Float[Tensor, ""]:
    """Supervised contrastive loss: each sample against all others, attracted by its class.

    ℓ_i = log Σ_{j≠i} exp(a_i·a_j/τ) − mean_{l ∈ P(i)} a_i·a_l/τ, P(i) the others of the class.

    Views are samples: for v views of M images pass features of shape (v·M, d) and labels of that
    length. There is no factor τ/τ_base. The entries of a queue join the sum, and those of the
    class also P(i).

    Near collapse the gradient is what remains of forces that almost cancel. In float32 it is
    accurate to 1% down to a within-class spread of 1e-3 at τ = 0.05 and 1e-4 at τ = 0.07. Beyond
    that the sum of exponentials that are all almost 1, each rounded to 6e-8, is the limit; pass
    float64 features if it matters.

    Args:
        features: Features a; the loss normalizes them.
        labels: Class index of each sample.
        temperature: Temperature τ, a positive number or a tensor with one element.
        class_weights: Weight of each class, applied to the samples of the class.
        ignore_index: Samples with this label are ignored.
        reduction: ``"mean"`` (divided by the sum of the weights), ``"sum"`` or ``"none"``.
        form: ``"eager"``, ``"chunked"`` (never holds the whole matrix of logits), or ``"auto"``,
            which chooses by size.
        queue: Features of earlier steps that are further keys, as :meth:`FeatureQueue.read` returns
            them; with a group every rank has the same ones.
        group: Process group whose ranks hold the batch together and all call the loss; None for a
            batch of this process alone. With ``form="chunked"`` and without a queue their features
            go around in a ring instead of being gathered.

    Returns:
        A scalar, or one value per sample for ``reduction="none"``, in float32 or wider. Samples
        without a positive are left out: their value is 0 and they do not count in the mean.

    Raises:
        ValueError: Shapes that do not fit, negative labels, bad class weights, or an option out of
            its range.

    >>> two_per_class = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    >>> scl_loss(two_per_class, torch.tensor([0, 0, 1, 1]), temperature=0.5)
    tensor(0.2395)

    Reference: Khosla et al., "Supervised contrastive learning", 2020, the form with the sum outside
    the logarithm.
    """
    dtype = features.dtype
    features, targets = _read_inputs(features, labels, temperature, class_weights, ignore_index)
    check_queue(queue, features)
    _check_rescale(queue)
    key_targets, sizes = targets, [len(features)]
    if group is not None:
        key_targets, sizes = _gather_targets(targets, group)
    if queue is not None:
        key_targets = _append_queue(key_targets, queue)
    compact = key_targets.compact()
    # The samples of this process come first among the keys.
    own_labels = compact.inverse[: len(features)]
    key_labels = compact.inverse.masked_fill(~key_targets.kept, -1)
    in_ring = group is not None and form == "chunked" and any(sizes) and not is_compiling()
    if group is not None and in_ring and queue is None:
        others = ring_logsumexp(
            features,
            key_labels,
            sizes=sizes,
            temperature=temperature,
            dtype=dtype,
            group=group,
        )
    else:
        keys = gather_rows(features, group, sizes=sizes, dtype=dtype)
        if queue is not None:
            keys = torch.cat((keys, queue.features.to(keys.dtype)))
        others = masked_logsumexp(
            features,
            keys,
            temperature=temperature,
            positives="same_label",
            exclude="same_index",
            anchor_labels=own_labels,
            key_labels=key_labels,
            key_log_weights=key_targets.key_log_weights(features),
            form=form,
        )
    has_positives = compact.counts(key_targets.kept, features.dtype)[own_labels] > 1
    values = torch.where(has_positives, others.values, 0) - others.positive_logits
    return reduce_loss(values, targets, kept=has_positives, reduction=reduction, group=group)


def prototype_loss(
    features: Float[Tensor, "samples dim"],
    labels: Integer[Tensor, "samples"],
    *,
    temperature: Temperature = 0.1,
    class_weights: Float[Tensor, "classes"] | None = None,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    form: Form = "auto",
    group: ProcessGroup | None = None,
) -> Float[Tensor, "samples"] | Float[Tensor, ""]:
    """Prototype loss: each sample against the class means of the batch, weighted by their counts.

    ℓ_i = log Σ_c (n_c − [c = y_i]) exp(a_i·μ_c/τ) − a_i·μ_{y_i}/τ, with μ_c the mean of the unit
    features of class c and n_c their number.

    The means are not normalized. A class of weight 0 drops out of the sum. The loss has the
    minimizers of SCL at a cost of O(M · K · d).

    Args:
        features: Features a; the loss normalizes them. Views are samples, as in :func:`scl_loss`.
        labels: Class index of each sample.
        temperature: Temperature τ, a positive number or a tensor with one element.
        class_weights: Weight of each class, applied to the samples of the class.
        ignore_index: Samples with this label are ignored.
        reduction: ``"mean"`` (divided by the sum of the weights), ``"sum"`` or ``"none"``.
        form: ``"eager"``, ``"chunked"`` (never holds the whole matrix of logits), or ``"auto"``,
            which chooses by size.
        group: Process group whose ranks hold the batch together and all call the loss; None for a
            batch of this process alone.

    Returns:
        A scalar, or one value per sample for ``reduction="none"``, in float32 or wider. The only
        sample of its class is kept; the only sample of the batch is left out.

    Raises:
        ValueError: Shapes that do not fit, negative labels, bad class weights, or an option out of
            its range.

    >>> two_per_class = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    >>> prototype_loss(two_per_class, torch.tensor([0, 0, 1, 1]), temperature=0.5)
    tensor(0.2395)

    Reference: "Neural Collapse by Design", ICML 2026, equation 6.
    """
    features, targets = _read_inputs(features, labels, temperature, class_weights, ignore_index)
    compact = targets.compact() if group is None else _compact_over(targets, group)
    unit = normalize(features)
    counts = compact.counts(targets.kept, unit.dtype)
    sums = unit.new_zeros(compact.num_labels, unit.shape[1]).index_add(0, compact.inverse, unit)
    num_kept = targets.kept.sum()
    if group is not None:
        sums_and_counts = sum_over(torch.cat((sums, counts[:, None]), 1), group)
        sums, counts = sums_and_counts[:, :-1], sums_and_counts[:, -1].detach()
        num_kept = counts.sum()
    others = masked_logsumexp(
        unit,
        sums / counts.clamp(min=1)[:, None],
        temperature=temperature,
        similarity="dot",
        positives="key_of_anchor",
        exclude="positives",
        positive_index=compact.inverse,
        key_log_weights=counts.log(),
        form=form,
    )
    # The sample's own class has the weight n − 1 in the sum. Divided by the numerator its term is
    # the constant n − 1, so that the similarity to the own mean does not have to cancel.
    own_log_weight = (counts[compact.inverse] - 1).clamp(min=0).log()
    values = logsumexp(torch.stack((others.values - others.positive_logits, own_log_weight)), 0)
    return reduce_loss(values, targets, kept=num_kept > 1, reduction=reduction, group=group)


class SCLLoss(LossModule):
    """Supervised contrastive loss: each sample against all others, attracted by its class.

    ℓ_i = log Σ_{j≠i} exp(a_i·a_j/τ) − mean_{l ∈ P(i)} a_i·a_l/τ, P(i) the others of the class;
    called as ``loss(features, labels)``, with all views as samples.

    Args:
        temperature: Temperature τ, a positive number.
        class_weights: Weight of each class, applied to the samples of the class.
        ignore_index: Samples with this label are ignored.
        reduction: ``"mean"`` (divided by the sum of the weights), ``"sum"`` or ``"none"``.
        form: ``"eager"``, ``"chunked"`` (never holds the whole matrix of logits), or ``"auto"``,
            which chooses by size.
        queue: Queue of recent features, which are further keys in training mode: each call reads it
            and then adds the features of the batch. With a group every rank has the whole queue.
        group: Process group whose ranks hold the batch together and all call the loss; None for a
            batch of this process alone. With ``form="chunked"`` and without a queue their features
            go around in a ring instead of being gathered.

    Raises:
        ValueError: An option out of its range or bad class weights.
    """

    def __init__(
        self,
        *,
        temperature: float = 0.1,
        class_weights: Tensor | None = None,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
        form: Form = "auto",
        queue: FeatureQueue | None = None,
        group: ProcessGroup | None = None,
    ) -> None:
        _check_rescale(queue)
        super().__init__(
            class_weights=class_weights,
            temperature=_fixed_temperature(temperature),
            ignore_index=ignore_index,
            reduction=reduction,
            form=form,
            queue=queue,
            group=group,
        )

    @property
    def queue_group(self) -> None:
        """None, because every rank has the whole queue."""

    def forward(self, features: Tensor, labels: Tensor) -> Tensor:
        """Compute :func:`scl_loss`."""
        value = scl_loss(features, labels, queue=self.read_queue(), **self.options)
        self.add_to_queue(features, labels)
        return value


class PrototypeLoss(LossModule):
    """Prototype loss: each sample against the class means of the batch, weighted by their counts.

    ℓ_i = log Σ_c (n_c − [c = y_i]) exp(a_i·μ_c/τ) − a_i·μ_{y_i}/τ, with μ_c the mean of the unit
    features of class c and n_c their number; called as ``loss(features, labels)``, with all views
    as samples.

    Args:
        temperature: Temperature τ, a positive number.
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
        temperature: float = 0.1,
        class_weights: Tensor | None = None,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
        form: Form = "auto",
        group: ProcessGroup | None = None,
    ) -> None:
        super().__init__(
            class_weights=class_weights,
            temperature=_fixed_temperature(temperature),
            ignore_index=ignore_index,
            reduction=reduction,
            form=form,
            group=group,
        )

    def forward(self, features: Tensor, labels: Tensor) -> Tensor:
        """Compute :func:`prototype_loss`."""
        return prototype_loss(features, labels, **self.options)


def _read_inputs(
    features: Tensor,
    labels: Tensor,
    temperature: Temperature,
    class_weights: Tensor | None,
    ignore_index: int,
) -> tuple[Tensor, Targets]:
    check_features(features)
    read_temperature(temperature)
    targets = read_targets(
        labels,
        num_samples=len(features),
        num_classes=None,
        ignore_index=ignore_index,
        class_weights=class_weights,
    )
    # Converted once: these losses use the features more than once, and gradients that almost cancel
    # must not be rounded to half precision before they are added.
    return targets.mask_rows(features.to(compute_dtype(features))), targets


def _gather_targets(targets: Targets, group: ProcessGroup) -> tuple[Targets, list[int]]:
    """Return the targets of all ranks, those of this process first, and the sizes by rank."""
    sizes = row_counts(len(targets.labels), group, device=targets.labels.device)
    labels = gather_rows(targets.labels.masked_fill(~targets.kept, -1), group, sizes=sizes)
    kept = labels >= 0
    return Targets(labels.masked_fill(~kept, 0), kept, False, None, None), sizes


def _check_rescale(queue: object) -> None:
    if getattr(queue, "rescale", False):
        raise ValueError("rescale must be False for the queue of SCL, got True")


def _append_queue(targets: Targets, queue: QueuedFeatures) -> Targets:
    """Return the targets of the batch, then of the queue; their classes get common numbers."""
    labels = torch.cat((targets.labels, queue.labels))
    return Targets(labels, torch.cat((targets.kept, queue.kept)), False, None, None)


def _compact_over(targets: Targets, group: ProcessGroup) -> CompactLabels:
    """Number the classes of a process group: by their labels, or in order if those are too large.

    Compiled code, which cannot read how large labels are, numbers them in order.

    Returns:
        Compact labels of the samples of this process, numbered alike on all ranks.
    """
    labels = targets.labels
    if is_compiling():
        sizes = row_counts(len(labels), group, device=labels.device)
    else:
        bound = torch.cat((labels, labels.new_zeros(1))).amax() + 1
        numbers = gather_numbers([len(labels), bound], group, device=labels.device)
        sizes, num_classes = [size for size, _ in numbers], max(bound for _, bound in numbers)
        if num_classes <= sum(sizes):
            return CompactLabels(labels, None, num_classes)
    everyone = gather_rows(labels.masked_fill(~targets.kept, -1), group, sizes=sizes)
    compact = compact_labels(everyone, everyone >= 0, None)
    return compact._replace(inverse=compact.inverse[: len(labels)])


def _fixed_temperature(temperature: float) -> float:
    if isinstance(temperature, Tensor):
        raise ValueError(
            "temperature of a loss module must be a positive number, got a tensor; to learn a "
            "temperature, pass it to the loss function"
        )
    return float(read_temperature(temperature))
