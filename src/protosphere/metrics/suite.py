"""All metrics from statistics: one dictionary of values, and why the others are absent."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from protosphere.geometry.class_statistics import ClassStatistics, Space
from protosphere.geometry.sphere import normalize
from protosphere.metrics import alignment, collapse, ranks
from protosphere.metrics.catalog import DEFINITIONS
from protosphere.metrics.frame import Frame, UndefinedMetricError
from protosphere.metrics.information import Information, matrix_information


class Suite(NamedTuple):
    """What came out: values by name, and for each that is absent the reason, one sentence."""

    values: dict[str, Float[Tensor, ""]]
    absent: dict[str, str]


@dataclass(frozen=True)
class Evidence:
    """Everything that metrics are calculated from; what is None is not known.

    Attributes:
        statistics: of the samples, in ``space``.
        prototypes: as they came; they are taken to ``space`` here.
        bias: of the head.
        space: where the statistics were taken.
        spectra: eigenvalues of each class's scatter, if they are not to come from the statistics.
        scatter_of_means: the pooled scatter seen by the centered means, M S Mᵀ, likewise.
        agreement: the share of samples on which the classifier and the nearest class mean agree.
    """

    statistics: ClassStatistics
    prototypes: Float[Tensor, "classes dim"] | None = None
    bias: Float[Tensor, "classes"] | None = None
    space: Space = "sphere"
    spectra: Iterable[Float[Tensor, "_"]] | None = None
    scatter_of_means: Float[Tensor, "classes classes"] | None = None
    agreement: float | None = None

    @cached_property
    def means(self) -> Frame:
        """The class means."""
        return collapse.means_frame(self.statistics)

    @cached_property
    def weights(self) -> Frame:
        """The prototypes."""
        if self.prototypes is None:
            raise UndefinedMetricError("it needs prototypes; none were given")
        frame = collapse.weights_frame(self.prototypes.detach().to(self.statistics.means.device))
        if self.space == "raw":
            return frame
        return Frame(
            normalize(frame.vectors),
            frame.what,
            frame.vectors.new_tensor(torch.finfo(self.prototypes.dtype).eps),
        )

    @cached_property
    def head_bias(self) -> Tensor:
        """The bias of the head."""
        if self.bias is None:
            raise UndefinedMetricError("it needs the head's bias; none was given")
        return self.bias.detach().to(self.statistics.means)

    @cached_property
    def information(self) -> Information:
        """MIR and HDR."""
        return matrix_information(self.statistics, self.weights, self.means)

    @cached_property
    def published_information(self) -> Information:
        """MIR and HDR as the paper's authors computed them."""
        if self.space == "raw":
            raise UndefinedMetricError(
                "the published MIR and HDR are of unit features; the space is raw"
            )
        return matrix_information(self.statistics, self.weights, self.means, form="published")


def _agreement(evidence: Evidence) -> Tensor:
    evidence.weights  # noqa: B018  Without prototypes that is the reason.
    if evidence.agreement is None:
        raise UndefinedMetricError(
            "it needs a second look at the samples, which only measure() has"
        )
    return evidence.statistics.means.new_tensor(evidence.agreement)


_FORMULAS: dict[str, Callable[[Evidence], Tensor]] = {
    "nc1_ratio": lambda e: collapse.nc1_ratio(e.statistics, e.means),
    "nc1_trace": lambda e: collapse.nc1_trace(e.statistics, e.means, e.scatter_of_means),
    "cdnv": lambda e: collapse.cdnv(e.statistics, e.means),
    "instance_alignment": lambda e: alignment.instance_alignment(e.statistics),
    "intra_effective_rank": lambda e: ranks.intra_effective_rank(e.statistics, e.spectra),
    "inter_effective_rank": lambda e: ranks.frame_effective_rank(e.means),
    "weights_effective_rank": lambda e: ranks.frame_effective_rank(e.weights),
    "nc2_norms": lambda e: collapse.nc2_norms(e.means),
    "nc2_angles": lambda e: collapse.nc2_angles(e.means),
    "nc2_simplex": lambda e: collapse.nc2_simplex(e.means),
    "nc2_gram": lambda e: collapse.nc2_gram(e.means),
    "nc2_norms_weights": lambda e: collapse.nc2_norms(e.weights),
    "nc2_angles_weights": lambda e: collapse.nc2_angles(e.weights),
    "nc2_simplex_weights": lambda e: collapse.nc2_simplex(e.weights),
    "nc2_gram_weights": lambda e: collapse.nc2_gram(e.weights),
    "gnc2_mean": lambda e: collapse.gnc2_mean(e.means),
    "gnc2_variance": lambda e: collapse.gnc2_variance(e.means),
    "weight_class_alignment": lambda e: alignment.weight_class_alignment(
        e.weights, e.means, space=e.space
    ),
    "weight_instance_alignment": lambda e: alignment.weight_instance_alignment(
        e.statistics, e.weights
    ),
    "nc3_cosine": lambda e: collapse.nc3_cosine(e.weights, e.means),
    "nc3_duality": lambda e: collapse.nc3_duality(e.weights, e.means),
    "unc3": lambda e: collapse.unc3(e.weights, e.means),
    "mir": lambda e: e.information.mir,
    "hdr": lambda e: e.information.hdr,
    "mir_published": lambda e: e.published_information.mir,
    "hdr_published": lambda e: e.published_information.hdr,
    "nc4_agreement": _agreement,
    "bias_spread": lambda e: collapse.bias_spread(e.head_bias),
    "bias_offset": lambda e: collapse.bias_offset(e.head_bias, e.weights, e.means),
}


def evaluate(evidence: Evidence, names: Sequence[str]) -> Suite:
    """Calculate the named metrics.

    Args:
        evidence: what they are calculated from.
        names: which ones, as :func:`protosphere.metrics.catalog.select` gives them.

    Returns:
        Values in the order of the catalog, and a reason for every name without a value.

    Raises:
        ValueError: features or prototypes are too long or too short to be calculated with.
    """
    _check_size(
        "features", evidence.statistics.means.square().sum(1) + evidence.statistics.variances()
    )
    if evidence.prototypes is not None and evidence.space == "raw":
        _check_size("prototypes", evidence.prototypes.detach().double().square().sum(1))
    values: dict[str, Tensor] = {}
    absent: dict[str, str] = {}
    for name in (name for name in DEFINITIONS if name in names):
        try:
            values[name] = _FORMULAS[name](evidence)
        except UndefinedMetricError as reason:
            absent[name] = str(reason)
    return Suite(values, absent)


def _check_size(what: str, squares: Tensor) -> None:
    """Raise ValueError where fourth powers of lengths, which some metrics take, would leave the range of float64."""
    largest = float(squares.max()) if len(squares) else 0.0
    if not (largest == 0 or 1e-140 < largest < 1e140):
        raise ValueError(
            f"{what} must have lengths between 1e-70 and 1e70, so rescale them; got {largest**0.5:.1e}"
        )
