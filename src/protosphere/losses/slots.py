"""The classes of a batch as a fixed number of columns: all K of them or, with K > M, one slot per class present."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from protosphere.losses.targets import Samples


class ClassSlots(NamedTuple):
    """Where each sample's class stands among the columns.

    Attributes:
        of_samples: the column of each sample's class.
        classes: the class of each column; None where column c is class c. Columns left over name class 0.
        number: how many columns there are; it follows from shapes alone.
    """

    of_samples: Int[Tensor, "samples"]
    classes: Int[Tensor, "slots"] | None
    number: int

    def pick(self, prototypes: Float[Tensor, "classes dim"]) -> Float[Tensor, "slots dim"]:
        """The prototype of each column."""
        return prototypes if self.classes is None else prototypes.index_select(0, self.classes)

    def sizes(self, samples: Samples, dtype: torch.dtype) -> Float[Tensor, "slots"]:
        """How many kept samples each column has."""
        zeros = torch.zeros(self.number, dtype=dtype, device=self.of_samples.device)
        return zeros.scatter_add(0, self.of_samples, samples.kept.to(dtype))

    def logsumexp(self, values: Float[Tensor, "samples"]) -> Float[Tensor, "samples"]:
        """For each sample, log Σ exp of the values in its column; every sample's own value is finite."""
        largest = values.detach().new_full((self.number,), -torch.inf)
        largest = largest.scatter_reduce(0, self.of_samples, values.detach(), "amax")[
            self.of_samples
        ]
        sums = values.new_zeros(self.number).scatter_add(
            0, self.of_samples, (values - largest).exp()
        )
        return sums[self.of_samples].log() + largest


def class_slots(samples: Samples) -> ClassSlots:
    """Give every class of the batch a column, without a shape that depends on values.

    With K ≤ M the K classes are the columns. Otherwise there are M, filled by a sort: equal labels come to lie side
    by side, and the running number of changes is the column.
    """
    number = len(samples.labels)
    if samples.num_classes is not None and samples.num_classes <= number:
        return ClassSlots(samples.labels, None, samples.num_classes)
    beyond = torch.iinfo(torch.int64).max
    ordered, order = samples.labels.masked_fill(~samples.kept, beyond).sort()
    changes = torch.ones_like(ordered)
    changes[:1] = 0
    changes[1:] = ordered[1:] != ordered[:-1]
    column = changes.cumsum(0)
    classes = torch.zeros_like(ordered).scatter(
        0, column, ordered.masked_fill(ordered == beyond, 0)
    )
    return ClassSlots(torch.empty_like(order).scatter(0, order, column), classes, number)
