"""What was run, on what, at which commit, and the results beside those of the paper."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from protosphere.report.benchmark_rows import describe_data
from protosphere.report.content import Block, Note, Section, Table
from protosphere.report.curves import Method, finite, group_methods
from protosphere.report.final_results import counted_runs, final_evaluation, summarize_metric
from protosphere.report.names import enumerate_names
from protosphere.report.paper_reference import data_name, find_paper_result
from protosphere.report.read_run import section_value
from protosphere.report.run_shape import num_classes
from protosphere.report.sources import ReportData, RunData
from protosphere.report.summary_tables import Column, TableRow, create_table

_ABSENT = "–"
_UNKNOWN = "not recorded"
_METRICS = (
    ("accuracy", Column("Accuracy, %", "higher")),
    ("nearest_mean_accuracy", Column("Nearest mean, %", "higher")),
    ("nc1_ratio", Column("NC1: variance ratio", "lower", scale=1.0, digits=3)),
    ("inter_effective_rank", Column("NC2: rank", scale=1.0, digits=1)),
    ("nc2_angles", Column("NC2: angles", "lower", scale=1.0, digits=3)),
    ("nc3_cosine", Column("NC3: 1\u00a0−\u00a0cosine", "lower", scale=1.0, digits=4)),
    ("nc4_agreement", Column("NC4: agreement, %", scale=100.0, digits=1)),
)
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


def create_section(report: ReportData) -> Section:
    """Return the section that says what was run and with which results.

    Args:
        report: Runs, comparisons and sweeps.
    """
    methods = group_methods(report.runs)
    blocks: list[Block] = [Note(text, "missing") for text in report.problems]
    blocks += _describe_states(report.runs)
    if any(run.evaluations for run in report.runs):
        blocks += _create_results(methods)
    if report.runs:
        blocks += [_create_runs(report.runs)]
    if any(run.recipe for run in report.runs):
        blocks += [_create_settings(methods)]
    blocks += _describe_studies(report)
    blocks += _describe_problems(report.runs)
    return Section("overview", "Overview", _introduce(report, methods), tuple(blocks))


def _introduce(report: ReportData, methods: Sequence[Method]) -> str:
    if not report.runs:
        return "This report has no runs, only the records of studies."
    data = list(dict.fromkeys(filter(None, (data_name(run.recipe) for run in report.runs))))
    on = f", trained on {enumerate_names(data)}" if data else ""
    which = _describe_evaluations(report.runs)
    if len(report.runs) == 1:
        return f"One run{on}, with the results of its {which}."
    if len(methods) == len(report.runs):
        return f"{len(report.runs)} runs{on}, with the results of the {which} of each."
    return (
        f"{len(report.runs)} runs of {len(methods)} methods{on}. Runs of one method differ only in "
        f"their seed; results are those of the {which} of each run."
    )


def _describe_evaluations(runs: Sequence[RunData]) -> str:
    """Which evaluations :func:`final_evaluation` returns."""
    monitors = [section_value(run.recipe, "checkpoint", "monitor") is not None for run in runs]
    if all(monitors):
        return "best evaluation by the monitored metric"
    return "last evaluation" + (", or the best one by a monitored metric," if any(monitors) else "")


def _describe_states(runs: Sequence[RunData]) -> list[Block]:
    notes: list[Block] = []
    for run in runs:
        if run.state == "running":
            epochs = section_value(run.recipe, "schedule", "epochs")
            notes.append(Note(f"{run.name} is running: {_epoch(run)} of {epochs} epochs are done."))
    return notes


def _epoch(run: RunData) -> int:
    epochs = (finite(record.get("epoch")) for record in run.records)
    return round(max((epoch for epoch in epochs if epoch is not None), default=0))


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
    commit = machine.get("commit") or _UNKNOWN
    return (
        f"{machine.get('device') or _UNKNOWN}, torch {_version(machine, 'torch')}, commit {commit}"
    )


def _create_results(methods: Sequence[Method]) -> list[Block]:
    papers = [find_paper_result(method.runs[0]) for method in methods]
    columns = [column for _, column in _METRICS] + [Column("Paper, %")]
    rows = [
        TableRow(
            (method.name, describe_data(method.runs[0]), _split(method), _seeds(method)),
            (
                *(summarize_metric(method.runs, metric) for metric, _ in _METRICS),
                None if paper is None else paper.accuracy,
            ),
            comparable=(describe_data(method.runs[0]), _split(method), _classes(method.runs[0])),
        )
        for method, paper in zip(methods, papers, strict=True)
    ]
    has_seeds = any(len(method.runs) > 1 for method in methods)
    meaning = (
        "Accuracy of the head and of the nearest class mean on images that were not trained on, "
        "and metrics of collapse on the training images"
        + (", as mean ± sample standard deviation over seeds" if has_seeds else "")
        + ("; the best value on the same data is bold." if len(methods) > 1 else ".")
    )
    table = create_table(
        "Results",
        meaning,
        titles=("Method", "Data", "Images", "Seeds"),
        columns=columns,
        rows=rows,
        optional=("Data", "Images"),
    )
    return [table, *_explain_values(methods), *_explain_paper(methods)]


def _split(method: Method) -> str:
    return str((final_evaluation(method.runs[0]) or {}).get("split", "test"))


def _seeds(method: Method) -> str:
    """The seeds of the runs that count, each once; how often if a seed has several runs."""
    counts = Counter(run.seed for run in counted_runs(method.runs))
    return ", ".join(
        ("?" if seed is None else str(seed)) + (f" (×{times})" if times > 1 else "")
        for seed, times in counts.items()
    )


def _explain_values(methods: Sequence[Method]) -> list[Block]:
    parts = [
        "Variance ratio: within-class over between-class variance, 0 at collapse. Rank: effective "
        "rank of the class means. Angles: standard deviation of the cosines between class means, 0 "
        "at collapse. Cosine: between a prototype and its class mean, both centered; "
        "1 − cosine is 0 at collapse. Agreement: samples that head and nearest class mean classify "
        "alike, 100 % at collapse."
    ]
    ranks = {classes - 1 for method in methods if (classes := num_classes(method.runs[0]))}
    if len(ranks) == 1:
        parts.append(f"The rank is {ranks.pop()} at collapse, one less than the number of classes.")
    elif ranks:
        parts.append("The rank at collapse is one less than the number of classes.")
    early = [method.name for method in methods if counted_runs(method.runs)[0].state != "complete"]
    if early:
        parts.append(f"Not complete, so values so far: {enumerate_names(early)}.")
    return [Note(" ".join(parts))]


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


def _classes(run: RunData) -> str:
    count = num_classes(run)
    return _ABSENT if count is None else str(count)


def _create_runs(runs: Sequence[RunData]) -> Table:
    rows = tuple(
        (
            run.name,
            _describe_state(run),
            describe_data(run),
            _classes(run),
            _count(run.data.get("num_train")),
            _count(run.data.get("num_eval")),
            str(run.machine.get("device") or _UNKNOWN),
            _version(run.machine, "torch"),
            str(run.machine.get("commit") or _UNKNOWN),
            str(run.path),
        )
        for run in runs
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
        "Folder",
    )
    meaning = "Each run with its data, the device it was trained on, and the commit of protosphere."
    return _without_common("Runs", meaning, titles, rows, always=("Run", "Folder"))


def _describe_state(run: RunData) -> str:
    epochs = section_value(run.recipe, "schedule", "epochs")
    if run.state == "complete":
        last, planned = _epoch(run), finite(epochs)
        is_early = planned is not None and last < planned
        return f"complete, stopped early at epoch {last}" if is_early else "complete"
    return f"{run.state}, epoch {_epoch(run)} of {'?' if epochs is None else epochs}"


def _count(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else _ABSENT


def _version(machine: Any, package: str) -> str:
    versions = machine.get("versions")
    return str((versions.get(package) if isinstance(versions, dict) else None) or _UNKNOWN)


def _create_settings(methods: Sequence[Method]) -> Table:
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
