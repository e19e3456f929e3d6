"""The four conditions of neural collapse as questions with graded answers. Pure Python."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from protosphere.metrics.catalog import at_collapse, attainable
from protosphere.metrics.definition import Condition, Sign

Answer = Literal["yes", "nearly", "partly", "no", "not measured"]
_ANSWERS: tuple[Answer, ...] = ("yes", "nearly", "partly", "no")
_Thresholds = tuple[float, float, float]
# Of the effective rank of the class means over the largest one, and of the variation of their
# norms, which NC2 also depends on.
_RANK_THRESHOLDS: _Thresholds = (0.99, 0.95, 0.8)
_NORM_THRESHOLDS: _Thresholds = (0.02, 0.1, 0.3)


@dataclass(frozen=True)
class Verdict:
    """Assessment of one condition.

    Attributes:
        condition: Name of the condition.
        question: The condition as a question.
        answer: Graded answer.
        explanation: The measured facts behind the answer, or why it was not measured.
        metric: Metric that the answer is based on.
        value: Value of the metric; None if it was not measured.
        at_collapse: Value of the metric at neural collapse.
        attainable: Best value that such features can reach.
    """

    condition: Condition
    question: str
    answer: Answer
    explanation: str
    metric: str
    value: float | None
    at_collapse: float | None
    attainable: float | None


@dataclass(frozen=True)
class _Rule:
    """How to grade a condition: thresholds of the metric for "yes", "nearly" and "partly"."""

    condition: Condition
    question: str
    metric: str
    thresholds: _Thresholds
    explain: Callable[[float], str]


def _explain_ratio(value: float) -> str:
    if value >= 1:
        relative = f"{value:.1f} times"
    else:
        relative = f"{100 * value:.0f}% of" if value >= 0.1 else f"{100 * value:.2g}% of"
    return f"the within-class variance is {relative} the between-class variance"


def _explain_angle(value: float) -> str:
    degrees = math.degrees(math.acos(max(-1.0, min(1.0, 1 - value))))
    return f"the angle between a prototype and its centered class mean is {degrees:.1f}° on average"


_RULES = (
    _Rule(
        "NC1",
        "Are the features of each class collapsed to their class mean?",
        "nc1_ratio",
        (0.01, 0.1, 0.5),
        _explain_ratio,
    ),
    _Rule(
        "NC2",
        "Do the class means form a simplex (equal norms, equal and maximal angles)?",
        "nc2_simplex",
        (0.02, 0.05, 0.15),
        lambda value: (
            f"cosines between class means differ from those of a simplex by {value:.3f} on average"
        ),
    ),
    _Rule(
        "NC3",
        "Are the prototypes aligned with their class means?",
        "nc3_cosine",
        (0.01, 0.05, 0.3),
        _explain_angle,
    ),
    _Rule(
        "NC4",
        "Does the head predict the class with the nearest mean?",
        "nc4_agreement",
        (0.999, 0.99, 0.9),
        lambda value: f"the two predictions agree on {100 * value:.4g}% of the samples",
    ),
)


def verdicts(
    values: Mapping[str, float],
    absent: Mapping[str, str],
    num_classes: int,
    dim: int,
    *,
    sign: Sign = "any",
    num_samples: int | None = None,
) -> list[Verdict]:
    """Assess the four conditions from measured metrics.

    Args:
        values: Metric values, as returned by :func:`protosphere.metrics.measure`.
        absent: Why other metrics have no value.
        num_classes: Number of classes K.
        dim: Dimension d of the features.
        sign: Sign of the features.
        num_samples: Number of samples. With it, class means that differ no more than by chance
            are recognized.

    Returns:
        One verdict per condition, NC1 to NC4.

    >>> verdicts({"nc1_ratio": 0.03}, {}, 10, 512)[0].answer
    'nearly'
    """
    results = [_judge(rule, values, absent, num_classes, dim, sign) for rule in _RULES]
    ratio = values.get("nc1_ratio")
    separation = results[1]
    if num_samples is None or ratio is None or separation.value is None:
        return results
    # Means of n samples of the same distribution differ by 1/n of its variance.
    if ratio > num_samples / num_classes / 3:
        results[1] = replace(
            separation,
            answer="no",
            explanation="class means hardly differ more than expected by chance",
        )
    return results


@dataclass(frozen=True)
class GradedDistance:
    """Distance of a metric from its value at collapse, 0 at collapse, and how it is graded.

    Attributes:
        condition: Name of the condition.
        metric: Name of the metric.
        meaning: What the distance is, in a few words.
        distance: The distance.
        limits: Largest distances for "yes", "nearly" and "partly"; beyond them the answer is "no".
    """

    condition: Condition
    metric: str
    meaning: str
    distance: float
    limits: tuple[float, float, float]


def graded_distances(
    values: Mapping[str, float], num_classes: int, dim: int
) -> list[GradedDistance]:
    """Return the distances from collapse that the answers of :func:`verdicts` depend on.

    Args:
        values: Metric values, as returned by :func:`protosphere.metrics.measure`; those of metrics
            that were not measured are left out.
        num_classes: Number of classes K.
        dim: Dimension d of the features.

    >>> graded_distances({"nc4_agreement": 0.75}, 10, 512)[0].distance
    0.25
    """
    nc1, nc2, nc3, nc4 = (rule.thresholds for rule in _RULES)
    max_rank = min(num_classes - 1, dim)
    rows: list[tuple[Condition, str, str, Callable[[float], float], _Thresholds]] = [
        ("NC1", "nc1_ratio", "within/between-class variance", float, nc1),
        ("NC2", "nc2_simplex", "cosines of class means", float, nc2),
        (
            "NC2",
            "inter_effective_rank",
            "missing rank of class means",
            lambda rank: 1 - rank / max_rank,
            _RANK_THRESHOLDS,
        ),
        ("NC2", "nc2_norms", "norms of class means", float, _NORM_THRESHOLDS),
        ("NC3", "nc3_cosine", "prototypes and class means", float, nc3),
        ("NC4", "nc4_agreement", "disagreement with nearest mean", lambda value: 1 - value, nc4),
    ]
    results = []
    for condition, metric, meaning, distance, (yes, nearly, partly) in rows:
        if metric in values:
            is_reversed = yes > partly
            limits = tuple(1 - one if is_reversed else one for one in (yes, nearly, partly))
            results.append(
                GradedDistance(condition, metric, meaning, distance(values[metric]), limits)  # type: ignore[arg-type]
            )
    return results


def _judge(
    rule: _Rule,
    values: Mapping[str, float],
    absent: Mapping[str, str],
    num_classes: int,
    dim: int,
    sign: Sign,
) -> Verdict:
    value = values.get(rule.metric)
    answer: Answer = "not measured"
    explanation = absent.get(rule.metric, f"{rule.metric} was not selected")
    if value is not None:
        answer = _grade(value, rule.thresholds)
        explanation = rule.explain(value)
        if rule.condition == "NC2":
            answer, explanation = _judge_simplex(answer, explanation, values, num_classes, dim)
    return Verdict(
        rule.condition,
        rule.question,
        answer,
        explanation,
        rule.metric,
        value,
        at_collapse(rule.metric, num_classes),
        attainable(rule.metric, num_classes, dim, sign=sign),
    )


def _judge_simplex(
    answer: Answer, explanation: str, values: Mapping[str, float], num_classes: int, dim: int
) -> tuple[Answer, str]:
    """Grade ranks and norms too: the cosines of many random vectors are small as well."""
    answers = [answer]
    max_rank = min(num_classes - 1, dim)
    if (rank := values.get("inter_effective_rank")) is not None:
        answers.append(_grade(rank / max_rank, _RANK_THRESHOLDS))
        explanation += f", their effective rank is {rank:.1f} of {max_rank}"
    if (variation := values.get("nc2_norms")) is not None:
        answers.append(_grade(variation, _NORM_THRESHOLDS))
        explanation += f", and their norms vary by {100 * variation:.1f}%"
    if num_classes == 2:
        explanation = "two centered class means are always opposite"
    if dim < num_classes - 1:
        explanation += f"; {num_classes} classes cannot form a simplex in {dim} dimensions"
    return max(answers, key=_ANSWERS.index), explanation


def _grade(value: float, thresholds: _Thresholds) -> Answer:
    higher_is_better = thresholds[0] > thresholds[-1]
    for answer, threshold in zip(_ANSWERS, thresholds, strict=False):
        if value >= threshold if higher_is_better else value <= threshold:
            return answer
    return "no"
