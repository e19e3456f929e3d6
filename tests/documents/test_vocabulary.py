"""Public names use the words of the field: no name, argument, recipe key or option of our own.

The words are those that the project used before 0.2 and has replaced. Ordinary prose is free to use
them, and so is ``FixedFrameClassifier``.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from protosphere.cli.app import app
from protosphere.recipes.schema import Recipe
from support.documents import ROOT

SOURCE = ROOT / "src/protosphere"
# Not as a whole name; as a part of one they may be the word of the field (``batch_size``).
REPLACED_NAMES = {
    "rate": "lr",
    "batch": "batch_size",
    "clip": "grad_clip",
    "average": "ema_decay",
    "accumulate": "micro_batch_size",
    "execution": "compile",
    "final_share": "min_lr_ratio",
    "views": "augmentation",
    "part": "split",
    "pull": "positives",
    "leave_out": "exclude",
    "Samples": "Targets",
    "stored": "measure",
    "Evidence": "MetricInputs",
    "Frame": "CenteredVectors",
    "Suite": "MetricResults",
    "resolution": "input_eps",
    "execute": "run_recipe",
    "trained": "load_run",
    "assess": "evaluate",
    "decisions": "predictions",
    "Probed": "ProbeResult",
    "middle": "center_crop",
    "take": "set_means",
    "forget": "reset",
    "has_means": "is_fitted",
    "separated_code": "spherical_code",
    "test_accuracy": "accuracy",
}
# Not even as a part of a name.
REPLACED_WORDS = {
    "share": "fraction",
    "feed": "loader",
    "feeds": "loaders",
    "pulled": "positive_logits",
    "partners": "positive_index",
    "slots": "compact labels",
    "visits": "two_pass",
    "examine": "measure_detailed",
    "spreads": "sum_sq_dev",
    "panels": "scatter_tiles",
    "bridges": "mean_shifts",
    "facts": "metadata",
    "told": "report_errors",
    "stoppable": "catch_signals",
    "neighbours": "knn",
    "decoded": "decode_image",
    "rooms": "packages",
    "doors": "ways to call it",
}
REPLACED_MODULES = {"anchors": "targets", "slots": "targets", "suite": "formulas"}
BRITISH = re.compile(
    r"colou?r(?<!color)|gr[e]y|cent(re|red)\b|(normal|optim|initial|regular)is|behaviour|neighbour"
)


def _complaint(name: str) -> str | None:
    """Return the word to use instead of a name, or None if the name is fine."""
    if name in REPLACED_NAMES:
        return REPLACED_NAMES[name]
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().split("_")
    for word in words:
        if word in REPLACED_WORDS:
            return REPLACED_WORDS[word]
    if name.startswith("see_that_"):
        return "check_*"
    return "American spelling" if BRITISH.search(name.lower()) else None


def _arguments(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    arguments = function.args
    for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        annotation = ast.unparse(argument.annotation) if argument.annotation else ""
        # A batch of tensors is called a batch; a number of samples is a batch_size.
        if argument.arg != "batch" or "int" in annotation:
            yield argument.arg


def _names(body: list[ast.stmt]) -> Iterator[str]:
    """Yield the public names, arguments, fields and methods that statements define."""
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            if not statement.name.startswith("_") or statement.name in ("__init__", "__call__"):
                yield statement.name
                yield from _arguments(statement)
        elif isinstance(statement, ast.ClassDef):
            if not statement.name.startswith("_"):
                yield statement.name
                yield from _names(statement.body)
        elif isinstance(statement, ast.Assign | ast.AnnAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            yield from (target.id for target in targets if isinstance(target, ast.Name))
        elif isinstance(statement, ast.If):
            yield from _names([*statement.body, *statement.orelse])


def _public(names: Iterator[str]) -> set[str]:
    return {name for name in names if not name.startswith("_")}


@pytest.mark.parametrize(
    "path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE))
)
def test_public_names_and_arguments(path: Path) -> None:
    names = _public(_names(ast.parse(path.read_text(encoding="utf-8")).body))
    complaints = {name: word for name in names if (word := _complaint(name))}
    assert not complaints


def test_modules() -> None:
    for path in SOURCE.rglob("*.py"):
        assert path.stem not in REPLACED_MODULES, path
        assert _complaint(path.stem) is None, path


def _keys(schema: dict[str, Any]) -> Iterator[str]:
    for node in (schema, *schema.get("$defs", {}).values()):
        yield from node.get("properties", {})


def test_recipe_keys() -> None:
    keys = set(_keys(Recipe.model_json_schema()))
    assert {"lr", "batch_size", "epochs", "temperature"} <= keys
    assert not {key: word for key in keys if (word := _complaint(key))}


def _options(command: Any) -> Iterator[str]:
    for parameter in command.params:
        yield str(parameter.name)
        yield from (option.strip("-").replace("-", "_") for option in parameter.opts)
    for name, child in getattr(command, "commands", {}).items():
        yield name.replace("-", "_")
        yield from _options(child)


def test_command_line_options() -> None:
    options = set(_options(typer.main.get_command(app)))
    assert {"train", "resume", "out"} <= options
    assert not {option: word for option in options if (word := _complaint(option))}


def test_records_do_not_call_a_figure_test_accuracy() -> None:
    for path in SOURCE.rglob("*.py"):
        assert "test_accuracy" not in path.read_text(encoding="utf-8"), path


@pytest.mark.parametrize(
    "name",
    ["rate", "validation_share", "PulledLogits", "see_that_it_fits", "colour", "normalised"],
)
def test_the_check_notices_a_replaced_word(name: str) -> None:
    assert _complaint(name)


@pytest.mark.parametrize(
    "name", ["batch_size", "FixedFrameClassifier", "centered", "color_jitter", "optimizer"]
)
def test_the_check_accepts_the_words_of_the_field(name: str) -> None:
    assert _complaint(name) is None
