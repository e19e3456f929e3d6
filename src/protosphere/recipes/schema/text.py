"""Recipes from YAML, overrides such as ``optimizer.lr=0.1``, and comparison of two recipes."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from protosphere.recipes.schema.errors import RecipeError, sentence
from protosphere.recipes.schema.keys import section_members
from protosphere.recipes.schema.recipe import Recipe
from protosphere.runs.recipe_keys import flatten, is_compared

# A file of weights may have been moved, but pretrained models normalize images in their own way.
_PRETRAINED = "model.backbone.pretrained"
# What tells recipes of version 0.1 from those since.
_SECTIONS_OF_0_1 = ("optimisation", "views", "encoder")
_SECTIONS_SINCE_0_2 = ("augmentation", "model", "optimizer", "schedule", "training")


class _DuplicateKeyError(yaml.YAMLError):  # type: ignore[misc]
    pass


class _UniqueKeyLoader(yaml.SafeLoader):  # type: ignore[misc]
    """YAML's safe loader that refuses a key that appears twice and reads 1e-3 as a number."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        if isinstance(node, yaml.MappingNode):
            keys = [self.construct_object(key, deep=True) for key, _ in node.value]
            double = next((key for index, key in enumerate(keys) if key in keys[:index]), None)
            if double is not None:
                raise _DuplicateKeyError(
                    f"a recipe must set each key once, but {double} is set twice"
                )
        return super().construct_mapping(node, deep=deep)


# YAML 1.1 takes a number without a decimal point, such as 1e-3, for a string.
_UniqueKeyLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9]+[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def recipe_from_yaml(text: str, path: Path | None = None) -> Recipe:
    """Read a recipe from YAML.

    Args:
        text: The YAML document.
        path: File that the text is from, for error messages.

    Raises:
        RecipeError: It is not YAML, or not a valid recipe.
    """
    try:
        return _read(text)
    except RecipeError as error:
        raise (error if path is None else RecipeError(f"{path}: {error}")) from None


def _read(text: str) -> Recipe:
    try:
        content = yaml.load(text, _UniqueKeyLoader)
    except _DuplicateKeyError as error:
        raise RecipeError(str(error)) from None
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        line = getattr(getattr(error, "problem_mark", None), "line", None)
        where = "" if line is None else f" (line {line + 1})"
        raise RecipeError(f"a recipe must be valid YAML{where}") from None
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise RecipeError("a recipe must be a mapping of keys to values")
    _refuse_0_1(content)
    return validate(content)


def validate(content: dict[str, Any]) -> Recipe:
    """Create a recipe from plain values.

    Raises:
        RecipeError: The values are not a valid recipe; one sentence says why.
    """
    try:
        return Recipe.model_validate(content)
    except ValidationError as error:
        raise RecipeError(sentence(error, content, Recipe)) from None
    except RecursionError:
        raise RecipeError("a recipe must not be nested this deeply") from None


def _refuse_0_1(content: dict[str, Any]) -> None:
    if any(key in content for key in _SECTIONS_SINCE_0_2):
        return
    loss = content.get("loss")
    old = [key for key in _SECTIONS_OF_0_1 if isinstance(content.get(key), dict)]
    if isinstance(loss, dict) and "kind" in loss:
        old.append("loss.kind")
    if old:
        raise RecipeError(
            f"this recipe is of protosphere 0.1 (it has {old[0]}), whose keys were renamed in 0.2; "
            "`protosphere recipes NAME` prints recipes in the present form"
        )


def apply_overrides(recipe: Recipe, overrides: Sequence[str]) -> Recipe:
    """Return a copy of a recipe with some values replaced.

    Where an override names another member of a section (``loss.name=ce``), keys that the new
    member does not have are dropped, unless another override sets them.

    Args:
        recipe: The recipe to start from.
        overrides: Each ``dotted.path=value``, the value as YAML.

    Raises:
        RecipeError: A path does not exist, or a value is not valid.
    """
    content = recipe.model_dump(mode="json")
    overrides = [overrides] if isinstance(overrides, str) else overrides
    parsed = [_parse(override) for override in overrides]
    for path, value in parsed:
        if path[-1] in ("name", "source") and len(path) > 1 and isinstance(value, str):
            _keep_applicable(content, path, value)
    for path, value in parsed:
        _set(content, path, value)
    return validate(content)


def _parse(override: str) -> tuple[list[str], Any]:
    path, equals, value = override.partition("=")
    if not equals or not all(part.strip() for part in path.split(".")):
        raise RecipeError(f"an override must have the form key=value, got {override!r}")
    try:
        return [part.strip() for part in path.split(".")], parse_value(value)
    except RecipeError:
        raise RecipeError(f"the value of {path} must be valid YAML, got {value!r}") from None


def parse_value(text: str) -> Any:
    """Return a value that is written as YAML, as in a recipe.

    Args:
        text: The YAML text.

    Raises:
        RecipeError: It is not valid YAML.

    >>> parse_value("1e-3"), parse_value("[null, {name: mixup}]")
    (0.001, [None, {'name': 'mixup'}])
    """
    try:
        return yaml.load(text, _UniqueKeyLoader)
    except (yaml.YAMLError, ValueError, TypeError, RecursionError):
        raise RecipeError(f"a value must be valid YAML, got {text!r}") from None


def _keep_applicable(content: dict[str, Any], path: Sequence[str], value: str) -> None:
    """Drop the keys of a section that its new member does not have."""
    section: Any = content
    for part in path[:-1]:
        section = section.get(part) if isinstance(section, dict) else None
    members = section_members(Recipe, ".".join(path[:-1]))
    if not isinstance(section, dict) or value not in members or section.get(path[-1]) == value:
        return
    for key in [key for key in section if key not in members[value]]:
        del section[key]


def _set(content: dict[str, Any], path: Sequence[str], value: Any) -> None:
    section: Any = content
    for depth, part in enumerate(path[:-1]):
        if section.get(part) is None and (part in section or depth):
            section[part] = {}
        if part in section and not isinstance(section[part], dict):
            name = ".".join(path[: depth + 1])
            raise RecipeError(f"a recipe has no {'.'.join(path)}; {name} is a value, not a section")
        section = section.setdefault(part, {})
    section[path[-1]] = value


def compare_texts(there: str, here: str) -> str | None:
    """Return where two recipes in YAML first differ in what they train, or None.

    Args:
        there: The recipe that is there. It may be of another version: its error is the difference.
        here: The recipe that is given.
    """
    try:
        return find_difference(recipe_from_yaml(there), recipe_from_yaml(here))
    except RecipeError as error:
        return str(error)


def find_difference(one: Recipe, other: Recipe) -> str | None:
    """Return where two recipes first differ in what they train, or None.

    Keys that only say where data are or how a run is watched are not compared.

    Args:
        one: The recipe that is there.
        other: The recipe that is given.
    """
    left, right = (flatten(recipe.model_dump(mode="json")) for recipe in (one, other))
    for path in dict.fromkeys([*left, *right]):
        if not is_compared(path):
            continue
        there, here = left.get(path), right.get(path)
        if there != here and not (path == _PRETRAINED and there and here):
            return f"{path} is {there} there and {here} here"
    return None


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of recipes, for editors."""
    return Recipe.model_json_schema()
