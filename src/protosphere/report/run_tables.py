"""Tables of what was run: each run with its data and machine, and the settings of each method."""

from collections.abc import Sequence
from typing import Any

from protosphere.report.benchmark_rows import describe_data
from protosphere.report.content import Table
from protosphere.report.curves import Method, finite
from protosphere.report.final_results import describe_evaluation, shows_last
from protosphere.report.read_run import section_value
from protosphere.report.run_shape import num_classes
from protosphere.report.sources import ReportData, RunData

UNKNOWN = "not recorded"
_ABSENT = "–"
# Column titles and where the setting is in a recipe.
_SETTINGS = (
    ("Loss", "loss", "name"),
    ("Temperature", "loss", "temperature"),
    ("Optimizer", "optimizer", "name"),
    ("Learning rate", "optimizer", "lr"),
    ("Weight decay", "optimizer", "weight_decay"),
    ("Schedule", "schedule", "name"),
    ("Epochs", "schedule", "epochs"),
    ("Batch size", "training", "batch_size"),
    ("Precision", "training", "precision"),
)


def create_runs(report: ReportData) -> Table:
    """Return the table of runs; what is the same for all of them is a sentence.

    Args:
        report: The runs.
    """
    has_best = any(not shows_last(run) for run in report.runs)
    rows = tuple(
        (
            run.name,
            _describe_state(run),
            describe_data(run),
            _classes(run),
            _count(run.data.get("num_train")),
            _count(run.data.get("num_eval")),
            str(run.machine.get("device") or UNKNOWN),
            package_version(run.machine, "torch"),
            str(run.machine.get("commit") or UNKNOWN),
            describe_evaluation(run) if has_best else _ABSENT,
            str(run.path) if report.names_folders else _ABSENT,
        )
        for run in report.runs
    )
    titles = (
        "Run",
        "State",
        "Data",
        "Classes",
        "Training images",
        "Evaluated images",
        "Device",
        "torch",
        "Commit",
        "Results of",
        "Folder",
    )
    always = ("Run", "Folder") if report.names_folders else ("Run",)
    meaning = "Each run with its data, the device it was trained on, and the commit of protosphere."
    return _without_common("Runs", meaning, titles, rows, always=always)


def _describe_state(run: RunData) -> str:
    epochs = section_value(run.recipe, "schedule", "epochs")
    if run.state == "unknown":
        return "not known"
    if run.state == "complete":
        last, planned = last_epoch(run), finite(epochs)
        is_early = planned is not None and last < planned
        return f"complete, stopped early at epoch {last}" if is_early else "complete"
    return f"{run.state}, epoch {last_epoch(run)} of {'?' if epochs is None else epochs}"


def _count(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else _ABSENT


def package_version(machine: Any, package: str) -> str:
    """Return the version of a package that a run was trained with.

    Args:
        machine: Content of ``machine.json``.
        package: Name of the package.
    """
    versions = machine.get("versions")
    return str((versions.get(package) if isinstance(versions, dict) else None) or UNKNOWN)


def create_settings(methods: Sequence[Method]) -> Table:
    """Return the table of the main settings of each method.

    Args:
        methods: The methods.
    """
    table = [
        [
            method.name,
            _backbone(method.runs[0]),
            *(_setting(method.runs[0], section, key) for _, section, key in _SETTINGS),
        ]
        for method in methods
    ]
    titles = ["Method", "Backbone", *(title for title, _, _ in _SETTINGS)]
    meaning = "The main settings of each recipe; recipe.yaml in a run folder has all of them."
    return _without_common("Settings", meaning, titles, table, always=("Method", "Loss"))


def _without_common(
    title: str,
    meaning: str,
    titles: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    always: Sequence[str],
) -> Table:
    """A table in which columns with one value for all rows are a sentence instead."""
    common = [
        column
        for column, name in enumerate(titles)
        if name not in always
        and len({row[column] for row in rows}) == 1
        and (len(rows) > 1 or rows[0][column] == _ABSENT)
    ]
    if len(common) == len(titles) - 1:
        common = common[2:]  # Names alone are no table.
    kept = [column for column in range(len(titles)) if column not in common]
    shown = [
        f"{titles[column]}: {rows[0][column]}" for column in common if rows[0][column] != _ABSENT
    ]
    if shown:
        meaning += f" The same for all: {'; '.join(shown)}."
    return Table(
        title,
        meaning,
        tuple(titles[column] for column in kept),
        tuple(tuple(row[column] for column in kept) for row in rows),
    )


def _backbone(run: RunData) -> str:
    backbone = section_value(run.recipe, "model", "backbone")
    if not isinstance(backbone, dict):
        return _ABSENT
    pretrained = " (pretrained)" if backbone.get("pretrained") else ""
    return f"{backbone.get('name')}{pretrained}"


def _setting(run: RunData, section: str, key: str) -> str:
    value = section_value(run.recipe, section, key)
    if isinstance(value, float):
        return f"{value:g}"
    return _ABSENT if value is None else str(value)


def _classes(run: RunData) -> str:
    count = num_classes(run)
    return _ABSENT if count is None else str(count)


def last_epoch(run: RunData) -> int:
    """Return the last epoch that a run has records of, or 0.

    Args:
        run: The run.
    """
    epochs = (finite(record.get("epoch")) for record in run.records)
    return round(max((epoch for epoch in epochs if epoch is not None), default=0))
