"""Put the tables of the committed results into the README.

python benchmarks/readme.py
"""

import json
import re
from pathlib import Path

from losses import table

ROOT = Path(__file__).parents[1]


def with_tables(text: str) -> str:
    """The README's text with its tables made anew, and a line beneath each that says where the numbers come from."""
    record = json.loads((ROOT / "benchmarks/results/losses.json").read_text())
    machine = record["machine"]
    source = (
        f"{machine['cpu']}, {machine['threads']} threads, torch {machine['torch']}, float32; medians of "
        f"{record['repeats']}; commit {record['commit']}."
    )
    start, end = "<!-- table: benchmarks/results/losses.json -->", "<!-- end -->"
    made = f"{start}\n{table(record)}\n\n{source}\n{end}"
    return re.sub(f"{re.escape(start)}.*?{re.escape(end)}", lambda _: made, text, flags=re.DOTALL)


if __name__ == "__main__":
    readme = ROOT / "README.md"
    readme.write_text(with_tables(readme.read_text()))
