"""The four questions and their answers; and the catalog that they rest on."""

import pytest
import torch

from protosphere.geometry import simplex_etf
from protosphere.metrics import DEFINITIONS, collapse, examine
from protosphere.metrics.catalog import select
from protosphere.metrics.verdicts import verdicts


def _answers(
    features: torch.Tensor, labels: torch.Tensor, prototypes: torch.Tensor | None
) -> list[str]:
    found = examine(features, labels, prototypes)
    judged = verdicts(
        found.values, found.absent, len(found.classes), features.shape[1], sign=found.sign
    )
    assert [verdict.condition for verdict in judged] == ["NC1", "NC2", "NC3", "NC4"]
    return [verdict.answer for verdict in judged]


def test_collapse_is_yes_four_times() -> None:
    frame = simplex_etf(6, 12)
    labels = torch.arange(60) % 6
    assert _answers(frame[labels], labels, frame) == ["yes"] * 4
    assert _answers(frame[labels], labels, None) == ["yes", "yes", "not measured", "not measured"]


def test_noise_is_no() -> None:
    features, labels = torch.randn(600, 4), torch.arange(600) % 6
    assert _answers(features, labels, torch.randn(6, 4)) == ["no"] * 4


def test_answers_move_with_the_spread() -> None:
    frame = simplex_etf(6, 12)
    labels = torch.arange(600) % 6
    noise = torch.randn(600, 12) / 12**0.5
    answers = [
        _answers(frame[labels] + size * noise, labels, frame)[0] for size in (0.01, 0.25, 0.5, 2.0)
    ]
    assert answers == ["yes", "nearly", "partly", "no"]


def test_unequal_lengths_count_against_equal_separation() -> None:
    features = torch.diag(torch.tensor([1.0, 1.0, 1.0, 3.0])).repeat(3, 1)
    found = examine(features, torch.arange(12) % 4, space="raw")
    assert verdicts(found.values, found.absent, 4, 4)[1].answer == "no"


def test_small_cosines_of_many_random_classes_are_not_taken_for_a_simplex() -> None:
    labels = torch.arange(900) % 300
    found = examine(torch.randn(300, 2048)[labels], labels)
    assert found.values["nc2_simplex"] < 0.02
    verdict = verdicts(found.values, found.absent, 300, 2048)[1]
    assert verdict.answer == "partly"
    assert "of 299 directions" in verdict.sentence


def test_class_means_that_differ_by_chance_are_told() -> None:
    labels = torch.arange(5000) % 10
    found = examine(torch.randn(5000, 2048), labels)
    verdict = verdicts(found.values, found.absent, 10, 2048, samples=5000)[1]
    assert (verdict.answer, verdict.sentence) == (
        "no",
        "class means differ hardly more than they would by chance",
    )
    found = examine(torch.randn(5000, 2048) + torch.randn(10, 2048)[labels] / 2, labels)
    assert verdicts(found.values, found.absent, 10, 2048, samples=5000)[1].answer != "no"


def test_sentences_say_what_cannot_be() -> None:
    labels = torch.arange(30) % 10
    found = examine(torch.randn(30, 3), labels)
    sentence = verdicts(found.values, found.absent, 10, 3)[1].sentence
    assert "3 dimensions have no room for 10 classes at equal angles" in sentence
    found = examine(torch.randn(30, 3), labels % 2)
    assert (
        verdicts(found.values, found.absent, 2, 3)[1].sentence
        == "two class means always lie opposite each other"
    )
    assert verdicts({}, {"nc4_agreement": "it needs prototypes; none were given"}, 2, 3)[
        3
    ].sentence.startswith("it needs")


def test_every_metric_is_documented() -> None:
    for name, definition in DEFINITIONS.items():
        assert definition.formula, name
        assert definition.reading, name
        function = getattr(collapse, name.removesuffix("_weights"), None)
        assert function is None or "At collapse" in function.__doc__, name


@pytest.mark.bad_input
def test_selection() -> None:
    assert select("all") == tuple(DEFINITIONS)
    assert select(["unc3", "nc1_ratio"]) == ("nc1_ratio", "unc3")
    assert set(select("alignment")) == {
        "instance_alignment",
        "weight_class_alignment",
        "weight_instance_alignment",
    }
    with pytest.raises(ValueError, match="got 'everything'"):
        select("everything")
