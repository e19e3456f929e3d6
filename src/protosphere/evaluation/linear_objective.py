"""Objectives of linear classifiers in coordinates in which their Hessian is nearly diagonal."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Integer
from torch import Tensor
from torch.nn import functional as F

# Beyond this many dimensions and samples, principal axes cost more than they save.
_MAX_AXES = 4096
# Entries of a block of logits or features: near the cache of a CPU, and 256 MB of float32 on a GPU.
_BLOCK_ENTRIES = {"cpu": 2**21, "cuda": 2**26}
# Up to as many features, a CPU computes in float64.
_SMALL_ENTRIES = 2**20

# From logits and the rows that they are of to the loss of each and its derivatives by the logits.
Loss = Callable[[Tensor, slice], tuple[Tensor, Tensor]]


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Compute float32 products in float32: no TensorFloat-32, no autocast, no gradients."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.no_grad(), torch.autocast(device.type, enabled=False):
            yield
    finally:
        torch.set_float32_matmul_precision(before)


@dataclass(frozen=True)
class Coordinates:
    """Features centered, along their principal axes, with unit variance.

    A linear classifier (weight, bias) of the features x has the coefficients weight·axes·scale and
    the bias + weight·mean here. As the axes are orthonormal, ‖weight‖² = Σ (coefficients / scale)²:
    the penalty is known exactly, and the features need not be standardized to be well conditioned.
    If there are more dimensions than samples, the axes span the samples, which lose nothing: the
    penalty makes the weight zero elsewhere.

    Attributes:
        values: The coordinates of the samples.
        mean: Weighted mean of the features.
        axes: Orthonormal columns, or None for the axes of the features themselves.
        scale: Standard deviation along each axis.
        weights: Weight of each sample, one column or one per problem; None for ones.
    """

    values: Float[Tensor, "samples axes"]
    mean: Float[Tensor, "dim"]
    axes: Float[Tensor, "dim axes"] | None
    scale: Float[Tensor, "axes"]
    weights: Float[Tensor, "samples columns"] | None

    def from_features(self, weight: Tensor, bias: Tensor) -> Tensor:
        """Return the parameters, bias last, of a classifier of the features."""
        weight, bias = weight.to(self.mean), bias.to(self.mean)
        rotated = weight if self.axes is None else weight @ self.axes
        return torch.cat([rotated * self.scale, (bias + weight @ self.mean)[:, None]], 1)

    def to_features(self, parameters: Tensor) -> tuple[Tensor, Tensor]:
        """Return weight and bias of the classifier of the features, in float64."""
        rotated = parameters[:, :-1] / self.scale
        weight = rotated if self.axes is None else rotated @ self.axes.T
        return weight, parameters[:, -1] - weight @ self.mean


def _blocks(num_rows: int, width: int, device: torch.device) -> Iterator[slice]:
    entries = _BLOCK_ENTRIES[device.type]
    rows = max(1, entries // width)
    return (slice(start, min(start + rows, num_rows)) for start in range(0, num_rows, rows))


def principal_coordinates(
    features: Float[Tensor, "samples dim"], weights: Float[Tensor, "samples columns"] | None
) -> Coordinates:
    """Return the features in centered principal coordinates of unit variance.

    The sums are in float64. The coordinates are in float64 if the features are or if there are few
    of them on a CPU, and in float32 otherwise.

    Args:
        features: Features, finite.
        weights: Weights of the samples, one column or one per problem.
    """
    num_samples, dim = features.shape
    rows = features.new_ones(num_samples, dtype=torch.float64)
    if weights is not None:
        rows = weights.double().mean(1)
    total = rows.sum()
    blocks = list(_blocks(num_samples, dim, features.device))
    mean = torch.zeros_like(features[0], dtype=torch.float64)
    for block in blocks:
        mean += rows[block] @ features[block].double() / total
    precise = features.dtype == torch.float64 or (
        features.device.type == "cpu" and features.numel() <= _SMALL_ENTRIES
    )
    dtype = torch.float64 if precise else torch.float32
    axes = _principal_axes(features, rows, mean, blocks)
    width = dim if axes is None else axes.shape[1]
    values = features.new_empty((num_samples, width), dtype=dtype)
    squares = torch.zeros_like(values[0], dtype=torch.float64)
    for block in blocks:
        centered = features[block].double() - mean
        rotated = centered if axes is None else centered @ axes
        squares += rows[block] @ rotated.square()
        values[block] = rotated.to(dtype)
    scale = (squares / total).sqrt()
    scale = torch.where(scale > torch.finfo(torch.float32).tiny, scale, 1)
    for block in blocks:
        values[block] /= scale.to(dtype)
    return Coordinates(values, mean, axes, scale, None if weights is None else weights.to(dtype))


def _principal_axes(
    features: Tensor, rows: Tensor, mean: Tensor, blocks: list[slice]
) -> Tensor | None:
    num_samples, dim = features.shape
    if min(num_samples, dim) > _MAX_AXES:
        return None
    if num_samples < dim:
        centered = features.double() - mean
        span, triangle = torch.linalg.qr(centered.T)
        axes: Tensor = span @ _eigenvectors((triangle * rows) @ triangle.T)
        return axes
    scatter = features.new_zeros((dim, dim), dtype=torch.float64)
    for block in blocks:
        centered = features[block].double() - mean
        scatter += (centered * rows[block, None]).T @ centered
    return _eigenvectors(scatter)


def _eigenvectors(symmetric: Tensor) -> Tensor:
    vectors: Tensor = torch.linalg.eigh(symmetric).eigenvectors
    return vectors


def softmax_loss(labels: Integer[Tensor, "samples"]) -> Loss:
    """Return the cross-entropy of the softmax of the logits.

    Args:
        labels: Class index of each sample.
    """

    def evaluate(logits: Tensor, rows: slice) -> tuple[Tensor, Tensor]:
        own = labels[rows, None]
        # Relative to the logit of the own class, so that small losses keep their digits.
        others = (logits - logits.gather(1, own)).scatter_(1, own, -torch.inf)
        largest = others.amax(1, keepdim=True).clamp_min(torch.finfo(logits.dtype).min)
        residuals = others.sub_(largest).exp_()
        losses = -F.logsigmoid(-largest - residuals.sum(1, keepdim=True).log())
        residuals.mul_((largest - losses).exp()).scatter_(1, own, torch.expm1(-losses))
        return losses, residuals

    return evaluate


def binary_loss(
    targets: Bool[Tensor, "samples problems"] | Integer[Tensor, "samples problems"],
) -> Loss:
    """Return the logistic loss of every logit.

    Args:
        targets: Whether each sample is a positive one of each problem.
    """

    def evaluate(logits: Tensor, rows: slice) -> tuple[Tensor, Tensor]:
        signs = targets[rows].to(logits.dtype) * 2 - 1
        margins = logits * signs
        return -F.logsigmoid(margins), -signs * torch.sigmoid(-margins)

    return evaluate


@dataclass(frozen=True)
class LinearObjective:
    """Σ_i w_i loss_i + ½ l2 ‖weight‖² of linear classifiers, one for all columns or one for each.

    Products are in the dtype of the coordinates; blocks and losses are added in float64.

    Attributes:
        coordinates: The samples.
        loss: Loss of the logits.
        l2: Strength of the penalty.
        num_outputs: Number of logits of a sample.
        num_problems: 1 if the logits have a common loss, or ``num_outputs``.
    """

    coordinates: Coordinates
    loss: Loss
    l2: float
    num_outputs: int
    num_problems: int

    @property
    def rounding(self) -> float:
        """Relative size of differences of values that may be rounding."""
        return torch.finfo(self.coordinates.values.dtype).eps

    def value_and_gradient(
        self, point: Float[Tensor, "problems parameters"]
    ) -> tuple[Float[Tensor, "problems"], Float[Tensor, "problems parameters"]]:
        """Return the value and the gradient of every problem."""
        coefficients = point.view(self.num_outputs, -1)[:, :-1]
        penalized = self._penalty * coefficients
        values = (penalized * coefficients).view(self.num_problems, -1).sum(1) / 2
        gradient = F.pad(penalized, (0, 1))
        for block, losses, residuals in self._evaluate(point):
            weighted = self._weighted(residuals, block)
            values += self._weighted(losses, block).sum(0, dtype=torch.float64)
            gradient[:, :-1] += weighted.T @ self.coordinates.values[block]
            gradient[:, -1] += weighted.sum(0, dtype=torch.float64)
        return values, gradient.view_as(point)

    def hessian_diagonal(
        self, point: Float[Tensor, "problems parameters"]
    ) -> Float[Tensor, "problems parameters"]:
        """Return the diagonal of the Hessian of every problem."""
        diagonal = F.pad(self._penalty.expand(self.num_outputs, -1), (0, 1)).clone()
        for block, _, residuals in self._evaluate(point):
            # Probabilities p have residuals p or p − 1, and the second derivative p (1 − p).
            curvatures = self._weighted(residuals.abs() * (1 - residuals.abs()), block)
            diagonal[:, :-1] += curvatures.T @ self.coordinates.values[block].square()
            diagonal[:, -1] += curvatures.sum(0, dtype=torch.float64)
        return diagonal.clamp_min(torch.finfo(torch.float32).tiny).view_as(point)

    def _weighted(self, values: Tensor, block: slice) -> Tensor:
        weights = self.coordinates.weights
        return values if weights is None else values * weights[block]

    @cached_property
    def _penalty(self) -> Tensor:
        return self.l2 / self.coordinates.scale.square()

    def _evaluate(self, point: Tensor) -> Iterator[tuple[slice, Tensor, Tensor]]:
        samples = self.coordinates.values
        parameters = point.view(self.num_outputs, -1).to(samples.dtype)
        weight, bias = parameters[:, :-1].T.contiguous(), parameters[:, -1].contiguous()
        width = max(self.num_outputs, samples.shape[1])
        for block in _blocks(len(samples), width, samples.device):
            yield block, *self.loss(torch.addmm(bias, samples[block], weight), block)
