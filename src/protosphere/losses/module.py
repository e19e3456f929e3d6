"""Base class of the loss modules, and what they need of a head."""

import inspect
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

from protosphere.kernels.dispatch import Form
from protosphere.kernels.problem import check_choices
from protosphere.losses.queue import FeatureQueue, QueuedFeatures, check_options_with_queue
from protosphere.losses.reduction import Reduction
from protosphere.losses.soft_targets import Labels, check_label_smoothing
from protosphere.losses.targets import (
    Temperature,
    check_class_weights,
    check_logit_adjustment,
)
from protosphere.parallel.world import (
    ProcessGroup,
    check_group,
    log_missing_group,
    world_size,
)


@runtime_checkable
class PrototypeHead(Protocol):
    """A classifier with one prototype per class."""

    @property
    def prototypes(self) -> Tensor:
        """Prototypes, shape (num_classes, dim)."""


@runtime_checkable
class CosineHead(PrototypeHead, Protocol):
    """A classifier on cosines, which has the temperature of training and prediction."""

    @property
    def temperature(self) -> Temperature:
        """Temperature τ, a positive number or a tensor with one element."""


@runtime_checkable
class LinearHead(PrototypeHead, Protocol):
    """A classifier on inner products."""

    @property
    def bias(self) -> Tensor | None:
        """Bias of each class, or None."""


@dataclass(frozen=True)
class _GroupReference:
    """A process group, which cannot be copied: copies of a module use the same one."""

    group: ProcessGroup | None

    def __deepcopy__(self, memo: dict[int, Any]) -> "_GroupReference":
        return self


class LossModule(nn.Module):
    """Base class of the losses as modules: it checks and holds their options.

    A loss has no parameters. Class weights and logit adjustment move with the module to another
    device or dtype but are not part of its state dict. A queue is a child module with a state.

    Args:
        class_weights: Weight of each class, or None.
        queue: Queue of recent features, for losses that have one.
        **options: The other keyword arguments of the loss function.

    Raises:
        ValueError: An unknown reduction or form, bad class weights, label smoothing or logit
            adjustment, a queue that does not go with the options, or a group that this process does
            not belong to.
    """

    class_weights: Tensor | None
    logit_adjustment: Tensor | None

    def __init__(
        self, *, class_weights: Tensor | None, queue: FeatureQueue | None = None, **options: Any
    ) -> None:
        super().__init__()
        check_choices(
            reduction=(options["reduction"], Reduction), form=(options.get("form", "auto"), Form)
        )
        check_label_smoothing(options.get("label_smoothing", 0.0))
        if not isinstance(queue, FeatureQueue | None):
            raise ValueError(f"queue must be None or a FeatureQueue, got {type(queue).__name__}")
        check_options_with_queue(
            queue,
            soft_labels=bool(options.get("label_smoothing")),
            negatives=options.get("negatives", "samples"),
        )
        self.queue = queue
        self._reference = _GroupReference(options.pop("group", None))
        check_group(self.group)
        if self.group is None:
            log_missing_group(type(self).__name__)
        self._options = options
        self._needs_head = "head" in inspect.signature(self.forward).parameters
        self._per_class = ["class_weights"]
        if class_weights is not None:
            check_class_weights(class_weights, None)
        self.register_buffer("class_weights", class_weights, persistent=False)
        if "logit_adjustment" in options:
            logit_adjustment = options.pop("logit_adjustment")
            if logit_adjustment is not None:
                check_logit_adjustment(logit_adjustment, None)
            self._per_class.append("logit_adjustment")
            self.register_buffer("logit_adjustment", logit_adjustment, persistent=False)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the loss.

        Raises:
            TypeError: A loss of features and a head is called as a loss of logits, or the reverse.
        """
        num_arguments = len(args) + len(kwargs)
        if self._needs_head and num_arguments == 2:
            raise TypeError(
                f"{type(self).__name__} must be called as loss(features, head, labels), got two "
                "arguments; losses that are called as loss(logits, labels) are NormFaceFromLogits, "
                "NTCEFromLogits, NONLFromLogits and torch.nn.CrossEntropyLoss"
            )
        if not self._needs_head and num_arguments == 3:
            names = ", ".join(inspect.signature(self.forward).parameters)
            raise TypeError(
                f"{type(self).__name__} must be called as loss({names}), got three arguments; "
                "losses that are called as loss(features, head, labels) are NormFaceLoss, "
                "NTCELoss, NONLLoss, NormFaceNONLLoss, CrossEntropyLoss and DotRegressionLoss"
            )
        return super().__call__(*args, **kwargs)

    @property
    def group(self) -> ProcessGroup | None:
        """Process group whose ranks hold the batch together, or None."""
        return self._reference.group

    @property
    def options(self) -> dict[str, Any]:
        """The keyword arguments for the loss function."""
        per_class = {name: getattr(self, name) for name in self._per_class}
        return {**self._options, **per_class, "group": self.group}

    @property
    def queue_group(self) -> ProcessGroup | None:
        """Process group over whose ranks the queue is divided; None if each has the whole queue."""
        return self.group

    def read_queue(self) -> QueuedFeatures | None:
        """Return the queue for the loss of a batch; None without one, or in evaluation mode."""
        return None if self.queue is None or not self.training else self.queue.read()

    def add_to_queue(self, features: Tensor, labels: Labels) -> None:
        """Add a batch to the queue, if there is one, in training mode.

        Args:
            features: Features of the batch of this process.
            labels: Class index of each sample.
        """
        if self.queue is None or not self.training:
            return
        assert isinstance(labels, Tensor)  # The loss of other labels has been refused.
        group = self.group if self.queue_group is None else None
        self.queue.add(features, labels, ignore_index=self._options["ignore_index"], group=group)

    def extra_repr(self) -> str:
        """Describe the options."""
        options = [f"{name}={value!r}" for name, value in self._options.items()]
        for name in self._per_class:
            values = getattr(self, name)
            if values is not None:
                options.append(f"{name}=({len(values)} values)")
        if self.group is not None:
            options.append(f"group=({world_size(self.group)} ranks)")
        return ", ".join(options)


def cosine_head_parameters(head: CosineHead, loss: nn.Module) -> tuple[Tensor, Temperature]:
    """Return the prototypes and the temperature of a head.

    Args:
        head: The head.
        loss: The loss that needs them, for the error message.

    Raises:
        ValueError: The head does not have them.
    """
    prototypes = getattr(head, "prototypes", None)
    temperature = getattr(head, "temperature", None)
    if prototypes is None or temperature is None:
        raise ValueError(
            f"{type(loss).__name__} requires a head with prototypes and a temperature, such as "
            f"CosineClassifier, got {type(head).__name__}; it is called as "
            "loss(features, head, labels), and the FromLogits losses as loss(logits, labels)"
        )
    return prototypes, temperature


def linear_head_parameters(
    head: LinearHead | nn.Linear, loss: nn.Module
) -> tuple[Tensor, Tensor | None]:
    """Return the weight and the bias of a linear head.

    Args:
        head: The head, or a plain ``nn.Linear``.
        loss: The loss that needs them, for the error message.

    Raises:
        ValueError: The head does not have them, or it classifies by cosines.
    """
    if isinstance(head, nn.Linear):
        return head.weight, head.bias
    prototypes = getattr(head, "prototypes", None)
    if prototypes is None or hasattr(head, "temperature"):
        raise ValueError(
            f"{type(loss).__name__} requires a linear head, such as LinearClassifier, "
            f"got {type(head).__name__}; the loss of a head on cosines is NormFaceLoss"
        )
    return prototypes, getattr(head, "bias", None)


def head_prototypes(head: PrototypeHead, loss: nn.Module) -> Tensor:
    """Return the prototypes of a head.

    Args:
        head: The head.
        loss: The loss that needs them, for the error message.

    Raises:
        ValueError: The head does not have prototypes.
    """
    prototypes: Tensor | None = getattr(head, "prototypes", None)
    if prototypes is None:
        raise ValueError(
            f"{type(loss).__name__} requires a head with prototypes, such as "
            f"FixedFrameClassifier or CosineClassifier, got {type(head).__name__}"
        )
    if hasattr(head, "shards"):
        raise ValueError(
            f"{type(loss).__name__} requires a head with the prototypes of all classes, "
            f"got {type(head).__name__}"
        )
    return prototypes
