"""Write the tables of the committed results into the README, docs/benchmarks.md and docs/paper.md.

A table stands between ``<!-- table: NAME -->`` and ``<!-- end -->``; NAME is a key of ``TABLES``.

    python benchmarks/tables.py
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import averaged_weights
import benefits_tables
import class_tables
import corruptions
import dynamics
import embeddings
import finetuning
import large_batches
import logistic_regression
import losses
import metrics
import negatives
import paper_claims
import paper_tables
import prototypes
import reproduction_tables
import runs
import scaling
import sweeps
import training
import variants
import verdict
import whitening
import wrong_labels

ROOT = Path(__file__).parents[1]
DOCUMENTS = (
    ROOT / "README.md",
    ROOT / "docs/benchmarks.md",
    ROOT / "docs/imbalanced-data.md",
    ROOT / "docs/paper.md",
)
_MARKED = re.compile(r"<!-- table: (?P<name>\S+) -->\n.*?<!-- end -->", flags=re.DOTALL)


def _of_record(
    name: str,
    table: Callable[[dict[str, Any]], str],
    source: Callable[[dict[str, Any]], str] | None = None,
) -> Callable[[], tuple[str, str]]:
    def make() -> tuple[str, str]:
        record = json.loads((ROOT / f"benchmarks/results/{name}.json").read_text())
        return table(record), (source or _source)(record)

    return make


# Each row makes a table and the line beneath it, which says where the numbers come from.
TABLES: dict[str, Callable[[], tuple[str, str]]] = {
    "summary": lambda: (runs.summary_table(), runs.summary_source()),
    "runs": lambda: (runs.table(), runs.source()),
    "accuracy": lambda: (runs.accuracy_table(), runs.accuracy_source()),
    "long-tail": lambda: (benefits_tables.long_tail_table(), benefits_tables.source("long_tail")),
    "imbalance": lambda: (benefits_tables.imbalance_table(), benefits_tables.source("long_tail")),
    "robustness": lambda: (
        benefits_tables.robustness_table(),
        benefits_tables.source("corruptions"),
    ),
    "transfer": lambda: (benefits_tables.transfer_table(), benefits_tables.source("transfer-*")),
    "few-shot": lambda: (benefits_tables.few_shot_table(), benefits_tables.source("few-shot-*")),
    "small-set": lambda: (
        benefits_tables.small_set_table(),
        benefits_tables.source("ood", "cifar10-*"),
    ),
    "noise": lambda: (benefits_tables.noise_table(), benefits_tables.source("label_noise")),
    "convergence": lambda: (
        benefits_tables.convergence_table(),
        benefits_tables.source("convergence"),
    ),
    "averaged-weights": _of_record(
        "averaged_weights", averaged_weights.table, averaged_weights.source
    ),
    "classifiers": lambda: (runs.classifiers_table(), runs.classifiers_source()),
    "class-differences": lambda: (
        class_tables.summary_table(verdict.RESULTS / "short"),
        class_tables.source(verdict.RESULTS / "short"),
    ),
    "changed-classes": lambda: (
        class_tables.classes_table(verdict.RESULTS / "short"),
        class_tables.source(verdict.RESULTS / "short"),
    ),
    "class-similarity": lambda: (
        class_tables.similarity_table(verdict.RESULTS / "short"),
        class_tables.source(verdict.RESULTS / "short", has_errors=False),
    ),
    "corruptions": _of_record("corruptions-gpu", corruptions.table),
    "dynamics": _of_record("dynamics", dynamics.table, dynamics.source),
    "dynamics-cpu": _of_record("dynamics-cpu", dynamics.table, dynamics.source),
    "embeddings": _of_record("embeddings", embeddings.table),
    "finetuning": _of_record("finetuning-gpu", finetuning.table),
    "frozen": _of_record("frozen_features", finetuning.frozen_table),
    "logistic": _of_record("logistic_regression-gpu", logistic_regression.table),
    "large-batches": _of_record("large_batches-gpu", large_batches.table, large_batches.source),
    "losses": _of_record("losses", losses.table),
    "metrics": _of_record("metrics", metrics.table),
    "mixup": lambda: (runs.mixup_table(), runs.mixup_source()),
    "mixing": _of_record("mixing-gpu", training.table),
    "negatives": _of_record("negatives", negatives.table, negatives.source),
    "claims": lambda: (paper_claims.claims_table(), paper_claims.claims_source()),
    "paper-accuracy": lambda: (paper_tables.accuracy_table(), paper_tables.source()),
    "paper-collapse": lambda: (paper_tables.collapse_table(), paper_tables.source()),
    "behaviors": lambda: (paper_tables.behaviors_table(), paper_tables.behaviors_source()),
    "paper-length": lambda: (
        reproduction_tables.length_table(),
        reproduction_tables.length_source(),
    ),
    "paper-convergence": lambda: (
        reproduction_tables.convergence_table(),
        reproduction_tables.convergence_source(),
    ),
    "paper-cifar10": lambda: (
        reproduction_tables.cifar10_table(),
        reproduction_tables.cifar10_source(),
    ),
    "paper-nearest": lambda: (
        reproduction_tables.nearest_classes_table(),
        reproduction_tables.nearest_classes_source(),
    ),
    "paper-scl": lambda: (
        reproduction_tables.contrastive_table(),
        reproduction_tables.contrastive_source(),
    ),
    "paper-temperatures": lambda: (
        reproduction_tables.temperature_table(),
        reproduction_tables.grid_source(),
    ),
    "paper-phase": lambda: (reproduction_tables.phase_table(), reproduction_tables.grid_source()),
    "prototypes": _of_record("prototypes", prototypes.table),
    "scaling": _of_record("scaling", scaling.table, scaling.source),
    "scaling-model": _of_record("scaling", scaling.model_table, scaling.model_source),
    "sweeps": lambda: (sweeps.table(), sweeps.source()),
    "sweep-ranks": lambda: (sweeps.ranks_table(), sweeps.source()),
    "training": _of_record("training-gpu", training.table),
    "verdict": lambda: (verdict.table("short"), verdict.source("short")),
    "verdict-progress": lambda: (verdict.progress_table("short"), verdict.source("short")),
    "verdict-long": lambda: (verdict.table("long"), verdict.source("long")),
    "verdict-unmixed": lambda: (verdict.table("unmixed"), verdict.source("unmixed")),
    "variants": _of_record("variants", variants.table, variants.source),
    "whitening": _of_record("whitening", whitening.table),
    "wrong-labels": _of_record("wrong_labels", wrong_labels.table, wrong_labels.source),
    "shrinkage": _of_record("whitening", whitening.shrinkage_table),
    "million": _of_record("whitening", whitening.million_table),
}


def fill(text: str) -> str:
    """Return the text with every marked table made from the committed results.

    What stands in the place of a table whose results are not there yet is left alone.

    Raises:
        KeyError: A marker names no table.
    """

    def replace(match: re.Match[str]) -> str:
        try:
            table, source = TABLES[match["name"]]()
        except FileNotFoundError:
            return match[0]
        return f"<!-- table: {match['name']} -->\n{table}\n\n{source}\n<!-- end -->"

    return _MARKED.sub(replace, text)


def _source(record: dict[str, Any]) -> str:
    machine = record["machine"]
    if "gpu" in machine:
        return f"{machine['gpu']}, torch {machine['torch']}; commit {record['commit']}."
    medians = f" medians of {record['repeats']};" if "repeats" in record else ""
    return (
        f"{machine['cpu']}, {machine['threads']} threads, torch {machine['torch']}, float32;"
        f"{medians} commit {record['commit']}."
    )


if __name__ == "__main__":
    for document in DOCUMENTS:
        document.write_text(fill(document.read_text()))
