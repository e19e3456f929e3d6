"""Pretrained weights: from timm, from files of several kinds, and files that do not fit."""

import os
import pickle
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import timm
import torch
from safetensors.torch import save_file
from timm.models import adapt_input_conv
from torch import Tensor, nn

from protosphere.encoders import Encoder, create_backbone, create_neck, input_config, pretrained
from protosphere.encoders.pretrained import load_backbone_weights

NAME = "test_resnet"
Weights = dict[str, Tensor]


@pytest.fixture(scope="module")
def weights() -> Weights:
    """The state dict of a small timm model with its classifier, randomly initialized."""
    torch.manual_seed(1)
    model = timm.create_model(NAME, num_classes=10)
    for buffer in model.buffers():
        if buffer.is_floating_point():
            buffer.uniform_(0.5, 1.5)
    return model.state_dict()


def _save(weights: Any, path: Path) -> Path:
    if path.suffix == ".safetensors":
        save_file({key: value.contiguous() for key, value in weights.items()}, path)
    else:
        torch.save(weights, path)
    return path


def _assert_loaded(backbone: nn.Module, weights: Weights) -> None:
    state = backbone.state_dict()
    assert set(weights) - set(state) == {"fc.weight", "fc.bias"}
    for key, value in state.items():
        assert torch.equal(value, weights[key]), key


@pytest.mark.parametrize("suffix", [".safetensors", ".pth", ".bin"])
def test_weights_of_a_file(suffix: str, weights: Weights, tmp_path: Path) -> None:
    path = _save(weights, tmp_path / f"weights{suffix}")
    _assert_loaded(create_backbone(NAME, pretrained=path), weights)
    _assert_loaded(create_backbone(NAME, pretrained=str(path)), weights)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda weights: {"state_dict": weights, "epoch": 3},
        lambda weights: {"model": weights, "optimizer": {"state": {}}},
        lambda weights: {f"module.{key}": value for key, value in weights.items()},
        lambda weights: {"state_dict": {f"module.{key}": v for key, v in weights.items()}},
        lambda weights: {f"_orig_mod.{key}": value for key, value in weights.items()},
    ],
)
def test_weights_as_training_programs_save_them(
    wrap: Callable[[Weights], Any], weights: Weights, tmp_path: Path
) -> None:
    path = _save(wrap(weights), tmp_path / "checkpoint.pt")
    _assert_loaded(create_backbone(NAME, pretrained=path), weights)


def test_the_weights_of_our_own_runs(tmp_path: Path) -> None:
    torch.manual_seed(0)
    encoder = Encoder(create_backbone("small"), create_neck("linear", 64))
    for prefix in ("encoder.", ""):
        state = {f"{prefix}{key}": value for key, value in encoder.state_dict().items()}
        path = _save(state | {"head.prototypes": torch.ones(3, 64)}, tmp_path / "w.safetensors")
        backbone = create_backbone("small")
        left_out = load_backbone_weights(backbone, path, name="small")
        assert sorted(left_out) == sorted([f"{prefix}neck.weight", "head.prototypes"])
        for key, value in backbone.state_dict().items():
            assert torch.equal(value, encoder.backbone.state_dict()[key])


def test_only_the_classifier_is_left_out(weights: Weights, tmp_path: Path) -> None:
    path = _save(weights, tmp_path / "weights.safetensors")
    assert sorted(load_backbone_weights(create_backbone(NAME), path, name=NAME)) == [
        "fc.bias",
        "fc.weight",
    ]


def test_files_without_counters_of_batches(weights: Weights, tmp_path: Path) -> None:
    old = {key: value for key, value in weights.items() if "num_batches" not in key}
    path = _save(old, tmp_path / "weights.pt")
    backbone = create_backbone(NAME, pretrained=path)
    assert torch.equal(backbone.state_dict()["bn1.running_mean"], weights["bn1.running_mean"])


@pytest.mark.parametrize("in_channels", [1, 4])
def test_the_first_convolution_is_adapted_as_timm_does(
    in_channels: int, weights: Weights, tmp_path: Path
) -> None:
    path = _save(weights, tmp_path / "weights.safetensors")
    backbone = create_backbone(NAME, in_channels=in_channels, pretrained=path)
    expected = adapt_input_conv(in_channels, weights["conv1.0.weight"])
    assert expected.shape[1] == in_channels
    assert torch.equal(backbone.state_dict()["conv1.0.weight"], expected)
    # Weights that are of this number of channels already are taken as they are.
    again = _save(backbone.state_dict(), tmp_path / "again.safetensors")
    loaded = create_backbone(NAME, in_channels=in_channels, pretrained=again)
    assert torch.equal(loaded.state_dict()["conv1.0.weight"], expected)


def test_timms_own_weights(weights: Weights, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replaced download: timm reads the weights from a dictionary instead of the network."""
    calls = []
    create_model = timm.create_model

    def create(name: str, *, pretrained: bool, **options: Any) -> nn.Module:
        calls.append(pretrained)
        overlay = {"state_dict": dict(weights), "num_classes": 10}
        return create_model(name, pretrained=pretrained, pretrained_cfg_overlay=overlay, **options)

    monkeypatch.setattr(timm, "create_model", create)
    monkeypatch.setattr(pretrained, "_can_be_fetched", lambda repository: True)
    _assert_loaded(create_backbone(NAME, pretrained=True), weights)
    gray = create_backbone(NAME, in_channels=1, pretrained=True)
    expected = adapt_input_conv(1, weights["conv1.0.weight"])
    assert torch.equal(gray.state_dict()["conv1.0.weight"], expected)
    assert calls == [True, True]


@pytest.mark.bad_input
def test_weights_that_cannot_be_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the network timm would repeat its attempts for a minute, so it is not asked."""
    calls = []

    def offline(*args: Any, **options: Any) -> nn.Module:
        calls.append(args)
        raise ConnectionError("many\nlines")

    monkeypatch.setattr(timm, "create_model", offline)
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", offline)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    message = (
        "^the pretrained weights of resnet18 cannot be fetched; give the path of a .safetensors or "
        "state dict file as pretrained instead$"
    )
    with pytest.raises(ValueError, match=message):
        create_backbone("resnet18", pretrained=True)
    assert len(calls) == 1
    (tmp_path / "models--timm--resnet18.a1_in1k/snapshots/0").mkdir(parents=True)
    (tmp_path / "models--timm--resnet18.a1_in1k/snapshots/0/model.safetensors").touch()
    with pytest.raises(ValueError, match=message):
        create_backbone("resnet18", pretrained=True)
    assert calls[1] == ("resnet18",), "what is cached needs no network"


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("small", {}, "path of a file for the backbone 'small', .* got true"),
        ("resnet18", {"stem": "cifar"}, "needs the stem 'imagenet'; the stem 'cifar' has no"),
        ("resnet18", {"zero_init_residual": True}, "zero_init_residual must not be given together"),
        ("resnet18x", {}, "backbone must be 'small' or a timm model, got 'resnet18x'"),
        ("vit_base_patch16_18x2_224", {}, "timm has no pretrained weights of vit_base_patch16_18"),
    ],
)
def test_options_without_pretrained_weights_are_refused(
    name: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        create_backbone(name, pretrained=True, **options)


class _Code:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("executed",)


def _write_pickle(path: Path, content: Any) -> None:
    with path.open("wb") as file:
        pickle.dump(content, file)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("name", "write", "message"),
    [
        ("missing.pt", lambda path: None, "true or a file of weights, but .*missing.pt is not a"),
        ("folder", Path.mkdir, "true or a file of weights, but .*folder is not a file"),
        ("text.pt", lambda path: path.write_text("hello world"), "but it is neither$"),
        ("recipe.yaml", lambda path: path.write_text("# A recipe\n"), "but it is neither$"),
        ("image.jpg", lambda path: path.write_bytes(b"\xff\xd8\xff\xe0"), "but it is neither$"),
        ("text.safetensors", lambda path: path.write_text("hello world"), "but it is neither$"),
        ("empty.pt", Path.touch, "but it is neither$"),
        ("empty.safetensors", Path.touch, "but it is neither$"),
        ("list.pt", lambda path: torch.save([torch.ones(2)], path), "but it is neither$"),
        ("numbers.pt", lambda path: torch.save({"a": 3}, path), "but it is neither$"),
        ("nothing.pt", lambda path: torch.save({}, path), "but it is neither$"),
        ("pickle.pt", lambda path: _write_pickle(path, _Code()), "pickle of other Python objects"),
        ("torch.pt", lambda path: torch.save(_Code(), path), "pickle of other Python objects"),
        ("args.pt", lambda path: torch.save({"a": Namespace()}, path), "pickle of other Python"),
        ("model.pt", lambda path: torch.save(nn.Linear(1, 1), path), "pickle of other Python"),
    ],
)
def test_files_without_weights_are_refused(
    name: str,
    write: Callable[[Path], Any],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / name)
    with pytest.raises(ValueError, match=message) as raised:
        create_backbone("small", pretrained=tmp_path / name)
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "executed").exists()


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop("bn1.weight"), r"another model: bn1\.weight is missing$"),
        (lambda w: w.update(extra=torch.ones(1)), r"another model: extra is unexpected$"),
        (
            lambda w: w.update({"conv1.0.weight": torch.ones(5, 3, 3, 3)}),
            r"conv1\.0\.weight has shape \(5, 3, 3, 3\) instead of \(\d+, 3, 3, 3\)$",
        ),
        (
            lambda w: (w.pop("bn1.weight"), w.pop("bn1.bias"), w.update(extra=torch.ones(1))),
            r"bn1\.weight is missing \(and 2 more do not fit\)$",
        ),
    ],
)
def test_weights_of_another_model_are_refused(
    change: Callable[[Weights], Any], message: str, weights: Weights, tmp_path: Path
) -> None:
    changed = dict(weights)
    change(changed)
    path = _save(changed, tmp_path / "weights.safetensors")
    with pytest.raises(ValueError, match=f"must hold the weights of {NAME}, .*{message}"):
        create_backbone(NAME, pretrained=path)


def test_the_input_is_that_of_timms_configuration() -> None:
    config = input_config("tf_efficientnet_lite0")
    assert config == ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5), 224)
    resnet = input_config("resnet18.a1_in1k")
    assert resnet is not None
    assert resnet.mean == (0.485, 0.456, 0.406)
    gray = input_config("resnet18", in_channels=1)
    assert gray is not None
    assert gray.mean == pytest.approx(((0.485 + 0.456 + 0.406) / 3,))
    assert gray.std == pytest.approx(((0.229 + 0.224 + 0.225) / 3,))
    assert input_config("small") is None


@pytest.mark.bad_input
def test_the_input_of_an_unknown_model_is_refused() -> None:
    with pytest.raises(ValueError, match="got 'resnet18x'; did you mean 'resnet18"):
        input_config("resnet18x")
