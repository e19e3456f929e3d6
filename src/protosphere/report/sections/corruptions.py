"""The section on corrupted images: error by corruption and by severity."""

from collections.abc import Mapping, Sequence
from statistics import fmean

from protosphere.report.benchmark_rows import (
    Benchmark,
    MethodResults,
    group_results,
    number,
    read_benchmarks,
    result_label,
    seed_note,
)
from protosphere.report.content import Figure, Note, Section, Table
from protosphere.report.method_plots import Dots, Line, Style, draw_dots, draw_lines, method_styles
from protosphere.report.paper import paper_value
from protosphere.report.paper_reference import paper_method
from protosphere.report.sources import ReportData
from protosphere.report.summaries import Summary
from protosphere.report.summary_tables import Column, TableRow, create_table

# The 15 corruptions that count for the mean, in the order of ImageNet-C, with AlexNet's error.
ALEXNET_ERRORS = {
    "gaussian_noise": 0.886428,
    "shot_noise": 0.894468,
    "impulse_noise": 0.922640,
    "defocus_blur": 0.819880,
    "glass_blur": 0.826268,
    "motion_blur": 0.785948,
    "zoom_blur": 0.798360,
    "snow": 0.866816,
    "frost": 0.826572,
    "fog": 0.819324,
    "brightness": 0.564592,
    "contrast": 0.853204,
    "elastic_transform": 0.646056,
    "pixelate": 0.717840,
    "jpeg_compression": 0.606500,
}
_SEVERITIES = (1, 2, 3, 4, 5)
# Key of a summary: corruption (or "clean", or "mean") and severity; 0 is the mean over severities.
_Key = tuple[str, int]
_CLEAN, _MEAN, _MCE, _CLASS_MEANS = ("clean", 0), ("mean", 0), ("mce", 0), ("class means", 0)


def create_section(report: ReportData) -> Section | None:
    """Return the section, or None if no run was measured on corrupted images.

    Args:
        report: The report.
    """
    benchmarks, notes = read_benchmarks(
        report,
        "corruptions",
        "corruption-files",
        texts=("corruption",),
        numbers=("severity", "error"),
    )
    if not benchmarks:
        return None
    groups = [
        group
        for name in dict.fromkeys(benchmark.name for benchmark in benchmarks)
        for group in group_results(
            [benchmark for benchmark in benchmarks if benchmark.name == name], test_setting="test"
        )
    ]
    values = [group.summarize(_errors) for group in groups]
    styles = method_styles(report)
    notes += _find_incomplete(benchmarks)
    figures = [
        figure
        for figure in (
            _draw_corruptions(groups, values, styles),
            _draw_severities(groups, values, styles),
        )
        if figure.data
    ]
    return Section(
        "corruptions",
        "Corrupted images",
        "Errors on test images with added noise, blur, weather and digital artifacts. Lower is "
        "better.",
        (
            _create_table(groups, values),
            *figures,
            *seed_note(groups),
            *notes,
        ),
    )


def _errors(benchmark: Benchmark) -> dict[_Key, float]:
    """Errors by corruption and severity, with the means of what was measured completely."""
    table = {(row["corruption"], int(row["severity"])): row["error"] for row in benchmark.rows}
    values = {key: error for key, error in table.items() if key[1] in _SEVERITIES}
    if _CLEAN in table:
        values[_CLEAN] = table[_CLEAN]
    severities = {severity for _, severity in values if severity}
    names = dict.fromkeys(name for name, severity in values if severity)
    for name in names:
        measured = [table[name, one] for one in _SEVERITIES if (name, one) in table]
        if len(measured) == len(severities):
            values[name, 0] = fmean(measured)
    counted = [name for name in ALEXNET_ERRORS if name in names]
    if counted and all((name, 0) in values for name in counted):
        values[_MEAN] = fmean(values[name, 0] for name in counted)
        for severity in severities:
            values["mean", severity] = fmean(values[name, severity] for name in counted)
        if _is_imagenet(benchmark) and len(counted) == len(ALEXNET_ERRORS):
            ratios = [values[name, 0] / error for name, error in ALEXNET_ERRORS.items()]
            if len(severities) == len(_SEVERITIES):
                values[_MCE] = fmean(ratios)
    class_means = [
        number(row, "class_means_error")
        for row in benchmark.rows
        if row["corruption"] in counted and row["severity"]
    ]
    known = [error for error in class_means if error is not None]
    if known and len(known) == len(class_means) and _MEAN in values:
        values[_CLASS_MEANS] = fmean(known)
    return values


def _is_imagenet(benchmark: Benchmark) -> bool:
    names = benchmark.run.class_names
    return len(names) == 1000 and all(name[:1] == "n" and name[1:].isdigit() for name in names)


def _find_incomplete(benchmarks: Sequence[Benchmark]) -> list[Note]:
    """Runs without some corruptions and severities that they, or other runs, have."""
    measured = {
        id(one): {(row["corruption"], int(row["severity"])) for row in one.rows}
        for one in benchmarks
    }
    notes = []
    for one in benchmarks:
        others = [measured[id(other)] for other in benchmarks if other.name == one.name]
        absent = set().union(*others) - measured[id(one)]
        if absent:
            total = len(absent) + len(measured[id(one)])
            notes.append(
                Note(
                    f"{one.run.name}: {len(absent)} of {total} errors of {one.name}.json are not "
                    "there, so that its means are of other corruptions or missing; the benchmark "
                    "may have been interrupted.",
                    kind="missing",
                )
            )
    return notes


def _create_table(
    groups: Sequence[MethodResults], values: Sequence[Mapping[_Key, Summary]]
) -> Table:
    rows = []
    for group, errors in zip(groups, values, strict=True):
        first = group.benchmarks[0]
        source = "files" if first.name == "corruption-files" else "computed"
        paper = (
            [paper_value("table5_imagenet_c", paper_method(first.run), key) for key in _PAPER]
            if _is_imagenet(first)
            else [None, None]
        )
        counted = {name for name, severity in errors if not severity and name in ALEXNET_ERRORS}
        cells = (
            errors.get(_CLEAN),
            paper[0],
            errors.get(_MEAN),
            *(errors.get(("mean", severity)) for severity in _SEVERITIES),
            errors.get(_CLASS_MEANS),
            errors.get(_MCE),
            paper[1],
        )
        titles = (group.method, group.data, source, str(len(counted)), str(group.num_runs))
        rows.append(TableRow(titles, cells, (group.data, source, tuple(sorted(counted)))))
    return create_table(
        "Error on clean and corrupted images",
        "Error in percent, as mean ± standard deviation over runs; the corrupted error is the mean "
        "over severities and the 15 corruptions of ImageNet-C, without its four extra ones, as far "
        "as they were measured. The lowest of each column on the same images is bold.",
        titles=("Method", "Data", "Corrupted images", "Corruptions", "Runs"),
        columns=(
            Column("Clean", "lower"),
            Column("Paper, clean"),
            Column("Corrupted", "lower"),
            *(Column(f"Severity {severity}", "lower") for severity in _SEVERITIES),
            Column("Corrupted, by class means", "lower"),
            Column("mCE (AlexNet = 100)", "lower"),
            Column("Paper, mCE"),
        ),
        rows=rows,
        optional=("Data", "Corrupted images", "Corruptions"),
    )


_PAPER = ("clean_error", "mce")


def _draw_corruptions(
    groups: Sequence[MethodResults],
    values: Sequence[Mapping[_Key, Summary]],
    styles: Mapping[str, Style],
) -> Figure:
    names = dict.fromkeys(key[0] for one in values for key in one if key[1] or key == _CLEAN)
    others = [name for name in names if name not in ALEXNET_ERRORS and name not in _NO_CORRUPTION]
    categories = {
        name: name.replace("_", " ")
        for name in ["clean", *ALEXNET_ERRORS, *others]
        if name in names
    }
    return draw_dots(
        "corruptions-by-name",
        "Error by corruption",
        "Error on the test images under each corruption, averaged over its severities",
        reading="farther left is more robust",
        categories=categories,
        dots=[
            Dots(
                result_label(group, groups),
                styles[group.method],
                {name: found for name in categories if (found := one.get((name, 0)))},
            )
            for group, one in zip(groups, values, strict=True)
        ],
        value_title="error (%)",
    )


_NO_CORRUPTION = ("clean", "mean", "mce", "class means")


def _draw_severities(
    groups: Sequence[MethodResults],
    values: Sequence[Mapping[_Key, Summary]],
    styles: Mapping[str, Style],
) -> Figure:
    lines = []
    for group, errors in zip(groups, values, strict=True):
        points = [
            (float(severity), found)
            for severity in _SEVERITIES
            if (found := errors.get(("mean", severity)))
        ]
        if _CLEAN in errors and points:
            points.insert(0, (0.0, errors[_CLEAN]))
        if points:
            lines.append(Line(result_label(group, groups), styles[group.method], points))
    return draw_lines(
        "corruptions-by-severity",
        "Error by severity",
        "Mean error at each severity over the corruptions that count in the table, where 0 stands "
        "for clean images; a flatter line is a more robust method.",
        lines=lines,
        x_title="severity",
        value_title="error (%)",
        x_axis={"tickmode": "linear", "dtick": 1},
    )
