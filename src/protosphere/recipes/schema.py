"""What a recipe can say: frozen models, unknown keys refused with the nearest name, YAML in and out."""

import difflib
from collections.abc import Sequence
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator


class RecipeError(ValueError):
    """A recipe makes no sense; the sentence says where and why."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Data(_Part):
    """Where images come from."""

    source: Literal["digits", "mnist", "fashion-mnist", "cifar10", "cifar100", "arrays"]
    root: str = "data"
    path: str | None = None
    validation_share: float = Field(0.0, ge=0, lt=1)


class Encoder(_Part):
    """What turns them into features."""

    backbone: str = "resnet18"
    stem: Literal["imagenet", "cifar"] = "cifar"
    neck: Literal["none", "batchnorm", "linear"] = "none"


LossKind = Literal["ce", "normface", "ntce", "nonl", "etf-dr"]


class Loss(_Part):
    """What is minimised, and so which head there is."""

    kind: LossKind
    temperature: float = Field(0.1, gt=0)
    label_smoothing: float = Field(0.0, ge=0, lt=1)


class Optimisation(_Part):
    """How it is minimised."""

    epochs: int = Field(1000, ge=1)
    batch: int = Field(512, ge=1)
    optimizer: Literal["sgd", "adamw"] = "sgd"
    rate: float = Field(0.2, gt=0)
    momentum: float = Field(0.9, ge=0, lt=1)
    weight_decay: float = Field(1e-4, ge=0)
    schedule: Literal["cosine", "steps", "constant"] = "cosine"
    final_share: float = Field(1e-3, ge=0, le=1)
    warmup_epochs: int = Field(0, ge=0)
    clip: float | None = Field(None, gt=0)
    precision: Literal["float32", "bfloat16"] = "float32"


class Views(_Part):
    """What is done to the images on the way."""

    size: int = Field(32, ge=1)
    crop: Literal["resized", "padded", "none"] = "resized"
    scale: tuple[float, float] = (0.2, 1.0)
    padding: int = Field(4, ge=0)
    flip: float = Field(0.5, ge=0, le=1)


class Recipe(_Part):
    """A whole run."""

    name: str
    data: Data
    loss: Loss
    encoder: Encoder = Encoder()
    optimisation: Optimisation = Optimisation()
    views: Views = Views()
    evaluate_every: int = Field(10, ge=1)
    seed: int = 42

    @model_validator(mode="after")
    def _fits_together(self) -> "Recipe":
        if self.optimisation.warmup_epochs >= self.optimisation.epochs:
            raise ValueError("optimisation.warmup_epochs must be fewer than optimisation.epochs")
        if self.loss.label_smoothing and self.loss.kind != "ce":
            raise ValueError("loss.label_smoothing is for the loss ce alone")
        if self.data.source == "arrays" and self.data.path is None:
            raise ValueError("data.path must name the file of arrays")
        return self

    def to_yaml(self) -> str:
        """The recipe as text that :func:`from_yaml` reads."""
        text: str = yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
        return text


def from_yaml(text: str) -> Recipe:
    """Read a recipe.

    Raises:
        RecipeError: it is no YAML, or says what no recipe can say.
    """
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        line = getattr(getattr(error, "problem_mark", None), "line", None)
        where = "" if line is None else f" (line {line + 1})"
        raise RecipeError(f"a recipe must be YAML; it is none{where}") from error
    if not isinstance(content, dict):
        raise RecipeError("a recipe must be a mapping of names to values; it is none")
    return validated(content)


def validated(content: dict[str, Any]) -> Recipe:
    """A recipe from plain values. Raises RecipeError with one sentence."""
    try:
        return Recipe.model_validate(content)
    except ValidationError as error:
        raise RecipeError(_sentence(error)) from None


def with_settings(recipe: Recipe, settings: Sequence[str]) -> Recipe:
    """A recipe with some values replaced.

    Args:
        recipe: to start from.
        settings: each ``dotted.path=value``, the value as YAML has it.

    Raises:
        RecipeError: there is no such path, or no such value.
    """
    content = recipe.model_dump(mode="json")
    for setting in settings:
        path, equals, value = setting.partition("=")
        if not equals:
            raise RecipeError(f"a setting must read path=value; got {setting!r}")
        *parents, last = path.strip().split(".")
        place = content
        for depth, name in enumerate([*parents, last]):
            if not isinstance(place, dict) or name not in place:
                known = list(place) if isinstance(place, dict) else []
                raise RecipeError(_unknown(".".join([*parents, last][: depth + 1]), name, known))
            if depth < len(parents):
                place = place[name]
        try:
            place[last] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise RecipeError(f"the value of {path} must be YAML; got {value!r}") from error
    return validated(content)


def _unknown(path: str, name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, 1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}" if known else "nothing is below it"
    return f"a recipe has no {path}; {hint}"


def _sentence(error: ValidationError) -> str:
    """The first problem of several, in words."""
    problem = error.errors()[0]
    path = [str(part) for part in problem["loc"]]
    if problem["type"] == "extra_forbidden":
        model: type[BaseModel] = Recipe
        for name in path[:-1]:
            annotation = model.model_fields[name].annotation
            if isinstance(annotation, type) and issubclass(annotation, BaseModel):
                model = annotation
        return _unknown(".".join(path), path[-1], list(model.model_fields))
    if problem["type"] == "value_error":
        return str(problem["ctx"]["error"])
    if problem["type"] == "missing":
        return f"a recipe must say {'.'.join(path)}; it does not"
    message = problem["msg"]
    return f"{'.'.join(path)} must be otherwise: {message[0].lower()}{message[1:]}; got {problem['input']!r}"
