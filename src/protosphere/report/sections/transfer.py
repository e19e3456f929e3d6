"""The section on transfer: classifiers on frozen features of other data, also with few images."""

from collections.abc import Mapping, Sequence
from typing import Any

from protosphere.report.benchmark_rows import (
    Benchmark,
    MethodResults,
    group_results,
    number,
    number_images,
    read_benchmarks,
    result_label,
    seed_note,
)
from protosphere.report.content import Block, Choice, Figure, Section, Table
from protosphere.report.method_plots import Dots, Line, Style, draw_dots, draw_lines, method_styles
from protosphere.report.paper import paper_value
from protosphere.report.paper_reference import paper_method
from protosphere.report.sources import ReportData
from protosphere.report.summaries import Summary
from protosphere.report.summary_tables import Column, TableRow, create_table

_CLASSIFIERS = {
    "logistic": "logistic regression",
    "class_means": "class means",
    "whitened_class_means": "whitened class means",
    "knn": "nearest neighbors",
}
_METRICS = {"top1": "", "mean_per_class": " (mean per class)", "map": " (mAP)"}
_PAPER_COLUMNS = {"voc2007": "voc2007_map"}
_DASHES = ("solid", "dash", "dot", "dashdot")
# Key of a summary: target and classifier, and the number of images per class for few of them.
_Key = tuple[str, str]
_FewShotKey = tuple[str, str, int]
_Pair = tuple[str, str]


def create_section(report: ReportData) -> Section | None:
    """Return the section, or None if no run was transferred to other data.

    Args:
        report: The report.
    """
    fields = {"texts": ("target", "classifier"), "numbers": ("value",)}
    full, notes = read_benchmarks(report, "transfer-", **fields)
    few, more_notes = read_benchmarks(
        report, "few-shot-", texts=fields["texts"], numbers=("value", "shots")
    )
    if not full and not few:
        return None
    named = number_images([*full, *few], "target", _identify)
    full, few = named[: len(full)], named[len(full) :]
    styles = method_styles(report)
    blocks: list[Block] = []
    if full:
        groups = group_results(full)
        values = [group.summarize(_values) for group in groups]
        blocks += [_create_table(groups, values, full), _draw_targets(groups, values, styles)]
    if few:
        blocks.append(_draw_few_shot(group_results(few), styles))
    return Section(
        "transfer",
        "Transfer to other data",
        "Classifiers on the frozen features of each run, fitted to other data sets, or to other "
        "classes of its own images. Methods that were trained on different data are not "
        "comparable.",
        (*blocks, *seed_note(group_results([*full, *few])), *notes, *more_notes),
    )


def _identify(benchmark: Benchmark, _: Mapping[str, Any]) -> tuple[object, object]:
    """What tells the images of a data set apart from those of another one of its name."""
    return benchmark.settings.get("train"), benchmark.settings.get("test")


def _values(benchmark: Benchmark) -> dict[_Key, float]:
    return {(row["target"], row["classifier"]): row["value"] for row in benchmark.rows}


def _targets(benchmarks: Sequence[Benchmark]) -> dict[str, str]:
    """The data sets, with what is measured on them."""
    return {
        row["target"]: f"{row['target']}{_METRICS.get(str(row.get('metric')), '')}"
        for benchmark in benchmarks
        for row in benchmark.rows
    }


def _classifiers(benchmarks: Sequence[Benchmark]) -> dict[str, str]:
    found = {row["classifier"] for benchmark in benchmarks for row in benchmark.rows}
    known = [name for name in _CLASSIFIERS if name in found]
    return {name: _CLASSIFIERS.get(name, name) for name in [*known, *sorted(found - set(known))]}


def _create_table(
    groups: Sequence[MethodResults],
    values: Sequence[Mapping[_Key, Summary]],
    benchmarks: Sequence[Benchmark],
) -> Table:
    targets, classifiers = _targets(benchmarks), _classifiers(benchmarks)
    rows = []
    for data in dict.fromkeys(group.data for group in groups):
        for target, label in targets.items():
            for group, found in zip(groups, values, strict=True):
                cells = tuple(found.get((target, name)) for name in classifiers)
                if group.data == data and any(cells):
                    titles = (group.method, data, label, str(group.num_runs))
                    paper = _paper_value(group, target)
                    rows.append(TableRow(titles, (*cells, paper), (data, target)))
    return create_table(
        "Accuracy on other data",
        "Accuracy in percent by classifier, as mean ± standard deviation over runs; the best of "
        "each column on the same data set, for the same training data, is bold. The paper has "
        "logistic regression.",
        titles=("Method", "Trained on", "Data set", "Runs"),
        columns=(
            *(Column(label.capitalize(), "higher") for label in classifiers.values()),
            Column("Paper"),
        ),
        rows=rows,
        optional=("Trained on",),
    )


def _paper_value(group: MethodResults, target: str) -> float | None:
    run = group.benchmarks[0].run
    if not str(run.recipe.get("name", "")).startswith("imagenet"):
        return None
    column = _PAPER_COLUMNS.get(target, target)
    return paper_value("table4_transfer", paper_method(run), column)


def _pairs(groups: Sequence[MethodResults]) -> dict[_Pair, str]:
    """Training data and target of each transfer; only targets are named if there is one source."""
    sources = dict.fromkeys(group.data for group in groups)
    pairs = {}
    for data in sources:
        members = [group for group in groups if group.data == data]
        for target, label in _targets(_benchmarks(members)).items():
            pairs[data, target] = label if len(sources) == 1 else f"{data} → {label}"
    return pairs


def _benchmarks(groups: Sequence[MethodResults]) -> list[Benchmark]:
    return [benchmark for group in groups for benchmark in group.benchmarks]


def _draw_targets(
    groups: Sequence[MethodResults],
    values: Sequence[Mapping[_Key, Summary]],
    styles: Mapping[str, Style],
) -> Choice:
    pairs = _pairs(groups)
    keys = {pair: str(index) for index, pair in enumerate(pairs)}
    options = []
    for index, (name, label) in enumerate(_classifiers(_benchmarks(groups)).items()):
        figure = draw_dots(
            f"transfer-{index}",
            f"Accuracy on other data: {label}",
            "Accuracy of a classifier fitted to the frozen features of each run, with all training "
            "images of the other data set",
            reading="farther right is better",
            categories={keys[pair]: title for pair, title in pairs.items()},
            dots=[
                Dots(
                    result_label(group, groups),
                    styles[group.method],
                    {
                        keys[pair]: one
                        for pair in pairs
                        if pair[0] == group.data and (one := found.get((pair[1], name)))
                    },
                )
                for group, found in zip(groups, values, strict=True)
            ],
            value_title="accuracy (%)",
        )
        options.append((label, figure))
    return Choice("transfer-targets", "Classifier", tuple(options))


def _draw_few_shot(groups: Sequence[MethodResults], styles: Mapping[str, Style]) -> Choice:
    values = [group.summarize(_few_shot_values) for group in groups]
    deviations = [_draw_deviations(group) for group in groups]
    classifiers = _classifiers(_benchmarks(groups))
    options = []
    for index, ((data, target), label) in enumerate(_pairs(groups).items()):
        lines = []
        for place, (name, title) in enumerate(classifiers.items()):
            for group, found, draws in zip(groups, values, deviations, strict=True):
                points = [
                    (float(key[2]), _with_draws(summary, draws.get(key)))
                    for key, summary in sorted(found.items(), key=lambda item: item[0][2])
                    if key[:2] == (target, name) and group.data == data
                ]
                if points:
                    lines.append(
                        Line(
                            f"{result_label(group, groups)}, {title}",
                            styles[group.method]._replace(dash=_DASHES[place % len(_DASHES)]),
                            points,
                        )
                    )
        options.append((label, _draw_target(index, label, lines)))
    return Choice("few-shot-targets", "Data set", tuple(options))


def _draw_target(index: int, label: str, lines: Sequence[Line]) -> Figure:
    shots = sorted({x for line in lines for x, _ in line.points})
    return draw_lines(
        f"few-shot-{index}",
        f"Accuracy with few training images per class: {label}",
        "Accuracy of classifiers fitted to a few images per class; bars are the standard deviation "
        "over random draws of one run, or over the means of several runs.",
        lines=lines,
        x_title="training images per class",
        value_title="accuracy (%)",
        x_axis={
            "type": "log",
            "tickmode": "array",
            "tickvals": shots,
            "ticktext": [f"{x:g}" for x in shots],
        },
    )


def _few_shot_values(benchmark: Benchmark) -> dict[_FewShotKey, float]:
    return {
        (row["target"], row["classifier"], int(row["shots"])): row["value"]
        for row in benchmark.rows
        if row["shots"] >= 1
    }


def _draw_deviations(group: MethodResults) -> dict[_FewShotKey, float]:
    """The standard deviation over draws, of a method with one run."""
    if group.num_runs > 1:
        return {}
    return {
        (row["target"], row["classifier"], int(row["shots"])): std
        for benchmark in group.benchmarks
        for row in benchmark.rows
        if (std := number(row, "std")) is not None
    }


def _with_draws(summary: Summary, deviation: float | None) -> Summary:
    return summary if deviation is None else Summary(summary.mean, deviation, summary.count)
