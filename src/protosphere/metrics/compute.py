"""Compute any selection of metrics from class statistics, prototypes and bias."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from protosphere.geometry.class_statistics import ClassStatistics, Space
from protosphere.geometry.sphere import normalize
from protosphere.metrics.catalog import CATALOG
from protosphere.metrics.centered import CenteredVectors, UndefinedMetricError, list_classes
from protosphere.metrics.information import Information, matrix_information

# Some metrics use fourth powers of norms, which must stay in the range of float64.
_MIN_SQUARED_NORM, _MAX_SQUARED_NORM = 1e-140, 1e140


class MetricResults(NamedTuple):
    """Result of :func:`compute_metrics`.

    Attributes:
        values: Scalar tensors by metric name, in the order of the catalog.
        absent: Why each other selected metric has no value, by metric name.
    """

    values: dict[str, Float[Tensor, ""]]
    absent: dict[str, str]


@dataclass(frozen=True)
class MetricInputs:
    """What metrics are computed from. Rows of the catalog refer to these attributes by name.

    Attributes:
        statistics: Class statistics, in ``space``.
        prototypes: Prototypes as the head holds them; ``weights`` are the prototypes in ``space``.
        bias: Bias of the head.
        space: Space of the statistics.
        class_spectra: Eigenvalues of the scatter of each class, if the statistics lack scatters.
        projected_scatter: Pooled scatter S projected to the centered means, M S Mᵀ, if the
            statistics lack S.
        agreement: Fraction of samples on which the head and the nearest class mean agree.
    """

    statistics: ClassStatistics
    prototypes: Float[Tensor, "classes dim"] | None = None
    bias: Float[Tensor, "classes"] | None = None
    space: Space = "sphere"
    class_spectra: Iterable[Float[Tensor, "_"]] | None = None
    projected_scatter: Float[Tensor, "classes classes"] | None = None
    agreement: float | None = None

    @cached_property
    def means(self) -> CenteredVectors:
        """Class means.

        Raises:
            UndefinedMetricError: A class has no sample.
        """
        statistics = self.statistics
        if statistics.num_classes < 2:
            raise UndefinedMetricError(
                f"requires at least two classes, got {statistics.num_classes}"
            )
        empty = statistics.counts == 0
        if bool(empty.any()):
            raise UndefinedMetricError(
                f"every class needs a sample; {list_classes(empty, 'has none')}"
            )
        squared_norms = statistics.means.square().sum(1) + statistics.variances()
        return CenteredVectors(
            statistics.means, "class means", statistics.input_eps, squared_norms.mean()
        )

    @cached_property
    def weights(self) -> CenteredVectors:
        """Prototypes in ``space``.

        Raises:
            UndefinedMetricError: There are no prototypes.
        """
        if self.prototypes is None:
            raise UndefinedMetricError("requires prototypes, and none were given")
        vectors = self.prototypes.detach().to(self.statistics.means)
        eps = vectors.new_tensor(torch.finfo(self.prototypes.dtype).eps)
        if self.space == "sphere":
            vectors = normalize(vectors)
        return CenteredVectors(vectors, "prototypes", eps)

    @cached_property
    def head_bias(self) -> Float[Tensor, "classes"]:
        """Bias of the head.

        Raises:
            UndefinedMetricError: There is no bias.
        """
        if self.bias is None:
            raise UndefinedMetricError("requires the bias of the head, and none was given")
        return self.bias.detach().to(self.statistics.means)

    @cached_property
    def information(self) -> Information:
        """MIR and HDR of centered vectors."""
        return matrix_information(self.statistics, self.weights, self.means)

    @cached_property
    def published_information(self) -> Information:
        """MIR and HDR as the authors of the paper computed them."""
        if self.space == "raw":
            raise UndefinedMetricError("the published form is defined on the unit sphere only")
        return matrix_information(self.statistics, self.weights, self.means, form="published")


def compute_metrics(inputs: MetricInputs, names: Sequence[str]) -> MetricResults:
    """Compute the named metrics.

    Args:
        inputs: What the metrics are computed from.
        names: Metric names, as returned by :func:`protosphere.metrics.catalog.select`.

    Returns:
        Values in the order of the catalog, and a reason for each metric without a value.

    Raises:
        ValueError: The norms of features or prototypes are outside the range of float64.
    """
    statistics = inputs.statistics
    _check_norms("features", statistics.means.square().sum(1) + statistics.variances())
    if inputs.prototypes is not None and inputs.space == "raw":
        _check_norms("prototypes", inputs.prototypes.detach().double().square().sum(1))
    values: dict[str, Tensor] = {}
    absent: dict[str, str] = {}
    for name, definition in CATALOG.items():
        if name not in names:
            continue
        try:
            arguments = [getattr(inputs, argument) for argument in definition.inputs]
            values[name] = definition.resolve()(*arguments)
        except UndefinedMetricError as reason:
            absent[name] = str(reason)
    return MetricResults(values, absent)


def _check_norms(name: str, squared_norms: Tensor) -> None:
    largest = float(squared_norms.max()) if len(squared_norms) else 0.0
    if not (largest == 0 or _MIN_SQUARED_NORM < largest < _MAX_SQUARED_NORM):
        raise ValueError(
            f"{name} must have norms between 1e-70 and 1e70, got {largest**0.5:.1e}; rescale them"
        )
