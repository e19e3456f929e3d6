"""The two visits that measuring pays to stored samples: class by class for moments, then in order for the rest."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from protosphere.geometry.class_statistics import ClassStatistics, Space
from protosphere.geometry.spectrum import over_classes
from protosphere.geometry.sphere import min_norm
from protosphere.metrics.frame import UndefinedMetricError
from protosphere.metrics.suite import Evidence

# A matrix in float64: NumPy's on the CPU, where classes are spread over cores, torch's on a GPU.
Matrix = Any
Progress = Callable[[float], None]

# Rows that are turned to float64 at a time, in bytes: on a CPU small enough for a cache, large enough for the products;
# on a GPU as many as cost little memory, since each block is a handful of kernels to launch.
_BLOCK, _GPU_BLOCK = 1 << 21, 1 << 28
# NumPy lets other threads run only while the sizes of the matrices it is given sum to more than this.
_LETS_GO = 500


@dataclass(frozen=True)
class Source:
    """Where rows come from, and where they are worked on."""

    features: np.ndarray | Tensor
    device: torch.device
    space: Space

    def block(self, width: int) -> int:
        """Rows of this width to work on at a time."""
        return max(1, (_BLOCK if self.device.type == "cpu" else _GPU_BLOCK) // (8 * width))

    def read(self, index: np.ndarray | slice) -> tuple[Matrix, Matrix | None]:
        """Rows in float64 as they are; and, on the sphere, what to divide each by."""
        rows: Matrix
        if self.device.type == "cpu" and isinstance(self.features, np.ndarray):
            rows = self.features[index].astype(np.float64)
        else:
            chosen = torch.as_tensor(index) if isinstance(index, np.ndarray) else index
            # A slice is a view, and rows are changed in place.
            copy = isinstance(index, slice)
            rows = torch.as_tensor(self.features[chosen]).to(self.device, torch.float64, copy=copy)
            rows = rows.numpy() if self.device.type == "cpu" else rows
        if self.space == "raw":
            return rows, None
        squares = _squares(rows)
        lengths = squares**0.5
        # A row too short for a direction goes to zero; one too long to have a length is reported with its class.
        lengths[lengths < min_norm(torch.float64)] = math.inf
        lengths[squares == math.inf] = math.nan
        return rows, lengths

    def take(self, index: np.ndarray | slice) -> tuple[Matrix, float]:
        """Rows in float64, in the space; and their smallest entry before that."""
        rows, lengths = self.read(index)
        lowest = float(rows.min())
        if lengths is not None:
            with np.errstate(
                invalid="ignore"
            ):  # Infinity by infinity is reported where its class is known.
                rows /= lengths[:, None]
        return rows, lowest


class Report:
    """Tells how much of the work is done, in samples."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress, self._total, self._done = progress, total, 0

    def add(self, samples: int) -> None:
        """So many more are done."""
        self._done += samples
        if self._progress is not None:
            self._progress(self._done / self._total)


def _squares(rows: Matrix) -> Matrix:
    """Σ_j x_ij² of each row, without the matrix of squares."""
    return (
        np.einsum("ij,ij->i", rows, rows) if isinstance(rows, np.ndarray) else (rows * rows).sum(1)
    )


class _Class(NamedTuple):
    """One class: where its rows are."""

    label: int
    source: Source
    rows: np.ndarray


class _Summary(NamedTuple):
    """What the first visit to a class found; the product is what eigenvalues are taken of."""

    mean: Matrix
    spread: float
    lowest: float
    product: Matrix | None


def first_visit(
    source: Source,
    targets: np.ndarray,
    classes: int,
    budget: int | None,
    wanted: bool,
    report: Report,
) -> tuple[ClassStatistics, list[Tensor] | None, float]:
    """Counts, means, spreads and, where wanted, spectra, class by class; and the smallest entry of all."""
    order = np.argsort(targets, kind="stable")
    starts = np.searchsorted(targets[order], np.arange(classes + 1))
    dim = source.features.shape[1]
    means: list[Matrix] = [None] * classes
    spreads, lowest = np.zeros(classes), math.inf
    spectra: dict[int, Tensor] = {}

    def work(batch: Sequence[_Class]) -> list[tuple[int, _Summary, Matrix]]:
        summaries = [_summarize(member.source, member.rows, wanted) for member in batch]
        values = (
            _eigenvalues([summary.product for summary in summaries])
            if wanted
            else [None] * len(batch)
        )
        labels = [member.label for member in batch]
        return list(
            zip(
                labels,
                (summary._replace(product=None) for summary in summaries),
                values,
                strict=True,
            )
        )

    for group in _groups(source, order, starts, budget):
        batches = _batches(group, dim)
        with _spread(source, work, batches) as results:
            for label, summary, values in chain.from_iterable(results):
                own = order[starts[label] : starts[label + 1]]
                if not math.isfinite(summary.spread):
                    raise ValueError(_not_finite(source, own))
                means[label], spreads[label] = torch.as_tensor(summary.mean), summary.spread
                lowest = min(lowest, summary.lowest)
                if values is not None:
                    spectra[label] = torch.as_tensor(values)
                report.add(len(own))
    statistics = ClassStatistics(
        counts=torch.from_numpy(np.diff(starts).astype(np.float64)).to(source.device),
        means=torch.stack(means),
        spreads=torch.from_numpy(spreads).to(source.device),
        within=None,
        panels=None,
        resolution=torch.tensor(
            _resolution(source.features), dtype=torch.float64, device=source.device
        ),
        rejected=torch.tensor(0, device=source.device),
    )
    return statistics, [spectra[label] for label in range(classes)] if wanted else None, lowest


def _groups(
    source: Source, order: np.ndarray, starts: np.ndarray, budget: int | None
) -> Iterator[list[_Class]]:
    """The classes; from disk their rows are gathered group by group, in the order of the file."""
    spans = [order[begin:end] for begin, end in pairwise(starts)]
    if budget is None:
        yield [_Class(label, source, span) for label, span in enumerate(spans)]
        return
    row = source.features[0].nbytes
    room: np.ndarray | None = None
    first = 0
    while first < len(spans):
        last, size = first + 1, len(spans[first])
        while last < len(spans) and (size + len(spans[last])) * row <= budget:
            size, last = size + len(spans[last]), last + 1
        group = range(first, last)
        first = last
        if size * row > budget:  # One class alone: it is read from disk block by block.
            yield [_Class(group[0], source, spans[group[0]])]
            continue
        rows = np.sort(np.concatenate([spans[label] for label in group]))
        if isinstance(source.features, np.ndarray):
            if (
                room is None
            ):  # One buffer for all groups: a second one would stand beside the first for a while.
                most = min(len(order), max(budget // row, size))
                room = np.empty((most, source.features.shape[1]), source.features.dtype)
            for begin in range(0, size, 1024):
                room[begin : begin + 1024][: size - begin] = source.features[
                    rows[begin : begin + 1024]
                ]
            gathered = replace(source, features=room[:size])
        else:
            gathered = replace(source, features=source.features[rows])
        yield [_Class(label, gathered, np.searchsorted(rows, spans[label])) for label in group]


def _batches(group: list[_Class], dim: int) -> Iterator[list[_Class]]:
    """Classes that are worked on together: of like size, and enough for NumPy to let another thread run."""
    batch: list[_Class] = []
    size = 0
    for member in sorted(group, key=lambda member: len(member.rows), reverse=True):
        batch.append(member)
        size += min(len(member.rows), dim)
        if size > _LETS_GO:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _summarize(source: Source, index: np.ndarray, wanted: bool) -> _Summary:
    """The moments of one class. A class too large for one block is taken in several, which Chan's formula joins."""
    dim = source.features.shape[1]
    step = len(index) if len(index) <= dim else max(dim, source.block(dim))
    mean: Matrix = 0.0
    product: Matrix = None
    spread, lowest, count = 0.0, math.inf, 0
    for begin in range(0, len(index), step):
        rows, least = source.take(index[begin : begin + step])
        # From the first row on: samples that are all the same then deviate by exactly nothing.
        origin = rows[0] + 0 if begin == 0 else mean
        rows -= origin
        shift = rows.mean(0)
        rows -= shift
        bridge = shift * (count * len(rows) / (count + len(rows))) ** 0.5
        spread += float(_squares(rows).sum() + (bridge * bridge).sum())
        mean = origin + shift * (len(rows) / (count + len(rows)))
        count += len(rows)
        lowest = min(lowest, least)
        if wanted:
            own = rows @ rows.T if len(index) < dim else rows.T @ rows
            if product is None:
                product = own
            else:
                product += own
                product += bridge[:, None] * bridge
    return _Summary(mean, spread, lowest, product)


def _eigenvalues(products: list[Matrix]) -> list[Matrix]:
    """Eigenvalues of symmetric matrices; on the CPU together, padded with zeros, which have no part in an entropy."""
    # A matrix that is not finite is reported later; LAPACK might not come back from it.
    products = [product if math.isfinite(product.trace()) else None for product in products]
    if not any(isinstance(product, np.ndarray) for product in products):
        return [
            product if product is None else torch.linalg.eigvalsh(product) for product in products
        ]
    size = max(len(product) for product in products if product is not None)
    stack = np.zeros((len(products), size, size))
    for slot, product in zip(stack, products, strict=True):
        if product is not None:
            slot[: len(product), : len(product)] = product
    return list(np.linalg.eigvalsh(stack))


def second_visit(
    source: Source, targets: np.ndarray, evidence: Evidence, report: Report
) -> Evidence:
    """How far samples scatter as the class means see it, and where classifier and nearest class mean agree."""
    try:
        means = evidence.means
        weights = None if evidence.prototypes is None else evidence.weights.vectors
    except UndefinedMetricError:
        return evidence
    classes, dim = means.vectors.shape
    step = source.block(max(dim, 2 * classes))

    def there(tensor: Tensor) -> Matrix:
        return tensor.numpy() if source.device.type == "cpu" else tensor

    middle, gram, about = (
        there(part) for part in (means.vectors.mean(0), means.gram, means.centered)
    )
    halves = gram.diagonal() / 2
    # One product for both: what the class means see of a sample, and what the classifier says of it.
    both = there(means.centered if weights is None else torch.cat([means.centered, weights]))
    of_middle = both @ middle
    constant = None if weights is None else weights @ means.vectors.mean(0)
    if constant is not None:
        constant = there(constant if evidence.bias is None else constant + evidence.head_bias)

    def work(begin: int) -> tuple[Matrix, int, int]:
        rows, lengths = source.read(slice(begin, begin + step))
        own = targets[begin : begin + step]
        if lengths is None or dim < classes:
            if lengths is not None:
                rows /= lengths[:, None]
            rows -= middle  # Before the product: a large common offset would cost it digits.
            products = rows @ both.T
        else:
            products = rows @ both.T
            products /= lengths[:, None]
            products -= of_middle
        seen = products[:, :classes]
        agreed = 0
        if constant is not None:
            decided = (products[:, classes:] + constant).argmax(1)
            agreed = int((decided == (seen - halves).argmax(1)).sum())
        # The scatter, d × d, or as the class means see it, K × K: the smaller.
        if dim < classes:
            rows -= about[own]
            return rows.T @ rows, agreed, len(own)
        seen -= gram[own]
        return seen.T @ seen, agreed, len(own)

    total: Matrix = 0.0
    agreed = 0
    with _spread(source, work, range(0, len(targets), step)) as results:
        for part, same, samples in results:
            total = total + part
            agreed += same
            report.add(samples)
    scatter = torch.as_tensor(total)
    return replace(
        evidence,
        scatter_of_means=means.centered @ scatter @ means.centered.T if dim < classes else scatter,
        agreement=None if constant is None else agreed / len(targets),
    )


def _spread(
    source: Source, work: Callable[[Any], Any], items: Iterable[Any]
) -> AbstractContextManager[Iterator[Any]]:
    """The work on all items: over the cores, or one after the other on a GPU."""
    return (
        over_classes(work, items) if source.device.type == "cpu" else nullcontext(map(work, items))
    )


def _not_finite(source: Source, index: np.ndarray) -> str:
    for begin in range(0, len(index), 1024):
        rows, _ = replace(source, space="raw").take(index[begin : begin + 1024])
        bad = torch.nonzero(~torch.isfinite(torch.as_tensor(rows)).all(1)).flatten()
        if len(bad):
            return f"features must be finite; sample {index[begin + int(bad[0])]} holds NaN or infinity"
    return f"features must have lengths that can be calculated; those of sample {index[0]} or its class are too long"


def _resolution(features: Tensor | np.ndarray) -> float:
    if isinstance(features, Tensor):
        return torch.finfo(features.dtype).eps
    return max(float(np.finfo(features.dtype).eps), float(np.finfo(np.float64).eps))
