"""Tables of the records that ``benefits.py`` has collected."""

import json
from statistics import fmean
from typing import Any

from benefits import LONG_TAIL_METHODS, METHODS, NOISE_METHODS, NOISE_SMOOTHINGS, RESULTS
from protosphere.report.paper import paper_value
from protosphere.runs import RunFolder
from protosphere.runs.results import read_result
from protosphere.studies.corruption_summary import reference_of, summarize_corruptions
from protosphere.studies.corruptions import CorruptionRow
from table_lines import decimal, percent, table_header, table_line

NAMES = {"ce": "CE", "normface": "NormFace", "ntce": "NTCE", "nonl": "NONL", "etf-dr": "ETF + DR"}
LONG_TAIL_CLASSIFIERS = {
    "head": "head",
    "logit_adjusted_head": "head, logit-adjusted",
    "class_means": "class means",
    "whitened_class_means": "class means, whitened",
}
IMBALANCE_ROWS = {
    "cross-entropy, its head": ("ce", "head"),
    "the same runs, logits minus log class frequency": ("ce", "logit_adjusted_head"),
    "the same runs, class means of the features": ("ce", "class_means"),
    "NTCE, its head": ("ntce", "head"),
    "NONL, its head": ("nonl", "head"),
}
TRANSFER_CLASSIFIERS = {
    "logistic": "logistic regression",
    "class_means": "class means",
    "whitened_class_means": "class means, whitened",
    "knn": "20 nearest neighbors",
}
TRANSFERS = {
    "cifar100-{}": {
        "cifar10": "CIFAR-100 → CIFAR-10",
        "flowers102": "CIFAR-100 → Flowers-102",
        "fashion-mnist": "CIFAR-100 → Fashion-MNIST",
    },
    "cifar10-{}": {
        "cifar100": "CIFAR-10 → CIFAR-100",
        "fashion-mnist": "CIFAR-10 → Fashion-MNIST",
    },
    "cifar100-coarse-{}": {"fine": "CIFAR-100, 20 superclasses → 100 classes"},
}
CONVERGENCE_METRICS = {
    "weight_instance_alignment": "sample alignment",
    "weight_class_alignment": "class alignment",
    "weights_effective_rank": "rank of the weights",
    "intra_effective_rank": "rank within classes",
    "inter_effective_rank": "rank of the class means",
}
GROUPS = ("all", "many", "medium", "few")


def long_tail_table() -> str:
    """Return accuracies on CIFAR-100-LT by classifier and size of the classes, in Markdown."""
    titles = [f"{label}: all (many / medium / few)" for label in LONG_TAIL_CLASSIFIERS.values()]
    lines = table_header("CIFAR-100-LT, ratio 0.01", "seeds", *titles, "paper, head")
    for method in LONG_TAIL_METHODS:
        records = _long_tail_records(method)
        if not records:
            continue
        cells = []
        for classifier in LONG_TAIL_CLASSIFIERS:
            first, *others = _long_tail_percents(records, classifier)
            cells.append(f"{first} ({' / '.join(others)})")
        paper = paper_value("table6_long_tail", method.replace("-", "_"), "cifar100_lt_0.01")
        lines.append(table_line(NAMES[method], len(records), *cells, paper))
    return "\n".join(lines)


def imbalance_table() -> str:
    """Return what helps under imbalance in Markdown: corrected heads of CE, and other losses."""
    lines = table_header("CIFAR-100-LT, ratio 0.01", *GROUPS)
    for title, (method, classifier) in IMBALANCE_ROWS.items():
        lines.append(
            table_line(title, *_long_tail_percents(_long_tail_records(method), classifier))
        )
    return "\n".join(lines)


def _long_tail_records(method: str) -> list[list[dict[str, Any]]]:
    # Only names that end in a seed: runs with another temperature have it in between.
    paths = sorted(RESULTS.glob(f"cifar100-lt-0.01-{method}-[0-9]*"))
    return [_rows(path.name, "long_tail") for path in paths]


def _long_tail_percents(records: list[list[dict[str, Any]]], classifier: str) -> list[str]:
    """Return the accuracies of all classes and of those with many, medium and few images."""
    return [
        percent(
            fmean(
                row["accuracy"]
                for rows in records
                for row in rows
                if (row["classifier"], row["group"]) == (classifier, group)
            )
        )
        for group in GROUPS
    ]


def noise_table() -> str:
    """Return accuracies under label noise in Markdown."""
    lines = table_header(
        "CIFAR-100, 60 epochs",
        "head",
        "class means",
        "whitened",
        "wrong labels learned (memorized)",
    )
    for fraction in (0.2, 0.4):
        smoothed = {f"ce-smoothing-{s}": f"CE, label smoothing {s}" for s in NOISE_SMOOTHINGS}
        for method, loss in {"ce": "CE", **smoothed, **NAMES}.items():
            name = f"cifar100-noise-{fraction}-{method}"
            if not (RESULTS / name).exists():
                continue
            rows = {row["classifier"]: row for row in _rows(name, "label_noise")}
            kinds = ("head", "class_means", "whitened_class_means")
            cells = [percent(rows[kind]["accuracy"]) for kind in kinds]
            title = f"{loss}, {100 * fraction:.0f}% wrong labels"
            lines.append(table_line(title, *cells, percent(rows["head"]["memorized"])))
    return "\n".join(lines)


def robustness_table() -> str:
    """Return errors on corrupted images, detection of unknown classes and calibration."""
    methods = _measured("cifar100-{}")
    results = {
        method: read_result(_path(f"cifar100-{method}", "corruptions"), CorruptionRow).rows
        for method in methods
    }
    reference = reference_of("CE", results["ce"])
    summaries = {method: summarize_corruptions(results[method], reference) for method in methods}
    rows: dict[str, list[Any]] = {
        "error on clean images": [percent(s.clean_error) for s in summaries.values()],
        "error on corrupted images": [percent(s.mean_error) for s in summaries.values()],
        "mCE relative to CE": [percent(s.mce) for s in summaries.values()],
        "relative mCE": [percent(s.relative_mce) for s in summaries.values()],
    }
    rows |= _unknown_and_calibration("cifar100-{}", "CIFAR-10", methods)
    lines = table_header("CIFAR-100, 100 epochs", *(NAMES[method] for method in methods))
    return "\n".join([*lines, *(table_line(title, *cells) for title, cells in rows.items())])


def small_set_table() -> str:
    """Return detection of unknown classes and calibration of the runs on CIFAR-10 in Markdown."""
    methods = _measured("cifar10-{}")
    last = [RunFolder(RESULTS / f"cifar10-{method}").last_evaluation() for method in methods]
    errors = [None if record is None else 1 - record["accuracy"] for record in last]
    rows = {"error on clean images": [percent(error) for error in errors]}
    rows |= _unknown_and_calibration("cifar10-{}", "CIFAR-100", methods)
    lines = table_header("CIFAR-10, 60 epochs", *(NAMES[method] for method in methods))
    return "\n".join([*lines, *(table_line(title, *cells) for title, cells in rows.items())])


def _unknown_and_calibration(folder: str, unknown: str, methods: list[str]) -> dict[str, list[str]]:
    """Return AUROC of every score and calibration errors, a row each, of the runs of methods."""
    rows = {}
    for score in ("softmax", "energy", "cosine", "subspace", "mahalanobis", "knn"):
        rows[f"AUROC against {unknown}, {score}"] = [
            percent(row["auroc"])
            for method in methods
            for row in _rows(folder.format(method), "ood")
            if row["score"] == score
        ]
    for state in ("before", "after"):
        rows[f"calibration error of the head, {state} temperature scaling"] = [
            percent(row["ece"])
            for method in methods
            for row in _rows(folder.format(method), "calibration")
            if (row["classifier"], row["state"]) == ("head", state)
        ]
    return rows


def few_shot_table() -> str:
    """Return accuracies of class means of a few samples per class in Markdown."""
    lines = table_header("class means / whitened", "shots", *(NAMES[method] for method in METHODS))
    for folder, targets in TRANSFERS.items():
        methods = _measured(folder)
        for target, title in targets.items() if methods else ():
            values = {
                (method, row["classifier"], row["shots"]): row["value"]
                for method in methods
                for row in _rows(folder.format(method), f"few-shot-{target}")
            }
            for shots in (1, 5, 20):
                kinds = ("class_means", "whitened_class_means") if shots > 1 else ("class_means",)
                best = [
                    " / ".join(percent(values.get((method, kind, shots))) for kind in kinds)
                    for method in METHODS
                ]
                lines.append(table_line("" if shots > 1 else title, shots, *best))
    return "\n".join(lines)


def transfer_table() -> str:
    """Return accuracies of frozen features on other sets in Markdown."""
    lines = table_header("transfer", "classifier", *(NAMES[method] for method in METHODS))
    for folder, targets in TRANSFERS.items():
        methods = _measured(folder)
        for target, title in targets.items() if methods else ():
            for index, (classifier, label) in enumerate(TRANSFER_CLASSIFIERS.items()):
                values = {
                    method: row["value"]
                    for method in methods
                    for row in _rows(folder.format(method), f"transfer-{target}")
                    if row["classifier"] == classifier
                }
                cells = [percent(values.get(method)) for method in METHODS]
                lines.append(table_line("" if index else title, label, *cells))
    return "\n".join(lines)


def convergence_table() -> str:
    """Return both parts of Table 7 in Markdown."""
    lines = table_header("percent (the paper's number)", *CONVERGENCE_METRICS.values())
    parts = {
        "percent_to_collapse": "95% of collapse, of the run",
        "percent_of_baseline": "CE's last value, of CE's own time",
    }
    for part, title in parts.items():
        for method in _measured("cifar100-{}"):
            if (method, part) == ("ce", "percent_of_baseline"):
                continue
            rows = {row["metric"]: row for row in _rows(f"cifar100-{method}", "convergence")}
            cells = [
                f"{decimal(rows[metric][part])} ({decimal(rows[metric][f'paper_{part}'])})"
                for metric in CONVERGENCE_METRICS
            ]
            lines.append(table_line(f"{NAMES[method]}, {title}", *cells))
    return "\n".join(lines)


def long_tail() -> dict[str, str]:
    """Return accuracies of head and class means on CIFAR-100-LT for the README, by loss."""
    cells = {}
    for method in LONG_TAIL_METHODS:
        records = _long_tail_records(method)
        cells[method] = " / ".join(
            _long_tail_percents(records, classifier)[0] for classifier in ("head", "class_means")
        )
    return cells


def wrong_labels(fraction: float) -> dict[str, str]:
    """Return accuracies of the head under label noise for the README, by loss."""
    rows = {
        method: _rows(f"cifar100-noise-{fraction}-{method}", "label_noise")[0]
        for method in NOISE_METHODS
    }
    return {method: percent(row["accuracy"]) for method, row in rows.items()}


def transfer(target: str) -> dict[str, str]:
    """Return accuracies of logistic regression on another set for the README, by loss."""
    return {
        method: percent(row["value"])
        for method in _measured("cifar100-{}")
        for row in _rows(f"cifar100-{method}", f"transfer-{target}")
        if row["classifier"] == "logistic"
    }


def source(benchmark: str, runs: str = "*") -> str:
    """Return the line that says where the numbers of a table come from.

    Args:
        benchmark: Pattern of the files of the benchmark, without ending.
        runs: Pattern of the names of the runs.
    """
    paths = RESULTS.glob(f"{runs}/benchmarks/{benchmark}.json")
    folders = {path.parent.parent for path in paths}
    machines = [json.loads((folder / "machine.json").read_text()) for folder in folders]
    commits = sorted({machine["commit"] for machine in machines})
    (device,) = {machine["device"] for machine in machines}
    return f"{device}; several runs at a time; commit {' and '.join(commits)}."


def _measured(folder: str) -> list[str]:
    return [method for method in METHODS if (RESULTS / folder.format(method)).exists()]


def _path(run: str, benchmark: str) -> Any:
    return RESULTS / run / "benchmarks" / f"{benchmark}.json"


def _rows(run: str, benchmark: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(_path(run, benchmark).read_text())["rows"]
    return rows
