"""The two passes over stored samples: class by class for moments, then in order for the rest."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import chain, pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from protosphere.geometry.class_statistics import ClassStatistics
from protosphere.geometry.spectrum import thread_map
from protosphere.metrics.centered import UndefinedMetricError
from protosphere.metrics.compute import MetricInputs
from protosphere.metrics.sample_source import (
    Array,
    ProgressCounter,
    SampleSource,
    input_eps,
    squared_norms,
)

# NumPy's eigenvalue routines release the GIL only if the matrix sizes add up to more than this.
_GIL_RELEASE_SIZE = 500
_GATHERED_ROWS = 1024


class _ClassRows(NamedTuple):
    """Where the samples of one class are."""

    label: int
    source: SampleSource
    rows: np.ndarray


class _ClassMoments(NamedTuple):
    """Moments of one class; the product, Gram or scatter, is what eigenvalues are taken of."""

    mean: Array
    sum_sq_dev: float
    lowest: float
    product: Array | None


class FirstPass(NamedTuple):
    """Result of :func:`first_pass`.

    Attributes:
        statistics: Class statistics without scatter matrices.
        class_spectra: Eigenvalues of the scatter of each class, if requested.
        lowest: Smallest entry of all features.
    """

    statistics: ClassStatistics
    class_spectra: list[Tensor] | None
    lowest: float


def first_pass(
    source: SampleSource,
    labels: np.ndarray,
    num_classes: int,
    *,
    memory_budget: int | None,
    with_spectra: bool,
    counter: ProgressCounter,
) -> FirstPass:
    """Compute counts, means, squared deviations and optionally spectra, class by class.

    Args:
        source: Samples to read.
        labels: Class index of each sample, all classes present.
        num_classes: Number of classes.
        memory_budget: Bytes of features to gather at a time; None reads them in place.
        with_spectra: Whether to compute the eigenvalues of each class scatter.
        counter: Progress counter.

    Raises:
        ValueError: A feature is not finite.
    """
    order = np.argsort(labels, kind="stable")
    starts = np.searchsorted(labels[order], np.arange(num_classes + 1))
    dim = source.features.shape[1]
    means: list[Array] = [None] * num_classes
    sum_sq_dev, lowest = np.zeros(num_classes), math.inf
    spectra: dict[int, Tensor] = {}

    def process(batch: Sequence[_ClassRows]) -> list[tuple[int, _ClassMoments, Array]]:
        moments = [_class_moments(member.source, member.rows, with_spectra) for member in batch]
        values: list[Array] = [None] * len(batch)
        if with_spectra:
            values = _eigenvalues([member.product for member in moments])
        # The products are large and no longer needed.
        moments = [member._replace(product=None) for member in moments]
        return list(zip((member.label for member in batch), moments, values, strict=True))

    for group in _class_groups(source, order, starts, memory_budget):
        with _map(source, process, _class_batches(group, dim)) as results:
            for label, moments, values in chain.from_iterable(results):
                rows = order[starts[label] : starts[label + 1]]
                if not math.isfinite(moments.sum_sq_dev):
                    raise ValueError(source.describe_non_finite(rows))
                means[label] = torch.as_tensor(moments.mean)
                sum_sq_dev[label] = moments.sum_sq_dev
                lowest = min(lowest, moments.lowest)
                if values is not None:
                    spectra[label] = torch.as_tensor(values)
                counter.add(len(rows))
    device = source.device
    statistics = ClassStatistics(
        counts=torch.from_numpy(np.diff(starts).astype(np.float64)).to(device),
        means=torch.stack(means),
        sum_sq_dev=torch.from_numpy(sum_sq_dev).to(device),
        within=None,
        scatter_tiles=None,
        input_eps=torch.tensor(input_eps(source.features), dtype=torch.float64, device=device),
        rejected=torch.tensor(0, device=device),
    )
    class_spectra = [spectra[label] for label in range(num_classes)] if with_spectra else None
    return FirstPass(statistics, class_spectra, lowest)


class SecondPass(NamedTuple):
    """Sums over samples; those of several processes add.

    Attributes:
        scatter: Pooled within-class scatter, d × d, or its projection to the centered class means,
            K × K, whichever is smaller.
        num_agreed: Number of samples on which the head and the nearest class mean agree.
    """

    scatter: Tensor
    num_agreed: int


def second_pass(
    source: SampleSource, labels: np.ndarray, inputs: MetricInputs, counter: ProgressCounter
) -> SecondPass | None:
    """Sum the scatter projected to the class means, and the nearest-mean agreement.

    Args:
        source: Samples to read.
        labels: Class index of each sample.
        inputs: Metric inputs with the statistics of the first pass.
        counter: Progress counter.

    Returns:
        The sums, for :func:`with_second_pass`; None if the class means are undefined.
    """
    try:
        means = inputs.means
        weights = None if inputs.prototypes is None else inputs.weights.vectors
    except UndefinedMetricError:
        return None
    num_classes, dim = means.vectors.shape
    step = source.block_rows(max(dim, 2 * num_classes))

    def as_array(tensor: Tensor) -> Array:
        return tensor.numpy() if source.device.type == "cpu" else tensor

    center, gram, centered = map(as_array, (means.vectors.mean(0), means.gram, means.centered))
    halfsquared_norms = gram.diagonal() / 2
    # One product with both: projections to the class means, and logits of the head.
    matrix = as_array(means.centered if weights is None else torch.cat([means.centered, weights]))
    center_products = matrix @ center
    constants = None if weights is None else weights @ means.vectors.mean(0)
    if constants is not None:
        constants = as_array(constants if inputs.bias is None else constants + inputs.head_bias)

    def process(start: int) -> tuple[Array, int, int]:
        rows, norms = source.read(slice(start, start + step))
        block_labels = labels[start : start + step]
        if norms is None or dim < num_classes:
            if norms is not None:
                rows /= norms[:, None]
            rows -= center  # Before the product, which would lose digits to a large common offset.
            products = rows @ matrix.T
        else:
            products = rows @ matrix.T
            products /= norms[:, None]
            products -= center_products
        projections = products[:, :num_classes]
        num_agreed = 0
        if constants is not None:
            predicted = (products[:, num_classes:] + constants).argmax(1)
            nearest = (projections - halfsquared_norms).argmax(1)
            num_agreed = int((predicted == nearest).sum())
        # The d × d scatter or its K × K projection, whichever is smaller.
        if dim < num_classes:
            rows -= centered[block_labels]
            return rows.T @ rows, num_agreed, len(block_labels)
        projections -= gram[block_labels]
        return projections.T @ projections, num_agreed, len(block_labels)

    size = min(dim, num_classes)
    total: Array = as_array(means.vectors.new_zeros(size, size))
    num_agreed = 0
    with _map(source, process, range(0, len(labels), step)) as results:
        for block_scatter, block_agreed, num_samples in results:
            total = total + block_scatter
            num_agreed += block_agreed
            counter.add(num_samples)
    return SecondPass(torch.as_tensor(total), num_agreed)


def with_second_pass(inputs: MetricInputs, sums: SecondPass | None) -> MetricInputs:
    """Return the inputs with ``projected_scatter`` and, given prototypes, ``agreement``.

    Args:
        inputs: Metric inputs with the statistics of the first pass.
        sums: Sums over all samples; None leaves the inputs as they are.
    """
    if sums is None:
        return inputs
    means, num_samples = inputs.means.centered, int(inputs.statistics.counts.sum())
    is_projected = inputs.statistics.dim >= inputs.statistics.num_classes
    return replace(
        inputs,
        projected_scatter=sums.scatter if is_projected else means @ sums.scatter @ means.T,
        agreement=None if inputs.prototypes is None else sums.num_agreed / num_samples,
    )


def _class_groups(
    source: SampleSource, order: np.ndarray, starts: np.ndarray, memory_budget: int | None
) -> Iterator[list[_ClassRows]]:
    """Yield the classes; with a budget, groups of classes gathered in the order of the file."""
    class_rows = [order[begin:end] for begin, end in pairwise(starts)]
    if memory_budget is None:
        yield [_ClassRows(label, source, rows) for label, rows in enumerate(class_rows)]
        return
    row_bytes = source.features[0].nbytes
    buffer: np.ndarray | None = None
    first = 0
    while first < len(class_rows):
        last, size = first + 1, len(class_rows[first])
        while (
            last < len(class_rows) and (size + len(class_rows[last])) * row_bytes <= memory_budget
        ):
            size, last = size + len(class_rows[last]), last + 1
        group = range(first, last)
        first = last
        if size * row_bytes > memory_budget:  # A single class, which is read block by block.
            yield [_ClassRows(group[0], source, class_rows[group[0]])]
            continue
        rows = np.sort(np.concatenate([class_rows[label] for label in group]))
        if isinstance(source.features, np.ndarray):
            if buffer is None:
                # Allocated once: a second buffer would exist next to the first for a while.
                capacity = min(len(order), max(memory_budget // row_bytes, size))
                buffer = np.empty((capacity, source.features.shape[1]), source.features.dtype)
            for start in range(0, size, _GATHERED_ROWS):
                chunk = rows[start : start + _GATHERED_ROWS]
                buffer[start : start + len(chunk)] = source.features[chunk]
            gathered = replace(source, features=buffer[:size])
        else:
            gathered = replace(source, features=source.features[rows])
        yield [
            _ClassRows(label, gathered, np.searchsorted(rows, class_rows[label])) for label in group
        ]


def _class_batches(group: list[_ClassRows], dim: int) -> Iterator[list[_ClassRows]]:
    """Yield classes of similar size, enough at a time for NumPy to release the GIL."""
    batch: list[_ClassRows] = []
    size = 0
    for member in sorted(group, key=lambda member: len(member.rows), reverse=True):
        batch.append(member)
        size += min(len(member.rows), dim)
        if size > _GIL_RELEASE_SIZE:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _class_moments(source: SampleSource, index: np.ndarray, with_product: bool) -> _ClassMoments:
    """Compute the moments of one class, block by block if it is large (Chan's formula)."""
    dim = source.features.shape[1]
    step = len(index) if len(index) <= dim else max(dim, source.block_rows(dim))
    mean: Array = 0.0
    product: Array = None
    sum_sq_dev, lowest, count = 0.0, math.inf, 0
    for start in range(0, len(index), step):
        rows, block_lowest = source.read_normalized(index[start : start + step])
        # Relative to the first row, so that identical samples deviate by exactly zero.
        origin = rows[0] + 0 if start == 0 else mean
        rows -= origin
        offset = rows.mean(0)
        rows -= offset
        mean_shift = offset * (count * len(rows) / (count + len(rows))) ** 0.5
        sum_sq_dev += float(squared_norms(rows).sum() + (mean_shift * mean_shift).sum())
        mean = origin + offset * (len(rows) / (count + len(rows)))
        count += len(rows)
        lowest = min(lowest, block_lowest)
        if with_product:
            block_product = rows @ rows.T if len(index) < dim else rows.T @ rows
            if product is None:
                product = block_product
            else:
                product += block_product
                product += mean_shift[:, None] * mean_shift
    return _ClassMoments(mean, sum_sq_dev, lowest, product)


def _eigenvalues(products: list[Array]) -> list[Array]:
    """Eigenvalues of symmetric matrices; stacked on the CPU, with zero padding."""
    # A matrix that is not finite is reported later; LAPACK might not return from it.
    products = [product if math.isfinite(product.trace()) else None for product in products]
    if not any(isinstance(product, np.ndarray) for product in products):
        return [None if product is None else torch.linalg.eigvalsh(product) for product in products]
    size = max(len(product) for product in products if product is not None)
    stack = np.zeros((len(products), size, size))
    for padded, product in zip(stack, products, strict=True):
        if product is not None:
            padded[: len(product), : len(product)] = product
    return list(np.linalg.eigvalsh(stack))


def _map(
    source: SampleSource, function: Callable[[Any], Any], items: Iterable[Any]
) -> AbstractContextManager[Iterator[Any]]:
    """Map over the cores on a CPU, sequentially on a GPU."""
    if source.device.type == "cpu":
        return thread_map(function, items)
    return nullcontext(map(function, items))
