"""The class-mean classifier: prototypes computed from features, for contrastive losses."""

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from protosphere.classifiers.checks import check_head_size, check_temperature
from protosphere.classifiers.scores import cosine_logits
from protosphere.geometry.checks import as_tensor


class MeanClassifier(nn.Module):
    """Logits cos(z, μ_c)/τ with class means μ_c that are set, not trained.

    Supervised contrastive training has no head. This one turns its features into a classifier with
    one pass over the training set: see :func:`protosphere.classifiers.class_means`.

    The logit of a class without samples is −∞, so it is never predicted. Until :meth:`set_means` is
    called, all prototypes and all logits are zero: all classes have the same probability, and
    predictions mean nothing.

    Args:
        dim: Dimension of the features.
        num_classes: Number of classes.
        temperature: Temperature τ of the logits; it does not change predictions.

    >>> from protosphere.classifiers import class_means
    >>> head = MeanClassifier(2, 2)
    >>> head.set_means(class_means(torch.eye(2), torch.tensor([1, 0]), num_classes=2).means)
    >>> head.predict(torch.tensor([[3.0, 1.0]]))
    tensor([1])
    """

    bias: None = None
    prototypes: Tensor

    def __init__(self, dim: int, num_classes: int, *, temperature: float = 0.1) -> None:
        super().__init__()
        check_head_size(dim, num_classes)
        check_temperature(temperature)
        self.register_buffer("prototypes", torch.zeros(num_classes, dim))
        self.temperature = float(temperature)

    @property
    def is_fitted(self) -> bool:
        """Whether class means have been set."""
        return bool(self.prototypes.any())

    def set_means(self, means: Float[Tensor, "classes dim"] | np.ndarray) -> None:
        """Use class means as prototypes.

        Args:
            means: Mean of each class, a tensor or a NumPy array; a row of NaN for a class without
                samples. The prototype of such a class is zero, which marks it.

        Raises:
            TypeError: The means are neither a tensor nor an array.
            ValueError: The means do not have the shape of the prototypes.
        """
        means = as_tensor("means", means)
        if means.shape != self.prototypes.shape:
            raise ValueError(
                f"means must have shape {tuple(self.prototypes.shape)}, got {tuple(means.shape)}"
            )
        self.prototypes.copy_(means.nan_to_num())

    def reset(self) -> None:
        """Discard the class means, for example because the encoder has been trained further."""
        self.prototypes.zero_()

    def forward(self, features: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch classes"]:
        """Return the logits cos(z, μ_c)/τ in float32 or wider; −∞ for a class without samples."""
        logits = cosine_logits(features, self.prototypes, temperature=self.temperature)
        present = self.prototypes.any(1)
        # Without class means all logits stay zero, because the softmax of −∞ alone is NaN.
        return logits.masked_fill(present.any() & ~present, -torch.inf)

    def predict(self, features: Float[Tensor, "*batch dim"]) -> Int[Tensor, "*batch"]:
        """Return the class whose mean has the largest cosine with each feature."""
        return self.forward(features).argmax(-1)

    def extra_repr(self) -> str:
        """Describe the arguments."""
        num_classes, dim = self.prototypes.shape
        return f"dim={dim}, num_classes={num_classes}, temperature={self.temperature:.4g}"
