"""Every loss as a loop over scalars, with its rows of the table that the contract tests run on.

The loops follow the definitions: slow, plain, and what the fast functions must equal. Every number
is a 0-dimensional float64 tensor, so that autograd differentiates the loops themselves. A new loss
adds its loop and its rows here.
"""

import math

import torch
from torch import Tensor

from protosphere import losses
from support.scalar_loops import (
    Matrix,
    Probabilities,
    Row,
    Values,
    dot,
    kept_indices,
    kept_rows,
    log_sum_exp,
    mean_vector,
    on_cosines,
    on_logits,
    rows,
    support,
    unit,
)

TABLE: list[Row] = []


def cross_entropy(
    features: Tensor,
    prototypes: Tensor,
    q: Probabilities,
    temperature: float = 1.0,
    bias: Tensor | None = None,
    logit_adjustment: Tensor | None = None,
) -> Values:
    z, w = rows(features), rows(prototypes)
    values: Values = [{} for _ in q]
    for i, row in kept_rows(q).items():
        logits = [
            (dot(z[i], w[c]) + (0 if bias is None else bias[c])) / temperature
            for c in range(len(w))
        ]
        if logit_adjustment is not None:
            logits = [logit + a for logit, a in zip(logits, logit_adjustment, strict=True)]
        for c in support(row):
            values[i][c] = (row[c], log_sum_exp(logits) - logits[c])
    return values


TABLE += [
    Row(
        name,
        losses.cross_entropy_loss,
        losses.CrossEntropyLoss,
        cross_entropy,
        options=options,
        temperature="function",
        on_sphere=False,
        soft_labels=not options,
    )
    for name, options in (
        ("cross-entropy", {}),
        ("cross-entropy, label smoothing", {"label_smoothing": 0.2}),
    )
]


def normface(
    cosines: Matrix,
    q: Probabilities,
    temperature: float = 1.0,
    margin: float = 0.0,
    margin_kind: str = "cosine",
    logit_adjustment: Tensor | None = None,
) -> Values:
    values: Values = [{} for _ in q]
    for i, probability in kept_rows(q).items():
        row, y = list(cosines[i]), probability.index(max(probability))
        if margin and margin_kind == "angle":
            angle = torch.arccos(row[y])
            beyond = angle + margin > math.pi
            row[y] = row[y] + math.cos(margin) - 1 if beyond else torch.cos(angle + margin)
        elif margin:
            row[y] = row[y] - margin
        logits = [cosine / temperature for cosine in row]
        if logit_adjustment is not None:
            logits = [logit + a for logit, a in zip(logits, logit_adjustment, strict=True)]
        for c in support(probability):
            values[i][c] = (probability[c], log_sum_exp(logits) - logits[c])
    return values


TABLE += [
    Row(
        name,
        losses.normface_loss,
        losses.NormFaceLoss,
        on_cosines(normface),
        options=options,
        soft_labels=not options,
        reaches_simplex=not options,
    )
    for name, options in (
        ("NormFace", {}),
        ("NormFace, cosine margin", {"margin": 0.2}),
        ("NormFace, angle margin", {"margin": 0.3, "margin_kind": "angle"}),
        ("NormFace, large angle margin", {"margin": 2.0, "margin_kind": "angle"}),
    )
]
TABLE.append(
    Row(
        "NormFace, from logits",
        losses.normface_from_logits,
        losses.NormFaceFromLogits,
        on_logits(normface),
        inputs="logits",
        temperature="none",
        has_form=False,
        on_sphere=False,
        soft_labels=True,
        on_features=losses.normface_loss,
    )
)


def ntce(cosines: Matrix, q: Probabilities, temperature: float = 1.0) -> Values:
    kept = kept_rows(q)
    values: Values = [{} for _ in q]
    for i, row in kept.items():
        for c in support(row):
            column = [cosines[j][c] / temperature for j in kept]
            values[i][c] = (row[c], log_sum_exp(column) - cosines[i][c] / temperature)
    return values


TABLE += [
    Row(
        "NTCE",
        losses.ntce_loss,
        losses.NTCELoss,
        on_cosines(ntce),
        soft_labels=True,
        reaches_simplex=True,
    ),
    Row(
        "NTCE, from logits",
        losses.ntce_from_logits,
        losses.NTCEFromLogits,
        on_logits(ntce),
        inputs="logits",
        temperature="none",
        has_form=False,
        on_sphere=False,
        soft_labels=True,
        on_features=losses.ntce_loss,
    ),
]


def nonl(
    cosines: Matrix,
    q: Probabilities,
    temperature: float = 1.0,
    negatives: str = "samples",
    soft_negatives: str = "excluded",
) -> Values:
    kept = kept_rows(q)
    values: Values = [{} for _ in q]
    for i, row in kept.items():
        tops = [c for c in range(len(row)) if row[c] == max(row)]
        for c in support(row):
            column = []
            for j, other in kept.items():
                weight = float(other[c] <= 1 / len(other) and other[c] < max(other))
                if soft_negatives == "weighted":
                    weight = 1 - other[c] / max(other)
                if weight:
                    column.append(cosines[j][c] / temperature + math.log(weight))
            prototypes = [cosines[i][k] / temperature for k in range(len(row)) if k != c]
            terms = {"samples": column, "prototypes": prototypes, "both": prototypes + column}
            if terms[negatives]:
                value = log_sum_exp(terms[negatives]) - cosines[i][c] / temperature
                values[i][c] = (row[c], value)
        if not any(c in values[i] for c in tops):
            values[i] = {}
    return values


for negatives in ("samples", "prototypes", "both"):
    TABLE += [
        Row(
            f"NONL, negatives={negatives}",
            losses.nonl_loss,
            losses.NONLLoss,
            on_cosines(nonl),
            options={"negatives": negatives},
            learned_temperature={"min_temperature": 0.01},
            needs_negatives=negatives == "samples",
            soft_labels=negatives == "samples",
            reaches_simplex=True,
        ),
        Row(
            f"NONL, negatives={negatives}, from logits",
            losses.nonl_from_logits,
            losses.NONLFromLogits,
            on_logits(nonl),
            inputs="logits",
            options={"negatives": negatives},
            temperature="none",
            has_form=False,
            on_sphere=False,
            needs_negatives=negatives == "samples",
            soft_labels=negatives == "samples",
            on_features=losses.nonl_loss,
        ),
    ]


TABLE.append(
    Row(
        "NormFace + NONL",
        losses.normface_nonl_loss,
        losses.NormFaceNONLLoss,
        on_cosines(normface),
        # Not the default, with which the two parts could be exchanged.
        options={"normface_weight": 0.3},
        learned_temperature={"min_temperature": 0.01},
        soft_labels=True,
        # Its parts descend to the same simplex, which the tests of their rows show.
        reaches_simplex=False,
        second_oracle=on_cosines(nonl),
    )
)


def scl(features: Tensor, labels: list[int], temperature: float = 0.1) -> Values:
    a = [unit(v) for v in rows(features)]
    kept = kept_indices(labels)
    values: Values = [{} for _ in labels]
    for i in kept:
        logits = {j: dot(a[i], a[j]) / temperature for j in kept if j != i}
        positives = [logit for j, logit in logits.items() if labels[j] == labels[i]]
        if positives:
            attraction = torch.stack(positives).sum() / len(positives)
            value = log_sum_exp(list(logits.values())) - attraction
            values[i] = {labels[i]: (1.0, value)}
    return values


TABLE.append(
    Row(
        "SCL",
        losses.scl_loss,
        losses.SCLLoss,
        scl,
        inputs="features",
        temperature="module",
        needs_positives=True,
        reaches_simplex=True,
    )
)


def prototype(features: Tensor, labels: list[int], temperature: float = 0.1) -> Values:
    a = [unit(v) for v in rows(features)]
    kept = kept_indices(labels)
    means = {
        y: mean_vector([a[j] for j in kept if labels[j] == y]) for y in {labels[j] for j in kept}
    }
    values: Values = [{} for _ in labels]
    for i in kept:
        terms = []
        for c, mean in means.items():
            weight = sum(labels[j] == c for j in kept) - (c == labels[i])
            if weight:
                terms.append(dot(a[i], mean) / temperature + math.log(weight))
        if terms:
            value = log_sum_exp(terms) - dot(a[i], means[labels[i]]) / temperature
            values[i] = {labels[i]: (1.0, value)}
    return values


TABLE.append(
    Row(
        "prototype loss",
        losses.prototype_loss,
        losses.PrototypeLoss,
        prototype,
        inputs="features",
        temperature="module",
        reaches_simplex=True,
    )
)


def dot_regression(features: Tensor, prototypes: Tensor, q: Probabilities) -> Values:
    u, w = [unit(v) for v in rows(features)], [unit(v) for v in rows(prototypes)]
    values: Values = [{} for _ in q]
    for i, row in kept_rows(q).items():
        for c in support(row):
            values[i][c] = (row[c], (dot(u[i], w[c]) - 1) ** 2 / 2)
    return values


TABLE.append(
    Row(
        "dot regression",
        losses.dot_regression_loss,
        losses.DotRegressionLoss,
        dot_regression,
        temperature="none",
        has_form=False,
        soft_labels=True,
    )
)
