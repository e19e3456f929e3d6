"""Every loss as a loop over scalars, with its rows of the table that the contract tests run on.

The loops follow the definitions: slow, plain, and what the fast functions must equal. Every number
is a 0-dimensional float64 tensor, so that autograd differentiates the loops themselves. A new loss
adds its loop and its rows here.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from protosphere import losses
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
        if self.inputs == "features":
            assert isinstance(labels, Tensor)
            values = self.oracle(features, labels.tolist(), **settings)
        elif self.inputs == "logits":
            values = self.oracle(features @ prototypes.mT, q, **settings)
        else:
            values = self.oracle(features, prototypes, q, **settings)
        return reduce(values, weights, reduction)


TABLE: list[Row] = []


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


def cross_entropy(
    features: Tensor,
    prototypes: Tensor,
    q: Probabilities,
    temperature: float = 1.0,
    bias: Tensor | None = None,
    logit_adjustment: Tensor | None = None,
) -> Values:
    z, w = rows(features), rows(prototypes)
    values: Values = [{} for _ in q]
    for i, row in kept_rows(q).items():
        logits = [
            (dot(z[i], w[c]) + (0 if bias is None else bias[c])) / temperature
            for c in range(len(w))
        ]
        if logit_adjustment is not None:
            logits = [logit + a for logit, a in zip(logits, logit_adjustment, strict=True)]
        for c in support(row):
            values[i][c] = (row[c], log_sum_exp(logits) - logits[c])
    return values


TABLE += [
    Row(
        name,
        losses.cross_entropy_loss,
        losses.CrossEntropyLoss,
        cross_entropy,
        options=options,
        temperature="function",
        on_sphere=False,
        soft_labels=not options,
    )
    for name, options in (
        ("cross-entropy", {}),
        ("cross-entropy, label smoothing", {"label_smoothing": 0.2}),
    )
]


def normface(
    cosines: Matrix,
    q: Probabilities,
    temperature: float = 1.0,
    margin: float = 0.0,
    margin_kind: str = "cosine",
    logit_adjustment: Tensor | None = None,
) -> Values:
    values: Values = [{} for _ in q]
    for i, probability in kept_rows(q).items():
        row, y = list(cosines[i]), probability.index(max(probability))
        if margin and margin_kind == "angle":
            angle = torch.arccos(row[y])
            beyond = angle + margin > math.pi
            row[y] = row[y] + math.cos(margin) - 1 if beyond else torch.cos(angle + margin)
        elif margin:
            row[y] = row[y] - margin
        logits = [cosine / temperature for cosine in row]
        if logit_adjustment is not None:
            logits = [logit + a for logit, a in zip(logits, logit_adjustment, strict=True)]
        for c in support(probability):
            values[i][c] = (probability[c], log_sum_exp(logits) - logits[c])
    return values


TABLE += [
    Row(
        name,
        losses.normface_loss,
        losses.NormFaceLoss,
        on_cosines(normface),
        options=options,
        soft_labels=not options,
        reaches_simplex=not options,
    )
    for name, options in (
        ("NormFace", {}),
        ("NormFace, cosine margin", {"margin": 0.2}),
        ("NormFace, angle margin", {"margin": 0.3, "margin_kind": "angle"}),
        ("NormFace, large angle margin", {"margin": 2.0, "margin_kind": "angle"}),
    )
]
TABLE.append(
    Row(
        "NormFace, from logits",
        losses.normface_from_logits,
        losses.NormFaceFromLogits,
        on_logits(normface),
        inputs="logits",
        temperature="none",
        has_form=False,
        on_sphere=False,
        soft_labels=True,
        on_features=losses.normface_loss,
    )
)


def ntce(cosines: Matrix, q: Probabilities, temperature: float = 1.0) -> Values:
    kept = kept_rows(q)
    values: Values = [{} for _ in q]
    for i, row in kept.items():
        for c in support(row):
            column = [cosines[j][c] / temperature for j in kept]
            values[i][c] = (row[c], log_sum_exp(column) - cosines[i][c] / temperature)
    return values


TABLE += [
    Row(
        "NTCE",
        losses.ntce_loss,
        losses.NTCELoss,
        on_cosines(ntce),
        soft_labels=True,
        reaches_simplex=True,
    ),
    Row(
        "NTCE, from logits",
        losses.ntce_from_logits,
        losses.NTCEFromLogits,
        on_logits(ntce),
        inputs="logits",
        temperature="none",
        has_form=False,
        on_sphere=False,
        soft_labels=True,
        on_features=losses.ntce_loss,
    ),
]


def nonl(
    cosines: Matrix,
    q: Probabilities,
    temperature: float = 1.0,
    negatives: str = "samples",
    soft_negatives: str = "weighted",
) -> Values:
    kept = kept_rows(q)
    values: Values = [{} for _ in q]
    for i, row in kept.items():
        tops = [c for c in range(len(row)) if row[c] == max(row)]
        for c in support(row):
            column = []
            for j, other in kept.items():
                weight = float(other[c] == 0)
                if soft_negatives == "weighted":
                    weight = 1 - other[c] / max(other)
                if weight:
                    column.append(cosines[j][c] / temperature + math.log(weight))
            prototypes = [cosines[i][k] / temperature for k in range(len(row)) if k != c]
            terms = {"samples": column, "prototypes": prototypes, "both": prototypes + column}
            if terms[negatives]:
                value = log_sum_exp(terms[negatives]) - cosines[i][c] / temperature
                values[i][c] = (row[c], value)
        if not any(c in values[i] for c in tops):
            values[i] = {}
    return values


for negatives in ("samples", "prototypes", "both"):
    TABLE += [
        Row(
            f"NONL, negatives={negatives}",
            losses.nonl_loss,
            losses.NONLLoss,
            on_cosines(nonl),
            options={"negatives": negatives},
            learned_temperature={"min_temperature": 0.01},
            needs_negatives=negatives == "samples",
            soft_labels=negatives == "samples",
            reaches_simplex=True,
        ),
        Row(
            f"NONL, negatives={negatives}, from logits",
            losses.nonl_from_logits,
            losses.NONLFromLogits,
            on_logits(nonl),
            inputs="logits",
            options={"negatives": negatives},
            temperature="none",
            has_form=False,
            on_sphere=False,
            needs_negatives=negatives == "samples",
            soft_labels=negatives == "samples",
            on_features=losses.nonl_loss,
        ),
    ]


def scl(features: Tensor, labels: list[int], temperature: float = 0.1) -> Values:
    a = [unit(v) for v in rows(features)]
    kept = kept_indices(labels)
    values: Values = [{} for _ in labels]
    for i in kept:
        logits = {j: dot(a[i], a[j]) / temperature for j in kept if j != i}
        positives = [logit for j, logit in logits.items() if labels[j] == labels[i]]
        if positives:
            attraction = torch.stack(positives).sum() / len(positives)
            value = log_sum_exp(list(logits.values())) - attraction
            values[i] = {labels[i]: (1.0, value)}
    return values


TABLE.append(
    Row(
        "SCL",
        losses.scl_loss,
        losses.SCLLoss,
        scl,
        inputs="features",
        temperature="module",
        needs_positives=True,
        reaches_simplex=True,
    )
)


def prototype(features: Tensor, labels: list[int], temperature: float = 0.1) -> Values:
    a = [unit(v) for v in rows(features)]
    kept = kept_indices(labels)
    means = {
        y: mean_vector([a[j] for j in kept if labels[j] == y]) for y in {labels[j] for j in kept}
    }
    values: Values = [{} for _ in labels]
    for i in kept:
        terms = []
        for c, mean in means.items():
            weight = sum(labels[j] == c for j in kept) - (c == labels[i])
            if weight:
                terms.append(dot(a[i], mean) / temperature + math.log(weight))
        if terms:
            value = log_sum_exp(terms) - dot(a[i], means[labels[i]]) / temperature
            values[i] = {labels[i]: (1.0, value)}
    return values


TABLE.append(
    Row(
        "prototype loss",
        losses.prototype_loss,
        losses.PrototypeLoss,
        prototype,
        inputs="features",
        temperature="module",
        reaches_simplex=True,
    )
)


def dot_regression(features: Tensor, prototypes: Tensor, q: Probabilities) -> Values:
    u, w = [unit(v) for v in rows(features)], [unit(v) for v in rows(prototypes)]
    values: Values = [{} for _ in q]
    for i, row in kept_rows(q).items():
        for c in support(row):
            values[i][c] = (row[c], (dot(u[i], w[c]) - 1) ** 2 / 2)
    return values


TABLE.append(
    Row(
        "dot regression",
        losses.dot_regression_loss,
        losses.DotRegressionLoss,
        dot_regression,
        temperature="none",
        has_form=False,
        soft_labels=True,
    )
)
