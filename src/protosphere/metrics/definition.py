"""``MetricDefinition``, the type of a catalog row, and closed forms of optimal values. Pure Python.

Nothing here imports torch: a row names its function, which is imported when it is first called.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Any, Literal

Condition = Literal["NC1", "NC2", "NC3", "NC4"]
Need = Literal["prototypes", "bias", "pooled", "per_class", "samples"]
Sign = Literal["any", "non-negative"]
Geometry = Literal["samples", "means", "prototypes", "means and prototypes"]
Direction = Literal["higher", "lower", "target"]

# What must be known, beyond class sums, to provide an attribute of MetricInputs.
_NEEDS: dict[str, Need] = {
    "weights": "prototypes",
    "information": "prototypes",
    "published_information": "prototypes",
    "head_bias": "bias",
    "projected_scatter": "pooled",
    "class_spectra": "per_class",
    "agreement": "samples",
}


@dataclass(frozen=True)
class ClosedForm:
    """A value as a function of the number of classes K (or of the dimension d).

    Attributes:
        text: Formula for tables.
        value: Function of K (or d).
    """

    text: str
    value: Callable[[int], float]

    def __call__(self, argument: int) -> float:
        """Return the value."""
        return self.value(argument)


@dataclass(frozen=True)
class MetricDefinition:
    """One metric: what it is, how it is computed, and its best values.

    Attributes:
        condition: Condition of neural collapse that the metric belongs to.
        group: Name that selects related metrics together.
        formula: Formula for tables; u is a unit feature, μ a class mean, w a unit prototype and v
            a centered class mean or prototype.
        description: What the metric measures, in one phrase.
        function: Function that computes it, as "module.function" inside ``protosphere.metrics``.
        inputs: Arguments of the function: attributes of
            :class:`protosphere.metrics.compute.MetricInputs`.
        at_collapse: Value at neural collapse, from K; None if undefined there.
        depends_on: What must have the optimal geometry for the metric to be optimal.
        non_negative: Best value for non-negative features, from K, where it differs.
        low_dim: Best value in fewer than K − 1 dimensions, from d; None if unknown. Only for
            metrics that depend on more than the samples.
        min_classes: Smallest number of classes for which the metric is defined.
    """

    condition: Condition
    group: str
    formula: str
    description: str
    function: str
    inputs: tuple[str, ...]
    at_collapse: ClosedForm | None
    depends_on: Geometry = "samples"
    non_negative: ClosedForm | None = None
    low_dim: ClosedForm | None = None
    min_classes: int = 2

    @cached_property
    def needs(self) -> frozenset[Need]:
        """What must be known beyond class sums."""
        return frozenset(_NEEDS[name] for name in self.inputs if name in _NEEDS)

    @property
    def direction(self) -> Direction | None:
        """Which values are nearer to neural collapse.

        ``"target"`` if the value at collapse is neither the largest nor the smallest one; None if
        there is none.
        """
        if self.at_collapse is None:
            return None
        if self.at_collapse in (ONE, SIMPLEX_RANK):
            return "higher"
        return "lower" if self.at_collapse in (ZERO, LOG_KERNEL) else "target"

    def resolve(self) -> Callable[..., Any]:
        """Import and return the function that computes the metric."""
        module, _, name = self.function.partition(".")
        function: Callable[..., Any] = getattr(import_module(f"protosphere.metrics.{module}"), name)
        return function

    def value_at_collapse(self, num_classes: int) -> float | None:
        """Return the value at neural collapse; None if the metric is undefined there."""
        if self.at_collapse is None or num_classes < self.min_classes:
            return None
        return self.at_collapse(num_classes)

    def best_value(self, num_classes: int, dim: int, *, sign: Sign = "any") -> float | None:
        """Return the best value that features of this kind can reach; None if it is unknown.

        In fewer than K − 1 dimensions there is no simplex. Non-negative features reach orthogonal
        class means at best, given K dimensions or more. Their *centered* means then form a
        simplex, so that most metrics reach their value at collapse.
        """
        if num_classes < self.min_classes:
            return None
        if sign == "non-negative" and "means" in self.depends_on:
            best = self.non_negative or self.at_collapse
            return None if best is None or dim < num_classes else best(num_classes)
        if dim >= num_classes - 1 or self.depends_on == "samples":
            return self.value_at_collapse(num_classes)
        return None if self.low_dim is None else self.low_dim(dim)


def _mir(num_classes: int) -> float:
    k = num_classes
    return 1 / (k - 1) + (k - 2) * math.log(k - 2) / ((k - 1) * math.log(k - 1))


def _published(num_classes: int) -> tuple[float, float]:
    """MIR and HDR in the published form, for orthonormal class means and simplex prototypes."""
    k = num_classes

    def equicorrelation_entropy(cosine: float) -> float:
        """Entropy of a Gram matrix with ones on the diagonal and one cosine everywhere else."""
        eigenvalues = [(1 - cosine) / k] * (k - 1) + [(1 + (k - 1) * cosine) / k]
        return -sum(value * math.log(value) for value in eigenvalues if value > 0)

    cosine = (1 - 2 / math.sqrt(k)) / (2 - 2 / math.sqrt(k))
    weights, means, joint = map(equicorrelation_entropy, (-1 / (k - 1), cosine, -cosine / (k - 1)))
    mir = (weights + means - joint) / min(weights, means)
    return mir, abs(weights - means) / max(weights, means)


ZERO = ClosedForm("0", lambda _: 0.0)
ONE = ClosedForm("1", lambda _: 1.0)
SIMPLEX_RANK = ClosedForm("K − 1", lambda num_classes: num_classes - 1.0)
FULL_RANK = ClosedForm("d", float)
LOG_KERNEL = ClosedForm(
    "−½ ln(2K/(K−1))", lambda num_classes: -math.log(2 * num_classes / (num_classes - 1)) / 2
)
MIR = ClosedForm("1/(K−1) + (K−2)ln(K−2)/((K−1)ln(K−1))", _mir)
NON_NEGATIVE_ALIGNMENT = ClosedForm(
    "2 − 2√(1 − 1/K)", lambda num_classes: 2 - 2 * math.sqrt(1 - 1 / num_classes)
)
PUBLISHED_MIR = ClosedForm("closed form, see below", lambda num_classes: _published(num_classes)[0])
PUBLISHED_HDR = ClosedForm("closed form, see below", lambda num_classes: _published(num_classes)[1])
