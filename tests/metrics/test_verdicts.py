"""Graded answers to the four conditions of neural collapse."""

import torch

from protosphere.geometry import simplex_etf
from protosphere.metrics import measure_detailed
from protosphere.metrics.verdicts import verdicts


def _answers(
    features: torch.Tensor, labels: torch.Tensor, prototypes: torch.Tensor | None
) -> list[str]:
    result = measure_detailed(features, labels, prototypes)
    judged = verdicts(
        result.values, result.absent, len(result.classes), features.shape[1], sign=result.sign
    )
    assert [verdict.condition for verdict in judged] == ["NC1", "NC2", "NC3", "NC4"]
    return [verdict.answer for verdict in judged]


def test_all_conditions_hold_at_collapse() -> None:
    frame = simplex_etf(6, 12)
    labels = torch.arange(60) % 6
    assert _answers(frame[labels], labels, frame) == ["yes"] * 4
    assert _answers(frame[labels], labels, None) == ["yes", "yes", "not measured", "not measured"]


def test_no_condition_holds_for_noise() -> None:
    features, labels = torch.randn(600, 4), torch.arange(600) % 6
    assert _answers(features, labels, torch.randn(6, 4)) == ["no"] * 4


def test_answers_follow_the_within_class_variance() -> None:
    frame = simplex_etf(6, 12)
    labels = torch.arange(600) % 6
    noise = torch.randn(600, 12) / 12**0.5
    answers = [
        _answers(frame[labels] + size * noise, labels, frame)[0] for size in (0.01, 0.25, 0.5, 2.0)
    ]
    assert answers == ["yes", "nearly", "partly", "no"]


def test_unequal_norms_are_not_a_simplex() -> None:
    features = torch.diag(torch.tensor([1.0, 1.0, 1.0, 3.0])).repeat(3, 1)
    result = measure_detailed(features, torch.arange(12) % 4, space="raw")
    assert verdicts(result.values, result.absent, 4, 4)[1].answer == "no"


def test_small_cosines_of_random_classes_are_not_a_simplex() -> None:
    labels = torch.arange(900) % 300
    result = measure_detailed(torch.randn(300, 2048)[labels], labels)
    assert result.values["nc2_simplex"] < 0.02
    verdict = verdicts(result.values, result.absent, 300, 2048)[1]
    assert verdict.answer == "partly"
    assert "effective rank is" in verdict.explanation


def test_class_means_that_differ_by_chance_are_recognized() -> None:
    labels = torch.arange(5000) % 10
    result = measure_detailed(torch.randn(5000, 2048), labels)
    verdict = verdicts(result.values, result.absent, 10, 2048, num_samples=5000)[1]
    assert (verdict.answer, verdict.explanation) == (
        "no",
        "class means hardly differ more than expected by chance",
    )
    result = measure_detailed(torch.randn(5000, 2048) + torch.randn(10, 2048)[labels] / 2, labels)
    assert verdicts(result.values, result.absent, 10, 2048, num_samples=5000)[1].answer != "no"


def test_explanations_mention_what_is_impossible() -> None:
    labels = torch.arange(30) % 10
    result = measure_detailed(torch.randn(30, 3), labels)
    explanation = verdicts(result.values, result.absent, 10, 3)[1].explanation
    assert "10 classes cannot form a simplex in 3 dimensions" in explanation
    result = measure_detailed(torch.randn(30, 3), labels % 2)
    assert (
        verdicts(result.values, result.absent, 2, 3)[1].explanation
        == "two centered class means are always opposite"
    )
    assert verdicts({}, {"nc4_agreement": "requires prototypes, and none were given"}, 2, 3)[
        3
    ].explanation.startswith("requires prototypes")
