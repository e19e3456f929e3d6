"""The objective: encoder, head and loss as one module."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from protosphere.classifiers import CosineClassifier
from protosphere.classifiers.protocol import Head
from protosphere.losses import NONLFromLogits, NONLLoss, SCLLoss, nonl_from_logits
from protosphere.training import Objective
from support.training import small_loss, small_objective


def test_forward_is_the_loss_and_logits_are_those_of_the_head() -> None:
    objective = small_objective().eval()
    images, labels = torch.rand(6, 3, 8, 8), torch.tensor([0, 1, 2, 3, 4, 0])
    features = objective.encoder(images)
    assert objective(images, labels) == small_loss(features, objective.head, labels)
    assert torch.equal(objective.logits(images), objective.head(features))


class WeightedLoss(nn.Module):
    weights: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weights", torch.ones(3), persistent=False)

    def forward(self, features: Tensor, head: Head, labels: Tensor) -> Tensor:
        return (self.weights[labels] * features.sum(1)).mean()


def test_the_buffers_of_a_loss_module_move_with_the_objective() -> None:
    loss = WeightedLoss()
    objective = Objective(nn.Linear(4, 8), CosineClassifier(8, 3), loss)
    assert dict(objective.named_children())["loss"] is loss
    assert not any(name.startswith("loss") for name in objective.state_dict())
    objective.to("meta")
    assert loss.weights.device.type == "meta"
    objective = Objective(nn.Linear(4, 8), CosineClassifier(8, 3), WeightedLoss())
    assert objective(torch.randn(2, 4), torch.tensor([0, 2])).shape == ()


@pytest.mark.bad_input
def test_a_head_that_is_not_a_module_is_refused() -> None:
    with pytest.raises(TypeError, match=r"head must be a torch.nn.Module, got function"):
        Objective(nn.Linear(4, 8), lambda features: features, small_loss)  # type: ignore[arg-type]


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("loss", "name"),
    [
        (NONLFromLogits(), r"NONLFromLogits\(logits, labels\)"),
        (SCLLoss(), r"SCLLoss\(features, labels\)"),
        (nn.CrossEntropyLoss(), r"CrossEntropyLoss\(input, target\)"),
        (nonl_from_logits, r"nonl_from_logits\(logits, labels\)"),
        ("nonl", "str"),
    ],
)
def test_a_loss_that_is_called_otherwise_is_refused(loss: Any, name: str) -> None:
    message = rf"loss must be called as loss\(features, head, labels\), got {name}"
    with pytest.raises(TypeError, match=message):
        Objective(nn.Linear(4, 8), CosineClassifier(8, 3), loss)


def test_a_loss_of_logits_becomes_one_of_features_as_the_message_says() -> None:
    loss, inputs, labels = NONLFromLogits(), torch.randn(6, 4), torch.arange(6) % 3
    encoder, head = nn.Linear(4, 8), CosineClassifier(8, 3)
    objective = Objective(
        encoder, head, lambda features, head, labels: loss(head(features), labels)
    )
    expected = Objective(encoder, head, NONLLoss())
    torch.testing.assert_close(objective(inputs, labels), expected(inputs, labels))
