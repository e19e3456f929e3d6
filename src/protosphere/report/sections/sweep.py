"""The section on sweeps: phase diagrams, the best settings, and all trials."""

from collections.abc import Mapping

from protosphere.report.content import Block, Choice, Note, Section, Table
from protosphere.report.curves import finite, shorten
from protosphere.report.metric_text import is_percentage
from protosphere.report.phase_diagram import describe_region, format_number
from protosphere.report.sources import ReportData
from protosphere.report.summaries import MISSING
from protosphere.report.sweep_plots import draw_diagram
from protosphere.runs.sweeps import SweepRecord, SweepTrial

_MAX_ERROR = 200
# Rows of the table; further trials are worse than these.
_MAX_TRIALS = 300


def create_section(report: ReportData) -> Section | None:
    """Return the section, or None if there is no sweep.

    Args:
        report: The report.
    """
    if not report.sweeps:
        return None
    blocks: list[Block] = [_create_overview(report.sweeps)] if len(report.sweeps) > 1 else []
    for index, (name, record) in enumerate(report.sweeps.items()):
        blocks += show_sweep(
            f"sweep-{index}", record, f"{name}: " if len(report.sweeps) > 1 else ""
        )
    return Section(
        "sweep",
        "Sweep of settings" if len(report.sweeps) == 1 else "Sweeps of settings",
        "A recipe trained with many settings, which are compared on validation images; test images "
        "were not used.",
        tuple(blocks),
    )


def show_sweep(name: str, record: SweepRecord, title: str = "") -> list[Block]:
    """Return what a report shows of a sweep.

    Args:
        name: Identifier in the page.
        record: The record of the sweep.
        title: Text before titles, if there are several sweeps.
    """
    # Of several sweeps, a table above has the best settings.
    best = "" if title else f"{_describe_best(record)} "
    blocks: list[Block] = [Note(f"{title}{best}{describe_region(record)}")]
    diagram = draw_diagram(name, record)
    if len(diagram) == 1:
        blocks.append(diagram[0][1])
    elif diagram:
        blocks.append(Choice(name, f"{title}Settings", tuple(diagram)))
    blocks.append(_create_table(title, record))
    finished = sum(trial.state != "running" for trial in record.trials)
    if finished < record.num_trials:
        blocks.append(
            Note(
                f"{title}{finished} of {record.num_trials} trials are finished; the same command "
                "continues the sweep.",
                kind="missing",
            )
        )
    if len(record.trials) > _MAX_TRIALS:
        blocks.append(
            Note(f"{title}The table has the best {_MAX_TRIALS} of {len(record.trials)} trials.")
        )
    return blocks


def _create_overview(sweeps: Mapping[str, SweepRecord]) -> Table:
    rows = []
    for name, record in sweeps.items():
        best = record.best
        complete = sum(trial.state == "complete" for trial in record.trials)
        rows.append(
            (
                name,
                MISSING if best is None else _format_value(record, best.value),
                _metric(record),
                f"{complete} of {record.num_trials}",
                MISSING if best is None else _settings(best),
                record.name,
            )
        )
    return Table(
        "Best settings of each sweep",
        "The best complete trial of each sweep. A value chosen among many trials is too good: test "
        "images tell how good the settings are.",
        ("Sweep", "Best value", "Metric", "Complete trials", "Best settings", "Recipe"),
        tuple(rows),
    )


def _settings(trial: SweepTrial) -> str:
    return ", ".join(f"{key}={format_number(value)}" for key, value in trial.settings.items())


def _describe_best(record: SweepRecord) -> str:
    images = "" if record.num_validation is None else f" on {record.num_validation:,} images"
    best = record.best
    if best is None or best.value is None:
        return f"Sweep of {record.name} by validation {_metric(record)}{images}."
    return (
        f"The best settings of {record.name} are {_settings(best)}, with a validation "
        f"{_metric(record)} of {_format_value(record, best.value)}{images}."
    )


def _metric(record: SweepRecord) -> str:
    return record.metric.replace("_", " ")


def _format_value(record: SweepRecord, value: float | None) -> str:
    if finite(value) is None or value is None:
        return MISSING
    return f"{100 * value:.2f}%" if is_percentage(record.metric) else f"{value:.4g}"


def _create_table(title: str, record: SweepRecord) -> Table:
    trials = sorted(record.trials, key=lambda trial: (record.rank(trial), trial.number))
    keys = [setting.key for setting in record.settings]
    rows = [
        (
            f"{trial.number:04d}",
            _format_value(record, trial.value),
            *(
                format_number(trial.settings[key]) if key in trial.settings else MISSING
                for key in keys
            ),
            _describe_state(record, trial),
        )
        for trial in trials[:_MAX_TRIALS]
    ]
    best = record.best
    bold = {(trials.index(best), 1)} if best is not None and len(trials) > 1 else set()
    direction = "highest" if record.direction == "maximize" else "lowest"
    return Table(
        f"{title}Trials",
        f"Settings and validation {_metric(record)} of each trial, the {direction} first.",
        ("Trial", _metric(record).capitalize(), *keys, "State"),
        tuple(rows),
        frozenset(bold),
    )


def _describe_state(record: SweepRecord, trial: SweepTrial) -> str:
    if trial.state == "failed":
        return f"failed: {shorten(trial.error or 'no message', _MAX_ERROR)}"
    if trial.state == "pruned" and trial.evaluations:
        epoch, value = trial.evaluations[-1]
        return f"pruned after epoch {epoch} at {_format_value(record, value)}"
    return trial.state
