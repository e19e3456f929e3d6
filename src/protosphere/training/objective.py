"""The objective: the one place where encoder, head and loss meet."""

from collections.abc import Callable

from jaxtyping import Float, Integer
from torch import Tensor, nn

Loss = Callable[[Tensor, nn.Module, Tensor], Tensor]


class Objective(nn.Module):
    """From images and labels to a loss.

    Args:
        encoder: images to features; what stands behind it (neck, projection) included.
        head: the classifier; it owns the prototypes.
        loss: of features, head and labels, e.g. ``lambda features, head, labels: nonl_loss(features, head.prototypes,
            labels, temperature=0.1)``.
    """

    def __init__(self, encoder: nn.Module, head: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head
        self.loss = loss

    def forward(
        self, images: Float[Tensor, "samples ..."], labels: Integer[Tensor, "samples"]
    ) -> Float[Tensor, ""]:
        """The loss of a batch."""
        return self.loss(self.encoder(images), self.head, labels)

    def scores(self, images: Float[Tensor, "samples ..."]) -> Float[Tensor, "samples classes"]:
        """What the head says of each class."""
        scores: Tensor = self.head(self.encoder(images))
        return scores
