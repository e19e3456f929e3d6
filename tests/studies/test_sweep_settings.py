"""Settings of sweeps: how they are written, which are refused, and the recipes that they make."""

from dataclasses import replace
from typing import Any

import pytest

from protosphere.recipes.loading import read_recipe
from protosphere.recipes.schema import RecipeError
from protosphere.runs.sweeps import SweepSetting
from protosphere.studies.sweep_settings import (
    SweepError,
    check_settings,
    count_combinations,
    final_recipe,
    format_setting,
    grid_values,
    parse_setting,
    trial_recipe,
    with_validation,
)

RECIPE = with_validation(read_recipe("digits-nonl"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0.05,0.1,0.2", (0.05, 0.1, 0.2)),
        ("1e-3, 1e-2", (0.001, 0.01)),
        ("ce,ntce", ("ce", "ntce")),
        ("true,false,null", (True, False, None)),
        ("null,{name: mixup, alpha: 0.2}", (None, {"name": "mixup", "alpha": 0.2})),
        ("[1, 2],[3, 4]", ([1, 2], [3, 4])),
        ('"a,b",c', ("a,b", "c")),
        ("../weights,../others", ("../weights", "../others")),
        ("1,true", (1, True)),
    ],
)
def test_a_grid_is_a_list_of_yaml_values(text: str, expected: tuple[Any, ...]) -> None:
    setting = parse_setting(f"some.key={text}")
    assert setting == SweepSetting("some.key", "grid", values=expected)
    assert parse_setting(f"some.key={format_setting(setting)}") == setting


@pytest.mark.parametrize(
    ("text", "kind", "low", "high"),
    [
        ("0.8..0.95", "range", 0.8, 0.95),
        ("log:0.05..0.5", "log_range", 0.05, 0.5),
        ("log:1e-4..1e-2", "log_range", 1e-4, 1e-2),
        ("-1..1", "range", -1, 1),
    ],
)
def test_a_range_has_two_ends(text: str, kind: Any, low: float, high: float) -> None:
    setting = parse_setting(f"key={text}")
    assert (setting.kind, setting.low, setting.high) == (kind, low, high)
    assert parse_setting(f"key={format_setting(setting)}") == setting


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("optimizer.lr", "--over must have the form key=a,b,c or key=low..high"),
        ("=1,2", "--over must have the form"),
        ("optimizer..lr=1,2", "--over must have the form"),
        ("optimizer.lr=", "--over optimizer.lr must have values, got none"),
        ("optimizer.lr=0.1", "must have more than one value, got 0.1; a single value is set with"),
        ("optimizer.lr=0.1,,0.2", "the values of optimizer.lr must be valid YAML"),
        ("optimizer.lr={0.1,0.2", "the values of optimizer.lr must be valid YAML"),
        ("optimizer.lr=2020-01-01,2020-01-02", "the values of optimizer.lr must be valid YAML"),
        ("optimizer.lr=.nan,1", "the values of optimizer.lr must be valid YAML"),
        ("optimizer.lr=0.1,0.2,0.1", "must differ, got 0.1 twice"),
        ("optimizer.lr=0.5..0.1", "must be below the upper, got 0.5..0.1"),
        ("optimizer.lr=0.1..0.1", "must be below the upper"),
        ("optimizer.lr=log:0..1", "must be above 0, got 0 for optimizer.lr"),
        ("optimizer.lr=log:-1..1", "must be above 0"),
        ("optimizer.lr=log:0.1", "must have the form low..high or log:low..high with two finite"),
        ("optimizer.lr=log:a..b", "must have the form low..high"),
        ("optimizer.lr=0.1..", "must have the form low..high"),
        ("optimizer.lr=0.1..0.2,0.5", "must have the form low..high"),
        ("optimizer.lr=0.1...inf", "must have the form low..high"),
    ],
)
def test_a_bad_setting_is_refused_in_one_sentence(text: str, message: str) -> None:
    with pytest.raises(SweepError) as caught:
        parse_setting(text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def _check(*texts: str) -> tuple[SweepSetting, ...]:
    return check_settings(RECIPE, [parse_setting(text) for text in texts])


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([], "a sweep must vary at least one key"),
        (["optimizer.lr=1,2", "optimizer.lr=3,4"], "--over optimizer.lr must be given once"),
        (["optimizer.lrr=1,2"], "a recipe has no optimizer.lrr; did you mean lr?"),
        (["lr=1,2"], "a recipe has no lr; use optimizer.lr"),
        (["optimizer.lr=0.1,-1"], "optimizer.lr must be greater than 0, got -1"),
        (["optimizer.momentum=0.5..1.5"], "optimizer.momentum must be less than 1, got 1.5"),
        (["optimizer.lr=a,b"], "optimizer.lr must be a number, got 'a'"),
        (["data.validation_fraction=0.1,0.3"], "data.validation_fraction does not"),
        (["data.source=digits,synthetic"], "that leave the validation images as they are, and"),
        (["data.class_groups=null,groups.json"], "data.class_groups does not"),
        (["data.path=a,b"], "--over must have keys that leave the validation images as they are"),
        (
            ["data.validation_folder=a,b"],
            "leave the validation images as they are, and data.validation",
        ),
        (["data={source: digits},{source: synthetic}"], "validation images as they are, and data "),
        (["data.sorce=digits,synthetic"], "a recipe has no data.sorce"),
        (
            ["optimizer.lr=0.3,0.4", "optimizer={name: sgd, lr: 0.1},{name: sgd, lr: 0.2}"],
            "optimizer.lr is part of optimizer, which is varied too",
        ),
        (
            ["loss={name: nonl, temperature: 0.1},{name: ce}", "loss.temperature=0.3..0.4"],
            "loss.temperature is part of loss, which is varied too",
        ),
        (["optimizer.lr=1,2", "optimizer. lr=3,4"], "--over optimizer.lr must be given once"),
        (["training.batch_size=100.5..200"], "training.batch_size must be an integer, got 100.5"),
        (
            ["schedule.epochs=1,1.0"],
            "schedule.epochs must differ in what is trained, got 1 and 1.0",
        ),
        (
            ["optimizer.momentum=0.9,0.8,0.90"],
            "the values of optimizer.momentum must differ, got 0.9 twice",
        ),
        (["checkpoint={keep: 1},{keep: 3}"], 'got {"keep": 1} and {"keep": 3}, which do not'),
        (["training={compile: true},{fsdp: true}"], "the values of training must differ in what"),
        (["evaluation={every: 1},{every: 2}"], "the values of evaluation must differ in what"),
        (
            ["loss.name=nonl,ce", "loss.temperature=0.1,0.2"],
            "loss.temperature does not apply to loss ce",
        ),
        (
            ["schedule.epochs=2..10", "schedule.warmup_epochs=0..5"],
            "schedule.warmup_epochs must be less than epochs (2), got 5",
        ),
    ],
)
def test_what_the_recipe_refuses_is_refused(texts: list[str], message: str) -> None:
    with pytest.raises((SweepError, RecipeError)) as caught:
        _check(*texts)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_range_is_of_integers_where_the_key_is() -> None:
    epochs, rate = _check("schedule.epochs=2..10", "optimizer.lr=log:1..2")
    assert epochs.integer
    assert not rate.integer


@pytest.mark.parametrize(
    ("text", "kind", "ends"),
    [
        ("training.batch_size=log:1e2..2e2", "log_range", (100, 200)),
        ("schedule.warmup_epochs=0.0..3.0", "range", (0, 3)),
        ("schedule.warmup_epochs=0..3.0", "range", (0, 3)),
    ],
)
def test_a_range_of_whole_numbers_is_of_integers_where_the_key_is(
    text: str, kind: str, ends: tuple[int, int]
) -> None:
    (setting,) = _check(text)
    assert (setting.kind, setting.low, setting.high, setting.integer) == (kind, *ends, True)
    assert isinstance(setting.low, int)
    assert isinstance(setting.high, int)


def test_a_range_of_fractions_stays_one() -> None:
    for text in ("optimizer.lr=log:1.0..2.0", "optimizer.lr=1..2", "optimizer.momentum=0..0.9"):
        (setting,) = _check(text)
        assert setting == replace(parse_setting(text), integer=False)


def test_keys_that_change_only_what_is_trained_may_be_varied() -> None:
    _check("data.long_tail=0.1,0.5", "data.sampler=uniform,balanced")
    _check("data.label_noise=null,{name: symmetric, fraction: 0.2}")
    _check("data.label_noise.fraction=0.1,0.2", "data.label_noise.name=symmetric,asymmetric")
    # When a run stops depends on its evaluations, if it monitors them.
    _check("checkpoint={keep: 1},{monitor: accuracy}", "evaluation={every: 1},{every: 2}")
    _check("checkpoint.monitor=null,accuracy", "evaluation.every=1,2")


@pytest.mark.bad_input
def test_a_trial_is_not_evaluated_on_test_images() -> None:
    with pytest.raises(SweepError, match="a sweep chooses on validation images"):
        trial_recipe(RECIPE, {"data.validation_fraction": 0})


def test_a_name_drops_the_keys_of_the_other_choice() -> None:
    (setting,) = _check("loss.name=nonl,ce")
    assert trial_recipe(RECIPE, {setting.key: "ce"}).loss.name == "ce"


def test_all_combinations_of_a_grid_are_numbered() -> None:
    settings = [parse_setting("a=1,2"), parse_setting("b=x,y,z")]
    count = count_combinations(settings)
    assert count == 6
    expected = [{"a": a, "b": b} for a in (1, 2) for b in ("x", "y", "z")]
    assert [grid_values(settings, number) for number in range(count)] == expected
    assert count_combinations([*settings, parse_setting("c=0..1")]) is None


def test_the_final_recipe_trains_on_all_images() -> None:
    base = read_recipe("digits-nonl", ["data.validation_fraction=0.2"])
    monitored = read_recipe(
        "digits-nonl",
        [
            "data.validation_fraction=0.2",
            "checkpoint.monitor=accuracy",
            "checkpoint.patience=3",
        ],
    )
    assert with_validation(base) == base
    assert RECIPE.data.validation_fraction == 0.1
    final = final_recipe(trial_recipe(monitored, {"optimizer.lr": 0.3}))
    assert final.name == "digits-nonl-best"
    assert final.optimizer.lr == 0.3
    assert final.split == "test"
    assert final.checkpoint.monitor is None
    assert final.checkpoint.patience is None
