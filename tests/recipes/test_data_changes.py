"""The keys data.class_groups, long_tail and label_noise: their order, their images, and runs."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from protosphere.data.datasets import load_digits
from protosphere.data.long_tail import long_tail_counts
from protosphere.data.splits import DataError, split_validation
from protosphere.recipes import build, catalog
from protosphere.recipes.loading import load_run
from protosphere.recipes.runner import run_recipe
from protosphere.recipes.schema import Recipe, RecipeError, apply_overrides, recipe_from_yaml
from protosphere.runs import RunFolder, RunFolderError
from protosphere.runs.metadata import DataMetadata
from support.images import write_image

NOISE = "data.label_noise={name: symmetric, fraction: 0.25}"


def _recipe(*overrides: str, name: str = "digits-ce") -> Recipe:
    return apply_overrides(catalog.get_recipe(name), overrides)


@pytest.fixture
def parity(tmp_path: Path) -> Path:
    path = tmp_path / "parity.json"
    path.write_text(json.dumps({"even": list("02468"), "odd": list("13579")}))
    return path


def test_a_long_tail_takes_training_images_only() -> None:
    whole = build.load_dataset(_recipe())
    tail = build.load_dataset(_recipe("data.long_tail=0.02"))
    counts = torch.bincount(whole.train.labels).tolist()
    wanted = long_tail_counts(max(counts), 10, 0.02)
    assert build.count_classes(tail) == tuple(map(min, wanted, counts))
    assert tail.test.fingerprint() == whole.test.fingerprint()


def test_validation_images_are_those_without_a_long_tail() -> None:
    held_out = "data.validation_fraction=0.2"
    recipe = _recipe(held_out, "data.long_tail=0.05", NOISE)
    dataset = build.load_dataset(recipe)
    train, validation = split_validation(load_digits().train, 0.2, seed=recipe.seed)
    assert dataset.test.fingerprint() == validation.fingerprint()
    largest = int(torch.bincount(train.labels).max())
    assert len(dataset.train) <= sum(long_tail_counts(largest, 10, 0.05))
    clean = build.load_dataset(_recipe(held_out, "data.long_tail=0.05"))
    assert torch.equal(clean.train.images, dataset.train.images)
    wrong = (clean.train.labels != dataset.train.labels).double().mean()
    assert 0.15 < float(wrong) < 0.3


def test_the_images_do_not_depend_on_the_seed_of_the_recipe() -> None:
    one, two = (
        build.load_dataset(_recipe("data.long_tail=0.1", NOISE, f"seed={seed}")).train
        for seed in (1, 2)
    )
    assert one.fingerprint() == two.fingerprint()


def test_groups_come_first(parity: Path) -> None:
    groups = f"data.class_groups={parity}"
    dataset = build.load_dataset(_recipe(groups))
    whole = build.load_dataset(_recipe())
    assert dataset.train.class_names == dataset.test.class_names == ("even", "odd")
    assert torch.equal(dataset.test.labels, whole.test.labels % 2)
    tail = build.load_dataset(_recipe(groups, "data.long_tail=0.1"))
    counts = torch.bincount(whole.train.labels % 2).tolist()
    assert build.count_classes(tail) == (counts[0], int(max(counts) * 0.1))


def test_folders_of_images_take_all_keys(tmp_path: Path) -> None:
    for split, number in (("train", 8), ("val", 1)):
        for index, name in enumerate(("ant", "bee", "cat")):
            for image in range(number):
                write_image(tmp_path / split / name / f"{image}.png", seed=10 * index + image)
    groups = tmp_path / "groups.json"
    groups.write_text('{"insect": ["ant", "bee"], "mammal": ["cat"]}')
    recipe = _recipe(
        f"data.path={tmp_path}",
        f"data.class_groups={groups}",
        "data.long_tail=0.25",
        "data.label_noise={name: asymmetric, fraction: 0.25}",
        name="folder-ce",
    )
    dataset = build.load_dataset(recipe)
    assert dataset.train.class_names == ("insect", "mammal")
    true = ["mammal" if "cat" in Path(path).parts else "insect" for path in dataset.train.paths]
    assert (true.count("insect"), true.count("mammal")) == (16, 4)
    # Four insects are labeled as mammals and one mammal as an insect.
    assert build.count_classes(dataset) == (13, 7)
    assert torch.bincount(dataset.test.labels).tolist() == [2, 1]


@pytest.mark.parametrize("loss", ["ce", "normface"])
def test_losses_and_samplers_see_the_long_tail(loss: str) -> None:
    recipe = _recipe(
        "data.long_tail=0.1",
        "data.sampler=balanced",
        "loss.logit_adjustment=1.5",
        "loss.class_weights=balanced",
        name=f"digits-{loss}",
    )
    dataset = build.load_dataset(recipe)
    counts = build.count_classes(dataset)
    objective = build.create_objective(recipe, num_classes=10, in_channels=1, class_counts=counts)
    module: Any = objective.loss
    total = sum(counts)
    for index, count in enumerate(counts):
        expected = 1.5 * torch.tensor(count / total).log()
        assert module.logit_adjustment[index] == pytest.approx(float(expected), rel=1e-5)
        assert module.class_weights[index] == pytest.approx(total / (10 * count), rel=1e-5)
    loader, _ = build.create_loaders(recipe, dataset, "cpu")
    draws = torch.cat([index for index, *_ in loader.batches(8, seed=0, epoch=0)])
    drawn = torch.bincount(dataset.train.labels[draws], minlength=10)
    assert counts[-1] / total < 0.03
    assert int(drawn[-1]) / len(draws) > 0.05


QUICK = ("schedule.epochs=1", "evaluation.every=1", "evaluation.metrics=cheap")


@pytest.fixture
def tail_run(tmp_path: Path) -> tuple[Recipe, Path]:
    recipe = _recipe("data.long_tail=0.05", NOISE, *QUICK)
    for _ in run_recipe(recipe, tmp_path / "run", build.load_dataset(recipe)):
        pass
    return recipe, tmp_path / "run"


def test_runs_keep_the_keys_and_refuse_other_data(tail_run: tuple[Recipe, Path]) -> None:
    recipe, path = tail_run
    run = load_run(path)
    assert run.recipe.data == recipe.data
    dataset = run.dataset()
    stored = DataMetadata.read(RunFolder(path))
    assert stored.class_counts == build.count_classes(dataset)
    assert stored.train_fingerprint == dataset.train.fingerprint()
    for override in ("data.long_tail=0.1", "data.label_noise=null", "data.label_noise.fraction=.3"):
        with pytest.raises(RunFolderError, match=r"must not change what was trained: data\."):
            load_run(path, overrides=[override])
    for other in ("data.long_tail=0.1", "data.label_noise=null"):
        changed = build.load_dataset(apply_overrides(recipe, [other]))
        with pytest.raises(RunFolderError, match="was trained on other training images"):
            list(run_recipe(recipe, path, changed, start="resume"))


def test_a_file_of_groups_may_move_but_not_change(tmp_path: Path, parity: Path) -> None:
    recipe = _recipe(f"data.class_groups={parity}", *QUICK)
    for _ in run_recipe(recipe, tmp_path / "run", build.load_dataset(recipe)):
        pass
    moved = parity.rename(tmp_path / "moved.json")
    run = load_run(tmp_path / "run", overrides=[f"data.class_groups={moved}"])
    assert run.dataset().train.class_names == ("even", "odd")
    moved.write_text(json.dumps({"even": list("012468"), "odd": list("3579")}))
    other = load_run(tmp_path / "run", overrides=[f"data.class_groups={moved}"])
    with pytest.raises(RunFolderError, match="was trained on other training images"):
        other.dataset()


@pytest.mark.parametrize("num_classes", [10, 100])
@pytest.mark.parametrize("loss", ["ce", "normface", "ntce", "nonl", "etf-dr"])
def test_long_tailed_recipes_have_the_strong_settings(num_classes: int, loss: str) -> None:
    recipe = catalog.get_recipe(f"cifar{num_classes}-lt-{loss}")
    assert recipe.data.model_dump() == {
        "source": f"cifar{num_classes}",
        "root": "data",
        "validation_fraction": 0,
        "sampler": "uniform",
        "class_groups": None,
        "long_tail": 0.01,
        "label_noise": None,
    }
    strong = catalog.get_recipe(f"cifar100-strong-{loss}")
    for section in ("augmentation", "model", "optimizer", "schedule", "training", "evaluation"):
        assert getattr(recipe, section) == getattr(strong, section)
    assert type(recipe.loss) is type(strong.loss)
    assert recipe_from_yaml(recipe.to_yaml()) == recipe


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.long_tail=0", "data.long_tail must be greater than 0, got 0"),
        ("data.long_tail=1.5", "data.long_tail must be at most 1, got 1.5"),
        ("data.long_tail=true", "data.long_tail must not be a Boolean, got True"),
        ("data.label_noise=0.2", "data.label_noise must be"),
        ("data.label_noise.fraction=0.2", "a recipe must set data.label_noise.name"),
        ("data.label_noise.name=symmetric", "a recipe must set data.label_noise.fraction"),
        (
            "data.label_noise={name: pair, fraction: 0.2}",
            "data.label_noise.name must be one of 'symmetric', 'asymmetric', got 'pair'",
        ),
        (
            "data.label_noise={name: symmetric, fraction: 1}",
            "data.label_noise.fraction must be less than 1, got 1",
        ),
        (
            "data.imbalance_ratio=0.01",
            "a recipe has no data.imbalance_ratio; use data.long_tail",
        ),
    ],
)
def test_wrong_values_are_refused_in_one_sentence(override: str, message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        _recipe(override)
    assert str(caught.value).startswith(message), str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.bad_input
def test_data_that_the_keys_do_not_fit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="every class of a long tail must have an image"):
        build.load_dataset(_recipe("data.long_tail=0.001"))
    with pytest.raises(DataError, match="100 are not classes of the data"):
        build.load_dataset(_recipe("data.class_groups=cifar100-superclasses"))
    with pytest.raises(DataError, match="superclass does not exist"):
        build.load_dataset(_recipe("data.class_groups=superclass"))
