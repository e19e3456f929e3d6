"""Options that would have no effect beside others: refused, not ignored."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from protosphere.runs.recipe_keys import is_compared

if TYPE_CHECKING:
    from protosphere.recipes.schema import Recipe


def refuse_unused(options: Mapping[str, object], because: str) -> None:
    """Refuse options that have no effect.

    Args:
        options: Value of each option by its name; None, False and an empty list were not given.
        because: Why they have no effect, the end of the sentence.

    Raises:
        ValueError: One of them was given.

    >>> refuse_unused({"--port": None}, "without --watch")
    >>> refuse_unused({"--port": 80}, "without --watch")
    Traceback (most recent call last):
    ValueError: --port has no effect without --watch
    """
    for name, value in options.items():
        if value is not None and value is not False and value != []:
            raise ValueError(f"{name} has no effect {because}")


def check_data_overrides(overrides: Sequence[str], *, others: Sequence[str] = ()) -> None:
    """Refuse values of ``--set`` that have no effect on a run that has been trained.

    Args:
        overrides: Each ``dotted.path=value``. Those of data say where they are.
        others: Further sections and keys that have an effect.

    Raises:
        ValueError: One of them has no effect.

    >>> check_data_overrides(["data.root=images"])
    """
    for override in overrides:
        key = override.partition("=")[0].strip()
        is_used = any(f"{key}.".startswith(f"{one}.") for one in ("data", *others))
        # What was trained is refused elsewhere, with what it was.
        if not is_used and not is_compared(key):
            raise ValueError(
                f"--set {key} has no effect here: only where the data are can be overridden"
            )


def check_download(recipes: "Iterable[Recipe]", *, download: bool) -> None:
    """Refuse ``--download`` for data that cannot be downloaded.

    Args:
        recipes: The recipes whose data are read.
        download: Whether ``--download`` was given.

    Raises:
        ValueError: It was, and the data of none of the recipes can be downloaded.
    """
    from protosphere.recipes.datasets import DATASETS

    sources = {recipe.data.source for recipe in recipes}
    if download and sources and not any(DATASETS[source].can_download for source in sources):
        raise ValueError(
            f"--download has no effect on data.source {', '.join(sorted(sources))}, which cannot "
            "be downloaded"
        )
