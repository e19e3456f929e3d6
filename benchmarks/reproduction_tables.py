"""Tables of the records that ``reproduction.py`` has collected, beside the paper's numbers.

Rows whose runs are not among the results are left out. A table without any raises
FileNotFoundError, so that ``tables.py`` leaves its place alone.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from benefits_tables import CONVERGENCE_METRICS, NAMES
from protosphere.evaluation.probes import ProbeResult
from protosphere.recipes.loading import read_run_recipe
from protosphere.report.paper import paper_value
from protosphere.runs import RunFolder
from protosphere.runs.results import read_result
from protosphere.studies.convergence import ConvergenceRow
from protosphere.studies.reproduce import Number, plan_target, read_numbers
from protosphere.studies.reproduce_targets import PROBES
from reproduction import (
    ARRAYS,
    BATCH_SIZES,
    CIFAR10_EPOCHS,
    CIFAR10_LOSSES,
    GRID_EPOCHS,
    LENGTH_LOSSES,
    LENGTHS,
    PAPER_EPOCHS,
    PHASE_TEMPERATURES,
    RESULTS,
    TEMPERATURES,
    length_run,
    run_name,
)
from table_lines import decimal, percent, table_header, table_line

# Columns of Table 3: title, name of the metric in a run, decimals.
METRICS = {
    "intra_effective_rank": ("rank within classes", "intra_effective_rank", 1),
    "inter_effective_rank": ("rank of class means", "inter_effective_rank", 1),
    "weights_effective_rank": ("rank of weights", "weights_effective_rank", 1),
    "weight_class_alignment": ("class alignment", "weight_class_alignment", 2),
    "weight_instance_alignment": ("sample alignment", "weight_instance_alignment", 2),
    "mir": ("MIR", "mir_published", 2),
    "hdr": ("HDR", "hdr_published", 2),
}
LENGTH_TITLES = {
    "length-1000": "torchvision's initialization, 1000 epochs",
    "length-300": "zero-initialized residuals, 300 epochs",
}
CIFAR10_CLASSES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip
NEAREST_LOSSES = ("ce", "normface", "ntce", "nonl")
PROBE_TITLES = {
    "linear_probe": "linear probe",
    "normalized_linear_probe": "linear probe, weights and features normalized",
    "cached_linear_probe": "linear probe on cached features",
    "fixed_prototypes": "class means",
}
CONTRASTIVE_ROWS = {
    "scl_linear_probe": "SCL, linear probe",
    "scl_fixed_prototypes": "SCL, class means",
}


def length_table() -> str:
    """Return accuracy and Table 3's metrics of the long runs on CIFAR-100 in Markdown."""
    found = _length_folders()
    titles = (title for title, *_ in METRICS.values())
    lines = table_header("CIFAR-100", "test accuracy", *titles)
    for loss in LENGTH_LOSSES:
        table = "table3_nc_metrics_train"
        paper = [
            decimal(paper_value(table, "cifar100", loss, column), digits)
            for column, (_, _, digits) in METRICS.items()
        ]
        accuracy = decimal(paper_value("table1_classifier_accuracy", loss, "cifar100"))
        lines.append(table_line(f"{NAMES[loss]}, **the paper**, 1000 epochs", accuracy, *paper))
        for group, title in LENGTH_TITLES.items():
            if (group, loss) in found:
                record = _last(found[group, loss])
                cells = [f"{record[metric]:.{digits}f}" for _, metric, digits in METRICS.values()]
                lines.append(
                    table_line(f"{NAMES[loss]}, {title}", percent(record["accuracy"]), *cells)
                )
    return "\n".join(lines)


def length_source() -> str:
    """Return where the numbers of the long runs come from."""
    return _origin(_length_folders().values())


def convergence_table() -> str:
    """Return Table 7's percentages of the long runs on CIFAR-100 in Markdown."""
    parts = {
        "percent_to_collapse": ("95% of collapse, of the run", "to_95_percent_nc"),
        "percent_of_baseline": ("CE's last value, of CE's own time", "to_ce_final"),
    }
    lines = table_header("percent", *CONVERGENCE_METRICS.values())
    for part, (what, key) in parts.items():
        paper = [
            decimal(paper_value("table7_convergence_percent", key, "nonl", metric))
            for metric in CONVERGENCE_METRICS
        ]
        lines.append(table_line(f"NONL until {what}: **the paper**, 1000 epochs", *paper))
        for group, title in LENGTH_TITLES.items():
            times = convergence_times(group, part)
            if times:
                cells = [decimal(times[metric]) for metric in CONVERGENCE_METRICS]
                lines.append(table_line(f"NONL until {what}: {title}", *cells))
    if not any(convergence_times(group, part) for group in LENGTHS for part in parts):
        raise FileNotFoundError("no pair of long runs is among the results")
    return "\n".join(lines)


def convergence_source() -> str:
    """Return how finely the times of the long runs are known."""
    steps = [
        f"{100 * LENGTHS[group][1] / LENGTHS[group][0]:g}% of the run of {LENGTHS[group][0]}"
        for group in LENGTHS
        if convergence_times(group, "percent_to_collapse")
    ]
    return f"One evaluation every {' and every '.join(steps)} epochs."


def convergence_times(group: str, part: str) -> dict[str, Any]:
    """Return when each metric of NONL converges, in percent; nothing if a run is missing.

    Args:
        group: Group of the run.
        part: ``"percent_to_collapse"`` or ``"percent_of_baseline"``.
    """
    path = _length_folder(group, "nonl") / "benchmarks" / "convergence.json"
    if not path.exists():
        return {}
    return {row.metric: getattr(row, part) for row in read_result(path, ConvergenceRow).rows}


def length_accuracies(group: str) -> dict[str, float]:
    """Return the accuracy of the long runs of a group, as fractions; nothing if one is missing.

    Args:
        group: Group of the runs.
    """
    found = {loss: _length_folder(group, loss) for loss in LENGTH_LOSSES}
    if not all(_has_run(folder) for folder in found.values()):
        return {}
    return {loss: float(_last(folder)["accuracy"]) for loss, folder in found.items()}


def length_metric(loss: str, metric: str) -> float | None:
    """Return a metric after the paper's number of epochs; None if the run is missing.

    Args:
        loss: Name of the loss.
        metric: Name of the metric.
    """
    folder = _length_folder("length-1000", loss)
    return float(_last(folder)[metric]) if _has_run(folder) else None


def cifar10_table() -> str:
    """Return Tables 1 and 3 for CIFAR-10, the paper's numbers in parentheses, in Markdown."""
    table1 = _read("table1", CIFAR10_EPOCHS, columns=["cifar10"])
    accuracies = {number.row: number for number in table1}
    rows = {loss.replace("-", "_"): NAMES[loss] for loss in CIFAR10_LOSSES} | CONTRASTIVE_ROWS
    numbers = _read("table3", CIFAR10_EPOCHS, rows=[f"cifar10 {row}" for row in rows])
    _require(numbers)
    titles = (title for title, *_ in METRICS.values())
    lines = table_header("CIFAR-10, 100 epochs (paper: 1000)", "test accuracy", *titles)
    for row, title in rows.items():
        own = {number.column: number for number in numbers if number.row == f"cifar10 {row}"}
        if all(number.value is None for number in own.values()):
            continue
        if row in CONTRASTIVE_ROWS:
            accuracies[row] = _contrastive_numbers()[row.removeprefix("scl_")]
        cells = [_beside(own[column], METRICS[column][2]) for column in METRICS]
        lines.append(table_line(title, _beside(accuracies[row]), *cells))
    return "\n".join(lines)


def cifar10_source() -> str:
    """Return where the numbers of CIFAR-10 come from."""
    return _origin(map(_cifar10_folder, (*CIFAR10_LOSSES, "scl")))


def nearest_classes_source() -> str:
    """Return where the nearest classes of CIFAR-10 come from."""
    return _origin(map(_cifar10_folder, NEAREST_LOSSES))


def cifar10_accuracies() -> dict[str, tuple[float, float]]:
    """Return accuracies on CIFAR-10 in percent, ours and the paper's, by loss."""
    return {
        number.row: (float(number.value), number.paper)
        for number in _read("table1", CIFAR10_EPOCHS, columns=["cifar10"])
        if isinstance(number.value, float) and number.paper is not None
    }


def nearest_classes_table() -> str:
    """Return which two classes of CIFAR-10 have the nearest prototypes, in Markdown."""
    lines = table_header(
        "CIFAR-10, 100 epochs",
        "temperature",
        "training accuracy",
        "nearest prototypes",
        "their cosine",
        "test accuracy of these two classes",
    )
    for loss in NEAREST_LOSSES:
        folder = _cifar10_folder(loss)
        if not (folder / ARRAYS).exists():
            continue
        arrays = load_file(folder / ARRAYS)
        cosines = np.triu(arrays["prototype_cosines"], 1) - 2 * np.tri(len(CIFAR10_CLASSES))
        first, second = np.unravel_index(cosines.argmax(), cosines.shape)
        pair = f"{CIFAR10_CLASSES[first]} and {CIFAR10_CLASSES[second]}"
        accuracy = [percent(arrays["class_accuracy"][index]) for index in (first, second)]
        lines.append(
            table_line(
                NAMES[loss],
                getattr(read_run_recipe(RunFolder(folder)).loss, "temperature", "–"),
                percent(_last(folder)["train_accuracy"]),
                pair,
                f"{cosines[first, second]:.3f}",
                " and ".join(accuracy),
            )
        )
    if len(lines) == 2:
        raise FileNotFoundError("no run on CIFAR-10 is among the results")
    return "\n".join(lines)


def contrastive_table() -> str:
    """Return Tables 2 and 14 for CIFAR-10 in Markdown."""
    numbers = _contrastive_numbers()
    lines = table_header(
        "SCL on CIFAR-10, 100 epochs", "test accuracy", "paper", "passes", "seconds"
    )
    for row, title in PROBE_TITLES.items():
        if numbers[row].value is not None:
            result = _find_probe(row)
            cells = [decimal(numbers[row].value), decimal(numbers[row].paper)]
            lines.append(table_line(title, *cells, result.num_passes, f"{result.seconds:.1f}"))
    return "\n".join(lines)


def contrastive_source() -> str:
    """Return where the numbers of contrastive features come from."""
    return _origin([_cifar10_folder("scl")])


def probe_accuracies() -> dict[str, float]:
    """Return the accuracies of classifiers on contrastive features of CIFAR-10 in percent."""
    try:
        numbers = _contrastive_numbers()
    except FileNotFoundError:
        return {}
    return {row: one.value for row, one in numbers.items() if isinstance(one.value, float)}


def _contrastive_numbers() -> dict[str, Number]:
    """Return the numbers of Tables 2 and 14 by probe."""
    if not _has_run(_cifar10_folder("scl")):
        raise FileNotFoundError("no contrastive run is among the results")
    numbers = {number.row: number for number in _read("table2", 100, columns=["cifar10"])}
    cached = _read("table14", 100, rows=["cifar10"])
    return numbers | {number.column: number for number in cached}


def _find_probe(row: str) -> ProbeResult:
    reading = PROBES[row]
    rows = read_result(_cifar10_folder("scl") / "benchmarks" / "probes.json", ProbeResult).rows
    own = [one for one in rows if one.name == reading.probe]
    return next((one for one in own if one.features == reading.space), own[0])


def _cifar10_folder(loss: str) -> Path:
    return RESULTS / f"cifar10-{loss}-{CIFAR10_EPOCHS}-epochs"


def temperature_accuracies() -> dict[float, tuple[float, float | None]]:
    """Return the accuracies of NONL by temperature in percent, ours and the paper's."""
    columns = [f"{value:g}" for value in TEMPERATURES]
    numbers = _read("table9", GRID_EPOCHS, rows=["nonl"], columns=columns)
    return {
        float(number.column): (number.value, number.paper)
        for number in numbers
        if isinstance(number.value, float)
    }


def temperature_table() -> str:
    """Return the row of Table 9 for NONL in Markdown."""
    values = temperature_accuracies()
    if not values:
        raise FileNotFoundError("no run of Table 9 is among the results")
    lines = table_header("NONL on CIFAR-100, temperature", *(f"{value:g}" for value in values))
    ours, paper = (map(decimal, numbers) for numbers in zip(*values.values(), strict=True))
    lines.append(table_line("**the paper**, 1000 epochs", *paper))
    lines.append(table_line(f"ours, {GRID_EPOCHS} epochs", *ours))
    return "\n".join(lines)


def phase_table() -> str:
    """Return NONL's accuracy by temperature and batch size in Markdown."""
    columns = [f"{value:g}" for value in PHASE_TEMPERATURES]
    rows = [f"nonl {size}" for size in BATCH_SIZES]
    numbers = _read("figure3-cifar100", GRID_EPOCHS, rows=rows, columns=columns)
    known = [number for number in numbers if number.value is not None]
    _require([number for number in known if number.row != "nonl 512"])
    columns = [name for name in columns if name in {number.column for number in known}]
    lines = table_header(
        "NONL on CIFAR-100, batch size", *(f"temperature {name}" for name in columns)
    )
    for row in rows:
        own = {number.column: decimal(number.value) for number in known if number.row == row}
        if own:
            cells = [own.get(name, "–") for name in columns]
            lines.append(table_line(row.removeprefix("nonl "), *cells))
    return "\n".join(lines)


def grid_source() -> str:
    """Return where the numbers of temperatures and batch sizes come from."""
    return _origin(sorted(RESULTS.glob(f"cifar100-nonl*-{GRID_EPOCHS}-epochs")))


def _read(
    target: str, epochs: int, *, rows: Sequence[str] = (), columns: Sequence[str] = ()
) -> tuple[Number, ...]:
    plan = plan_target(target, out=RESULTS, scale=epochs / PAPER_EPOCHS, rows=rows, columns=columns)
    return read_numbers(plan)


def _require(numbers: Iterable[Number]) -> None:
    if all(number.value is None for number in numbers):
        raise FileNotFoundError("no run of this table is among the results")


def _length_folder(group: str, loss: str) -> Path:
    epochs, _ = LENGTHS[group]
    return RESULTS / run_name(length_run(loss, epochs), epochs)


def _length_folders() -> dict[tuple[str, str], Path]:
    """Return the folders of the long runs that are there, by group and loss."""
    folders = {
        (group, loss): _length_folder(group, loss) for group in LENGTHS for loss in LENGTH_LOSSES
    }
    found = {key: folder for key, folder in folders.items() if _has_run(folder)}
    if not found:
        raise FileNotFoundError("no long run is among the results")
    return found


def _has_run(folder: Path) -> bool:
    return (folder / "recipe.yaml").exists()


def _last(folder: Path) -> dict[str, Any]:
    record = RunFolder(folder).last_evaluation()
    assert record is not None
    return record


def _origin(folders: Iterable[Path]) -> str:
    machines = [
        json.loads((folder / "machine.json").read_text()) for folder in folders if _has_run(folder)
    ]
    devices, versions, commits = (
        " and ".join(dict.fromkeys(values))
        for values in (
            [machine["device"] for machine in machines],
            [machine["versions"]["torch"] for machine in machines],
            [machine["commit"] for machine in machines],
        )
    )
    return f"{devices}, torch {versions}, one seed each; commit {commits}."


def _beside(number: Number, digits: int = 1) -> str:
    return f"{decimal(number.value, digits)} ({decimal(number.paper, digits)})"
