"""The losses with soft labels: one formula each, on features and prototypes or on logits."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from protosphere.geometry.sphere import normalize
from protosphere.kernels.dispatch import Form, masked_logsumexp
from protosphere.kernels.eager import logsumexp
from protosphere.kernels.problem import Similarity
from protosphere.losses.reduction import Reduction, reduce_weighted
from protosphere.losses.soft_targets import NegativeWeights, SoftNegatives, SoftTargets
from protosphere.losses.targets import Temperature
from protosphere.parallel import ProcessGroup, logsumexp_over


@runtime_checkable
class SoftLogits(Protocol):
    """The logits S_ic of a batch with soft labels, up to one common constant."""

    @property
    def targets(self) -> SoftTargets:
        """The targets q."""

    def row_log_sums(self) -> Float[Tensor, "samples"]:
        """Return log Σ_c exp(S_ic) of each sample."""

    def column_log_sums(self, weights: NegativeWeights) -> Float[Tensor, "classes"]:
        """Return log Σ_j v_jc exp(S_jc) of each class, with log-weights log v."""

    def attraction(self, class_weights: Float[Tensor, "classes"]) -> Float[Tensor, "samples"]:
        """Return Σ_c ω_c q_ic S_ic of each sample."""


@dataclass(frozen=True)
class LogitsOfFeatures:
    """Logits of features and prototypes, of which no matrix is held in the chunked form.

    Args:
        features: Features, without NaN at ignored samples.
        prototypes: Prototypes of the classes of the targets.
        targets: The targets.
        temperature: Temperature τ.
        similarity: ``"cosine"`` or ``"dot"``.
        form: Form of the log-sums.
        offsets: What is added to the logits of each class, or None.
    """

    features: Float[Tensor, "samples dim"]
    prototypes: Float[Tensor, "classes dim"]
    targets: SoftTargets
    temperature: Temperature
    similarity: Similarity
    form: Form
    offsets: Float[Tensor, "classes"] | None = None

    @classmethod
    def read(
        cls,
        features: Tensor,
        prototypes: Tensor,
        targets: SoftTargets,
        *,
        temperature: Temperature,
        similarity: Similarity = "cosine",
        form: Form,
        offsets: Tensor | None = None,
    ) -> "LogitsOfFeatures":
        """Convert and normalize once: the gradients of two terms meet in unit vectors.

        Rounded to half precision, or projected to the tangent space one by one, they would lose
        digits before they are added.
        """
        dtype = targets.class_weights.dtype
        features, prototypes = targets.mask_rows(features.to(dtype)), prototypes.to(dtype)
        if similarity == "cosine":
            features, prototypes = normalize(features), normalize(prototypes)
        offsets = None if offsets is None else offsets.to(dtype)
        return cls(features, prototypes, targets, temperature, similarity, form, offsets)

    def row_log_sums(self) -> Float[Tensor, "samples"]:
        """Return log Σ_c exp(S_ic) of each sample."""
        return masked_logsumexp(
            self.features,
            self.prototypes,
            temperature=self.temperature,
            similarity=self.similarity,
            key_log_weights=self.offsets,
            form=self.form,
        ).values

    def column_log_sums(self, weights: NegativeWeights) -> Float[Tensor, "classes"]:
        """Return log Σ_j v_jc exp(S_jc) of each class, with log-weights log v."""
        return masked_logsumexp(
            self.prototypes,
            self.features,
            temperature=self.temperature,
            similarity=self.similarity,
            key_log_weights=weights.samples,
            pair_index=weights.pair_index,
            pair_log_weights=weights.pairs,
            form=self.form,
        ).values

    def attraction(self, class_weights: Float[Tensor, "classes"]) -> Float[Tensor, "samples"]:
        """Return Σ_c ω_c q_ic S_ic of each sample, from the weighted mean of its prototypes."""
        means = self.targets.expect(class_weights[:, None] * self.prototypes)
        total = (self.features * means).sum(1)
        if self.similarity == "cosine":
            # The primitive measures cosines from 1.
            total = total - self.targets.expect(class_weights)
        total = total / self.temperature
        if self.offsets is None:
            return total
        return total + self.targets.expect(class_weights * self.offsets)


@dataclass(frozen=True)
class LogitsMatrix:
    """Logits given as a matrix.

    Args:
        logits: The logits, without NaN at ignored samples.
        targets: The targets.
    """

    logits: Float[Tensor, "samples classes"]
    targets: SoftTargets

    def row_log_sums(self) -> Float[Tensor, "samples"]:
        """Return log Σ_c exp(S_ic) of each sample."""
        return logsumexp(self.logits, 1)

    def column_log_sums(self, weights: NegativeWeights) -> Float[Tensor, "classes"]:
        """Return log Σ_j v_jc exp(S_jc) of each class, with log-weights log v."""
        logits = self.logits
        if weights.samples is not None:
            of_samples = (
                weights.samples.mT if weights.samples.ndim == 2 else weights.samples[:, None]
            )
            logits = logits + of_samples
        if weights.pair_index is not None and weights.pairs is not None:
            logits = logits.scatter_add(1, weights.pair_index, weights.pairs)
        return logsumexp(logits, 0)

    def attraction(self, class_weights: Float[Tensor, "classes"]) -> Float[Tensor, "samples"]:
        """Return Σ_c ω_c q_ic S_ic of each sample."""
        return self.targets.expect_each(class_weights * self.logits)


def soft_cross_entropy(
    logits: SoftLogits, reduction: Reduction, group: ProcessGroup | None = None
) -> Float[Tensor, "samples"] | Float[Tensor, ""]:
    """Σ_c ω_c q_ic (log Σ_c' exp(S_ic') − S_ic): cross-entropy and NormFace with soft labels.

    Args:
        logits: The logits, with their targets.
        reduction: How to reduce.
        group: Process group whose ranks hold the batch together, or None.
    """
    targets = logits.targets
    weights = targets.expect(targets.class_weights)
    values = weights * logits.row_log_sums() - logits.attraction(targets.class_weights)
    return reduce_weighted(values, weights, reduction, group)


def soft_ntce(
    logits: SoftLogits, reduction: Reduction, group: ProcessGroup | None = None
) -> Float[Tensor, "samples"] | Float[Tensor, ""]:
    """Σ_c ω_c q_ic (log Σ_j exp(S_jc) − S_ic): NTCE with soft labels.

    Args:
        logits: The logits, with their targets.
        reduction: How to reduce.
        group: Process group whose ranks hold the batch together, or None.
    """
    targets = logits.targets
    return _column_loss(logits, targets.equal_weights(), reduction, group)


def soft_nonl(
    logits: SoftLogits,
    soft_negatives: SoftNegatives,
    reduction: Reduction,
    group: ProcessGroup | None = None,
) -> Float[Tensor, "samples"] | Float[Tensor, ""]:
    """Σ_c ω_c q_ic (log Σ_j v_jc exp(S_jc) − S_ic): NONL with soft labels.

    Samples whose most probable class has no negatives are left out. Any other term without
    negatives drops out with its mass.

    Args:
        logits: The logits, with their targets.
        soft_negatives: How v follows from q.
        reduction: How to reduce.
        group: Process group whose ranks hold the batch together, or None.
    """
    return _column_loss(logits, logits.targets.negative_weights(soft_negatives), reduction, group)


def _column_loss(
    logits: SoftLogits,
    negatives: NegativeWeights,
    reduction: Reduction,
    group: ProcessGroup | None,
) -> Float[Tensor, "samples"] | Float[Tensor, ""]:
    targets = logits.targets
    log_sums = logsumexp_over(logits.column_log_sums(negatives), group)
    has_negatives = log_sums != -torch.inf
    class_weights = torch.where(has_negatives, targets.class_weights, 0)
    kept = targets.top_class_is(has_negatives)
    repulsion = targets.expect(class_weights * torch.where(has_negatives, log_sums, 0))
    values = torch.where(kept, repulsion - logits.attraction(class_weights), 0)
    weights = torch.where(kept, targets.expect(class_weights), 0)
    return reduce_weighted(values, weights, reduction, group)
