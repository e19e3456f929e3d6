"""``CenteredVectors``: K class means or prototypes minus their mean, with norms and angles."""

from collections.abc import Sequence
from functools import cached_property

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from protosphere.geometry.sphere import normalize

# Relative error of long float64 sums.
_ROUNDING = 64 * torch.finfo(torch.float64).eps
_MAX_LISTED = 5


class UndefinedMetricError(ValueError):
    """Raised by a metric that has no value for the given samples; the message says why."""


class CenteredVectors:
    """K vectors and their deviations from their common mean.

    Args:
        vectors: One vector per row, in float64.
        name: What the vectors are, for error messages: "class means" or "prototypes".
        input_eps: Machine epsilon of the input; a covariance within its rounding counts as zero.
        scale: Mean squared norm of the data that the vectors were computed from, which rounding
            errors are relative to. By default the mean squared norm of the vectors.
    """

    def __init__(
        self,
        vectors: Float[Tensor, "classes dim"],
        name: str,
        input_eps: Float[Tensor, ""],
        scale: Float[Tensor, ""] | None = None,
    ) -> None:
        self.vectors = vectors
        self.name = name
        self.input_eps = input_eps
        self.scale = vectors.square().sum(1).mean() if scale is None else scale

    def __len__(self) -> int:
        return len(self.vectors)

    @cached_property
    def centered(self) -> Float[Tensor, "classes dim"]:
        """Vectors minus their mean."""
        # Twice, because the first difference keeps the rounding error of a large common offset.
        centered = self.vectors - self.vectors.mean(0)
        return centered - centered.mean(0)

    @cached_property
    def norms(self) -> Float[Tensor, "classes"]:
        """Norms of the centered vectors."""
        norms: Tensor = torch.linalg.vector_norm(self.centered, dim=1)
        return norms

    @cached_property
    def min_squared_distance(self) -> Float[Tensor, ""]:
        """Squared distance of two vectors up to which they are equal within rounding."""
        return _ROUNDING**2 * self.scale

    @property
    def variance(self) -> Float[Tensor, ""]:
        """Total variance tr Cov of the vectors, normalized by K.

        Raises:
            UndefinedMetricError: The vectors coincide.
        """
        variance = self.norms.square().mean()
        if not bool(variance > self.min_squared_distance):
            raise UndefinedMetricError(f"all {self.name} coincide")
        return variance

    def check_distinct(self) -> None:
        """Raise :class:`UndefinedMetricError` if all vectors coincide."""
        _ = self.variance

    @property
    def collapsed(self) -> bool:
        """Whether the covariance is within input rounding: tr Cov ≤ 16 eps² mean‖v‖²."""
        return bool(self.norms.square().mean() <= 16 * self.input_eps**2 * self.scale)

    @cached_property
    def unit(self) -> Float[Tensor, "classes dim"]:
        """Directions of the centered vectors.

        Raises:
            UndefinedMetricError: A vector equals the mean of all.
        """
        zero = self.norms.square() <= self.min_squared_distance
        if bool(zero.any()):
            raise UndefinedMetricError(
                f"centered {self.name} must be nonzero; {list_classes(zero, 'is zero')}"
            )
        return normalize(self.centered)

    @cached_property
    def directions(self) -> Float[Tensor, "classes dim"]:
        """Directions of the vectors themselves, not centered.

        Raises:
            UndefinedMetricError: A vector is zero.
        """
        norms = torch.linalg.vector_norm(self.vectors, dim=1, keepdim=True)
        zero = (norms == 0).flatten()
        if bool(zero.any()):
            raise UndefinedMetricError(
                f"{self.name} must be nonzero; {list_classes(zero, 'is zero')}"
            )
        directions: Tensor = self.vectors / norms
        return directions

    @cached_property
    def gram(self) -> Float[Tensor, "classes classes"]:
        """Inner products of the centered vectors."""
        return self.centered @ self.centered.T

    @cached_property
    def cosines(self) -> Float[Tensor, "classes classes"]:
        """Cosines of the centered vectors."""
        return self.unit @ self.unit.T

    @cached_property
    def pairwise_cosines(self) -> Float[Tensor, "pairs"]:
        """Cosines of all pairs of different centered vectors, each pair once."""
        rows, columns = torch.triu_indices(len(self), len(self), 1, device=self.vectors.device)
        return self.cosines[rows, columns]


def list_classes(mask: Bool[Tensor, "classes"], predicate: str = "") -> str:
    """Return a clause about the selected classes, at most five of them by index.

    Args:
        mask: Which classes the clause is about.
        predicate: Rest of the clause, starting with "has" or "is".

    >>> list_classes(torch.tensor([False, True, False, True]), "has none")
    'classes 1 and 3 have none'
    """
    indices = torch.nonzero(mask).flatten().tolist()
    return list_indices(indices[:_MAX_LISTED], len(indices), predicate)


def list_indices(indices: Sequence[int], count: int, predicate: str = "") -> str:
    """:func:`list_classes` from the first few class indices and the number of all of them.

    >>> list_indices([0, 1, 2, 3, 4], 12, "has none")
    'classes 0, 1, 2, 3, 4 and 7 more have none'
    """
    if count == 1:
        return f"class {indices[0]} {predicate}".rstrip()
    if count <= _MAX_LISTED:
        listed = f"{', '.join(map(str, indices[:-1]))} and {indices[-1]}"
    else:
        listed = f"{', '.join(map(str, indices[:_MAX_LISTED]))} and {count - _MAX_LISTED} more"
    plural = {"has": "have", "is": "are"}
    verb, _, rest = predicate.partition(" ")
    return f"classes {listed} {plural.get(verb, verb)} {rest}".rstrip()
