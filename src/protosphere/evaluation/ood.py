"""Scores that tell images of unknown classes from images of known ones.

Every score is oriented the same way: higher means more like the training images. A score here
ranks images; what it is worth is measured by :func:`protosphere.evaluation.detection_metrics`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Float, Integer
from torch import Tensor

from protosphere.classifiers import WhitenedClassMeans, rejection_score, whitened_class_means
from protosphere.classifiers.protocol import Head
from protosphere.classifiers.whitening import Shrinkage
from protosphere.data.progress import Progress, no_progress
from protosphere.geometry.sphere import normalize

OodScore = Literal["cosine", "energy", "softmax", "subspace", "mahalanobis", "knn"]
OOD_SCORES: tuple[OodScore, ...] = get_args(OodScore)
_CHUNK_ROWS = 2048
# Cosines of the score knn that are held at once.
_MAX_PAIRS = 1 << 26


def cosine_score(
    features: Float[Tensor, "samples dim"], prototypes: Float[Tensor, "classes dim"]
) -> Float[Tensor, "samples"]:
    """Return max_c cos(z, w_c), the cosine with the nearest prototype.

    Args:
        features: Features, of any norm.
        prototypes: One prototype per class, of any norm.

    >>> cosine_score(torch.tensor([[2.0, 0.0], [-1.0, 0.0]]), torch.tensor([[1.0, 0.0]]))
    tensor([ 1., -1.])
    """
    return -rejection_score(features, prototypes)


def energy_score(logits: Float[Tensor, "samples classes"]) -> Float[Tensor, "samples"]:
    """Return log Σ_c exp(z_c) of the logits, minus the energy of the literature.

    Args:
        logits: One logit per sample and class.

    >>> energy_score(torch.zeros(1, 2))
    tensor([0.6931])

    Reference:
        Liu et al., Energy-based Out-of-distribution Detection, NeurIPS 2020.
    """
    return logits.logsumexp(1)


def softmax_score(logits: Float[Tensor, "samples classes"]) -> Float[Tensor, "samples"]:
    """Return log max_c p_c of the softmax, in float64.

    The logarithm orders samples as the probability does, and keeps apart those whose probability
    is 1 in floating point.

    Args:
        logits: One logit per sample and class, on a device that supports float64.

    >>> softmax_score(torch.zeros(1, 2)).exp()
    tensor([0.5000], dtype=torch.float64)

    Reference:
        Hendrycks and Gimpel, A Baseline for Detecting Misclassified and Out-of-Distribution
        Examples in Neural Networks, ICLR 2017.
    """
    values = logits.double()
    largest, index = values.max(1, keepdim=True)
    others = (values - largest).exp().scatter(1, index, 0.0)
    return -others.sum(1).log1p()


def prototype_basis(
    prototypes: Float[Tensor, "classes dim"],
) -> Float[Tensor, "dim rank"]:
    """Return an orthonormal basis of the span of the prototypes, in float64.

    Directions whose singular value is within the rounding of the unit prototypes do not count: a
    simplex of K prototypes spans K − 1 dimensions.

    Args:
        prototypes: One prototype per class, of any norm.

    >>> prototype_basis(torch.tensor([[2.0, 0.0, 0.0], [-1.0, 0.0, 0.0]])).shape
    torch.Size([3, 1])
    """
    unit = normalize(prototypes.detach().double())
    _, singular, directions = torch.linalg.svd(unit, full_matrices=False)
    eps = torch.finfo(prototypes.dtype).eps
    kept = singular > max(unit.shape) * eps * singular.max()
    basis: Tensor = directions[kept].T
    return basis


def subspace_score(
    features: Float[Tensor, "samples dim"], basis: Float[Tensor, "dim rank"]
) -> Float[Tensor, "samples"]:
    """Return −‖u − BBᵀu‖, minus the distance of the unit feature u to the span of the prototypes.

    Args:
        features: Features, of any norm.
        basis: Orthonormal basis of the span, as :func:`prototype_basis` returns it.

    >>> basis = prototype_basis(torch.tensor([[1.0, 0.0, 0.0]]))
    >>> subspace_score(torch.tensor([[5.0, 0.0, 0.0], [0.0, 2.0, 0.0]]), basis)
    tensor([-0., -1.], dtype=torch.float64)
    """
    unit = normalize(features.to(basis))
    residuals: Tensor = torch.linalg.vector_norm(unit - unit @ basis @ basis.T, dim=1)
    return -residuals


def mahalanobis_score(
    features: Float[Tensor, "samples dim"], means: WhitenedClassMeans
) -> Float[Tensor, "samples"]:
    """Return −min_c (u − μ_c)ᵀ Σ⁻¹ (u − μ_c) of the unit features u, in float64.

    Σ is the shrunk pooled within-class covariance of unit training features: on raw features the
    norm, which is no part of a class, dominates the distance.

    Args:
        features: Features, of any norm.
        means: Whitened class means of the training features.

    >>> from protosphere.classifiers import whitened_class_means
    >>> known, labels = torch.tensor([[1.0, 0.1], [1.0, -0.1], [0.1, 1.0]]), torch.tensor([0, 0, 1])
    >>> means = whitened_class_means(known, labels, num_classes=2, shrinkage=0.5)
    >>> scores = mahalanobis_score(torch.tensor([[2.0, 0.1], [-1.0, -1.0]]), means)
    >>> bool(scores[0] > scores[1])
    True

    Reference:
        Lee et al., A Simple Unified Framework for Detecting Out-of-Distribution Samples and
        Adversarial Attacks, NeurIPS 2018; Müller and Hein, Mahalanobis++: Improving OOD Detection
        via Feature Normalization, ICML 2025.
    """
    # In float64: near collapse whitened means are as long as 1e7, and distances about √d.
    return means.scores(features.double(), rule="nearest").amax(1).clamp(max=0)


def knn_score(
    features: Float[Tensor, "samples dim"],
    known: Float[Tensor, "train dim"],
    *,
    num_neighbors: int = 50,
) -> Float[Tensor, "samples"]:
    """Return minus the distance to the k-th nearest unit training feature.

    Args:
        features: Features, of any norm.
        known: Unit training features, on the same device.
        num_neighbors: k; all training features if there are fewer.

    Raises:
        ValueError: k is less than 1.

    >>> known = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> knn_score(torch.tensor([[3.0, 0.0]]), known, num_neighbors=1)
    tensor([-0.])

    Reference:
        Sun et al., Out-of-Distribution Detection with Deep Nearest Neighbors, ICML 2022.
    """
    _check_neighbors(num_neighbors)
    neighbors = min(num_neighbors, len(known))
    scores = []
    # In chunks: all pairs at once may not fit into memory.
    for chunk in normalize(features).split(max(1, _MAX_PAIRS // len(known))):
        last = (chunk @ known.T).topk(neighbors, dim=1).indices[:, -1]
        # From the vectors: a cosine near 1 has few digits of the distance left.
        scores.append(-torch.linalg.vector_norm(chunk - known[last], dim=1))
    return torch.cat(scores)


@dataclass(frozen=True)
class OodDetector:
    """All scores of a trained model, fitted to its training features by :func:`fit_detector`.

    Attributes:
        scores: Function from features to a score, by name.
        absent: Why a score has no value for this model, by name.
    """

    scores: Mapping[OodScore, Callable[[Tensor], Tensor]]
    absent: Mapping[OodScore, str]

    @torch.no_grad()
    def __call__(
        self, features: Float[Tensor, "samples dim"], *, progress: Progress = no_progress
    ) -> dict[OodScore, Float[Tensor, "samples"]]:
        """Return every score of features, in float64 on the CPU.

        Args:
            features: Features as the head receives them.
            progress: Called with the fraction of the features that is done.
        """
        collected: dict[OodScore, list[Tensor]] = {name: [] for name in self.scores}
        num_done = 0
        for chunk in features.split(_CHUNK_ROWS):
            for name, score in self.scores.items():
                # To the CPU first: not every device has float64.
                collected[name].append(score(chunk).cpu().double())
            num_done += len(chunk)
            progress(num_done / len(features))
        return {name: torch.cat(values) for name, values in collected.items()}


@torch.no_grad()
def fit_detector(
    head: Head,
    features: Float[Tensor, "train dim"],
    labels: Integer[Tensor, "train"],
    *,
    num_neighbors: int = 50,
    shrinkage: Shrinkage = "auto",
) -> OodDetector:
    """Fit the scores of a model to its training features.

    Args:
        head: Head of the model, with its prototypes.
        features: Training features as the head receives them, on a device that supports float64.
        labels: Class index of each feature.
        num_neighbors: k of the score ``knn``.
        shrinkage: Shrinkage of the covariance of the score ``mahalanobis``.

    Returns:
        The scores. One that has no value for this model is absent, with the reason.

    Raises:
        ValueError: Shapes or labels do not match, or an option is out of its range.
    """
    prototypes = head.prototypes.detach().to(features.device)
    num_classes, dim = prototypes.shape
    means = whitened_class_means(features, labels, num_classes=num_classes, shrinkage=shrinkage)
    known, basis = normalize(features), prototype_basis(prototypes)
    _check_neighbors(num_neighbors)

    def logits(queries: Tensor) -> Tensor:
        return head(queries.to(head.prototypes.device)).to(queries.device)

    scores: dict[OodScore, Callable[[Tensor], Tensor]] = {
        "cosine": lambda queries: cosine_score(queries, prototypes),
        "energy": lambda queries: energy_score(logits(queries)),
        "softmax": lambda queries: softmax_score(logits(queries)),
        "subspace": lambda queries: subspace_score(queries, basis),
        "mahalanobis": lambda queries: mahalanobis_score(queries, means),
        "knn": lambda queries: knn_score(queries, known, num_neighbors=num_neighbors),
    }
    absent: dict[OodScore, str] = {}
    if basis.shape[1] == dim:
        del scores["subspace"]
        absent["subspace"] = f"the prototypes span all {dim} dimensions of the features"
    return OodDetector(scores, absent)


def _check_neighbors(num_neighbors: int) -> None:
    if num_neighbors < 1:
        raise ValueError(f"num_neighbors must be at least 1, got {num_neighbors}")
