"""The four conditions of neural collapse, and their forms for any number of classes, as numbers."""

import torch
from jaxtyping import Float
from torch import Tensor

from protosphere.geometry.class_statistics import ClassStatistics
from protosphere.geometry.sphere import unit_squared_chords
from protosphere.metrics.frame import Frame, UndefinedMetricError, named


def means_frame(statistics: ClassStatistics) -> Frame:
    """The class means as a frame.

    Raises:
        UndefinedMetricError: a class has no sample.
    """
    if statistics.num_classes < 2:
        raise UndefinedMetricError(
            f"collapse is about two classes or more; got {statistics.num_classes}"
        )
    empty = statistics.counts == 0
    if bool(empty.any()):
        raise UndefinedMetricError(f"every class must have a sample; {named(empty, 'has none')}")
    squares = statistics.means.square().sum(1) + statistics.variances()
    return Frame(statistics.means, "class means", statistics.resolution, squares.mean())


def weights_frame(prototypes: Float[Tensor, "classes dim"]) -> Frame:
    """The prototypes as a frame."""
    vectors = prototypes.double()
    return Frame(vectors, "prototypes", vectors.new_tensor(torch.finfo(prototypes.dtype).eps))


def within_variance(statistics: ClassStatistics) -> Float[Tensor, ""]:
    """tr Σ_W = Σ_c n_c v_c / N: the variance within classes, pooled, 1/N.

    Raises:
        UndefinedMetricError: no class has two samples.
    """
    if not bool((statistics.counts > 1).any()):
        raise UndefinedMetricError(
            "variance within a class needs two samples of it; no class has two"
        )
    return (statistics.variances() * statistics.counts).sum() / statistics.counts.sum()


def nc1_ratio(statistics: ClassStatistics, means: Frame) -> Float[Tensor, ""]:
    """Variance within classes by variance between them: tr Σ_W / tr Σ_B. At collapse 0, with ReLU features too."""
    return within_variance(statistics) / means.variance


def nc1_trace(
    statistics: ClassStatistics,
    means: Frame,
    scatter_of_means: Float[Tensor, "classes classes"] | None = None,
) -> Float[Tensor, ""]:
    """The same counted in each direction of the means by itself: tr(Σ_W Σ_B⁺)/K. At collapse 0, with ReLU features too.

    With M the centered means and M Mᵀ = Q Λ Qᵀ, Σ_B⁺ = K Mᵀ Q Λ⁻² Qᵀ M over the positive Λ, so only M S Mᵀ is needed of
    the scatter S = N Σ_W: no pseudo-inverse of a d × d matrix.

    Args:
        statistics: with the pooled scatter, unless the next is given.
        means: their class means.
        scatter_of_means: M S Mᵀ, where it is known already.
    """
    within_variance(statistics)
    means.variance  # noqa: B018  They must differ.
    if not bool(statistics.spreads.any()):
        return statistics.spreads.new_zeros(())
    if scatter_of_means is None:
        scatter_of_means = means.centered @ statistics.scatter() @ means.centered.T
    values, vectors = torch.linalg.eigh(means.gram)
    # Directions of rounding, in float64 or of the input, are none that the means span.
    noise = statistics.resolution**2 * means.scale * max(1.0, len(means) / statistics.dim)
    kept = values > torch.maximum(
        values[-1] * max(means.centered.shape) * torch.finfo(values.dtype).eps, noise
    )
    seen = ((vectors.T @ scatter_of_means) * vectors.T).sum(1)
    return (
        torch.where(kept, seen / torch.where(kept, values, 1) ** 2, 0).sum()
        / statistics.counts.sum()
    )


def cdnv(statistics: ClassStatistics, means: Frame) -> Float[Tensor, ""]:
    """Class-distance normalized variance: mean_{c≠c'} (v_c + v_c')/(2‖μ_c − μ_c'‖²). At collapse 0, with ReLU too.

    Reference:
        Galanti, György and Hutter, On the role of neural collapse in transfer learning, ICLR 2022.
    """
    alone = statistics.counts < 2
    if bool(alone.any()):
        raise UndefinedMetricError(
            f"variance within a class needs two samples of it; {named(alone, 'has one')}"
        )
    squares = means.gram.diagonal()
    distances = squares[:, None] + squares - 2 * means.gram
    rows, columns = torch.triu_indices(len(means), len(means), 1, device=distances.device)
    distances = distances[rows, columns]
    # Means so near that the products have no digits left for them; few, so each is taken by itself.
    near = torch.nonzero(distances < 1e-6 * squares.max()).flatten()
    for start in range(0, len(near), 1024):
        few = near[start : start + 1024]
        distances[few] = (means.centered[rows[few]] - means.centered[columns[few]]).square().sum(1)
    if bool((distances <= means.least).any()):
        raise UndefinedMetricError("class means must differ; two of them coincide")
    variances = statistics.variances()
    return ((variances[rows] + variances[columns]) / (2 * distances)).mean()


def nc2_norms(frame: Frame) -> Float[Tensor, ""]:
    """How unequal the lengths of the centered vectors are: std/mean of ‖v_c‖. At collapse 0, with ReLU features too."""
    frame.variance  # noqa: B018  They must differ.
    return frame.lengths.std(correction=0) / frame.lengths.mean()


def nc2_angles(frame: Frame) -> Float[Tensor, ""]:
    """How unequal the angles are: std of cos(v_c, v_c') over pairs. At collapse 0, with ReLU features too."""
    return frame.pairs.std(correction=0)


def nc2_simplex(frame: Frame) -> Float[Tensor, ""]:
    """How far from the simplex the angles are: mean_{c≠c'} |cos + 1/(K−1)|. At collapse 0, with ReLU features too."""
    return (frame.pairs + 1 / (len(frame) - 1)).abs().mean()


def nc2_gram(frame: Frame) -> Float[Tensor, ""]:
    """Lengths and angles at once: ‖G/‖G‖_F − (I − 11ᵀ/K)/√(K−1)‖_F. At collapse 0, with ReLU features too."""
    frame.variance  # noqa: B018  They must differ.
    classes = len(frame)
    simplex = torch.eye(classes).to(frame.gram) - 1 / classes
    gram = frame.gram / torch.linalg.matrix_norm(frame.gram)
    distance: Tensor = torch.linalg.matrix_norm(gram - simplex / (classes - 1) ** 0.5)
    return distance


def nc3_duality(weights: Frame, means: Frame) -> Float[Tensor, ""]:
    """Prototypes against centered means as matrices: ‖W/‖W‖_F − M/‖M‖_F‖². At collapse 0, with ReLU features too."""
    means.variance  # noqa: B018  They must differ.
    if not bool(weights.scale > 0):
        raise UndefinedMetricError("prototypes must not all be zero; they are")
    matrices = (weights.vectors, means.centered)
    ours, theirs = (matrix / matrix.square().sum().sqrt() for matrix in matrices)
    return (ours - theirs).square().sum()


def nc3_cosine(weights: Frame, means: Frame) -> Float[Tensor, ""]:
    """Prototypes against centered means one by one: mean_c 1 − cos(w_c, μ_c). At collapse 0, with ReLU features too."""
    # 1 − cos = ‖u − v‖²/2 keeps its digits where the two nearly coincide.
    return _weight_chords(weights, means).mean() / 2


def unc3(weights: Frame, means: Frame) -> Float[Tensor, ""]:
    """How unequal that is between classes: variance of cos(w_c, μ_c). At collapse 0, with ReLU features too."""
    return (_weight_chords(weights, means) / 2).var(correction=0)


def _weight_chords(weights: Frame, means: Frame) -> Tensor:
    return unit_squared_chords(_directions(weights), means.unit)


def _directions(frame: Frame) -> Tensor:
    """The vectors themselves, not centered, on the unit sphere."""
    lengths = torch.linalg.vector_norm(frame.vectors, dim=1, keepdim=True)
    if bool((lengths == 0).any()):
        zero = named((lengths == 0).flatten(), "is zero")
        raise UndefinedMetricError(f"{frame.what} must have a direction; that of {zero}")
    directions: Tensor = frame.vectors / lengths
    return directions


def gnc2_mean(means: Frame) -> Float[Tensor, ""]:
    """Uniformity of the means on the sphere: mean_{c≠c'} ln 1/‖v_c − v_c'‖ of unit centered means.

    At collapse −½ ln(2K/(K−1)), with ReLU features too; defined for K > d + 1 as well, where there is no simplex.
    """
    return _log_kernel(means).mean()


def gnc2_variance(means: Frame) -> Float[Tensor, ""]:
    """How unequal that is between pairs: variance of ln 1/‖v_c − v_c'‖. At collapse 0, with ReLU features too."""
    return _log_kernel(means).var(correction=0)


def _log_kernel(means: Frame) -> Tensor:
    squares = 2 - 2 * means.pairs
    rows, columns = torch.triu_indices(len(means), len(means), 1, device=squares.device)
    # Where two directions nearly agree the cosine has no digits left for their distance.
    near = torch.nonzero(squares < 1e-6).flatten()
    for start in range(0, len(near), 1024):
        few = near[start : start + 1024]
        squares[few] = (means.unit[rows[few]] - means.unit[columns[few]]).square().sum(1)
    inverse = means.least / means.lengths.square()
    if bool((squares <= inverse[rows] + inverse[columns]).any()):
        raise UndefinedMetricError(
            "centered class means must have different directions; two of them agree"
        )
    return -squares.log() / 2


def bias_spread(bias: Float[Tensor, "classes"]) -> Float[Tensor, ""]:
    """How unequal the biases of a head are: std(b). At collapse 0, with ReLU features too."""
    return bias.double().std(correction=0)


def bias_offset(bias: Float[Tensor, "classes"], weights: Frame, means: Frame) -> Float[Tensor, ""]:
    """What a head says of the mean of all: ‖W μ_G + b‖, μ_G the mean of the class means. At collapse 0."""
    return (weights.vectors @ means.vectors.mean(0) + bias.double()).square().sum().sqrt()
