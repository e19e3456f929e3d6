"""Tables of the accuracy of each class of CIFAR-100 in Markdown, from the runs of a folder."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from class_accuracy import (
    COSINES,
    FILE,
    NUM_PAIRS,
    Estimate,
    compare,
    read_records,
)
from jobs import describe_machine
from protosphere.recipes import registry

# Classes with the largest losses and gains in the table.
NUM_CLASSES_SHOWN = 5


def summary_table(folder: Path) -> str:
    """Return the differences of the losses to cross-entropy as a Markdown table.

    Args:
        folder: Folder of the runs of a group.
    """
    comparison = compare(read_records(folder))
    within, between, confused = (f"{100 * value:.1f}" for value in comparison.errors)
    lines = [
        "| loss | seeds | accuracy | nearest class mean | deviation over classes | correlation "
        "between seeds | with the accuracy under cross-entropy | with the cosine to the nearest "
        "class | with nearest class means | errors within superclasses (cross-entropy: "
        f"{within}%) | between superclasses ({between}%) | within the {NUM_PAIRS} most confused "
        f"pairs ({confused}%) |",
        f"|---|{'---:|' * 11}",
    ]
    for row in comparison.differences:
        deviation = np.std([one.mean for one in row.classes], ddof=1)
        cells = [
            registry.LOSSES[row.method].title,
            str(row.num_seeds),
            _points(row.accuracy),
            _points(row.nearest_mean_accuracy),
            f"{100 * deviation:.2f}",
            *(
                "–" if value is None else f"{value:+.2f}"
                for value in (
                    row.agreement,
                    row.with_accuracy,
                    row.with_cosine,
                    row.with_nearest_means,
                )
            ),
            _points(row.within_superclasses),
            _points(row.between_superclasses),
            _points(row.confused_pairs),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def classes_table(folder: Path) -> str:
    """Return the classes with the largest differences to cross-entropy as a Markdown table.

    Args:
        folder: Folder of the runs of a group.
    """
    comparison = compare(read_records(folder))
    lines = ["| loss | largest losses | largest gains |", "|---|---|---|"]
    for row in comparison.differences:
        order = np.argsort([one.mean for one in row.classes], kind="stable").tolist()
        ends = order[:NUM_CLASSES_SHOWN], order[::-1][:NUM_CLASSES_SHOWN]
        cells = [
            ", ".join(
                f"{comparison.class_names[index].replace('_', ' ')} {_points(row.classes[index])}"
                f" ({100 * comparison.accuracy[index]:.0f}%)"
                for index in end
            )
            for end in ends
        ]
        lines.append(f"| {registry.LOSSES[row.method].title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def similarity_table(folder: Path) -> str:
    """Return how similar related classes are, by loss, as a Markdown table.

    Args:
        folder: Folder of the runs of a group.

    Raises:
        FileNotFoundError: No run has the cosines.
    """
    lines = [
        "| loss | seeds | cosine of class means within superclasses | between superclasses "
        "| of prototypes within superclasses | between superclasses |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for method, seeds in read_records(folder).items():
        records = [record for record in seeds.values() if _has_cosines(record)]
        if records:
            means = np.mean([[record[name] for name in COSINES] for record in records], axis=0)
            cells = [f"{value:+.3f}" for value in means.flatten()]
            title = registry.LOSSES[method].title
            lines.append(f"| {title} | {len(records)} | {' | '.join(cells)} |")
    if len(lines) == 2:
        raise FileNotFoundError(f"no {FILE} of {folder} has the cosines of superclasses")
    return "\n".join(lines)


def _has_cosines(record: dict[str, Any]) -> bool:
    """Whether a file has the cosines of superclasses; earlier ones and other data have not."""
    return all(None not in record.get(name, [None]) for name in COSINES)


def _points(estimate: Estimate) -> str:
    error = "" if estimate.error is None else f" ± {100 * estimate.error:.2f}"
    return f"{100 * estimate.mean:+.2f}{error}"


def source(folder: Path, *, has_errors: bool = True) -> str:
    """Return the line beneath a table.

    Args:
        folder: Folder of the runs of a group.
        has_errors: Whether the table has standard errors.
    """
    paths = sorted(folder.glob("*/machine.json"))
    machines = [json.loads(path.read_text()) for path in paths]
    detail = "several runs at a time on the GPU"
    detail += "; ± is a standard error over seeds" if has_errors else ""
    return describe_machine(machines[0], detail, *(machine["commit"] for machine in machines))
