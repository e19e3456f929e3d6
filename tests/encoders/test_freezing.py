"""Freezing: which parameters are frozen, and modules that stay in evaluation mode."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

from protosphere.encoders import Encoder, create_backbone, create_projection, freeze_backbone
from protosphere.evaluation import evaluation_mode


def _trainable(module: nn.Module) -> set[str]:
    return {name for name, weight in module.named_parameters() if weight.requires_grad}


@pytest.mark.parametrize(
    ("name", "stages", "first", "last"),
    [
        ("test_resnet", 0, "conv1.0.weight", "layer1"),
        ("test_resnet", 2, "layer2.", "layer3."),
        ("test_resnet", 4, "layer4.", None),
        ("test_efficientnet", 3, "blocks.2.", "blocks.3."),
        ("test_vit", 1, "blocks.0.", "blocks.1."),
        ("test_convnext", 4, "stages.3.", "head.norm."),
    ],
)
def test_the_stem_and_the_first_stages_are_frozen(
    name: str, stages: int, first: str, last: str | None
) -> None:
    encoder = Encoder(create_backbone(name))
    freeze_backbone(encoder, stages)
    trainable = _trainable(encoder.backbone)
    frozen = {name for name, _ in encoder.backbone.named_parameters()} - trainable
    assert any(name.startswith(first) for name in frozen)
    assert not any(name.startswith(first) for name in trainable)
    if last is None:
        assert not trainable
    else:
        assert any(name.startswith(last) for name in trainable)
        assert not any(name.startswith(last) for name in frozen)


def test_none_freezes_nothing() -> None:
    encoder = Encoder(create_backbone("small"))
    freeze_backbone(encoder, "none")
    assert len(_trainable(encoder)) == 9
    assert all(module.training for module in encoder.modules())


def test_a_frozen_backbone_leaves_the_projection_trainable() -> None:
    encoder = Encoder(create_backbone("small"), projection=create_projection("linear", 64))
    freeze_backbone(encoder, "backbone")
    assert _trainable(encoder) == {"projection.weight", "projection.bias"}
    assert not any(module.training for module in encoder.backbone.modules())
    assert encoder.projection is not None
    assert encoder.projection.training


@pytest.mark.parametrize("freeze", [1, "backbone"])
def test_frozen_modules_stay_in_evaluation_mode(freeze: Any) -> None:
    encoder = Encoder(create_backbone("small"), projection=create_projection("linear", 64))
    freeze_backbone(encoder, freeze)
    modes = {name: module.training for name, module in encoder.named_modules()}
    assert not modes["backbone.layers.1"]
    assert modes["backbone.layers.7"] == (freeze == 1)
    holder = nn.ModuleDict({"encoder": encoder})
    with evaluation_mode(holder):
        assert not any(module.training for module in holder.modules())
    assert {name: module.training for name, module in encoder.named_modules()} == modes
    for module in (holder.eval().train()["encoder"], copy.deepcopy(encoder).eval().train()):
        assert {name: part.training for name, part in module.named_modules()} == modes
    short = encoder.without_projection().eval().train()
    assert not short.backbone.get_submodule("layers.1").training


def test_a_frozen_batch_norm_keeps_its_statistics() -> None:
    encoder = Encoder(create_backbone("small"))
    freeze_backbone(encoder, 1)
    before = {key: value.clone() for key, value in encoder.state_dict().items()}
    encoder.train()(torch.randn(4, 3, 8, 8))
    for key, value in encoder.state_dict().items():
        changed = key.startswith("backbone.layers.7.") and not key.endswith((".weight", ".bias"))
        assert torch.equal(value, before[key]) != changed, key


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("name", "freeze", "message"),
    [
        ("test_resnet", 5, "a number of stages from 0 to 4 for this backbone, got 5"),
        ("test_resnet", -1, "a number of stages from 0 to 4 for this backbone, got -1"),
        ("small", "head", "freeze must be 'none', 'backbone' or a number of stages, got 'head'"),
        ("small", True, "freeze must be 'none', 'backbone' or a number of stages, got True"),
    ],
)
def test_other_values_are_refused(name: str, freeze: Any, message: str) -> None:
    encoder = Encoder(create_backbone(name))
    with pytest.raises(ValueError, match=message):
        freeze_backbone(encoder, freeze)
    assert all(weight.requires_grad for weight in encoder.parameters())


@pytest.mark.bad_input
def test_a_backbone_without_stages_is_refused() -> None:
    encoder = Encoder(nn.Flatten(), feature_dim=4)
    message = r"'none' or 'backbone' for a backbone without stages \(Flatten\), got 1"
    with pytest.raises(ValueError, match=message):
        freeze_backbone(encoder, 1)
