"""Matrix mutual information ratio (MIR) and entropy difference ratio (HDR)."""

from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from protosphere.geometry.class_statistics import ClassStatistics
from protosphere.geometry.spectrum import entropy, symmetric_eigenvalues
from protosphere.geometry.sphere import normalize
from protosphere.metrics.centered import CenteredVectors, UndefinedMetricError

Form = Literal["centered", "published"]

# Norm of the sample mean below which its direction, which the published form uses, is noise.
_MIN_SAMPLE_MEAN = 1e-6
_MIN_ENTROPY = 1e-9


class Information(NamedTuple):
    """The two ratios of one pair of Gram matrices.

    Attributes:
        mir: Matrix mutual information ratio.
        hdr: Matrix entropy difference ratio.
    """

    mir: Float[Tensor, ""]
    hdr: Float[Tensor, ""]


def mir(information: Information) -> Float[Tensor, ""]:
    """MIR. At collapse 1/(K−1) + (K−2) ln(K−2)/((K−1) ln(K−1))."""
    return information.mir


def hdr(information: Information) -> Float[Tensor, ""]:
    """HDR. At collapse 0."""
    return information.hdr


def matrix_information(
    statistics: ClassStatistics,
    weights: CenteredVectors,
    means: CenteredVectors,
    *,
    form: Form = "centered",
) -> Information:
    """Return MIR and HDR of the Gram matrices of the class means, G_M, and of the prototypes, G_W.

    H(G) = −tr(G/K ln G/K), MIR = (H_W + H_M − H(G_W∘G_M))/min(H_W, H_M),
    HDR = |H_W − H_M|/max(H_W, H_M).

    ``"centered"``: centered class means, normalized; normalized prototypes, centered, normalized
    again. At collapse, also with ReLU features, HDR = 0 and
    MIR = 1/(K−1) + (K−2) ln(K−2)/((K−1) ln(K−1)).

    ``"published"``, as the authors of the paper computed the values in its table: normalized
    prototypes, not centered; unit class means minus the *normalized* sample mean of unit features,
    normalized. With non-negative features at their optimum HDR = 0.050 and 0.300, MIR = 0.952 and
    0.997 for K = 10 and 100. At exact collapse the sample mean is zero and they are undefined.

    Args:
        statistics: Class statistics on the unit sphere.
        weights: Prototypes.
        means: Class means.
        form: Which of the two definitions to use.

    Returns:
        The two ratios.

    Raises:
        UndefinedMetricError: There are two classes (0/0), a class mean has no direction, or the
            published form has no sample mean to subtract.

    Reference:
        Song et al., Unveiling the dynamics of information interplay in supervised learning,
        ICML 2024.
    """
    if len(means) < 3:
        raise UndefinedMetricError("requires three classes: both entropies of two classes are zero")
    if form == "centered":
        unit_weights = CenteredVectors(
            normalize(weights.vectors), weights.name, weights.vectors.new_tensor(0.0)
        )
        return _ratios(unit_weights.cosines, means.cosines)
    sample_mean = (statistics.counts[:, None] * statistics.means).sum(0) / statistics.counts.sum()
    if not bool(torch.linalg.vector_norm(sample_mean) >= _MIN_SAMPLE_MEAN):
        raise UndefinedMetricError(
            "the published form subtracts the direction of the sample mean, which is zero"
        )
    directions = normalize(weights.vectors)
    shifted = normalize(normalize(means.vectors) - normalize(sample_mean))
    return _ratios(directions @ directions.T, shifted @ shifted.T)


def _ratios(weights_gram: Tensor, means_gram: Tensor) -> Information:
    of_weights, of_means, joint = (
        entropy(symmetric_eigenvalues(gram))
        for gram in (weights_gram, means_gram, weights_gram * means_gram)
    )
    smaller, larger = torch.minimum(of_weights, of_means), torch.maximum(of_weights, of_means)
    if not bool(smaller > _MIN_ENTROPY):
        raise UndefinedMetricError("all class means or all prototypes lie on one line")
    return Information(
        mir=(of_weights + of_means - joint) / smaller, hdr=(of_weights - of_means).abs() / larger
    )
