"""The section on convergence: when metrics reach neural collapse, beside the paper's Table 7."""

from collections.abc import Mapping, Sequence

from protosphere.report.benchmark_rows import (
    MethodResults,
    group_results,
    number,
    read_benchmarks,
    result_label,
    seed_note,
    text,
)
from protosphere.report.content import Block, Figure, Note, Section, Table
from protosphere.report.method_plots import Dots, Style, draw_dots, method_styles
from protosphere.report.metric_text import CONVERGENCE_METRICS
from protosphere.report.sources import ReportData
from protosphere.report.summaries import Summary, format_summary, summarize
from protosphere.report.summary_tables import Column, TableRow, create_table

_TO_COLLAPSE = "percent_to_collapse"
_OF_BASELINE = "percent_of_baseline"


def create_section(report: ReportData) -> Section | None:
    """Return the section, or None if no run has a convergence benchmark.

    Args:
        report: The report.
    """
    benchmarks, notes = read_benchmarks(report, "convergence", texts=("metric",))
    if not benchmarks:
        return None
    groups = group_results(benchmarks)
    metrics = _find_metrics(groups)
    blocks: list[Block] = []
    if table := _create_table(groups, metrics, _TO_COLLAPSE):
        blocks.append(table)
    figure = _draw_times(groups, metrics, method_styles(report))
    if figure.data:
        blocks.append(figure)
    if table := _create_table(groups, metrics, _OF_BASELINE):
        blocks += [table, *_name_baselines(groups)]
    missing = dict.fromkeys(
        f"{benchmark.run.name}: {reason.rstrip('.')}."
        for benchmark in benchmarks
        for row in benchmark.rows
        if (reason := text(row, "missing")) is not None
    )
    return Section(
        "convergence",
        "Convergence to neural collapse",
        "How much of a run passes until the moving average of a metric reaches 95% of neural "
        "collapse and stays there (Table 7 of the paper Neural Collapse by Design). Lower is "
        "faster.",
        (
            *blocks,
            *seed_note(groups),
            *notes,
            *(Note(words, kind="missing") for words in missing),
        ),
    )


def _find_metrics(groups: Sequence[MethodResults]) -> dict[str, str]:
    found = dict.fromkeys(
        row["metric"] for group in groups for one in group.benchmarks for row in one.rows
    )
    known = [name for name in CONVERGENCE_METRICS if name in found]
    others = [name for name in found if name not in CONVERGENCE_METRICS]
    return {
        name: CONVERGENCE_METRICS.get(name, name.replace("_", " ")) for name in [*known, *others]
    }


def _times(group: MethodResults, metric: str, field: str) -> tuple[list[float], int, int]:
    """The times of a method that are numbers, the number of runs without one, and of all runs."""
    values = [
        row.get(field)
        for one in group.benchmarks
        for row in one.rows
        if row["metric"] == metric and row.get(field) is not None
    ]
    numbers = [
        value for value in (number({"time": one}, "time") for one in values) if value is not None
    ]
    return numbers, sum(isinstance(one, str) for one in values), len(values)


def _cell(group: MethodResults, metric: str, field: str) -> Summary | str | None:
    numbers, num_never, num_runs = _times(group, metric, field)
    summary = summarize(numbers)
    if not num_never:
        return summary
    if summary is None:
        return "never"
    return f"{format_summary(summary, scale=1)}, never in {num_never} of {num_runs}"


def _paper(group: MethodResults, metric: str, field: str) -> float | None:
    values = [
        number(row, f"paper_{field}")
        for one in group.benchmarks
        for row in one.rows
        if row["metric"] == metric
    ]
    return next((value for value in values if value is not None), None)


def _create_table(
    groups: Sequence[MethodResults], metrics: Mapping[str, str], field: str
) -> Table | None:
    rows = []
    for group in groups:
        if field == _OF_BASELINE and _is_baseline(group):
            continue
        cells = tuple(_cell(group, metric, field) for metric in metrics)
        paper = tuple(_paper(group, metric, field) for metric in metrics)
        if any(cell is not None for cell in cells):
            rows.append(
                TableRow((group.method, group.data, str(group.num_runs)), cells, group.data)
            )
        if any(cell is not None for cell in paper):
            rows.append(TableRow((f"{group.method}: paper", group.data, ""), paper))
    if not rows:
        return None
    if field == _TO_COLLAPSE:
        title = "Time to 95% of neural collapse"
        meaning = (
            "Percentage of the run until each metric reaches 95% of neural collapse and stays "
            "there, with the paper's number below; the fastest of each column on the same data is "
            "bold."
        )
    else:
        title = "Time to the final value of the baseline"
        meaning = (
            "Time until a run reaches the value that the baseline ends with, in percent of the "
            "time that the baseline itself takes, with the paper's number below; the fastest of "
            "each column on the same data is bold."
        )
    return create_table(
        title,
        meaning,
        titles=("Method", "Data", "Runs"),
        columns=[Column(label, "lower", scale=1) for label in metrics.values()],
        rows=rows,
    )


def _is_baseline(group: MethodResults) -> bool:
    """Whether a method was compared with itself."""
    settings = [one.settings for one in group.benchmarks]
    return all(text(one, "log") and text(one, "log") == one.get("baseline") for one in settings)


def _name_baselines(groups: Sequence[MethodResults]) -> list[Note]:
    """Which runs the second table compares with, where they are in the report too."""
    benchmarks = [one for group in groups for one in group.benchmarks]
    digests = {text(one.settings, "log"): one.run.name for one in benchmarks}
    used = [text(one.settings, "baseline") for one in benchmarks]
    names = dict.fromkeys(digests[one] for one in used if one is not None and one in digests)
    return [Note(f"Baseline of this table: {', '.join(names)}.")] if names else []


def _draw_times(
    groups: Sequence[MethodResults], metrics: Mapping[str, str], styles: Mapping[str, Style]
) -> Figure:
    dots = []
    for group in groups:
        label, style = result_label(group, groups), styles[group.method]
        values = {
            metric: summary
            for metric in metrics
            if (summary := summarize(_times(group, metric, _TO_COLLAPSE)[0]))
        }
        paper = {
            metric: Summary(value, None, 1)
            for metric in metrics
            if (value := _paper(group, metric, _TO_COLLAPSE)) is not None
        }
        dots += [
            Dots(label, style, values),
            Dots(f"{label}: paper", style._replace(symbol=f"{style.symbol}-open"), paper),
        ]
    return draw_dots(
        "convergence-times",
        "Time to 95% of neural collapse",
        "Percentage of the run until each metric reaches 95% of neural collapse and stays there",
        reading="farther left is faster, runs that never get there have no dot, and open symbols "
        "are the paper's numbers",
        categories=metrics,
        dots=dots,
        value_title="percentage of the run",
        scale=1,
        axis={"range": [-3, 103]},
    )
