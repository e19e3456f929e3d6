"""What was run, on what, at which commit, and the results beside those of the paper."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from protosphere.metrics.coinciding_prototypes import (
    describe_coinciding,
    find_coinciding_prototypes,
)
from protosphere.report.benchmark_rows import describe_data
from protosphere.report.content import Block, Note, Section
from protosphere.report.curves import Method, finite, group_methods
from protosphere.report.final_results import (
    counted_runs,
    describe_evaluations,
    final_evaluation,
    lacks_best_arrays,
    summarize_metric,
)
from protosphere.report.names import enumerate_names
from protosphere.report.paper_reference import data_name, find_paper_result
from protosphere.report.read_run import section_value
from protosphere.report.run_arrays import find_arrays
from protosphere.report.run_shape import num_classes
from protosphere.report.run_tables import (
    UNKNOWN,
    create_runs,
    create_settings,
    last_epoch,
    package_version,
)
from protosphere.report.sources import ReportData, RunData
from protosphere.report.summary_tables import Column, TableRow, create_table

_SEEDS = "Runs (seeds)"
_METRICS = (
    ("accuracy", Column("Accuracy, %", "higher")),
    ("nearest_mean_accuracy", Column("Nearest mean, %", "higher")),
    ("nc1_ratio", Column("NC1: variance ratio", "lower", scale=1.0, digits=3)),
    # It is at most K−1, the rank at collapse.
    ("inter_effective_rank", Column("NC2: rank", "higher", scale=1.0, digits=1)),
    ("nc2_angles", Column("NC2: angles", "lower", scale=1.0, digits=3)),
    ("nc3_cosine", Column("NC3: 1\u00a0−\u00a0cosine", "lower", scale=1.0, digits=4)),
    ("nc4_agreement", Column("NC4: agreement, %", "higher", scale=100.0, digits=1)),
)
# Of more runs whose prototypes coincide, only the names are listed.
_MAX_COINCIDING = 4
_NEURAL_COLLAPSE = (
    "Neural collapse is the geometry that a classifier approaches late in training: the features "
    "of a class shrink to their class mean, the class means point in directions with equal angles "
    "between them (a simplex), and the prototypes, which are the weights of the classifier, align "
    "with the class means. The metrics NC1 to NC4 measure how close a run comes to it."
)


def create_section(report: ReportData) -> Section:
    """Return the section that says what was run and with which results.

    Args:
        report: Runs, comparisons and sweeps.
    """
    methods = group_methods(report.runs)
    blocks: list[Block] = [Note(_introduce(report, methods))]
    blocks += [Note(text, "missing") for text in report.problems]
    blocks += _describe_states(report.runs)
    if any(run.evaluations for run in report.runs):
        blocks += _create_results(methods)
    if report.runs:
        blocks += [create_runs(report)]
    if any(run.recipe for run in report.runs):
        blocks += [create_settings(methods)]
    blocks += _describe_studies(report)
    blocks += _describe_problems(report.runs)
    return Section("overview", "Overview", _NEURAL_COLLAPSE, tuple(blocks))


def _introduce(report: ReportData, methods: Sequence[Method]) -> str:
    if not report.runs:
        return "This report has no runs, only the records of studies."
    data = list(dict.fromkeys(filter(None, (data_name(run.recipe) for run in report.runs))))
    on = f", trained on {enumerate_names(data)}" if data else ""
    number = "one run" if len(report.runs) == 1 else f"{len(report.runs)} runs"
    if len(methods) < len(report.runs):
        number += f" of {len(methods)} methods"
    text = f"This report is about {number}{on}"
    if len(methods) < len(report.runs):
        text += "; runs of one method differ only in their seed"
    if not any(run.evaluations for run in report.runs):
        return f"{text}. There is no record of an evaluation."
    return f"{text}. Results are those of the {describe_evaluations(report.runs)}."


def _describe_states(runs: Sequence[RunData]) -> list[Block]:
    notes: list[Block] = []
    for run in runs:
        if run.state == "running":
            epochs = section_value(run.recipe, "schedule", "epochs")
            notes.append(
                Note(f"{run.name} is running: {last_epoch(run)} of {epochs} epochs are done.")
            )
    return notes


def _describe_studies(report: ReportData) -> list[Block]:
    notes: list[Block] = []
    for name, comparison in report.comparisons.items():
        machines = "; ".join(_describe_machine(machine) for machine in comparison.machines)
        notes.append(
            Note(
                f"Comparison {name}: {len(comparison.methods)} methods, seeds "
                f"{', '.join(map(str, comparison.seeds))}, {len(comparison.runs)} complete runs"
                + (f", trained with {machines}." if machines else ".")
            )
        )
    for name, sweep in report.sweeps.items():
        complete = sum(trial.state == "complete" for trial in sweep.trials)
        keys = ", ".join(setting.key for setting in sweep.settings)
        notes.append(
            Note(
                f"Sweep {name} of {sweep.name} over {keys}: {complete} of {sweep.num_trials} "
                "trials are complete."
            )
        )
    return notes


def _describe_machine(machine: Any) -> str:
    device, commit = (machine.get(key) or UNKNOWN for key in ("device", "commit"))
    return f"{device}, torch {package_version(machine, 'torch')}, commit {commit}"


def _create_results(methods: Sequence[Method]) -> list[Block]:
    has_seeds = any(len(counted_runs(method.runs)) > 1 for method in methods)
    papers = [find_paper_result(method.runs[0]) for method in methods]
    columns = [column for _, column in _METRICS] + [Column("Paper, %")]
    rows = [
        TableRow(
            (
                method.name,
                describe_data(method.runs[0]),
                _split(method),
                _seeds(method, counts=has_seeds),
            ),
            (
                *(summarize_metric(method.runs, metric) for metric, _ in _METRICS),
                None if paper is None else paper.accuracy,
            ),
            comparable=(describe_data(method.runs[0]), _split(method), num_classes(method.runs[0])),
        )
        for method, paper in zip(methods, papers, strict=True)
    ]
    meaning = (
        "Accuracy of the head and of the nearest class mean on images that were not trained on, "
        "and metrics of collapse on the training images"
        + (", as mean ± sample standard deviation over seeds" if has_seeds else "")
    )
    table = create_table(
        "Results",
        meaning,
        titles=("Method", "Data", "Images", _SEEDS if has_seeds else "Seed"),
        columns=columns,
        rows=rows,
        optional=("Data", "Images"),
    )
    best = "; the best value on the same data is bold." if table.best else "."
    return [
        replace(table, meaning=meaning + best),
        *_explain_values(methods),
        *_describe_coinciding(methods),
        *_explain_arrays(methods),
        *_explain_paper(methods),
    ]


def _split(method: Method) -> str:
    return str((final_evaluation(method.runs[0]) or {}).get("split", "test"))


def _seeds(method: Method, *, counts: bool) -> str:
    """The seeds of the runs that count, each once, after the number of these runs."""
    runs = counted_runs(method.runs)
    times = Counter("?" if run.seed is None else str(run.seed) for run in runs)
    seeds = ", ".join(
        seed + (f" ×{number}" if number > 1 else "") for seed, number in times.items()
    )
    return f"{len(runs)} ({seeds})" if counts else seeds


def _explain_values(methods: Sequence[Method]) -> list[Block]:
    parts = [
        "Variance ratio: within-class over between-class variance, 0 at collapse. Rank: effective "
        "rank of the class means. Angles: standard deviation of the cosines between class means, 0 "
        "at collapse. Cosine: between a prototype and its class mean, both centered; "
        "1 − cosine is 0 at collapse. Agreement: samples that head and nearest class mean classify "
        "alike, 100% at collapse."
    ]
    ranks = {classes - 1 for method in methods if (classes := num_classes(method.runs[0]))}
    if len(ranks) == 1:
        parts.append(f"The rank is {ranks.pop()} at collapse, one less than the number of classes.")
    elif ranks:
        parts.append("The rank at collapse is one less than the number of classes.")
    early = [
        method.name
        for method in methods
        if counted_runs(method.runs)[0].state in ("running", "incomplete")
    ]
    if early:
        parts.append(f"Not complete, so values so far: {enumerate_names(early)}.")
    return [Note(" ".join(parts))]


def _describe_coinciding(methods: Sequence[Method]) -> list[Block]:
    """Which runs have classes whose prototypes nearly coincide."""
    runs = [run for method in methods for run in method.runs]
    texts = {run.name: text for run in runs if (text := _coinciding(run))}
    notes: list[Block] = [
        Note(text if len(runs) == 1 else f"{name}: {text}")
        for name, text in list(texts.items())[:_MAX_COINCIDING]
    ]
    if others := list(texts)[_MAX_COINCIDING:]:
        names = enumerate_names(others)
        notes.append(Note(f"Prototypes have nearly the same direction in {names} too."))
    return notes


def _coinciding(run: RunData) -> str:
    arrays = find_arrays(run, ("prototypes",))
    if arrays is None:
        return ""
    found = find_coinciding_prototypes(arrays["prototypes"])
    loss = run.recipe.get("loss")
    return describe_coinciding(found, run.class_names, loss if isinstance(loss, Mapping) else {})


def _explain_arrays(methods: Sequence[Method]) -> list[Block]:
    """Which runs have no arrays of the evaluation that their results are of."""
    runs = [run for method in methods for run in counted_runs(method.runs)]
    names = [run.name for run in runs if lacks_best_arrays(run)]
    if not names:
        return []
    return [
        Note(
            "Figures of the geometry and of single classes show the last evaluation of "
            f"{enumerate_names(names)} instead of the best one, of which the run folder has no "
            "arrays: an earlier version trained the run, or a file was not copied."
        )
    ]


def _explain_paper(methods: Sequence[Method]) -> list[Block]:
    found = {
        method.name: paper for method in methods if (paper := find_paper_result(method.runs[0]))
    }
    if not found:
        return []
    tables = " and ".join(
        f"Table {number}" for number in sorted({one.table for one in found.values()})
    )
    text = f"The last column is the paper's accuracy for this data and loss ({tables})"
    ours = {
        section_value(method.runs[0].recipe, "schedule", "epochs")
        for method in methods
        if method.name in found
    }
    theirs = {one.epochs for one in found.values()}
    if ours != theirs:
        text += (
            f"; the paper trained for {_numbers(theirs)} epochs, these runs for {_numbers(ours)}, "
            "so that the numbers are not directly comparable"
        )
    return [Note(f"{text}.")]


def _numbers(values: set[Any]) -> str:
    return enumerate_names(
        [
            str(value)
            for value in sorted(values, key=lambda value: (finite(value) or 0.0, str(value)))
        ]
    )


def _describe_problems(runs: Sequence[RunData]) -> list[Block]:
    """One note per problem, with the runs that have it."""
    found: dict[str, list[str]] = {}
    for run in runs:
        for problem in run.problems:
            found.setdefault(problem, []).append(run.name)
    return [
        Note(
            f"{'All runs' if len(names) == len(runs) > 1 else enumerate_names(names)}: {problem}",
            "missing",
        )
        for problem, names in found.items()
    ]
