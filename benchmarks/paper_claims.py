"""Tables of docs/paper.md: the paper's numbers beside those of the committed runs."""

import json
from typing import Any

import benefits
import runs
from protosphere.studies.behaviors import check_behaviors
from protosphere.studies.paper import paper_value

NAMES = {"ce": "CE", "normface": "NormFace", "ntce": "NTCE", "nonl": "NONL"}
METRICS = {
    "intra_effective_rank": ("rank within classes", "intra_effective_rank", 1),
    "inter_effective_rank": ("rank of class means", "inter_effective_rank", 1),
    "weights_effective_rank": ("rank of weights", "weights_effective_rank", 1),
    "weight_class_alignment": ("class alignment", "weight_class_alignment", 2),
    "weight_instance_alignment": ("sample alignment", "weight_instance_alignment", 2),
    "mir": ("MIR", "mir_published", 2),
    "hdr": ("HDR", "hdr_published", 2),
}
# Run folders of `protosphere reproduce` that have been committed.
REPRODUCED = runs.RESULTS / "reproduce"


def accuracy_table() -> str:
    """Return accuracies on CIFAR-100 by settings beside the paper's Table 1, in Markdown."""
    cases = json.loads((runs.RESULTS / "accuracy.json").read_text())["cases"]
    rows: dict[str, dict[str, float]] = {
        "**the paper**, 1000 epochs": {
            loss: (paper_value("table1_classifier_accuracy", loss, "cifar100") or 0) / 100
            for loss in NAMES
        },
        "paper's settings, torchvision's initialization, 100 epochs": {
            loss: runs.evaluations(f"cifar100-{loss}")[-1]["accuracy"] for loss in NAMES
        },
    }
    for case, values in cases.items():
        if "long tail" not in case:
            title = case.replace("paper, ", "paper's settings, ")
            rows[title] = {loss: values[loss] for loss in NAMES}
    strong = {
        loss: runs.evaluations(f"cifar100-strong-{loss}")[-1]["accuracy"] for loss in ("ce", "nonl")
    }
    rows["strong, batch 128, zero-initialized residuals, 200 epochs"] = dict(strong)
    lines = _header("test accuracy on CIFAR-100 in %", *NAMES.values(), "NONL − CE")
    for title, values in rows.items():
        # Accuracies are whole numbers of images: 69.55 must not become 69.5 because of its last bit.
        cells = [f"{100 * values[loss] + 1e-9:.1f}" if loss in values else "–" for loss in NAMES]
        lines.append(_line(title, *cells, f"{100 * (values['nonl'] - values['ce']):+.1f}"))
    return "\n".join(lines)


def collapse_table() -> str:
    """Return the metrics of Table 3 on CIFAR-100, ours and the paper's, in Markdown."""
    lines = _header("after 100 epochs (paper: 1000)", *(title for title, *_ in METRICS.values()))
    for loss, name in NAMES.items():
        record = runs.evaluations(f"cifar100-{loss}")[-1]
        cells = []
        for column, (_, metric, digits) in METRICS.items():
            paper = paper_value("table3_nc_metrics_train", "cifar100", loss, column)
            cells.append(f"{record[metric]:.{digits}f} ({_number(paper, digits)})")
        lines.append(_line(name, *cells))
    return "\n".join(lines)


def behaviors_table() -> str:
    """Return the verdicts on the paper's expected behaviors in Markdown."""
    folders = [runs.RUNS, benefits.RESULTS]
    if REPRODUCED.exists():
        folders.append(REPRODUCED)
    lines = [_line("behavior", "what", "runs", "verdict", "evidence"), "|---|---|---|---|---|"]
    for check in check_behaviors(folders).checks:
        lines.append(
            _line(
                check.behavior,
                check.statement,
                check.setting,
                f"**{check.verdict}**",
                check.evidence,
            )
        )
    return "\n".join(lines)


def source() -> str:
    """Return the line that says where the numbers of accuracies and metrics come from."""
    return (
        "Runs of [accuracy and collapse](benchmarks.md#accuracy-and-collapse-on-cifar-100) and "
        "[initialization](benchmarks.md#initialization-and-imbalance); NVIDIA H200, one seed each."
    )


def behaviors_source() -> str:
    """Return the command that computes the verdicts."""
    return (
        "`protosphere reproduce behaviors benchmarks/results/runs benchmarks/results/benefits`; "
        "what counts as held is in the second column."
    )


def _number(value: Any, digits: int = 1) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _line(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _header(first: str, *others: str) -> list[str]:
    return [_line(first, *others), f"|---{'|---:' * len(others)}|"]
