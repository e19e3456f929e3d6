"""The shell around a loss function: a module that remembers its options and owns no parameters."""

from typing import Any

from torch import Tensor, nn

from protosphere.kernels.masked_logsumexp import Form, check_choices, read_temperature
from protosphere.losses.targets import Reduction, Temperature


class Criterion(nn.Module):
    """Options of a loss, checked once; class weights move with the module but stay out of its state dict."""

    class_weights: Tensor | None

    def __init__(self, class_weights: Tensor | None, **options: Any) -> None:
        super().__init__()
        check_choices(
            reduction=(options["reduction"], Reduction), form=(options.get("form", "auto"), Form)
        )
        if isinstance(options.get("temperature"), Tensor):
            raise ValueError(
                "a module's temperature must be a number; got a tensor (one that is learned belongs to the head: "
                "give it with each call, loss(..., temperature=head.temperature))"
            )
        if "temperature" in options:
            read_temperature(options["temperature"])
        if options.get("min_temperature") is not None:
            read_temperature(options["min_temperature"], name="min_temperature")
        self.register_buffer("class_weights", class_weights, persistent=False)
        self._options = options

    def options(self, temperature: Temperature | None = None) -> dict[str, Any]:
        """The keyword arguments for the loss function."""
        given = {} if temperature is None else {"temperature": temperature}
        return {**self._options, "class_weights": self.class_weights, **given}

    def extra_repr(self) -> str:
        """The options, as ``print(module)`` shows them."""
        return ", ".join(f"{name}={value!r}" for name, value in self._options.items())
