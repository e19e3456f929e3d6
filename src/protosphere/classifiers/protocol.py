"""What a classification head offers to losses, training and evaluation."""

from typing import Protocol, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor


class Head(Protocol):
    """A classification head: one prototype per class, logits and predictions.

    Heads are ``nn.Module`` objects. The attributes of a module's parameters and buffers are not
    visible to ``isinstance`` in every version of Python, so this protocol is for type checkers
    only; :class:`FittedHead` can be tested with ``isinstance``.
    """

    @property
    def prototypes(self) -> Float[Tensor, "classes dim"]:
        """The weight vector of each class."""
        ...

    @property
    def bias(self) -> Float[Tensor, "classes"] | None:
        """The bias of each class, or None for a head without biases."""
        ...

    def __call__(self, features: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch classes"]:
        """Return the logits."""
        ...

    def predict(self, features: Float[Tensor, "*batch dim"]) -> Int[Tensor, "*batch"]:
        """Return the index of the class with the largest logit."""
        ...


@runtime_checkable
class FittedHead(Protocol):
    """A head whose prototypes are computed from data instead of trained.

    Every fitted head is also a :class:`Head`. ``isinstance(head, FittedHead)`` tells the two kinds
    apart.
    """

    @property
    def is_fitted(self) -> bool:
        """Whether the head has prototypes."""
        ...

    def set_means(self, means: Float[Tensor, "classes dim"]) -> None:
        """Use class means as prototypes.

        Args:
            means: Mean of each class; a row of NaN for a class without samples.
        """
        ...

    def reset(self) -> None:
        """Discard the prototypes."""
        ...
