"""Recipes: every one builds, round-trips through YAML and runs two steps when shrunk; wrong ones get a sentence."""

import pytest
import torch

from protosphere.data.sources import synthetic
from protosphere.recipes import build, catalog
from protosphere.recipes.schema import Recipe, RecipeError, from_yaml, with_settings
from protosphere.training import train


@pytest.mark.parametrize("name", catalog.names())
def test_every_recipe_builds_round_trips_and_runs(name: str) -> None:
    recipe = catalog.recipe(name)
    assert recipe.name == name
    assert from_yaml(recipe.to_yaml()) == recipe
    assert len(catalog.expectation(name)) > 20
    small = ["optimisation.warmup_epochs=0", "optimisation.epochs=1", "optimisation.batch=8", "encoder.backbone=small"]
    shrunk = with_settings(recipe, small)
    shrunk = with_settings(shrunk, ["encoder.stem=imagenet", "views.size=8"])
    source = synthetic(5, samples=20, resolution=8)
    objective = build.build_objective(shrunk, num_classes=5, in_channels=3)
    feed, _ = build.build_feeds(shrunk, source, "cpu")
    before = {key: value.clone() for key, value in objective.state_dict().items()}
    records = list(train(objective, feed, build.build_settings(shrunk)))
    assert records[-1].step == 2
    assert any(not torch.equal(before[key], value) for key, value in objective.state_dict().items())
    images, _ = next(feed.in_order(20))
    assert objective.scores(images).shape == (20, 5)


def test_the_papers_settings() -> None:
    recipe = catalog.recipe("cifar100-nonl")
    how = recipe.optimisation
    assert (how.epochs, how.batch, how.rate, how.momentum, how.weight_decay) == (1000, 512, 0.2, 0.9, 1e-4)
    assert (recipe.encoder.backbone, recipe.encoder.stem, recipe.encoder.neck) == ("resnet18", "cifar", "none")
    assert (recipe.views.crop, recipe.views.scale, recipe.views.flip) == ("resized", (0.2, 1.0), 0.5)
    settings = build.build_settings(recipe)
    assert settings.schedule.at_epoch(1000) == pytest.approx(0.2e-3)
    strong = catalog.recipe("cifar100-strong-ce")
    assert (strong.optimisation.epochs, strong.optimisation.weight_decay, strong.views.crop) == (200, 5e-4, "padded")


def test_the_papers_settings_for_imagenet() -> None:
    for name, backbone, batch, temperature in (
        ("imagenet100-nonl", "resnet50", 1024, 0.2),
        ("imagenet100-resnet152-ce", "resnet152", 1024, 0.2),
        ("imagenet1k-ntce", "resnet50", 2048, 0.1),
        ("imagenet1k-8192-nonl", "resnet50", 8192, 0.1),
    ):
        recipe = catalog.recipe(name)
        how = recipe.optimisation
        assert (recipe.encoder.backbone, how.batch, recipe.loss.temperature) == (backbone, batch, temperature)
        assert (how.epochs, how.rate, how.warmup_epochs, how.warmup_rate) == (500, 0.1 * batch / 256, 10, 0.01)
        assert (recipe.views.size, recipe.views.crop, recipe.encoder.stem) == (224, "resized", "imagenet")
        assert (recipe.data.classes is None) == name.startswith("imagenet1k")
    assert catalog.recipe("cifar100-strong-ce-smooth").loss.label_smoothing == 0.1


def test_steps_of_the_learning_rate() -> None:
    steps = ["optimisation.schedule=steps", "optimisation.milestones=[2, 4]", "optimisation.gamma=0.5"]
    schedule = build.build_settings(with_settings(catalog.recipe("digits-ce"), steps)).schedule
    assert [schedule.at_epoch(epoch) for epoch in range(6)] == [0.1, 0.1, 0.05, 0.05, 0.025, 0.025]


def test_compiled_on_a_gpu_and_eager_elsewhere() -> None:
    recipe = catalog.recipe("cifar100-nonl")
    assert build.build_settings(recipe, device="cpu").execution == "eager"
    assert build.build_settings(recipe, device="cuda:1").execution == "compiled"
    asked = with_settings(recipe, ["optimisation.execution=eager"])
    assert build.build_settings(asked, device="cuda").execution == "eager"


def test_the_schema_names_every_key() -> None:
    schema = Recipe.model_json_schema()
    assert set(schema["properties"]) == set(Recipe.model_fields)
    assert schema["additionalProperties"] is False
    views = schema["$defs"]["Views"]["properties"]
    assert views["crop"]["enum"] == ["resized", "padded", "none"]


def test_recipes_are_frozen_and_settings_make_new_ones() -> None:
    recipe = catalog.recipe("digits-ntce")
    with pytest.raises(ValueError, match="frozen"):
        recipe.seed = 3
    changed = with_settings(recipe, ["seed=3", "loss.temperature=0.5", "optimisation.clip=1.5"])
    assert (changed.seed, changed.loss.temperature, changed.optimisation.clip) == (3, 0.5, 1.5)
    assert recipe.seed == 42


def test_a_validation_part_takes_the_place_of_the_test() -> None:
    recipe = with_settings(catalog.recipe("digits-ce"), ["data.validation_share=0.2"])
    whole, held = build.build_source(catalog.recipe("digits-ce")), build.build_source(recipe)
    assert len(held.train) + len(held.test) == len(whole.train)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["optimisation.epoch=3"], "a recipe has no optimisation.epoch; did you mean epochs?"),
        (["optimization.epochs=3"], "a recipe has no optimization; did you mean optimisation?"),
        (["seed.x=3"], "a recipe has no seed.x; nothing is below it"),
        (["zzz=3"], "a recipe has no zzz; there are name, data, loss"),
        (
            ["optimisation.epochs=0"],
            "optimisation.epochs must be otherwise: input should be greater than",
        ),
        (["loss.kind=mse"], "loss.kind must be otherwise: input should be 'ce', 'normface'"),
        (["optimisation.epochs"], "a setting must read path=value; got 'optimisation.epochs'"),
        (["seed=[1"], "the value of seed must be YAML; got '[1'"),
        (["optimisation.warmup_epochs=99"], "optimisation.warmup_epochs must be fewer than optimisation.epochs"),
        (["loss.kind=ce", "loss.temperature=0.1"], "loss.temperature is for losses that have one; ce has none"),
        (["loss.label_smoothing=0.1"], "loss.label_smoothing is for the loss ce alone"),
        (["data.source=arrays"], "data.path must say where the data are for the source arrays"),
        (["data.source=folder"], "data.path must say where the data are for the source folder"),
        (["data.classes=list.txt"], "data.classes is for the source folder alone"),
        (
            ["optimisation.accumulate=3"],
            "optimisation.accumulate must divide optimisation.batch into pieces of two samples or more",
        ),
        (["optimisation.schedule=steps"], "optimisation.milestones must name epochs for the schedule of steps"),
        (["views.scale=[0.5, 0.2]"], "views.scale must be two shares of the area, the smaller first"),
        (["views.scale=[0.5, 1.2]"], "views.scale must be two shares of the area, the smaller first"),
        (["views.jitter=[0.4, 0.4, 0.4, 0.6]"], "views.jitter must be three strengths of 0 to 1 and a turn"),
        (["views.padding=99"], "views.padding must not exceed views.size"),
        (["optimisation.milestones=[-3]"], "milestones must be epochs, from 1 on"),
        (["loss.temperature=.inf"], "loss.temperature must be otherwise: input should be a finite number"),
        (["optimisation.rate=.nan"], "optimisation.rate must be otherwise: input should be"),
        (["seed=100000000000000"], "seed must be otherwise: input should be less than 2147483648"),
        (["optimisation.batch=1"], "optimisation.batch must be otherwise: input should be greater than or equal to 2"),
        (["optimisation.epochs=true"], "optimisation.epochs must be otherwise: input should be neither true nor false"),
        (["optimisation.average=1"], "optimisation.average must be otherwise: input should be less than 1"),
    ],
)
def test_settings_that_make_no_sense(settings: list[str], message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        with_settings(catalog.recipe("digits-nonl"), settings)
    assert str(caught.value).startswith(message)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "a recipe must be YAML; it is none (line 1)"),
        ("- 1", "a recipe must be a mapping"),
        ("name: x\nname: y", "a recipe must say each thing once; name stands there twice"),
        ("name: x\nloss: {kind: ce}", "a recipe must say data; it does not"),
        (
            "name: x\nloss: {kind: ce, temprature: 1}\ndata: {source: digits}",
            "a recipe has no loss.temprature; did you mean temperature?",
        ),
    ],
)
def test_files_that_make_no_sense(text: str, message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        from_yaml(text)
    assert str(caught.value).startswith(message)


@pytest.mark.bad_input
def test_names_that_do_not_exist() -> None:
    with pytest.raises(RecipeError, match=r"there is no recipe 'cifar100-nol'; did you mean cifar100-nonl\?"):
        catalog.recipe("cifar100-nol")
    with pytest.raises(RecipeError, match="there is no recipe 'zzz'; `protosphere recipes` lists them"):
        catalog.recipe("zzz")
