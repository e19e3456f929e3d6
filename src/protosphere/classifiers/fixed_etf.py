"""The fixed-frame classifier: prototypes set once, as a simplex ETF, and never trained; the head of dot regression."""

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from protosphere.classifiers.checks import check_head, check_positive, check_width
from protosphere.geometry.frames import simplex_etf, spherical_code
from protosphere.geometry.sphere import cosines


class FixedFrameClassifier(nn.Module):
    """Logits cos(z, w_c)/τ with prototypes that do not move.

    The frame is built in float64 and kept in the state dict, so that a saved model predicts the same anywhere.

    Args:
        dim: width of the features; at least num_classes − 1 for the simplex.
        num_classes: how many classes.
        temperature: τ, which scales the logits and changes no prediction.
        frame: ``"simplex"``, the ETF; or ``"separated"``, which also exists in fewer dimensions.
        seed: chooses the orientation of the frame.

    >>> head = FixedFrameClassifier(16, 4)
    >>> head.predict(head.prototypes)
    tensor([0, 1, 2, 3])
    """

    prototypes: Tensor

    def __init__(
        self,
        dim: int,
        num_classes: int,
        *,
        temperature: float = 0.1,
        frame: Literal["simplex", "separated"] = "simplex",
        seed: int = 0,
    ) -> None:
        super().__init__()
        check_head(dim, num_classes)
        check_positive(temperature, "temperature")
        if frame not in ("simplex", "separated"):
            raise ValueError(f'frame must be "simplex" or "separated"; got {frame!r}')
        build = simplex_etf if frame == "simplex" else spherical_code
        self.register_buffer(
            "prototypes", build(num_classes, dim, seed=seed).to(torch.get_default_dtype())
        )
        self.temperature = temperature

    def forward(self, features: Float[Tensor, "samples dim"]) -> Float[Tensor, "samples classes"]:
        """The logits: scaled cosines in float32 or wider."""
        check_width(features, self.prototypes.shape[1])
        return cosines(features, self.prototypes) / self.temperature

    def predict(self, features: Float[Tensor, "samples dim"]) -> Int[Tensor, "samples"]:
        """The class of each sample: the prototype at the smallest angle."""
        return self.forward(features).argmax(-1)
