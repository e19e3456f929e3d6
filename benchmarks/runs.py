"""The committed run folders (``results/runs``) as a table: what each came to at its end.

Each is a `protosphere train` on real CIFAR-100 with its recipe beside it; the images a second that they logged are of
processes that shared one GPU.
"""

import json
from pathlib import Path
from typing import Any

RUNS = Path(__file__).parent / "results/runs"
ORDER = ("ce", "normface", "ntce", "nonl", "scl", "strong-ce", "strong-nonl")
COLUMNS = {
    "test_accuracy": ("test", "{:.2f} %"),
    "nearest_mean_accuracy": ("by nearest class mean", "{:.2f} %"),
    "nc1_ratio": ("spread within / between", "{:.3f}"),
    "inter_effective_rank": ("directions filled, of 99", "{:.1f}"),
    "weight_class_alignment": ("‖weight − class‖²", "{:.3f}"),
}


def last_evaluation(name: str) -> dict[str, Any]:
    """The last evaluation of a run."""
    records = [json.loads(line) for line in (RUNS / name / "metrics.jsonl").read_text().splitlines()]
    found: dict[str, Any] = [record for record in records if record["kind"] == "evaluation"][-1]
    return found


def table() -> str:
    """All runs as Markdown."""
    headings = ["recipe", "epochs", *(heading for heading, _ in COLUMNS.values())]
    lines = [f"| {' | '.join(headings)} |", f"|---{'|---:' * (len(headings) - 1)}|"]
    for loss in ORDER:
        found = last_evaluation(f"cifar100-{loss}")
        scaled = {name: 100 * found[name] if name.endswith("accuracy") else found[name] for name in COLUMNS}
        values = [shown.format(scaled[name]) for name, (_, shown) in COLUMNS.items()]
        lines.append(f"| `cifar100-{loss}` | {found['epoch']} | {' | '.join(values)} |")
    return "\n".join(lines)


def source() -> str:
    """Where the numbers come from."""
    machine, *others = (json.loads((RUNS / f"cifar100-{loss}/machine.json").read_text()) for loss in ORDER)
    assert all(other == machine for other in others), "runs of one table must be of one machine and commit"
    torch = machine["versions"]["torch"]
    return f"{machine['device']}, torch {torch}; one seed each, up to seven at a time; commit {machine['commit']}."
