"""The linear classifier: the head for plain cross-entropy."""

from jaxtyping import Float, Int
from torch import Tensor, nn

from protosphere.classifiers.checks import check_feature_dim, check_head_size


class LinearClassifier(nn.Module):
    """Logits z·w_c + b_c on features that are not normalized.

    Args:
        dim: Dimension of the features.
        num_classes: Number of classes.
        bias: Whether the head has biases b_c.

    >>> import torch
    >>> head = LinearClassifier(8, 3)
    >>> head(torch.zeros(5, 8)).shape, head.predict(torch.zeros(5, 8)).shape
    (torch.Size([5, 3]), torch.Size([5]))
    """

    def __init__(self, dim: int, num_classes: int, *, bias: bool = True) -> None:
        super().__init__()
        check_head_size(dim, num_classes)
        self.layer = nn.Linear(dim, num_classes, bias=bias)

    @property
    def prototypes(self) -> Float[Tensor, "classes dim"]:
        """The rows w_c of the weight matrix."""
        return self.layer.weight

    @property
    def bias(self) -> Float[Tensor, "classes"] | None:
        """The biases b_c, or None."""
        return self.layer.bias

    def forward(self, features: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch classes"]:
        """Return the logits z·w_c + b_c."""
        check_feature_dim(features, self.layer.in_features)
        logits: Tensor = self.layer(features)
        return logits

    def predict(self, features: Float[Tensor, "*batch dim"]) -> Int[Tensor, "*batch"]:
        """Return the class with the largest logit for each feature."""
        return self.forward(features).argmax(-1)

    def extra_repr(self) -> str:
        """Describe the arguments."""
        num_classes, dim = self.layer.weight.shape
        return f"dim={dim}, num_classes={num_classes}, bias={self.bias is not None}"
