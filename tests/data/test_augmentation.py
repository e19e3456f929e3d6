"""The policy: what it does with probability one, with none, and that the same seed does the same."""

import pytest
import torch
import torchvision.transforms.v2.functional as tv

from protosphere.data.augmentation import Augmentation

IMAGES = torch.randint(0, 256, (30, 3, 16, 16), dtype=torch.uint8)
STRONG = Augmentation(
    16, "resized", flip=0.5, jitter=(0.4, 0.4, 0.4, 0.1), gray_probability=0.2, blur_probability=0.5, blur_kernel=5,
    mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4),
)  # fmt: skip


def test_clean_is_only_normalized() -> None:
    found = STRONG.clean()(IMAGES)
    expected = tv.normalize(IMAGES.float() / 255, STRONG.mean, STRONG.std)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    resized = Augmentation(8)(IMAGES)
    torch.testing.assert_close(
        resized, tv.resize(IMAGES.float() / 255, [8, 8], antialias=True), rtol=0, atol=1e-5
    )


@pytest.mark.parametrize("policy", [STRONG, Augmentation(16, "padded", flip=0.5)])
def test_the_same_seed_does_the_same(policy: Augmentation) -> None:
    one, again, other = (policy(IMAGES, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert torch.isfinite(one).all()


def test_probabilities() -> None:
    always = Augmentation(16, flip=1.0)(IMAGES)
    torch.testing.assert_close(always, IMAGES.flip(3).float() / 255, rtol=0, atol=1e-6)
    gray = Augmentation(16, gray_probability=1.0)(IMAGES)
    assert torch.equal(gray[:, 0], gray[:, 2])
    many = IMAGES[:1].expand(4000, -1, -1, -1)
    changed = (
        (Augmentation(16, flip=0.3)(many) - IMAGES[:1].float().div(255)).abs().flatten(1).amax(1)
    )
    flipped = changed > 1e-3
    assert float(flipped.float().mean()) == pytest.approx(0.3, abs=0.03)
    assert (
        Augmentation(16, jitter=(0.4, 0.4, 0.4, 0.1), jitter_probability=1.0)(IMAGES).aminmax().max
        <= 1
    )


def test_how_often_colors_change_and_how_wide_the_blur_is() -> None:
    many = IMAGES[:1].expand(3000, -1, -1, -1)
    plain = IMAGES[:1].float() / 255
    jittered = Augmentation(16, jitter=(0.4, 0.4, 0.4, 0.1), jitter_probability=0.8)(many)
    changed = (jittered - plain).abs().flatten(1).amax(1) > 1e-3
    assert float(changed.float().mean()) == pytest.approx(0.8, abs=0.03)
    # A point, blurred by σ uniform in 0.1 … 2: its height is 1/(2πσ²) for wide ones, so the lowest tells the widest σ.
    point = torch.zeros(3000, 3, 33, 33, dtype=torch.uint8)
    point[:, :, 16, 16] = 255
    heights = Augmentation(33, blur_probability=1.0, blur_kernel=23)(point)[:, 0, 16, 16]
    assert float((2 * torch.pi * heights.min()).rsqrt()) == pytest.approx(2.0, rel=0.02)
    assert float(heights.max()) == pytest.approx(1.0, abs=1e-3)


@pytest.mark.compiled
def test_it_compiles_whole() -> None:
    compiled = torch.compile(STRONG.__call__, fullgraph=True)
    assert compiled(IMAGES).shape == (30, 3, 16, 16)
