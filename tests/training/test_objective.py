"""The objective: encoder, head and loss as one module."""

import pytest
import torch
from torch import Tensor, nn

from protosphere.classifiers import CosineClassifier
from protosphere.classifiers.protocol import Head
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
