"""The schema of recipes: keys, validation errors in one sentence, YAML, overrides, differences."""

import pytest
from pydantic import TypeAdapter

from protosphere.recipes import catalog
from protosphere.recipes.datasets import DATASETS
from protosphere.recipes.registry import LOSSES
from protosphere.recipes.schema import (
    Recipe,
    RecipeError,
    apply_overrides,
    find_difference,
    json_schema,
    recipe_from_yaml,
    validate,
)
from protosphere.recipes.schema.errors import HABITS
from protosphere.recipes.schema.keys import key_owners

MINIMAL = "name: x\ndata: {source: digits}\nloss: {name: ce}\n"


def _error(recipe: str, *overrides: str) -> str:
    with pytest.raises(RecipeError) as caught:
        apply_overrides(catalog.get_recipe(recipe), overrides)
    return str(caught.value)


def test_a_minimal_recipe_has_defaults_for_the_rest() -> None:
    recipe = recipe_from_yaml(MINIMAL)
    assert (recipe.seed, recipe.training.batch_size, recipe.optimizer.name) == (42, 512, "sgd")
    assert recipe_from_yaml(recipe.to_yaml()) == recipe


def test_recipes_are_frozen_and_overrides_return_copies() -> None:
    recipe = catalog.get_recipe("digits-ntce")
    with pytest.raises(ValueError, match="frozen"):
        recipe.seed = 3  # type: ignore[misc]
    changed = apply_overrides(
        recipe, ["seed=3", "loss.temperature=0.5", "training.grad_clip=1.5", "optimizer.lr=1e-3"]
    )
    assert (changed.seed, changed.loss.temperature) == (3, 0.5)
    assert (changed.training.grad_clip, changed.optimizer.lr) == (1.5, 1e-3)
    assert recipe.seed == 42


def test_an_override_of_the_name_keeps_the_keys_that_still_apply() -> None:
    recipe = catalog.get_recipe("digits-nonl")
    plain = apply_overrides(recipe, ["loss.name=ce"])
    assert plain.loss == LOSSES["ce"].settings()
    other = apply_overrides(recipe, ["loss.name=normface", "loss.margin=0.2"])
    assert (other.loss.temperature, other.loss.margin) == (0.2, 0.2)
    adam = apply_overrides(recipe, ["optimizer.name=adamw", "optimizer.betas=[0.8, 0.9]"])
    assert (adam.optimizer.betas, adam.optimizer.weight_decay) == ((0.8, 0.9), 5e-4)
    arrays = apply_overrides(
        catalog.get_recipe("cifar100-nonl"), ["data.source=arrays", "data.path=a.npz"]
    )
    assert arrays.data.model_dump() == {
        "source": "arrays",
        "validation_fraction": 0.0,
        "sampler": "uniform",
        "class_groups": None,
        "long_tail": None,
        "label_noise": None,
        "path": "a.npz",
    }
    crop = apply_overrides(recipe, ["augmentation.crop.name=random_resized"])
    assert crop.augmentation.crop.scale == (0.2, 1.0)


def test_overrides_reach_into_sections_that_are_null() -> None:
    recipe = apply_overrides(
        catalog.get_recipe("cifar10-nonl"),
        ["model.projection.name=mlp", "model.projection.hidden_dim=64"],
    )
    assert recipe.model.projection.out_dim == 128
    assert recipe.model.projection.hidden_dim == 64
    assert apply_overrides(recipe, ["model.projection=null"]).model.projection is None


def test_numbers_without_a_decimal_point_are_numbers() -> None:
    recipe = apply_overrides(
        catalog.get_recipe("digits-nonl"), ["optimizer.lr=1e-3", "augmentation.hflip=5e-1"]
    )
    assert (recipe.optimizer.lr, recipe.augmentation.hflip) == (1e-3, 0.5)


def test_booleans_are_allowed_where_they_mean_something() -> None:
    recipe = apply_overrides(
        catalog.get_recipe("cifar10-normface"),
        ["loss.learn_temperature=true", "training.compile=false"],
    )
    assert recipe.loss.learn_temperature is True
    assert recipe.training.compile is False


# Keys of version 0.1 that were silently ignored: each is refused now.
@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("recipe", "overrides", "message"),
    [
        (
            "digits-ce",
            ["loss.temperature=0.003"],
            "loss.temperature does not apply to loss ce; it applies to normface, ntce, nonl, "
            "normface-nonl, scl, proto",
        ),
        (
            "cifar100-ce",
            ["data.num_classes=7"],
            "data.num_classes does not apply to data cifar100; it applies to synthetic",
        ),
        (
            "cifar100-ce",
            ["data.path=x"],
            "data.path does not apply to data cifar100; it applies to arrays, folder",
        ),
        (
            "cifar100-ce",
            ["schedule.milestones=[3]"],
            "schedule.milestones does not apply to schedule cosine; it applies to multistep",
        ),
        (
            "cifar100-ce",
            ["augmentation.crop.padding=3"],
            "augmentation.crop.padding does not apply to augmentation.crop random_resized; it "
            "applies to padded",
        ),
        (
            "cifar100-ce",
            ["optimizer.name=adamw", "optimizer.momentum=0.9"],
            "optimizer.momentum does not apply to optimizer adamw; it applies to sgd",
        ),
        (
            "digits-nonl",
            ["loss.logit_adjustment=1"],
            "loss.logit_adjustment does not apply to loss nonl; it applies to ce, normface",
        ),
        ("digits-normface", ["loss.margin_kind=angle"], "loss: margin_kind has no effect without"),
        ("digits-nonl", ["loss.min_temperature=0.1"], "loss: min_temperature has no effect"),
        ("digits-nonl", ["loss.learn_temperature=true"], "loss: learn_temperature needs"),
        ("digits-nonl", ["schedule.warmup_lr=1"], "schedule.warmup_lr must be null without"),
        ("digits-nonl", ["checkpoint.patience=2"], "checkpoint: patience has no effect without"),
        ("digits-nonl", [f"augmentation.size={10**20}"], "augmentation.size must be less than 214"),
        (
            "digits-nonl",
            [f"loss.queue.size={2**31}"],
            "loss.queue.size must be less than 2147483648",
        ),
        ("digits-nonl", ["data={source: folder, path: ''}"], "data.path must not be empty, got ''"),
        (
            "digits-nonl",
            ["loss={name: normface-nonl, normface_weight: 1, queue: {size: 64}}"],
            "loss.queue must be null with normface_weight 1: no samples are keys",
        ),
        (
            "digits-nonl",
            ["loss.soft_negatives=weighted"],
            "loss.soft_negatives has no effect without augmentation.mixing",
        ),
        (
            "digits-nonl",
            ["loss.negatives=both", "loss.label_smoothing=0.1"],
            "loss.negatives must be samples with label_smoothing, got both",
        ),
        (
            "digits-normface",
            ["loss.margin=0.1", "loss.label_smoothing=0.1"],
            "loss.margin must be 0 with label_smoothing",
        ),
        (
            "digits-nonl",
            ["optimizer.weight_decay=0", "optimizer.exclude_from_decay=norms_and_biases"],
            "optimizer: exclude_from_decay has no effect without weight_decay",
        ),
        (
            "digits-nonl",
            ["model.freeze=backbone", "optimizer.layer_decay=0.7"],
            "optimizer.layer_decay must be null with model.freeze backbone",
        ),
    ],
)
def test_keys_without_effect_are_refused(recipe: str, overrides: list[str], message: str) -> None:
    assert _error(recipe, *overrides).startswith(message)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("learning_rate=0.1", "a recipe has no learning_rate; use optimizer.lr"),
        (
            "optimizer.learning_rate=0.1",
            "a recipe has no optimizer.learning_rate; use optimizer.lr",
        ),
        ("training.lr=0.1", "a recipe has no training.lr; use optimizer.lr"),
        ("batch=32", "a recipe has no batch; use training.batch_size"),
        ("training.batch=32", "a recipe has no training.batch; use training.batch_size"),
        ("wd=0.1", "a recipe has no wd; use optimizer.weight_decay"),
        ("epochs=3", "a recipe has no epochs; use schedule.epochs"),
        ("training.epochs=3", "a recipe has no training.epochs; use schedule.epochs"),
        ("optimizer.epochs=3", "a recipe has no optimizer.epochs; use schedule.epochs"),
        ("loss.kind=ce", "a recipe has no loss.kind; use loss.name"),
        ("loss.tau=0.1", "a recipe has no loss.tau; use loss.temperature"),
        ("schedule.epoch=3", "a recipe has no schedule.epoch; did you mean epochs?"),
        ("training.zzz=3", "a recipe has no training.zzz; the keys there are batch_size,"),
        ("zzz=3", "a recipe has no zzz; the keys there are name, data, augmentation"),
        ("seed.x=3", "a recipe has no seed.x; seed is a value, not a section"),
        ("schedule.epochs=0", "schedule.epochs must be at least 1, got 0"),
        ("optimizer.lr=-1", "optimizer.lr must be greater than 0, got -1"),
        ("optimizer.lr=.nan", "optimizer.lr must be"),
        ("loss.temperature=.inf", "loss.temperature must be a finite number, got inf"),
        ("loss.temperature=warm", "loss.temperature must be a number, got 'warm'"),
        ("schedule.epochs=true", "schedule.epochs must not be a Boolean, got True"),
        ("seed=true", "seed must not be a Boolean, got True"),
        ("schedule.epochs=2.5", "schedule.epochs must be an integer, got 2.5"),
        (
            "training.compile=maybe",
            "training.compile must be one of 'auto', true, false, got 'maybe'",
        ),
        ("data.name=cifar10", "a recipe has no data.name; use data.source"),
        ("model.name=resnet50", "a recipe has no model.name; use model.backbone.name"),
        ("model.pretrained=true", "a recipe has no model.pretrained; use model.backbone.pre"),
        ("loss.zzz=1", "a recipe has no loss.zzz; the keys there are name, "),
        ("encoder.backbone=x", "a recipe has no encoder; use model"),
        ("loss.name=[1]", "loss.name must be one of"),
        ("loss.name=normface,", "loss.name must be one of"),
        ("loss={name: normface, margin: 9}", "loss.margin must be at most 3.14159, got 9"),
        ("loss={name: normface, margin: 3}", "loss.margin must be at most 2 for margin_kind"),
        ("loss.class_weights=[0, 0]", "loss.class_weights must not all be zero"),
        ("loss.class_weights=[true, 1]", "loss.class_weights must not be a Boolean"),
        (
            "loss={name: nonl, temperature: 0.1, learn_temperature: true, min_temperature: 0.2}",
            "loss.temperature must be at least min_temperature (0.2), got 0.1",
        ),
        (
            "schedule={name: multistep, epochs: 3, milestones: [500]}",
            "schedule.milestones must be increasing and less than epochs (3), got [500]",
        ),
        (
            "schedule={name: multistep, epochs: 9, milestones: [5, 5]}",
            "schedule.milestones must be increasing",
        ),
        ("probe.milestones=[500]", "probe.milestones must be increasing and less than epochs"),
        ("seed=100000000000000", "seed must be less than 2147483648, got 100000000000000"),
        ("training.batch_size=1", "training.batch_size must be at least 2, got 1"),
        ("training.ema_decay=1", "training.ema_decay must be less than 1, got 1"),
        ("training.precision=fp8", "training.precision must be one of 'fp32', 'bf16', 'fp16', "),
        (
            "loss.class_weights=even",
            "loss.class_weights must be one of 'balanced', 'effective', a ",
        ),
        ("model.freeze={stages: -1}", "model.freeze.stages must be at least 0, got -1"),
        ("model.freeze=head", "model.freeze must be one of 'none', 'backbone', {stages: ...}, "),
        ("optimizer.name=lam", "optimizer.name must be one of sgd, adamw, "),
        ("optimizer.lr_scale.body=1", "a recipe has no optimizer.lr_scale.body; the keys there"),
        ("augmentation.mixup=0.2", "a recipe has no augmentation.mixup; use augmentation.mixing"),
        (
            "loss.name=mse",
            "loss.name must be one of ce, normface, ntce, nonl, normface-nonl, etf-dr, scl, proto, "
            "got 'mse'",
        ),
        ("schedule.warmup_epochs=99", "schedule.warmup_epochs must be less than epochs (15)"),
        (
            "training.micro_batch_size=4096",
            "training.micro_batch_size must be less than batch_size",
        ),
        ("schedule.name=multistep", "a recipe must set schedule.milestones"),
        ("data.source=arrays", "a recipe must set data.path"),
        ("data.source=folder", "a recipe must set data.path"),
        ("model=resnet18", "model must be a mapping of keys to values, got 'resnet18'"),
        ("augmentation.hflip=2", "augmentation.hflip must be between 0 and 1, got 2"),
        ("augmentation.crop.padding=99", "augmentation"),
        ("augmentation.crop={name: zoom}", "augmentation.crop.name must be one of"),
        (
            "augmentation.color_jitter.hue=0.1",
            "a recipe must set augmentation.color_jitter.brightness",
        ),
        ("augmentation.sise=8", "a recipe has no augmentation.sise; did you mean size?"),
        ("loss.class_weights=[1, -1]", "loss.class_weights[1] must be at least 0, got -1"),
        ("schedule.epochs", "an override must have the form key=value, got 'schedule.epochs'"),
        ("seed=[1", "the value of seed must be valid YAML, got '[1'"),
    ],
)
def test_errors_name_the_key_the_rule_and_the_value(override: str, message: str) -> None:
    assert _error("digits-nonl", override).startswith(message)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "a recipe must be valid YAML (line 1)"),
        ("- 1", "a recipe must be a mapping of keys to values"),
        ("!!map [a]", "a recipe must be valid YAML"),
        ("[" * 5000, "a recipe must be valid YAML"),
        ("name: x\ndata: " + "{a: " * 400 + "1" + "}" * 400, "a recipe must"),
        ("1: 2", "a recipe must be a mapping of keys to values"),
        ("name: x\nname: y", "a recipe must set each key once, but name is set twice"),
        ("name: x\nloss: {name: ce}", "a recipe must set data"),
        ("name: x\nloss: {temperature: 1}\ndata: {source: digits}", "a recipe must set loss.name"),
        ("d: 2001-99-99", "a recipe must be valid YAML"),
        (
            "name: x\nloss: {name: nonl, temprature: 1}\ndata: {source: digits}",
            "a recipe has no loss.temprature; did you mean temperature?",
        ),
    ],
)
def test_files_that_are_not_valid(text: str, message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        recipe_from_yaml(text)
    assert str(caught.value).startswith(message)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    "text",
    [
        "name: x\ndata: {source: digits}\nloss: {kind: ce}",
        "name: x\ndata: {source: digits}\nloss: {kind: ce}\noptimisation: {epochs: 3}",
        "name: x\ndata: {source: digits}\nloss: {name: ce}\nviews: {size: 8}",
    ],
)
def test_recipes_of_version_0_1_are_refused_by_name(text: str) -> None:
    with pytest.raises(RecipeError, match=r"this recipe is of protosphere 0\.1"):
        recipe_from_yaml(text)


@pytest.mark.parametrize("name", LOSSES)
def test_every_option_of_a_loss_module_can_be_set(name: str) -> None:
    """What is left out has no effect on training or is given by the head."""
    import inspect

    entry = LOSSES[name]
    module = entry.loss(entry.settings(), None)
    options = set(inspect.signature(type(module).__init__).parameters) - {"self"}
    assert options - {"ignore_index", "reduction", "group"} <= set(entry.settings.model_fields)


@pytest.mark.parametrize("habit", sorted(set(HABITS.values()) - {"name", "model"}))
def test_every_hint_names_a_key_that_exists(habit: str) -> None:
    assert habit in key_owners(Recipe)


def test_the_registry_is_what_the_schema_accepts() -> None:
    owners = key_owners(Recipe)
    assert set(owners["loss.name"]) == set(LOSSES)
    assert set(owners["data.source"]) == set(DATASETS)


def test_the_json_schema_names_every_key() -> None:
    schema = json_schema()
    assert set(schema["properties"]) == set(Recipe.model_fields)
    assert schema["additionalProperties"] is False
    losses = schema["properties"]["loss"]["discriminator"]["mapping"]
    assert set(losses) == set(LOSSES)


def test_differences_are_found_in_what_is_trained_only() -> None:
    recipe = catalog.get_recipe("cifar100-nonl")
    same = apply_overrides(
        recipe,
        [
            "data.root=elsewhere",
            "evaluation.every=3",
            "checkpoint.keep=5",
            "training.compile=true",
            "probe.lr=3",
        ],
    )
    assert find_difference(recipe, same) is None
    folder = catalog.get_recipe("folder-nonl")
    moved = apply_overrides(folder, ["data.path=there", "data.workers=2", "data.classes=list.txt"])
    assert find_difference(folder, moved) is None
    warmer = apply_overrides(recipe, ["loss.temperature=0.3"])
    assert find_difference(recipe, warmer) == "loss.temperature is 0.1 there and 0.3 here"
    other = apply_overrides(recipe, ["optimizer.name=adamw"])
    assert find_difference(recipe, other) == "optimizer.name is sgd there and adamw here"
    crop = apply_overrides(recipe, ["augmentation.crop=null"])
    assert find_difference(crop, recipe) is not None


def test_a_recipe_from_plain_values_equals_one_from_yaml() -> None:
    recipe = catalog.get_recipe("imagenet100-scl")
    assert validate(recipe.model_dump(mode="json")) == recipe
    assert TypeAdapter(Recipe).validate_python(recipe) == recipe


MIXUP = "augmentation.mixing={name: mixup, alpha: 0.2}"


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("name", "override", "conflict"),
    [
        ("digits-scl", "loss.temperature=0.1", "loss scl"),
        ("digits-proto", "loss.temperature=0.1", "loss proto"),
        ("digits-normface", "loss.margin=0.1", "loss.margin"),
        ("digits-nonl", "loss.negatives=both", "loss.negatives both"),
    ],
)
def test_mixed_images_are_refused_where_a_sample_needs_one_class(
    name: str, override: str, conflict: str
) -> None:
    views = ["augmentation.num_views=1"] if name.startswith(("digits-scl", "digits-proto")) else []
    message = _error(name, override, MIXUP, *views)
    assert message.startswith(f"augmentation.mixing must be null with {conflict}, which needs")
