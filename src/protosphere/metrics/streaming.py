"""``NeuralCollapse``: the metrics as a ``torchmetrics.Metric``, updated batch by batch."""

import copy
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Integer
from torch import Tensor

from protosphere.geometry.checks import as_tensor, check_at_least, check_features, check_labels
from protosphere.geometry.class_statistics import (
    ClassStatistics,
    Moments,
    Space,
    empty_statistics,
)
from protosphere.geometry.scatter_tiles import empty_tiles, tile_bytes
from protosphere.metrics.catalog import CATALOG, select
from protosphere.metrics.centered import list_classes
from protosphere.metrics.compute import MetricInputs, compute_metrics
from protosphere.metrics.parameters import (
    Bias,
    Prototypes,
    Reference,
    check_bias_space,
    check_finite,
    is_foreign,
    to_parameters,
)

try:
    from torchmetrics import Metric
    from torchmetrics.utilities.plot import _AX_TYPE
except ImportError as error:  # pragma: no cover
    raise ImportError(
        'NeuralCollapse requires torchmetrics: pip install "protosphere[metrics]"'
    ) from error

# Batches are buffered until they have this many samples, because an update of the statistics
# costs almost the same for one sample as for thousands.
_BUFFER_SIZE = 8192


class NeuralCollapse(Metric):
    """Streaming metrics of neural collapse.

    ``update(features, labels)`` adds a batch and ``compute()`` returns a dictionary of values, with
    a key for every selected metric and NaN for one that cannot be computed. The values equal those
    of :func:`protosphere.metrics.measure` on all samples at once, for any batch size, order and
    number of processes. ``nc4_agreement`` is not available, because it needs a second pass over the
    samples.

    The memory depends on the selected metrics: K·d numbers for ``metrics="cheap"``, d² more for
    ``nc1_trace``, and about K·d²/2 for ``intra_effective_rank``, all in float64, plus a buffer of
    the last few thousand samples.

    Args:
        dim: Dimension d of the features.
        num_classes: Number of classes K.
        prototypes: The head, or any object with ``prototypes``; or one prototype per class, as
            ``nn.Linear.weight`` or a NumPy array, or a function that returns them. They are read
            at ``compute()``, an array when it is given. Without them, metrics of prototypes are
            NaN. Prefer the head: with a tensor the metric does not notice that the head has got
            another one, as from ``load_state_dict(..., assign=True)``.
        bias: Bias of the head, as for prototypes; only with ``space="raw"``.
        space: ``"sphere"`` normalizes features and prototypes; ``"raw"`` uses them unchanged.
        metrics: ``"all"``, ``"cheap"``, or groups (``"alignment"``, ``"nc1"`` …) and names.
        classes: With ``"all"``, metrics of class means are NaN until every class has a sample;
            ``"present"`` measures the classes that have samples.
        ignore_index: Samples with this label are ignored.
        memory_budget: Maximum number of bytes for the scatter matrices of all classes.
        **options: Options of ``torchmetrics.Metric``.

    Attributes:
        names: Names of the selected metrics, the keys of ``compute()``.
        absent: After ``compute()``, why each metric that is NaN has no value.
        statistics: Class statistics so far (counts, means, within-class scatter).

    Raises:
        ValueError: An argument is invalid, or the scatter matrices exceed the memory budget.

    >>> metric = NeuralCollapse(3, 3, torch.eye(3), metrics=["nc2_simplex", "alignment"])
    >>> metric.update(torch.eye(3), torch.arange(3))
    >>> {name: round(float(value), 6) for name, value in metric.compute().items()}
    {'instance_alignment': nan, 'nc2_simplex': 0.0, 'weight_class_alignment': 0.0,
     'weight_instance_alignment': 0.0}
    >>> metric.absent
    {'instance_alignment': 'no class has two samples'}
    >>> metric.statistics.counts.tolist()
    [1.0, 1.0, 1.0]
    """

    is_differentiable = False
    higher_is_better = None
    full_state_update = True

    counts: Tensor
    means: Tensor
    sum_sq_dev: Tensor
    input_eps: Tensor
    rejected: Tensor
    options: Tensor
    scatter_tiles: list[Tensor]
    buffered_features: list[Tensor]
    buffered_labels: list[Tensor]

    def __init__(
        self,
        dim: int,
        num_classes: int,
        prototypes: Prototypes | None = None,
        *,
        bias: Bias | None = None,
        space: Space = "sphere",
        metrics: str | Sequence[str] = "all",
        classes: Literal["all", "present"] = "all",
        ignore_index: int = -100,
        memory_budget: int = 4 << 30,
        **options: Any,
    ) -> None:
        super().__init__(**{"compute_with_cache": False, **options})
        check_at_least("dim", dim, 1)
        check_at_least("num_classes", num_classes, 2)
        if space not in ("sphere", "raw"):
            raise ValueError(f"space must be 'sphere' or 'raw', got {space!r}")
        if classes not in ("all", "present"):
            raise ValueError(f"classes must be 'all' or 'present', got {classes!r}")
        check_bias_space(bias, space)
        self.dim, self.num_classes, self.space = dim, num_classes, space
        self.metrics, self.classes, self.ignore_index = metrics, classes, ignore_index
        self.names = tuple(name for name in select(metrics) if "samples" not in CATALOG[name].needs)
        if not self.names:
            raise ValueError(
                f"metrics must not need a second pass over the samples, got {metrics!r}; "
                "use measure() instead"
            )
        self.absent: dict[str, str] = {}
        self._prototypes = Reference("prototypes", prototypes, (num_classes, dim))
        self._bias = Reference("bias", bias, (num_classes,))
        needs = frozenset[str]().union(*(CATALOG[name].needs for name in self.names))
        self.moments: Moments = (
            "per_class" if "per_class" in needs else "pooled" if "pooled" in needs else "sums"
        )
        required = tile_bytes(num_classes, dim)
        if self.moments == "per_class" and required > memory_budget:
            raise ValueError(
                f"intra_effective_rank of {num_classes} classes in {dim} dimensions requires "
                f"memory_budget ≥ {required / 2**30:.1f} GiB, got {memory_budget / 2**30:.1f} GiB; "
                "raise it, select other metrics, or store the features and use measure()"
            )
        moments: Moments = "pooled" if self.moments == "pooled" else "sums"
        initial = empty_statistics(num_classes, dim, moments=moments)
        for name in ("counts", "means", "sum_sq_dev", "within", "input_eps", "rejected"):
            value = getattr(initial, name)
            if value is not None:
                self.add_state(name, value)
        # A MetricCollection must not merge metrics that differ in these settings only.
        self.add_state("options", torch.tensor([int(space == "sphere"), ignore_index]))
        self.add_state("buffered_features", [])
        self.add_state("buffered_labels", [])
        if self.moments == "per_class":
            # A list, because torchmetrics keeps a second copy of tensor states as their default.
            self.add_state("scatter_tiles", [])

    @property
    def statistics(self) -> ClassStatistics:
        """Class statistics of all samples so far on this process, buffered ones included.

        The tensors are the state of the metric: clone them to keep them across updates, and do
        not change them. ``statistics.means`` are the class means in ``space``.
        """
        with torch.inference_mode(False), torch.no_grad():
            return self._flush()

    def update(
        self,
        features: Float[Tensor, "samples dim"] | np.ndarray,
        labels: Integer[Tensor, "samples"] | np.ndarray,
    ) -> None:
        """Add a batch; no gradients are kept.

        Does not synchronize with a GPU unless class scatters are accumulated.

        Args:
            features: One sample per row, in any floating-point dtype. NumPy arrays are moved to
                the device of the metric.
            labels: Class index of each sample.

        Raises:
            ValueError: Shapes or dtypes do not match, or, on the CPU, a label is out of range.
        """
        check_features(features, dim=self.dim)
        check_labels(labels, len(features))
        if isinstance(features, np.ndarray):
            features = as_tensor("features", features).to(self.device)
        if isinstance(labels, np.ndarray):
            labels = as_tensor("labels", labels).to(self.device)
        # Narrow integer types would overflow in the comparisons below.
        labels = labels.long()
        if labels.device.type == "cpu":
            out_of_range = (labels < 0) | (labels >= self.num_classes)
            self._check_rejected(int((out_of_range & (labels != self.ignore_index)).sum()))
        # Tensors created in inference mode could not be updated outside of it.
        with torch.inference_mode(False), torch.no_grad():
            self._own_states()
            if self.buffered_features and self.buffered_features[0].dtype != features.dtype:
                self._flush()
            self.buffered_features.append(features.detach().clone())
            self.buffered_labels.append(labels.clone())
            if sum(map(len, self.buffered_labels)) >= _BUFFER_SIZE:
                self._flush()

    def compute(
        self, prototypes: Tensor | np.ndarray | None = None, bias: Tensor | np.ndarray | None = None
    ) -> dict[str, Tensor]:
        """Compute the metrics of all samples so far.

        Args:
            prototypes: Prototypes to use instead of those given to the constructor.
            bias: Bias to use instead of that given to the constructor.

        Returns:
            A scalar tensor for each of :attr:`names`, in the order of the catalog: always the same
            keys, so that loggers and collections can rely on them. A metric that cannot be computed
            is NaN, and :attr:`absent` then says why.

        Raises:
            ValueError: Labels were out of range, features were not finite, or the prototypes or
                the bias do not match.
        """
        with torch.inference_mode(False), torch.no_grad():
            statistics = self._flush()
            self._check_rejected(int(self.rejected))
            weights = to_parameters("prototypes", prototypes, (self.num_classes, self.dim))
            weights = self._prototypes.get() if weights is None else weights
            offsets = to_parameters("bias", bias, (self.num_classes,))
            offsets = self._bias.get() if offsets is None else offsets
            check_finite("prototypes", weights)
            check_finite("bias", offsets)
            check_bias_space(offsets, self.space)
            non_finite = ~torch.isfinite(statistics.sum_sq_dev)
            if bool(non_finite.any()):
                raise ValueError(
                    "features must be finite with finite norms; "
                    + list_classes(non_finite, "has others")
                )
            if self.classes == "present":
                present = torch.nonzero(statistics.counts).flatten()
                statistics = statistics.select(present)
                weights, offsets = (
                    None if values is None else values[present.to(values.device)]
                    for values in (weights, offsets)
                )
            inputs = MetricInputs(statistics, weights, offsets, self.space)
            results = compute_metrics(inputs, self.names)
        self.absent = results.absent
        nan = self.means.new_tensor(torch.nan)
        return {name: results.values.get(name, nan.clone()) for name in self.names}

    def plot(
        self,
        val: dict[str, Tensor] | Sequence[dict[str, Tensor]] | None = None,
        ax: _AX_TYPE | None = None,
    ) -> tuple[Any, Any]:
        """Plot the metrics: one point each, or a line each over several results.

        Args:
            val: Result of :meth:`compute` or :meth:`forward`, or a list of them in the order of
                time. None computes the metrics now.
            ax: Matplotlib axes to draw into. None creates a figure.

        Returns:
            Figure and axes.

        Raises:
            ModuleNotFoundError: matplotlib is not installed.
        """
        return self._plot(val, ax)

    def extra_repr(self) -> str:
        """Return the constructor arguments, for ``repr``."""
        arguments = {
            "dim": self.dim,
            "num_classes": self.num_classes,
            "prototypes": self._prototypes,
            "bias": self._bias,
            "space": self.space,
            "metrics": self.metrics,
            "classes": self.classes,
            "ignore_index": self.ignore_index,
        }
        return ", ".join(f"{name}={value!r}" for name, value in arguments.items())

    def set_dtype(self, dst_type: Any) -> "NeuralCollapse":  # noqa: ARG002
        """Do nothing: the state stays in float64, whatever the dtype of the features."""
        return self

    def _apply(
        self, fn: Callable[[Tensor], Tensor], exclude_state: Sequence[str] = ""
    ) -> "NeuralCollapse":
        """Move the state to another device; no conversion changes its dtypes."""

        def move(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            return moved if moved.dtype == tensor.dtype else tensor.to(moved.device)

        super()._apply(move, exclude_state)
        return self

    def merge_state(self, incoming_state: "dict[str, Any] | Metric") -> None:
        """Add the samples of another ``NeuralCollapse`` metric.

        Args:
            incoming_state: Metric with the same classes, dimension, space and moments.

        Raises:
            ValueError: The metrics do not match.
        """
        if not isinstance(incoming_state, NeuralCollapse) or incoming_state.space != self.space:
            raise ValueError(
                f"incoming_state must be a NeuralCollapse with space={self.space!r}, got "
                f"{getattr(incoming_state, 'space', type(incoming_state).__name__)!r}"
            )
        with torch.inference_mode(False), torch.no_grad():
            self._own_states()
            self._flush().merge(incoming_state._flush())
        self._update_count += incoming_state._update_count

    def _flush(self) -> ClassStatistics:
        """Add buffered samples to the state, and return statistics that share its memory."""
        if self.moments == "per_class" and not self.scatter_tiles:
            self.scatter_tiles.extend(empty_tiles(self.num_classes, self.dim, device=self.device))
        statistics = ClassStatistics(
            counts=self.counts,
            means=self.means,
            sum_sq_dev=self.sum_sq_dev,
            within=getattr(self, "within", None),
            scatter_tiles=self.scatter_tiles if self.moments == "per_class" else None,
            input_eps=self.input_eps,
            rejected=self.rejected,
        )
        if self.buffered_labels:
            features, labels = torch.cat(self.buffered_features), torch.cat(self.buffered_labels)
            self.buffered_features.clear()
            self.buffered_labels.clear()
            statistics.add(features, labels, space=self.space, ignore_index=self.ignore_index)
        return statistics

    def _own_states(self) -> None:
        """Clone states that must not be changed in place.

        Called before samples are added and not afterwards: metrics of a MetricCollection share
        their states by reference.
        """
        for name in self._defaults:
            state = getattr(self, name)
            if isinstance(state, Tensor) and is_foreign(state):
                setattr(self, name, state.clone())
            elif isinstance(state, list) and any(map(is_foreign, state)):
                state[:] = [tensor.clone() for tensor in state]

    def _check_rejected(self, rejected: int) -> None:
        if rejected:
            raise ValueError(
                f"labels must be between 0 and {self.num_classes - 1} or ignore_index="
                f"{self.ignore_index}, got {rejected} other label{'s' if rejected > 1 else ''}"
            )

    def _sync_dist(self, dist_sync_fn: Any = None, process_group: Any = None) -> None:  # noqa: ARG002
        """Replace the state by that of all processes.

        All-reduces in place about common means instead of gathering as torchmetrics does, which
        would hold K·d² numbers per process at once.
        """
        group = process_group or self.process_group
        # The copy that torchmetrics has made is reduced, and the state itself is kept to be
        # restored: other metrics of a MetricCollection may share it.
        local = {name: getattr(self, name) for name in self._defaults}
        for name, copied in (self._cache or copy.deepcopy(local)).items():
            setattr(self, name, copied)
        self._cache = local

        with torch.inference_mode(False), torch.no_grad():
            self._own_states()
            self._flush().all_reduce(group)
