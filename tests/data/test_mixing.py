"""Mixup and CutMix against torchvision's transforms for the same parameters, and their draws."""

import math
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from torch import Tensor
from torchvision.transforms import v2

from protosphere.data.augmentation import AugmentationPolicy
from protosphere.data.mixing import (
    CutMix,
    Mixing,
    Mixup,
    MixupOrCutMix,
    cutmix,
    cutmix_boxes,
    mix_images,
    mixup,
    symmetric_beta,
)
from protosphere.data.transforms import box_masks

COUNT, HEIGHT, WIDTH, CLASSES = 24, 10, 13, 5
EVERY_KIND: list[Mixing] = [Mixup(alpha=0.4), CutMix(), MixupOrCutMix()]


@pytest.fixture
def images() -> Tensor:
    return torch.randn(COUNT, 3, HEIGHT, WIDTH)


@pytest.fixture
def labels() -> Tensor:
    return torch.randint(CLASSES, (COUNT,))


def soft_labels(labels: Tensor, weights: Tensor) -> Tensor:
    one_hot = torch.nn.functional.one_hot(labels, CLASSES)
    return weights[:, None] * one_hot + (1 - weights[:, None]) * one_hot.roll(1, 0)


def torchvisions(transform: Any, images: Tensor, labels: Tensor, **params: Any) -> list[Tensor]:
    """Apply torchvision's transform with given parameters to a batch and its labels."""
    params |= {"labels": labels, "batch_size": len(labels)}
    return [transform.transform(inputs, params) for inputs in (images, labels)]


def test_mixup_equals_torchvisions(images: Tensor, labels: Tensor) -> None:
    weights = torch.rand(COUNT)
    weights[:2] = torch.tensor([0.0, 1.0])
    mixed = mixup(images, weights)
    found_labels = soft_labels(labels, mixed.weights)
    for index, weight in enumerate(weights.tolist()):
        expected = torchvisions(v2.MixUp(num_classes=CLASSES), images, labels, lam=weight)
        torch.testing.assert_close(mixed.images[index], expected[0][index], rtol=0, atol=1e-6)
        torch.testing.assert_close(found_labels[index], expected[1][index], rtol=0, atol=1e-6)


def test_cutmix_equals_torchvisions(
    images: Tensor, labels: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pixels are equal bit for bit; the boxes follow from the same weight and center."""
    weights, rows, columns = torch.rand(3, COUNT)
    boxes = cutmix_boxes(weights, rows, columns, HEIGHT, WIDTH)
    mixed = cutmix(images, boxes)
    found_labels = soft_labels(labels, mixed.weights)
    transform = v2.CutMix(num_classes=CLASSES)
    for index in range(COUNT):
        # torchvision draws the weight, then the column and the row.
        centers = iter([int(columns[index] * WIDTH), int(rows[index] * HEIGHT)])
        monkeypatch.setattr(transform._dist, "sample", lambda _, i=index: weights[i])
        monkeypatch.setattr(
            torch, "randint", lambda *_, centers=centers, **__: torch.tensor([next(centers)])
        )
        params = transform.make_params([images])
        monkeypatch.undo()
        left, top, right, bottom = params["box"]
        assert boxes[index].tolist() == [top, left, bottom - top, right - left]
        expected = torchvisions(transform, images, labels, **params)
        assert torch.equal(mixed.images[index], expected[0][index])
        torch.testing.assert_close(found_labels[index], expected[1][index], rtol=0, atol=1e-6)


def test_boxes_are_clipped_at_every_border() -> None:
    """A box of half the side around each pixel, as a loop over pixels counts it."""
    side = 8
    rows, columns = torch.cartesian_prod(torch.arange(side), torch.arange(side)).T
    weights = torch.full((side**2,), 0.75)
    boxes = cutmix_boxes(weights, (rows + 0.5) / side, (columns + 0.5) / side, side, side)
    masks = box_masks(boxes, side, side)
    assert masks.shape == (side**2, 1, side, side)
    for row, column, mask in zip(rows.tolist(), columns.tolist(), masks[:, 0], strict=True):
        expected = [
            [row - 2 <= y < row + 2 and column - 2 <= x < column + 2 for x in range(side)]
            for y in range(side)
        ]
        assert mask.tolist() == expected
    found = cutmix(torch.zeros(side**2, 1, side, side), boxes).weights
    torch.testing.assert_close(found, 1 - masks.float().mean((1, 2, 3)))


@pytest.mark.parametrize("alpha", [0.05, 0.2, 0.5, 1.0, 2.0, 8.0])
def test_the_beta_distribution_equals_scipys(alpha: float) -> None:
    """Quantiles and moments of the transformed grid of uniform numbers."""
    grid = (torch.arange(500) + 0.5) / 500
    first, second = torch.meshgrid(grid, grid, indexing="ij")
    values = symmetric_beta(first, second, alpha).double().flatten().sort().values.numpy()
    levels = (np.arange(len(values)) + 0.5) / len(values)
    reference = scipy.stats.beta(alpha, alpha)
    inner = slice(len(values) // 1000, -len(values) // 1000)  # The grid ends before the tails do.
    np.testing.assert_allclose(values[inner], reference.ppf(levels)[inner], atol=4e-3)
    for order in (1, 2, 4):
        assert (values**order).mean() == pytest.approx(reference.moment(order), rel=1e-3)


@pytest.mark.parametrize("alpha", [0.001, 0.2, 1.0, 1000.0])
def test_the_beta_distribution_is_finite_at_the_ends_of_the_uniform_numbers(alpha: float) -> None:
    ends = torch.tensor([0.0, 2**-24, 0.25, 0.5, 0.75, 1 - 2**-24])
    first, second = torch.meshgrid(ends, ends, indexing="ij")
    values = symmetric_beta(first, second, alpha)
    assert torch.isfinite(values).all()
    assert values.min() >= 0
    assert values.max() <= 1


def test_mixup_draws_a_weight_of_the_beta_distribution_for_each_image() -> None:
    _, weights = mix_images(torch.zeros(5000, 1, 1, 1), Mixup(alpha=0.3))
    assert scipy.stats.kstest(weights.numpy(), scipy.stats.beta(0.3, 0.3).cdf).pvalue > 1e-3


def test_cutmix_draws_boxes_with_torchvisions_distribution() -> None:
    images = torch.zeros(3000, 1, 24, 16)
    _, weights = mix_images(images, CutMix(alpha=0.7))
    transform: Any = v2.CutMix(alpha=0.7, num_classes=2)
    expected = [transform.make_params([images])["lam_adjusted"] for _ in range(3000)]
    assert scipy.stats.ks_2samp(weights.numpy(), np.array(expected, dtype=np.float32)).pvalue > 1e-3


@pytest.mark.parametrize("mixing", EVERY_KIND, ids=lambda mixing: mixing.name)
def test_the_weight_is_the_fraction_of_an_images_own_pixels(mixing: Mixing) -> None:
    """Images i and i − 1 are constants, so that the mean of a mixed image is its weight."""
    images = torch.tensor([0.0, 1.0]).repeat(50)[:, None, None, None].expand(-1, 1, 9, 7)
    mixed, weights = mix_images(images, mixing)
    expected = torch.where(torch.arange(100) % 2 == 1, weights, 1 - weights)
    torch.testing.assert_close(mixed.mean((1, 2, 3)), expected, rtol=0, atol=1e-6)


def test_one_of_both_mixes_as_often_as_it_says() -> None:
    images = torch.tensor([0.0, 1.0]).repeat(2000)[:, None, None, None].expand(-1, 1, 8, 8)
    mixing = MixupOrCutMix(mixup_alpha=1.0, cutmix_alpha=1.0, cutmix_p=0.25, p=0.8)
    mixed, weights = mix_images(images, mixing)
    blended = ((mixed > 0) & (mixed < 1)).flatten(1).any(1)
    assert float(blended.float().mean()) == pytest.approx(0.8 * 0.75, abs=0.03)
    # Some of CutMix's boxes are empty.
    cut = ~blended & (weights < 1)
    drawn, rows, columns = torch.rand(3, 4000)
    boxes = cutmix_boxes(drawn, rows, columns, 8, 8)
    nonempty = float((boxes[:, 2:].prod(1) > 0).float().mean())
    assert float(cut.float().mean()) == pytest.approx(0.8 * 0.25 * nonempty, abs=0.03)
    assert torch.equal(mixed[~blended & ~cut], images[~blended & ~cut])


@pytest.mark.parametrize(
    ("cutmix_p", "alone"),
    [(0.0, Mixup(alpha=0.1)), (1.0, CutMix(alpha=5.0))],
    ids=["mixup", "cutmix"],
)
def test_one_of_both_uses_the_alpha_of_each(cutmix_p: float, alone: Mixing) -> None:
    images = torch.zeros(3000, 1, 32, 32)
    both = MixupOrCutMix(mixup_alpha=0.1, cutmix_alpha=5.0, cutmix_p=cutmix_p)
    found, expected = (mix_images(images, mixing).weights.numpy() for mixing in (both, alone))
    assert scipy.stats.ks_2samp(found, expected).pvalue > 1e-3


@pytest.mark.parametrize("mixing", [Mixup(alpha=1.0, p=0.3), CutMix(p=0.3)], ids=str)
def test_images_are_mixed_with_their_probability(mixing: Mixing) -> None:
    images = torch.randn(3000, 1, 32, 32)
    mixed, weights = mix_images(images, mixing)
    unchanged = weights == 1
    assert float(unchanged.float().mean()) == pytest.approx(0.7, abs=0.03)
    assert torch.equal(mixed[unchanged], images[unchanged])
    assert not (mixed[~unchanged] == images[~unchanged]).flatten(1).all(1).any()


@pytest.mark.parametrize("mixing", EVERY_KIND, ids=lambda mixing: mixing.name)
def test_the_generator_determines_the_result(images: Tensor, mixing: Mixing) -> None:
    first, again, other = (
        mix_images(images, mixing, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)
    )
    assert torch.equal(first.images, again.images)
    assert torch.equal(first.weights, again.weights)
    assert not torch.equal(first.weights, other.weights)
    torch.manual_seed(3)
    default = mix_images(images, mixing)
    torch.manual_seed(3)
    assert torch.equal(default.images, mix_images(images, mixing).images)


def test_half_precision_images_keep_their_type_and_weights_stay_exact(images: Tensor) -> None:
    for mixing in EVERY_KIND:
        mixed = mix_images(images.bfloat16(), mixing)
        assert mixed.images.dtype == torch.bfloat16
        assert mixed.weights.dtype == torch.float32


@pytest.mark.compiled
def test_it_compiles_without_graph_breaks(images: Tensor) -> None:
    compiled = torch.compile(
        lambda images: mix_images(images, MixupOrCutMix()), fullgraph=True, backend="eager"
    )
    mixed, weights = compiled(images)
    assert mixed.shape == images.shape
    assert weights.shape == (COUNT,)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("cls", "settings", "message"),
    [
        (Mixup, {"alpha": 0}, "alpha must be between 0.001 and 1000, got 0"),
        (Mixup, {"alpha": math.nan}, "alpha must be finite, got nan"),
        (Mixup, {"p": 1.5}, "p must be between 0 and 1, got 1.5"),
        (Mixup, {"name": "cutmix"}, "name must be 'mixup', got 'cutmix'"),
        (CutMix, {"alpha": -1.0}, "alpha must be between 0.001 and 1000, got -1.0"),
        (CutMix, {"p": True}, "p must be a number, got True"),
        (CutMix, {"name": "mixup"}, "name must be 'cutmix', got 'mixup'"),
        (MixupOrCutMix, {"cutmix_p": -0.5}, "cutmix_p must be between 0 and 1, got -0.5"),
        (MixupOrCutMix, {"p": 2}, "p must be between 0 and 1, got 2"),
        (MixupOrCutMix, {"mixup_alpha": 0}, "mixup_alpha must be between"),
        (MixupOrCutMix, {"cutmix_alpha": "1"}, "cutmix_alpha must be a number, got '1'"),
        (MixupOrCutMix, {"name": "mixup"}, "name must be 'mixup_or_cutmix', got 'mixup'"),
        (AugmentationPolicy, {"mixing": "mixup"}, "mixing must be a Mixup, a CutMix, a MixupOr"),
        (
            AugmentationPolicy,
            {"mixing": Mixup(), "num_views": 2},
            "mixing needs num_views to be 1, got 2",
        ),
    ],
    ids=str,
)
def test_invalid_settings_are_refused(cls: type, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cls(**settings)
