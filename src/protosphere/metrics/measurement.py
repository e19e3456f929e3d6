"""``measure``: every metric of stored features, in memory or on disk, in two passes."""

from collections.abc import Sequence
from itertools import islice
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Integer
from torch import Tensor

from protosphere.geometry.checks import (
    as_tensor,
    check_at_least,
    check_features,
    check_labels,
    is_floating,
)
from protosphere.geometry.class_statistics import ClassStatistics, Space
from protosphere.metrics.catalog import select
from protosphere.metrics.centered import list_indices
from protosphere.metrics.compute import MetricInputs, compute_metrics
from protosphere.metrics.definition import Sign
from protosphere.metrics.sample_source import (
    Progress,
    ProgressCounter,
    SampleSource,
    numpy_view,
)
from protosphere.metrics.two_pass import first_pass, second_pass, with_second_pass

Features = Float[Tensor, "samples dim"] | np.ndarray | Sequence[Sequence[float]]
Labels = Integer[Tensor, "samples"] | np.ndarray | Sequence[int]
Prototypes = Float[Tensor, "classes dim"] | np.ndarray | Sequence[Sequence[float]]
Bias = Float[Tensor, "classes"] | np.ndarray | Sequence[float]

_SECOND_PASS = {"nc1_trace", "nc4_agreement"}
_MEMMAP_BUDGET = 1 << 30
_MAX_LABEL = 2**63 - 1


class Measurement(NamedTuple):
    """Result of :func:`measure_detailed`.

    Attributes:
        values: Metric values by name, in the order of the catalog.
        absent: Why each other selected metric has no value, by name.
        statistics: Statistics of the measured classes, on the device they were computed on.
        classes: Labels of the measured classes.
        sign: ``"non-negative"`` if no feature is negative, else ``"any"``.
    """

    values: dict[str, float]
    absent: dict[str, str]
    statistics: ClassStatistics
    classes: list[int]
    sign: Sign


def measure(
    features: Features,
    labels: Labels,
    prototypes: Prototypes | None = None,
    *,
    bias: Bias | None = None,
    num_classes: int | None = None,
    space: Space = "sphere",
    metrics: str | Sequence[str] = "all",
    classes: Literal["all", "present"] = "all",
    device: torch.device | str | None = None,
    memory_budget: int | None = None,
    progress: Progress | None = None,
) -> dict[str, float]:
    """Measure how close features and prototypes are to neural collapse.

    Returns every selected metric of :data:`protosphere.metrics.CATALOG` that has a value for these
    samples; :func:`measure_detailed` also says why others are absent. The effective ranks of a
    class are computed from the smaller of its n_c × n_c Gram matrix and its d × d scatter, one
    class per core.

    Args:
        features: One sample per row, as a tensor, NumPy array (may be memory-mapped) or nested
            sequence of floating-point numbers.
        labels: Class index of each sample, starting from 0.
        prototypes: One prototype per class, as ``nn.Linear.weight``. Without them, metrics of
            prototypes are absent.
        bias: Bias of the head, one number per class; only with ``space="raw"``.
        num_classes: Number of classes K. By default the number of prototypes, or the largest
            label plus one.
        space: ``"sphere"`` normalizes features and prototypes; ``"raw"`` uses them unchanged.
        metrics: ``"all"``, ``"cheap"``, or groups and names of metrics.
        classes: ``"all"`` requires a sample of every class; ``"present"`` measures the classes
            that have samples.
        device: Device to compute on. By default the device of the features.
        memory_budget: Bytes of features to gather from disk at a time. By default 1 GiB for
            memory-mapped features; others are read in place.
        progress: Function called with the completed fraction, between 0 and 1.

    Returns:
        Metric values by name, in the order of the catalog.

    Raises:
        ValueError: Inputs do not match or are not finite, or a class has no sample.

    >>> features = torch.eye(3).repeat(4, 1)
    >>> values = measure(features, torch.arange(12) % 3, torch.eye(3))
    >>> round(values["inter_effective_rank"], 6), values["nc1_ratio"], values["nc4_agreement"]
    (2.0, 0.0, 1.0)
    """
    return measure_detailed(
        features,
        labels,
        prototypes,
        bias=bias,
        num_classes=num_classes,
        space=space,
        metrics=metrics,
        classes=classes,
        device=device,
        memory_budget=memory_budget,
        progress=progress,
    ).values


def measure_detailed(
    features: Features,
    labels: Labels,
    prototypes: Prototypes | None = None,
    *,
    bias: Bias | None = None,
    num_classes: int | None = None,
    space: Space = "sphere",
    metrics: str | Sequence[str] = "all",
    classes: Literal["all", "present"] = "all",
    device: torch.device | str | None = None,
    memory_budget: int | None = None,
    progress: Progress | None = None,
) -> Measurement:
    """Measure neural collapse, with class statistics and the reasons for absent metrics.

    Args:
        features: See :func:`measure`.
        labels: See :func:`measure`.
        prototypes: See :func:`measure`.
        bias: See :func:`measure`.
        num_classes: See :func:`measure`.
        space: See :func:`measure`.
        metrics: See :func:`measure`.
        classes: See :func:`measure`.
        device: See :func:`measure`.
        memory_budget: See :func:`measure`.
        progress: See :func:`measure`.

    Returns:
        Values, reasons, statistics, measured classes and the sign of the features.

    Raises:
        ValueError: Inputs do not match or are not finite, or a class has no sample.

    >>> result = measure_detailed([[1.0, 0.0], [0.0, 1.0]], [0, 1])
    >>> result.absent["instance_alignment"]
    'no class has two samples'
    """
    names = select(metrics)
    sample_array = _as_array("features", features)
    label_array = _as_array("labels", labels)
    check_features(sample_array)
    num_samples, dim = sample_array.shape
    if not num_samples or not dim:
        raise ValueError(
            f"features must have at least one sample and one dimension, got {(num_samples, dim)}"
        )
    _check_not_text(label_array)
    check_labels(label_array, num_samples)
    _check_choices(space, classes)
    weights, offsets = _check_head(prototypes, bias, dim, space)
    targets = label_array.detach().cpu().numpy() if isinstance(label_array, Tensor) else label_array
    total = _num_classes(num_classes, weights, offsets, targets)
    targets, present = _compact_labels(targets, total, classes)
    weights, offsets = (None if part is None else part[present] for part in (weights, offsets))

    if device is None and isinstance(sample_array, Tensor):
        device = sample_array.device
    source = SampleSource(numpy_view(sample_array), torch.device(device or "cpu"), space)
    if memory_budget is None and isinstance(sample_array, np.memmap):
        memory_budget = _MEMMAP_BUDGET
    two_passes = bool(_SECOND_PASS & set(names))
    counter = ProgressCounter(progress, num_samples * (1 + two_passes))
    statistics, class_spectra, lowest = first_pass(
        source,
        targets,
        len(present),
        memory_budget=memory_budget,
        with_spectra="intra_effective_rank" in names,
        counter=counter,
    )
    inputs = MetricInputs(statistics, weights, offsets, space, class_spectra)
    if two_passes:
        inputs = with_second_pass(inputs, second_pass(source, targets, inputs, counter))
    results = compute_metrics(inputs, names)
    return Measurement(
        values={name: float(value) for name, value in results.values.items()},
        absent=results.absent,
        statistics=statistics,
        classes=present.tolist(),
        sign="non-negative" if lowest >= 0 else "any",
    )


def _as_array(name: str, values: Any) -> Tensor | np.ndarray:
    """Tensors and arrays unchanged; lists and other array-likes as NumPy arrays."""
    if isinstance(values, Tensor | np.ndarray):
        return values
    try:
        return np.asarray(values)
    except ValueError as error:
        raise ValueError(
            f"{name} must be an array or equal-length sequences of numbers, "
            f"got {type(values).__name__}: {error}"
        ) from error


def _check_not_text(labels: Tensor | np.ndarray) -> None:
    """Refuse class names as labels, and say how to convert them."""
    if not isinstance(labels, Tensor) and labels.dtype.kind in "USO":
        raise ValueError(
            f"labels must be integer class indices, got {labels.dtype}; "
            "names, labels = np.unique(labels, return_inverse=True) converts class names"
        )


def _check_choices(space: str, classes: str) -> None:
    if space not in ("sphere", "raw"):
        raise ValueError(f"space must be 'sphere' or 'raw', got {space!r}")
    if classes not in ("all", "present"):
        raise ValueError(f"classes must be 'all' or 'present', got {classes!r}")


def _check_head(
    prototypes: Any, bias: Any, dim: int, space: Space
) -> tuple[Tensor | None, Tensor | None]:
    """Check prototypes and bias, and return them as tensors."""
    if bias is not None and space != "raw":
        raise ValueError("bias requires space='raw', because cosines have no bias")
    tensors: list[Tensor | None] = []
    for name, values in (("prototypes", prototypes), ("bias", bias)):
        if values is None:
            tensors.append(None)
            continue
        array = _as_array(name, values)
        if not is_floating(array):
            raise ValueError(f"{name} must be floating-point numbers, got {array.dtype}")
        tensor = as_tensor(name, array)
        if not bool(torch.isfinite(tensor).all()):
            raise ValueError(f"{name} must be finite, got NaN or infinity")
        tensors.append(tensor)
    weights, offsets = tensors
    if weights is not None and (weights.ndim != 2 or weights.shape[1] != dim):
        raise ValueError(f"prototypes must have shape (classes, {dim}), got {tuple(weights.shape)}")
    if offsets is not None and (
        offsets.ndim != 1 or (weights is not None and len(offsets) != len(weights))
    ):
        raise ValueError(f"bias must hold one number per class, got shape {tuple(offsets.shape)}")
    return weights, offsets


def _num_classes(
    num_classes: int | None, weights: Tensor | None, offsets: Tensor | None, labels: np.ndarray
) -> int:
    head = next((part for part in (weights, offsets) if part is not None), None)
    if num_classes is None:
        return int(labels.max()) + 1 if head is None else len(head)
    check_at_least("num_classes", num_classes, 2)
    if head is not None and len(head) != num_classes:
        raise ValueError(
            f"num_classes must match the head, which has {len(head)} classes, got {num_classes}"
        )
    return num_classes


def _compact_labels(
    labels: np.ndarray, num_classes: int, classes: str
) -> tuple[np.ndarray, np.ndarray]:
    """Labels as indices into the measured classes, and those classes."""
    lowest, highest = int(labels.min()), int(labels.max())
    if lowest < 0 or highest >= num_classes:
        raise ValueError(
            f"labels must be between 0 and {num_classes - 1} for {num_classes} classes, "
            f"got {lowest if lowest < 0 else highest}"
        )
    if highest > _MAX_LABEL:
        raise ValueError(f"labels must be less than 2**63, got {highest}")
    # By sorting: counting would allocate memory for every label up to the largest.
    present, compact = np.unique(labels.astype(np.int64), return_inverse=True)
    if len(present) < 2:
        raise ValueError(f"labels must contain at least two classes, got {len(present)}")
    if classes == "all" and len(present) < num_classes:
        num_missing = num_classes - len(present)
        with_samples = set(present.tolist())
        missing = (label for label in range(num_classes) if label not in with_samples)
        listed = list(islice(missing, min(5, num_missing)))
        raise ValueError(
            "every class needs a sample unless classes='present'; "
            + list_indices(listed, num_missing, "has none")
        )
    return compact, present
