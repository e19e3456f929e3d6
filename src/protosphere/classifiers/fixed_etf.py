"""The fixed-frame classifier: prototypes set once, as a simplex ETF, and never trained."""

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from protosphere.classifiers.checks import check_head_size, check_temperature
from protosphere.classifiers.scores import cosine_logits
from protosphere.geometry.frames import simplex_etf, spherical_code

_FRAMES = {"simplex": simplex_etf, "code": spherical_code}


class FixedFrameClassifier(nn.Module):
    """Logits cos(z, w_c)/τ with prototypes that are not trained.

    The frame is computed in float64 and stored in the state dict, so that a saved model predicts
    the same everywhere. It is the head for dot regression.

    Args:
        dim: Dimension of the features; at least ``num_classes - 1`` for the simplex.
        num_classes: Number of classes.
        temperature: Temperature τ of the logits; it does not change predictions.
        frame: ``"simplex"`` for a simplex ETF, or ``"code"`` for a spherical code, which also
            exists in fewer dimensions.
        seed: Seed of the frame's random orientation.

    >>> head = FixedFrameClassifier(16, 4)
    >>> head
    FixedFrameClassifier(dim=16, num_classes=4, temperature=0.1, frame='simplex')
    >>> head.predict(head.prototypes)
    tensor([0, 1, 2, 3])
    """

    bias: None = None
    prototypes: Tensor

    def __init__(
        self,
        dim: int,
        num_classes: int,
        *,
        temperature: float = 0.1,
        frame: Literal["simplex", "code"] = "simplex",
        seed: int = 0,
    ) -> None:
        super().__init__()
        check_head_size(dim, num_classes)
        check_temperature(temperature)
        if frame not in _FRAMES:
            raise ValueError(f'frame must be "simplex" or "code", got {frame!r}')
        prototypes = _FRAMES[frame](num_classes, dim, seed=seed)
        self.register_buffer("prototypes", prototypes.to(torch.get_default_dtype()))
        self.temperature = float(temperature)
        self.frame = frame

    def forward(self, features: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch classes"]:
        """Return the logits cos(z, w_c)/τ in float32 or wider."""
        return cosine_logits(features, self.prototypes, temperature=self.temperature)

    def predict(self, features: Float[Tensor, "*batch dim"]) -> Int[Tensor, "*batch"]:
        """Return the class whose prototype has the largest cosine with each feature."""
        return self.forward(features).argmax(-1)

    def extra_repr(self) -> str:
        """Describe the arguments."""
        num_classes, dim = self.prototypes.shape
        return (
            f"dim={dim}, num_classes={num_classes}, temperature={self.temperature:.4g}, "
            f"frame={self.frame!r}"
        )
