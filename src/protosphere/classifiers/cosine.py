"""The cosine classifier: learnable prototypes on the sphere, the head of NormFace, NTCE and NONL."""

import math
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from protosphere.classifiers.checks import check_head, check_positive, check_width
from protosphere.geometry.sphere import cosines


class CosineClassifier(nn.Module):
    """Logits cos(z, w_c)/τ with a learnable prototype w_c per class.

    The prototypes live here, in the model, so that the optimizer and data-parallel wrappers see them; the losses take
    them as an argument. They start as Gaussian rows. Only directions matter, so lengths drift without effect.

    Args:
        dim: width of the features.
        num_classes: how many classes.
        temperature: τ, or where it starts.
        temperature_kind: ``"fixed"``, or ``"learned"`` as log τ.

    >>> head = CosineClassifier(8, 3, temperature=0.1)
    >>> head(torch.randn(5, 8)).abs().max() <= 10.001
    tensor(True)
    """

    log_temperature: Tensor | None

    def __init__(
        self,
        dim: int,
        num_classes: int,
        *,
        temperature: float = 0.1,
        temperature_kind: Literal["fixed", "learned"] = "fixed",
    ) -> None:
        super().__init__()
        check_head(dim, num_classes)
        check_positive(temperature, "temperature")
        if temperature_kind not in ("fixed", "learned"):
            raise ValueError(
                f'temperature_kind must be "fixed" or "learned"; got {temperature_kind!r}'
            )
        self.prototypes = nn.Parameter(torch.randn(num_classes, dim))
        # A fixed one is a number and no buffer, so that casting the model to half precision does not round it.
        self._fixed_temperature = temperature
        learned = (
            nn.Parameter(torch.tensor(math.log(temperature)))
            if temperature_kind == "learned"
            else None
        )
        self.register_parameter("log_temperature", learned)

    @property
    def temperature(self) -> float | Float[Tensor, ""]:
        """τ: a number, or a tensor with a gradient if it is learned. Hand it to the loss."""
        return (
            self._fixed_temperature if self.log_temperature is None else self.log_temperature.exp()
        )

    def forward(self, features: Float[Tensor, "samples dim"]) -> Float[Tensor, "samples classes"]:
        """The logits: scaled cosines in float32 or wider, for a loss from logits."""
        check_width(features, self.prototypes.shape[1])
        return cosines(features, self.prototypes) / self.temperature

    def predict(self, features: Float[Tensor, "samples dim"]) -> Int[Tensor, "samples"]:
        """The class of each sample: the prototype at the smallest angle."""
        return self.forward(features).argmax(-1)
