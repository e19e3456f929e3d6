"""The linear classifier: raw features, free lengths and biases; the head of plain cross-entropy."""

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from protosphere.classifiers.checks import check_head, check_width


class LinearClassifier(nn.Module):
    """Logits z·w_c + b_c on features as they are.

    Args:
        dim: width of the features.
        num_classes: how many classes.
        bias: whether there is a b.

    >>> import torch
    >>> head = LinearClassifier(8, 3)
    >>> head(torch.zeros(5, 8)).shape, head.predict(torch.zeros(5, 8)).shape
    (torch.Size([5, 3]), torch.Size([5]))
    """

    def __init__(self, dim: int, num_classes: int, *, bias: bool = True) -> None:
        super().__init__()
        check_head(dim, num_classes)
        self.layer = nn.Linear(dim, num_classes, bias=bias)

    @property
    def prototypes(self) -> Float[Tensor, "classes dim"]:
        """The rows w_c, which the losses call prototypes."""
        return self.layer.weight

    @property
    def bias(self) -> Float[Tensor, "classes"] | None:
        """The b of the logits, if there is one."""
        return self.layer.bias

    def forward(self, features: Float[Tensor, "samples dim"]) -> Float[Tensor, "samples classes"]:
        """The logits."""
        check_width(features, self.layer.in_features)
        return F.linear(features, self.layer.weight, self.layer.bias)

    def predict(self, features: Float[Tensor, "samples dim"]) -> Int[Tensor, "samples"]:
        """The class of each sample."""
        return self.forward(features).argmax(-1)
