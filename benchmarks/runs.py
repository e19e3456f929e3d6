"""Tables of the committed training runs: final metrics, and classifiers fitted on their features.

Each folder of ``results/runs`` holds the recipe, machine and metrics of one ``protosphere train``
on CIFAR-100; ``classifiers.json`` holds what ``protosphere evaluate RUN --probe all --json``
printed. Folders written by 0.1 have the keys that have been renamed since under their new names;
``machine.json`` says which version wrote them.
"""

import json
from pathlib import Path
from typing import Any

import benefits_tables
import verdict
from table_lines import percent, table_header

RESULTS = Path(__file__).parent / "results"
RUNS = RESULTS / "runs"
LABELS = {
    "cifar100-ce": "`cifar100-ce`",
    "cifar100-normface": "`cifar100-normface`",
    "cifar100-ntce": "`cifar100-ntce`",
    "cifar100-nonl": "`cifar100-nonl`",
    "cifar100-ntce-longer": "`cifar100-ntce`",
    "cifar100-nonl-longer": "`cifar100-nonl`",
    "cifar100-scl": "`cifar100-scl`",
    "cifar100-scl-no-projection": "`cifar100-scl`, `model.projection=null`",
    "cifar100-strong-ce": "`cifar100-strong-ce`",
    "cifar100-strong-nonl": "`cifar100-strong-nonl`",
}
COLUMNS = {
    "accuracy": ("test accuracy", "{:.2f}%"),
    "nearest_mean_accuracy": ("nearest class mean", "{:.2f}%"),
    "nc1_ratio": ("within/between-class variance", "{:.3f}"),
    "inter_effective_rank": ("effective rank of class means (of 99)", "{:.1f}"),
    "weight_class_alignment": ("‖prototype − class mean‖²", "{:.3f}"),
}
# NONL with mixup: weight of a mixed image as a negative of a class that it has the fraction q of.
MIXUP = {
    "cifar100-nonl-mixup": "0 if q > 1/K (`excluded`)",
    "cifar100-nonl-mixup-any": "0 if q > 0",
    "cifar100-nonl-mixup-weighted": "1 − q / max q (`weighted`)",
}
MIXUP_SEEDS = (42, 43)
CLASSIFIERS = {
    "class_means": "class means",
    "linear": "linear probe on augmented images",
    "normalized": "linear probe, weights and features normalized",
    "cached_linear": "linear probe on cached features",
    "knn": "20 nearest neighbors",
}
FEATURES = {
    ("cifar100-scl", "output"): "after the projection",
    ("cifar100-scl", "backbone"): "before the projection",
    ("cifar100-scl-no-projection", "output"): "trained without a projection",
}
# The columns of the summary in the README.
SUMMARY_LOSSES = {"ce": "CE", "normface": "NormFace", "ntce": "NTCE", "nonl": "NONL"}


def evaluations(folder: str) -> list[dict[str, Any]]:
    """Return the evaluation records of a run, oldest first."""
    lines = (RUNS / folder / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    return [record for record in records if record["kind"] == "evaluation"]


def table() -> str:
    """Return the final metrics of all runs as a Markdown table."""
    lines = table_header("recipe", "epochs", *(heading for heading, _ in COLUMNS.values()))
    for folder, label in LABELS.items():
        record = evaluations(folder)[-1]
        values = [
            template.format(100 * record[name] if name.endswith("accuracy") else record[name])
            for name, (_, template) in COLUMNS.items()
        ]
        lines.append(f"| {label} | {record['epoch']} | {' | '.join(values)} |")
    return "\n".join(lines)


def source() -> str:
    """Return the line that says where the numbers of ``table`` come from."""
    return _origin(list(LABELS), "one seed each, several runs at a time on the GPU")


def mixup_table() -> str:
    """Return NONL's accuracy with mixup by the weights of negatives as a Markdown table."""
    lines = table_header("weight as a negative", *(f"seed {seed}" for seed in MIXUP_SEEDS))
    for folder, label in MIXUP.items():
        records = [evaluations(f"{folder}-{seed}")[-1] for seed in MIXUP_SEEDS]
        cells = [
            f"{100 * record['accuracy']:.2f}%, class means "
            f"{100 * record['nearest_mean_accuracy']:.2f}%"
            for record in records
        ]
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(lines)


def mixup_source() -> str:
    """Return the line that says where the numbers of ``mixup_table`` come from."""
    folders = [f"{folder}-{seed}" for folder in MIXUP for seed in MIXUP_SEEDS]
    return _origin(folders, "`cifar100-nonl`, mixup with α = 1, 60 epochs")


def classifiers_table() -> str:
    """Return accuracy and cost of classifiers on contrastive features as a Markdown table."""
    results = {
        (folder, row["features"], row["name"]): row
        for folder in {folder for folder, _ in FEATURES}
        for row in probe_results(folder)
    }
    lines = table_header("classifier", "passes over the training images", *FEATURES.values())
    for name, label in CLASSIFIERS.items():
        rows = [results.get((*place, name)) for place in FEATURES]
        (num_passes,) = {row["num_passes"] for row in rows if row}
        cells = [
            f"{100 * row['accuracy']:.2f}%, {row['seconds']:.1f} s" if row else "" for row in rows
        ]
        lines.append(f"| {label} | {num_passes} | {' | '.join(cells)} |")
    return "\n".join(lines)


def classifiers_source() -> str:
    """Return the line that says where the numbers of ``classifiers_table`` come from."""
    folders = list(dict.fromkeys(folder for folder, _ in FEATURES))
    epochs = evaluations(folders[0])[-1]["epoch"]
    return _origin(folders, f"{epochs} epochs, one seed each, evaluated one at a time")


def summary_table() -> str:
    """Return the README's table: accuracy in four settings, and two metrics of collapse."""
    ranks, variances = verdict.means("inter_effective_rank"), verdict.means("nc1_ratio")
    rows = {
        "test accuracy, each loss with the best of eight trials": _percent(
            verdict.means("accuracy")
        ),
        "the same runs: effective rank of class means, at most 99": {
            loss: f"{rank:.1f}" for loss, rank in ranks.items()
        },
        "the same runs: within/between-class variance": {
            loss: f"{variance:.3f}" for loss, variance in variances.items()
        },
        "long tail (1:100), settings tuned for CE: head / class means": benefits_tables.long_tail(),
        "40% of the training labels wrong: test accuracy": benefits_tables.wrong_labels(0.4),
        "frozen features on CIFAR-10: logistic regression": benefits_tables.transfer("cifar10"),
    }
    lines = table_header("CIFAR-100, ResNet-18", *SUMMARY_LOSSES.values())
    for title, cells in rows.items():
        lines.append(f"| {title} | {' | '.join(cells.get(loss, '–') for loss in SUMMARY_LOSSES)} |")
    return "\n".join(lines)


def summary_source() -> str:
    """Return the line that says where the numbers of ``summary_table`` come from."""
    return (
        f"First three rows: {verdict.num_seeds()} seeds, 100 epochs; fourth: 2 seeds, 200 epochs; "
        "otherwise one seed, 60 or 100 epochs and the settings of the paper. –: not measured. "
        "[All runs](docs/benchmarks.md)."
    )


def accuracy_table() -> str:
    """Return the accuracies of runs whose folders were not kept as a Markdown table."""
    cases = json.loads((RESULTS / "accuracy.json").read_text())["cases"]
    lines = table_header("settings", *SUMMARY_LOSSES.values(), "other")
    for title, values in cases.items():
        shown = _percent(values)
        others = [f"{name}: {shown[name]}" for name in values if name not in SUMMARY_LOSSES]
        cells = [shown.get(loss, "–") for loss in SUMMARY_LOSSES]
        lines.append(f"| {title} | {' | '.join(cells)} | {'; '.join(others)} |")
    return "\n".join(lines)


def accuracy_source() -> str:
    """Return the line that says where the numbers of ``accuracy_table`` come from."""
    return "One seed each; the run folders were not kept."


def probe_results(folder: str) -> list[dict[str, Any]]:
    """Return the results of the classifiers on the features of a run."""
    record = json.loads((RUNS / folder / "classifiers.json").read_text())
    rows: list[dict[str, Any]] = record["classifiers"]
    return rows


def _percent(values: dict[str, float]) -> dict[str, str]:
    return {name: percent(value) for name, value in values.items()}


def _origin(folders: list[str], conditions: str) -> str:
    machines = [json.loads((RUNS / folder / "machine.json").read_text()) for folder in folders]
    commits = list(dict.fromkeys(machine["commit"] for machine in machines))
    devices = list(dict.fromkeys(machine["device"] for machine in machines))
    versions = list(dict.fromkeys(machine["versions"]["torch"] for machine in machines))
    return (
        f"{' and '.join(devices)}, torch {' and '.join(versions)}; {conditions}; "
        f"commit {' and '.join(commits)}."
    )
