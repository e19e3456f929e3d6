"""The plan of a sweep: its arguments checked, and compared with those that a study belongs to."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Literal

from optuna.pruners import BasePruner, MedianPruner, NopPruner

from protosphere.recipes.schema import Recipe, compare_texts
from protosphere.runs.sweeps import SweepRecord, setting_from_json
from protosphere.studies.sweep_sampler import STARTUP_TRIALS
from protosphere.studies.sweep_settings import (
    SweepError,
    check_pruning,
    check_settings,
    count_combinations,
    format_setting,
    parse_setting,
    with_validation,
)
from protosphere.studies.sweep_storage import SweepStudy

Metric = Literal["accuracy", "balanced_accuracy", "nearest_mean_accuracy", "loss", "ece"]
SamplerName = Literal["grid", "tpe", "random"]
_MINIMIZED = ("loss", "ece")
# Pruning starts after this fraction of the epochs.
_PRUNING_START = 0.25
_PLAN = "sweep"


def create_plan(
    recipe: Recipe,
    over: Sequence[str],
    *,
    trials: int | None = None,
    sampler: SamplerName | None = None,
    seed: int = 0,
    prune: bool = False,
    metric: Metric | None = None,
) -> SweepRecord:
    """Check the arguments of a sweep and return its record without trials.

    Args:
        recipe: The recipe.
        over: What is varied.
        trials: Number of trials.
        sampler: How settings are chosen.
        seed: Seed of the sampler.
        prune: Whether trials are pruned.
        metric: Metric to choose by.

    Raises:
        SweepError: The arguments are not valid.
        RecipeError: The recipe has no such key, or refuses a value.
    """
    recipe = with_validation(recipe)
    settings = check_settings(recipe, [parse_setting(text) for text in over])
    if prune:
        check_pruning(recipe, settings)
    combinations = count_combinations(settings)
    if sampler is None:
        sampler = "grid" if combinations is not None and trials is None else "tpe"
    if sampler == "grid":
        if combinations is None:
            key = next(setting.key for setting in settings if setting.kind != "grid")
            raise SweepError(f"--sampler grid needs values for every key, but {key} is a range")
        if trials is not None:
            raise SweepError(
                f"--sampler grid runs all {combinations} combinations: --trials must not be given"
            )
        trials = combinations
    elif trials is None:
        ranges = [setting.key for setting in settings if setting.kind != "grid"]
        reason = f"{ranges[0]} is a range" if ranges else f"--sampler is {sampler}"
        raise SweepError(f"--trials must be given, because {reason}")
    if sampler != "grid" and combinations is not None and trials > combinations:
        raise SweepError(
            f"--trials must be at most {combinations}, the number of combinations, got {trials}"
        )
    if trials < 1:
        raise SweepError(f"--trials must be at least 1, got {trials}")
    chosen: Metric = metric or recipe.checkpoint.monitor or "accuracy"
    return SweepRecord(
        name=recipe.name,
        recipe=recipe.to_yaml(),
        metric=chosen,
        direction="minimize" if chosen in _MINIMIZED else "maximize",
        num_validation=None,
        sampler=sampler,
        seed=seed,
        prune=prune,
        num_trials=trials,
        settings=settings,
    )


def create_pruner(recipe: Recipe, *, prune: bool) -> BasePruner:
    """Create what decides when trials are pruned: by the median of the complete ones, or never.

    Args:
        recipe: The recipe of the sweep.
        prune: Whether trials are pruned.
    """
    if not prune:
        return NopPruner()
    start = math.ceil(_PRUNING_START * recipe.schedule.epochs)
    return MedianPruner(n_startup_trials=STARTUP_TRIALS, n_warmup_steps=start)


def check_plan(study: SweepStudy, plan: SweepRecord, where: str) -> None:
    """Check that a study belongs to a sweep; one without trials belongs to it from now on.

    Args:
        study: The study.
        plan: The record of the sweep without trials.
        where: Where the study is, for the message.

    Raises:
        SweepError: The study belongs to another sweep; the message says in what they differ.
    """
    stored = study.attributes.get(_PLAN)
    here = asdict(plan)
    if stored is None and study.num_trials:
        raise SweepError(f"{where} has trials of another program")
    # The direction of a study cannot be changed.
    if stored is None or (not study.num_trials and stored["direction"] == plan.direction):
        study.set_attribute(_PLAN, json.loads(json.dumps(here)))
        return
    difference = compare_texts(stored["recipe"], plan.recipe)
    if difference is None:
        there = {one.key: format_setting(one) for one in map(setting_from_json, stored["settings"])}
        now = {one.key: format_setting(one) for one in plan.settings}
        for key in dict.fromkeys([*there, *now]):
            if there.get(key) != now.get(key):
                difference = f"--over {key} is {there.get(key)} there and {now.get(key)} here"
                break
        else:
            for name in ("metric", "sampler", "seed", "prune"):
                if stored[name] != here[name]:
                    difference = f"--{name} is {stored[name]} there and {here[name]} here"
                    break
    if difference is not None:
        raise SweepError(f"{where} holds another sweep: {difference}")
