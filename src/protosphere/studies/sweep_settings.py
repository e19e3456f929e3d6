"""What a sweep varies: settings such as ``optimizer.lr=log:0.05..0.5``, checked by a recipe."""

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from protosphere.recipes.datasets import DATASETS
from protosphere.recipes.schema import Recipe, RecipeError, apply_overrides
from protosphere.recipes.schema.text import parse_value
from protosphere.report.phase_diagram import format_value
from protosphere.runs.recipe_keys import flatten
from protosphere.runs.sweeps import SweepSetting
from protosphere.studies.common import reported_split

# Fraction of the training images that a recipe without validation images is evaluated on.
VALIDATION_FRACTION = 0.1
_LOG = "log:"
# Keys that do not change what a trial trains.
_WITHOUT_EFFECT = (
    "name",
    "data.workers",
    "loss.shard_prototypes",
    "training.compile",
    "training.fsdp",
    "evaluation.metrics",
    "checkpoint.every",
    "checkpoint.keep",
    "probe",
)
# Keys of the data that change what is trained on, and not what is evaluated.
_TRAINING_DATA = ("long_tail", "label_noise", "sampler", "workers", "in_memory")
_EVALUATED_DATA = {
    f"data.{name}"
    for entry in DATASETS.values()
    for name in entry.settings.model_fields
    if name not in _TRAINING_DATA
} | {"data"}
# The most combinations of values that are checked before the sweep starts.
_MAX_CHECKED = 1000


class SweepError(ValueError):
    """A sweep cannot be run as asked; the message says why."""


def parse_setting(text: str) -> SweepSetting:
    """Parse a setting of a sweep.

    Args:
        text: ``key=a,b,c`` for a grid of values, ``key=low..high`` for a range, or
            ``key=log:low..high`` for a range whose logarithm is sampled uniformly. Values are YAML;
            commas within brackets, braces and quotes do not separate them.

    Raises:
        SweepError: The text has another form, or a range is empty.

    >>> parse_setting("loss.temperature=0.05,0.1").values
    (0.05, 0.1)
    >>> parse_setting("optimizer.lr=log:0.05..0.5").kind
    'log_range'
    >>> parse_setting("augmentation.mixing=null,{name: mixup, alpha: 0.2}").values
    (None, {'name': 'mixup', 'alpha': 0.2})
    """
    key, equals, values = (part.strip() for part in text.partition("="))
    if not equals or not all(part.strip() for part in key.split(".")):
        raise SweepError(
            "--over must have the form key=a,b,c or key=low..high or key=log:low..high, got "
            f"{text!r}"
        )
    key = ".".join(part.strip() for part in key.split("."))
    if (ends := _split_range(key, values)) is not None:
        return _create_range(key, values, *ends)
    try:
        # The elements of a list in YAML's short form.
        grid = parse_value(f"[{values}]")
        texts = [json.dumps(value, sort_keys=True, allow_nan=False) for value in grid]
    except (ValueError, TypeError):  # A date, say, is YAML but no value of a recipe.
        raise SweepError(
            f"the values of {key} must be valid YAML, separated by commas, got {values!r}"
        ) from None
    if not grid:
        raise SweepError(f"--over {key} must have values, got none")
    if len(grid) == 1:
        raise SweepError(
            f"--over {key} must have more than one value, got {values}; a single value is set with "
            f"--set {key}={values}"
        )
    for index, one in enumerate(texts):
        if one in texts[:index]:
            raise SweepError(f"the values of {key} must differ, got {one} twice")
    return SweepSetting(key, "grid", values=tuple(grid))


def _split_range(key: str, text: str) -> tuple[int | float, int | float] | None:
    """Return the ends of a range, or None if the text is a grid."""
    is_log = text.startswith(_LOG)
    low, dots, high = text.removeprefix(_LOG).partition("..")
    ends = [_number(low), _number(high)]
    if not is_log and (not dots or ends == [None, None]):
        return None
    if not dots or ends[0] is None or ends[1] is None:
        raise SweepError(
            f"the range of {key} must have the form low..high or log:low..high with two finite "
            f"numbers, got {text!r}"
        )
    return ends[0], ends[1]


def _number(text: str) -> int | float | None:
    try:
        value = parse_value(text)
    except ValueError:
        return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and math.isfinite(value) else None


def _create_range(key: str, text: str, low: int | float, high: int | float) -> SweepSetting:
    is_log = text.startswith(_LOG)
    if low >= high:
        raise SweepError(f"the lower end of the range of {key} must be below the upper, got {text}")
    if is_log and low <= 0:
        raise SweepError(f"the lower end of a log range must be above 0, got {low:g} for {key}")
    are_integers = isinstance(low, int) and isinstance(high, int)
    kind = "log_range" if is_log else "range"
    return SweepSetting(key, kind, low=low, high=high, integer=are_integers)  # type: ignore[arg-type]


def format_setting(setting: SweepSetting) -> str:
    """Return a setting in the form that :func:`parse_setting` reads, without its key.

    Args:
        setting: The setting.

    >>> format_setting(parse_setting("optimizer.lr=log:0.05..0.5"))
    'log:0.05..0.5'
    """
    if setting.kind == "grid":
        return ",".join(format_value(value) for value in setting.values)
    prefix = _LOG if setting.kind == "log_range" else ""
    return f"{prefix}{format_value(setting.low)}..{format_value(setting.high)}"


def with_validation(recipe: Recipe) -> Recipe:
    """Return a recipe whose runs are evaluated on validation images.

    Args:
        recipe: The recipe; if it has no validation images, a tenth of the training images is.
    """
    if recipe.data.has_validation:
        return recipe
    return apply_overrides(recipe, [f"data.validation_fraction={VALIDATION_FRACTION}"])


def trial_recipe(recipe: Recipe, values: Mapping[str, Any]) -> Recipe:
    """Return the recipe of a trial.

    Args:
        recipe: The recipe of the sweep.
        values: Value of each key that is varied.

    Raises:
        RecipeError: The values do not make a valid recipe.
        SweepError: The trial would be evaluated on test images.
    """
    changed = apply_overrides(
        recipe, [f"{key}={json.dumps(value)}" for key, value in values.items()]
    )
    if not changed.data.has_validation:
        raise SweepError(
            "a sweep chooses on validation images: data.validation_fraction must be above 0 in "
            "every trial"
        )
    return changed


def final_recipe(recipe: Recipe) -> Recipe:
    """Return the recipe of a trial for training on all images, named after the sweep.

    Validation images that were held out of the training images go back to them, and the test
    images are evaluated, unless a folder has none. A monitored metric needs validation images, so
    it is dropped with them.

    Args:
        recipe: Recipe of the trial.
    """
    changes = [f"name={json.dumps(f'{recipe.name}-best')}"]
    if recipe.data.validation_fraction and reported_split(recipe) == "test":
        changes += [
            "data.validation_fraction=0",
            "checkpoint.monitor=null",
            "checkpoint.patience=null",
        ]
    return apply_overrides(recipe, changes)


def check_settings(recipe: Recipe, settings: Sequence[SweepSetting]) -> tuple[SweepSetting, ...]:
    """Check settings against a recipe, and find out which ranges are of integers.

    A range between whole numbers is of integers if the recipe refuses numbers between them.

    Args:
        recipe: The recipe of the sweep.
        settings: What is varied.

    Returns:
        The settings.

    Raises:
        SweepError: There are no settings, a key is given twice or is part of another, a key or two
            of its values do not change what is trained, or a key changes the validation images.
        RecipeError: The recipe has no such key, or refuses a value or a combination of values.
    """
    if not settings:
        raise SweepError("a sweep must vary at least one key: --over optimizer.lr=log:0.05..0.5")
    keys = [setting.key for setting in settings]
    for index, key in enumerate(keys):
        if key in keys[:index]:
            raise SweepError(f"--over {key} must be given once, got it twice")
        for other in keys:
            if key.startswith(f"{other}."):
                raise SweepError(
                    f"--over must not vary a key and a part of it, but {key} is part of {other}, "
                    "which is varied too"
                )
    without_effect = _keys_without_effect(recipe, keys)
    for key in keys:
        _check_effect(key, without_effect)
    choices = [_choices(setting) for setting in settings]
    first = {key: values[0] for key, values in zip(keys, choices, strict=True)}
    for key, values in zip(keys, choices, strict=True):
        effects: list[dict[str, Any]] = []
        for value in values:
            changed = trial_recipe(recipe, first | {key: value})
            effects.append(_without(changed, without_effect))
            if (same := effects.index(effects[-1])) < len(effects) - 1:
                raise SweepError(
                    f"the values of {key} must differ in what is trained, got "
                    f"{format_value(values[same])} and {format_value(value)}, which do not"
                )
    if math.prod(map(len, choices)) <= _MAX_CHECKED:
        for combination in itertools.product(*choices):
            trial_recipe(recipe, dict(zip(keys, combination, strict=True)))
    return tuple(_with_integers(recipe, first, setting) for setting in settings)


def _keys_without_effect(recipe: Recipe, keys: Sequence[str]) -> tuple[str, ...]:
    """Return the keys that do not change what is trained or chosen."""
    is_monitor_varied = "checkpoint.monitor" in keys or "checkpoint" in keys
    decides_when_to_stop = recipe.checkpoint.monitor is not None or is_monitor_varied
    return _WITHOUT_EFFECT if decides_when_to_stop else (*_WITHOUT_EFFECT, "evaluation.every")


def _without(recipe: Recipe, keys: Sequence[str]) -> dict[str, Any]:
    """Return the values of a recipe by key, without some keys and sections."""
    flat = flatten(recipe.model_dump(mode="json"))
    sections = tuple(f"{key}." for key in keys)
    return {
        key: value
        for key, value in flat.items()
        if key not in keys and not key.startswith(sections)
    }


def _check_effect(key: str, without_effect: Sequence[str]) -> None:
    """Refuse a key that does not change what is trained or chosen, or that changes the question."""
    if key in without_effect or key.startswith("probe."):
        raise SweepError(f"--over must have keys that change what is trained, and {key} does not")
    if key in _EVALUATED_DATA:
        raise SweepError(
            f"--over must have keys that leave the validation images as they are, and {key} does "
            "not"
        )


def check_pruning(recipe: Recipe, settings: Sequence[SweepSetting]) -> None:
    """Check that a trial can be pruned: that it is evaluated before its last epoch.

    Args:
        recipe: The recipe of the sweep.
        settings: What is varied, checked.

    Raises:
        SweepError: No trial is evaluated before its last epoch.
    """
    first = {setting.key: _choices(setting)[0] for setting in settings}
    times = [one for one in settings if one.key.partition(".")[0] in ("schedule", "evaluation")]
    for combination in itertools.product(*map(_choices, times)):
        values = dict(zip((one.key for one in times), combination, strict=True))
        changed = trial_recipe(recipe, first | values)
        every, epochs = changed.evaluation.every, changed.schedule.epochs
        if every < epochs:
            return
    raise SweepError(
        "--prune needs an evaluation before the last epoch: evaluation.every must be less than "
        f"schedule.epochs, got {every} and {epochs}"
    )


def count_combinations(settings: Sequence[SweepSetting]) -> int | None:
    """Return the number of combinations of all values, or None if a setting is a range.

    Args:
        settings: What is varied.
    """
    if any(setting.kind != "grid" for setting in settings):
        return None
    return math.prod(len(setting.values) for setting in settings)


def grid_values(settings: Sequence[SweepSetting], number: int) -> dict[str, Any]:
    """Return one combination of the values of grids; the last setting varies fastest.

    Args:
        settings: What is varied; grids only.
        number: Index of the combination.

    >>> first, second = parse_setting("a=1,2"), parse_setting("b=x,y,z")
    >>> grid_values([first, second], 4)
    {'a': 2, 'b': 'y'}
    """
    values = {}
    for setting in reversed(settings):
        number, index = divmod(number, len(setting.values))
        values[setting.key] = setting.values[index]
    return dict(reversed(values.items()))


def _choices(setting: SweepSetting) -> tuple[Any, ...]:
    return setting.values if setting.kind == "grid" else (setting.low, setting.high)


def _with_integers(recipe: Recipe, first: Mapping[str, Any], setting: SweepSetting) -> SweepSetting:
    """Return a range of integers if the recipe refuses numbers between its ends, which it takes."""
    ends = setting.low, setting.high
    is_whole = setting.kind != "grid" and all(float(end).is_integer() for end in ends)
    if not is_whole or _takes(recipe, {**first, setting.key: setting.low + 0.5}):
        return replace(setting, integer=False)
    return replace(setting, low=int(setting.low), high=int(setting.high), integer=True)


def _takes(recipe: Recipe, values: Mapping[str, Any]) -> bool:
    try:
        trial_recipe(recipe, values)
    except RecipeError:
        return False
    return True
