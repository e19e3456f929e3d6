"""The losses as loops over scalars, straight from the definitions: slow, plain, and what the fast ones must equal.

Every number is a 0-dimensional float64 tensor, so that autograd differentiates the loops themselves.
"""

import math

import torch
from torch import Tensor

Vector = list[Tensor]


def rows(matrix: Tensor) -> list[Vector]:
    return [list(row.unbind()) for row in matrix.unbind()]


def dot(a: Vector, b: Vector) -> Tensor:
    total = a[0] * b[0]
    for x, y in zip(a[1:], b[1:], strict=True):
        total = total + x * y
    return total


def unit(v: Vector) -> Vector:
    length = dot(v, v).sqrt()
    return [x / length for x in v]


def log_sum_exp(values: list[Tensor]) -> Tensor:
    total = values[0].exp()
    for value in values[1:]:
        total = total + value.exp()
    return total.log()


def mean_vector(vectors: list[Vector]) -> Vector:
    total = vectors[0]
    for vector in vectors[1:]:
        total = [x + y for x, y in zip(total, vector, strict=True)]
    return [x / len(vectors) for x in total]


def reduce(
    values: list[Tensor | None], labels: list[int], weights: list[float] | None, reduction: str
) -> Tensor:
    """Values of None are anchors that do not count."""
    weight = [
        1.0 if weights is None or value is None else weights[y]
        for value, y in zip(values, labels, strict=True)
    ]
    zero = torch.zeros((), dtype=torch.float64)
    weighted = [zero if v is None else v * w for v, w in zip(values, weight, strict=True)]
    if reduction == "none":
        return torch.stack(weighted)
    total = zero
    for value in weighted:
        total = total + value
    if reduction == "sum":
        return total
    mass = sum(w for v, w in zip(values, weight, strict=True) if v is not None)
    return total / mass if mass else total


def _kept(labels: list[int], ignore_index: int) -> list[int]:
    return [i for i, y in enumerate(labels) if y != ignore_index]


def cross_entropy(features, prototypes, labels, temperature=1.0, ignore_index=-100, bias=None):
    z, w = rows(features), rows(prototypes)
    values = [None] * len(labels)
    for i in _kept(labels, ignore_index):
        logits = [
            (dot(z[i], w[c]) + (0 if bias is None else bias[c])) / temperature
            for c in range(len(w))
        ]
        values[i] = log_sum_exp(logits) - logits[labels[i]]
    return values


def _scaled_cosines(features, prototypes, temperature):
    u, w = [unit(v) for v in rows(features)], [unit(v) for v in rows(prototypes)]
    return [[dot(ui, wc) / temperature for wc in w] for ui in u]


def normface(
    features,
    prototypes,
    labels,
    temperature=0.1,
    ignore_index=-100,
    margin=0.0,
    margin_kind="cosine",
):
    s = _scaled_cosines(features, prototypes, temperature)
    values = [None] * len(labels)
    for i in _kept(labels, ignore_index):
        row = list(s[i])
        cosine = row[labels[i]] * temperature
        if margin_kind == "cosine":
            row[labels[i]] = (cosine - margin) / temperature
        elif margin:
            row[labels[i]] = torch.cos(torch.arccos(cosine) + margin) / temperature
        values[i] = log_sum_exp(row) - row[labels[i]]
    return values


def ntce(features, prototypes, labels, temperature=0.1, ignore_index=-100):
    s = _scaled_cosines(features, prototypes, temperature)
    kept = _kept(labels, ignore_index)
    values = [None] * len(labels)
    for i in kept:
        y = labels[i]
        values[i] = log_sum_exp([s[j][y] for j in kept]) - s[i][y]
    return values


def nonl(features, prototypes, labels, temperature=0.1, ignore_index=-100, negatives="samples"):
    s = _scaled_cosines(features, prototypes, temperature)
    kept = _kept(labels, ignore_index)
    values = [None] * len(labels)
    for i in kept:
        y = labels[i]
        column = [s[j][y] for j in kept if labels[j] != y]
        row = [s[i][c] for c in range(len(prototypes)) if c != y]
        against = {"samples": column, "prototypes": row, "both": row + column}[negatives]
        if against:
            values[i] = log_sum_exp(against) - s[i][y]
    return values


def scl(features, labels, temperature=0.1, ignore_index=-100):
    a = [unit(v) for v in rows(features)]
    kept = _kept(labels, ignore_index)
    values = [None] * len(labels)
    for i in kept:
        positives = [j for j in kept if j != i and labels[j] == labels[i]]
        if positives:
            pull = sum(dot(a[i], a[j]) / temperature for j in positives) / len(positives)
            values[i] = log_sum_exp([dot(a[i], a[j]) / temperature for j in kept if j != i]) - pull
    return values


def prototype(features, labels, temperature=0.1, ignore_index=-100):
    a = [unit(v) for v in rows(features)]
    kept = _kept(labels, ignore_index)
    means = {
        y: mean_vector([a[j] for j in kept if labels[j] == y]) for y in {labels[j] for j in kept}
    }
    values = [None] * len(labels)
    for i in kept:
        terms = []
        for c, mean in means.items():
            weight = sum(labels[j] == c for j in kept) - (c == labels[i])
            if weight:
                terms.append(dot(a[i], mean) / temperature + math.log(weight))
        if terms:
            values[i] = log_sum_exp(terms) - dot(a[i], means[labels[i]]) / temperature
    return values


def dot_regression(features, prototypes, labels, ignore_index=-100):
    u, w = [unit(v) for v in rows(features)], [unit(v) for v in rows(prototypes)]
    values = [None] * len(labels)
    for i in _kept(labels, ignore_index):
        values[i] = (dot(u[i], w[labels[i]]) - 1) ** 2 / 2
    return values
