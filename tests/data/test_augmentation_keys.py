"""Automatic augmentation, erasing and mixing as keys of a policy, in recipes and in loaders."""

from dataclasses import replace
from typing import Any

import pydantic
import pytest
import torch
import torchvision.transforms.v2.functional as tv
from torch import Tensor

from protosphere.data import transforms
from protosphere.data.augmentation import Augmentation, AugmentationPolicy, ColorJitter
from protosphere.data.auto_augment import RandAugment, TrivialAugmentWide, auto_augment
from protosphere.data.folder_loader import FolderLoader
from protosphere.data.folders import ImageFiles
from protosphere.data.mixing import CutMix, Mixup, MixupOrCutMix
from protosphere.recipes.schema import RecipeError, recipe_from_yaml

IMAGES = torch.randint(0, 256, (30, 3, 16, 16), dtype=torch.uint8)
MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)
EVERYTHING = AugmentationPolicy(
    16,
    vflip=0.5,
    auto_augment=RandAugment(),
    color_jitter=ColorJitter(0.4, 0.4, 0.4, 0.1),
    grayscale=0.2,
    gaussian_blur=0.5,
    random_erasing=0.5,
    mixing=MixupOrCutMix(),
)
PLAIN = AugmentationPolicy(16, crop=None, hflip=0.0)


def seeded(seed: int = 5) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_automatic_augmentation_comes_after_the_flips_and_erasing_at_the_end() -> None:
    """The draws come in this order; the boxes of images that are not erased are drawn too."""
    policy = replace(PLAIN, hflip=0.5, auto_augment=TrivialAugmentWide(), random_erasing=0.4)
    found = Augmentation(policy, MEAN, STD)(IMAGES, seeded())
    generator = seeded()
    flips = torch.rand(30, generator=generator) < 0.5
    pixels = torch.where(flips[:, None, None, None], IMAGES.flip(3), IMAGES) / 255
    pixels = auto_augment(pixels, TrivialAugmentWide(), generator)
    boxes = transforms.random_erasing_boxes(30, 16, 16, generator=generator)
    is_erased = torch.rand(30, generator=generator) < 0.4
    assert 0 < is_erased.sum() < 30
    for result, image, box, erased in zip(found, pixels, boxes.tolist(), is_erased, strict=True):
        expected = tv.normalize(image, list(MEAN), list(STD))
        if erased:
            expected = tv.erase(expected, *box, v=torch.zeros(1, 1, 1))
        torch.testing.assert_close(result, expected, rtol=0, atol=1e-5)


def test_images_are_erased_with_their_probability() -> None:
    white = torch.full((4000, 1, 16, 16), 255, dtype=torch.uint8)
    found = Augmentation(replace(PLAIN, random_erasing=0.3), (0.0,), (1.0,))(white)
    erased = (found == 0).flatten(1).any(1).float()
    assert float(erased.mean()) == pytest.approx(0.3, abs=0.03)


def test_mixing_is_left_to_the_training_step() -> None:
    found = Augmentation(replace(PLAIN, mixing=Mixup(alpha=1.0)), MEAN, STD)(IMAGES)
    assert torch.equal(found, Augmentation(PLAIN, MEAN, STD)(IMAGES))


def test_grayscale_images_can_be_augmented_automatically() -> None:
    """Nothing changes their color, as in torchvision."""
    for setting in (RandAugment(), TrivialAugmentWide()):
        policy = replace(PLAIN, auto_augment=setting, random_erasing=0.5)
        assert not policy.needs_color
        found = Augmentation(policy, (0.5,), (0.2,))(IMAGES[:, :1])
        assert found.shape == (30, 1, 16, 16)
        assert torch.isfinite(found).all()


@pytest.mark.compiled
def test_everything_compiles_without_graph_breaks() -> None:
    """Traced as for the GPU, but not translated to machine code: that takes half a minute."""
    augmentation = Augmentation(EVERYTHING, MEAN, STD)
    compiled = torch.compile(augmentation.__call__, fullgraph=True, backend="eager")
    torch.manual_seed(3)
    found = compiled(IMAGES)
    torch.manual_seed(3)
    torch.testing.assert_close(found, augmentation(IMAGES))


def test_streamed_folders_are_augmented_on_the_device(
    files: ImageFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers crop, and the device does the rest on whole batches of what they cropped."""
    policy = AugmentationPolicy(16, auto_augment=RandAugment(), random_erasing=1.0)
    loader = FolderLoader(files, Augmentation(policy, MEAN, STD), device="cpu", workers=0)
    images, labels = next(iter(loader.batches(8, seed=1, epoch=0)))
    assert images.dtype == torch.uint8
    torch.manual_seed(7)
    found, _ = loader.prepare(images, labels)
    torch.manual_seed(7)
    expected = Augmentation(replace(policy, crop=None), MEAN, STD)(images[:, 0])
    assert torch.equal(found, expected)
    plain = Augmentation(replace(PLAIN, hflip=0.5), MEAN, STD)
    torch.manual_seed(7)
    assert not torch.equal(found, plain(images[:, 0]))


def recipe(augmentation: str) -> str:
    return (
        "name: test\ndata: {source: digits}\nloss: {name: nonl}\n"
        f"augmentation: {{size: 8, {augmentation}}}\n"
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mixing: {name: mixup, alpha: 0.2}", {"mixing": Mixup(alpha=0.2)}),
        ("mixing: {name: cutmix, p: 0.5}", {"mixing": CutMix(p=0.5)}),
        ("mixing: {name: mixup_or_cutmix, cutmix_p: 1}", {"mixing": MixupOrCutMix(cutmix_p=1.0)}),
        ("mixing: null", {"mixing": None}),
        (
            "auto_augment: {name: rand_augment, num_ops: 1}",
            {"auto_augment": RandAugment(num_ops=1)},
        ),
        ("auto_augment: {name: trivial_augment_wide}", {"auto_augment": TrivialAugmentWide()}),
        ("auto_augment: null, random_erasing: 0.25", {"random_erasing": 0.25}),
    ],
    ids=str,
)
def test_recipes_have_the_keys(text: str, expected: dict[str, Any]) -> None:
    found = recipe_from_yaml(recipe(text))
    assert found.augmentation == AugmentationPolicy(8, **expected)
    assert recipe_from_yaml(found.to_yaml()) == found


def test_a_policy_with_every_key_survives_json() -> None:
    adapter: pydantic.TypeAdapter[AugmentationPolicy] = pydantic.TypeAdapter(AugmentationPolicy)
    assert adapter.validate_json(adapter.dump_json(EVERYTHING)) == EVERYTHING
    assert hash(EVERYTHING) == hash(replace(EVERYTHING))


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mixing: mixup", "augmentation.mixing must be a mapping of settings or null, got 'mixup'"),
        ("mixing: {alpha: 0.2}", "a recipe must set augmentation.mixing.name"),
        (
            "mixing: {name: mixupp}",
            "augmentation.mixing.name must be one of mixup, cutmix, mixup_or_cutmix, got 'mixupp'",
        ),
        (
            "mixing: {name: mixup, alpha: 0}",
            "augmentation.mixing.alpha must be between 0.001 and 1000, got 0",
        ),
        (
            "mixing: {name: mixup, cutmix_p: 0.5}",
            "augmentation.mixing.cutmix_p does not apply to augmentation.mixing mixup",
        ),
        ("mixing: {name: mixup, beta: 0.5}", "a recipe has no augmentation.mixing.beta"),
        ("mixing: {name: mixup}, num_views: 2", "mixing needs num_views to be 1, got 2"),
        ("auto_augment: {name: auto_augment}", "must be one of rand_augment, trivial_augment_wide"),
        (
            "auto_augment: {name: trivial_augment_wide, magnitude: 9}",
            "augmentation.auto_augment.magnitude does not apply to",
        ),
        (
            "auto_augment: {name: rand_augment, magnitude: 40}",
            "augmentation.auto_augment.magnitude must be less than num_magnitude_bins, 31; got 40",
        ),
        ("random_erasing: true", "augmentation.random_erasing must be a number, got True"),
        ("random_erasing: 2", "augmentation.random_erasing must be between 0 and 1, got 2"),
    ],
)
def test_recipes_refuse_invalid_values_in_one_sentence(text: str, message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        recipe_from_yaml(recipe(text))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_images_of_a_batch_are_augmented_independently() -> None:
    """Copies of one image differ, and with their own seed they are the same again."""
    policy = replace(PLAIN, auto_augment=TrivialAugmentWide(), random_erasing=1.0)
    batch: Tensor = IMAGES[:1].expand(30, -1, -1, -1)
    found = Augmentation(policy, MEAN, STD)(batch, seeded())
    assert len(found.flatten(1).unique(dim=0)) > 20
    assert torch.equal(found, Augmentation(policy, MEAN, STD)(batch, seeded()))
