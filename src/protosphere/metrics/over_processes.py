"""Every metric of features that are divided over processes: each of them measures whole classes."""

from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from jaxtyping import Float, Integer
from torch import Tensor

from protosphere.geometry.class_statistics import ClassStatistics
from protosphere.metrics.catalog import select
from protosphere.metrics.centered import list_classes
from protosphere.metrics.compute import MetricInputs, compute_metrics
from protosphere.metrics.measurement import Measurement
from protosphere.metrics.sample_source import ProgressCounter, SampleSource, numpy_view
from protosphere.metrics.two_pass import SecondPass, first_pass, second_pass, with_second_pass
from protosphere.parallel.launch import World
from protosphere.parallel.rows import exchange_rows


class ClassRows(NamedTuple):
    """All samples of the classes that belong to a process, in their original order.

    Attributes:
        features: One sample per row.
        labels: Class index of each sample.
        positions: Position of each sample among those of all processes.
    """

    features: Float[Tensor, "samples dim"]
    labels: Integer[Tensor, "samples"]
    positions: Integer[Tensor, "samples"]


class _OwnMoments(NamedTuple):
    """Result of the first pass over the classes of one process, on the CPU."""

    classes: Integer[Tensor, "classes"]
    counts: Float[Tensor, "classes"]
    means: Float[Tensor, "classes dim"]
    sum_sq_dev: Float[Tensor, "classes"]
    spectra: list[Tensor]
    lowest: float


def exchange_classes(
    features: Float[Tensor, "samples dim"],
    labels: Integer[Tensor, "samples"],
    positions: Integer[Tensor, "samples"],
    *,
    world: World,
) -> ClassRows:
    """Give each process all samples of its classes: class c to process c mod size.

    Every process must call it. Features are sent once and held by one process, so that memory for
    them does not grow with the number of processes.

    Args:
        features: Samples of this process; there may be none.
        labels: Class index of each sample.
        positions: Position of each sample among those of all processes.
        world: The processes.
    """
    if world.size == 1:
        return ClassRows(features, labels, positions)
    owners = labels.long() % world.size
    rows = ClassRows(
        *(
            exchange_rows(column, owners, world.group)
            for column in (features, labels.long(), positions)
        )
    )
    order = rows.positions.argsort()
    return ClassRows(*(column[order] for column in rows))


def measure_over(
    rows: ClassRows, prototypes: Float[Tensor, "classes dim"], *, world: World
) -> Measurement:
    """Measure all metrics on the unit sphere of samples that are divided over processes.

    The values are those of :func:`protosphere.metrics.measure_detailed` for all samples: the
    moments and the spectrum of a class are computed on the process that has it, and what the second
    pass sums is added over processes. Every process must call it.

    Args:
        rows: Samples of the classes of this process; see :func:`exchange_classes`.
        prototypes: One prototype per class, the same on every process.
        world: The processes.

    Returns:
        The measurement, the same on every process.

    Raises:
        ValueError: A class has no sample on any process, or features are not finite.
        PeerError: Another process has failed.
    """
    num_classes, names = len(prototypes), select("all")
    counter = ProgressCounter(None, 1)
    with world.together():
        device, positions = rows.features.device, rows.positions.cpu().numpy()
        source = SampleSource(numpy_view(rows.features), device, "sphere", positions)
        labels = rows.labels.cpu().numpy()
        own = _first_pass(source, labels, counter)
    parts = world.gather(own)
    with world.together():
        statistics, spectra = _join(parts, num_classes, rows.features)
        inputs = MetricInputs(statistics, prototypes, None, "sphere", spectra)
        sums = second_pass(source, labels, inputs, counter)
    inputs = with_second_pass(inputs, _add(sums, world))

    def compute() -> tuple[dict[str, float], dict[str, str]]:
        results = compute_metrics(inputs, names)
        return {name: float(value) for name, value in results.values.items()}, results.absent

    values, absent = world.from_first(compute)
    is_non_negative = min(part.lowest for part in parts) >= 0
    return Measurement(
        values,
        absent,
        statistics,
        list(range(num_classes)),
        "non-negative" if is_non_negative else "any",
    )


def _first_pass(source: SampleSource, labels: np.ndarray, counter: ProgressCounter) -> _OwnMoments:
    classes, compact = np.unique(labels, return_inverse=True)
    if not len(classes):
        none = torch.zeros(0, dtype=torch.float64)
        means = none.reshape(0, source.features.shape[1])
        return _OwnMoments(none.long(), none, means, none, [], np.inf)
    statistics, spectra, lowest = first_pass(
        source, compact, len(classes), memory_budget=None, with_spectra=True, counter=counter
    )
    return _OwnMoments(
        torch.from_numpy(classes),
        statistics.counts.cpu(),
        statistics.means.cpu(),
        statistics.sum_sq_dev.cpu(),
        [spectrum.cpu() for spectrum in spectra or ()],
        lowest,
    )


def _join(
    parts: list[_OwnMoments], num_classes: int, features: Tensor
) -> tuple[ClassStatistics, list[Tensor]]:
    """Return the statistics and the spectra of all classes, on the device of the features."""
    classes = torch.cat([part.classes for part in parts])
    missing = torch.ones(num_classes, dtype=torch.bool).index_fill_(0, classes, False)
    if bool(missing.any()):
        raise ValueError(f"every class needs a sample; {list_classes(missing, 'has none')}")
    order, device = classes.argsort(), features.device
    counts, means, sum_sq_dev = (
        torch.cat(column)[order].to(device)
        for column in zip(*((p.counts, p.means, p.sum_sq_dev) for p in parts), strict=True)
    )
    statistics = ClassStatistics(
        counts=counts,
        means=means,
        sum_sq_dev=sum_sq_dev,
        within=None,
        scatter_tiles=None,
        input_eps=means.new_tensor(torch.finfo(features.dtype).eps),
        rejected=torch.tensor(0, device=device),
    )
    spectra = [spectrum.to(device) for part in parts for spectrum in part.spectra]
    return statistics, [spectra[index] for index in order.tolist()]


def _add(sums: SecondPass | None, world: World) -> SecondPass | None:
    """Add over processes; whether there are sums depends on what all of them know."""
    if sums is None or world.group is None:
        return sums
    scatter = sums.scatter.contiguous()
    agreed = torch.tensor(sums.num_agreed, device=scatter.device)
    dist.all_reduce(scatter, group=world.group)
    dist.all_reduce(agreed, group=world.group)
    return SecondPass(scatter, int(agreed))
