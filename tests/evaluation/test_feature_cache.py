"""Cached features: computed once, and again when weights, images or their transform change."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from protosphere.data.datasets import ImageSet, load_synthetic
from protosphere.data.evaluation_transform import EvaluationTransform
from protosphere.evaluation.feature_cache import (
    FeatureCache,
    digest_encoder,
    encode_images,
    feature_key,
)
from protosphere.storage import StorageError
from support.training import small_objective

TRANSFORM = EvaluationTransform(8, (0.5,) * 3, (0.25,) * 3)


class Computation:
    """Features that count how often they were computed."""

    def __init__(self, features: Tensor) -> None:
        self.features = features
        self.calls = 0

    def __call__(self) -> Tensor:
        self.calls += 1
        return self.features


def test_features_are_computed_once(tmp_path: Path) -> None:
    compute = Computation(torch.randn(5, 3))
    cache = FeatureCache(tmp_path / "features")
    first, second = (cache.get("key", compute, num_samples=5) for _ in range(2))
    assert compute.calls == 1
    assert torch.equal(first, second)
    assert [path.name for path in (tmp_path / "features").iterdir()] == ["key.safetensors"]


def test_without_a_folder_nothing_is_kept(tmp_path: Path) -> None:
    compute = Computation(torch.randn(5, 3))
    for _ in range(2):
        FeatureCache(None).get("key", compute, num_samples=5)
    assert compute.calls == 2


def test_features_can_be_computed_again(tmp_path: Path) -> None:
    old, new = Computation(torch.zeros(5, 3)), Computation(torch.ones(5, 3))
    FeatureCache(tmp_path).get("key", old, num_samples=5)
    FeatureCache(tmp_path, recompute=True).get("key", new, num_samples=5)
    assert torch.equal(FeatureCache(tmp_path).get("key", old, num_samples=5), torch.ones(5, 3))
    assert (old.calls, new.calls) == (1, 1)


@pytest.mark.parametrize("damage", ["cut", "other number of samples"])
def test_a_damaged_file_is_replaced_with_a_warning(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    compute, cache = Computation(torch.randn(5, 3)), FeatureCache(tmp_path)
    path = tmp_path / "key.safetensors"
    if damage == "cut":
        cache.get("key", compute, num_samples=5)
        path.write_bytes(path.read_bytes()[:-4])
    else:
        cache.get("key", Computation(torch.randn(4, 3)), num_samples=4)
    read = cache.get("key", compute, num_samples=5)
    assert torch.equal(read, compute.features)
    assert "key.safetensors is damaged" in caplog.text
    assert torch.equal(cache.get("key", Computation(torch.zeros(5, 3)), num_samples=5), read)


def test_the_key_changes_with_everything_that_changes_features() -> None:
    encoder = small_objective().encoder
    digest = digest_encoder(encoder)
    keys = {
        feature_key(digest, TRANSFORM, "images", split="train"),
        feature_key(digest, TRANSFORM, "images", split="test"),
        feature_key(digest, TRANSFORM, "other images", split="train"),
        feature_key(digest, replace(TRANSFORM, size=9), "images", split="train"),
        feature_key(digest, replace(TRANSFORM, crop="center"), "images", split="train"),
        feature_key(digest, replace(TRANSFORM, mean=(0.4,) * 3), "images", split="train"),
        feature_key(digest_encoder(small_objective(1).encoder), TRANSFORM, "images", split="train"),
    }
    assert len(keys) == 7


def test_the_digest_of_an_encoder_is_that_of_its_weights_and_layers() -> None:
    encoder = small_objective().encoder
    digest = digest_encoder(encoder)
    assert digest_encoder(small_objective().encoder) == digest
    buffer = next(buffer for name, buffer in encoder.named_buffers() if "running_mean" in name)
    buffer[0] += 1e-6
    assert digest_encoder(encoder) != digest
    tanh, relu = (
        torch.nn.Sequential(torch.nn.Flatten(), layer()) for layer in (torch.nn.Tanh, torch.nn.ReLU)
    )
    assert digest_encoder(tanh) != digest_encoder(relu)


def test_images_are_encoded_in_evaluation_mode_whatever_the_batch_size() -> None:
    split = load_synthetic(num_classes=3, num_samples=10, image_size=6).train
    assert isinstance(split, ImageSet)
    encoder = small_objective().encoder.train()
    fractions: list[float] = []
    features = encode_images(
        encoder, split, TRANSFORM, device="cpu", batch_size=4, progress=fractions.append
    )
    assert encoder.training
    assert fractions == [0.4, 0.8, 1.0]
    with torch.no_grad():
        expected = encoder.eval()(TRANSFORM(split.images))
    torch.testing.assert_close(features, expected)


@pytest.mark.bad_input
def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "features").write_text("a file")
    cache = FeatureCache(tmp_path / "features" / "x")
    with pytest.raises(StorageError, match=r"cannot create .*features"):
        cache.get("key", Computation(torch.randn(2, 2)), num_samples=2)
