"""The four conditions of neural collapse as questions, answered in plain words. Pure Python."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from protosphere.metrics.catalog import Condition, Sign, at_collapse, attainable

Answer = Literal["yes", "nearly", "partly", "no", "not measured"]
_ANSWERS: tuple[Answer, ...] = ("yes", "nearly", "partly", "no")


@dataclass(frozen=True)
class Verdict:
    """One condition.

    Attributes:
        condition: its name.
        question: what it asks.
        answer: in a word or two.
        sentence: why, in plain words.
        metric: the metric that the answer rests on, with its value, its value at collapse and the best attainable.
    """

    condition: Condition
    question: str
    answer: Answer
    sentence: str
    metric: str
    value: float | None
    at_collapse: float | None
    attainable: float | None


@dataclass(frozen=True)
class _Rule:
    condition: Condition
    question: str
    metric: str
    limits: tuple[float, float, float]
    sentence: Callable[[float], str]


def _angle(value: float) -> str:
    degrees = math.degrees(math.acos(max(-1.0, min(1.0, 1 - value))))
    return (
        f"a prototype and the mean of its class, seen from the center, stand {degrees:.1f}° apart"
    )


_RULES = (
    _Rule(
        "NC1",
        "Does each class gather at one point?",
        "nc1_ratio",
        (0.01, 0.1, 0.5),
        lambda value: (
            f"the variance of samples within classes is {_times(value)} that between class means"
        ),
    ),
    _Rule(
        "NC2",
        "Are the classes as far apart as they can be, all alike?",
        "nc2_simplex",
        (0.02, 0.05, 0.15),
        lambda value: f"cosines between class means are {value:.3f} from the ideal on average",
    ),
    _Rule(
        "NC3", "Does each prototype point at its class?", "nc3_cosine", (0.01, 0.05, 0.3), _angle
    ),
    _Rule(
        "NC4",
        "Does the classifier simply pick the nearest class mean?",
        "nc4_agreement",
        (0.999, 0.99, 0.9),
        lambda value: f"it does for {100 * value:.4g} % of the samples",
    ),
)


def verdicts(
    values: Mapping[str, float],
    absent: Mapping[str, str],
    num_classes: int,
    dim: int,
    *,
    sign: Sign = "any",
    samples: int | None = None,
) -> list[Verdict]:
    """The four conditions, judged from measured metrics.

    Args:
        values: as of :func:`protosphere.metrics.measure`.
        absent: why others have no value.
        num_classes: K.
        dim: d.
        sign: whether features can be negative.
        samples: how many there are, to tell class means that differ from those that differ by chance.

    >>> verdicts({"nc1_ratio": 0.03}, {}, 10, 512)[0].answer
    'nearly'
    """
    found = [_judge(rule, values, absent, num_classes, dim, sign) for rule in _RULES]
    ratio = values.get("nc1_ratio")
    # Means of n samples of one cloud differ by 1/n of its variance.
    if (
        samples is not None
        and ratio is not None
        and found[1].value is not None
        and ratio > samples / num_classes / 3
    ):
        found[1] = replace(
            found[1],
            answer="no",
            sentence="class means differ hardly more than they would by chance",
        )
    return found


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
    sentence = absent.get(rule.metric, "it was not asked for")
    if value is not None:
        answer = _grade(value, rule.limits)
        sentence = rule.sentence(value)
        if rule.condition == "NC2":
            answer, sentence = _whole_frame(answer, sentence, values, min(num_classes - 1, dim))
            if num_classes == 2:
                sentence = "two class means always lie opposite each other"
            if dim < num_classes - 1:
                sentence += (
                    f"; {dim} dimensions have no room for {num_classes} classes at equal angles"
                )
    return Verdict(
        rule.condition,
        rule.question,
        answer,
        sentence,
        rule.metric,
        value,
        at_collapse(rule.metric, num_classes),
        attainable(rule.metric, num_classes, dim, sign=sign),
    )


def _whole_frame(
    answer: Answer, sentence: str, values: Mapping[str, float], directions: int
) -> tuple[Answer, str]:
    """Small cosines are not all: those of many random classes are small too, but fill the directions unevenly."""
    grades = [answer]
    if (rank := values.get("inter_effective_rank")) is not None:
        grades.append(_grade(rank / directions, (0.99, 0.95, 0.8)))
        sentence += f", they fill {rank:.1f} of {directions} directions"
    if (lengths := values.get("nc2_norms")) is not None:
        grades.append(_grade(lengths, (0.02, 0.1, 0.3)))
        sentence += f", and their distances from the center differ by {100 * lengths:.1f} %"
    return max(grades, key=_ANSWERS.index), sentence


def _grade(value: float, limits: tuple[float, float, float]) -> Answer:
    rising = limits[0] > limits[-1]
    for answer, limit in zip(_ANSWERS, limits, strict=False):
        if value >= limit if rising else value <= limit:
            return answer
    return "no"


def _times(value: float) -> str:
    if value >= 1:
        return f"{value:.1f} times"
    return f"{100 * value:.0f} % of" if value >= 0.1 else f"{100 * value:.2g} % of"
