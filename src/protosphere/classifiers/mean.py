"""The class-mean head: prototypes that are class means of the features, taken and not trained; the head of SCL."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from protosphere.classifiers.checks import check_head, check_positive, check_width
from protosphere.classifiers.class_means import ClassMeans
from protosphere.geometry.sphere import cosines


class MeanClassifier(nn.Module):
    """Logits cos(z, μ_c)/τ with the class means μ_c that :meth:`take` was given last; no prototypes before.

    Supervised contrastive training needs no head; this one makes a classifier of its features, by one pass over them.

    Args:
        dim: width of the features.
        num_classes: how many classes.
        temperature: τ, which scales the logits and changes no prediction.

    >>> from protosphere.classifiers import class_means
    >>> head = MeanClassifier(2, 2)
    >>> head.take(class_means(torch.eye(2), torch.tensor([1, 0]), num_classes=2))
    >>> head.predict(torch.tensor([[3.0, 1.0]]))
    tensor([1])
    """

    prototypes: Tensor

    def __init__(self, dim: int, num_classes: int, *, temperature: float = 0.1) -> None:
        super().__init__()
        check_head(dim, num_classes)
        check_positive(temperature, "temperature")
        self.register_buffer("prototypes", torch.zeros(num_classes, dim))
        self.temperature = temperature

    def take(self, means: ClassMeans) -> None:
        """Take class means as prototypes; a class without samples has none, and is predicted by no angle below 90°."""
        self.prototypes.copy_(means.means.nan_to_num())

    def forget(self) -> None:
        """Have no prototypes any more, since features have moved on."""
        self.prototypes.zero_()

    @property
    def has_means(self) -> bool:
        """Whether there are prototypes."""
        return bool(self.prototypes.any())

    def forward(self, features: Float[Tensor, "samples dim"]) -> Float[Tensor, "samples classes"]:
        """The logits: scaled cosines in float32 or wider."""
        check_width(features, self.prototypes.shape[1])
        return cosines(features, self.prototypes) / self.temperature

    def predict(self, features: Float[Tensor, "samples dim"]) -> Int[Tensor, "samples"]:
        """The class of each sample: the class mean at the smallest angle."""
        return self.forward(features).argmax(-1)
