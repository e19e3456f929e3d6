"""Per-class counts, means and scatters that can be updated by batches and merged (Chan et al.)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from jaxtyping import Bool, Float, Integer
from torch import Tensor

from protosphere.geometry.checks import check_features, check_labels
from protosphere.geometry.scatter_tiles import add_scatter, assemble, empty_tiles
from protosphere.geometry.sphere import normalize

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

Space = Literal["sphere", "raw"]
Moments = Literal["sums", "pooled", "per_class"]


@dataclass(frozen=True)
class ClassStatistics:
    """First and second moments of the features of each class, in float64.

    The tensors are accumulators: :meth:`add`, :meth:`merge` and :meth:`recenter` change them in
    place. Create empty ones with :func:`empty_statistics`.

    Attributes:
        counts: Number of samples of each class, n_c.
        means: Class means μ_c; zero for a class without samples.
        sum_sq_dev: Sum of squared deviations Σ_{i: y_i=c} ‖x_i − μ_c‖² of each class.
        within: Pooled within-class scatter Σ_i (x_i − μ_{y_i})(x_i − μ_{y_i})ᵀ, or None if it is
            not accumulated.
        scatter_tiles: Scatter matrix of each class as tiles of its lower triangle, or None if
            they are not accumulated.
        input_eps: Machine epsilon of the coarsest input dtype so far. A variance within the
            rounding of the input counts as zero.
        rejected: Number of samples whose label is neither a class index nor ``ignore_index``.
    """

    counts: Float[Tensor, "classes"]
    means: Float[Tensor, "classes dim"]
    sum_sq_dev: Float[Tensor, "classes"]
    within: Float[Tensor, "dim dim"] | None
    scatter_tiles: Sequence[Float[Tensor, "classes _ _"]] | None
    input_eps: Float[Tensor, ""]
    rejected: Integer[Tensor, ""]

    @property
    def num_classes(self) -> int:
        """Number of classes, including those without samples."""
        return self.means.shape[0]

    @property
    def dim(self) -> int:
        """Dimension of the features."""
        return self.means.shape[1]

    def variances(self) -> Float[Tensor, "classes"]:
        """Return the total variance tr Cov of each class, normalized by n_c."""
        return self.sum_sq_dev / self.counts.clamp(min=1)

    def collapsed(self) -> Bool[Tensor, "classes"]:
        """Return which classes have a variance within input rounding: tr Cov ≤ 16 eps² mean‖x‖²."""
        variances = self.variances()
        return variances <= 16 * self.input_eps**2 * (self.means.square().sum(1) + variances)

    def scatter(self) -> Float[Tensor, "dim dim"]:
        """Return the within-class scatter pooled over all classes.

        Raises:
            ValueError: The statistics were accumulated with ``moments="sums"``.
        """
        if self.within is not None:
            return self.within
        if self.scatter_tiles is None:
            raise ValueError(
                "the pooled scatter must be accumulated with moments='pooled' or 'per_class'"
            )
        return assemble([tile.sum(0) for tile in self.scatter_tiles], self.dim)

    def class_scatters(self) -> Iterator[Float[Tensor, "dim dim"]]:
        """Yield the scatter matrix of each class.

        Raises:
            ValueError: The statistics were not accumulated with ``moments="per_class"``.
        """
        if self.scatter_tiles is None:
            raise ValueError("class scatters must be accumulated with moments='per_class'")
        for index in range(self.num_classes):
            yield assemble([tile[index] for tile in self.scatter_tiles], self.dim)

    def add(
        self,
        features: Float[Tensor, "samples dim"],
        labels: Integer[Tensor, "samples"],
        *,
        space: Space = "sphere",
        ignore_index: int = -100,
    ) -> None:
        """Update the statistics with one batch, in place.

        Does not synchronize with the device unless class scatters are accumulated.

        Args:
            features: One sample per row, in any floating-point dtype.
            labels: Class index of each sample.
            space: ``"sphere"`` normalizes each sample first; ``"raw"`` uses it unchanged.
            ignore_index: Samples with this label are ignored.

        Raises:
            ValueError: Shapes or dtypes do not match.
        """
        check_features(features, dim=self.dim)
        check_labels(labels, len(features))
        self.input_eps.clamp_(min=torch.finfo(features.dtype).eps)
        if not len(labels):
            return
        samples = features.detach().to(self.means)
        # Narrow integer types would overflow in the comparisons below.
        labels = labels.long()
        if space == "sphere":
            norms = torch.linalg.vector_norm(samples, dim=1, keepdim=True)
            samples = torch.where(torch.isinf(norms), torch.nan, normalize(samples))
        kept = (labels >= 0) & (labels < self.num_classes) & (labels != ignore_index)
        self.rejected.add_((~kept & (labels != ignore_index)).sum())
        labels = torch.where(kept, labels, 0)

        counts = torch.zeros_like(self.counts).index_add_(0, labels, kept.to(self.counts))
        # Deviations are taken from the current mean, or from the first sample of a new class:
        # identical samples then deviate by exactly zero, and a large offset costs no precision.
        last = len(labels) - 1
        positions = torch.arange(len(labels), device=labels.device)
        first = torch.full_like(self.counts, last, dtype=torch.long)
        first.scatter_reduce_(0, labels, torch.where(kept, positions, last), "amin")
        origins = torch.where((self.counts > 0)[:, None], self.means, samples[first])
        deviations = torch.where(kept[:, None], samples - origins[labels], 0)
        offset_sums = torch.zeros_like(self.means).index_add_(0, labels, deviations)
        offsets = offset_sums / counts.clamp(min=1)[:, None]
        deviations = torch.where(kept[:, None], deviations - offsets[labels], 0)
        total = self.counts + counts
        # Chan: the scatter about the common mean gains n_a n_b/(n_a + n_b) δδᵀ, which is the
        # scatter of one additional row per class.
        mean_shifts = offsets * (self.counts * counts / total.clamp(min=1)).sqrt()[:, None]

        self.sum_sq_dev.index_add_(0, labels, deviations.square().sum(1))
        self.sum_sq_dev.add_(mean_shifts.square().sum(1))
        if self.within is not None:
            self.within.addmm_(deviations.T, deviations).addmm_(mean_shifts.T, mean_shifts)
        if self.scatter_tiles is not None:
            tile_labels = torch.where(kept, labels, self.num_classes)
            add_scatter(self.scatter_tiles, tile_labels, deviations, mean_shifts)
        means = origins + offsets * (counts / total.clamp(min=1))[:, None]
        self.means.copy_(torch.where((counts > 0)[:, None], means, self.means))
        self.counts.copy_(total)

    def merge(self, other: "ClassStatistics") -> None:
        """Add the statistics of other samples of the same classes, in place.

        Args:
            other: Statistics with the same classes, dimension and moments; left unchanged.

        Raises:
            ValueError: The two have different classes, dimensions or moments.
        """
        if self.means.shape != other.means.shape or self._moments() != other._moments():
            raise ValueError(
                "merged statistics must have the same classes, dimension and moments, "
                f"got {self._moments()} of shape {tuple(self.means.shape)} and "
                f"{other._moments()} of shape {tuple(other.means.shape)}"
            )
        total = self.counts + other.counts
        weights = (other.counts / total.clamp(min=1))[:, None]
        means = self.means + (other.means - self.means) * weights
        means = torch.where((self.counts > 0)[:, None], means, other.means)
        self.recenter(means)
        self._add_mean_shifts(other._mean_shifts(means))
        self.sum_sq_dev.add_(other.sum_sq_dev)
        if self.within is not None and other.within is not None:
            self.within.add_(other.within)
        if self.scatter_tiles is not None and other.scatter_tiles is not None:
            for own_tile, other_tile in zip(self.scatter_tiles, other.scatter_tiles, strict=True):
                own_tile.add_(other_tile)
        self.counts.copy_(total)
        self.input_eps.copy_(torch.maximum(self.input_eps, other.input_eps))
        self.rejected.add_(other.rejected)

    def recenter(self, means: Float[Tensor, "classes dim"]) -> None:
        """Move the reference points of all scatters from the current means to the given ones.

        Statistics with the same reference points merge by summing counts and scatters, which is
        how they are reduced over processes.

        Args:
            means: New reference points, stored as ``means``.
        """
        self._add_mean_shifts(self._mean_shifts(means))
        self.means.copy_(means)

    def all_reduce(self, group: "ProcessGroup | None" = None) -> None:
        """Replace the statistics by those of the samples of all ranks; every rank must call it.

        Scatters are summed about common means, in place.

        Args:
            group: Process group; the default group if not given.
        """
        from torch.distributed import ReduceOp, all_reduce  # noqa: PLC0415

        counts, sums = self.counts.clone(), self.means * self.counts[:, None]
        all_reduce(counts, group=group)
        all_reduce(sums, group=group)
        self.recenter(sums / counts.clamp(min=1)[:, None])
        self.counts.copy_(counts)
        for tensor in (self.sum_sq_dev, self.within, self.rejected, *(self.scatter_tiles or ())):
            if tensor is not None:
                all_reduce(tensor, group=group)
        all_reduce(self.input_eps, op=ReduceOp.MAX, group=group)

    def select(self, classes: Integer[Tensor, "selected"]) -> "ClassStatistics":
        """Return the statistics of some classes; all others must be without samples.

        Args:
            classes: Indices of the classes to keep.
        """
        tiles = self.scatter_tiles
        return ClassStatistics(
            counts=self.counts[classes],
            means=self.means[classes],
            sum_sq_dev=self.sum_sq_dev[classes],
            within=self.within,
            scatter_tiles=None if tiles is None else [tile[classes] for tile in tiles],
            input_eps=self.input_eps,
            rejected=self.rejected,
        )

    def _moments(self) -> Moments:
        if self.scatter_tiles is not None:
            return "per_class"
        return "sums" if self.within is None else "pooled"

    def _mean_shifts(self, means: Tensor) -> Tensor:
        """√n_c (μ_c − m_c): the row per class that moves its scatter from its mean to m_c."""
        differences = torch.where((self.counts > 0)[:, None], self.means - means, 0)
        return differences * self.counts.sqrt()[:, None]

    def _add_mean_shifts(self, mean_shifts: Tensor) -> None:
        """Add s_c s_cᵀ to the scatter of each class."""
        self.sum_sq_dev.add_(mean_shifts.square().sum(1))
        if self.within is not None:
            self.within.addmm_(mean_shifts.T, mean_shifts)
        if self.scatter_tiles is not None:
            no_labels = torch.empty(0, dtype=torch.long, device=mean_shifts.device)
            add_scatter(self.scatter_tiles, no_labels, mean_shifts[:0], mean_shifts)


def empty_statistics(
    num_classes: int,
    dim: int,
    *,
    moments: Moments = "sums",
    device: torch.device | str | None = None,
) -> ClassStatistics:
    """Return statistics of zero samples.

    Args:
        num_classes: Number of classes K.
        dim: Dimension d of the features.
        moments: ``"sums"`` keeps K·d numbers, ``"pooled"`` adds one d × d within-class scatter,
            ``"per_class"`` keeps one scatter per class (see
            :func:`protosphere.geometry.scatter_tiles.tile_bytes` for the memory it takes).
        device: Device to accumulate on; it must support float64.

    Returns:
        Accumulators filled with zeros.

    >>> statistics = empty_statistics(2, 3)
    >>> statistics.add(torch.tensor([[2.0, 0.0, 0.0], [0.0, 3.0, 0.0]]), torch.tensor([1, 1]))
    >>> statistics.counts, statistics.means[1]
    (tensor([0., 2.], dtype=torch.float64), tensor([0.5000, 0.5000, 0.0000], dtype=torch.float64))
    """

    def zeros(*shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.float64, device=device)

    tiles = empty_tiles(num_classes, dim, device=device) if moments == "per_class" else None
    return ClassStatistics(
        counts=zeros(num_classes),
        means=zeros(num_classes, dim),
        sum_sq_dev=zeros(num_classes),
        within=zeros(dim, dim) if moments == "pooled" else None,
        scatter_tiles=tiles,
        input_eps=zeros(),
        rejected=torch.zeros((), dtype=torch.long, device=device),
    )
