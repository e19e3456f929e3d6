"""Class means on the sphere: float64 sums of unit vectors that add over batches and processes."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Integer
from torch import Tensor

from protosphere.classifiers.checks import nonfinite_error
from protosphere.geometry.checks import as_tensor, check_features, check_labels

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

# Rows of one class that are summed in float32 before the sum continues in float64. Equal vectors
# lose the same bits at each addition: after a thousand of them the sum would be off by 1e-5.
_FLOAT32_ROWS = 32
_CHUNK_ROWS = 1 << 17


Features = Float[Tensor, "samples dim"] | np.ndarray
Labels = Integer[Tensor, "samples"] | np.ndarray
Weights = Float[Tensor, "samples"] | np.ndarray


@dataclass(frozen=True)
class ClassMeans:
    """Total weight and weighted sum of the unit features of each class.

    Attributes:
        weights: Sum of the sample weights of each class, in float64; the number of samples if no
            weights were given.
        sums: Weighted sum of the unit features of each class, in float64.
    """

    weights: Float[Tensor, "classes"]
    sums: Float[Tensor, "classes dim"]

    @property
    def means(self) -> Float[Tensor, "classes dim"]:
        """The mean of each class; a row of NaN for a class without samples."""
        return self.sums / self.weights[:, None]

    def merge(self, other: "ClassMeans") -> "ClassMeans":
        """Return the statistics of the samples of both objects."""
        return ClassMeans(self.weights + other.weights, self.sums + other.sums)

    def select(self, classes: Integer[Tensor, "selected"]) -> "ClassMeans":
        """Return some of the classes, in the order given.

        Args:
            classes: Indices of the classes.
        """
        return ClassMeans(self.weights[classes], self.sums[classes])

    def expand(self, positions: Integer[Tensor, "classes"], *, num_classes: int) -> "ClassMeans":
        """Return the statistics with more classes, which have no samples.

        Args:
            positions: New index of each class.
            num_classes: New number of classes.
        """
        result = empty_means(num_classes, self.sums.shape[1], device=self.sums.device)
        result.weights[positions], result.sums[positions] = self.weights, self.sums
        return result

    def to(self, device: torch.device | str) -> "ClassMeans":
        """Return the statistics on a device, in float64."""
        return ClassMeans(self.weights.double().to(device), self.sums.double().to(device))

    def add(
        self, features: Features, labels: Labels, weights: Weights | None = None
    ) -> "ClassMeans":
        """Return a copy updated with one more batch.

        Args:
            features: Features of the batch.
            labels: Class index of each sample.
            weights: Weight of each sample; 1 if not given.
        """
        num_classes = len(self.weights)
        return self.merge(class_means(features, labels, num_classes=num_classes, weights=weights))

    def all_reduce(self, group: "ProcessGroup | None" = None) -> "ClassMeans":
        """Return the statistics of all ranks of a process group; every rank must call it.

        Args:
            group: Process group; the default group if not given.
        """
        from torch.distributed import all_reduce  # noqa: PLC0415

        weights, sums = self.weights.clone(), self.sums.clone()
        all_reduce(weights, group=group)
        all_reduce(sums, group=group)
        return ClassMeans(weights, sums)


def empty_means(
    num_classes: int, dim: int, *, device: torch.device | str | None = None
) -> ClassMeans:
    """Return the statistics of zero samples, to which batches can be added.

    Args:
        num_classes: Number of classes.
        dim: Dimension of the features.
        device: Device of the sums.

    >>> empty_means(2, 3).weights.tolist()
    [0.0, 0.0]
    """
    return ClassMeans(
        weights=torch.zeros(num_classes, dtype=torch.float64, device=device),
        sums=torch.zeros(num_classes, dim, dtype=torch.float64, device=device),
    )


@torch.no_grad()
def class_means(
    features: Features,
    labels: Labels,
    *,
    num_classes: int,
    weights: Weights | None = None,
) -> ClassMeans:
    """Compute the mean of the unit features of each class.

    μ_c = Σ_{i: y_i=c} w_i u_i / Σ_{i: y_i=c} w_i with u_i = x_i/‖x_i‖, accurate to 1e-6 for any
    order of the samples and any split into batches. A zero feature counts as a sample and adds
    nothing to the sum. On the CPU no copy of float32 features is made.

    Args:
        features: Features of any floating dtype, on a device that supports float64, as a tensor or
            a NumPy array.
        labels: Class index of each sample, from 0 to ``num_classes - 1``.
        num_classes: Number of classes.
        weights: Weight of each sample, not negative; 1 if not given.

    Returns:
        Sums that can be added to those of other batches; ``.means`` are the class means.

    Raises:
        TypeError: An argument is neither a tensor nor an array.
        ValueError: Shapes or dtypes do not match; for CPU tensors also if labels are out of range,
            weights are negative or features are not finite.

    >>> result = class_means(torch.tensor([[3.0, 4], [0, 2]]), torch.tensor([0, 0]), num_classes=1)
    >>> [round(value, 3) for value in result.means[0].tolist()]
    [0.3, 0.9]
    """
    features, labels, weights = check_samples(features, labels, num_classes, weights)
    result = empty_means(num_classes, features.shape[1], device=features.device)
    for start in range(0, len(features), _CHUNK_ROWS):
        rows = slice(start, start + _CHUNK_ROWS)
        _accumulate(
            result,
            features[rows].detach(),
            labels[rows],
            None if weights is None else weights[rows],
            first_row=start,
        )
    return result


def check_samples(
    features: Features, labels: Labels, num_classes: int, weights: Weights | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Check features, labels and weights, and return them as tensors, the labels as int64.

    Arrays of labels and weights are moved to the device of the features.

    Args:
        features: Features.
        labels: Class index of each sample.
        num_classes: Number of classes.
        weights: Weight of each sample, or None.

    Raises:
        TypeError: An argument is neither a tensor nor an array.
        ValueError: Shapes or dtypes do not match, or on the CPU labels are out of range or weights
            negative.
    """
    check_features(features)
    check_labels(labels, len(features))
    features = as_tensor("features", features)
    # Not all functions of torch take unsigned integers of more than 8 bits.
    labels = _on_device("labels", labels, features.device).long()
    if weights is not None:
        weights = _on_device("weights", weights, features.device)
    if weights is not None and weights.shape != labels.shape:
        raise ValueError(
            f"weights must hold one value per sample, shape ({len(features)},), "
            f"got {tuple(weights.shape)}"
        )
    if labels.device.type == "cpu" and len(labels):
        smallest, largest = int(labels.min()), int(labels.max())
        if smallest < 0 or largest >= num_classes:
            raise ValueError(
                f"labels must lie between 0 and {num_classes - 1}, got {smallest} to {largest}"
            )
    if weights is not None and weights.device.type == "cpu" and not bool((weights >= 0).all()):
        raise ValueError("weights must not be negative or NaN")
    return features, labels, weights


def _on_device(name: str, values: Tensor | np.ndarray, device: torch.device) -> Tensor:
    tensor = as_tensor(name, values)
    return tensor if isinstance(values, Tensor) else tensor.to(device)


def _accumulate(
    result: ClassMeans,
    features: Tensor,
    labels: Tensor,
    weights: Tensor | None,
    *,
    first_row: int,
) -> None:
    """Add a chunk of samples to the sums, in place."""
    if features.dtype in (torch.float16, torch.bfloat16):
        features = features.float()
    norms = torch.linalg.vector_norm(features, dim=1)
    if features.device.type == "cpu" and not bool(torch.isfinite(norms).all()):
        raise nonfinite_error(first_row + int((~torch.isfinite(norms)).nonzero()[0]))
    scales = torch.where(norms > 0, 1 / norms, 0)
    weights = torch.ones_like(scales) if weights is None else weights.to(scales)
    result.weights.index_add_(0, labels, weights.double())
    scales = scales * weights
    if features.device.type != "cpu" or features.dtype == torch.float64:
        result.sums.index_add_(0, labels, features.double() * scales[:, None].double())
        return
    # embedding_bag reads the rows in place, in the order of their classes, and sums each run of
    # rows in float32. A run starts where a class starts and after every _FLOAT32_ROWS rows of it.
    order = labels.argsort(stable=True)
    counts = torch.bincount(labels, minlength=len(result.weights))
    class_starts = counts.cumsum(0) - counts
    position_in_class = torch.arange(len(order), device=order.device)
    position_in_class -= class_starts[labels[order]]
    run_starts = torch.nonzero(position_in_class % _FLOAT32_ROWS == 0).flatten()
    run_sums = F.embedding_bag(
        order, features, run_starts, mode="sum", per_sample_weights=scales[order].float()
    )
    result.sums.index_add_(0, labels[order[run_starts]], run_sums.double())
