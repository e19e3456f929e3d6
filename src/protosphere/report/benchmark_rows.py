"""Read the rows of benchmarks; files that are older or incomplete give the fields they have."""

import json
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from protosphere.report.content import Note
from protosphere.report.curves import finite
from protosphere.report.paper_reference import data_name
from protosphere.report.sources import ReportData, RunData
from protosphere.report.summaries import Summary, summarize

KeyT = TypeVar("KeyT", bound=Hashable)
# Names of classifiers on the features of a run.
CLASSIFIERS = {
    "head": "trained head",
    "logit_adjusted_head": "head, logits adjusted by class frequency",
    "class_means": "class means",
    "calibrated_class_means": "class means, calibrated temperature",
    "whitened_class_means": "whitened class means",
}
# Settings of benchmarks that change what numbers mean.
_OPTIONS = (
    "logit_adjustment",
    "shrinkage",
    "num_bins",
    "num_neighbors",
    "num_draws",
    "cs",
    "seed",
    "frost",
    "split",
)
# Methods that a note names.
_MAX_NAMED = 3
# Keys of a recipe's data that do not change which images are trained on, or how they are named.
_WITHOUT_EFFECT = {"root", "path", "workers", "in_memory", "sampler", "validation_folder"}


@dataclass(frozen=True)
class Benchmark:
    """The result of one benchmark of one run.

    Attributes:
        run: The run.
        name: Name of the benchmark, and of its file without suffix.
        settings: What determined the rows: weights, data, options.
        rows: The rows that have all required fields.
    """

    run: RunData
    name: str
    settings: Mapping[str, Any]
    rows: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True)
class MethodResults:
    """The results of the runs of one method, which differ in their seeds.

    Attributes:
        method: Name of the method.
        data: Name of the data; methods of other data are not comparable.
        benchmarks: The results, one per run and file.
    """

    method: str
    data: str
    benchmarks: tuple[Benchmark, ...]

    @property
    def num_runs(self) -> int:
        """Number of runs."""
        return len({benchmark.run.name for benchmark in self.benchmarks})

    def summarize(self, values: Callable[[Benchmark], Mapping[KeyT, float]]) -> dict[KeyT, Summary]:
        """Return mean and deviation over the runs.

        Args:
            values: Function that returns the numbers of one run.
        """
        collected: dict[KeyT, list[float]] = {}
        for benchmark in self.benchmarks:
            for key, value in values(benchmark).items():
                collected.setdefault(key, []).append(value)
        summaries = {key: summarize(numbers) for key, numbers in collected.items()}
        return {key: summary for key, summary in summaries.items() if summary is not None}


def number(row: Mapping[str, Any], key: str) -> float | None:
    """Return a finite number of a row; None if there is none.

    Args:
        row: The row.
        key: Name of the field.

    >>> number({"error": 0.5, "severity": "high"}, "error")
    0.5
    """
    return finite(row.get(key))


def text(row: Mapping[str, Any], key: str) -> str | None:
    """Return a text of a row that is not empty; None if there is none.

    Args:
        row: The row.
        key: Name of the field.
    """
    value = row.get(key)
    return value if isinstance(value, str) and value else None


def read_benchmarks(
    report: ReportData,
    *names: str,
    numbers: Sequence[str] = (),
    texts: Sequence[str] = (),
) -> tuple[list[Benchmark], list[Note]]:
    """Return the results of a benchmark, and what is missing.

    Args:
        report: The report.
        names: Names of result files; a name that ends with a hyphen stands for all that start with
            it.
        numbers: Fields that must be finite numbers; rows without them are left out.
        texts: Fields that must be texts; rows without them are left out.

    Returns:
        The results that have rows, in the order of the runs, and a note for each file that is
        empty or has rows that were left out.
    """
    found: list[Benchmark] = []
    notes: list[Note] = []
    for run in report.runs:
        for name in sorted(run.results):
            if not any(name == one or (one[-1] == "-" and name.startswith(one)) for one in names):
                continue
            content: Any = run.results[name]
            stored = content.get("rows") if isinstance(content, Mapping) else None
            settings = content.get("settings") if isinstance(content, Mapping) else None
            all_rows = stored if isinstance(stored, list | tuple) else []
            rows = tuple(row for row in all_rows if _is_complete(row, numbers, texts))
            if len(rows) < len(all_rows):
                fields = ", ".join([*texts, *numbers])
                notes.append(
                    Note(
                        f"{run.name}: {len(all_rows) - len(rows)} of {len(all_rows)} rows of "
                        f"{name}.json are left out, because they do not have all of {fields}.",
                        kind="missing",
                    )
                )
            elif not rows:
                notes.append(Note(f"{run.name}: {name}.json has no rows.", kind="missing"))
            if rows:
                known = settings if isinstance(settings, Mapping) else {}
                found.append(Benchmark(run, name, known, rows))
    return found, notes


def _is_complete(row: object, numbers: Sequence[str], texts: Sequence[str]) -> bool:
    return (
        isinstance(row, Mapping)
        and all(number(row, key) is not None for key in numbers)
        and all(text(row, key) is not None for key in texts)
    )


def number_images(
    benchmarks: Iterable[Benchmark],
    field: str,
    identify: Callable[[Benchmark, Mapping[str, Any]], object],
) -> list[Benchmark]:
    """Return results in which different images of one name are numbered: NAME, NAME (2).

    Args:
        benchmarks: The results.
        field: Field of the rows that names images.
        identify: Function of a result and its row that returns what tells the images apart.
    """
    known: dict[str, list[object]] = {}
    numbered = []
    for benchmark in benchmarks:
        rows = []
        for row in benchmark.rows:
            name, images = row[field], identify(benchmark, row)
            others = known.setdefault(name, [])
            if images not in others:
                others.append(images)
            number = others.index(images) + 1
            rows.append({**row, field: name if number == 1 else f"{name} ({number})"})
        numbered.append(replace(benchmark, rows=tuple(rows)))
    return numbered


def group_results(
    benchmarks: Iterable[Benchmark], *, test_setting: str | None = None
) -> list[MethodResults]:
    """Return results by data and method, in the order in which they are first seen.

    Args:
        benchmarks: The results.
        test_setting: Setting that identifies the images that numbers are of.
    """
    labels: dict[str, str] = {}
    groups: dict[tuple[str, str], list[Benchmark]] = {}
    for benchmark in benchmarks:
        name = describe_data(benchmark.run)
        tested = benchmark.settings.get(test_setting) if test_setting else None
        key = json.dumps([name, _data_settings(benchmark.run), tested], default=str, sort_keys=True)
        if key not in labels:
            count = sum(label == name or label.startswith(f"{name} (") for label in labels.values())
            labels[key] = name if not count else f"{name} ({count + 1})"
        groups.setdefault((labels[key], benchmark.run.method), []).append(benchmark)
    order = list(dict.fromkeys(data for data, _ in groups))
    return [
        MethodResults(method, data, tuple(members))
        for data_name in order
        for (data, method), members in groups.items()
        if data == data_name
    ]


def _data_settings(run: RunData) -> dict[str, Any]:
    data = run.recipe.get("data")
    if not isinstance(data, Mapping):
        return {}
    return {key: value for key, value in data.items() if key not in _WITHOUT_EFFECT}


def describe_data(run: RunData) -> str:
    """Return a name of the data that a run was trained on.

    Args:
        run: The run.

    >>> from pathlib import Path
    >>> recipe = {"data": {"source": "cifar100", "long_tail": 0.01}}
    >>> describe_data(RunData("a", Path("a"), "a", 0, "complete", recipe=recipe))
    'cifar100, long tail 0.01'
    """
    data = run.recipe.get("data")
    if not isinstance(data, Mapping):
        return "unknown data"
    parts = [data_name(run.recipe) or "unknown data"]
    if data.get("class_groups") is not None:
        parts.append("grouped classes")
    if data.get("long_tail") is not None:
        parts.append(f"long tail {_short(data['long_tail'])}")
    noise = data.get("label_noise")
    if isinstance(noise, Mapping):
        parts.append(f"label noise {_short(noise.get('fraction'))}")
    return ", ".join(parts)


def _short(value: object) -> str:
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def paper_cifar(benchmark: Benchmark) -> str | None:
    """Return ``"cifar10"`` or ``"cifar100"`` for a run on that data, as the paper has it.

    Args:
        benchmark: A result of the run. Data of a file of arrays are known by the recipe's name.
    """
    recipe = benchmark.run.recipe
    data = recipe.get("data")
    if not isinstance(data, Mapping):
        return None
    if data.get("class_groups") is not None or data.get("label_noise") is not None:
        return None
    source = data.get("source")
    if source == "arrays":
        source = str(recipe.get("name", "")).partition("-")[0]
    num_classes = len(benchmark.run.class_names) or benchmark.settings.get("classes")
    is_known = source in ("cifar10", "cifar100") and source == f"cifar{num_classes}"
    return str(source) if is_known else None


def result_label(group: MethodResults, groups: Sequence[MethodResults]) -> str:
    """Return the name of a method, with its data if another one has the same name.

    Args:
        group: The results of the method.
        groups: The results of all methods.
    """
    is_unique = sum(one.method == group.method for one in groups) == 1
    return group.method if is_unique else f"{group.method}, {group.data}"


def seed_note(groups: Sequence[MethodResults]) -> list[Note]:
    """Return what a reader must know about the runs that numbers are over.

    Args:
        groups: The results.

    Returns:
        A note for each option in which runs of a method were measured differently, and one if there
        are methods with one run.
    """
    return [*_note_options(groups), *_note_single_runs(groups)]


def _note_options(groups: Sequence[MethodResults]) -> list[Note]:
    notes = []
    for group in groups:
        for name in dict.fromkeys(benchmark.name for benchmark in group.benchmarks):
            own = [one.settings for one in group.benchmarks if one.name == name]
            for option in _OPTIONS:
                values = dict.fromkeys(json.dumps(one[option]) for one in own if option in one)
                if len(values) > 1:
                    notes.append(
                        Note(
                            f"{group.method}: runs of {name} were measured with different values "
                            f"of {option}, {' and '.join(values)}; means and deviations are over "
                            "all of them.",
                            kind="missing",
                        )
                    )
    return notes


def _note_single_runs(groups: Sequence[MethodResults]) -> list[Note]:
    single = list(dict.fromkeys(group.method for group in groups if group.num_runs == 1))
    if not single:
        return []
    if all(group.num_runs == 1 for group in groups):
        subject = "Each method has one run" if len(groups) > 1 else "There is one run"
    elif len(single) <= _MAX_NAMED:
        subject = f"Methods with one run: {', '.join(single)}"
    else:
        subject = f"{len(single)} methods have one run"
    text = f"{subject}. How much these numbers vary over seeds is not known"
    return [Note(f"{text}: small differences are not a ranking.")]
