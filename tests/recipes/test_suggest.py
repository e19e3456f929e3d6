"""Suggested recipes: valid for any folder and loss, with the documented rules."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from protosphere.data.datasets import DataError, split_validation
from protosphere.data.folder_summary import FolderSummary
from protosphere.data.folders import ImageFiles
from protosphere.encoders import create_backbone
from protosphere.recipes.find_weights import Weights, find_cached_weights, weights_from_file
from protosphere.recipes.registry import LOSSES
from protosphere.recipes.schema import Recipe, RecipeError, apply_overrides, recipe_from_yaml
from protosphere.recipes.suggest import recipe_name, suggest_recipe
from support.documents import blocks

PRETRAINED = Weights("resnet50.a1_in1k", True)


def folder(
    counts: tuple[int, ...] = (60,) * 5,
    *,
    side: int = 500,
    test_folder: str | None = None,
    path: str = "photos",
) -> FolderSummary:
    return FolderSummary(
        path=Path(path),
        class_names=tuple(f"class {index}" for index in range(len(counts))),
        counts=counts,
        test_folder=test_folder,
        num_test=10 if test_folder else 0,
        sizes=((side, side + 30),),
        num_grayscale=0,
        problems=(),
    )


def suggest(summary: FolderSummary, **options: Any) -> Recipe:
    return recipe_from_yaml(suggest_recipe(summary, **options))


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("weights", [None, PRETRAINED])
def test_there_is_a_recipe_for_every_loss(loss: str, weights: Weights | None) -> None:
    recipe = suggest(folder(), loss=loss, weights=weights)
    assert recipe.loss.name == loss
    assert (recipe.data.source, recipe.name) == ("folder", f"photos-{loss}")
    assert (recipe.augmentation.num_views == 2) == (LOSSES[loss].training == "contrastive")
    assert recipe.model.backbone.pretrained is (weights is not None)


@given(
    counts=st.lists(st.integers(2, 3000), min_size=2, max_size=30).map(tuple),
    side=st.integers(1, 5000),
    test_folder=st.sampled_from([None, "val", "test"]),
    weights=st.sampled_from([None, PRETRAINED]),
)
def test_any_folder_gets_a_valid_recipe(
    counts: tuple[int, ...], side: int, test_folder: str | None, weights: Weights | None
) -> None:
    summary = folder(counts, side=side, test_folder=test_folder)
    recipe = suggest(summary, weights=weights)
    size = recipe.augmentation.size
    assert size % 32 == 0
    assert size <= max(side, 32 if weights is None else 128)
    assert size <= 224
    fraction = recipe.data.validation_fraction
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    files = ImageFiles(("",) * len(labels), labels, summary.class_names)
    train = split_validation(files, fraction)[0] if test_folder is None else files
    assert recipe.training.batch_size <= max(2, -(-len(train) // 4))
    assert (recipe.checkpoint.monitor is None) == (test_folder == "test")
    assert recipe.data.validation_folder == ("val" if test_folder == "val" else None)
    assert 1 <= -(-recipe.schedule.epochs // recipe.evaluation.every) <= 20


@pytest.mark.parametrize(
    ("side", "weights", "size"),
    [
        (20, None, 32),
        (43, None, 32),
        (95, None, 64),
        (96, None, 96),
        (3000, None, 224),
        (43, PRETRAINED, 128),
        (170, PRETRAINED, 160),
        (3000, PRETRAINED, 224),
        (3000, Weights("tf_efficientnetv2_s", "a.safetensors"), 288),
        (50, Weights("vit_tiny_patch16_224", True), 224),
    ],
)
def test_the_size_follows_from_the_images_and_the_model(
    side: int, weights: Weights | None, size: int
) -> None:
    assert suggest(folder(side=side), weights=weights).augmentation.size == size


def test_small_images_get_a_stem_for_small_images() -> None:
    stems = [suggest(folder(side=side)).model.backbone.stem for side in (40, 64, 100)]
    assert stems == ["cifar", "cifar", "imagenet"]
    backbone = suggest(folder(side=40), backbone="mobilenetv3_small_100").model.backbone
    assert (backbone.name, backbone.stem) == ("mobilenetv3_small_100", "imagenet")


@pytest.mark.parametrize(
    ("counts", "sampler", "monitor"),
    [
        ((60, 60), "uniform", "accuracy"),
        ((60, 21), "uniform", "accuracy"),
        ((60, 20), "balanced", "balanced_accuracy"),
        ((190, 10), "balanced", "balanced_accuracy"),  # Each of the 10 comes 10 times.
        ((192, 8), "sqrt", "balanced_accuracy"),
    ],
)
def test_imbalance_decides_the_sampler_and_the_metric(
    counts: tuple[int, ...], sampler: str, monitor: str
) -> None:
    recipe = suggest(folder(counts))
    assert (recipe.data.sampler, recipe.checkpoint.monitor) == (sampler, monitor)


def test_images_of_incomplete_batches_are_not_seen() -> None:
    """90 images make 5 batches of 16 in each of 100 epochs."""
    text = suggest_recipe(folder((45, 45), test_folder="val"), loss="nonl")
    recipe = recipe_from_yaml(text)
    assert (recipe.schedule.epochs, recipe.training.batch_size) == (100, 16)
    assert "8,000 images are seen in all." in text


@pytest.mark.parametrize(
    ("per_class", "epochs", "fine_tuning_epochs", "batch_size"),
    [
        (4, 100, 60, 4),
        (25, 100, 60, 32),
        (100, 100, 60, 64),
        (800, 75, 12, 64),
        (10**5, 30, 10, 256),
    ],
)
def test_epochs_and_batch_size_follow_from_the_number_of_images(
    per_class: int, epochs: int, fine_tuning_epochs: int, batch_size: int
) -> None:
    summary = folder((per_class,) * 10, test_folder="val")
    if per_class == 4:
        summary = folder((per_class,) * 5, test_folder="val")
    scratch, fine_tuning = (suggest(summary, weights=weights) for weights in (None, PRETRAINED))
    assert scratch.schedule.epochs == epochs
    assert fine_tuning.schedule.epochs == fine_tuning_epochs
    assert scratch.training.batch_size == fine_tuning.training.batch_size == batch_size


def test_images_are_held_out_only_without_a_test_folder() -> None:
    assert suggest(folder(test_folder="test")).data.validation_fraction == 0
    for counts, fraction in (
        ((60, 60), 0.2),
        ((9000, 9000), 0.1),
        ((60, 3), 0.2),
        ((60, 2), 0.3),
        ((9000, 9000, 4), 0.2),
    ):
        assert suggest(folder(counts)).data.validation_fraction == fraction
    with pytest.raises(DataError, match=r"each class must have at least 2 images.* class 1 has 1"):
        suggest(folder((60, 1)))


def test_fine_tuning_changes_the_backbone_slowly() -> None:
    weights = Weights("resnet18", "weights/resnet18.safetensors")
    recipe = suggest(folder(), weights=weights, precision="bf16")
    assert recipe.model.backbone.pretrained == "weights/resnet18.safetensors"
    assert recipe.optimizer.lr_scale.backbone < 1 == recipe.optimizer.lr_scale.head
    assert recipe.optimizer.exclude_from_decay == "norms_and_biases"
    assert (recipe.training.precision, suggest(folder()).training.precision) == ("bf16", "fp32")


@pytest.mark.parametrize("path", ["my photos", "a: b # c", "ä'\"{", "x\n\x1b[31my", "-", "0123"])
def test_any_path_is_written_so_that_it_is_read_back(path: str) -> None:
    text = suggest_recipe(folder(path=path))
    assert recipe_from_yaml(text).data.path == path
    assert "\x1b" not in text


def test_comments_stay_on_short_lines() -> None:
    for summary in (folder(), folder((2000, 3)), folder(side=40, test_folder="val")):
        for weights in (None, PRETRAINED):
            text = suggest_recipe(summary, weights=weights)
            assert all(len(line) <= 100 for line in text.splitlines()), text
            assert text.count("#") >= 12
    assert recipe_name(Path("/x/My Photos (2)"), "ce") == "my-photos-2-ce"
    assert recipe_name(Path("/x/日本"), "ce") == "images-ce"


@pytest.mark.bad_input
def test_unknown_losses_and_backbones_are_refused() -> None:
    with pytest.raises(RecipeError, match=r"loss must be one of ce, normface, .*; got 'focal'"):
        suggest(folder(), loss="focal")
    with pytest.raises(RecipeError, match="backbone must be a timm model, got 'resnet19'"):
        suggest(folder(), backbone="resnet19")


def _cache(folder: Path, *names: str, file: str = "model.safetensors") -> None:
    for name in names:
        snapshot = folder / f"models--timm--{name}" / "snapshots" / "0123abc"
        snapshot.mkdir(parents=True)
        (snapshot / file).touch()


def test_cached_weights_are_found_without_the_network(tmp_path: Path) -> None:
    assert find_cached_weights(cache=tmp_path) is None
    assert find_cached_weights(cache=tmp_path / "nowhere") is None
    _cache(tmp_path, "dla34.in1k", "not_a_model.in1k")
    _cache(tmp_path, "resnet18.a1_in1k", file="config.json")
    assert find_cached_weights(cache=tmp_path) == ("dla34.in1k", True)
    _cache(tmp_path, "resnet18.tv_in1k", file="pytorch_model.bin")
    _cache(tmp_path, "resnet50.a1_in1k")
    assert find_cached_weights(cache=tmp_path) == ("resnet50.a1_in1k", True)
    for name in ("resnet18", "resnet18.tv_in1k"):
        assert find_cached_weights(name, cache=tmp_path) == ("resnet18.tv_in1k", True)
    assert find_cached_weights("resnet18.a1_in1k", cache=tmp_path) is None


@pytest.mark.parametrize(
    "name",
    [
        "mobilenetv3_small_050.safetensors",
        "mobilenetv3_small_050-4b7bbe87.safetensors",
        "mobilenetv3_small_050.lamb_in1k.safetensors",
        "models--timm--mobilenetv3_small_050.lamb_in1k/snapshots/012/model.safetensors",
        "config/model.safetensors",
    ],
)
def test_the_model_of_a_file_is_found_and_its_weights_are_checked(
    name: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if name.startswith("config"):
        config = json.dumps({"architecture": "mobilenetv3_small_050"})
        (path.parent / "config.json").write_text(config)
    save_file(create_backbone("mobilenetv3_small_050").state_dict(), path)
    assert weights_from_file(path) == ("mobilenetv3_small_050", str(path))
    with pytest.raises(ValueError, match="must hold the weights of resnet18"):
        weights_from_file(path, "resnet18")


@pytest.mark.bad_input
def test_files_that_are_no_weights_are_refused(tmp_path: Path) -> None:
    unknown, text = tmp_path / "mine.safetensors", tmp_path / "resnet18.pth"
    for path in (unknown, text):
        path.write_bytes(b"nothing")
    with pytest.raises(ValueError, match=re.escape(f"the model of {unknown} must be known")):
        weights_from_file(unknown)
    for path in (text, tmp_path / "missing.safetensors"):
        with pytest.raises(ValueError, match=re.escape(str(path))):
            weights_from_file(path)


def test_overrides_on_the_page_about_own_images_fit_a_recipe_with_pretrained_weights() -> None:
    recipe = suggest(folder(), weights=PRETRAINED)
    for block in blocks("docs/own-images.md", ""):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            overrides = [words[i + 1] for i, word in enumerate(words) if word == "--set"]
            if words[:3] == ["protosphere", "train", "recipe.yaml"] and overrides:
                short = apply_overrides(recipe, overrides)
                assert (short.schedule.epochs, short.model.freeze) == (1, "backbone")
                return
    pytest.fail("the page trains no frozen backbone")


def test_a_refused_warmup_names_a_schedule_that_is_valid() -> None:
    recipe = suggest(folder())
    with pytest.raises(RecipeError, match=r"a short run needs no warmup: ") as error:
        apply_overrides(recipe, ["schedule.epochs=2"])
    short = apply_overrides(recipe, [str(error.value).split("warmup: ")[1]])
    assert (short.schedule.epochs, short.schedule.warmup_epochs) == (2, 0)
