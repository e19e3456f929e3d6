"""What a pretrained backbone changes in a recipe: the image size, and what may change later."""

from protosphere.recipes import catalog
from protosphere.recipes.schema import apply_overrides, find_difference, recipe_from_yaml


def test_a_pretrained_model_sets_the_image_size() -> None:
    text = """
name: photos
data: {source: folder, path: photos}
model: {backbone: {name: tf_efficientnet_lite1, pretrained: weights.safetensors}}
loss: {name: nonl}
"""
    assert recipe_from_yaml(text).augmentation.size == 240
    assert recipe_from_yaml(f"{text}augmentation: {{size: 96}}\n").augmentation.size == 96
    assert recipe_from_yaml(f"{text}augmentation: {{hflip: 0}}\n").augmentation.hflip == 0
    scratch = text.replace(", pretrained: weights.safetensors", "")
    assert recipe_from_yaml(scratch).augmentation.size == 32
    default = text.replace("name: tf_efficientnet_lite1, ", "")
    assert recipe_from_yaml(default).augmentation.size == 224, "of the default backbone"


def test_weights_may_be_moved_but_not_left_out_when_a_run_is_resumed() -> None:
    pretrained = catalog.get_recipe("folder-finetune-ce")
    moved = apply_overrides(pretrained, ["model.backbone.pretrained=weights.safetensors"])
    assert find_difference(pretrained, moved) is None
    # Without them the images would be normalized in another way.
    scratch = apply_overrides(pretrained, ["model.backbone.pretrained=false"])
    message = "model.backbone.pretrained is True there and False here"
    assert find_difference(pretrained, scratch) == message
