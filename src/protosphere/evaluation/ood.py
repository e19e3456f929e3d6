"""Scores that tell images of unknown classes from images of known ones.

Every score is oriented the same way: higher means more like the training images. A score here
ranks images; what it is worth is measured by :func:`protosphere.evaluation.detection_metrics`.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from protosphere.classifiers import rejection_score
from protosphere.classifiers.protocol import Head
from protosphere.data.loaders import Loader
from protosphere.data.progress import no_progress
from protosphere.evaluation.inference import (
    LabeledFeatures,
    iterate_features,
    measuring_device,
    with_progress,
)
from protosphere.geometry.class_statistics import ClassStatistics, empty_statistics
from protosphere.geometry.sphere import normalize
from protosphere.training import Objective

OodScore = Literal["cosine", "energy", "softmax", "subspace", "mahalanobis", "knn"]
OOD_SCORES: tuple[OodScore, ...] = get_args(OodScore)
_CHUNK_ROWS = 2048
# Training features that the score knn keeps in memory, in bytes.
_MAX_KNOWN_BYTES = 4 << 30


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
    return directions[kept].T


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
    return -torch.linalg.vector_norm(unit - unit @ basis @ basis.T, dim=1)


@dataclass(frozen=True)
class MahalanobisDistance:
    """Squared distances to class means in units of the shrunk pooled within-class covariance.

    Attributes:
        whitening: Upper triangular matrix A with AAᵀ = Σ⁻¹.
        means: Class means times A.
    """

    whitening: Float[Tensor, "dim dim"]
    means: Float[Tensor, "classes dim"]

    def score(self, features: Float[Tensor, "samples dim"]) -> Float[Tensor, "samples"]:
        """Return −min_c (u − μ_c)ᵀ Σ⁻¹ (u − μ_c) of the unit features u.

        Args:
            features: Features, of any norm.
        """
        whitened = normalize(features.to(self.whitening)) @ self.whitening
        # ‖x‖² + ‖m‖² − 2x·m, which float64 survives: near collapse whitened means are as long as
        # 1e7, and distances about √d.
        products = self.means.square().sum(1) - 2 * whitened @ self.means.T
        return -(products.amin(1) + whitened.square().sum(1)).clamp(min=0)


def fit_mahalanobis(
    statistics: ClassStatistics, *, shrinkage: float | Literal["auto"] = "auto"
) -> MahalanobisDistance:
    """Compute the distance that class means and pooled within-class covariance define.

    Σ = (1 − λ) S + λ (tr S/d) I, S = (within-class scatter)/n. The features are unit vectors: on
    raw features the norm, which is no part of a class, dominates the distance.

    Args:
        statistics: Statistics of unit training features with ``moments="pooled"``.
        shrinkage: λ between 0 and 1; ``"auto"`` is d/(d + n − K).

    Raises:
        ValueError: λ is out of its range, the features do not vary within their classes, or Σ is
            singular.

    Reference:
        Lee et al., A Simple Unified Framework for Detecting Out-of-Distribution Samples and
        Adversarial Attacks, NeurIPS 2018; Müller and Hein, Mahalanobis++: Improving OOD Detection
        via Feature Normalization, ICML 2025.
    """
    present = statistics.counts > 0
    num_samples, dim = float(statistics.counts.sum()), statistics.dim
    if shrinkage == "auto":
        shrinkage = dim / max(dim + num_samples - int(present.sum()), dim)
    if not 0 <= shrinkage <= 1:
        raise ValueError(f"shrinkage must be between 0 and 1, got {shrinkage}")
    covariance = statistics.scatter() / max(num_samples, 1)
    variance = float(covariance.trace()) / dim
    if bool(statistics.collapsed()[present].all()):
        raise ValueError("features must vary within their classes, but all are collapsed")
    identity = torch.eye(dim, dtype=covariance.dtype, device=covariance.device)
    factor, info = torch.linalg.cholesky_ex(
        (1 - shrinkage) * covariance + shrinkage * variance * identity
    )
    if int(info):
        raise ValueError(
            f"the within-class covariance must have full rank, or shrinkage be larger than "
            f"{shrinkage:g}"
        )
    # Σ = LLᵀ, so Σ⁻¹ = AAᵀ with A = L⁻ᵀ.
    whitening = torch.linalg.solve_triangular(factor, identity, upper=False).T
    return MahalanobisDistance(whitening, statistics.means[present] @ whitening)


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
    if num_neighbors < 1:
        raise ValueError(f"num_neighbors must be at least 1, got {num_neighbors}")
    neighbors = min(num_neighbors, len(known))
    scores = []
    # In chunks: all pairs at once may not fit into memory.
    for chunk in normalize(features).split(_CHUNK_ROWS):
        last = (chunk @ known.T).topk(neighbors, dim=1).indices[:, -1]
        # From the vectors: a cosine near 1 has few digits of the distance left.
        scores.append(-torch.linalg.vector_norm(chunk - known[last], dim=1))
    return torch.cat(scores)


@dataclass(frozen=True)
class OodDetector:
    """All scores of a trained model, fitted to its training images by :func:`fit_detector`.

    Attributes:
        head: Head of the model.
        scores: Function from features to a score, by name.
        absent: Why a score cannot be computed, by name.
    """

    head: Head
    scores: Mapping[OodScore, Callable[[Tensor], Tensor]]
    absent: Mapping[OodScore, str] = field(default_factory=lambda: MappingProxyType({}))

    def __call__(self, features: Float[Tensor, "samples dim"]) -> dict[OodScore, Tensor]:
        """Return every score of a batch of features, as the head receives them.

        Args:
            features: The features.
        """
        return {name: score(features) for name, score in self.scores.items()}


def fit_detector(
    objective: Objective,
    train: Loader,
    *,
    num_neighbors: int = 50,
    shrinkage: float | Literal["auto"] = "auto",
    batch_size: int = 512,
    progress: Callable[[float], None] = no_progress,
) -> OodDetector:
    """Fit the scores of a model, with one pass over its training images.

    Args:
        objective: The model, with a fitted head. Its modes are restored at the end.
        train: Training images; they are not augmented.
        num_neighbors: k of the score ``knn``.
        shrinkage: Shrinkage of the score ``mahalanobis``.
        batch_size: Number of images in a batch.
        progress: Called with the fraction of images that is done.

    Returns:
        The scores. A score that has no value for this model is absent, with the reason.
    """
    head = objective.head
    prototypes = head.prototypes.detach()
    device = measuring_device(train.device)
    statistics = empty_statistics(*prototypes.shape, moments="pooled", device=device)
    num_bytes = 4 * len(train) * prototypes.shape[1]
    unit: list[Tensor] = []
    for batch in _iterate_features(objective, train, batch_size, progress):
        statistics.add(batch.features, batch.labels)
        if num_bytes <= _MAX_KNOWN_BYTES:
            unit.append(normalize(batch.features))
    basis = prototype_basis(prototypes.to(device))

    def logits(features: Tensor) -> Tensor:
        return head(features.to(prototypes.device)).to(device)

    scores: dict[OodScore, Callable[[Tensor], Tensor]] = {
        "cosine": lambda features: cosine_score(features, prototypes.to(device)),
        "energy": lambda features: energy_score(logits(features)),
        "softmax": lambda features: softmax_score(logits(features)),
    }
    absent: dict[OodScore, str] = {}
    if unit:
        known = torch.cat(unit)
        scores["knn"] = lambda features: knn_score(features, known, num_neighbors=num_neighbors)
    else:
        absent["knn"] = f"the training features would take {num_bytes >> 30} GiB of memory"
    if basis.shape[1] < basis.shape[0]:
        scores["subspace"] = lambda features: subspace_score(features, basis)
    else:
        absent["subspace"] = f"the prototypes span all {basis.shape[0]} dimensions of the features"
    try:
        scores["mahalanobis"] = fit_mahalanobis(statistics, shrinkage=shrinkage).score
    except ValueError as error:
        absent["mahalanobis"] = str(error)
    ordered = {name: scores[name] for name in OOD_SCORES if name in scores}
    return OodDetector(head, ordered, absent)


def score_images(
    detector: OodDetector,
    objective: Objective,
    images: Loader,
    *,
    batch_size: int = 512,
    progress: Callable[[float], None] = no_progress,
) -> dict[OodScore, Float[Tensor, "samples"]]:
    """Compute the scores of all images, on the CPU.

    Args:
        detector: The fitted scores.
        objective: The model that the scores were fitted to.
        images: The images; their labels do not matter.
        batch_size: Number of images in a batch.
        progress: Called with the fraction of images that is done.
    """
    collected: dict[OodScore, list[Tensor]] = {name: [] for name in detector.scores}
    for batch in _iterate_features(objective, images, batch_size, progress):
        with torch.no_grad():
            for name, values in detector(batch.features).items():
                collected[name].append(values.cpu().double())
    return {name: torch.cat(values) for name, values in collected.items()}


def _iterate_features(
    objective: Objective, images: Loader, batch_size: int, progress: Callable[[float], None]
) -> Iterator[LabeledFeatures]:
    batches = iterate_features(objective.encoder, images, batch_size=batch_size)
    for batch in with_progress(batches, len(images), progress):
        yield LabeledFeatures(*(tensor.to(measuring_device(tensor.device)) for tensor in batch))
