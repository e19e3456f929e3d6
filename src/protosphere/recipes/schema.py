"""What a recipe can say: frozen models, unknown keys refused with the nearest name, YAML in and out."""

import difflib
from collections.abc import Sequence
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_core import PydanticCustomError


class RecipeError(ValueError):
    """A recipe makes no sense; the sentence says where and why."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth(cls, value: Any) -> Any:
        """Nothing in a recipe is true or false; where a number is due, they would pass for 1 and 0."""
        if isinstance(value, bool):
            raise PydanticCustomError("truth", "input should be neither true nor false")
        return value


class Data(_Part):
    """Where images come from."""

    source: Literal[
        "digits", "mnist", "fashion-mnist", "cifar10", "cifar100", "arrays", "folder", "synthetic"
    ]
    root: str = Field("data", description="The folder of downloaded sets.")
    path: str | None = Field(
        None, description="Of arrays: the .npz file. Of folder: the folder with train and val."
    )
    classes: str | None = Field(
        None, description="Of folder: a text file with the names of the classes to take."
    )
    workers: int = Field(8, ge=0, description="Of folder: processes that read images.")
    validation_share: float = Field(
        0.0, ge=0, lt=1, description="Held out of the training part, in the test's place."
    )
    num_classes: int = Field(10, ge=2, description="Of synthetic.")
    samples: int = Field(1000, ge=2, description="Of synthetic, in each part.")
    resolution: int = Field(32, ge=1, description="Of synthetic, in pixels.")


class Encoder(_Part):
    """What turns them into features."""

    backbone: str = "resnet18"
    stem: Literal["imagenet", "cifar"] = "cifar"
    neck: Literal["none", "batchnorm", "linear"] = "none"
    projection: Literal["none", "linear", "mlp"] = Field(
        "none", description="Between the encoder and the loss."
    )
    projection_hidden: int | None = Field(
        None, ge=1, description="Of the mlp; null for the width of the features."
    )
    projection_dim: int = Field(128, ge=1, description="What comes out of a projection.")


LossKind = Literal["ce", "normface", "ntce", "nonl", "etf-dr", "scl", "proto"]


class Loss(_Part):
    """What is minimized, and so which head there is."""

    kind: LossKind
    temperature: float = Field(0.1, gt=0)
    label_smoothing: float = Field(0.0, ge=0, lt=1)


class Optimization(_Part):
    """How it is minimized."""

    epochs: int = Field(1000, ge=1)
    batch: int = Field(512, ge=2)
    accumulate: int = Field(
        1, ge=1, description="Pieces of a batch whose gradients are added before a step."
    )
    optimizer: Literal["sgd", "adamw"] = "sgd"
    rate: float = Field(0.2, gt=0)
    momentum: float = Field(0.9, ge=0, lt=1)
    weight_decay: float = Field(1e-4, ge=0)
    schedule: Literal["cosine", "steps", "constant"] = "cosine"
    final_share: float = Field(
        1e-3, ge=0, le=1, description="Of the cosine: its last rate by its first."
    )
    milestones: tuple[int, ...] = Field((), description="Of the steps, in epochs.")
    gamma: float = Field(0.2, gt=0, description="Of the steps: the factor at each milestone.")
    warmup_epochs: int = Field(0, ge=0)
    warmup_rate: float = Field(0.01, gt=0, description="Where the warm-up begins.")
    clip: float | None = Field(
        None, gt=0, description="The length beyond which gradients are shortened."
    )
    average: float | None = Field(
        None, gt=0, lt=1, description="The decay of a moving average of weights."
    )
    precision: Literal["float32", "bfloat16"] = "float32"
    execution: Literal["auto", "eager", "compiled"] = Field(
        "auto", description="auto: compiled on a GPU."
    )


class Views(_Part):
    """What is done to the images on the way."""

    size: int = Field(32, ge=1)
    crop: Literal["resized", "padded", "none"] = "resized"
    scale: tuple[float, float] = (0.2, 1.0)
    padding: int = Field(4, ge=0)
    flip: float = Field(0.5, ge=0, le=1)
    count: int = Field(1, ge=1, description="Views of each image in a batch.")
    jitter: tuple[float, float, float, float] = Field(
        (0, 0, 0, 0), description="Brightness, contrast, saturation, hue."
    )
    jitter_probability: float = Field(0.8, ge=0, le=1)
    gray_probability: float = Field(0.0, ge=0, le=1)
    blur_probability: float = Field(0.0, ge=0, le=1)


class Probe(_Part):
    """How linear layers are trained on features that no longer are."""

    epochs: int = Field(100, ge=1)
    batch: int = Field(512, ge=1)
    rate: float = Field(5.0, gt=0)
    milestones: tuple[int, ...] = Field(
        (60, 75, 90), description="Epochs after which the rate falls."
    )
    gamma: float = Field(0.2, gt=0, description="By how much.")


class Recipe(_Part):
    """A whole run."""

    name: str
    data: Data
    loss: Loss
    encoder: Encoder = Encoder()
    optimization: Optimization = Optimization()
    views: Views = Views()
    probe: Probe = Probe()
    evaluate_every: int = Field(10, ge=1, description="Epochs.")
    save_every: int = Field(10, ge=1, description="Epochs.")
    metrics: Literal["all", "cheap"] = Field(
        "all", description="cheap: what class sums give, while images stream."
    )
    seed: int = Field(42, ge=0, lt=2**31)

    @model_validator(mode="after")
    def _fits_together(self) -> "Recipe":
        how = self.optimization
        if how.batch % how.accumulate or how.batch < 2 * how.accumulate:
            raise ValueError(
                "optimization.accumulate must divide optimization.batch into pieces of two samples or more"
            )
        if how.schedule == "steps" and not how.milestones:
            raise ValueError("optimization.milestones must name epochs for the schedule of steps")
        if any(milestone < 1 for milestone in (*how.milestones, *self.probe.milestones)):
            raise ValueError("milestones must be epochs, from 1 on")
        if not 0 < self.views.scale[0] <= self.views.scale[1] <= 1:
            raise ValueError("views.scale must be two shares of the area, the smaller first")
        if (
            min(self.views.jitter) < 0
            or self.views.jitter[3] > 0.5
            or max(self.views.jitter[:3]) > 1
        ):
            raise ValueError(
                "views.jitter must be three strengths of 0 to 1 and a turn of the hue of 0 to 0.5"
            )
        if self.views.crop == "padded" and self.views.padding > self.views.size:
            raise ValueError("views.padding must not exceed views.size")
        if self.views.blur_probability and self.views.size < 4:
            raise ValueError("views.blur_probability is for images of four pixels or more")
        if self.optimization.warmup_epochs >= self.optimization.epochs:
            raise ValueError("optimization.warmup_epochs must be fewer than optimization.epochs")
        if self.loss.label_smoothing and self.loss.kind != "ce":
            raise ValueError("loss.label_smoothing is for the loss ce alone")
        if self.data.source in ("arrays", "folder") and self.data.path is None:
            raise ValueError(
                f"data.path must say where the data are for the source {self.data.source}"
            )
        if self.data.classes is not None and self.data.source != "folder":
            raise ValueError("data.classes is for the source folder alone")
        return self

    def to_yaml(self) -> str:
        """The recipe as text that :func:`from_yaml` reads."""
        text: str = yaml.safe_dump(
            self.model_dump(mode="json"), sort_keys=False, allow_unicode=True
        )
        return text


class _DoubleKeyError(yaml.YAMLError):  # type: ignore[misc]
    """A key stands twice; YAML would take the last."""


class _NoDoubles(yaml.SafeLoader):  # type: ignore[misc]
    """YAML's safe loader, but that a key may stand once only."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        twice = next((key for index, key in enumerate(keys) if key in keys[:index]), None)
        if twice is not None:
            raise _DoubleKeyError(f"a recipe must say each thing once; {twice} stands there twice")
        return super().construct_mapping(node, deep=deep)


def from_yaml(text: str) -> Recipe:
    """Read a recipe.

    Raises:
        RecipeError: it is no YAML, or says what no recipe can say.
    """
    try:
        content = yaml.load(text, _NoDoubles)
    except yaml.YAMLError as error:
        if isinstance(error, _DoubleKeyError):
            raise RecipeError(str(error)) from None
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
    made = validated(content)
    if made.loss.kind in ("ce", "etf-dr") and any(
        setting.startswith("loss.temperature") for setting in settings
    ):
        raise RecipeError(
            f"loss.temperature is for losses that have one; {made.loss.kind} has none"
        )
    return made


# What says where and how a run computes, not what: it may change when a run is resumed.
_CIRCUMSTANCES = {
    "data.root",
    "data.path",
    "data.classes",
    "data.workers",
    "optimization.execution",
    "evaluate_every",
}
_CIRCUMSTANCES |= {"save_every", "metrics", *(f"probe.{name}" for name in Probe.model_fields)}


def difference(one: Recipe, other: Recipe) -> str | None:
    """Where two recipes first differ in what they train, in words; None where they do not."""
    flat, flat_other = _flat(one.model_dump(mode="json")), _flat(other.model_dump(mode="json"))
    for path, value in flat.items():
        if path not in _CIRCUMSTANCES and flat_other[path] != value:
            return f"{path} is {value} there and {flat_other[path]} here"
    return None


def _flat(content: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in content.items():
        flat |= (
            _flat(value, f"{prefix}{name}.")
            if isinstance(value, dict)
            else {f"{prefix}{name}": value}
        )
    return flat


def _unknown(path: str, name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, 1)
    hint = (
        f"did you mean {near[0]}?"
        if near
        else f"there are {', '.join(known)}"
        if known
        else "nothing is below it"
    )
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
