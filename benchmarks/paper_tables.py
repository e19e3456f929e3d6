"""Tables of docs/paper.md: accuracies and metrics beside the paper's, and expected behaviors."""

import json
from collections.abc import Iterator
from statistics import fmean

import benefits
import reproduction
import reproduction_tables
import runs
import verdict
from protosphere.report.paper import paper_value
from protosphere.runs import RunFolder
from protosphere.studies.behaviors import check_behaviors
from reproduction_tables import METRICS
from table_lines import decimal, percent, table_header, table_line

NAMES = {"ce": "CE", "normface": "NormFace", "ntce": "NTCE", "nonl": "NONL"}


def accuracy_table() -> str:
    """Return accuracies on CIFAR-100 by settings beside the paper's Table 1, in Markdown."""
    lines = table_header("test accuracy on CIFAR-100 in %", *NAMES.values(), "NONL − CE")
    for title, values in accuracies().items():
        cells = [percent(values[loss]) if loss in values else "–" for loss in NAMES]
        lines.append(table_line(title, *cells, f"{100 * (values['nonl'] - values['ce']):+.1f}"))
    return "\n".join(lines)


def accuracies() -> dict[str, dict[str, float]]:
    """Return accuracies on CIFAR-100 by settings and loss, the paper's first."""
    cases = json.loads((runs.RESULTS / "accuracy.json").read_text())["cases"]
    rows: dict[str, dict[str, float]] = {
        "**the paper**, 1000 epochs": {
            loss: (paper_value("table1_classifier_accuracy", loss, "cifar100") or 0) / 100
            for loss in NAMES
        },
        "paper's settings, torchvision's initialization, 100 epochs, 1 or 2 runs": {
            loss: fmean(_paper_accuracies(loss)) for loss in NAMES
        },
    }
    for group, title in reproduction_tables.LENGTH_TITLES.items():
        if values := reproduction_tables.length_accuracies(group):
            rows[f"paper's settings, {title}"] = values
    for case, values in cases.items():
        if "long tail" not in case:
            title = case.replace("paper, ", "paper's settings, ")
            rows[title] = {loss: values[loss] for loss in NAMES}
    strong = {
        loss: runs.evaluations(f"cifar100-strong-{loss}")[-1]["accuracy"] for loss in ("ce", "nonl")
    }
    rows["strong, batch 128, zero-initialized residuals, 200 epochs"] = dict(strong)
    accuracy = verdict.means("accuracy")
    title = (
        f"strong, each loss with the best of eight trials, 100 epochs, {verdict.num_seeds()} seeds"
    )
    rows[title] = {loss: accuracy[loss] for loss in NAMES}
    return rows


def _paper_accuracies(loss: str) -> Iterator[float]:
    """Yield the accuracies of the runs of 100 epochs with the paper's settings, all of one seed."""
    yield runs.evaluations(f"cifar100-{loss}")[-1]["accuracy"]
    if (benefits.RESULTS / f"cifar100-{loss}").exists():
        last = RunFolder(benefits.RESULTS / f"cifar100-{loss}").last_evaluation()
        assert last is not None
        yield last["accuracy"]


def collapse_table() -> str:
    """Return the metrics of Table 3 on CIFAR-100, ours and the paper's, in Markdown."""
    lines = table_header(
        "after 100 epochs (paper: 1000)", *(title for title, *_ in METRICS.values())
    )
    for loss, name in NAMES.items():
        record = runs.evaluations(f"cifar100-{loss}")[-1]
        cells = []
        for column, (_, metric, digits) in METRICS.items():
            paper = paper_value("table3_nc_metrics_train", "cifar100", loss, column)
            cells.append(f"{record[metric]:.{digits}f} ({decimal(paper, digits)})")
        lines.append(table_line(name, *cells))
    return "\n".join(lines)


def behaviors_table() -> str:
    """Return the verdicts on the paper's expected behaviors in Markdown."""
    folders = [runs.RUNS, benefits.RESULTS, reproduction.RESULTS]
    lines = [table_line("behavior", "what", "runs", "verdict", "evidence"), "|---|---|---|---|---|"]
    for check in check_behaviors(folders).checks:
        lines.append(
            table_line(
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
        "[initialization](benchmarks.md#initialization-and-imbalance); NVIDIA H200, one seed each "
        "unless stated."
    )


def behaviors_source() -> str:
    """Return the command that computes the verdicts."""
    return (
        "`protosphere reproduce behaviors runs benefits reproduce` in `benchmarks/results`; what "
        "counts as held is in the second column."
    )
