"""Put the tables of the committed results into the README.

python benchmarks/readme.py
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import losses
import metrics
import prototypes

ROOT = Path(__file__).parents[1]
TABLES: dict[str, Callable[[dict[str, Any]], str]] = {
    "losses": losses.table,
    "metrics": metrics.table,
    "prototypes": prototypes.table,
}


def with_tables(text: str) -> str:
    """The README's text with its tables made anew, and a line beneath each that says where the numbers come from."""
    for name, table in TABLES.items():
        record = json.loads((ROOT / f"benchmarks/results/{name}.json").read_text())
        machine = record["machine"]
        source = (
            f"{machine['cpu']}, {machine['threads']} threads, torch {machine['torch']}, float32; medians of "
            f"{record['repeats']}; commit {record['commit']}."
        )
        start, end = f"<!-- table: benchmarks/results/{name}.json -->", "<!-- end -->"
        made = f"{start}\n{table(record)}\n\n{source}\n{end}"
        pattern = f"{re.escape(start)}.*?{re.escape(end)}"
        text = re.sub(pattern, lambda _, made=made: made, text, flags=re.DOTALL)
    return text


if __name__ == "__main__":
    readme = ROOT / "README.md"
    readme.write_text(with_tables(readme.read_text()))
