"""Labeled features and the objective of multinomial logistic regression, from its definition."""

import numpy as np
import torch
from jaxtyping import Float, Integer
from sklearn.datasets import load_digits
from torch import Tensor
from torch.nn import functional as F

Sample = tuple[Float[Tensor, "samples dim"], Integer[Tensor, "samples"]]


def digits(num_samples: int, num_classes: int = 10) -> Sample:
    """Gray values of real images; some pixels are always 0."""
    features, labels = load_digits(return_X_y=True)
    chosen = np.flatnonzero(labels < num_classes)[:num_samples]
    return torch.tensor(features[chosen]), torch.tensor(labels[chosen])


def mixture(num_samples: int, dim: int, num_classes: int, seed: int = 0) -> Sample:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(num_samples) % num_classes
    means = torch.randn(num_classes, dim, generator=generator, dtype=torch.float64)
    noise = torch.randn(num_samples, dim, generator=generator, dtype=torch.float64)
    return means[labels] + 1.5 * noise + 3.0, labels


def objective(
    weight: Tensor, bias: Tensor, features: Tensor, labels: Tensor, l2: float
) -> Float[Tensor, ""]:
    """The definition, for three classes or more."""
    losses = F.cross_entropy(features @ weight.T + bias, labels, reduction="sum")
    return losses + l2 / 2 * weight.square().sum()
