"""The encoder: names in its state dict, widths, and the projection taken off."""

import pytest
import torch
from torch import nn

from protosphere.encoders import Encoder, create_backbone, create_neck, create_projection

IMAGES = torch.randn(4, 1, 8, 8)


def small_encoder() -> Encoder:
    return Encoder(
        create_backbone("small", in_channels=1),
        create_neck("batchnorm", 64),
        create_projection("mlp", 64, hidden_dim=32, out_dim=16),
    )


def test_parts_have_names_in_the_state_dict() -> None:
    encoder = small_encoder()
    assert [name for name, _ in encoder.named_children()] == ["backbone", "neck", "projection"]
    keys = encoder.state_dict().keys()
    assert {"backbone.layers.0.weight", "neck.weight", "projection.0.weight"} <= keys
    resnet = Encoder(create_backbone("resnet18", stem="cifar"))
    assert "backbone.conv1.weight" in resnet.state_dict()
    assert [name for name, _ in resnet.named_children()] == ["backbone"]
    assert resnet.neck is None
    assert resnet.projection is None


def test_parts_are_applied_in_order() -> None:
    encoder = small_encoder().eval()
    assert encoder.neck is not None
    assert encoder.projection is not None
    with torch.no_grad():
        encoder.neck.bias.add_(1.0)  # type: ignore[operator]
    features = encoder.neck(encoder.backbone(IMAGES))
    assert torch.equal(encoder.forward_features(IMAGES), features)
    assert torch.equal(encoder(IMAGES), encoder.projection(features))
    backbone = Encoder(encoder.backbone).eval()
    assert torch.equal(backbone(IMAGES), encoder.backbone(IMAGES))
    assert torch.equal(backbone.forward_features(IMAGES), encoder.backbone(IMAGES))


def test_widths_are_those_of_the_outputs() -> None:
    encoder = small_encoder()
    assert (encoder.feature_dim, encoder.out_dim) == (64, 16)
    assert encoder.forward_features(IMAGES).shape == (4, 64)
    assert encoder(IMAGES).shape == (4, 16)
    backbone = Encoder(create_backbone("small", in_channels=1))
    assert (backbone.feature_dim, backbone.out_dim) == (64, 64)
    narrow = Encoder(create_backbone("small", in_channels=1), nn.Linear(64, 5), nn.Linear(5, 3))
    assert (narrow.feature_dim, narrow.out_dim) == (5, 3)
    assert narrow.without_projection().feature_dim == 5


def test_the_width_of_timm_models_with_a_layer_after_the_last_stage() -> None:
    backbone = create_backbone("mobilenetv3_small_050")
    encoder = Encoder(backbone).eval()
    assert encoder(torch.zeros(1, 3, 32, 32)).shape[1] == encoder.out_dim
    assert encoder.out_dim != backbone.num_features


def test_without_projection_shares_backbone_and_neck() -> None:
    encoder = small_encoder().eval()
    features = encoder.without_projection()
    assert features.backbone is encoder.backbone
    assert features.neck is encoder.neck
    assert features.projection is None
    assert features.out_dim == features.feature_dim == 64
    assert not features.training
    assert torch.equal(features(IMAGES), encoder.forward_features(IMAGES))
    assert features.without_projection() is features
    assert encoder.train().without_projection().training
    assert not set(features.state_dict()) - set(encoder.state_dict())


def test_construction_changes_neither_modes_nor_statistics_nor_random_numbers() -> None:
    parts = nn.Sequential(nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Dropout(0.5))
    parts[1].eval()
    before = {key: value.clone() for key, value in parts.state_dict().items()}
    backbone = create_backbone("small", in_channels=1)
    state = torch.get_rng_state()
    encoder = Encoder(backbone, projection=parts)
    assert torch.equal(torch.get_rng_state(), state)
    assert encoder.out_dim == 8
    assert [part.training for part in parts] == [True, False, True]
    assert all(torch.equal(value, before[key]) for key, value in parts.state_dict().items())


@pytest.mark.bad_input
def test_the_width_of_other_backbones_must_be_given() -> None:
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(64, 7))
    message = "feature_dim must be given for a backbone without num_features, got Sequential"
    with pytest.raises(ValueError, match=message):
        Encoder(backbone)
    assert Encoder(backbone, feature_dim=7).out_dim == 7
