"""RandAugment and TrivialAugmentWide against torchvision, operation by operation and as a whole."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torchvision.transforms import v2

from protosphere.data import auto_augment as module
from protosphere.data.auto_augment import (
    OPERATIONS,
    RandAugment,
    TrivialAugmentWide,
    apply_operations,
    auto_augment,
    magnitude_table,
)

BINS = 31
TORCHVISIONS = {
    "rand_augment": v2.RandAugment(),
    "trivial_augment_wide": v2.TrivialAugmentWide(),
}
SIGNED = OPERATIONS[1:10]
GEOMETRIC = OPERATIONS[1:6]
# torchvision adds products with one rounding where the device may need two, which decides whether a
# level at a whole number is rounded down to it or to the one below. All others agree in every bit.
WITHIN_ONE_LEVEL = ("Color", "Contrast", "Sharpness")


def make_images(count: int, channels: int = 3, height: int = 32, width: int = 32) -> Tensor:
    images = torch.randint(0, 256, (count, channels, height, width), dtype=torch.uint8)
    images[0] = 100  # one level: nothing to stretch, nothing to equalize
    images[1] = images[1] // 4 + 50
    images[2, :, :, : width // 2] = 255
    images[3] = torch.arange(width).expand(channels, height, width)
    return images


def torchvisions(name: str, image: Tensor, operation: str, magnitude: float) -> Tensor:
    transform: Any = TORCHVISIONS[name]
    changed: Tensor = transform._apply_image_or_video_transform(
        image, operation, magnitude, transform.interpolation, transform._fill
    )
    return changed


def is_tied(operation: str, magnitude: float, height: int, width: int) -> Tensor:
    """Return the pixels whose source lies halfway between two pixels, so that rounding decides."""
    y, x = torch.meshgrid(
        torch.arange(height).double() + 0.5, torch.arange(width).double() + 0.5, indexing="ij"
    )
    source_x, source_y = x, y
    if operation == "ShearX":
        source_x = x + magnitude * y
    elif operation == "ShearY":
        source_y = y + magnitude * x
    elif operation == "Rotate":
        sine, cosine = math.sin(math.radians(magnitude)), math.cos(math.radians(magnitude))
        x, y = x - width / 2, y - height / 2
        source_x = cosine * x - sine * y + width / 2
        source_y = sine * x + cosine * y + height / 2
    # The edges of the pixels have whole numbers.
    return ((source_x - source_x.round()).abs() < 1e-4) | (
        (source_y - source_y.round()).abs() < 1e-4
    )


@pytest.mark.parametrize("name", TORCHVISIONS)
@pytest.mark.parametrize(("height", "width"), [(32, 32), (40, 17)])
def test_magnitudes_are_torchvisions(name: Any, height: int, width: int) -> None:
    space = TORCHVISIONS[name]._AUGMENTATION_SPACE
    assert tuple(space) == OPERATIONS
    for bins in (BINS, 10):
        table = magnitude_table(name, bins, height, width)
        for row, (operation, (magnitudes, signed)) in zip(table, space.items(), strict=True):
            expected = magnitudes(bins, height, width)
            assert torch.equal(row, torch.zeros(bins) if expected is None else expected.float())
            assert signed == (operation in SIGNED)


@pytest.mark.parametrize("shape", [(3, 32, 32), (3, 17, 40), (1, 24, 24), (3, 2, 5)], ids=str)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_operation_equals_torchvisions_on_uint8_images(
    operation: str, shape: tuple[int, int, int]
) -> None:
    """All magnitudes of both policies with both signs, an image each."""
    height, width = shape[1:]
    names: list[Any] = list(TORCHVISIONS)
    for name in names:
        magnitudes = magnitude_table(name, BINS, height, width)[OPERATIONS.index(operation)]
        if operation in SIGNED:
            magnitudes = torch.cat([magnitudes, -magnitudes])
        images = make_images(len(magnitudes), *shape)
        index = torch.full_like(magnitudes, OPERATIONS.index(operation), dtype=torch.long)
        found = apply_operations(images.float(), index, magnitudes)
        expected = torch.stack(
            [
                torchvisions(name, image, operation, magnitude)
                for image, magnitude in zip(images, magnitudes.tolist(), strict=True)
            ]
        ).float()
        if operation in WITHIN_ONE_LEVEL:
            difference = (found - expected).abs()
            assert difference.max() <= 1
            assert (difference > 0).float().mean() < 0.005
        elif operation in GEOMETRIC:
            tied = torch.stack(
                [is_tied(operation, value, height, width) for value in magnitudes.tolist()]
            )
            assert tied.float().mean() < 0.05
            assert torch.equal(found * ~tied[:, None], expected * ~tied[:, None])
        else:
            assert torch.equal(found, expected)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", TORCHVISIONS)
def test_whole_draws_equal_torchvisions(
    name: str, channels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same operations, magnitudes and signs, one image after the other by torchvision."""
    draws: list[tuple[Tensor, Tensor]] = []

    def record(levels: Tensor, operations: Tensor, magnitudes: Tensor) -> Tensor:
        draws.append((operations, magnitudes))
        return apply_operations(levels, operations, magnitudes)

    monkeypatch.setattr(module, "apply_operations", record)
    images = make_images(200, channels)
    policy = RandAugment(num_ops=3) if name == "rand_augment" else TrivialAugmentWide()
    found = (auto_augment(images / 255, policy) * 255).round()
    assert len(draws) == (3 if name == "rand_augment" else 1)
    expected = []
    for index in range(len(images)):
        image = images[index]
        for operations, magnitudes in draws:
            operation = OPERATIONS[int(operations[index])]
            image = torchvisions(name, image, operation, float(magnitudes[index]))
        expected.append(image.float())
    # A difference of one level may grow when the histogram is equalized afterwards.
    equal = (found == torch.stack(expected)).float().mean((1, 2, 3))
    assert equal.min() > 0.9
    assert equal.mean() > 0.998


@pytest.mark.parametrize("policy", [RandAugment(), TrivialAugmentWide()], ids=str)
def test_operations_magnitudes_and_signs_are_uniform(
    policy: RandAugment | TrivialAugmentWide, monkeypatch: pytest.MonkeyPatch
) -> None:
    draws: list[tuple[Tensor, Tensor]] = []

    def record(levels: Tensor, operations: Tensor, magnitudes: Tensor) -> Tensor:
        draws.append((operations, magnitudes))
        return levels

    monkeypatch.setattr(module, "apply_operations", record)
    count = 14000
    auto_augment(torch.zeros(count, 1, 4, 8), policy)
    table = magnitude_table(policy.name, BINS, 4, 8)
    for operations, magnitudes in draws:
        counts = torch.bincount(operations, minlength=14)
        assert len(counts) == 14
        assert (counts - count / 14).abs().max() < 5 * (count / 14) ** 0.5
        for index, operation in enumerate(OPERATIONS):
            values = magnitudes[operations == index]
            allowed = table[index] if policy.name != "rand_augment" else table[index, [9]]
            assert sorted(set(values.abs().tolist())) == sorted(set(allowed.tolist()))
            negative = float((values < 0).float().mean())
            expected = float((allowed != 0).float().mean()) / 2 if operation in SIGNED else 0
            assert negative == pytest.approx(expected, abs=0.07)
    if isinstance(policy, RandAugment):
        (first, _), (second, _) = draws
        assert not torch.equal(first, second)


def test_pixels_are_rounded_to_256_levels() -> None:
    """As torchvision sees them after a crop of uint8 images."""
    images = torch.rand(20, 3, 8, 8)
    for policy in (RandAugment(), TrivialAugmentWide()):
        torch.manual_seed(1)
        found = auto_augment(images, policy)
        torch.manual_seed(1)
        assert torch.equal(found, auto_augment((images * 255).round() / 255, policy))
        torch.testing.assert_close(found * 255, (found * 255).round(), rtol=0, atol=1e-4)
        assert found.min() >= 0
        assert found.max() <= 1


def test_the_generator_determines_the_images() -> None:
    images = torch.rand(20, 3, 8, 8)
    for policy in (RandAugment(), TrivialAugmentWide()):
        first, again, other = (
            auto_augment(images, policy, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)
        )
        assert torch.equal(first, again)
        assert not torch.equal(first, other)


@pytest.mark.compiled
def test_compiled_code_without_a_look_at_the_values_gives_the_same_levels() -> None:
    """On the CPU eager code handles the images of each stage only; compiled code handles all."""
    compiled = torch.compile(apply_operations, fullgraph=True, backend="eager")
    table = magnitude_table("trivial_augment_wide", BINS, 16, 16)
    operations = torch.arange(14).repeat(9)
    magnitudes = table[operations, torch.randint(BINS, (len(operations),))]
    for channels in (1, 3):
        levels = make_images(len(operations), channels, 16, 16).float()
        expected = apply_operations(levels, operations, magnitudes)
        assert torch.equal(compiled(levels, operations, magnitudes), expected)


@pytest.mark.bad_input
def test_images_with_other_numbers_of_channels_are_refused() -> None:
    with pytest.raises(ValueError, match="auto_augment needs images with 1 or 3 channels, got 4"):
        auto_augment(torch.rand(2, 4, 8, 8), RandAugment())


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("cls", "settings", "message"),
    [
        (RandAugment, {"num_ops": 0}, "num_ops must be at least 1, got 0"),
        (RandAugment, {"magnitude": -1}, "magnitude must be at least 0, got -1"),
        (RandAugment, {"magnitude": 9.5}, "magnitude must be an integer, got 9.5"),
        (
            RandAugment,
            {"magnitude": 31},
            "magnitude must be less than num_magnitude_bins, 31; got 31",
        ),
        (RandAugment, {"num_magnitude_bins": 1}, "num_magnitude_bins must be at least 2, got 1"),
        (RandAugment, {"name": "randaugment"}, "name must be 'rand_augment', got 'randaugment'"),
        (TrivialAugmentWide, {"num_magnitude_bins": 1}, "num_magnitude_bins must be at least 2"),
        (TrivialAugmentWide, {"name": "x"}, "name must be 'trivial_augment_wide', got 'x'"),
    ],
    ids=str,
)
def test_invalid_settings_are_refused(cls: type, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cls(**settings)
