"""The weighted mean of NormFace and NONL: one normalizes over classes, the other over samples."""

from numbers import Real
from typing import Any

from jaxtyping import Float
from torch import Tensor

from protosphere.kernels.dispatch import Form
from protosphere.losses.contrast import bounded_temperature
from protosphere.losses.module import CosineHead, LossModule, cosine_head_parameters
from protosphere.losses.prototype_contrast import nonl_loss
from protosphere.losses.queue import FeatureQueue, QueuedFeatures
from protosphere.losses.reduction import Reduction
from protosphere.losses.sharded import class_shards, sharded_nonl_loss, sharded_normface_loss
from protosphere.losses.soft_targets import Labels
from protosphere.losses.softmax import normface_loss
from protosphere.losses.targets import Temperature, check_prototypes, loss_dtype
from protosphere.parallel import ProcessGroup


def normface_nonl_loss(
    features: Float[Tensor, "samples dim"],
    prototypes: Float[Tensor, "classes dim"],
    labels: Labels,
    *,
    normface_weight: float = 0.5,
    temperature: Temperature = 0.1,
    min_temperature: float | None = None,
    label_smoothing: float = 0.0,
    class_weights: Float[Tensor, "classes"] | None = None,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    form: Form = "auto",
    queue: QueuedFeatures | None = None,
    group: ProcessGroup | None = None,
) -> Float[Tensor, "samples"] | Float[Tensor, ""]:
    """Weighted mean of NormFace and NONL with the same prototypes and temperature.

    ℓ_i = λ (log Σ_c exp(S_ic) − S_{i y_i}) + (1 − λ) (log Σ_{j: y_j ≠ y_i} exp(S_{j y_i}) −
    S_{i y_i}), with S_ic = cos(z_i, w_c)/τ.

    The first part, :func:`normface_loss`, sums over the classes of each sample (a row of S); the
    second, :func:`nonl_loss`, over the samples for each class (a column). Each part is reduced by
    its own rule before they are added: samples without a negative count in the first part only.

    Args:
        features: Features z; the loss normalizes them.
        prototypes: Prototypes w; the loss normalizes them.
        labels: Class index y of each sample; or class probabilities, shape (samples, classes), or
            :class:`MixedLabels`.
        normface_weight: Weight λ of NormFace, from 0 to 1; NONL has the weight 1 − λ.
        temperature: Temperature τ, a positive number or a tensor with one element.
        min_temperature: Lower bound of τ in both parts. NONL decreases without bound as τ → 0, so a
            temperature that requires a gradient must have one.
        label_smoothing: Amount ε of label smoothing, from 0 to 1: q becomes (1 − ε) q + ε/K.
        class_weights: Weight of each class, applied to the samples of the class.
        ignore_index: Samples with this label are ignored.
        reduction: ``"mean"`` (divided by the sum of the weights), ``"sum"`` or ``"none"``.
        form: ``"eager"``, ``"chunked"`` (never holds the whole matrix of logits), or ``"auto"``,
            which chooses by size.
        queue: Features of earlier steps that are further keys of NONL, as
            :meth:`FeatureQueue.read` returns them; with a group each rank has others. Not with soft
            labels.
        group: Process group whose ranks hold the batch together and all call the loss; None for a
            batch of this process alone.

    Returns:
        A scalar, or one value per sample for ``reduction="none"``, in float32 or wider.

    Raises:
        ValueError: Shapes that do not fit, labels out of range, bad class weights, an option out of
            its range, or a temperature that requires a gradient without ``min_temperature``.

    >>> import torch
    >>> normface_nonl_loss(torch.eye(3), torch.eye(3), torch.arange(3), temperature=0.2)
    tensor(-2.1467)
    """
    check_normface_weight(normface_weight)
    check_prototypes(features, prototypes)
    temperature = bounded_temperature(temperature, min_temperature)
    # Converted once: the gradients of the two parts are added before they are rounded.
    dtype = loss_dtype(features, prototypes, temperature)
    features, prototypes = features.to(dtype), prototypes.to(dtype)
    options: dict[str, Any] = {
        "temperature": temperature,
        "label_smoothing": label_smoothing,
        "class_weights": class_weights,
        "ignore_index": ignore_index,
        "reduction": reduction,
        "form": form,
        "group": group,
    }
    normface = normface_loss(features, prototypes, labels, **options)
    nonl = nonl_loss(
        features, prototypes, labels, min_temperature=min_temperature, queue=queue, **options
    )
    return normface_weight * normface + (1 - normface_weight) * nonl


class NormFaceNONLLoss(LossModule):
    """Weighted mean of NormFace and NONL with the prototypes and the temperature of one head.

    ℓ_i = λ (log Σ_c exp(S_ic) − S_{i y_i}) + (1 − λ) (log Σ_{j: y_j ≠ y_i} exp(S_{j y_i}) −
    S_{i y_i}), with S_ic = cos(z_i, w_c)/τ; called as ``loss(features, head, labels)`` with a
    :class:`~protosphere.classifiers.CosineClassifier` that has the prototypes w and the temperature
    τ, or of many classes with a :class:`~protosphere.classifiers.ShardedCosineClassifier`. NONL
    decreases without bound as τ → 0, so a head that learns its temperature needs a
    ``min_temperature``.

    Args:
        normface_weight: Weight λ of NormFace, from 0 to 1; NONL has the weight 1 − λ.
        label_smoothing: Amount ε of label smoothing, from 0 to 1: q becomes (1 − ε) q + ε/K.
        class_weights: Weight of each class, applied to the samples of the class.
        ignore_index: Samples with this label are ignored.
        reduction: ``"mean"`` (divided by the sum of the weights), ``"sum"`` or ``"none"``.
        form: ``"eager"``, ``"chunked"`` (never holds the whole matrix of logits), or ``"auto"``,
            which chooses by size.
        queue: Queue of recent features, which are further keys of NONL in training mode: each call
            reads it and then adds the features of the batch. With a group each rank has its own
            part.
        group: Process group whose ranks hold the batch together and all call the loss; None for a
            batch of this process alone.

    Raises:
        ValueError: An option out of its range or bad class weights.

    >>> import torch
    >>> from protosphere.classifiers import CosineClassifier
    >>> loss, head = NormFaceNONLLoss(), CosineClassifier(16, 3, temperature=0.1)
    >>> loss(torch.randn(8, 16), head, torch.arange(8) % 3).shape
    torch.Size([])
    """

    def __init__(
        self,
        *,
        normface_weight: float = 0.5,
        label_smoothing: float = 0.0,
        class_weights: Tensor | None = None,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
        form: Form = "auto",
        queue: FeatureQueue | None = None,
        group: ProcessGroup | None = None,
    ) -> None:
        check_normface_weight(normface_weight)
        super().__init__(
            class_weights=class_weights,
            normface_weight=normface_weight,
            label_smoothing=label_smoothing,
            ignore_index=ignore_index,
            reduction=reduction,
            form=form,
            queue=queue,
            group=group,
        )

    def forward(self, features: Tensor, head: CosineHead, labels: Labels) -> Tensor:
        """Compute :func:`normface_nonl_loss` with prototypes and temperature of the head."""
        prototypes, temperature = cosine_head_parameters(head, self)
        min_temperature = getattr(head, "min_temperature", None)
        shards = class_shards(head, self.queue)
        if shards is not None:
            options = {**self.options, "shards": shards}
            weight = options.pop("normface_weight")
            options["temperature"] = bounded_temperature(temperature, min_temperature)
            normface = sharded_normface_loss(features, prototypes, labels, **options)
            nonl = sharded_nonl_loss(
                features, prototypes, labels, min_temperature=min_temperature, **options
            )
            value: Tensor = weight * normface + (1 - weight) * nonl
            return value
        value = normface_nonl_loss(
            features,
            prototypes,
            labels,
            temperature=temperature,
            min_temperature=min_temperature,
            queue=self.read_queue(),
            **self.options,
        )
        self.add_to_queue(features, labels)
        return value


def check_normface_weight(normface_weight: float) -> None:
    """Raise ValueError unless the weight is a number from 0 to 1."""
    if (
        isinstance(normface_weight, bool)
        or not isinstance(normface_weight, Real)
        or not 0 <= normface_weight <= 1
    ):
        raise ValueError(f"normface_weight must be a number from 0 to 1, got {normface_weight!r}")
