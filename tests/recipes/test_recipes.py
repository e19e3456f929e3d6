"""Recipes: every one builds, round-trips through YAML and runs two steps when shrunk; wrong ones get a sentence."""

import pytest
import torch

from protosphere import losses
from protosphere.data.datasets import synthetic
from protosphere.geometry import cosines
from protosphere.recipes import build, catalog
from protosphere.recipes.schema import Recipe, RecipeError, difference, from_yaml, with_settings
from protosphere.training import train


@pytest.mark.parametrize("name", catalog.names())
def test_every_recipe_builds_round_trips_and_runs(name: str) -> None:
    recipe = catalog.recipe(name)
    assert recipe.name == name
    assert from_yaml(recipe.to_yaml()) == recipe
    assert len(catalog.expectation(name)) > 20
    small = [
        "optimization.warmup_epochs=0",
        "optimization.epochs=1",
        "optimization.batch=8",
        "encoder.backbone=small",
    ]
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


# The paper's settings, family by family: encoder, epochs, batch, rate, warm-up, size and views, projection, probe.
_BEST = {
    "cifar10": {"normface": 0.6, "ntce": 0.6, "nonl": 0.2},
    "cifar100": {"normface": 0.3, "ntce": 0.2, "nonl": 0.1},
}
_CIFAR_PROBE, _IMAGENET_PROBE = (100, (60, 75, 90)), (90, (30, 60, 80))
_PAPER = {
    "cifar10": ("resnet18", 1000, 512, 0.2, 0, 32, None),
    "cifar100": ("resnet18", 1000, 512, 0.2, 0, 32, None),
    "imagenet100": ("resnet50", 500, 1024, 0.4, 10, 224, 0.2),
    "imagenet100-resnet101": ("resnet101", 500, 1024, 0.4, 10, 224, 0.2),
    "imagenet100-resnet152": ("resnet152", 500, 1024, 0.4, 10, 224, 0.2),
    "imagenet1k": ("resnet50", 500, 2048, 0.8, 10, 224, 0.1),
    "imagenet1k-4096": ("resnet50", 500, 4096, 1.6, 10, 224, 0.1),
    "imagenet1k-8192": ("resnet50", 500, 8192, 3.2, 10, 224, 0.1),
}
_CONTRASTIVE = {
    "cifar10": ("resnet18", 1000, 512, 0.05, 0, 32, 5.0),
    "cifar100": ("resnet18", 1000, 512, 0.05, 0, 32, 5.0),
    "imagenet100": ("resnet50", 500, 1024, 3.2, 10, 224, 2.0),
    "imagenet1k": ("resnet50", 500, 2048, 0.8, 5, 224, 0.8),
}


def _see_that_the_papers(
    recipe: Recipe, backbone: str, epochs: int, batch: int, rate: float, warm: int, size: int
) -> None:
    how, small = recipe.optimization, size == 32
    assert (recipe.encoder.backbone, how.epochs, how.batch, recipe.views.size) == (
        backbone,
        epochs,
        batch,
        size,
    )
    assert how.rate == pytest.approx(rate)
    assert (how.optimizer, how.momentum, how.weight_decay, how.schedule) == (
        "sgd",
        0.9,
        1e-4,
        "cosine",
    )
    assert (how.warmup_epochs, how.warmup_rate, how.final_share) == (warm, 0.01, 1e-3)
    assert recipe.encoder.stem == ("cifar" if small else "imagenet")
    assert (recipe.views.crop, recipe.views.scale, recipe.views.flip) == (
        "resized",
        (0.2, 1.0),
        0.5,
    )
    assert (recipe.data.classes is None) == (not recipe.name.startswith("imagenet100"))
    assert (recipe.seed, recipe.loss.label_smoothing) == (42, 0)


@pytest.mark.parametrize("family", _PAPER)
@pytest.mark.parametrize("loss", catalog.CLASSIFIER_LOSSES)
def test_the_papers_settings(family: str, loss: str) -> None:
    *settings, temperature = _PAPER[family]
    recipe = catalog.recipe(f"{family}-{loss}")
    _see_that_the_papers(recipe, *settings)
    assert (recipe.encoder.neck, recipe.encoder.projection, recipe.views.count) == (
        "none",
        "none",
        1,
    )
    assert not any(recipe.views.jitter)
    assert (recipe.views.gray_probability, recipe.views.blur_probability) == (0, 0)
    if loss in ("normface", "ntce", "nonl"):
        assert recipe.loss.temperature == (temperature or _BEST[family][loss])


@pytest.mark.parametrize("family", _CONTRASTIVE)
@pytest.mark.parametrize("loss", catalog.CONTRASTIVE_LOSSES)
def test_the_papers_settings_for_contrastive_training(family: str, loss: str) -> None:
    *settings, rate = _CONTRASTIVE[family]
    recipe = catalog.recipe(f"{family}-{loss}")
    _see_that_the_papers(recipe, *settings)
    views, small = recipe.views, family.startswith("cifar")
    assert (views.count, views.jitter, views.jitter_probability) == (2, (0.4, 0.4, 0.4, 0.1), 0.8)
    assert (views.gray_probability, views.blur_probability > 0) == (0.2, not small)
    assert recipe.loss.temperature == 0.1
    objective = build.build_objective(recipe, num_classes=10, in_channels=3)
    assert [
        layer.out_features for layer in objective.encoder[-1] if hasattr(layer, "out_features")
    ] == [
        512 if small else 2048,
        128,
    ]
    probe = build.build_probe_settings(recipe)
    assert (probe.schedule.epochs, probe.schedule.milestones) == (
        _CIFAR_PROBE if small else _IMAGENET_PROBE
    )
    assert (probe.schedule.rate, probe.schedule.gamma, probe.schedule.kind) == (rate, 0.2, "steps")
    assert (probe.optimizer, probe.momentum, probe.weight_decay) == ("sgd", 0.9, 0.0)


def test_recipes_beside_the_papers() -> None:
    strong = catalog.recipe("cifar100-strong-ce")
    assert (strong.optimization.epochs, strong.optimization.weight_decay, strong.views.crop) == (
        200,
        5e-4,
        "padded",
    )
    assert catalog.recipe("cifar100-strong-ce-smooth").loss.label_smoothing == 0.1
    for family in ("cifar10", "cifar100", "imagenet100", "imagenet1k"):
        neck, plain = (
            catalog.recipe(f"{family}-etf-dr-batchnorm"),
            catalog.recipe(f"{family}-etf-dr"),
        )
        assert neck.encoder.neck == "batchnorm"
        named = neck.model_copy(update={"name": plain.name})
        assert difference(plain, named) == "encoder.neck is none there and batchnorm here"


def test_every_setting_arrives() -> None:
    """None of these is a default."""
    asked = {
        "batch": 12, "accumulate": 3, "optimizer": "adamw", "momentum": 0.7, "weight_decay": 0.03, "clip": 0.5,
        "average": 0.99, "precision": "bfloat16", "execution": "compiled",
    }  # fmt: skip
    planned = {
        "rate": 0.7,
        "epochs": 7,
        "final_share": 0.2,
        "warmup_epochs": 2,
        "warmup_rate": 0.3,
        "gamma": 0.4,
    }
    settings = [f"optimization.{name}={value}" for name, value in (asked | planned).items()]
    recipe = with_settings(
        catalog.recipe("digits-ce"), [*settings, "optimization.milestones=[3]", "seed=5"]
    )
    found = build.build_settings(recipe, report_every=9)
    assert {name: getattr(found, name) for name in asked} == asked
    assert {name: getattr(found.schedule, name) for name in planned} == planned
    assert (found.schedule.milestones, found.seed, found.report_every) == ((3,), 5, 9)
    probe = build.build_probe_settings(recipe)
    assert (probe.accumulate, probe.optimizer, probe.momentum, probe.weight_decay) == (
        1,
        "sgd",
        0.9,
        0.0,
    )
    assert (probe.clip, probe.average, probe.batch, probe.schedule.gamma) == (None, None, 64, 0.2)


@pytest.mark.parametrize("kind", ["normface", "ntce", "nonl", "scl", "proto"])
def test_the_temperature_is_that_of_loss_and_head(kind: str) -> None:
    recipe = with_settings(catalog.recipe("digits-ce"), [f"loss.kind={kind}"])
    recipe = with_settings(recipe, ["loss.temperature=0.37"])
    objective = build.build_objective(recipe, num_classes=3, in_channels=1)
    torch.manual_seed(0)
    features, labels = torch.randn(12, 64), torch.arange(12) % 3
    with torch.no_grad():
        objective.head.prototypes.copy_(torch.randn(3, 64))
    others = (labels,) if kind in ("scl", "proto") else (objective.head.prototypes, labels)
    function = getattr(losses, f"{'prototype' if kind == 'proto' else kind}_loss")
    torch.testing.assert_close(
        objective.loss(features, objective.head, labels),
        function(features, *others, temperature=0.37),
    )
    torch.testing.assert_close(
        objective.head(features), cosines(features, objective.head.prototypes) / 0.37
    )


def test_the_blur_is_a_tenth_of_the_image_wide() -> None:
    widths = {
        size: build.build_augmentation(
            with_settings(catalog.recipe("imagenet1k-scl"), [f"views.size={size}"]), [0.5], [1.0]
        ).blur_kernel
        for size in (224, 32, 64)
    }
    assert widths == {224: 23, 32: 3, 64: 7}


def test_steps_of_the_learning_rate() -> None:
    steps = [
        "optimization.schedule=steps",
        "optimization.milestones=[2, 4]",
        "optimization.gamma=0.5",
    ]
    schedule = build.build_settings(with_settings(catalog.recipe("digits-ce"), steps)).schedule
    assert [schedule.at_epoch(epoch) for epoch in range(6)] == [0.1, 0.1, 0.05, 0.05, 0.025, 0.025]


def test_compiled_on_a_gpu_and_eager_elsewhere() -> None:
    recipe = catalog.recipe("cifar100-nonl")
    assert build.build_settings(recipe, device="cpu").execution == "eager"
    assert build.build_settings(recipe, device="cuda:1").execution == "compiled"
    asked = with_settings(recipe, ["optimization.execution=eager"])
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
    changed = with_settings(recipe, ["seed=3", "loss.temperature=0.5", "optimization.clip=1.5"])
    assert (changed.seed, changed.loss.temperature, changed.optimization.clip) == (3, 0.5, 1.5)
    assert recipe.seed == 42


def test_a_validation_part_takes_the_place_of_the_test() -> None:
    recipe = with_settings(catalog.recipe("digits-ce"), ["data.validation_share=0.2"])
    whole, held = build.build_source(catalog.recipe("digits-ce")), build.build_source(recipe)
    assert len(held.train) + len(held.test) == len(whole.train)
    other = build.build_source(with_settings(recipe, ["seed=7"]))
    assert len(other.test) == len(held.test)
    assert not torch.equal(other.test.images, held.test.images), "another seed, another part"
    tested = build.build_source(recipe, tested="test")
    assert torch.equal(tested.test.images, whole.test.images)
    assert torch.equal(tested.train.images, held.train.images)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["optimization.epoch=3"], "a recipe has no optimization.epoch; did you mean epochs?"),
        (["optimization.epochs=3"], "a recipe has no optimization; did you mean optimization?"),
        (["seed.x=3"], "a recipe has no seed.x; nothing is below it"),
        (["zzz=3"], "a recipe has no zzz; there are name, data, loss"),
        (
            ["optimization.epochs=0"],
            "optimization.epochs must be otherwise: input should be greater than",
        ),
        (["loss.kind=mse"], "loss.kind must be otherwise: input should be 'ce', 'normface'"),
        (["optimization.epochs"], "a setting must read path=value; got 'optimization.epochs'"),
        (["seed=[1"], "the value of seed must be YAML; got '[1'"),
        (
            ["optimization.warmup_epochs=99"],
            "optimization.warmup_epochs must be fewer than optimization.epochs",
        ),
        (
            ["loss.kind=ce", "loss.temperature=0.1"],
            "loss.temperature is for losses that have one; ce has none",
        ),
        (["loss.label_smoothing=0.1"], "loss.label_smoothing is for the loss ce alone"),
        (["data.source=arrays"], "data.path must say where the data are for the source arrays"),
        (["data.source=folder"], "data.path must say where the data are for the source folder"),
        (["data.classes=list.txt"], "data.classes is for the source folder alone"),
        (
            ["optimization.accumulate=3"],
            "optimization.accumulate must divide optimization.batch into pieces of two samples or more",
        ),
        (
            ["optimization.schedule=steps"],
            "optimization.milestones must name epochs for the schedule of steps",
        ),
        (
            ["views.scale=[0.5, 0.2]"],
            "views.scale must be two shares of the area, the smaller first",
        ),
        (
            ["views.scale=[0.5, 1.2]"],
            "views.scale must be two shares of the area, the smaller first",
        ),
        (
            ["views.jitter=[0.4, 0.4, 0.4, 0.6]"],
            "views.jitter must be three strengths of 0 to 1 and a turn",
        ),
        (["views.crop=padded", "views.padding=99"], "views.padding must not exceed views.size"),
        (["optimization.milestones=[-3]"], "milestones must be epochs, from 1 on"),
        (
            ["loss.temperature=.inf"],
            "loss.temperature must be otherwise: input should be a finite number",
        ),
        (["optimization.rate=.nan"], "optimization.rate must be otherwise: input should be"),
        (["seed=100000000000000"], "seed must be otherwise: input should be less than 2147483648"),
        (
            ["optimization.batch=1"],
            "optimization.batch must be otherwise: input should be greater than or equal to 2",
        ),
        (
            ["optimization.epochs=true"],
            "optimization.epochs must be otherwise: input should be neither true nor false",
        ),
        (
            ["optimization.average=1"],
            "optimization.average must be otherwise: input should be less than 1",
        ),
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
    with pytest.raises(
        RecipeError, match=r"there is no recipe 'cifar100-nol'; did you mean cifar100-nonl\?"
    ):
        catalog.recipe("cifar100-nol")
    with pytest.raises(
        RecipeError, match="there is no recipe 'zzz'; `protosphere recipes` lists them"
    ):
        catalog.recipe("zzz")
