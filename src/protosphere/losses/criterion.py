"""The shell around a loss function: a module that remembers its options and owns no parameters."""

from typing import Any

from torch import Tensor, nn

from protosphere.losses.anchors import Temperature, check_temperature


class Criterion(nn.Module):
    """Options of a loss, checked once; class weights move with the module but stay out of its state dict."""

    class_weights: Tensor | None

    def __init__(self, class_weights: Tensor | None, **options: Any) -> None:
        super().__init__()
        if options.get("temperature") is not None:
            check_temperature(options["temperature"])
        self.register_buffer("class_weights", class_weights, persistent=False)
        self._options = options

    def options(self, temperature: Temperature | None = None) -> dict[str, Any]:
        """The keyword arguments for the loss function."""
        given = {} if temperature is None else {"temperature": temperature}
        return {**self._options, "class_weights": self.class_weights, **given}

    def extra_repr(self) -> str:
        """The options, as ``print(module)`` shows them."""
        return ", ".join(f"{name}={value!r}" for name, value in self._options.items())
