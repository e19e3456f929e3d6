"""Class means or prototypes as a frame: centered, with lengths and angles; and what to say where there are none."""

from collections.abc import Sequence
from functools import cached_property

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from protosphere.geometry.sphere import normalize


class UndefinedMetricError(ValueError):
    """A metric has no value on these samples; the sentence says why."""


def named(classes: Bool[Tensor, "classes"], what: str = "") -> str:
    """The classes where this holds, as the subject of an error: at most five of them by number.

    >>> named(torch.tensor([False, True, False, True]), "has none")
    'classes 1 and 3 have none'
    """
    indices = torch.nonzero(classes).flatten().tolist()
    return name_classes(indices[:5], len(indices), what)


def name_classes(indices: Sequence[int], count: int, what: str = "") -> str:
    """The same from the first few class indices, and how many there are in all."""
    if count == 1:
        return f"class {indices[0]} {what}".rstrip()
    words = ", ".join(map(str, indices[:5]))
    if count <= 5:
        words = f"{', '.join(map(str, indices[:-1]))} and {indices[-1]}"
    elif count > 5:
        words += f" and {count - 5} more"
    plural = {"has": "have", "is": "are", "does": "do"}
    verb, _, rest = what.partition(" ")
    return f"classes {words} {plural.get(verb, verb)} {rest}".rstrip()


# What sums of many numbers lose in float64, as a share of the largest.
_ROUNDING = 64 * torch.finfo(torch.float64).eps


class Frame:
    """K vectors about their own mean.

    Args:
        vectors: one a row, in float64.
        what: what they are, for errors: "class means" or "prototypes".
        resolution: the machine epsilon of the input, below which a covariance counts as zero.
        scale: the mean squared length of what they were made from, which rounding is measured by; without it their own.
    """

    def __init__(
        self,
        vectors: Float[Tensor, "classes dim"],
        what: str,
        resolution: Float[Tensor, ""],
        scale: Float[Tensor, ""] | None = None,
    ) -> None:
        self.vectors = vectors
        self.what = what
        self._resolution = resolution
        self.scale = vectors.square().sum(1).mean() if scale is None else scale

    def __len__(self) -> int:
        return len(self.vectors)

    @cached_property
    def centered(self) -> Float[Tensor, "classes dim"]:
        """v_c − mean of all."""
        # Twice, because the rounding of a large common offset stays in the first difference.
        centered = self.vectors - self.vectors.mean(0)
        return centered - centered.mean(0)

    @cached_property
    def lengths(self) -> Float[Tensor, "classes"]:
        """The lengths of the centered vectors."""
        lengths: Tensor = torch.linalg.vector_norm(self.centered, dim=1)
        return lengths

    @cached_property
    def least(self) -> Float[Tensor, ""]:
        """The squared length below which a difference of two of the vectors is rounding."""
        return _ROUNDING**2 * self.scale

    @property
    def variance(self) -> Float[Tensor, ""]:
        """tr Cov of the vectors, 1/K.

        Raises:
            UndefinedMetricError: they coincide.
        """
        variance = self.lengths.square().mean()
        if not bool(variance > self.least):
            raise UndefinedMetricError(f"{self.what} must differ; they coincide")
        return variance

    @property
    def collapsed(self) -> bool:
        """Whether their covariance is within the rounding of the input: tr Cov ≤ 16 eps² times the mean of ‖v‖²."""
        return bool(self.lengths.square().mean() <= 16 * self._resolution**2 * self.scale)

    @cached_property
    def unit(self) -> Float[Tensor, "classes dim"]:
        """The centered vectors on the unit sphere."""
        lost = self.lengths.square() <= self.least
        if bool(lost.any()):
            raise UndefinedMetricError(
                f"{self.what} must differ from the mean of all; that of {named(lost, 'does not')}"
            )
        return normalize(self.centered)

    @cached_property
    def gram(self) -> Float[Tensor, "classes classes"]:
        """Inner products of the centered vectors."""
        return self.centered @ self.centered.T

    @cached_property
    def cosines(self) -> Float[Tensor, "classes classes"]:
        """Cosines between the centered vectors."""
        return self.unit @ self.unit.T

    @cached_property
    def pairs(self) -> Float[Tensor, "pairs"]:
        """The cosines of all pairs of different vectors, each once."""
        rows, columns = torch.triu_indices(len(self), len(self), 1, device=self.vectors.device)
        return self.cosines[rows, columns]
