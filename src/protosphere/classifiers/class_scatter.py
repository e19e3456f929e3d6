"""Pooled within-class scatter of unit features: statistics that add over batches and processes."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Integer
from torch import Tensor

from protosphere.classifiers.class_means import (
    ClassMeans,
    Features,
    Labels,
    Weights,
    check_samples,
    class_means,
    empty_means,
)

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

# Rows whose products are summed in float32 before the sum continues in float64: few enough for a
# cache of a few megabytes and for the rounding, enough to keep the multiplication efficient.
_BLOCK_ROWS = 4096
_CUDA_BLOCK_ROWS = 1 << 16
_STRIP_COLUMNS = 128


@dataclass(frozen=True)
class ClassScatter:
    """Class means and pooled within-class scatter of unit features.

    Attributes:
        means: Total weight and weighted sum of the unit features of each class.
        within: Within-class scatter Σ_i w_i (u_i − μ_{y_i})(u_i − μ_{y_i})ᵀ of all classes, in
            float64.
        dropped_degrees: Degrees of freedom of the part of the scatter that comes from classes
            whose means were dropped.
    """

    means: ClassMeans
    within: Float[Tensor, "dim dim"]
    dropped_degrees: float = 0.0

    @property
    def degrees(self) -> float:
        """Degrees of freedom of the scatter: Σ_c (w_c − 1) over classes with w_c > 1.

        Without sample weights this is the number of samples minus the number of classes. A weight
        counts as that many samples, so weights should have a mean of about 1.
        """
        return self.dropped_degrees + float((self.means.weights - 1).clamp(min=0).sum())

    @property
    def center(self) -> Float[Tensor, "dim"]:
        """The global mean Σ w_i u_i / Σ w_i of the samples of all classes that are present."""
        total = self.means.weights.sum()
        return self.means.sums.sum(0) / torch.where(total > 0, total, 1)

    def merge(self, other: "ClassScatter") -> "ClassScatter":
        """Return the statistics of the samples of both objects (Chan's formula).

        Args:
            other: Statistics of other samples, with the same classes and dimension.

        Raises:
            ValueError: The two have different numbers of classes or dimensions.
        """
        if self.means.sums.shape != other.means.sums.shape:
            raise ValueError(
                "merged statistics must have the same classes and dimension, got shapes "
                f"{tuple(self.means.sums.shape)} and {tuple(other.means.sums.shape)}"
            )
        means = self.means.merge(other.means)
        products = self.means.weights * other.means.weights
        shared = (products > 0).nonzero().flatten()
        differences = self.means.means[shared] - other.means.means[shared]
        shifts = differences * (products / means.weights)[shared].sqrt()[:, None]
        return ClassScatter(
            means,
            (self.within + other.within).addmm_(shifts.T, shifts),
            self.dropped_degrees + other.dropped_degrees,
        )

    def add(
        self, features: Features, labels: Labels, weights: Weights | None = None
    ) -> "ClassScatter":
        """Return a copy updated with one more batch.

        Args:
            features: Features of the batch.
            labels: Class index of each sample.
            weights: Weight of each sample; 1 if not given.
        """
        num_classes = len(self.means.weights)
        return self.merge(class_scatter(features, labels, num_classes=num_classes, weights=weights))

    def select(self, classes: Integer[Tensor, "selected"]) -> "ClassScatter":
        """Return the means of some classes with the scatter of all, in the order given.

        Args:
            classes: Indices of the classes whose means are kept.
        """
        means = self.means.select(classes)
        kept = ClassScatter(means, self.within).degrees
        return ClassScatter(means, self.within, self.degrees - kept)

    def expand(self, positions: Integer[Tensor, "classes"], *, num_classes: int) -> "ClassScatter":
        """Return the statistics with more classes, which have no samples.

        Args:
            positions: New index of each class.
            num_classes: New number of classes.
        """
        means = self.means.expand(positions, num_classes=num_classes)
        return ClassScatter(means, self.within, self.dropped_degrees)

    def to(self, device: torch.device | str) -> "ClassScatter":
        """Return the statistics on a device."""
        return ClassScatter(self.means.to(device), self.within.to(device), self.dropped_degrees)

    def all_reduce(self, group: "ProcessGroup | None" = None) -> "ClassScatter":
        """Return the statistics of all ranks of a process group; every rank must call it.

        Args:
            group: Process group; the default group if not given.
        """
        from torch.distributed import all_reduce  # noqa: PLC0415

        means = self.means.all_reduce(group)
        present = (self.means.weights > 0).nonzero().flatten()
        differences = self.means.means[present] - means.means[present]
        shifts = differences * self.means.weights[present].sqrt()[:, None]
        within = self.within.addmm(shifts.T, shifts)
        dropped = within.new_tensor(self.dropped_degrees)
        all_reduce(within, group=group)
        all_reduce(dropped, group=group)
        return ClassScatter(means, within, float(dropped))


def empty_scatter(
    num_classes: int, dim: int, *, device: torch.device | str | None = None
) -> ClassScatter:
    """Return the statistics of zero samples, to which batches can be added.

    Args:
        num_classes: Number of classes.
        dim: Dimension of the features.
        device: Device of the sums.

    >>> empty_scatter(2, 3).degrees
    0.0
    """
    within = torch.zeros(dim, dim, dtype=torch.float64, device=device)
    return ClassScatter(empty_means(num_classes, dim, device=device), within)


@torch.no_grad()
def class_scatter(
    features: Features,
    labels: Labels,
    *,
    num_classes: int,
    weights: Weights | None = None,
) -> ClassScatter:
    """Compute class means and the pooled within-class scatter of unit features.

    W = Σ_i w_i (u_i − μ_{y_i})(u_i − μ_{y_i})ᵀ with u_i = x_i/‖x_i‖. Deviations are taken from the
    class means before they are multiplied, so classes far apart or a common offset cost no
    precision. On the CPU float32 features are multiplied in float32, block by block, and blocks
    are added in float64; no copy of the features is made. On other devices everything is float64.

    Args:
        features: Features of any floating dtype, on a device that supports float64, as a tensor or
            a NumPy array.
        labels: Class index of each sample, from 0 to ``num_classes - 1``.
        num_classes: Number of classes.
        weights: Weight of each sample, not negative; 1 if not given.

    Returns:
        Statistics that can be merged with those of other batches.

    Raises:
        TypeError: An argument is neither a tensor nor an array.
        ValueError: Shapes or dtypes do not match; for CPU tensors also if labels are out of range,
            weights are negative or features are not finite.

    >>> features = torch.tensor([[1.0, 0], [0, 1], [2, 0]])
    >>> class_scatter(features, torch.tensor([0, 0, 1]), num_classes=2).within
    tensor([[ 0.5000, -0.5000],
            [-0.5000,  0.5000]], dtype=torch.float64)
    """
    features, labels, weights = check_samples(features, labels, num_classes, weights)
    means = class_means(features, labels, num_classes=num_classes, weights=weights)
    on_cpu = features.device.type == "cpu"
    dtype = torch.float32 if on_cpu and features.dtype != torch.float64 else torch.float64
    references = means.means.nan_to_num().to(dtype)
    within = torch.zeros(
        features.shape[1], features.shape[1], dtype=torch.float64, device=features.device
    )
    for rows in _blocks(len(features), _BLOCK_ROWS if on_cpu else _CUDA_BLOCK_ROWS):
        samples = features[rows].detach().to(dtype)
        norms = torch.linalg.vector_norm(samples, dim=1, keepdim=True)
        scales = torch.where(norms > 0, 1 / norms, 0)
        deviations = (-references).index_select(0, labels[rows]).addcmul_(samples, scales)
        if weights is not None:
            deviations.mul_(weights[rows].to(deviations).sqrt()[:, None])
        _add_products(within, deviations)
    within = within.tril_() + within.tril(-1).T
    # The references are rounded means: the scatter about the means themselves is smaller by the
    # scatter of the difference.
    present = (means.weights > 0).nonzero().flatten()
    offsets = (means.means[present] - references[present]) * means.weights[present, None].sqrt()
    return ClassScatter(means, within.addmm_(offsets.T, offsets, alpha=-1))


def _add_products(within: Tensor, deviations: Tensor) -> None:
    """Add the lower triangle of Dᵀ D, in strips that skip most of the upper one."""
    for start in range(0, len(within), _STRIP_COLUMNS):
        end = min(start + _STRIP_COLUMNS, len(within))
        within[start:end, :end] += deviations[:, start:end].T @ deviations[:, :end]


def _blocks(num_samples: int, block_rows: int) -> Iterator[slice]:
    for start in range(0, num_samples, block_rows):
        yield slice(start, start + block_rows)
