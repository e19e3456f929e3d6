"""What the loops over scalars of the losses are made of, and the row of a loss in their table.

Every number is a 0-dimensional float64 tensor, so that autograd differentiates the loops.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from protosphere.losses import MixedLabels

Labels = Tensor | MixedLabels
Vector = list[Tensor]
Matrix = list[Vector]
# The class probabilities of a sample, None if it is ignored.
Probabilities = list[list[float] | None]
# The value of a sample: for each class its probability and value, empty if the sample is left out.
Values = list[dict[int, tuple[float, Tensor]]]


@dataclass(frozen=True)
class Row:
    """A loss, its module, its loop, and what is particular to it.

    Attributes:
        name: Name in the test ids.
        function: The loss as a function.
        module: The loss as a module.
        oracle: The loop over scalars.
        inputs: What the function takes beside the labels.
        options: Options of the loss that make up this row.
        temperature: Who has the temperature: the head, the module, the function only, or nobody.
        learned_temperature: Options that a temperature with a gradient requires.
        has_form: Whether the loss has the option ``form``.
        on_sphere: Whether the loss normalizes its inputs.
        needs_negatives: Whether samples without a sample of another class are left out.
        needs_positives: Whether samples without another sample of their class are left out.
        soft_labels: Whether the loss takes soft labels.
        reaches_simplex: Whether free features descend to a simplex.
        on_features: For a loss from logits, the same loss on features.
        second_oracle: For the mean of two losses with weights w and 1 − w, the loop of the second.
    """

    name: str
    function: Callable[..., Tensor]
    module: type[nn.Module]
    oracle: Callable[..., Values]
    inputs: Literal["prototypes", "features", "logits"] = "prototypes"
    options: dict[str, Any] = field(default_factory=dict)
    temperature: Literal["head", "module", "function", "none"] = "head"
    learned_temperature: dict[str, Any] = field(default_factory=dict)
    has_form: bool = True
    on_sphere: bool = True
    needs_negatives: bool = False
    needs_positives: bool = False
    soft_labels: bool = False
    reaches_simplex: bool = False
    on_features: Callable[..., Tensor] | None = None
    second_oracle: Callable[..., Values] | None = None

    def __str__(self) -> str:
        return self.name

    @property
    def has_temperature(self) -> bool:
        return self.temperature != "none"

    @property
    def forms(self) -> tuple[str | None, ...]:
        return ("eager", "chunked") if self.has_form else (None,)

    def settings(
        self, *, temperature: Any = None, form: str | None = None, **others: Any
    ) -> dict[str, Any]:
        """The options of this loss, with a temperature and a form where it has them."""
        settings = {**self.options, **others}
        if temperature is not None and self.has_temperature:
            settings["temperature"] = temperature
        if form is not None and self.has_form:
            settings["form"] = form
        return settings

    def call(self, features: Tensor, prototypes: Tensor, labels: Any, **settings: Any) -> Tensor:
        """Call the function with the tensors that it takes."""
        if self.inputs == "features":
            return self.function(features, labels, **settings)
        if self.inputs == "logits":
            return self.function(features @ prototypes.mT, labels, **settings)
        return self.function(features, prototypes, labels, **settings)

    def call_module(
        self, features: Tensor, prototypes: Tensor, labels: Any, **settings: Any
    ) -> Tensor:
        """Make the module and call it, with a head that has the temperature if it belongs there."""
        settings = dict(settings)
        head = SimpleNamespace(prototypes=prototypes)
        if self.temperature == "head":
            head.temperature = settings.pop("temperature", 0.1)
            head.min_temperature = settings.pop("min_temperature", None)
        elif self.temperature == "function":
            head.bias = None
            settings.pop("temperature", None)
        module = self.module(**settings)
        if self.inputs == "features":
            result: Tensor = module(features, labels)
        elif self.inputs == "logits":
            result = module(features @ prototypes.mT, labels)
        else:
            result = module(features, head, labels)
        return result

    def expected(
        self,
        features: Tensor,
        prototypes: Tensor,
        labels: Labels,
        *,
        weights: list[float] | None = None,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        **settings: Any,
    ) -> Tensor:
        """The loss by the loop."""
        settings = {**self.options, **settings}
        smoothing = settings.pop("label_smoothing", label_smoothing)
        q = probabilities(labels, len(prototypes), smoothing)
        if self.second_oracle is not None:
            weight = settings.pop("normface_weight")
            first, second = (
                reduce(oracle(features, prototypes, q, **settings), weights, reduction)
                for oracle in (self.oracle, self.second_oracle)
            )
            return weight * first + (1 - weight) * second
        if self.inputs == "features":
            assert isinstance(labels, Tensor)
            values = self.oracle(features, labels.tolist(), **settings)
        elif self.inputs == "logits":
            values = self.oracle(features @ prototypes.mT, q, **settings)
        else:
            values = self.oracle(features, prototypes, q, **settings)
        return reduce(values, weights, reduction)


def rows(matrix: Tensor) -> Matrix:
    return [list(row.unbind()) for row in matrix.unbind()]


def dot(a: Vector, b: Vector) -> Tensor:
    total = a[0] * b[0]
    for x, y in zip(a[1:], b[1:], strict=True):
        total = total + x * y
    return total


def unit(v: Vector) -> Vector:
    length = dot(v, v).sqrt()
    return [x / length for x in v]


def log_sum_exp(values: list[Tensor]) -> Tensor:
    total = values[0].exp()
    for value in values[1:]:
        total = total + value.exp()
    return total.log()


def mean_vector(vectors: list[Vector]) -> Vector:
    total = vectors[0]
    for vector in vectors[1:]:
        total = [x + y for x, y in zip(total, vector, strict=True)]
    return [x / len(vectors) for x in total]


def probabilities(
    labels: Labels, num_classes: int, label_smoothing: float = 0.0, ignore_index: int = -100
) -> Probabilities:
    """The class probabilities of labels of any kind, smoothed."""
    classes, rows = range(num_classes), Probabilities()
    if isinstance(labels, MixedLabels):
        for a, b, weight in zip(*(field.tolist() for field in labels), strict=True):
            ignored = a == ignore_index or (b == ignore_index and weight != 1)
            row = [weight * (c == a) + (1 - weight) * (c == b) for c in classes]
            rows.append(None if ignored else row)
    elif labels.ndim == 2:
        rows = [row if any(row) else None for row in labels.tolist()]
    else:
        for y in labels.tolist():
            rows.append(None if y == ignore_index else [float(c == y) for c in classes])
    if label_smoothing:
        uniform = label_smoothing / num_classes
        rows = [row and [(1 - label_smoothing) * p + uniform for p in row] for row in rows]
    return rows


def kept_rows(q: Probabilities) -> dict[int, list[float]]:
    return {i: row for i, row in enumerate(q) if row is not None}


def support(row: list[float]) -> list[int]:
    """The classes that have a probability."""
    return [c for c, probability in enumerate(row) if probability]


def kept_indices(labels: list[int], ignore_index: int = -100) -> list[int]:
    return [i for i, y in enumerate(labels) if y != ignore_index]


def reduce(values: Values, weights: list[float] | None, reduction: str) -> Tensor:
    """Σ_c ω_c q_ic ℓ_ic of each sample, their sum, or their sum over Σ_i Σ_c ω_c q_ic."""
    zero = torch.zeros((), dtype=torch.float64)
    weighted, total_weight = [], 0.0
    for by_class in values:
        sample = zero
        for c, (probability, term) in by_class.items():
            weight = probability * (1.0 if weights is None else weights[c])
            sample = sample + weight * term
            total_weight += weight
        weighted.append(sample)
    if reduction == "none":
        return torch.stack(weighted)
    total = zero
    for sample in weighted:
        total = total + sample
    return total if reduction == "sum" or total_weight == 0 else total / total_weight


def gradients(value: Tensor, *inputs: Tensor) -> list[Tensor]:
    """Gradients of a value with unequal weights upstream, as reduction="none" may get them."""
    weights = torch.linspace(0.5, 1.5, value.numel(), dtype=value.dtype).reshape(value.shape)
    total = (value * weights).sum()
    if not total.requires_grad:
        return [torch.zeros_like(tensor) for tensor in inputs]
    return list(torch.autograd.grad(total, inputs, materialize_grads=True))


def assert_close(got: Tensor, expected: Tensor, tolerance: float = 1e-12) -> None:
    assert got.shape == expected.shape
    error = (got - expected).abs() / expected.abs().clamp(min=1)
    assert error.numel() == 0 or error.max() <= tolerance


def on_cosines(oracle: Callable[..., Values]) -> Callable[..., Values]:
    """The loop on features and prototypes, from a loop on scaled cosines."""

    def on_features(
        features: Tensor,
        prototypes: Tensor,
        q: Probabilities,
        temperature: float = 0.1,
        **options: Any,
    ) -> Values:
        u, w = [unit(v) for v in rows(features)], [unit(v) for v in rows(prototypes)]
        cosines = [[dot(ui, wc) for wc in w] for ui in u]
        return oracle(cosines, q, temperature=temperature, **options)

    return on_features


def on_logits(oracle: Callable[..., Values]) -> Callable[..., Values]:
    """The loop on logits, from a loop on scaled cosines."""

    def of_tensor(logits: Tensor, q: Probabilities, **options: Any) -> Values:
        return oracle(rows(logits), q, **options)

    return of_tensor
