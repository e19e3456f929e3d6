"""Names of runs in a report: runs that differ only in their seed are of one method."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from protosphere.report.sources import RunData
from protosphere.runs.recipe_keys import flatten, is_compared

# With more keys, only those are named that are needed to tell the methods apart.
_MAX_KEYS = 3
_CLASSES = "classes"
_IMAGES = "images"
# Characters of the fingerprint of images that are shown.
_SHOWN = 8
_LOSS = "loss.name"
_MAX_NAMES = 4
# Values that keys had in effect before they existed.
_DEFAULTS = {
    "data.sampler": "uniform",
    "loss.soft_negatives": "excluded",
    "optimizer.lr_scale.backbone": 1.0,
    "optimizer.lr_scale.neck": 1.0,
    "optimizer.lr_scale.head": 1.0,
    "training.grad_accum_steps": 1,
}


def name_runs(runs: Sequence[RunData]) -> tuple[RunData, ...]:
    """Return runs with their methods and with names that differ.

    Args:
        runs: Runs as they were read, named after their recipes or folders.
    """
    methods = _find_methods(runs)
    runs = [replace(run, method=method) for run, method in zip(runs, methods, strict=True)]
    num_runs = Counter(run.method for run in runs)
    names = [
        run.method if num_runs[run.method] == 1 else f"{run.method}, seed {run.seed}"
        for run in runs
    ]
    names = unique_names(names, [run.path for run in runs])
    return tuple(replace(run, name=name) for run, name in zip(runs, names, strict=True))


def unique_names(names: Sequence[str], paths: Sequence[Path]) -> list[str]:
    """Return names of which no two are equal, told apart by as much of the path as is needed.

    Args:
        names: The names.
        paths: The path of each.

    >>> unique_names(["a", "b", "a"], [Path("x/1"), Path("x/2"), Path("x/3")])
    ['a (1)', 'b', 'a (3)']
    """
    named = list(names)
    for depth in (1, 2, 3, 100):
        double = {name for name, times in Counter(named).items() if times > 1}
        if not double:
            break
        named = [
            f"{name} ({Path(*path.resolve().parts[-depth:])})" if current in double else current
            for current, name, path in zip(named, names, paths, strict=True)
        ]
    return named


def enumerate_names(names: Sequence[str]) -> str:
    """Return names as part of a sentence; of more than four, the first three are named.

    Args:
        names: The names.

    >>> enumerate_names(["a", "b", "c"]), enumerate_names(list("abcde"))
    ('a, b and c', 'a, b, c and 2 more')
    """
    if len(names) > _MAX_NAMES:
        return f"{', '.join(names[: _MAX_NAMES - 1])} and {len(names) - _MAX_NAMES + 1} more"
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def _find_methods(runs: Sequence[RunData]) -> list[str]:
    by_name: dict[str, list[tuple[Mapping[str, Any], list[int]]]] = {}
    for index, run in enumerate(runs):
        groups = by_name.setdefault(run.method, [])
        # The file that names groups of classes may change; their number may not.
        own = {**run.recipe, _CLASSES: len(run.class_names), _IMAGES: _identify_images(run)}
        for recipe, members in groups:
            if not find_differences(recipe, own):
                members.append(index)
                break
        else:
            groups.append((own, [index]))
    methods = [""] * len(runs)
    taken: set[str] = set()
    for name, groups in by_name.items():
        recipes = [recipe for recipe, _ in groups]
        titles = _titles(_without_loss(name, recipes), recipes)
        if taken & set(titles):
            titles = _titles(name, recipes)
        taken |= set(titles)
        for title, (_, members) in zip(titles, groups, strict=True):
            for index in members:
                methods[index] = title
    return methods


def _identify_images(run: RunData) -> str | None:
    """The fingerprint of the test images; that of validation images may depend on the seed."""
    is_test = run.data.get("split") == "test"
    return str(run.data["eval_fingerprint"]) if is_test and "eval_fingerprint" in run.data else None


def find_differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Return the keys in which two recipes train differently; the seed is not compared.

    A key that only one of them has counts unless its value switches nothing on: an older version
    of protosphere may not have had it.

    Args:
        one: Recipe as plain values.
        other: Recipe as plain values.

    >>> find_differences({"loss": {"name": "ce"}, "seed": 1}, {"loss": {"name": "nonl"}, "seed": 2})
    ['loss.name']
    """
    left, right = flatten(one), flatten(other)
    return [
        key
        for key in dict.fromkeys([*left, *right])
        if key not in ("name", "seed") and is_compared(key) and _differ(key, left, right)
    ]


def _differ(key: str, left: Mapping[str, Any], right: Mapping[str, Any]) -> bool:
    if _is_unknown(key, left) or _is_unknown(key, right):
        return False
    if key in left and key in right:
        return bool(left[key] != right[key])
    value = left[key] if key in left else right[key]
    return not _is_off(value) and value != _DEFAULTS.get(key)


def _is_unknown(key: str, recipe: Mapping[str, Any]) -> bool:
    """Whether classes or images are not known, because classes.json or data.json is missing."""
    return key in (_CLASSES, _IMAGES) and not recipe.get(key)


def _is_off(value: object) -> bool:
    return value in (None, False, 0, "none", "auto") or value == []


def _without_loss(name: str, recipes: Sequence[Mapping[str, Any]]) -> str:
    """A name less the loss at its end, if recipes of this name have several losses.

    >>> recipes = [{"loss": {"name": "normface"}}, {"loss": {"name": "nonl"}}]
    >>> _without_loss("photos-normface", recipes), _without_loss("photos-normface", recipes[:1])
    ('photos', 'photos-normface')
    """
    losses = {str(flatten(recipe).get(_LOSS)) for recipe in recipes}
    start, _, end = name.rpartition("-")
    return start if start and len(losses) > 1 and end in losses else name


def _titles(name: str, recipes: Sequence[Mapping[str, Any]]) -> list[str]:
    """The name of a recipe, with settings if several recipes have it."""
    if len(recipes) == 1:
        return [name]
    flat = [flatten(recipe) for recipe in recipes]
    keys = list(
        dict.fromkeys(key for recipe in recipes for key in find_differences(recipes[0], recipe))
    )
    # A fingerprint says nothing to a reader: it is shown if nothing else tells the methods apart.
    keys = _without_implied([key for key in keys if key != _IMAGES], flat)
    # Loss and number of classes are named where they differ, even if other keys tell the methods
    # apart.
    keys.sort(key=lambda key: (key != _LOSS) + (key == _CLASSES))
    if len(keys) > _MAX_KEYS:
        sufficient = _sufficient([key for key in keys if key != _CLASSES], flat)
        keys = [key for key in keys if key in sufficient or key in (_LOSS, _CLASSES)]
    for shown in (keys, [*keys, _IMAGES]):
        titles = [_title(name, recipe, shown, flat) for recipe in flat]
        if len(set(titles)) == len(titles):
            return titles
    return [f"{title}, variant {index + 1}" for index, title in enumerate(titles)]


def _title(
    name: str, recipe: Mapping[str, Any], keys: Sequence[str], recipes: Sequence[Mapping[str, Any]]
) -> str:
    """A name with the settings of a recipe, less those that are off or those of most recipes."""
    settings = []
    for key in keys:
        value = recipe.get(key)
        known = [other.get(key) for other in recipes if not _is_unknown(key, other)]
        is_usual = known.count(value) > len(known) / 2 and len(recipes) > _MAX_KEYS
        if key == _LOSS and value is not None:
            settings.append(str(value))
        elif key == _IMAGES and value is not None:
            settings.append(f"images {str(value)[:_SHOWN]}")
        elif not _is_off(value) and not is_usual:
            settings.append(f"{_short_key(key)}={value}")
    return f"{name} ({', '.join(settings)})" if settings else name


def _without_implied(keys: Sequence[str], recipes: Sequence[Mapping[str, Any]]) -> list[str]:
    """The keys less those that only some choices have, and that follow from the choice.

    >>> recipes = [{"loss.name": "ntce"}, {"loss.name": "nonl", "loss.negatives": "samples"}]
    >>> _without_implied(["loss.name", "loss.negatives"], recipes)
    ['loss.name']
    """

    def follows(key: str, other: str) -> bool:
        pairs = {(str(recipe.get(other)), str(recipe.get(key))) for recipe in recipes}
        return len(pairs) == len({value for value, _ in pairs})

    def is_partial(key: str) -> bool:
        return any(recipe.get(key) is None for recipe in recipes)

    kept = list(keys)
    for key in keys:
        section = key.rpartition(".")[0]
        choice = f"{section}.name"
        siblings = [one for one in kept if one != key and one.rpartition(".")[0] == section]
        if key != choice:
            implied = choice in siblings and is_partial(key) and follows(key, choice)
        else:
            # The name of a kind of label noise follows from its fraction, unless there are several.
            others = [one for one in siblings if not (is_partial(one) and follows(one, choice))]
            implied = key != _LOSS and is_partial(key) and any(follows(key, one) for one in others)
        if implied:
            kept.remove(key)
    return kept


def _short_key(key: str) -> str:
    """The end of a dotted path that says what a key is.

    >>> _short_key("schedule.epochs"), _short_key("data.label_noise.fraction")
    ('epochs', 'label_noise.fraction')
    """
    section, *parts = key.removesuffix(".name").split(".")
    return ".".join(parts) or section


def _sufficient(keys: Sequence[str], recipes: Sequence[Mapping[str, Any]]) -> list[str]:
    """A few of the keys whose values tell the recipes apart."""
    chosen: list[str] = []

    def num_groups(selection: Sequence[str]) -> int:
        return len({tuple(str(recipe.get(key)) for key in selection) for recipe in recipes})

    while num_groups(chosen) < len(recipes):
        best = max(keys, key=lambda key: num_groups([*chosen, key]))
        if num_groups([*chosen, best]) == num_groups(chosen):
            break
        chosen.append(best)
    return [key for key in keys if key in chosen]
