"""The section on label noise: accuracy with wrong labels, and how many of them are memorized."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from protosphere.report.benchmark_rows import (
    CLASSIFIERS,
    Benchmark,
    MethodResults,
    describe_data,
    group_results,
    number,
    read_benchmarks,
    seed_note,
)
from protosphere.report.content import Choice, Figure, Section, Table
from protosphere.report.final_results import final_evaluation
from protosphere.report.method_plots import Dots, Line, Style, draw_dots, draw_lines, method_styles
from protosphere.report.names import find_differences
from protosphere.report.sources import ReportData, RunData
from protosphere.report.summaries import Summary, summarize
from protosphere.report.summary_tables import Column, TableRow, create_table

_NUMBERS = ("accuracy", "true_accuracy", "memorized", "corrected")
# Logged accuracy of a run without noise, by classifier.
_LOGGED = {"head": "accuracy", "class_means": "nearest_mean_accuracy"}
# Kind of the noise, and fraction of wrong labels.
_Place = tuple[str, float]


@dataclass(frozen=True)
class _Family:
    """A recipe at several fractions of wrong labels.

    Attributes:
        name: Name of the recipe.
        style: Color and symbol.
        members: Results by kind and fraction of the noise.
        clean: Complete runs of the same recipe without noise.
    """

    name: str
    style: Style
    members: Mapping[_Place, MethodResults]
    clean: tuple[RunData, ...]


def create_section(report: ReportData) -> Section | None:
    """Return the section, or None if no run was measured with label noise.

    Args:
        report: The report.
    """
    benchmarks, notes = read_benchmarks(
        report, "label_noise", texts=("classifier", "noise"), numbers=("fraction", "accuracy")
    )
    if not benchmarks:
        return None
    groups = group_results(benchmarks)
    families = _find_families(report, groups)
    classifiers = {
        name: CLASSIFIERS.get(name, name)
        for name in dict.fromkeys(row["classifier"] for one in benchmarks for row in one.rows)
    }
    return Section(
        "label-noise",
        "Label noise",
        "Runs whose training labels are partly wrong. A method is robust if its test accuracy "
        "falls little and if it does not learn the wrong labels.",
        (
            _create_table(families, classifiers),
            Choice(
                "label-noise-accuracy",
                "Classifier",
                tuple(
                    (label, _draw_accuracy(index, name, label, families))
                    for index, (name, label) in enumerate(classifiers.items())
                ),
            ),
            _draw_memorized(families, next(iter(classifiers.items()))),
            *seed_note(groups),
            *notes,
        ),
    )


def _find_families(report: ReportData, groups: Sequence[MethodResults]) -> list[_Family]:
    found: list[dict[_Place, MethodResults]] = []
    for group in groups:
        row = group.benchmarks[0].rows[0]
        place = (row["noise"], row["fraction"])
        family = next(
            (
                one
                for one in found
                if place not in one and _is_family(_run(one), _run({place: group}))
            ),
            None,
        )
        if family is None:
            found.append({place: group})
        else:
            family[place] = group
    styles = method_styles(report)
    names = [str(_run(one).recipe.get("name", "")) for one in found]
    families = []
    for name, members in zip(names, found, strict=True):
        method = next(iter(members.values())).method
        families.append(
            _Family(
                name if name and names.count(name) == 1 else method,
                styles[method],
                members,
                tuple(
                    run
                    for run in report.runs
                    if run.recipe
                    and run.state == "complete"
                    and not _has_noise(run)
                    and _is_family(run, _run(members))
                ),
            )
        )
    return families


def _run(members: Mapping[_Place, MethodResults]) -> RunData:
    return next(iter(members.values())).benchmarks[0].run


def _clean_data(run: RunData) -> str:
    """The data of a run, without their noise."""
    return describe_data(run).partition(", label noise")[0]


def _is_family(one: RunData, other: RunData) -> bool:
    """Whether two runs differ only in their noise and their seed."""
    differences = find_differences(one.recipe, other.recipe)
    names = [(run.recipe.get("name"), run.class_names, _clean_data(run)) for run in (one, other)]
    return names[0] == names[1] and all(key.startswith("data.label_noise") for key in differences)


def _has_noise(run: RunData) -> bool:
    data = run.recipe.get("data")
    return isinstance(data, Mapping) and data.get("label_noise") is not None


def _values(benchmark: Benchmark) -> dict[tuple[str, str], float]:
    return {
        (row["classifier"], name): value
        for row in benchmark.rows
        for name in _NUMBERS
        if (value := number(row, name)) is not None
    }


def _clean_accuracy(family: _Family, classifier: str) -> Summary | None:
    """The accuracy at the final evaluation of the same recipe without noise."""
    logged = _LOGGED.get(classifier)
    values = [
        number(record, logged)
        for run in family.clean
        if (record := final_evaluation(run)) is not None and logged is not None
    ]
    return summarize(value for value in values if value is not None)


def _create_table(families: Sequence[_Family], classifiers: Mapping[str, str]) -> Table:
    """The accuracy by each classifier, and what the first one makes of wrong labels."""
    rows = []
    first = next(iter(classifiers))
    for noise, fraction in sorted({place for family in families for place in family.members}):
        for family in families:
            group = family.members.get((noise, fraction))
            if group is not None:
                found = group.summarize(_values)
                cells = (
                    *(found.get((name, "accuracy")) for name in classifiers),
                    *(found.get((first, name)) for name in _NUMBERS[1:]),
                )
                first_run = group.benchmarks[0].run
                data = _clean_data(first_run)
                titles = (family.name, data, f"{100 * fraction:g}% {noise}", str(group.num_runs))
                key = (data, len(first_run.class_names), noise, fraction)
                rows.append(TableRow(titles, cells, key))
    return create_table(
        "Accuracy with wrong training labels",
        "Percentages, as mean ± standard deviation over runs; the best of each column on the same "
        "data with the same noise is bold. The last three columns are of the "
        f"{classifiers[first]}: memorized and corrected are the fractions of the wrongly labeled "
        "training images that get their wrong and their true label.",
        titles=("Method", "Data", "Wrong labels", "Runs"),
        columns=(
            *(Column(f"Test accuracy, {label}", "higher") for label in classifiers.values()),
            Column("Training accuracy, true labels", "higher"),
            Column("Memorized", "lower"),
            Column("Corrected", "higher"),
        ),
        rows=rows,
    )


def _draw_accuracy(index: int, classifier: str, label: str, families: Sequence[_Family]) -> Figure:
    lines = []
    noises = dict.fromkeys(place[0] for family in families for place in family.members)
    has_clean = False
    for family in families:
        for dash, noise in zip(("solid", "dash", "dot", "dashdot"), noises, strict=False):
            points = [
                (100 * fraction, found)
                for (kind, fraction), group in sorted(family.members.items())
                if kind == noise
                and (found := group.summarize(_values).get((classifier, "accuracy")))
            ]
            clean = _clean_accuracy(family, classifier)
            if clean is not None and points:
                points.insert(0, (0.0, clean))
                has_clean = True
            if points:
                name = family.name if len(noises) == 1 else f"{family.name}, {noise}"
                lines.append(Line(name, family.style._replace(dash=dash), points))
    start = " At 0% stand runs of the same recipes without noise." if has_clean else ""
    ticks = sorted({x for line in lines for x, _ in line.points})
    return draw_lines(
        f"label-noise-accuracy-{index}",
        f"Test accuracy with wrong training labels: {label}",
        "Accuracy on test images, whose labels are right, by the percentage of wrong training "
        f"labels; a flatter line is a more robust method.{start}",
        lines=lines,
        x_title="wrong training labels (%)",
        value_title="test accuracy (%)",
        x_axis={"tickmode": "array", "tickvals": ticks, "ticktext": [f"{x:g}" for x in ticks]},
    )


def _draw_memorized(families: Sequence[_Family], classifier: tuple[str, str]) -> Figure:
    name, label = classifier
    places = sorted({place for family in families for place in family.members})
    labels = {
        f"{kind} {place}": f"{word}, {100 * place[1]:g}% {place[0]}"
        for place in places
        for kind, word in (("memorized", "memorized"), ("corrected", "corrected"))
    }
    dots = []
    for family in families:
        values: dict[str, Summary] = {}
        for place, group in family.members.items():
            found = group.summarize(_values)
            for kind in ("memorized", "corrected"):
                if (name, kind) in found:
                    values[f"{kind} {place}"] = found[name, kind]
        dots.append(Dots(family.name, family.style, values))
    return draw_dots(
        "label-noise-memorized",
        f"Predictions for wrongly labeled training images: {label}",
        "Percentage of the wrongly labeled training images that get their wrong label (memorized, "
        "lower is better) and their true label (corrected, higher is better)",
        categories=labels,
        dots=dots,
        value_title="wrongly labeled training images (%)",
        axis={"rangemode": "tozero"},
    )
