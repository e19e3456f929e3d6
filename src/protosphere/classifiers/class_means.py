"""Class means on the sphere from a stream: sums of unit vectors in float64 that add over batches and processes."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from jaxtyping import Float, Integer
from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

# Rows that are added in float32 before float64 takes over: equal vectors, added one by one, would lose the same bits
# each time, a part in 10⁵ after a thousand of them.
_RUN = 32
_ROWS = 1 << 17


@dataclass(frozen=True)
class ClassMeans:
    """Weights and weighted sums of unit vectors, one a class; a mean is their ratio.

    Attributes:
        weights: Σ w_i over the samples of a class, float64; their number where samples weigh 1.
        sums: Σ w_i u_i, float64.
    """

    weights: Float[Tensor, "classes"]
    sums: Float[Tensor, "classes dim"]

    @property
    def means(self) -> Float[Tensor, "classes dim"]:
        """μ_c; NaN for a class without samples."""
        return self.sums / self.weights[:, None]

    def merged(self, other: "ClassMeans") -> "ClassMeans":
        """With the samples of another stream."""
        return ClassMeans(self.weights + other.weights, self.sums + other.sums)

    def added(
        self,
        features: Float[Tensor, "samples dim"],
        labels: Integer[Tensor, "samples"],
        weights: Float[Tensor, "samples"] | None = None,
    ) -> "ClassMeans":
        """With a batch more."""
        return self.merged(
            class_means(features, labels, num_classes=len(self.weights), weights=weights)
        )

    def reduced(self, group: "ProcessGroup | None" = None) -> "ClassMeans":
        """Of all processes of a group, on each of them; those without samples call too."""
        from torch.distributed import all_reduce  # noqa: PLC0415

        weights, sums = self.weights.clone(), self.sums.clone()
        all_reduce(weights, group=group)
        all_reduce(sums, group=group)
        return ClassMeans(weights, sums)


def empty_means(
    num_classes: int, dim: int, *, device: torch.device | str | None = None
) -> ClassMeans:
    """Those of no samples.

    >>> empty_means(2, 3).weights.tolist()
    [0.0, 0.0]
    """
    options = {"dtype": torch.float64, "device": device}
    return ClassMeans(torch.zeros(num_classes, **options), torch.zeros(num_classes, dim, **options))  # type: ignore[arg-type]


@torch.no_grad()
def class_means(
    features: Float[Tensor, "samples dim"],
    labels: Integer[Tensor, "samples"],
    *,
    num_classes: int,
    weights: Float[Tensor, "samples"] | None = None,
) -> ClassMeans:
    """μ_c = Σ_{i: y_i=c} w_i u_i / Σ w_i with u_i = x_i/‖x_i‖, exact to 1e-6 whatever the order and the batches.

    On the CPU nothing as large as the features is made: rows are read where they are, once for their lengths and once
    for the sums (``embedding_bag``, with 1/‖x‖ as the weight of a row).

    Args:
        features: of any floating dtype, on any device that has float64.
        labels: 0 … num_classes − 1.
        num_classes: K.
        weights: of the samples, not negative.

    Raises:
        ValueError: shapes do not fit; on the CPU also for labels out of range and features that are not finite.

    >>> found = class_means(torch.tensor([[3.0, 4.0], [0.0, 2.0]]), torch.tensor([0, 0]), num_classes=1)
    >>> [round(value, 3) for value in found.means[0].tolist()]
    [0.3, 0.9]
    """
    _check(features, labels, num_classes, weights)
    found = empty_means(num_classes, features.shape[1], device=features.device)
    for start in range(0, len(features), _ROWS):
        part = slice(start, start + _ROWS)
        own = None if weights is None else weights[part]
        _add(found, features[part].detach(), labels[part].long(), own)
    return found


def _check(features: Tensor, labels: Tensor, num_classes: int, weights: Tensor | None) -> None:
    if features.ndim != 2 or not features.is_floating_point():
        raise ValueError(
            f"features must be (samples, dim), floating; got {tuple(features.shape)} of {features.dtype}"
        )
    for name, part in (("labels", labels), ("weights", weights)):
        if part is not None and part.shape != features.shape[:1]:
            raise ValueError(
                f"{name} must be one a sample, shape ({len(features)},); got {tuple(part.shape)}"
            )
    if labels.is_floating_point() or labels.dtype == torch.bool:
        raise ValueError(f"labels must be whole numbers; got {labels.dtype}")
    if (
        labels.device.type == "cpu"
        and len(labels)
        and not 0 <= int(labels.min()) <= int(labels.max()) < num_classes
    ):
        raise ValueError(
            f"labels must lie in 0..{num_classes - 1}; got {int(labels.min())}..{int(labels.max())}"
        )
    if weights is not None and weights.device.type == "cpu" and not bool((weights >= 0).all()):
        raise ValueError("weights must not be negative, nor NaN; some are")


def _add(found: ClassMeans, features: Tensor, labels: Tensor, weights: Tensor | None) -> None:
    """Add a part to the sums, in place."""
    if features.dtype in (torch.float16, torch.bfloat16):
        features = features.float()
    lengths = torch.linalg.vector_norm(features, dim=1)
    if features.device.type == "cpu" and not bool(torch.isfinite(lengths).all()):
        row = int((~torch.isfinite(lengths)).nonzero()[0])
        raise ValueError(
            f"features must be finite, with lengths that are; the row of number {row} of a part is not"
        )
    scales = torch.where(lengths > 0, 1 / lengths, 0)
    counted = torch.ones_like(scales) if weights is None else weights.to(scales)
    found.weights.index_add_(0, labels, counted.double())
    scales = scales * counted
    if features.device.type != "cpu" or features.dtype == torch.float64:
        found.sums.index_add_(0, labels, features.double() * scales[:, None].double())
        return
    order = labels.argsort(stable=True)
    counts = torch.bincount(labels, minlength=len(found.weights))
    ends = counts.cumsum(0)
    # Runs begin where a class begins, and after each _RUN rows of it.
    place = torch.arange(len(order)) - (ends - counts)[labels[order]]
    starts = torch.nonzero(place % _RUN == 0).flatten()
    runs = F.embedding_bag(
        order, features, starts, mode="sum", per_sample_weights=scales[order].float()
    )
    found.sums.index_add_(0, labels[order[starts]], runs.double())
