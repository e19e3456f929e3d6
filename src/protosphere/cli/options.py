"""Arguments and options that several commands share, and how ``--help`` shows them."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperCommand, TyperGroup

from protosphere.cli.text import printable

# Typer does not export this class, whose place has changed between its versions.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]
# Commands that have --set for keys of recipes.
_WITH_RECIPES = ("sweep", "train", "recipes", "compare", "reproduce")
_DEVICE = re.compile(r"auto|cpu|mps|cuda(:\d+)?")


class Command(TyperCommand):
    """A command whose help shows no type after a flag."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters, flags without a placeholder for a value."""
        return _without_flag_types(super().get_params(ctx))


class Group(TyperGroup):
    """A group of commands whose help shows no type after a flag, and whose errors are printable."""

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        """Parse the arguments of the group."""
        with _printable_errors():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        """Parse the arguments of a command and run it."""
        with _printable_errors():
            return super().invoke(ctx)

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters, flags without a placeholder for a value."""
        return _without_flag_types(super().get_params(ctx))


@contextmanager
def _printable_errors() -> Iterator[None]:
    """Make control characters in errors of the parser visible, and name keys of recipes."""
    try:
        yield
    except _UsageError as error:
        # Pydantic, which checks values for Typer, begins its messages with "Value error".
        message = printable(error.message).replace("Value error, ", "")  # type: ignore[attr-defined]
        key = _find_recipe_key(error)
        if key is not None:
            message = f"{message.rstrip('.')}; a recipe's key is set with --set {key}=VALUE"
            error.possibilities = None  # type: ignore[attr-defined]
        error.message = message  # type: ignore[attr-defined]
        raise


def _find_recipe_key(error: Any) -> str | None:
    """The key of a recipe that an unknown option of a command with recipes is probably for."""
    option = getattr(error, "option_name", None)
    if option is None or getattr(error.ctx, "info_name", None) not in _WITH_RECIPES:
        return None
    try:
        from protosphere.recipes.loading import read_recipe
        from protosphere.recipes.schema.errors import HABITS
    except ImportError:  # The packages of training are not installed.
        return None
    word = option.lstrip("-").replace("-", "_")
    sections: list[tuple[str, Any]] = [("", read_recipe("digits-ce").model_dump())]
    for prefix, section in sections:
        for key, value in section.items():
            if isinstance(value, dict):
                sections.append((f"{prefix}{key}.", value))
            elif key == word:
                return f"{prefix}{key}"
    return HABITS.get(word)


def _without_flag_types(params: list[Any]) -> list[Any]:
    for param in params:
        if getattr(param, "is_flag", False) and param.metavar is None:
            param.metavar = ""
    return params


def _check_device(value: str) -> str:
    if not _DEVICE.fullmatch(value):
        raise typer.BadParameter(f"{value!r} is not one of auto, cpu, cuda, cuda:N, mps.")
    return value


def _complete_device() -> list[str]:
    return ["auto", "cpu", "cuda", "mps"]


def complete_recipe() -> list[str]:
    """Return the names of all recipes, for shell completion."""
    from protosphere.recipes import catalog

    return list(catalog.names())


RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="Run folder written by `train`.")]
CheckpointChoice = Annotated[
    Literal["best", "last"] | None,
    typer.Option(
        "--checkpoint",
        help="Checkpoint to load: the best by the metric that the recipe monitors, or the last. "
        "By default the best if the recipe monitors a metric.",
    ),
]
RecipeName = Annotated[
    str | None,
    typer.Argument(
        metavar="RECIPE",
        help="Name of a recipe (see `protosphere recipes`), or a YAML file.",
        autocompletion=complete_recipe,
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="<key=value>",
        help="Override a key of the recipe, for example optimizer.lr=0.1; may be repeated.",
    ),
]
DataOverrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="<key=value>",
        help="Override where the data are, for example data.root=PATH; may be repeated.",
    ),
]
Device = Annotated[
    str,
    typer.Option(
        metavar="<auto|cpu|cuda[:N]|mps>",
        help="Device to compute on; auto is the GPU if there is one, otherwise the CPU.",
        callback=_check_device,
        autocompletion=_complete_device,
    ),
]
Download = Annotated[
    bool, typer.Option("--download", help="Download the dataset if it is not there.")
]
# The largest seed, and the largest number of images in a batch.
MAX_INTEGER = 2**31 - 1
BatchSize = Annotated[int, typer.Option(help="Number of images per batch.", min=1, max=MAX_INTEGER)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
TableFormat = Literal["csv", "json"]
Format = Annotated[
    TableFormat | None,
    typer.Option(
        "--format",
        help="Output format. In CSV, a name that begins with =, +, -, @, a tab or a carriage "
        "return gets a leading apostrophe, so that spreadsheets do not take it for a formula; "
        "control characters are escaped. JSON has names unchanged.",
        show_default="csv",
    ),
]
