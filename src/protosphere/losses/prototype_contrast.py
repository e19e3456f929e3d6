"""Prototype against samples: NTCE and NONL, whose sums depend on the class, not on the sample."""

from jaxtyping import Float
from torch import Tensor

from protosphere.kernels.dispatch import Form
from protosphere.kernels.problem import read_temperature
from protosphere.losses.columns import column_sums_with_queue, compact_logits, row_sums
from protosphere.losses.contrast import (
    Negatives,
    add_in_logs,
    bounded_temperature,
    check_negatives,
    check_negatives_of_soft_labels,
    contrast_over_group,
    contrast_with_all,
    reduce_contrast,
)
from protosphere.losses.module import CosineHead, LossModule, cosine_head_parameters
from protosphere.losses.queue import (
    FeatureQueue,
    QueuedFeatures,
    check_options_with_queue,
    check_queue,
)
from protosphere.losses.reduction import Reduction, reduce_loss
from protosphere.losses.sharded import class_shards, sharded_nonl_loss, sharded_ntce_loss
from protosphere.losses.soft_losses import soft_nonl, soft_ntce
from protosphere.losses.soft_targets import Labels, SoftNegatives, SoftTargets, read_labels
from protosphere.losses.targets import Temperature, check_prototypes, loss_dtype
from protosphere.parallel import ProcessGroup, logsumexp_over


def ntce_loss(
    features: Float[Tensor, "samples dim"],
    prototypes: Float[Tensor, "classes dim"],
    labels: Labels,
    *,
    temperature: Temperature = 0.1,
    label_smoothing: float = 0.0,
    class_weights: Float[Tensor, "classes"] | None = None,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    form: Form = "auto",
    queue: QueuedFeatures | None = None,
    group: ProcessGroup | None = None,
) -> Float[Tensor, "samples"] | Float[Tensor, ""]:
    """NTCE: the prototype of the sample's class against all samples of the batch.

    ℓ_i = log Σ_{j=1..M} exp(S_{j y_i}) − S_{i y_i}, with S_ic = cos(z_i, w_c)/τ; for class
    probabilities q Σ_c q_ic (log Σ_j exp(S_jc) − S_ic).

    The sum runs down a column of S and depends on the class only: the cost is O(M · min(M, K) · d).
    With a queue it runs over the entries of other classes in the queue too.

    Args:
        features: Features z; the loss normalizes them.
        prototypes: Prototypes w; the loss normalizes them.
        labels: Class index y of each sample; or class probabilities q, shape (samples, classes), or
            :class:`MixedLabels`.
        temperature: Temperature τ, a positive number or a tensor with one element, which may
            require a gradient.
        label_smoothing: Amount ε of label smoothing, from 0 to 1: q becomes (1 − ε) q + ε/K.
        class_weights: Weight of each class, applied to the samples of the class.
        ignore_index: Samples with this label are ignored.
        reduction: ``"mean"`` (divided by the sum of the weights), ``"sum"`` or ``"none"``.
        form: ``"eager"``, ``"chunked"`` (never holds the whole matrix of logits), or ``"auto"``,
            which chooses by size.
        queue: Features of earlier steps that are further keys, as :meth:`FeatureQueue.read` returns
            them; with a group each rank has others. Not with soft labels.
        group: Process group whose ranks hold the batch together and all call the loss; None for a
            batch of this process alone.

    Returns:
        A scalar, or one value per sample for ``reduction="none"``, in float32 or wider.

    Raises:
        ValueError: Shapes that do not fit, labels out of range, bad class weights, or an option out
            of its range.

    >>> import torch
    >>> ntce_loss(torch.eye(3), torch.eye(3), torch.arange(3), temperature=0.2)
    tensor(0.0134)

    Reference: "Neural Collapse by Design", ICML 2026, equation 4.
    """
    check_prototypes(features, prototypes)
    temperature = read_temperature(temperature)
    targets = read_labels(
        labels,
        num_samples=len(features),
        num_classes=len(prototypes),
        ignore_index=ignore_index,
        class_weights=class_weights,
        label_smoothing=label_smoothing,
        dtype=loss_dtype(features, prototypes, temperature),
    )
    check_queue(queue, features, num_classes=len(prototypes))
    check_options_with_queue(queue, soft_labels=isinstance(targets, SoftTargets))
    if isinstance(targets, SoftTargets):
        logits = compact_logits(features, prototypes, targets, temperature, form, group)
        return soft_ntce(logits, reduction, group)
    compact = targets.compact(group)
    log_sums, positives, keys_per_sample = column_sums_with_queue(
        features,
        prototypes,
        targets,
        compact,
        "chords",
        temperature,
        form,
        queue=queue,
        group=group,
    )
    # Positives of the batch stand for those of the queue: their sum gets a weight.
    log_weight = None if keys_per_sample is None else keys_per_sample.log()
    if log_weight is not None:
        log_sums = log_sums - log_weight
    if group is None:
        negatives = log_sums.index_select(0, compact.inverse)
        values = contrast_with_all(negatives, positives, targets, compact)
    else:
        values = contrast_over_group(log_sums, positives, targets, compact, group)
    if log_weight is not None:
        values = values + log_weight
    return reduce_loss(values, targets, reduction=reduction, group=group)


def nonl_loss(
    features: Float[Tensor, "samples dim"],
    prototypes: Float[Tensor, "classes dim"],
    labels: Labels,
    *,
    temperature: Temperature = 0.1,
    min_temperature: float | None = None,
    negatives: Negatives = "samples",
    soft_negatives: SoftNegatives = "excluded",
    label_smoothing: float = 0.0,
    class_weights: Float[Tensor, "classes"] | None = None,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    form: Form = "auto",
    queue: QueuedFeatures | None = None,
    group: ProcessGroup | None = None,
) -> Float[Tensor, "samples"] | Float[Tensor, ""]:
    """NONL: the prototype of the sample's class against the samples of other classes only.

    ℓ_i = log Σ_{j: y_j ≠ y_i} exp(S_{j y_i}) − S_{i y_i}, with S_ic = cos(z_i, w_c)/τ.

    Attraction and repulsion have no common normalization. The value is often negative; it is at
    least log(number of negatives) − 2/τ. Two variants have other negatives:
    ``negatives="prototypes"`` sums over the row, Σ_{c ≠ y_i} exp(S_ic) (NormFace, decoupled), and
    ``"both"`` over the row and the column. With a queue the column also has its entries of other
    classes.

    For class probabilities q the value is Σ_c q_ic (log Σ_j v_jc exp(S_jc) − S_ic) with
    v_jc = 1 − q_jc / max_c' q_jc: a sample is no negative of its most probable class and a full
    negative of classes that it has no probability of. The value is not linear in q.

    Args:
        features: Features z; the loss normalizes them.
        prototypes: Prototypes w; the loss normalizes them.
        labels: Class index y of each sample; or class probabilities q, shape (samples, classes), or
            :class:`MixedLabels`.
        temperature: Temperature τ, a positive number or a tensor with one element.
        min_temperature: Lower bound of τ. The loss decreases without bound as τ → 0, so a
            temperature that requires a gradient must have one.
        negatives: Negatives in the sum: the ``"samples"`` of other classes, the ``"prototypes"`` of
            other classes, or ``"both"``.
        soft_negatives: Weight of a sample as a negative of class c with soft labels, beside its
            most probable class, which has weight 0: 0 if q_jc > 1/K and otherwise 1
            (``"excluded"``), or 1 − q_jc / max_c' q_jc' (``"weighted"``).
        label_smoothing: Amount ε of label smoothing, from 0 to 1: q becomes (1 − ε) q + ε/K.
        class_weights: Weight of each class, applied to the samples of the class.
        ignore_index: Samples with this label are ignored.
        reduction: ``"mean"`` (divided by the sum of the weights), ``"sum"`` or ``"none"``.
        form: ``"eager"``, ``"chunked"`` (never holds the whole matrix of logits), or ``"auto"``,
            which chooses by size.
        queue: Features of earlier steps that are further keys, as :meth:`FeatureQueue.read` returns
            them; with a group each rank has others. Not with soft labels.
        group: Process group whose ranks hold the batch together and all call the loss; None for a
            batch of this process alone.

    Returns:
        A scalar, or one value per sample for ``reduction="none"``, in float32 or wider. Samples
        without a negative (the whole batch is of one class) are left out: their value is 0 and they
        do not count in the mean. With soft labels those are the samples whose most probable class
        has no negatives; any other term without negatives drops out with its probability.

    Raises:
        ValueError: Shapes that do not fit, labels out of range, bad class weights, an option out of
            its range, or a temperature that requires a gradient without ``min_temperature``.

    >>> import torch
    >>> nonl_loss(torch.eye(3), torch.eye(3), torch.arange(3), temperature=0.2)
    tensor(-4.3069)

    Reference: "Neural Collapse by Design", ICML 2026, equation 5.
    """
    check_prototypes(features, prototypes)
    check_negatives(negatives, soft_negatives, label_smoothing)
    temperature = bounded_temperature(temperature, min_temperature)
    targets = read_labels(
        labels,
        num_samples=len(features),
        num_classes=len(prototypes),
        ignore_index=ignore_index,
        class_weights=class_weights,
        label_smoothing=label_smoothing,
        dtype=loss_dtype(features, prototypes, temperature),
    )
    check_queue(queue, features, num_classes=len(prototypes))
    soft_labels = isinstance(targets, SoftTargets)
    check_options_with_queue(queue, soft_labels=soft_labels, negatives=negatives)
    if isinstance(targets, SoftTargets):
        check_negatives_of_soft_labels(negatives)
        logits = compact_logits(features, prototypes, targets, temperature, form, group)
        return soft_nonl(logits, soft_negatives, reduction, group)
    if negatives == "prototypes":
        result = row_sums(features, prototypes, targets, temperature, form)
        log_sums, positive_logits = result.values, result.positive_logits
    else:
        compact = targets.compact(group)
        log_sums, positive_logits, _ = column_sums_with_queue(
            features,
            prototypes,
            targets,
            compact,
            "matrix",
            temperature,
            form,
            queue=queue,
            group=group,
        )
        log_sums = logsumexp_over(log_sums, group).index_select(0, compact.inverse)
    if negatives == "both":
        rows = row_sums(features, prototypes, targets, temperature, form)
        log_sums = add_in_logs(rows.values, log_sums)
    return reduce_contrast(log_sums, positive_logits, targets, reduction, group)


class NTCELoss(LossModule):
    """NTCE: the prototype of the sample's class against all samples of the batch.

    ℓ_i = log Σ_{j=1..M} exp(S_{j y_i}) − S_{i y_i}, with S_ic = cos(z_i, w_c)/τ; called as
    ``loss(features, head, labels)`` with a :class:`~protosphere.classifiers.CosineClassifier` that
    has the prototypes w and the temperature τ.

    Args:
        label_smoothing: Amount ε of label smoothing, from 0 to 1: q becomes (1 − ε) q + ε/K.
        class_weights: Weight of each class, applied to the samples of the class.
        ignore_index: Samples with this label are ignored.
        reduction: ``"mean"`` (divided by the sum of the weights), ``"sum"`` or ``"none"``.
        form: ``"eager"``, ``"chunked"`` (never holds the whole matrix of logits), or ``"auto"``,
            which chooses by size.
        queue: Queue of recent features, which are further keys in training mode: each call reads it
            and then adds the features of the batch. With a group each rank has its own part.
        group: Process group whose ranks hold the batch together and all call the loss; None for a
            batch of this process alone.

    Raises:
        ValueError: An unknown option or bad class weights.
    """

    def __init__(
        self,
        *,
        label_smoothing: float = 0.0,
        class_weights: Tensor | None = None,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
        form: Form = "auto",
        queue: FeatureQueue | None = None,
        group: ProcessGroup | None = None,
    ) -> None:
        super().__init__(
            class_weights=class_weights,
            label_smoothing=label_smoothing,
            ignore_index=ignore_index,
            reduction=reduction,
            form=form,
            queue=queue,
            group=group,
        )

    def forward(self, features: Tensor, head: CosineHead, labels: Labels) -> Tensor:
        """Compute :func:`ntce_loss` with the prototypes and the temperature of the head."""
        prototypes, temperature = cosine_head_parameters(head, self)
        shards = class_shards(head, self.queue)
        if shards is not None:
            return sharded_ntce_loss(
                features, prototypes, labels, shards=shards, temperature=temperature, **self.options
            )
        value = ntce_loss(
            features,
            prototypes,
            labels,
            temperature=temperature,
            queue=self.read_queue(),
            **self.options,
        )
        self.add_to_queue(features, labels)
        return value


class NONLLoss(LossModule):
    """NONL: the prototype of the sample's class against the samples of other classes only.

    ℓ_i = log Σ_{j: y_j ≠ y_i} exp(S_{j y_i}) − S_{i y_i}, with S_ic = cos(z_i, w_c)/τ; called as
    ``loss(features, head, labels)`` with a :class:`~protosphere.classifiers.CosineClassifier` that
    has the prototypes w and the temperature τ. The value is often negative. It decreases without
    bound as τ → 0, so a head that learns its temperature needs a ``min_temperature``.

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
        form: ``"eager"``, ``"chunked"`` (never holds the whole matrix of logits), or ``"auto"``,
            which chooses by size.
        queue: Queue of recent features, which are further keys in training mode: each call reads it
            and then adds the features of the batch. With a group each rank has its own part.
        group: Process group whose ranks hold the batch together and all call the loss; None for a
            batch of this process alone.

    Raises:
        ValueError: An option out of its range or bad class weights.

    >>> import torch
    >>> from protosphere.classifiers import CosineClassifier
    >>> loss, head = NONLLoss(), CosineClassifier(16, 3, temperature=0.1)
    >>> loss(torch.randn(8, 16), head, torch.arange(8) % 3).shape
    torch.Size([])
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
        form: Form = "auto",
        queue: FeatureQueue | None = None,
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
            form=form,
            queue=queue,
            group=group,
        )

    def forward(self, features: Tensor, head: CosineHead, labels: Labels) -> Tensor:
        """Compute :func:`nonl_loss` with the prototypes and the temperature of the head."""
        prototypes, temperature = cosine_head_parameters(head, self)
        options = {"min_temperature": getattr(head, "min_temperature", None), **self.options}
        shards = class_shards(head, self.queue)
        if shards is not None:
            return sharded_nonl_loss(
                features, prototypes, labels, shards=shards, temperature=temperature, **options
            )
        value = nonl_loss(
            features,
            prototypes,
            labels,
            temperature=temperature,
            queue=self.read_queue(),
            **options,
        )
        self.add_to_queue(features, labels)
        return value
