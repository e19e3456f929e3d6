"""Class means or prototypes as a frame: centred, with lengths and angles; and what to say where there are none."""

from collections.abc import Sequence
from functools import cached_property

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from protosphere.geometry.sphere import normalise


class UndefinedMetricError(ValueError):
    """A metric has no value on these samples; the sentence says why."""


def named(classes: Bool[Tensor, "classes"]) -> str:
    """The classes where this holds, as words for an error: at most five of them by number.

    >>> named(torch.tensor([False, True, False, True]))
    'classes 1 and 3'
    """
    return name_classes(torch.nonzero(classes).flatten().tolist())


def name_classes(indices: Sequence[int]) -> str:
    """The same from a list of class indices."""
    if len(indices) == 1:
        return f"class {indices[0]}"
    if len(indices) <= 5:
        return f"classes {', '.join(map(str, indices[:-1]))} and {indices[-1]}"
    return f"classes {', '.join(map(str, indices[:5]))} and {len(indices) - 5} more"


class Frame:
    """K vectors about their own mean.

    Args:
        vectors: one a row, in float64.
        what: what they are, for errors: "class mean" or "prototype".
        resolution: the machine epsilon of the input; a vector that ends within rounding of the mean of all has no
            direction, and angles to it are undefined.
    """

    def __init__(self, vectors: Float[Tensor, "classes dim"], what: str, resolution: Float[Tensor, ""]) -> None:
        self.vectors = vectors
        self.what = what
        self._resolution = resolution

    def __len__(self) -> int:
        return len(self.vectors)

    @cached_property
    def centred(self) -> Float[Tensor, "classes dim"]:
        """v_c − mean of all."""
        # Twice, because the rounding of a large common offset stays in the first difference.
        centred = self.vectors - self.vectors.mean(0)
        return centred - centred.mean(0)

    @cached_property
    def lengths(self) -> Float[Tensor, "classes"]:
        """The lengths of the centred vectors."""
        lengths: Tensor = torch.linalg.vector_norm(self.centred, dim=1)
        return lengths

    @cached_property
    def scale(self) -> Float[Tensor, ""]:
        """The mean squared length of the vectors as they came: what rounding is measured by."""
        return self.vectors.square().sum(1).mean()

    @property
    def variance(self) -> Float[Tensor, ""]:
        """tr Cov of the vectors, 1/K; exactly 0 where it is within the rounding of the input."""
        variance = self.lengths.square().mean()
        return torch.where(variance <= self._resolution**2 * self.scale, 0, variance)

    @cached_property
    def unit(self) -> Float[Tensor, "classes dim"]:
        """The centred vectors on the unit sphere."""
        lost = self.lengths.square() <= self._resolution**2 * self.scale
        if bool(lost.any()):
            raise UndefinedMetricError(
                f"the {self.what} of {named(lost)} must differ from the mean of all; it does not"
            )
        return normalise(self.centred)

    @cached_property
    def gram(self) -> Float[Tensor, "classes classes"]:
        """Inner products of the centred vectors."""
        return self.centred @ self.centred.T

    @cached_property
    def cosines(self) -> Float[Tensor, "classes classes"]:
        """Cosines between the centred vectors."""
        return self.unit @ self.unit.T

    @cached_property
    def pairs(self) -> Float[Tensor, "pairs"]:
        """The cosines of all pairs of different vectors, each once."""
        rows, columns = torch.triu_indices(len(self), len(self), 1, device=self.vectors.device)
        return self.cosines[rows, columns]
