"""Every corruption against its definition, on real images."""

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_sample_image
from torch import Tensor

from protosphere.data import CORRUPTIONS, EXTRA_CORRUPTIONS, FrostTextures, corrupt
from protosphere.data.corruption_constants import constants
from protosphere.data.corruption_digital import pixelate
from protosphere.data.corruption_random import RandomNumbers
from support import corruption_oracles, spatter_oracle

ALL = CORRUPTIONS + EXTRA_CORRUPTIONS
DETERMINISTIC = {
    "defocus_blur",
    "zoom_blur",
    "brightness",
    "contrast",
    "pixelate",
    "jpeg_compression",
    "gaussian_blur",
    "saturate",
}
SEED = 7
FIRST = 11


@cache
def photograph(name: str) -> Tensor:
    return torch.from_numpy(load_sample_image(name).copy()).permute(2, 0, 1)


def crops(height: int, width: int, count: int = 2) -> Tensor:
    """Return crops of real photographs at half their size, the last one with black and white."""
    china, flower = photograph("china.jpg")[:, ::2, ::2], photograph("flower.jpg")[:, ::2, ::2]
    places = [(china, 60, 40), (flower, 90, 120), (china, 10, 150), (flower, 30, 200)]
    images = torch.stack([p[:, y : y + height, x : x + width] for p, y, x in places[:count]])
    images[-1, :, :3, :4], images[-1, :, 3:5, :4], images[-1, :, 5:6, :6] = 0, 255, 100
    return images


@cache
def textures() -> FrostTextures:
    return FrostTextures((photograph("flower.jpg"), photograph("china.jpg")[:, :400]), "test")


def numbers_per_image(name: str, c: Any, height: int, width: int) -> int:
    """How many random numbers a corruption takes."""
    pixels = height * width
    return {
        "glass_blur": 2 * pixels * (c[2] if name == "glass_blur" else 0),
        "motion_blur": 1,
        "snow": pixels + 1,
        "frost": 3,
        "fog": (1 << (max(height, width) - 1).bit_length()) ** 2 - 1,
        "elastic_transform": 6 + 2 * pixels,
        "spatter": pixels,
    }.get(name, 3 * pixels)


def expected(images: Tensor, name: str, severity: int) -> Tensor:
    height, width = images.shape[2:]
    c = constants(name, severity=severity, height=height, width=width)
    if name == "elastic_transform":
        c = tuple(min(height, width) * fraction for fraction in c)
    if name == "frost":
        step = slice(2, None, 5) if min(height, width) < 64 else slice(None)
        pictures = [t[:, step, step].permute(1, 2, 0).numpy() for t in textures().textures]
        c = (*c, pictures)
    numbers = RandomNumbers(
        seed=SEED,
        name=name,
        severity=severity,
        first_index=FIRST,
        num_images=len(images),
        device=torch.device("cpu"),
    ).uniform(numbers_per_image(name, c, height, width))
    oracle = getattr(spatter_oracle if name == "spatter" else corruption_oracles, name)
    results = [
        oracle(image.permute(1, 2, 0).contiguous().numpy(), u.numpy(), c[0] if len(c) == 1 else c)
        for image, u in zip(images, numbers, strict=True)
    ]
    return torch.from_numpy(np.stack(results)).permute(0, 3, 1, 2)


def check(images: Tensor, name: str, severity: int) -> None:
    found = corrupt(images, name, severity=severity, seed=SEED, first_index=FIRST, frost=textures())
    differences = (found.int() - expected(images, name, severity).int()).abs()
    assert differences.max() <= 1
    assert (differences > 0).double().mean() <= 1e-3


@pytest.mark.parametrize("severity", range(1, 6))
@pytest.mark.parametrize("name", ALL)
def test_corruptions_of_32_px_are_as_defined(name: str, severity: int) -> None:
    check(crops(32, 32), name, severity)


@pytest.mark.parametrize("name", ALL)
def test_corruptions_of_other_sizes_are_as_defined(name: str) -> None:
    check(crops(13, 18), name, 3)


@pytest.mark.parametrize("name", ALL)
def test_corruptions_of_large_images_are_as_defined(name: str) -> None:
    check(crops(64, 64, 1), name, 2)
    check(crops(64, 64, 1), name, 5)


@pytest.mark.parametrize(
    "name", ["defocus_blur", "frost", "fog", "elastic_transform", "pixelate", "jpeg_compression"]
)
def test_corruptions_of_224_px_are_as_defined(name: str) -> None:
    photo = photograph("china.jpg")[None, :, 150:374, 200:424]
    check(photo, name, 4)


@pytest.mark.parametrize("name", ALL)
def test_results_depend_on_the_image_and_its_index_only(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = crops(16, 16, 4)
    whole = corrupt(images, name, severity=4, first_index=5, frost=textures())
    parts = [
        corrupt(images[a:b], name, severity=4, first_index=5 + a, frost=textures())
        for a, b in ((3, 4), (0, 1), (1, 3))
    ]
    assert torch.equal(whole, torch.cat([parts[1], parts[2], parts[0]]))
    monkeypatch.setattr("protosphere.data.corruptions._CHUNK", {"cpu": 2 * 3 * 16 * 16})
    assert torch.equal(whole, corrupt(images, name, severity=4, first_index=5, frost=textures()))
    assert whole.shape == images.shape
    assert whole.dtype == torch.uint8
    assert corrupt(images[:0], name, severity=4, frost=textures()).shape == (0, 3, 16, 16)


@pytest.mark.parametrize("name", ALL)
def test_random_corruptions_change_with_seed_and_index(name: str) -> None:
    image = crops(32, 32, 1)
    images = image.expand(3, -1, -1, -1)
    first, again = (corrupt(images, name, severity=5, seed=1, frost=textures()) for _ in range(2))
    other = corrupt(images, name, severity=5, seed=2, frost=textures())
    assert torch.equal(first, again)
    assert torch.equal(first, other) == (name in DETERMINISTIC)
    assert torch.equal(first[0], first[1]) == (name in DETERMINISTIC)


@pytest.mark.parametrize("size", [32, 64])
@pytest.mark.parametrize(
    "name",
    [
        "gaussian_noise",
        "shot_noise",
        "impulse_noise",
        "speckle_noise",
        "defocus_blur",
        "gaussian_blur",
        "zoom_blur",
        "brightness",
        "contrast",
        "pixelate",
        "jpeg_compression",
    ],
)
def test_severe_corruptions_change_more(name: str, size: int) -> None:
    images = crops(size, size, 3)
    changes = [
        (corrupt(images, name, severity=severity).double() - images).square().mean().item()
        for severity in range(1, 6)
    ]
    assert changes == sorted(changes)
    assert 0 < changes[0] < changes[-1]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("size", [32, 64])
@pytest.mark.parametrize("name", ALL)
def test_gpu_and_cpu_agree(name: str, size: int) -> None:
    images = crops(size, size, 4)
    for severity in (1, 3, 5):
        on_cpu = corrupt(images, name, severity=severity, frost=textures())
        on_gpu = corrupt(images.cuda(), name, severity=severity, frost=textures())
        assert on_gpu.is_cuda
        differences = (on_cpu.int() - on_gpu.cpu().int()).abs()
        assert differences.max() <= 1
        assert (differences > 0).double().mean() <= 1e-3


def test_pixelate_is_pillows_at_every_size_and_factor() -> None:
    for size in range(8, 33):
        image = crops(size, size, 1)
        for factor in (0.25, 0.5, 0.6, 2 / 3, 0.75, 0.8, 0.95):
            pixels = image[0].permute(1, 2, 0).contiguous().numpy()
            expected = corruption_oracles.pixelate(pixels, np.empty(0), factor)
            found = pixelate(image, factor)[0].permute(1, 2, 0).numpy()
            np.testing.assert_array_equal(found, expected)


def test_glass_blur_copies_as_the_published_exchange_of_views_does() -> None:
    pixels = np.arange(12).reshape(2, 2, 3)
    pixels[0, 0], pixels[1, 1] = pixels[1, 1], pixels[0, 0]
    assert (pixels[0, 0] == pixels[1, 1]).all()


def test_constant_images_stay_constant_under_blurs() -> None:
    white = torch.full((1, 3, 32, 32), 255, dtype=torch.uint8)
    for name in ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur", "gaussian_blur"):
        for severity in range(1, 6):
            assert torch.equal(corrupt(white, name, severity=severity), white), name


def test_black_images_stay_black_in_fog_and_turn_gray_in_light() -> None:
    black = torch.zeros(1, 3, 32, 32, dtype=torch.uint8)
    assert torch.equal(corrupt(black, "fog", severity=3), black)
    assert corrupt(black, "brightness", severity=2).unique().tolist() == [25]


def test_spatter_leaves_an_image_without_drops_as_it_is() -> None:
    from protosphere.data.corruption_spatter import spatter

    images = crops(16, 16)
    random = RandomNumbers(
        seed=0, name="x", severity=1, first_index=0, num_images=2, device=torch.device("cpu")
    )
    assert torch.equal(spatter(images, random, 0.1, 0.01, 1.0, 0.7, 0.5, 0), images)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("images", "name", "options", "message"),
    [
        (torch.zeros(1, 3, 32, 32), "fog", {}, "images must be uint8"),
        (torch.zeros(1, 1, 32, 32).byte(), "fog", {}, "three channels.*repeat the channel of gray"),
        (torch.zeros(3, 32, 32).byte(), "fog", {}, "three channels"),
        (torch.zeros(1, 3, 7, 32).byte(), "fog", {}, "at least 8 × 8 pixels, got 7 × 32"),
        (torch.zeros(1, 3, 32, 32).byte(), "rain", {}, "name must be one of gaussian_noise, "),
        (torch.zeros(1, 3, 32, 32).byte(), "fog", {"severity": 0}, "severity must be at least 1"),
        (torch.zeros(1, 3, 32, 32).byte(), "fog", {"severity": 6}, "severity must be at most 5"),
        (torch.zeros(1, 3, 32, 32).byte(), "fog", {"seed": -1}, "seed must be at least 0"),
        (torch.zeros(1, 3, 32, 32).byte(), "fog", {"first_index": -1}, "first_index must be"),
    ],
)
def test_wrong_input_is_refused(images: Tensor, name: str, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        corrupt(images, name, **{"severity": 1, **options})
