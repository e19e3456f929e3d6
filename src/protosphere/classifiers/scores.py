"""Scores of features against prototypes: scaled cosines, and the rejection score."""

from jaxtyping import Float
from torch import Tensor

from protosphere.classifiers.checks import check_feature_dim
from protosphere.geometry.sphere import cosines


def cosine_logits(
    features: Float[Tensor, "*batch dim"],
    prototypes: Float[Tensor, "classes dim"],
    *,
    temperature: float | Float[Tensor, ""],
) -> Float[Tensor, "*batch classes"]:
    """Return cos(z, w_c)/τ in float32 or wider, with any number of leading axes.

    Args:
        features: Features z.
        prototypes: Prototypes w_c, one per class.
        temperature: Temperature τ.

    Returns:
        The logits; the last axis has one entry per class.

    Raises:
        ValueError: Features and prototypes differ in their dimension.
    """
    classes, dim = prototypes.shape
    check_feature_dim(features, dim)
    values = cosines(features.reshape(-1, dim), prototypes) / temperature
    return values.reshape(*features.shape[:-1], classes)


def rejection_score(
    features: Float[Tensor, "*batch dim"], prototypes: Float[Tensor, "classes dim"]
) -> Float[Tensor, "*batch"]:
    """Return minus the largest cosine between each feature and the prototypes.

    The score is larger for features that are farther from every class, so samples above a
    threshold can be rejected as unknown.

    Args:
        features: Features, of any norm.
        prototypes: One prototype per class, of any norm.

    Returns:
        One score per feature, from −1 (equal to a prototype's direction) to 1.

    >>> import torch
    >>> rejection_score(torch.tensor([[2.0, 0.0], [-1.0, 0.0]]), torch.tensor([[1.0, 0.0]]))
    tensor([-1.,  1.])
    """
    return -cosine_logits(features, prototypes, temperature=1.0).amax(-1)
