"""Training accuracies under label noise against a loop over images."""

import pytest
import torch

from protosphere.evaluation.label_noise import measure_noise


def test_fractions_equal_those_of_a_loop() -> None:
    true = torch.randint(4, (200,))
    given = torch.where(torch.rand(200) < 0.3, (true + 1) % 4, true)
    predictions = torch.where(torch.rand(200) < 0.5, given, torch.randint(4, (200,)))
    rows = list(zip(predictions.tolist(), given.tolist(), true.tolist(), strict=True))
    wrong = [row for row in rows if row[1] != row[2]]
    result = measure_noise(predictions, given, true)
    assert result.num_wrong == len(wrong)
    assert result.given_accuracy == pytest.approx(sum(p == g for p, g, _ in rows) / 200)
    assert result.true_accuracy == pytest.approx(sum(p == t for p, _, t in rows) / 200)
    assert result.memorized == pytest.approx(sum(p == g for p, g, _ in wrong) / len(wrong))
    assert result.corrected == pytest.approx(sum(p == t for p, _, t in wrong) / len(wrong))


@pytest.mark.bad_input
def test_wrong_arguments_are_refused() -> None:
    labels = torch.arange(3)
    with pytest.raises(ValueError, match="must have wrong labels; all of them are correct"):
        measure_noise(labels, labels, labels)
    with pytest.raises(ValueError, match=r"got shapes \(2,\), \(3,\) and \(3,\)"):
        measure_noise(labels[:2], labels, labels)
