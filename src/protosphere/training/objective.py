"""The objective: an encoder, a head and a loss as one module."""

import inspect
from collections.abc import Callable, Mapping
from typing import TypeAlias

from jaxtyping import Float, Integer
from torch import Tensor, nn

from protosphere.classifiers.protocol import Head
from protosphere.losses import MixedLabels
from protosphere.losses.module import LossModule
from protosphere.losses.queue import FeatureQueue, gather_queue, load_queue
from protosphere.parallel import ProcessGroup

Loss: TypeAlias = Callable[..., Tensor]


class Objective(nn.Module):
    """An encoder, a head and a loss as one module that maps images and labels to a loss.

    Args:
        encoder: Module from images to features, including its neck and projection.
        head: Classifier on the features; it owns the prototypes and is trained with the encoder.
        loss: Function or module, called as ``loss(features, head, labels)``, that returns a scalar.
            A module becomes a child, so that its buffers move with the objective.

    Raises:
        TypeError: ``head`` is not a module, or ``loss`` does not take three arguments.

    >>> import torch
    >>> from protosphere.classifiers import CosineClassifier
    >>> head = CosineClassifier(8, 3)
    >>> objective = Objective(nn.Linear(4, 8), head, lambda features, head, labels: features.sum())
    >>> objective.logits(torch.randn(5, 4)).shape
    torch.Size([5, 3])
    """

    def __init__(self, encoder: nn.Module, head: Head, loss: Loss) -> None:
        super().__init__()
        if not isinstance(head, nn.Module):
            raise TypeError(f"head must be a torch.nn.Module, got {type(head).__name__}")
        _check_loss(loss)
        self.encoder = encoder
        self.head: Head = head
        self.loss = loss

    def forward(
        self,
        images: Float[Tensor, "samples ..."],
        labels: Integer[Tensor, "samples"] | MixedLabels,
    ) -> Float[Tensor, ""]:
        """Return the loss of a batch.

        Args:
            images: Batch of images, augmented and normalized.
            labels: Class index of each image, or the labels of mixed images.

        Returns:
            The loss, a scalar.
        """
        return self.loss(self.encoder(images), self.head, labels)

    def logits(self, images: Float[Tensor, "samples ..."]) -> Float[Tensor, "samples classes"]:
        """Return the logits of the head.

        Args:
            images: Batch of images, normalized.

        Returns:
            One logit per image and class.
        """
        return self.head(self.encoder(images))

    def gather_queue(self) -> dict[str, Tensor] | None:
        """Return the queue of recent features of all processes; every process must call it.

        Returns:
            The entries by name, of one process the tensors of the queue itself; None if the loss
            has no queue.
        """
        found = self._find_queue()
        return None if found is None else gather_queue(*found)

    def load_queue(self, state: Mapping[str, Tensor] | None) -> None:
        """Load the queue of any number of processes; every process must call it.

        Args:
            state: What :meth:`gather_queue` returned.

        Raises:
            ValueError: The loss has another queue.
        """
        found = self._find_queue()
        if (found is None) != (state is None):
            raise ValueError("the state must have a queue if and only if the loss has one")
        if found is not None and state is not None:
            queue, group = found
            load_queue(queue, state, group)

    def _find_queue(self) -> tuple[FeatureQueue, ProcessGroup | None] | None:
        """Return the queue of the loss, and the group over whose processes it is divided."""
        for part in self.modules():
            if isinstance(part, LossModule) and part.queue is not None:
                return part.queue, part.queue_group
        return None


def _check_loss(loss: Loss) -> None:
    expected = "loss must be called as loss(features, head, labels)"
    if not callable(loss):
        raise TypeError(f"{expected}, got {type(loss).__name__}")
    try:
        signature = inspect.signature(loss.forward if isinstance(loss, nn.Module) else loss)
    except ValueError:  # Not every function has a signature.
        return
    try:
        signature.bind(None, None, None)
    except TypeError:
        name = getattr(loss, "__name__", type(loss).__name__)
        required = [one.name for one in signature.parameters.values() if one.default is one.empty]
        raise TypeError(
            f"{expected}, got {name}({', '.join(required)}); a loss of logits can be wrapped: "
            "lambda features, head, labels: loss(head(features), labels)"
        ) from None
