"""Parameter groups: multipliers by part, timm's layer-wise decay, and weight decay by name."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from timm.optim import param_groups_layer_decay
from torch import nn

from protosphere.classifiers import CosineClassifier, FixedFrameClassifier
from protosphere.encoders import (
    Encoder,
    create_backbone,
    create_neck,
    create_projection,
    freeze_backbone,
)
from protosphere.training import (
    SGD,
    AdamW,
    Objective,
    ParameterGroups,
    Schedule,
    TrainConfig,
    train,
)
from protosphere.training.step import EagerStep
from support.training import (
    RecordingLoader,
    linear_objective,
    memory_loader,
    small_loss,
    small_objective,
    small_split,
)


def _objective(backbone: str = "small") -> Objective:
    torch.manual_seed(0)
    body = create_backbone(backbone)
    dim = Encoder(body).out_dim
    projection = create_projection("linear", dim, out_dim=8)
    encoder = Encoder(body, create_neck("batchnorm", dim), projection)
    return Objective(encoder, CosineClassifier(8, 5), small_loss)


def _scales(groups: ParameterGroups, objective: Objective) -> dict[str, float]:
    return {name: group.lr_scale for group in groups.split(objective) for name in group.names}


def _without_decay(groups: ParameterGroups, objective: Objective) -> set[str]:
    return {
        name
        for group in groups.split(objective)
        for name in group.names
        if not group.has_weight_decay
    }


def test_the_default_is_one_group_of_all_parameters_in_their_order() -> None:
    objective = _objective()
    (group,) = ParameterGroups().split(objective)
    assert group.names == [name for name, _ in objective.named_parameters()]
    parameters = list(objective.parameters())
    assert all(a is b for a, b in zip(group.parameters, parameters, strict=True))
    assert group.lr_scale == 1.0
    assert group.has_weight_decay


def test_each_part_has_its_multiplier() -> None:
    scales = _scales(
        ParameterGroups(backbone_lr_scale=0.1, neck_lr_scale=2.0, head_lr_scale=3.0), _objective()
    )
    assert len(scales) == 9 + 2 + 2 + 1
    for name, scale in scales.items():
        part = name.split(".")[1] if name.startswith("encoder.") else "head"
        assert scale == {"backbone": 0.1, "neck": 2, "projection": 2, "head": 3}[part], name


def test_an_encoder_of_any_kind_is_a_backbone() -> None:
    scales = _scales(ParameterGroups(backbone_lr_scale=0.1), linear_objective(torch.ones(2, 2)))
    assert scales == {"encoder.weight": 0.1, "head.prototypes": 1.0}


@pytest.mark.parametrize(
    "name", ["test_resnet", "test_efficientnet", "test_vit", "test_convnext", "test_mambaout"]
)
def test_layers_decay_as_in_timm(name: str) -> None:
    """Equal to timm's own groups of the same model with a classifier."""
    model = timm.create_model(name, num_classes=5)
    names = {id(parameter): key for key, parameter in model.named_parameters()}
    expected = {
        names[id(parameter)]: group["lr_scale"]
        for group in param_groups_layer_decay(model, layer_decay=0.7)
        for parameter in group["params"]
    }
    objective = Objective(Encoder(create_backbone(name)), CosineClassifier(8, 5), small_loss)
    scales = _scales(ParameterGroups(layer_decay=0.7, backbone_lr_scale=0.5), objective)
    assert scales.pop("head.prototypes") == 1
    assert {key.removeprefix("encoder.backbone.") for key in scales} <= set(expected)
    assert len(set(scales.values())) > 3
    for key, scale in scales.items():
        assert scale == pytest.approx(0.5 * expected[key.removeprefix("encoder.backbone.")]), key


def test_norms_and_biases_without_weight_decay() -> None:
    objective = _objective("test_vit")
    assert isinstance(objective.encoder, Encoder)
    assert not _without_decay(ParameterGroups(), objective)
    excluded = _without_decay(ParameterGroups(exclude_from_decay="norms_and_biases"), objective)
    listed = {f"encoder.backbone.{key}" for key in objective.encoder.backbone.no_weight_decay()}  # type: ignore[operator]
    assert "encoder.backbone.pos_embed" in listed
    for name, parameter in objective.named_parameters():
        expected = parameter.ndim <= 1 or name.endswith(".bias") or name in listed
        assert (name in excluded) == expected, name


def test_frozen_parameters_are_in_no_group() -> None:
    objective = _objective()
    assert isinstance(objective.encoder, Encoder)
    freeze_backbone(objective.encoder, 1)
    names = set(_scales(ParameterGroups(layer_decay=0.5), objective))
    assert names == {name for name, p in objective.named_parameters() if p.requires_grad}
    assert "encoder.backbone.layers.0.weight" not in names


@pytest.mark.parametrize(("backbone_lr_scale", "head_lr_scale"), [(0.25, 1.0), (1.0, 3.0)])
def test_the_learning_rate_of_a_step_is_scaled(
    backbone_lr_scale: float, head_lr_scale: float
) -> None:
    """The gradient is 1/2 for each weight of the encoder; the schedule changes in each step."""
    weights = torch.tensor([[1.0, -2.0], [0.5, 3.0]])
    objective = linear_objective(weights)
    assert isinstance(objective.encoder, nn.Linear)
    schedule = Schedule(0.2, 3)
    config = TrainConfig(
        schedule,
        4,
        optimizer=SGD(momentum=0.0, weight_decay=0.0),
        parameter_groups=ParameterGroups(
            backbone_lr_scale=backbone_lr_scale, head_lr_scale=head_lr_scale
        ),
    )
    list(train(objective, RecordingLoader(num_samples=4), config))
    moved = sum(schedule.at_epoch(epoch) for epoch in range(3)) * backbone_lr_scale / 2
    torch.testing.assert_close(objective.encoder.weight.detach(), weights - moved)


def test_excluded_parameters_do_not_decay() -> None:
    """A loss of zero gradient: only weight decay moves the weights."""
    objective = small_objective()
    objective.loss = lambda features, head, labels: features.sum() * 0 + head.prototypes.sum() * 0
    before = {name: value.detach().clone() for name, value in objective.named_parameters()}
    config = TrainConfig(
        Schedule(0.1, 1, "constant"),
        70,
        optimizer=SGD(momentum=0.0, weight_decay=0.5),
        parameter_groups=ParameterGroups(exclude_from_decay="norms_and_biases", head_lr_scale=2.0),
    )
    list(train(objective, memory_loader(small_split()), config))
    for name, value in objective.named_parameters():
        lr = 0.2 if name.startswith("head.") else 0.1
        factor = 1.0 if value.ndim == 1 else 1 - lr * 0.5
        torch.testing.assert_close(value.detach(), factor * before[name], msg=name)


@pytest.mark.parametrize("optimizer", [SGD(), AdamW()], ids=str)
def test_a_step_for_a_graph_has_a_tensor_for_each_learning_rate(optimizer: SGD | AdamW) -> None:
    config = TrainConfig(
        Schedule(0.1, 3),
        16,
        optimizer=optimizer,
        parameter_groups=ParameterGroups(head_lr_scale=3.0),
    )
    step = EagerStep(small_objective(), memory_loader(small_split()), config, for_graph=True)
    tensors = [group["lr"] for group in step.optimizer.param_groups]
    assert [float(lr) for lr in tensors] == pytest.approx([0.1, 0.3])
    step.prepare(step=5, lr=0.01)
    assert [float(lr) for lr in tensors] == pytest.approx([0.01, 0.03])
    step.load_state_dict(step.state_dict())
    groups = step.optimizer.param_groups
    assert all(group["lr"] is lr for group, lr in zip(groups, tensors, strict=True))


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backbone_lr_scale": 0.0}, "backbone_lr_scale must be a positive number, got 0.0"),
        ({"head_lr_scale": float("inf")}, "head_lr_scale must be a positive number, got inf"),
        ({"neck_lr_scale": -1}, "neck_lr_scale must be a positive number, got -1"),
        ({"layer_decay": 0.0}, "layer_decay must be greater than 0 and at most 1, got 0.0"),
        ({"layer_decay": 1.1}, "layer_decay must be greater than 0 and at most 1, got 1.1"),
        ({"exclude_from_decay": "biases"}, "'none' or 'norms_and_biases', got 'biases'"),
    ],
)
def test_values_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ParameterGroups(**options)


def _frozen_objective() -> Objective:
    objective = small_objective()
    assert isinstance(objective.encoder, Encoder)
    freeze_backbone(objective.encoder, "backbone")
    return objective


def _fixed_objective() -> Objective:
    objective = _frozen_objective()
    objective.head = FixedFrameClassifier(64, 5)
    return objective


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("create", "options", "message"),
    [
        (
            small_objective,
            {"neck_lr_scale": 2.0},
            "neck_lr_scale must be 1 .* neck has nothing to train, got 2",
        ),
        (
            _frozen_objective,
            {"backbone_lr_scale": 0.1},
            "backbone_lr_scale must be 1 for a model whose backbone",
        ),
        (
            _frozen_objective,
            {"layer_decay": 0.7},
            "layer_decay must not be given for a backbone th",
        ),
        (_fixed_objective, {}, "there must be something to train, but every parameter is frozen"),
        (
            lambda: linear_objective(torch.ones(2, 2)),
            {"layer_decay": 0.7},
            "the backbone must have layers that timm can number, got Linear",
        ),
    ],
)
def test_settings_without_effect_are_refused(
    create: Callable[[], Objective], options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        ParameterGroups(**options).split(create())
