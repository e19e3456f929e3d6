"""The cosine classifier: learnable prototypes on the sphere, for NormFace, NTCE and NONL."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from protosphere.classifiers.checks import check_head_size, check_learned_temperature
from protosphere.classifiers.scores import cosine_logits


class TemperatureModule(nn.Module):
    """The temperature of a cosine head: a fixed number, or a parameter."""

    log_temperature: Tensor | None

    def _register_temperature(
        self,
        temperature: float,
        learn_temperature: bool,
        min_temperature: float | None,
        *,
        device: torch.device | str | None = None,
    ) -> None:
        """Store the temperature; called after the prototypes, whose place is the first."""
        check_learned_temperature(temperature, learn_temperature, min_temperature)
        self.min_temperature = min_temperature
        # A float rather than a buffer: casting the model to half precision must not round it.
        self._fixed_temperature = float(temperature)
        learned = nn.Parameter(torch.empty((), device=device)) if learn_temperature else None
        self.register_parameter("log_temperature", learned)
        self._reset_temperature()

    def _reset_temperature(self) -> None:
        if self.log_temperature is not None:
            nn.init.constant_(self.log_temperature, math.log(self._fixed_temperature))

    @property
    def temperature(self) -> float | Float[Tensor, ""]:
        """The temperature τ: a float, or a tensor with a gradient if it is learned."""
        if self.log_temperature is None:
            return self._fixed_temperature
        return self.log_temperature.exp().clamp(min=self.min_temperature or 0.0)

    def _describe_temperature(self) -> str:
        with torch.no_grad():
            text = f"temperature={float(self.temperature):.4g}"
        if self.log_temperature is None:
            return text
        bound = "" if self.min_temperature is None else f", min_temperature={self.min_temperature}"
        return f"{text}, learn_temperature=True{bound}"


class CosineClassifier(TemperatureModule):
    """Logits cos(z, w_c)/τ with one learnable prototype w_c per class.

    The prototypes and the temperature belong to the head, so that the optimizer and data-parallel
    wrappers see them; loss modules read them from it. The prototypes are initialized as the weight
    of ``nn.Linear`` is. Only their directions matter for the logits, but their norms set the speed
    at which directions change under gradient descent. The state dict has the prototypes and a
    learned temperature; a fixed one is an argument only, and must be given again.

    Args:
        dim: Dimension of the features.
        num_classes: Number of classes.
        temperature: Temperature τ, or its initial value if it is learned.
        learn_temperature: Whether τ is a parameter, stored as log τ.
        min_temperature: Lower bound of a learned τ, in training and prediction alike. NONL, which
            decreases without bound as τ → 0, requires it.
        device: Device of the parameters.
        dtype: Dtype of the prototypes.

    Raises:
        ValueError: An argument is out of its range, or ``min_temperature`` is given for a fixed
            temperature.

    >>> head = CosineClassifier(8, 3, temperature=0.1)
    >>> head
    CosineClassifier(dim=8, num_classes=3, temperature=0.1)
    >>> head(torch.randn(5, 8)).shape, head(torch.randn(2, 5, 8)).shape
    (torch.Size([5, 3]), torch.Size([2, 5, 3]))
    """

    bias: None = None

    def __init__(
        self,
        dim: int,
        num_classes: int,
        *,
        temperature: float = 0.1,
        learn_temperature: bool = False,
        min_temperature: float | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_head_size(dim, num_classes)
        self.prototypes = nn.Parameter(torch.empty(num_classes, dim, device=device, dtype=dtype))
        self._register_temperature(temperature, learn_temperature, min_temperature, device=device)
        self.reset_parameters()

    @property
    def in_features(self) -> int:
        """Dimension of the features, under the name that ``nn.Linear`` has for it."""
        return self.prototypes.shape[1]

    @property
    def out_features(self) -> int:
        """Number of classes, under the name that ``nn.Linear`` has for it."""
        return self.prototypes.shape[0]

    def reset_parameters(self) -> None:
        """Initialize the prototypes anew, and set a learned temperature to its first value."""
        nn.init.kaiming_uniform_(self.prototypes, a=math.sqrt(5))
        self._reset_temperature()

    def forward(self, features: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch classes"]:
        """Return the logits cos(z, w_c)/τ in float32 or wider."""
        return cosine_logits(features, self.prototypes, temperature=self.temperature)

    def predict(self, features: Float[Tensor, "*batch dim"]) -> Int[Tensor, "*batch"]:
        """Return the class whose prototype has the largest cosine with each feature."""
        return self.forward(features).argmax(-1)

    def extra_repr(self) -> str:
        """Describe the arguments."""
        num_classes, dim = self.prototypes.shape
        return f"dim={dim}, num_classes={num_classes}, {self._describe_temperature()}"
