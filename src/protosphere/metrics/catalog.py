"""The metrics by name: what each is and needs, its value at collapse, and the best that given features can reach."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

Condition = Literal["NC1", "NC2", "NC3", "NC4"]
Need = Literal["prototypes", "bias", "pooled", "per_class", "samples"]
Sign = Literal["any", "non-negative"]
Value = Callable[[int], float]


def _zero(_: int) -> float:
    return 0.0


def _one(_: int) -> float:
    return 1.0


def _rank(classes: int) -> float:
    return classes - 1.0


def _mir(classes: int) -> float:
    k = classes
    return 1 / (k - 1) + (k - 2) * math.log(k - 2) / ((k - 1) * math.log(k - 1))


def _log_kernel(classes: int) -> float:
    return -math.log(2 * classes / (classes - 1)) / 2


def _relu_alignment(classes: int) -> float:
    return 2 - 2 * math.sqrt(1 - 1 / classes)


def _relu_published(classes: int) -> tuple[float, float]:
    """MIR and HDR in the published form, at orthonormal class means and a simplex of prototypes."""
    k = classes

    def equicorrelated(cosine: float) -> float:
        """The entropy of a Gram matrix with ones on the diagonal and this cosine elsewhere."""
        shares = [(1 - cosine) / k] * (k - 1) + [(1 + (k - 1) * cosine) / k]
        return -sum(share * math.log(share) for share in shares if share > 0)

    cosine = (1 - 2 / math.sqrt(k)) / (2 - 2 / math.sqrt(k))
    weights, means, both = (
        equicorrelated(value) for value in (-1 / (k - 1), cosine, -cosine / (k - 1))
    )
    return (weights + means - both) / min(weights, means), abs(weights - means) / max(
        weights, means
    )


@dataclass(frozen=True)
class Definition:
    """One metric.

    Attributes:
        condition: which of the four conditions it speaks of.
        group: the name that selects it together with its relatives.
        formula: u a unit feature, μ a class mean, w a unit prototype, v a centered one.
        reading: what it says, in plain words.
        at_collapse: its value at collapse, from K; None where it has none there.
        needs: what must be known beyond class sums.
        rests_on: whether the best value rests on samples, on the frame of class means, of prototypes, or of both.
        non_negative: the best value for features that cannot be negative, where it is another one.
    """

    condition: Condition
    group: str
    formula: str
    reading: str
    at_collapse: Value | None
    needs: frozenset[Need] = frozenset()
    rests_on: Literal["samples", "means", "weights", "both"] = "samples"
    non_negative: Value | None = None


def _needs(*names: Need) -> frozenset[Need]:
    return frozenset(names)


def _nc2(
    what: str, rests_on: Literal["means", "weights"], needs: frozenset[Need]
) -> dict[str, Definition]:
    suffix = "" if rests_on == "means" else "_weights"
    lines = {
        "norms": ("std/mean of ‖v_c‖", f"how unequal the lengths of {what} are"),
        "angles": ("std of cos(v_c, v_c′), c≠c′", f"how unequal the angles between {what} are"),
        "simplex": (
            "mean |cos(v_c, v_c′) + 1/(K−1)|",
            f"how far {what} are from being as far apart as they can be",
        ),
        "gram": ("‖G/‖G‖ − (I−11ᵀ/K)/√(K−1)‖", f"lengths and angles of {what} at once"),
    }
    return {
        f"nc2_{name}{suffix}": Definition("NC2", "nc2", formula, reading, _zero, needs, rests_on)
        for name, (formula, reading) in lines.items()
    }


_W = _needs("prototypes")

DEFINITIONS: dict[str, Definition] = {
    "nc1_ratio": Definition(
        "NC1", "nc1", "tr Σ_W / tr Σ_B", "spread within classes by spread between them", _zero
    ),
    "nc1_trace": Definition(
        "NC1",
        "nc1",
        "tr(Σ_W Σ_B⁺)/K",
        "the same, counted in each direction by itself",
        _zero,
        _needs("pooled"),
    ),
    "cdnv": Definition(
        "NC1",
        "nc1",
        "mean (v_c+v_c′)/(2‖μ_c−μ_c′‖²)",
        "spread of two classes by their distance, over pairs",
        _zero,
    ),
    "instance_alignment": Definition(
        "NC1",
        "alignment",
        "mean ‖u_i − u_j‖², same class",
        "squared distance between samples of a class",
        _zero,
    ),
    "intra_effective_rank": Definition(
        "NC1",
        "intra",
        "mean_c erank Cov(u − μ_c)",
        "directions that a class fills: shape, not size; grows with samples; 0 only for a point, else 1 or more",
        _zero,
        _needs("per_class"),
    ),
    "inter_effective_rank": Definition(
        "NC2",
        "ranks",
        "erank Cov(μ_c)",
        "directions that the class means fill",
        _rank,
        rests_on="means",
    ),
    **_nc2("class means", "means", frozenset()),
    "gnc2_mean": Definition(
        "NC2",
        "generalized",
        "mean ln 1/‖v_c−v_c′‖",
        "how crowded the class means are",
        _log_kernel,
        rests_on="means",
    ),
    "gnc2_variance": Definition(
        "NC2",
        "generalized",
        "var ln 1/‖v_c−v_c′‖",
        "how unequally crowded they are",
        _zero,
        rests_on="means",
    ),
    "weights_effective_rank": Definition(
        "NC2",
        "ranks",
        "erank Cov(w_c)",
        "directions that the prototypes fill",
        _rank,
        _W,
        "weights",
    ),
    **_nc2("prototypes", "weights", _W),
    "weight_class_alignment": Definition(
        "NC3",
        "alignment",
        "mean ‖w_c − μ_c/‖μ_c‖‖²",
        "squared distance of prototype and class mean",
        _zero,
        _W,
        "both",
        _relu_alignment,
    ),
    "weight_instance_alignment": Definition(
        "NC3",
        "alignment",
        "mean ‖w_{y_i} − u_i‖²",
        "squared distance of prototype and sample",
        _zero,
        _W,
        "both",
        _relu_alignment,
    ),
    "nc3_cosine": Definition(
        "NC3",
        "nc3",
        "mean 1 − cos(w_c, v_c)",
        "1 − cosine of the angle between a prototype and its class mean, seen from the center",
        _zero,
        _W,
        "both",
    ),
    "nc3_duality": Definition(
        "NC3",
        "nc3",
        "‖W/‖W‖ − M/‖M‖‖²",
        "prototypes against centered means, as matrices",
        _zero,
        _W,
        "both",
    ),
    "unc3": Definition(
        "NC3", "generalized", "var cos(w_c, v_c)", "how unequal those angles are", _zero, _W, "both"
    ),
    "mir": Definition(
        "NC3",
        "information",
        "(H_W+H_M−H_WM)/min(H_W, H_M)",
        "what means and prototypes share",
        _mir,
        _W,
        "both",
    ),
    "hdr": Definition(
        "NC3",
        "information",
        "|H_W−H_M|/max(H_W, H_M)",
        "how different their entropies are",
        _zero,
        _W,
        "both",
    ),
    "mir_published": Definition(
        "NC3",
        "information",
        "as the paper's table has it",
        "the same, as published",
        None,
        _W,
        "both",
        lambda classes: _relu_published(classes)[0],
    ),
    "hdr_published": Definition(
        "NC3",
        "information",
        "as the paper's table has it",
        "the same, as published",
        None,
        _W,
        "both",
        lambda classes: _relu_published(classes)[1],
    ),
    "nc4_agreement": Definition(
        "NC4",
        "nc4",
        "share of argmax_c w_c·u = argmin_c ‖u−μ_c‖",
        "how often the classifier picks the nearest class mean",
        _one,
        _needs("prototypes", "samples"),
    ),
    "bias_spread": Definition(
        "NC4", "nc4", "std(b)", "how unequal the biases are", _zero, _needs("bias")
    ),
    "bias_offset": Definition(
        "NC4",
        "nc4",
        "‖Wμ_G + b‖",
        "what the head says of the mean of all",
        _zero,
        _needs("prototypes", "bias"),
    ),
}

# What class sums alone give, at no cost beside computing the features.
CHEAP: tuple[str, ...] = tuple(
    name
    for name, definition in DEFINITIONS.items()
    if not definition.needs & _needs("pooled", "per_class", "samples")
)


def select(metrics: str | Sequence[str]) -> tuple[str, ...]:
    """The names of metrics meant by ``"all"``, ``"cheap"``, groups and names, in the order of the catalog.

    Raises:
        ValueError: a name is none of these.

    >>> select(["nc3", "cdnv"])
    ('cdnv', 'nc3_cosine', 'nc3_duality')
    """
    asked = [metrics] if isinstance(metrics, str) else list(metrics)
    groups = {definition.group for definition in DEFINITIONS.values()}
    known = {"all", "cheap", *groups, *DEFINITIONS}
    for name in asked:
        if name not in known:
            raise ValueError(
                f"metrics must be 'all', 'cheap', groups ({', '.join(sorted(groups))}) or names; got {name!r}"
            )
    return tuple(
        name
        for name, definition in DEFINITIONS.items()
        if "all" in asked
        or name in asked
        or definition.group in asked
        or ("cheap" in asked and name in CHEAP)
    )


def at_collapse(name: str, num_classes: int) -> float | None:
    """The value of a metric at collapse: samples at their means, means and prototypes one simplex.

    >>> at_collapse("inter_effective_rank", 10)
    9.0
    """
    value = DEFINITIONS[name].at_collapse
    if value is None or (num_classes < 3 and DEFINITIONS[name].group == "information"):
        return None
    return value(num_classes)


def attainable(name: str, num_classes: int, dim: int, *, sign: Sign = "any") -> float | None:
    """The best value of a metric that features of this kind can reach; None where it is not known.

    In fewer than K − 1 dimensions there is no simplex. Features that cannot be negative (an encoder that ends in a
    ReLU) reach orthogonal class means at best, with a simplex of prototypes, if there are K dimensions or more; their
    *centered* means form a simplex, so most metrics are not touched.

    >>> round(attainable("weight_class_alignment", 10, 512, sign="non-negative"), 3)
    0.103
    >>> attainable("inter_effective_rank", 100, 64)
    64.0
    """
    definition = DEFINITIONS[name]
    if num_classes < 3 and definition.group == "information":
        return None
    if sign == "non-negative" and definition.rests_on in ("means", "both"):
        if dim < num_classes:
            return None
        return (definition.non_negative or definition.at_collapse or _zero)(num_classes)
    if dim >= num_classes - 1 or definition.rests_on == "samples":
        return at_collapse(name, num_classes)
    if name in ("inter_effective_rank", "weights_effective_rank"):
        return float(dim)
    # Unit vectors that fill d dimensions evenly about zero exist for every K > d; equal angles do not.
    even = name.startswith("nc2_norms") or definition.group in ("alignment", "nc3", "generalized")
    return 0.0 if (even and not name.startswith("gnc2")) or name == "hdr" else None
