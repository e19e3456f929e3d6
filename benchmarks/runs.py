"""The committed run folders (``results/runs``) as tables: what each came to at its end, and classifiers on two of them.

Each is a `protosphere train` on real CIFAR-100 with its recipe beside it; the images a second that they logged are of
processes that shared one GPU. ``classifiers.json`` is what `protosphere evaluate RUN --classifiers all --json` printed.
"""

import json
from pathlib import Path
from typing import Any

RUNS = Path(__file__).parent / "results/runs"
LABELS = {
    "cifar100-ce": "`cifar100-ce`",
    "cifar100-normface": "`cifar100-normface`",
    "cifar100-ntce": "`cifar100-ntce`",
    "cifar100-nonl": "`cifar100-nonl`",
    "cifar100-ntce-longer": "`cifar100-ntce`",
    "cifar100-nonl-longer": "`cifar100-nonl`",
    "cifar100-scl": "`cifar100-scl`",
    "cifar100-scl-no-projection": "`cifar100-scl`, `encoder.projection=none`",
    "cifar100-strong-ce": "`cifar100-strong-ce`",
    "cifar100-strong-nonl": "`cifar100-strong-nonl`",
}
COLUMNS = {
    "test_accuracy": ("test", "{:.2f} %"),
    "nearest_mean_accuracy": ("by nearest class mean", "{:.2f} %"),
    "nc1_ratio": ("spread within / between", "{:.3f}"),
    "inter_effective_rank": ("directions filled, of 99", "{:.1f}"),
    "weight_class_alignment": ("‖weight − class‖²", "{:.3f}"),
}
CLASSIFIERS = {
    "prototypes": "class means",
    "linear": "linear probe on augmented images",
    "normalized": "the same, weights and features normalized",
    "cached": "linear probe on cached features",
    "neighbours": "twenty nearest samples",
}
FEATURES = {
    ("cifar100-scl", "output"): "after the projection",
    ("cifar100-scl", "body"): "before it",
    ("cifar100-scl-no-projection", "output"): "trained without one",
}


def last_evaluation(name: str) -> dict[str, Any]:
    """The last evaluation of a run."""
    records = [
        json.loads(line) for line in (RUNS / name / "metrics.jsonl").read_text().splitlines()
    ]
    found: dict[str, Any] = [record for record in records if record["kind"] == "evaluation"][-1]
    return found


def table() -> str:
    """All runs as Markdown."""
    lines = _headings("recipe", "epochs", *(heading for heading, _ in COLUMNS.values()))
    for folder, label in LABELS.items():
        found = last_evaluation(folder)
        scaled = {
            name: 100 * found[name] if name.endswith("accuracy") else found[name]
            for name in COLUMNS
        }
        values = [shown.format(scaled[name]) for name, (_, shown) in COLUMNS.items()]
        lines.append(f"| {label} | {found['epoch']} | {' | '.join(values)} |")
    return "\n".join(lines)


def source() -> str:
    """Where the numbers come from."""
    return _machine(list(LABELS), "one seed each, up to seven at a time")


def classifiers_table() -> str:
    """Accuracy and cost of classifiers on features of the contrastive runs, as Markdown."""
    found = {
        (folder, row["space"], row["name"]): row
        for folder in {folder for folder, _ in FEATURES}
        for row in json.loads((RUNS / folder / "classifiers.json").read_text())["classifiers"]
    }
    lines = _headings("classifier", "passes over the training images", *FEATURES.values())
    for name, label in CLASSIFIERS.items():
        rows = [found.get((*where, name)) for where in FEATURES]
        (passes,) = {row["passes"] for row in rows if row}
        cells = [
            f"{100 * row['accuracy']:.2f} %, {row['seconds']:.1f} s" if row else "" for row in rows
        ]
        lines.append(f"| {label} | {passes} | {' | '.join(cells)} |")
    return "\n".join(lines)


def classifiers_source() -> str:
    """Where the numbers come from."""
    folders = list(dict.fromkeys(folder for folder, _ in FEATURES))
    return _machine(
        folders, f"{last_evaluation(folders[0])['epoch']} epochs, one seed each, evaluated alone"
    )


def _headings(first: str, *others: str) -> list[str]:
    return [f"| {' | '.join((first, *others))} |", f"|---{'|---:' * len(others)}|"]


def _machine(folders: list[str], how: str) -> str:
    machines = [json.loads((RUNS / folder / "machine.json").read_text()) for folder in folders]
    commits = list(dict.fromkeys(machine.pop("commit") for machine in machines))
    assert all(machine == machines[0] for machine in machines), (
        "runs of one table must be of one machine"
    )
    torch = machines[0]["versions"]["torch"]
    return f"{machines[0]['device']}, torch {torch}; {how}; commit {' and '.join(commits)}."
