"""The section on long-tailed data: accuracy of many-, medium- and few-shot classes."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from protosphere.report.benchmark_rows import (
    CLASSIFIERS,
    Benchmark,
    MethodResults,
    group_results,
    number,
    paper_cifar,
    read_benchmarks,
    result_label,
    seed_note,
)
from protosphere.report.content import Choice, Figure, Section, Table
from protosphere.report.method_plots import Dots, Style, draw_dots, method_styles
from protosphere.report.paper import paper_value
from protosphere.report.paper_reference import paper_method
from protosphere.report.sources import ReportData
from protosphere.report.summaries import Summary, format_summary
from protosphere.report.summary_tables import Column, TableRow, create_table

_GROUPS = {
    "many": "Many (more than 100 images)",
    "medium": "Medium (20 to 100 images)",
    "few": "Few (fewer than 20 images)",
}
# Its predictions, and with them its accuracies, are those of class_means.
_SAME_ACCURACY = "calibrated_class_means"
_Values = Sequence[Mapping[tuple[str, str], Summary]]


def create_section(report: ReportData) -> Section | None:
    """Return the section, or None if no run has a long-tail benchmark.

    Args:
        report: The report.
    """
    benchmarks, notes = read_benchmarks(
        report, "long_tail", texts=("classifier", "group"), numbers=("accuracy",)
    )
    if not benchmarks:
        return None
    groups = group_results(benchmarks, test_setting="test")
    values = [group.summarize(_accuracies) for group in groups]
    classifiers = {
        name: CLASSIFIERS.get(name, name)
        for name in dict.fromkeys(key[0] for one in values for key in one)
        if name != _SAME_ACCURACY
    }
    styles = method_styles(report)
    figures = [
        (label, _draw_groups(groups, values, index, name, styles))
        for index, (name, label) in enumerate(classifiers.items())
    ]
    blocks = (
        _create_group_table(groups, values),
        Choice("long-tail-groups", "Classifier", tuple(figures)),
        _create_classifier_table(groups, values, classifiers),
        _draw_classifiers(groups, values, classifiers, styles),
    )
    return Section(
        "long-tail",
        "Long-tailed data",
        "Accuracy on balanced test images after training on classes of very different size. The "
        "head is compared with class means of the training features, which need no training.",
        (*blocks, *seed_note(groups), *notes),
    )


def _accuracies(benchmark: Benchmark) -> dict[tuple[str, str], float]:
    """Accuracy by classifier and group of classes."""
    return {
        (row["classifier"], row["group"]): row["accuracy"]
        for row in benchmark.rows
        if row["group"] != "class"
    }


def _create_group_table(groups: Sequence[MethodResults], values: _Values) -> Table:
    """The accuracy of the head, or of the class means of a run without one."""
    rows = []
    for group, accuracies in zip(groups, values, strict=True):
        has_head = any(key[0] == "head" for key in accuracies)
        name = "head" if has_head else "class_means"
        cells = [accuracies.get((name, part)) for part in ("all", *_GROUPS, "balanced")]
        titles = (group.method, group.data, CLASSIFIERS[name], str(group.num_runs))
        paper = _paper_accuracy(group) if has_head else None
        rows.append(TableRow(titles, (*cells[:1], paper, *cells[1:]), group.data))
    if all(_text(row.cells[0]) == _text(row.cells[-1]) for row in rows):
        # The test images are balanced.
        rows = [replace(row, cells=(*row.cells[:-1], None)) for row in rows]
    return create_table(
        "Accuracy by number of training images",
        "Test accuracy in percent, as mean ± standard deviation over runs; the best of each column "
        "on the same data is bold. Many-shot classes have more than 100 training images, few-shot "
        "classes fewer than 20.",
        titles=("Method", "Data", "Classifier", "Runs"),
        columns=(
            Column("All classes", "higher"),
            Column("Paper"),
            Column("Many-shot", "higher"),
            Column("Medium-shot", "higher"),
            Column("Few-shot", "higher"),
            Column("Mean over classes", "higher"),
        ),
        rows=rows,
        optional=("Data", "Classifier"),
    )


def _text(cell: object) -> str:
    return format_summary(cell if isinstance(cell, Summary) else None)


def _create_classifier_table(
    groups: Sequence[MethodResults], values: _Values, classifiers: Mapping[str, str]
) -> Table:
    return create_table(
        "Accuracy by classifier",
        "Test accuracy on all classes in percent when the same features are classified in "
        "different ways; only the head was trained. The best of each column on the same data is "
        "bold.",
        titles=("Method", "Data", "Runs"),
        columns=[Column(label.capitalize(), "higher") for label in classifiers.values()],
        rows=[
            TableRow(
                (group.method, group.data, str(group.num_runs)),
                tuple(accuracies.get((name, "all")) for name in classifiers),
                group.data,
            )
            for group, accuracies in zip(groups, values, strict=True)
        ],
    )


def _paper_accuracy(group: MethodResults) -> float | None:
    """The paper's accuracy of the head, for long-tailed CIFAR."""
    run = group.benchmarks[0].run
    data = run.recipe.get("data")
    ratio = number(data, "long_tail") if isinstance(data, Mapping) else None
    source = paper_cifar(group.benchmarks[0])
    if ratio is None or source is None:
        return None
    return paper_value("table6_long_tail", paper_method(run), f"{source}_lt_{ratio:g}")


def _draw_groups(
    groups: Sequence[MethodResults],
    values: _Values,
    index: int,
    classifier: str,
    styles: Mapping[str, Style],
) -> Figure:
    label = CLASSIFIERS.get(classifier, classifier)
    return draw_dots(
        f"long-tail-groups-{index}",
        f"Accuracy by number of training images: {label}",
        "Test accuracy of classes with many, medium and few training images",
        reading="the nearer the dots of a method are to each other, the less it favors frequent "
        "classes",
        categories=_GROUPS,
        dots=[
            Dots(
                result_label(group, groups),
                styles[group.method],
                {part: found for part in _GROUPS if (found := one.get((classifier, part)))},
            )
            for group, one in zip(groups, values, strict=True)
        ],
        value_title="test accuracy (%)",
    )


def _draw_classifiers(
    groups: Sequence[MethodResults],
    values: _Values,
    classifiers: Mapping[str, str],
    styles: Mapping[str, Style],
) -> Figure:
    return draw_dots(
        "long-tail-classifiers",
        "Accuracy on all classes by classifier",
        "Test accuracy on all classes when the same features are classified in different ways",
        reading="only the head was trained",
        categories=classifiers,
        dots=[
            Dots(
                result_label(group, groups),
                styles[group.method],
                {name: found for name in classifiers if (found := one.get((name, "all")))},
            )
            for group, one in zip(groups, values, strict=True)
        ],
        value_title="test accuracy (%)",
    )
