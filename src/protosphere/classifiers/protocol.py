"""What a classification head offers to losses, training and evaluation."""

from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Int
from torch import Tensor

if TYPE_CHECKING:
    from abc import ABCMeta as _ProtocolType
else:
    _ProtocolType = type(Protocol)


class _ModuleProtocol(_ProtocolType):
    """Protocols that parameters and buffers of a module can satisfy.

    A module finds its parameters and buffers in ``__getattr__``. From Python 3.12 on,
    ``isinstance`` with an ordinary protocol does not call it and would miss them.
    """

    def __instancecheck__(self, instance: object) -> bool:
        members = {
            name
            for base in self.__mro__
            if getattr(base, "_is_protocol", False)
            for name in vars(base)
            if name == "__call__" or not name.startswith("_")
        }
        # The type first, so that properties are not evaluated.
        return all(hasattr(type(instance), name) or hasattr(instance, name) for name in members)


@runtime_checkable
class Head(Protocol, metaclass=_ModuleProtocol):
    """A classification head: one prototype per class, logits and predictions.

    Heads are ``nn.Module`` objects; ``isinstance(head, Head)`` compares the names of the members.

    >>> from torch import nn
    >>> from protosphere.classifiers import CosineClassifier
    >>> isinstance(CosineClassifier(8, 3), Head), isinstance(nn.Linear(8, 3), Head)
    (True, False)
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
class FittedHead(Head, Protocol):
    """A head whose prototypes are computed from data instead of trained.

    >>> from protosphere.classifiers import CosineClassifier, MeanClassifier
    >>> isinstance(MeanClassifier(8, 3), FittedHead), isinstance(CosineClassifier(8, 3), FittedHead)
    (True, False)
    """

    @property
    def is_fitted(self) -> bool:
        """Whether the head has prototypes."""
        ...

    def set_means(self, means: Float[Tensor, "classes dim"] | np.ndarray) -> None:
        """Use class means as prototypes.

        Args:
            means: Mean of each class; a row of NaN for a class without samples.
        """
        ...

    def reset(self) -> None:
        """Discard the prototypes."""
        ...
