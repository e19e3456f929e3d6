"""The formula of each metric, from class statistics, class means and prototypes.

Each function is one row of :data:`protosphere.metrics.catalog.CATALOG`, which names its inputs.
Where the value at collapse is given, features that end in a ReLU reach the same value unless the
docstring says otherwise.
"""

from collections.abc import Iterable

import torch
from jaxtyping import Float
from torch import Tensor

from protosphere.geometry.class_statistics import ClassStatistics, Space
from protosphere.geometry.spectrum import effective_rank, symmetric_eigenvalues, thread_map
from protosphere.geometry.sphere import unit_squared_chords
from protosphere.metrics.centered import CenteredVectors, UndefinedMetricError, list_classes

# Class means shorter than this, on the unit sphere, have no accurate direction.
_MIN_MEAN_NORM = 1e-12
# Relative squared distance below which differences are computed directly, pair by pair.
_CANCELLATION = 1e-6
_PAIRS_AT_ONCE = 1024


def nc1_ratio(statistics: ClassStatistics, means: CenteredVectors) -> Float[Tensor, ""]:
    """Within-class variance over between-class variance: tr Σ_W / tr Σ_B. At collapse 0."""
    return _within_variance(statistics) / means.variance


def nc1_trace(
    statistics: ClassStatistics,
    means: CenteredVectors,
    projected_scatter: Float[Tensor, "classes classes"] | None = None,
) -> Float[Tensor, ""]:
    """Within-class variance relative to each between-class direction: tr(Σ_W Σ_B⁺)/K.

    At collapse 0. With M the centered means and M Mᵀ = Q Λ Qᵀ, Σ_B⁺ = K Mᵀ Q Λ⁻² Qᵀ M over the
    positive Λ, so that only M S Mᵀ of the scatter S = N Σ_W is needed, and no d × d pseudo-inverse.

    Args:
        statistics: Class statistics; with the pooled scatter unless ``projected_scatter`` is given.
        means: Class means.
        projected_scatter: M S Mᵀ, if it is already known.
    """
    _within_variance(statistics)
    means.check_distinct()
    if not bool(statistics.sum_sq_dev.any()):
        return statistics.sum_sq_dev.new_zeros(())
    if projected_scatter is None:
        projected_scatter = means.centered @ statistics.scatter() @ means.centered.T
    values, vectors = torch.linalg.eigh(means.gram)
    # Directions within the rounding of float64 or of the input are not spanned by the means.
    noise = statistics.input_eps**2 * means.scale * max(1.0, len(means) / statistics.dim)
    rounding = values[-1] * max(means.centered.shape) * torch.finfo(values.dtype).eps
    kept = values > torch.maximum(rounding, noise)
    variances = ((vectors.T @ projected_scatter) * vectors.T).sum(1)
    ratios = torch.where(kept, variances / torch.where(kept, values, 1) ** 2, 0)
    return ratios.sum() / statistics.counts.sum()


def cdnv(statistics: ClassStatistics, means: CenteredVectors) -> Float[Tensor, ""]:
    """Class-distance normalized variance: mean_{c≠c'} (v_c + v_c')/(2‖μ_c − μ_c'‖²). At collapse 0.

    Reference:
        Galanti, György and Hutter, On the role of neural collapse in transfer learning, ICLR 2022.
    """
    _check_two_samples(statistics)
    squares = means.gram.diagonal()
    rows, columns = torch.triu_indices(len(means), len(means), 1, device=squares.device)
    distances = (squares[:, None] + squares - 2 * means.gram)[rows, columns]
    close = distances < _CANCELLATION * squares.max()
    distances = _exact_distances(distances, close, means.centered, rows, columns)
    if bool((distances <= means.min_squared_distance).any()):
        raise UndefinedMetricError("two class means coincide")
    variances = statistics.variances()
    return ((variances[rows] + variances[columns]) / (2 * distances)).mean()


def instance_alignment(statistics: ClassStatistics) -> Float[Tensor, ""]:
    """Mean of ‖u_i − u_j‖² over all pairs i ≠ j of the same class. At collapse 0.

    = Σ_c 2 n_c S_c / Σ_c n_c (n_c − 1), S_c = Σ_{i: y_i=c} ‖u_i − μ_c‖².
    """
    counts = statistics.counts
    num_pairs = (counts * (counts - 1)).sum()
    if not bool(num_pairs > 0):
        raise UndefinedMetricError("no class has two samples")
    return (2 * counts.square() * statistics.variances()).sum() / num_pairs


def intra_effective_rank(
    statistics: ClassStatistics, class_spectra: Iterable[Float[Tensor, "_"]] | None = None
) -> Float[Tensor, ""]:
    """Mean effective rank of the class covariances: mean_c erank(Cov of u_i − μ_c). At collapse 0.

    A zero covariance has rank 0 and any other at least 1. The rank measures the shape of the
    within-class variance, not its size, and grows with the number of samples.

    Args:
        statistics: Class statistics; with class scatters unless ``class_spectra`` is given.
        class_spectra: Eigenvalues of the scatter of each class, if they are already known.

    Raises:
        UndefinedMetricError: A class has fewer than two samples.
    """
    if not statistics.num_classes:
        raise UndefinedMetricError("there are no samples")
    _check_two_samples(statistics)
    if class_spectra is not None:
        return _mean_effective_rank(statistics, class_spectra)
    scatters = statistics.class_scatters()
    if statistics.means.device.type != "cpu":
        return _mean_effective_rank(statistics, map(symmetric_eigenvalues, scatters))
    with thread_map(symmetric_eigenvalues, scatters) as spectra:
        return _mean_effective_rank(statistics, spectra)


def between_effective_rank(vectors: CenteredVectors) -> Float[Tensor, ""]:
    """Effective rank of the covariance of the K class means or prototypes. At collapse K − 1.

    At most d in d < K − 1 dimensions; 0 if the vectors coincide.
    """
    if vectors.collapsed:
        return vectors.vectors.new_zeros(())
    # The d × d covariance and the K × K Gram matrix have the same positive eigenvalues.
    centered = vectors.centered
    tall = centered.shape[0] > centered.shape[1]
    return effective_rank(symmetric_eigenvalues(centered.T @ centered if tall else vectors.gram))


def nc2_norms(vectors: CenteredVectors) -> Float[Tensor, ""]:
    """Coefficient of variation of the norms of the centered vectors. At collapse 0."""
    vectors.check_distinct()
    return vectors.norms.std(correction=0) / vectors.norms.mean()


def nc2_angles(vectors: CenteredVectors) -> Float[Tensor, ""]:
    """Standard deviation of the cosines of pairs of centered vectors. At collapse 0."""
    return vectors.pairwise_cosines.std(correction=0)


def nc2_simplex(vectors: CenteredVectors) -> Float[Tensor, ""]:
    """Distance of the cosines from a simplex: mean_{c≠c'} |cos + 1/(K−1)|. At collapse 0."""
    return (vectors.pairwise_cosines + 1 / (len(vectors) - 1)).abs().mean()


def nc2_coherence(vectors: CenteredVectors) -> Float[Tensor, ""]:
    """Excess of the largest cosine over a simplex: max_{c≠c'} cos + 1/(K−1). At collapse 0."""
    return vectors.pairwise_cosines.max() + 1 / (len(vectors) - 1)


def nc2_gram(vectors: CenteredVectors) -> Float[Tensor, ""]:
    """Gram matrix against a simplex: ‖G/‖G‖_F − (I − 11ᵀ/K)/√(K−1)‖_F. At collapse 0."""
    vectors.check_distinct()
    num_classes = len(vectors)
    simplex = torch.eye(num_classes).to(vectors.gram) - 1 / num_classes
    gram = vectors.gram / torch.linalg.matrix_norm(vectors.gram)
    distance: Tensor = torch.linalg.matrix_norm(gram - simplex / (num_classes - 1) ** 0.5)
    return distance


def gnc2_mean(means: CenteredVectors) -> Float[Tensor, ""]:
    """Mean log kernel of the unit centered means: mean_{c≠c'} ln 1/‖v_c − v_c'‖.

    At collapse −½ ln(2K/(K−1)). Also defined for K > d + 1, where no simplex exists.
    """
    return _log_kernel(means).mean()


def gnc2_variance(means: CenteredVectors) -> Float[Tensor, ""]:
    """Variance of the log kernel over pairs: var ln 1/‖v_c − v_c'‖. At collapse 0."""
    return _log_kernel(means).var(correction=0)


def weight_class_alignment(
    weights: CenteredVectors, means: CenteredVectors, space: Space = "sphere"
) -> Float[Tensor, ""]:
    """Squared distance of prototypes and class means: mean_c ‖w_c − μ_c/‖μ_c‖‖². At collapse 0.

    In raw space mean_c ‖w_c − μ_c‖². Non-negative features have orthogonal means at best, and then
    2 − 2√(1 − 1/K) with simplex prototypes.
    """
    targets = means.vectors
    if space == "sphere":
        norms = torch.linalg.vector_norm(targets, dim=1, keepdim=True)
        zero = (norms < _MIN_MEAN_NORM).flatten()
        if bool(zero.any()):
            raise UndefinedMetricError(
                f"class means must be nonzero; {list_classes(zero, 'is zero')}"
            )
        targets = targets / norms
    return (weights.vectors - targets).square().sum(1).mean()


def weight_instance_alignment(
    statistics: ClassStatistics, weights: CenteredVectors
) -> Float[Tensor, ""]:
    """Squared distance of samples and their prototypes: mean_i ‖w_{y_i} − u_i‖². At collapse 0.

    = Σ_c (S_c + n_c ‖w_c − μ_c‖²)/N. For non-negative features at best 2 − 2√(1 − 1/K).
    """
    counts = statistics.counts
    if not bool(counts.sum() > 0):
        raise UndefinedMetricError("there are no samples")
    distances = (weights.vectors - statistics.means).square().sum(1)
    return (counts * (statistics.variances() + distances)).sum() / counts.sum()


def nc3_cosine(weights: CenteredVectors, means: CenteredVectors) -> Float[Tensor, ""]:
    """Mean of 1 − cos(w_c, μ_c) of prototypes and centered class means. At collapse 0."""
    return _cosine_distances(weights, means).mean()


def nc3_duality(weights: CenteredVectors, means: CenteredVectors) -> Float[Tensor, ""]:
    """Prototypes against centered means as matrices: ‖W/‖W‖_F − M/‖M‖_F‖². At collapse 0."""
    means.check_distinct()
    if not bool(weights.scale > 0):
        raise UndefinedMetricError("all prototypes are zero")
    left, right = (
        matrix / matrix.square().sum().sqrt() for matrix in (weights.vectors, means.centered)
    )
    return (left - right).square().sum()


def unc3(weights: CenteredVectors, means: CenteredVectors) -> Float[Tensor, ""]:
    """Variance over classes of cos(w_c, μ_c) with centered class means. At collapse 0."""
    return _cosine_distances(weights, means).var(correction=0)


def nc4_agreement(weights: CenteredVectors, agreement: float | None) -> Float[Tensor, ""]:
    """Fraction of samples that the head assigns to the nearest class mean. At collapse 1."""
    if agreement is None:
        raise UndefinedMetricError(
            "requires a second pass over the samples, which only measure() makes"
        )
    return weights.vectors.new_tensor(agreement)


def bias_spread(head_bias: Float[Tensor, "classes"]) -> Float[Tensor, ""]:
    """Standard deviation of the biases: std(b). At collapse 0."""
    return head_bias.double().std(correction=0)


def bias_offset(
    head_bias: Float[Tensor, "classes"], weights: CenteredVectors, means: CenteredVectors
) -> Float[Tensor, ""]:
    """Norm of the logits of the global mean: ‖W μ_G + b‖. At collapse 0."""
    return (weights.vectors @ means.vectors.mean(0) + head_bias.double()).square().sum().sqrt()


def _within_variance(statistics: ClassStatistics) -> Tensor:
    """tr Σ_W = Σ_c n_c v_c / N, the pooled within-class variance."""
    if not bool((statistics.counts > 1).any()):
        raise UndefinedMetricError("no class has two samples")
    return (statistics.variances() * statistics.counts).sum() / statistics.counts.sum()


def _check_two_samples(statistics: ClassStatistics) -> None:
    too_few = statistics.counts < 2
    if bool(too_few.any()):
        raise UndefinedMetricError(
            f"every class needs at least two samples; {list_classes(too_few, 'has fewer')}"
        )


def _mean_effective_rank(statistics: ClassStatistics, spectra: Iterable[Tensor]) -> Tensor:
    zero = statistics.sum_sq_dev.new_zeros(())
    # The rank of a covariance that is only rounding means nothing.
    pairs = zip(spectra, statistics.collapsed().tolist(), strict=True)
    return torch.stack(
        [zero if collapsed else effective_rank(values).to(zero) for values, collapsed in pairs]
    ).mean()


def _cosine_distances(weights: CenteredVectors, means: CenteredVectors) -> Tensor:
    """1 − cos(w_c, μ_c) = ‖u − v‖²/2, which is accurate where the two nearly coincide."""
    return unit_squared_chords(weights.directions, means.unit) / 2


def _log_kernel(means: CenteredVectors) -> Tensor:
    """ln 1/‖v_c − v_c'‖ of all pairs of unit centered means."""
    squares = 2 - 2 * means.pairwise_cosines
    rows, columns = torch.triu_indices(len(means), len(means), 1, device=squares.device)
    squares = _exact_distances(squares, squares < _CANCELLATION, means.unit, rows, columns)
    rounding = means.min_squared_distance / means.norms.square()
    if bool((squares <= rounding[rows] + rounding[columns]).any()):
        raise UndefinedMetricError("two centered class means have the same direction")
    return -squares.log() / 2


def _exact_distances(
    distances: Tensor, close: Tensor, vectors: Tensor, rows: Tensor, columns: Tensor
) -> Tensor:
    """Recompute the squared distances of close pairs, which inner products lose to cancellation."""
    indices = torch.nonzero(close).flatten()
    for start in range(0, len(indices), _PAIRS_AT_ONCE):
        pairs = indices[start : start + _PAIRS_AT_ONCE]
        distances[pairs] = (vectors[rows[pairs]] - vectors[columns[pairs]]).square().sum(1)
    return distances
