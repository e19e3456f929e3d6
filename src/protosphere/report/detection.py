"""Out-of-distribution detection in a report: AUROC and FPR95 by score and by other data."""

from collections.abc import Mapping, Sequence

from protosphere.report.benchmark_rows import (
    Benchmark,
    MethodResults,
    number,
    result_label,
    text,
)
from protosphere.report.content import Block, Choice, Note, Table
from protosphere.report.method_plots import Dots, Style, draw_dots
from protosphere.report.summaries import Better, Summary, format_number
from protosphere.report.summary_tables import Column, TableRow, create_table

_SCORES = {
    "cosine": "cosine",
    "energy": "energy",
    "softmax": "softmax",
    "subspace": "subspace",
    "mahalanobis": "Mahalanobis",
    "knn": "nearest neighbors",
}
_DEFINITIONS = {
    "cosine": "largest cosine with a prototype",
    "energy": "log-sum-exp of the logits",
    "softmax": "largest probability",
    "subspace": "minus the distance to the span of the prototypes",
    "mahalanobis": "minus the squared Mahalanobis distance to the nearest class mean",
    "knn": "minus the distance to the k-th nearest training feature",
}
# Name of the other images, score and name of a number.
_OodKey = tuple[str, str, str]


def _ood_values(benchmark: Benchmark) -> dict[_OodKey, float]:
    return {
        (row["against"], row["score"], name): value
        for row in benchmark.rows
        for name in ("auroc", "fpr95")
        if (value := number(row, name)) is not None
    }


def show_detection(groups: Sequence[MethodResults], styles: Mapping[str, Style]) -> Sequence[Block]:
    """Return tables and a figure of how well scores tell images of other data apart.

    Args:
        groups: Results of the benchmark ``ood``.
        styles: Style of each method.
    """
    values = [group.summarize(_ood_values) for group in groups]
    others = list(dict.fromkeys(key[0] for one in values for key in one))
    found = {key[1] for one in values for key in one}
    scores = [*(name for name in _SCORES if name in found), *sorted(found - set(_SCORES))]
    if not scores:
        return _explain_ood(groups)
    rows: dict[str, list[TableRow]] = {"auroc": [], "fpr95": []}
    for data in dict.fromkeys(group.data for group in groups):
        for other in others:
            for group, one in zip(groups, values, strict=True):
                if group.data != data or not any(key[0] == other for key in one):
                    continue
                titles = (group.method, data, other, str(group.num_runs))
                for name, members in rows.items():
                    cells = tuple(one.get((other, score, name)) for score in scores)
                    members.append(TableRow(titles, cells, (data, other)))
    known = [f"{_SCORES[score]}: {_DEFINITIONS[score]}" for score in scores if score in _SCORES]
    return [
        _create_table(
            "Out-of-distribution detection: AUROC",
            "Area under the ROC curve in percent by score: the probability that an image of the "
            "run's own data gets a higher score than an image of other data, 50 being chance. The "
            "best of each column for the same images is bold.",
            scores,
            rows["auroc"],
            "higher",
        ),
        Note(f"Scores, higher for images that look known. {'; '.join(known)}."),
        _draw_ood(groups, values, scores, styles),
        _create_table(
            "Out-of-distribution detection: FPR95",
            "Percentage of the other images that is accepted at the threshold that accepts 95% of "
            "the run's own; the lowest of each column for the same images is bold.",
            scores,
            rows["fpr95"],
            "lower",
        ),
        *_explain_ood(groups),
    ]


def _create_table(
    title: str, meaning: str, scores: Sequence[str], rows: Sequence[TableRow], better: Better
) -> Table:
    return create_table(
        title,
        meaning,
        titles=("Method", "Own data", "Other data", "Runs"),
        columns=[Column(_SCORES.get(score, score).capitalize(), better) for score in scores],
        rows=rows,
        optional=("Own data",),
    )


def _draw_ood(
    groups: Sequence[MethodResults],
    values: Sequence[Mapping[_OodKey, Summary]],
    scores: Sequence[str],
    styles: Mapping[str, Style],
) -> Choice:
    sources = dict.fromkeys(group.data for group in groups)
    pairs = dict.fromkeys(
        (group.data, key[0]) for group, one in zip(groups, values, strict=True) for key in one
    )
    options = []
    for index, (data, other) in enumerate(pairs):
        label = other if len(sources) == 1 else f"{data} against {other}"
        figure = draw_dots(
            f"ood-{index}",
            f"Detection of images of other data: {label}",
            "AUROC of each score, 50% being chance",
            reading="farther right, images of other data are told apart better",
            categories={score: _SCORES.get(score, score) for score in scores},
            dots=[
                Dots(
                    result_label(group, groups),
                    styles[group.method],
                    {
                        score: found
                        for score in scores
                        if (found := one.get((other, score, "auroc"))) and group.data == data
                    },
                )
                for group, one in zip(groups, values, strict=True)
            ],
            value_title="AUROC (%)",
        )
        options.append((label, figure))
    return Choice("ood-sources", "Data", tuple(options))


def _explain_ood(groups: Sequence[MethodResults]) -> list[Note]:
    """Scores without a value, and other data that have classes of the run."""
    rows = [(group, row) for group in groups for one in group.benchmarks for row in one.rows]
    notes: dict[str, Note] = {}
    for group, row in rows:
        if number(row, "auroc") is None:
            reason = text(row, "absent") or "the file does not say why"
            words = f"{result_label(group, groups)}: no AUROC of {row['score']} against "
            words += f"{row['against']}: {reason.rstrip('.')}."
            notes[words] = Note(words, kind="missing")
        if shared := number(row, "shared_classes"):
            words = (
                f"{group.data} and {row['against']} have {format_number(shared, digits=0)} class "
                "names in common: images of these classes are no real outliers."
            )
            notes[words] = Note(words)
    return list(notes.values())
