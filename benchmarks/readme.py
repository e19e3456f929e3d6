"""Put the tables of the committed results into the README.

python benchmarks/readme.py
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import embeddings
import losses
import metrics
import prototypes
import runs
import training

ROOT = Path(__file__).parents[1]
TABLES: dict[str, Callable[[dict[str, Any]], str]] = {
    "embeddings": embeddings.table,
    "losses": losses.table,
    "metrics": metrics.table,
    "prototypes": prototypes.table,
    "training-gpu": training.table,
}


def with_tables(text: str) -> str:
    """The README's text with its tables made anew, and a line beneath each that says where the numbers come from."""
    for name, table in TABLES.items():
        record = json.loads((ROOT / f"benchmarks/results/{name}.json").read_text())
        text = _with_table(text, f"{name}.json", table(record), _source(record))
    text = _with_table(text, "runs", runs.table(), runs.source())
    return _with_table(
        text, "runs/cifar100-scl", runs.classifiers_table(), runs.classifiers_source()
    )


def _with_table(text: str, name: str, table: str, source: str) -> str:
    start, end = f"<!-- table: benchmarks/results/{name} -->", "<!-- end -->"
    made = f"{start}\n{table}\n\n{source}\n{end}"
    return re.sub(f"{re.escape(start)}.*?{re.escape(end)}", lambda _: made, text, flags=re.DOTALL)


def _source(record: dict[str, Any]) -> str:
    machine = record["machine"]
    if "gpu" in machine:
        return f"{machine['gpu']}, torch {machine['torch']}; commit {record['commit']}."
    return (
        f"{machine['cpu']}, {machine['threads']} threads, torch {machine['torch']}, float32; medians of "
        f"{record['repeats']}; commit {record['commit']}."
    )


if __name__ == "__main__":
    readme = ROOT / "README.md"
    readme.write_text(with_tables(readme.read_text()))
