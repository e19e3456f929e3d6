"""The augmentation policy: its checks, its probabilities, its random draws and its settings."""

import dataclasses
import math
from typing import Any

import pydantic
import pytest
import torch
import torchvision.transforms.v2.functional as tv

from protosphere.data import transforms
from protosphere.data.augmentation import (
    Augmentation,
    AugmentationPolicy,
    ColorJitter,
    EvaluationTransform,
    PaddedCrop,
    RandomResizedCrop,
)

IMAGES = torch.randint(0, 256, (30, 3, 16, 16), dtype=torch.uint8)
JITTER = ColorJitter(0.4, 0.4, 0.4, 0.1)
STRONG = Augmentation(
    AugmentationPolicy(16, color_jitter=JITTER, grayscale=0.2, gaussian_blur=0.5),
    mean=(0.5, 0.4, 0.3),
    std=(0.2, 0.3, 0.4),
)


def augment(images: torch.Tensor, **settings: Any) -> torch.Tensor:
    """Augment without crop, flip and normalization unless the settings say otherwise."""
    policy = AugmentationPolicy(**({"size": 16, "crop": None, "hflip": 0.0} | settings))
    return Augmentation(policy, mean=(0.0,), std=(1.0,))(images)


def test_evaluation_only_normalizes_images_of_the_right_size() -> None:
    expected = tv.normalize(IMAGES.float() / 255, list(STRONG.mean), list(STRONG.std))
    torch.testing.assert_close(STRONG.evaluation_transform()(IMAGES), expected, rtol=0, atol=1e-5)


def test_evaluation_resizes_other_images() -> None:
    resized = EvaluationTransform(8, (0.0,), (1.0,))(IMAGES)
    expected = tv.resize(IMAGES.float() / 255, [8, 8], antialias=True)
    torch.testing.assert_close(resized, expected, rtol=0, atol=1e-5)


def test_a_policy_without_crop_resizes_the_whole_image() -> None:
    expected = tv.resize(IMAGES.float() / 255, [8, 8], antialias=True)
    torch.testing.assert_close(augment(IMAGES, size=8), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "augmentation",
    [STRONG, dataclasses.replace(STRONG, policy=AugmentationPolicy(16, PaddedCrop()))],
    ids=["random_resized", "padded"],
)
def test_the_seed_determines_the_images(augmentation: Augmentation) -> None:
    first, again, other = (
        augmentation(IMAGES, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.isfinite(first).all()


def test_random_draws_come_in_the_documented_order() -> None:
    """Seeds give the same images in every version: boxes, flips, jitter, grayscale, blur."""
    generator = torch.Generator().manual_seed(5)
    boxes = transforms.random_resized_boxes(30, 16, 16, scale=(0.2, 1.0), generator=generator)

    def uniform(*shape: int) -> torch.Tensor:
        return torch.rand(shape, generator=generator)

    def where(mask: torch.Tensor, changed: torch.Tensor, unchanged: torch.Tensor) -> torch.Tensor:
        return torch.where(mask[:, None, None, None], changed, unchanged)

    expected = transforms.resized_crop(IMAGES, boxes, 16, hflip=uniform(30) < 0.5)
    factors = (2 * uniform(30, 4) - 1) * torch.tensor([0.4, 0.4, 0.4, 0.1])
    brightness, contrast, saturation, hue = factors.unbind(1)
    jittered = transforms.color_jitter(
        expected, 1 + brightness, 1 + contrast, 1 + saturation, hue, uniform(30, 4).argsort(1)
    )
    expected = where(uniform(30) < 0.8, jittered, expected)
    expected = where(uniform(30) < 0.2, transforms.grayscale(expected), expected)
    blurred = transforms.gaussian_blur(expected, 0.1 + 1.9 * uniform(30), kernel_size=3)
    expected = where(uniform(30) < 0.5, blurred, expected)
    expected = transforms.normalize(expected, STRONG.mean, STRONG.std)
    found = STRONG(IMAGES, torch.Generator().manual_seed(5))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_probability_one_changes_all_images() -> None:
    flipped = augment(IMAGES, hflip=1.0)
    torch.testing.assert_close(flipped, IMAGES.flip(3).float() / 255, rtol=0, atol=1e-6)
    gray = augment(IMAGES, grayscale=1.0)
    assert torch.equal(gray[:, 0], gray[:, 2])
    jittered = augment(IMAGES, color_jitter=dataclasses.replace(JITTER, p=1.0))
    assert jittered.min() >= 0
    assert jittered.max() <= 1


@pytest.mark.parametrize(
    ("settings", "probability"),
    [
        ({"hflip": 0.3}, 0.3),
        ({"grayscale": 0.3}, 0.3),
        ({"gaussian_blur": 0.3}, 0.3),
        ({"color_jitter": JITTER}, 0.8),
        ({"color_jitter": dataclasses.replace(JITTER, p=0.3)}, 0.3),
    ],
    ids=str,
)
def test_probabilities_are_the_frequencies(settings: dict[str, Any], probability: float) -> None:
    many = IMAGES[:1].expand(4000, -1, -1, -1)
    difference = (augment(many, **settings) - IMAGES[:1].float() / 255).abs().flatten(1).amax(1)
    # Blurs with a standard deviation near 0.1 change no pixel.
    tolerance = 0.06 if "gaussian_blur" in settings else 0.03
    frequency = float((difference > 1e-3).float().mean())
    assert frequency == pytest.approx(probability, abs=tolerance)


def test_the_blur_has_a_standard_deviation_of_up_to_two_pixels() -> None:
    # The height of a blurred point is 1 / (2πσ²) for large σ, so the lowest shows the largest σ.
    point = torch.zeros(300, 1, 225, 225, dtype=torch.uint8)
    point[:, :, 112, 112] = 255
    heights = augment(point, size=225, gaussian_blur=1.0)[:, 0, 112, 112]
    assert float((2 * torch.pi * heights.min()).rsqrt()) == pytest.approx(2.0, rel=0.02)
    assert float(heights.max()) == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize(("size", "kernel_size"), [(4, 3), (32, 3), (96, 9), (224, 23), (230, 23)])
def test_the_blur_kernel_is_a_tenth_of_the_image(size: int, kernel_size: int) -> None:
    assert AugmentationPolicy(size).blur_kernel_size == kernel_size


def test_jitter_uses_every_order_and_the_whole_range_of_strengths(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[torch.Tensor] = []

    def spy(images: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        seen.extend(parameters)
        return images

    monkeypatch.setattr(transforms, "color_jitter", spy)
    augment(
        torch.zeros(2400, 3, 16, 16, dtype=torch.uint8),
        color_jitter=ColorJitter(0.1, 0.2, 0.3, 0.4),
    )
    *factors, order = seen
    counts = torch.unique(order, dim=0, return_counts=True)[1]
    assert len(counts) == math.factorial(4)
    assert counts.min() > 60  # 100 are expected of each
    for values, center, strength in zip(
        factors, (1.0, 1.0, 1.0, 0.0), (0.1, 0.2, 0.3, 0.4), strict=True
    ):
        assert float(values.min()) == pytest.approx(center - strength, abs=0.01)
        assert float(values.max()) == pytest.approx(center + strength, abs=0.01)


def test_crop_settings_reach_the_boxes() -> None:
    half = AugmentationPolicy(
        16, RandomResizedCrop(scale=(0.25, 0.25), ratio=(1.0, 1.0)), hflip=0.0
    )
    corner = torch.zeros(500, 3, 16, 16, dtype=torch.uint8)
    corner[:, :, 8:, 8:] = 255
    crops = Augmentation(half, (0.0,), (1.0,))(corner)
    # A box of 8 × 8 pixels is all white at one of its 9 × 9 positions, the last row and column.
    white = (crops.flatten(1).min(1).values > 0.99).float().mean()
    assert float(white) == pytest.approx(1 / 81, abs=0.012)
    assert white > 0


@pytest.mark.compiled
def test_it_compiles_without_graph_breaks() -> None:
    """Traced as for the GPU, but not translated to machine code: that takes a quarter minute."""
    compiled = torch.compile(STRONG.__call__, fullgraph=True, backend="eager")
    torch.manual_seed(3)
    found = compiled(IMAGES)
    torch.manual_seed(3)
    torch.testing.assert_close(found, STRONG(IMAGES))


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"size": 0}, "size must be at least 1, got 0"),
        ({"size": 8.5}, "size must be an integer, got 8.5"),
        ({"size": True}, "size must be an integer, got True"),
        ({"num_views": 0}, "num_views must be at least 1, got 0"),
        ({"num_views": True}, "num_views must be an integer, got True"),
        ({"hflip": 2}, "hflip must be between 0 and 1, got 2"),
        ({"hflip": True}, "hflip must be a number, got True"),
        ({"hflip": "0.5"}, "hflip must be a number, got '0.5'"),
        ({"grayscale": -0.1}, "grayscale must be between 0 and 1, got -0.1"),
        ({"gaussian_blur": math.nan}, "gaussian_blur must be finite, got nan"),
        ({"size": 3, "gaussian_blur": 0.5}, "gaussian_blur needs images of at least 4 pixels"),
        ({"random_erasing": 1.1}, "random_erasing must be between 0 and 1, got 1.1"),
        ({"crop": "padded"}, "crop must be a RandomResizedCrop, a PaddedCrop or None"),
        ({"auto_augment": "rand_augment"}, "auto_augment must be a RandAugment, a TrivialAug"),
        ({"color_jitter": (0.4, 0.4)}, "color_jitter must be a ColorJitter or None"),
        (
            {"size": 3, "crop": PaddedCrop(padding=4)},
            "padding must be at most the size, 3; got 4",
        ),
    ],
    ids=str,
)
def test_invalid_policies_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AugmentationPolicy(**settings)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("cls", "settings", "message"),
    [
        (PaddedCrop, {"padding": -1}, "padding must be at least 0, got -1"),
        (PaddedCrop, {"padding": True}, "padding must be an integer, got True"),
        (PaddedCrop, {"name": "center"}, "name must be 'padded', got 'center'"),
        (RandomResizedCrop, {"name": "padded"}, "name must be 'random_resized', got 'padded'"),
        (RandomResizedCrop, {"scale": (0.5, 0.2)}, "scale must be two ascending numbers"),
        (RandomResizedCrop, {"scale": (0, 1)}, "ascending numbers greater than 0 and at most 1"),
        (RandomResizedCrop, {"scale": (0.2, 1.1)}, "ascending numbers greater than 0 and at most"),
        (RandomResizedCrop, {"scale": (True, True)}, "scale must be a number, got True"),
        (RandomResizedCrop, {"scale": 0.2}, "scale must be two numbers, got 0.2"),
        (RandomResizedCrop, {"scale": (0.2, 0.5, 1)}, "scale must be two numbers"),
        (RandomResizedCrop, {"ratio": (0.75, math.inf)}, "ratio must be finite, got inf"),
        (RandomResizedCrop, {"ratio": (2, 1)}, "ascending numbers greater than 0, got \\[2, 1\\]"),
    ],
    ids=str,
)
def test_invalid_crops_are_refused(cls: type, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cls(**settings)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hue": 0.6}, "hue must be between 0 and 0.5, got 0.6"),
        ({"brightness": 1.5}, "brightness must be between 0 and 1, got 1.5"),
        ({"contrast": -1}, "contrast must be between 0 and 1, got -1"),
        ({"saturation": math.inf}, "saturation must be finite, got inf"),
        ({"p": 1.1}, "p must be between 0 and 1, got 1.1"),
        ({"p": False}, "p must be a number, got False"),
    ],
    ids=str,
)
def test_invalid_jitter_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(JITTER, **change)


ADAPTER: pydantic.TypeAdapter[AugmentationPolicy] = pydantic.TypeAdapter(AugmentationPolicy)


def test_pydantic_reads_a_policy_and_writes_plain_values() -> None:
    policy = ADAPTER.validate_python(
        {"size": 8, "crop": {"name": "padded", "padding": 1}, "hflip": 0.0}
    )
    assert policy == AugmentationPolicy(8, PaddedCrop(padding=1), hflip=0.0)
    values = ADAPTER.dump_python(policy)
    assert values == dataclasses.asdict(policy)
    assert (values["size"], values["hflip"], values["num_views"]) == (8, 0.0, 1)
    assert values["crop"] == {"name": "padded", "padding": 1}
    assert ADAPTER.validate_python(dataclasses.asdict(policy)) == policy
    assert ADAPTER.validate_json(ADAPTER.dump_json(STRONG.policy)) == STRONG.policy
    assert ADAPTER.validate_python(STRONG.policy) is STRONG.policy


def test_pydantic_accepts_null_and_integers() -> None:
    policy = ADAPTER.validate_python({"crop": None, "hflip": 1})
    assert policy == AugmentationPolicy(crop=None, hflip=1.0)


@pytest.mark.bad_input
def test_lists_become_tuples() -> None:
    crop = {"name": "random_resized", "scale": [0.5, 1]}
    expected = RandomResizedCrop(scale=(0.5, 1.0))
    assert ADAPTER.validate_python({"crop": crop}).crop == expected
    constructed = RandomResizedCrop(scale=[0.5, 1.0])  # type: ignore[arg-type]
    assert constructed == expected
    assert hash(constructed) == hash(expected)


def test_the_json_schema_lists_the_crops() -> None:
    crop = ADAPTER.json_schema()["properties"]["crop"]["anyOf"][0]
    assert set(crop["discriminator"]["mapping"]) == {"random_resized", "padded"}


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("settings", "location", "message"),
    [
        ({"flip": 0.5}, ("flip",), "Unexpected keyword argument"),
        ({"hflip": True}, (), "hflip must be a number, got True"),
        ({"hflip": 2}, (), "hflip must be between 0 and 1, got 2"),
        ({"size": "8"}, (), "size must be an integer, got '8'"),
        ({"crop": "padded"}, (), "crop must be a mapping of settings or null"),
        ({"crop": {"padding": 1}}, ("crop",), "discriminator 'name'"),
        ({"crop": {"name": "center"}}, ("crop",), "'random_resized', 'padded'"),
        (
            {"crop": {"name": "padded", "scale": [0.2, 1.0]}},
            ("crop", "padded", "scale"),
            "Unexpected keyword argument",
        ),
        (
            {"crop": {"name": "random_resized", "scale": [True, 1.0]}},
            ("crop", "random_resized"),
            "scale must be two numbers, got [True, 1.0]",
        ),
        ({"color_jitter": {"hue": 0.1}}, ("color_jitter", "brightness"), "required"),
    ],
    ids=str,
)
def test_pydantic_refuses_invalid_settings(
    settings: dict[str, Any], location: tuple[str, ...], message: str
) -> None:
    with pytest.raises(pydantic.ValidationError) as caught:
        ADAPTER.validate_python(settings)
    first = caught.value.errors()[0]
    assert first["loc"] == location
    assert message in first["msg"]


def test_policies_say_whether_they_need_color() -> None:
    assert not AugmentationPolicy(gaussian_blur=0.5).needs_color
    assert AugmentationPolicy(grayscale=0.1).needs_color
    assert AugmentationPolicy(color_jitter=JITTER).needs_color


def test_scale_and_ratio_of_a_policy_reach_the_crop(monkeypatch: pytest.MonkeyPatch) -> None:
    boxes = []
    original = transforms.random_resized_boxes

    def record(*sizes: int, **options: Any) -> torch.Tensor:
        boxes.append(original(*sizes, **options))
        return boxes[-1]

    monkeypatch.setattr(transforms, "random_resized_boxes", record)
    policy = AugmentationPolicy(8, RandomResizedCrop(scale=(0.25, 0.25), ratio=(4.0, 4.0)))
    Augmentation(policy, (0.0,), (1.0,))(torch.zeros(20, 3, 16, 16, dtype=torch.uint8))
    assert boxes[0][:, 2:].unique(dim=0).tolist() == [[4, 16]]
