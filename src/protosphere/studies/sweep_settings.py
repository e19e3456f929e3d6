"""What a sweep varies: settings such as ``optimizer.lr=log:0.05..0.5``, checked by a recipe."""

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from protosphere.recipes.schema import Recipe, RecipeError, apply_overrides
from protosphere.recipes.schema.text import parse_value
from protosphere.report.phase_diagram import format_value
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

    A range between integers is of integers if the recipe refuses numbers between them.

    Args:
        recipe: The recipe of the sweep.
        settings: What is varied.

    Returns:
        The settings.

    Raises:
        SweepError: There are no settings, a key is given twice, or a key does not change what is
            trained.
        RecipeError: The recipe has no such key, or refuses a value or a combination of values.
    """
    if not settings:
        raise SweepError("a sweep must vary at least one key: --over optimizer.lr=log:0.05..0.5")
    keys = [setting.key for setting in settings]
    for index, key in enumerate(keys):
        if key in keys[:index]:
            raise SweepError(f"--over {key} must be given once, got it twice")
        _check_effect(recipe, key, keys)
    choices = [_choices(setting) for setting in settings]
    first = {key: values[0] for key, values in zip(keys, choices, strict=True)}
    for key, values in zip(keys, choices, strict=True):
        for value in values:
            trial_recipe(recipe, first | {key: value})
    if math.prod(map(len, choices)) <= _MAX_CHECKED:
        for combination in itertools.product(*choices):
            trial_recipe(recipe, dict(zip(keys, combination, strict=True)))
    return tuple(
        replace(setting, integer=setting.integer and not _takes_fractions(recipe, first, setting))
        for setting in settings
    )


def _check_effect(recipe: Recipe, key: str, keys: Sequence[str]) -> None:
    """Refuse a key that does not change what is trained or chosen."""
    decides_when_to_stop = recipe.checkpoint.monitor is not None or "checkpoint.monitor" in keys
    has_no_effect = key in _WITHOUT_EFFECT or key.startswith("probe.")
    if has_no_effect or (key == "evaluation.every" and not decides_when_to_stop):
        raise SweepError(f"--over must have keys that change what is trained, and {key} does not")


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


def _takes_fractions(recipe: Recipe, first: Mapping[str, Any], setting: SweepSetting) -> bool:
    try:
        trial_recipe(recipe, {**first, setting.key: setting.low + 0.5})
    except RecipeError:
        return False
    return True
