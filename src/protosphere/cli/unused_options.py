"""Options that would have no effect beside others: refused, not ignored.

What permits something, such as ``--download`` and ``--overwrite``, is accepted where nothing needs
the permission, so that scripts can always give it.
"""

from collections.abc import Mapping, Sequence

from protosphere.runs.recipe_keys import is_compared


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
        overrides: Each ``dotted.path=value``.
        others: Sections and keys that have an effect, besides ``data``.

    Raises:
        ValueError: One of them has no effect.

    >>> check_data_overrides(["data.root=images"])
    """
    used = ("data", *others)
    for override in overrides:
        key = override.partition("=")[0].strip()
        is_used = any(f"{key}.".startswith(f"{one}.") for one in used)
        # Settings of training are refused when the run is loaded, with the value that it has.
        if not is_used and not is_compared(key):
            raise ValueError(
                f"--set {key} has no effect here: it must be a setting of {' or '.join(used)}"
            )
