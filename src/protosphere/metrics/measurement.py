"""Measure features that are at hand, in memory or on disk: every metric, in two visits to each sample."""

from collections.abc import Sequence
from itertools import islice
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Integer
from torch import Tensor

from protosphere.geometry.class_statistics import ClassStatistics, Space
from protosphere.metrics.catalog import Sign, select
from protosphere.metrics.frame import name_classes
from protosphere.metrics.suite import Evidence, Suite, evaluate
from protosphere.metrics.two_pass import Progress, Report, Source, first_visit, second_visit


class Measurement(NamedTuple):
    """What :func:`examine` found.

    Attributes:
        values: the metrics, by name, in the order of the catalog.
        absent: for each metric without a value the reason, one sentence.
        statistics: of the classes that were measured, where they were calculated.
        classes: their indices as the labels have them.
        sign: whether any feature was negative.
    """

    values: dict[str, float]
    absent: dict[str, str]
    statistics: ClassStatistics
    classes: list[int]
    sign: Sign


def measure(
    features: Float[Tensor, "samples dim"] | np.ndarray,
    labels: Integer[Tensor, "samples"] | np.ndarray,
    prototypes: Float[Tensor, "classes dim"] | np.ndarray | None = None,
    **options: Any,
) -> dict[str, float]:
    """Measure how near features and prototypes are to neural collapse.

    Every metric of :data:`protosphere.metrics.DEFINITIONS` that has a value on these samples; the others are absent.

    Args:
        features: one sample a row, in memory or memory-mapped, of any floating dtype. On a GPU they are measured there.
        labels: the class of each sample, from 0.
        prototypes: one a class, as ``nn.Linear.weight``; without them metrics of prototypes are absent.
        **options: as of :func:`examine`: ``bias``, ``num_classes``, ``space``, ``metrics``, ``classes``,
            ``device``, ``memory_budget``, ``progress``.

    Returns:
        Values by name, in the order of the catalog.

    Raises:
        ValueError: the input does not fit together, is not finite, or a class has no sample.

    >>> features = torch.eye(3).repeat(4, 1)
    >>> found = measure(features, torch.arange(12) % 3, torch.eye(3))
    >>> round(found["inter_effective_rank"], 6), found["nc1_ratio"], found["nc4_agreement"]
    (2.0, 0.0, 1.0)
    """
    return examine(features, labels, prototypes, **options).values


def examine(
    features: Float[Tensor, "samples dim"] | np.ndarray,
    labels: Integer[Tensor, "samples"] | np.ndarray,
    prototypes: Float[Tensor, "classes dim"] | np.ndarray | None = None,
    *,
    bias: Float[Tensor, "classes"] | np.ndarray | None = None,
    num_classes: int | None = None,
    space: Space = "sphere",
    metrics: str | Sequence[str] = "all",
    classes: Literal["all", "present"] = "all",
    device: torch.device | str | None = None,
    memory_budget: int | None = None,
    progress: Progress | None = None,
) -> Measurement:
    """:func:`measure`, with the statistics of the classes, and why each absent metric is absent.

    The ranks of a class come from the smaller of its n_c × n_c Gram matrix and its d × d scatter, one class a core.

    Args:
        features: as of :func:`measure`.
        labels: as of :func:`measure`.
        prototypes: as of :func:`measure`.
        bias: of the head, one a class; only for ``space="raw"``.
        num_classes: K; without it as many as there are prototypes, or the largest label plus one.
        space: ``"sphere"`` takes features and prototypes to unit length; ``"raw"`` leaves both.
        metrics: ``"all"``, ``"cheap"``, groups, or names.
        classes: ``"all"`` asks for a sample of every class; ``"present"`` measures the classes that have one.
        device: where to calculate; without it where the features are.
        memory_budget: bytes of features to gather from disk at a time, class group by class group. Without it 1 GiB if
            the features are memory-mapped; features in memory are read where they are.
        progress: called with the share that is done, between 0 and 1.

    Returns:
        A :class:`Measurement`.

    Raises:
        ValueError: as of :func:`measure`.
    """
    names = select(metrics)
    targets = _check(features, labels, prototypes, bias, space)
    heads = [_as_tensor(part) for part in (prototypes, bias)]
    total = num_classes or next(
        (len(part) for part in heads if part is not None), int(targets.max()) + 1
    )
    targets, present = _relabeled(targets, total, classes)
    weights, offsets = (None if part is None else part[present] for part in heads)

    where = (
        torch.device(device)
        if device
        else features.device
        if isinstance(features, Tensor)
        else torch.device("cpu")
    )
    source = Source(_as_array(features), where, space)
    if memory_budget is None and isinstance(features, np.memmap):
        memory_budget = 1 << 30
    again = bool({"nc1_trace", "nc4_agreement"} & set(names))
    report = Report(progress, len(targets) * (1 + again))

    wanted = "intra_effective_rank" in names
    statistics, spectra, lowest = first_visit(
        source, targets, len(present), memory_budget, wanted, report
    )
    evidence = Evidence(statistics, weights, offsets, space, spectra)
    if again:
        evidence = second_visit(source, targets, evidence, report)
    suite: Suite = evaluate(evidence, names)
    values = {name: float(value) for name, value in suite.values.items()}
    return Measurement(
        values, suite.absent, statistics, present.tolist(), "non-negative" if lowest >= 0 else "any"
    )


def _as_array(features: Tensor | np.ndarray) -> Tensor | np.ndarray:
    """NumPy's view of a tensor in memory, where NumPy has the dtype."""
    if isinstance(features, Tensor):
        features = features.detach()
        if features.device.type == "cpu" and features.dtype != torch.bfloat16:
            return features.resolve_neg().numpy()
    return features


def _as_tensor(part: Tensor | np.ndarray | None) -> Tensor | None:
    if part is None or isinstance(part, Tensor):
        return part
    # A copy, since the array may be mapped read-only or have the bytes of another machine; prototypes are small.
    return torch.from_numpy(
        np.array(part, dtype=part.dtype.newbyteorder("=") if part.itemsize <= 8 else np.float64)
    )


_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def _is_float(part: Tensor | np.ndarray) -> bool:
    return part.dtype in _FLOATS if isinstance(part, Tensor) else part.dtype.kind == "f"


def _check(
    features: Tensor | np.ndarray,
    labels: Tensor | np.ndarray,
    prototypes: Any,
    bias: Any,
    space: Space,
) -> np.ndarray:
    """Raise ValueError unless the input fits together; returns the labels."""
    shape = tuple(features.shape)
    if len(shape) != 2 or not all(shape) or not _is_float(features):
        raise ValueError(
            "features must be a matrix (samples, dim) of float16, bfloat16, float32 or float64, with samples; "
            f"got {shape} of {features.dtype}"
        )
    if isinstance(labels, Tensor):
        whole = not (
            labels.is_floating_point()
            or labels.is_complex()
            or labels.is_quantized
            or labels.dtype == torch.bool
        )
    else:
        whole = labels.dtype.kind in "iu"
    if tuple(labels.shape) != shape[:1] or not whole:
        raise ValueError(
            f"labels must hold one class index per sample, shape ({shape[0]},); "
            f"got {tuple(labels.shape)} of {labels.dtype}"
        )
    if space not in ("sphere", "raw"):
        raise ValueError(f"space must be 'sphere' or 'raw'; got {space!r}")
    for name, part in (("prototypes", prototypes), ("bias", bias)):
        if part is not None and not _is_float(part):
            raise ValueError(f"{name} must be floating numbers; got {part.dtype}")
        tensor = _as_tensor(part)
        if tensor is not None and not bool(torch.isfinite(tensor).all()):
            raise ValueError(f"{name} must be finite; got NaN or infinity")
    if prototypes is not None and (len(prototypes.shape) != 2 or prototypes.shape[1] != shape[1]):
        raise ValueError(
            f"prototypes must be a matrix (classes, {shape[1]}); got {tuple(prototypes.shape)}"
        )
    if bias is not None:
        if space != "raw":
            raise ValueError(
                "a bias must come with space='raw': on the sphere a classifier is the cosine alone"
            )
        if len(bias.shape) != 1 or (prototypes is not None and len(bias) != len(prototypes)):
            raise ValueError(f"bias must hold one number per class; got shape {tuple(bias.shape)}")
    return labels.detach().cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)


def _relabeled(targets: np.ndarray, total: int, classes: str) -> tuple[np.ndarray, np.ndarray]:
    """Labels among the classes that are measured, and those classes."""
    if classes not in ("all", "present"):
        raise ValueError(f"classes must be 'all' or 'present'; got {classes!r}")
    least, most = int(targets.min()), int(targets.max())
    if least < 0 or most >= total:
        raise ValueError(
            f"labels must lie in 0..{total - 1} for {total} classes; got {least if least < 0 else most}"
        )
    if most >= 2**63:
        raise ValueError(f"labels must lie below 2**63; got {most}")
    # By sorting: a label of a thousand million must not ask for as many counts.
    present, renamed = np.unique(targets.astype(np.int64), return_inverse=True)
    if len(present) < 2:
        raise ValueError(f"collapse is about two classes or more; got samples of {len(present)}")
    if classes == "all" and len(present) < total:
        there = set(present.tolist())
        few = list(
            islice(
                (label for label in range(total) if label not in there),
                min(5, total - len(present)),
            )
        )
        names = name_classes(few, total - len(present), "has none")
        raise ValueError(
            f"every class must have a sample, or classes='present' leave it out; {names}"
        )
    return renamed, present
