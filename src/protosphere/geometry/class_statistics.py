"""Moments per class that add: counts, means and scatters over batches, workers and processes (Chan's formula)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Integer
from torch import Tensor

from protosphere.geometry.sphere import normalize

Space = Literal["sphere", "raw"]
Moments = Literal["sums", "pooled", "per_class"]

# Scatter matrices are symmetric, so only panels of rows up to the diagonal are kept: (1 + 128/d)/2 of the numbers.
_PANEL = 128
# Samples of a batch are laid out class by class with padding; so many bytes of it at a time.
_PADDED = 1 << 29


@dataclass(frozen=True)
class ClassStatistics:
    """What is known of each class: how many samples, where they are centered, how they spread.

    All in float64. The tensors are accumulators: :meth:`add` changes them in place.

    Attributes:
        counts: n_c.
        means: μ_c; zero for a class without samples.
        spreads: Σ_{i: y_i=c} ‖x_i − μ_c‖².
        within: Σ_i (x_i − μ_{y_i})(x_i − μ_{y_i})ᵀ, where asked for.
        panels: the same for each class, lower triangle in panels of rows, where asked for.
        resolution: the machine epsilon of the coarsest dtype that came in; rounding is not mistaken for spread.
        rejected: samples whose label is neither a class nor ``ignore_index``.
    """

    counts: Float[Tensor, "classes"]
    means: Float[Tensor, "classes dim"]
    spreads: Float[Tensor, "classes"]
    within: Float[Tensor, "dim dim"] | None
    panels: Sequence[Float[Tensor, "classes _ _"]] | None
    resolution: Float[Tensor, ""]
    rejected: Integer[Tensor, ""]

    @property
    def num_classes(self) -> int:
        """How many classes there are, with samples or without."""
        return self.means.shape[0]

    @property
    def dim(self) -> int:
        """The dimension of the features' space."""
        return self.means.shape[1]

    def variances(self) -> Float[Tensor, "classes"]:
        """tr Cov of each class, 1/n_c."""
        return self.spreads / self.counts.clamp(min=1)

    def collapsed(self) -> Bool[Tensor, "classes"]:
        """Where the spread of a class is within the rounding of the input: tr Cov ≤ 16 eps² times the mean of ‖x‖²."""
        variances = self.variances()
        return variances <= 16 * self.resolution**2 * (self.means.square().sum(1) + variances)

    def scatter(self) -> Float[Tensor, "dim dim"]:
        """The scatter within classes, pooled over all of them."""
        if self.within is not None:
            return self.within
        if self.panels is None:
            raise ValueError(
                "the pooled scatter must have been accumulated with moments='pooled' or 'per_class'"
            )
        return _assemble([panel.sum(0) for panel in self.panels], self.dim)

    def class_scatters(self) -> Iterator[Float[Tensor, "dim dim"]]:
        """The scatter of each class in turn; its lower triangle is what counts."""
        if self.panels is None:
            raise ValueError(
                "scatters of single classes must have been accumulated with moments='per_class'"
            )
        for index in range(self.num_classes):
            yield _assemble([panel[index] for panel in self.panels], self.dim)

    def add(
        self,
        features: Float[Tensor, "samples dim"],
        labels: Integer[Tensor, "samples"],
        *,
        space: Space = "sphere",
        ignore_index: int = -100,
    ) -> None:
        """Add a batch in place, without waiting for the device unless moments of single classes are kept.

        Args:
            features: one sample a row, of any floating dtype.
            labels: the class of each sample.
            space: ``"sphere"`` puts each sample on the unit sphere first; ``"raw"`` takes it as it is.
            ignore_index: samples with this label are passed over.

        Raises:
            ValueError: features and labels do not fit each other or the statistics.
        """
        check_batch(features, labels, self.dim)
        resolution = torch.finfo(features.dtype).eps
        self.resolution.clamp_(min=resolution)
        if not len(labels):
            return
        samples = features.detach().to(self.means)
        labels = (
            labels.long()
        )  # Narrower integers would wrap the numbers that they are compared with.
        if space == "sphere":
            lengths = torch.linalg.vector_norm(samples, dim=1, keepdim=True)
            samples = torch.where(torch.isinf(lengths), torch.nan, normalize(samples))
        kept = (labels >= 0) & (labels < self.num_classes) & (labels != ignore_index)
        self.rejected.add_((~kept & (labels != ignore_index)).sum())
        labels = torch.where(kept, labels, 0)

        counts = torch.zeros_like(self.counts).index_add_(0, labels, kept.to(self.counts))
        # Deviations are taken from the mean so far, or from the first sample of a class that is new: then samples
        # that are all the same deviate by exactly nothing, and a large common offset costs no digits.
        position = torch.arange(len(labels), device=labels.device)
        first = torch.full_like(self.counts, len(labels) - 1, dtype=torch.long)
        first.scatter_reduce_(0, labels, torch.where(kept, position, len(labels) - 1), "amin")
        known = (self.counts > 0)[:, None]
        origin = torch.where(known, self.means, samples[first])
        deviations = torch.where(kept[:, None], samples - origin[labels], 0)
        steps = (
            torch.zeros_like(self.means).index_add_(0, labels, deviations)
            / counts.clamp(min=1)[:, None]
        )
        deviations = torch.where(kept[:, None], deviations - steps[labels], 0)
        total = self.counts + counts
        # Chan: the scatter about the common mean gains n_a n_b/(n_a + n_b) δδᵀ, one more row δ of that weight squared.
        bridges = steps * (self.counts * counts / total.clamp(min=1)).sqrt()[:, None]

        self.spreads.index_add_(0, labels, deviations.square().sum(1)).add_(bridges.square().sum(1))
        if self.within is not None:
            self.within.addmm_(deviations.T, deviations).addmm_(bridges.T, bridges)
        if self.panels is not None:
            _add_to_panels(
                self.panels, torch.where(kept, labels, self.num_classes), deviations, bridges
            )
        moved = origin + steps * (counts / total.clamp(min=1))[:, None]
        self.means.copy_(torch.where((counts > 0)[:, None], moved, self.means))
        self.counts.copy_(total)

    def merge(self, other: "ClassStatistics") -> None:
        """Add the statistics of other samples of the same classes, in place.

        Raises:
            ValueError: the two are of other classes, dimensions or moments.
        """
        if self.means.shape != other.means.shape or self._moments() != other._moments():
            raise ValueError(
                "statistics that are merged must have the same classes, dimensions and moments; "
                f"got {self._moments()} of {tuple(self.means.shape)} and "
                f"{other._moments()} of {tuple(other.means.shape)}"
            )
        total = self.counts + other.counts
        means = (
            self.means + (other.means - self.means) * (other.counts / total.clamp(min=1))[:, None]
        )
        means = torch.where((self.counts > 0)[:, None], means, other.means)
        self.recenter(means)
        self._add_rows(other._shifts(means))
        self.spreads.add_(other.spreads)
        if self.within is not None and other.within is not None:
            self.within.add_(other.within)
        if self.panels is not None and other.panels is not None:
            for mine, theirs in zip(self.panels, other.panels, strict=True):
                mine.add_(theirs)
        self.counts.copy_(total)
        self.resolution.copy_(torch.maximum(self.resolution, other.resolution))
        self.rejected.add_(other.rejected)

    def recenter(self, means: Float[Tensor, "classes dim"]) -> None:
        """Take all scatters about these points instead of the means, in place.

        Statistics that are centered alike merge by summing counts, spreads and scatters.
        """
        self._add_rows(self._shifts(means))
        self.means.copy_(means)

    def _moments(self) -> Moments:
        return (
            "per_class" if self.panels is not None else "sums" if self.within is None else "pooled"
        )

    def _shifts(self, means: Tensor) -> Tensor:
        """√n_c (μ_c − m_c): the one row a class that moves its scatter from its mean to another point."""
        return (
            torch.where((self.counts > 0)[:, None], self.means - means, 0)
            * self.counts.sqrt()[:, None]
        )

    def _add_rows(self, rows: Tensor) -> None:
        """Add r_c r_cᵀ to the scatter of each class."""
        self.spreads.add_(rows.square().sum(1))
        if self.within is not None:
            self.within.addmm_(rows.T, rows)
        if self.panels is not None:
            _add_to_panels(self.panels, rows.new_full((0,), 0, dtype=torch.long), rows[:0], rows)


def empty_statistics(
    num_classes: int,
    dim: int,
    *,
    moments: Moments = "sums",
    device: torch.device | str | None = None,
) -> ClassStatistics:
    """Statistics of no samples yet.

    Args:
        num_classes: K.
        dim: d.
        moments: ``"sums"`` keeps K·d numbers, ``"pooled"`` adds a d × d scatter of all classes together,
            ``"per_class"`` keeps one for each class (:func:`panel_bytes` says how much that is).
        device: where to accumulate; it must have float64.

    >>> statistics = empty_statistics(2, 3)
    >>> statistics.add(torch.tensor([[2.0, 0.0, 0.0], [0.0, 3.0, 0.0]]), torch.tensor([1, 1]))
    >>> statistics.counts, statistics.means[1]
    (tensor([0., 2.], dtype=torch.float64), tensor([0.5000, 0.5000, 0.0000], dtype=torch.float64))
    """

    def zeros(*shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.float64, device=device)

    return ClassStatistics(
        counts=zeros(num_classes),
        means=zeros(num_classes, dim),
        spreads=zeros(num_classes),
        within=zeros(dim, dim) if moments == "pooled" else None,
        panels=empty_panels(num_classes, dim, device=device) if moments == "per_class" else None,
        resolution=zeros(),
        rejected=torch.zeros((), dtype=torch.long, device=device),
    )


def empty_panels(
    num_classes: int, dim: int, *, device: torch.device | str | None = None
) -> list[Tensor]:
    """Room for the lower triangle of one d × d scatter a class."""
    return [
        torch.zeros(
            num_classes,
            min(_PANEL, dim - top),
            min(top + _PANEL, dim),
            dtype=torch.float64,
            device=device,
        )
        for top in range(0, dim, _PANEL)
    ]


def panel_bytes(num_classes: int, dim: int) -> int:
    """The memory that the scatters of single classes take.

    >>> round(panel_bytes(1000, 2048) / 2**30, 1)
    16.6
    """
    rows = (min(_PANEL, dim - top) * min(top + _PANEL, dim) for top in range(0, dim, _PANEL))
    return 8 * num_classes * sum(rows)


def check_batch(features: Tensor, labels: Tensor, dim: int) -> None:
    """Raise ValueError unless these are samples of this dimension with a label each."""
    if features.ndim != 2 or features.shape[1] != dim or not features.is_floating_point():
        raise ValueError(
            f"features must be a floating matrix (samples, {dim}); got {tuple(features.shape)} of {features.dtype}"
        )
    if (
        labels.shape != features.shape[:1]
        or labels.is_floating_point()
        or labels.dtype == torch.bool
    ):
        raise ValueError(
            f"labels must hold one class index per sample, shape ({len(features)},); "
            f"got {tuple(labels.shape)} of {labels.dtype}"
        )


def _assemble(panels: Sequence[Tensor], dim: int) -> Tensor:
    """The whole symmetric matrix from its panels."""
    matrix = panels[0].new_zeros(dim, dim)
    for index, panel in enumerate(panels):
        top = index * _PANEL
        matrix[top : top + panel.shape[0], : panel.shape[1]] = panel
        matrix[: panel.shape[1], top : top + panel.shape[0]] = panel.T
    return matrix


def _add_to_panels(
    panels: Sequence[Tensor], labels: Tensor, deviations: Tensor, bridges: Tensor
) -> None:
    """Add dᵀd over the deviations of each class, and r rᵀ of its row of ``bridges``, to the classes' scatters.

    Samples are laid out class by class, padded to the largest class among those served by one batched product.
    Labels past the last class are left out.
    """
    classes, dim = bridges.shape
    order = labels.argsort(stable=True)
    counts = torch.bincount(labels, minlength=classes + 1)[:classes].cpu()
    starts = counts.cumsum(0) - counts
    present = torch.nonzero((counts > 0) | (bridges != 0).any(1).cpu()).squeeze(1)
    present = present[counts[present].argsort(descending=True, stable=True)]
    while len(present):
        rows = int(counts[present[0]])
        taken = max(1, _PADDED // (8 * dim * (rows + 1)))
        chosen, present = present[:taken].sort().values, present[taken:]
        slots = torch.arange(rows)
        filled = slots < counts[chosen][:, None]
        where = torch.where(filled, slots + starts[chosen][:, None], 0).to(bridges.device)
        padded = bridges.new_zeros(len(chosen), rows + 1, dim)
        padded[:, -1] = bridges[chosen.to(bridges.device)]
        if rows:
            padded[:, :-1] = torch.where(
                filled.to(bridges.device)[..., None], deviations[order[where]], 0
            )
        _add_products(panels, chosen, padded)


def _add_products(panels: Sequence[Tensor], chosen: Tensor, rows: Tensor) -> None:
    """Add rowsᵀ rows of each chosen class to its panels."""
    for index, panel in enumerate(panels):
        left = rows[:, :, index * _PANEL : index * _PANEL + panel.shape[1]].mT
        right = rows[:, :, : panel.shape[2]]
        if len(chosen) == panel.shape[0]:
            panel.baddbmm_(left, right)
            continue
        # The products of all chosen classes at once could be as large as the panels themselves.
        step = max(1, _PADDED // (8 * panel[0].numel()))
        for begin in range(0, len(chosen), step):
            part = slice(begin, begin + step)
            panel.index_add_(0, chosen[part].to(panel.device), left[part] @ right[part])
