"""``NeuralCollapse``: the metrics as a ``torchmetrics.Metric``, streamed, in memory that the samples do not fill."""

import copy
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
import torch.distributed
from jaxtyping import Float, Integer
from torch import Tensor

from protosphere.geometry.class_statistics import (
    ClassStatistics,
    Moments,
    Space,
    check_batch,
    empty_panels,
    empty_statistics,
    panel_bytes,
)
from protosphere.metrics.catalog import DEFINITIONS, select
from protosphere.metrics.frame import named
from protosphere.metrics.suite import Evidence, evaluate

try:
    from torchmetrics import Metric
except ImportError as error:  # pragma: no cover
    raise ImportError(
        'NeuralCollapse needs torchmetrics: pip install "protosphere[metrics]"'
    ) from error

Prototypes = Tensor | Callable[[], Tensor]

# Batches are put by until there are so many samples: adding them costs the same for one sample as for thousands.
_PUT_BY = 8192


class _Held:
    """Holds a tensor or a function by reference, copies included: what the prototypes are at ``compute`` counts."""

    def __init__(self, value: Prototypes | None) -> None:
        self._value = value

    def __deepcopy__(self, _: dict[int, Any]) -> "_Held":
        return self

    def get(self) -> Tensor | None:
        return (
            self._value if isinstance(self._value, Tensor) or self._value is None else self._value()
        )


class NeuralCollapse(Metric):
    """How near features and prototypes are to neural collapse, from batches.

    ``update(features, labels)`` adds a batch; ``compute()`` gives a dictionary of values by name. The numbers are those
    of :func:`protosphere.metrics.measure` on all samples at once, whatever the batches, their order and the number of
    processes; ``nc4_agreement`` alone is not among them, since it needs a second look at the samples.

    What is kept depends on what is asked for: K·d numbers for metrics that class sums give (``metrics="cheap"``), d²
    more for ``nc1_trace``, and about K·d²/2 for ``intra_effective_rank``; and copies of the last few thousand samples,
    which are added together. All in float64, but for those copies.

    Args:
        dim: d, the width of the features.
        num_classes: K.
        prototypes: one a class, as ``head.prototypes`` or ``nn.Linear.weight``; or a function that returns them. Held
            by reference, so that the prototypes of the moment count. Without them, metrics of prototypes are absent.
        bias: of the head, likewise; only with ``space="raw"``.
        space: ``"sphere"`` takes features and prototypes to unit length; ``"raw"`` leaves both.
        metrics: ``"all"``, ``"cheap"``, groups (``"alignment"``, ``"nc1"`` …) or names.
        classes: ``"all"`` takes metrics of all class means as undefined, so absent, until each class has been seen;
            ``"present"`` measures the classes seen so far.
        ignore_index: samples with this label are passed over.
        memory_budget: bytes that the scatters of single classes may take.
        **options: of ``torchmetrics.Metric``.

    Raises:
        ValueError: the scatters of single classes are asked for and exceed the budget, or an argument makes no sense.

    >>> metric = NeuralCollapse(dim=3, num_classes=3, prototypes=torch.eye(3), metrics=["nc2_simplex", "alignment"])
    >>> metric.update(torch.eye(3), torch.arange(3))
    >>> {name: round(float(value), 6) for name, value in metric.compute().items()}
    {'nc2_simplex': 0.0, 'weight_class_alignment': 0.0, 'weight_instance_alignment': 0.0}
    >>> metric.absent
    {'instance_alignment': 'alignment between samples needs two of one class; no class has two'}
    """

    is_differentiable = False
    higher_is_better = None
    full_state_update = True

    counts: Tensor
    means: Tensor
    spreads: Tensor
    resolution: Tensor
    rejected: Tensor
    options: Tensor
    panels: list[Tensor]
    waiting_features: list[Tensor]
    waiting_labels: list[Tensor]

    def __init__(
        self,
        dim: int,
        num_classes: int,
        prototypes: Prototypes | None = None,
        *,
        bias: Prototypes | None = None,
        space: Space = "sphere",
        metrics: str | Sequence[str] = "all",
        classes: Literal["all", "present"] = "all",
        ignore_index: int = -100,
        memory_budget: int = 4 << 30,
        **options: Any,
    ) -> None:
        super().__init__(**{"compute_with_cache": False, **options})
        if dim < 1 or num_classes < 2:
            raise ValueError(
                f"NeuralCollapse needs dim ≥ 1 and num_classes ≥ 2; got dim={dim}, num_classes={num_classes}"
            )
        if space not in ("sphere", "raw") or classes not in ("all", "present"):
            raise ValueError(
                f"space must be 'sphere' or 'raw', and classes 'all' or 'present'; got {space!r} and {classes!r}"
            )
        if bias is not None and space != "raw":
            raise ValueError(
                "a bias must come with space='raw': on the sphere a classifier is the cosine alone"
            )
        self.dim, self.num_classes, self.space = dim, num_classes, space
        self.classes, self.ignore_index = classes, ignore_index
        self.names = tuple(
            name for name in select(metrics) if "samples" not in DEFINITIONS[name].needs
        )
        self.absent: dict[str, str] = {}
        self._prototypes, self._bias = _Held(prototypes), _Held(bias)
        needs = frozenset[str]().union(*(DEFINITIONS[name].needs for name in self.names))
        self.moments: Moments = (
            "per_class" if "per_class" in needs else "pooled" if "pooled" in needs else "sums"
        )
        asked = panel_bytes(num_classes, dim)
        if self.moments == "per_class" and asked > memory_budget:
            raise ValueError(
                f"intra_effective_rank of {num_classes} classes in {dim} dimensions must keep {asked / 2**30:.1f} GiB, "
                f"which memory_budget must allow; got {memory_budget / 2**30:.1f} GiB. Raise it, choose other metrics, "
                "or store the features and use measure()"
            )
        start = empty_statistics(
            num_classes, dim, moments="pooled" if self.moments == "pooled" else "sums"
        )
        for name in ("counts", "means", "spreads", "within", "resolution", "rejected"):
            value = getattr(start, name)
            if value is not None:
                self.add_state(name, value)
        # Metrics that differ in these alone must not be taken for one by a MetricCollection.
        self.add_state("options", torch.tensor([int(space == "sphere"), ignore_index]))
        self.add_state("waiting_features", [])
        self.add_state("waiting_labels", [])
        if self.moments == "per_class":
            # A list, because a tensor would be kept twice: as the state and as what it is reset to.
            self.add_state("panels", [])

    def update(
        self, features: Float[Tensor, "samples dim"], labels: Integer[Tensor, "samples"]
    ) -> None:
        """Add a batch. No gradient flows; on a GPU nothing waits, unless scatters of single classes are kept.

        Raises:
            ValueError: features and labels do not fit; or, on the CPU, a label is neither a class nor ``ignore_index``.
        """
        check_batch(features, labels, self.dim)
        labels = (
            labels.long()
        )  # Narrower integers would wrap the numbers that they are compared with.
        if labels.device.type == "cpu":
            wrong = (labels < 0) | (labels >= self.num_classes)
            self._refuse(int((wrong & (labels != self.ignore_index)).sum()))
        # Tensors made in inference mode could not be updated outside it.
        with torch.inference_mode(False), torch.no_grad():
            self._own()
            if self.waiting_features and self.waiting_features[0].dtype != features.dtype:
                self._statistics()
            self.waiting_features.append(features.detach().clone())
            self.waiting_labels.append(labels.clone())
            if sum(map(len, self.waiting_labels)) >= _PUT_BY:
                self._statistics()

    def compute(
        self, prototypes: Tensor | None = None, bias: Tensor | None = None
    ) -> dict[str, Tensor]:
        """The metrics of all samples so far; :attr:`absent` then says why others have no value.

        Args:
            prototypes: to be taken instead of those given at construction.
            bias: likewise.

        Raises:
            ValueError: labels were out of range, features were not finite, or the prototypes do not fit.
        """
        with torch.inference_mode(False), torch.no_grad():
            statistics = self._statistics()
            self._refuse(int(self.rejected))
            prototypes = self._fitting(
                "prototypes", prototypes, self._prototypes, (self.num_classes, self.dim)
            )
            bias = self._fitting("bias", bias, self._bias, (self.num_classes,))
            if bias is not None and self.space != "raw":
                raise ValueError(
                    "a bias must come with space='raw': on the sphere a classifier is the cosine alone"
                )
            lost = ~torch.isfinite(statistics.spreads)
            if bool(lost.any()):
                raise ValueError(
                    f"features must be finite; those of {named(lost)} hold NaN, infinity or too long ones"
                )
            if self.classes == "present":
                present = torch.nonzero(statistics.counts).flatten()
                statistics = _chosen(statistics, present)
                prototypes, bias = (
                    None if part is None else part[present.to(part.device)]
                    for part in (prototypes, bias)
                )
            suite = evaluate(Evidence(statistics, prototypes, bias, self.space), self.names)
        self.absent = suite.absent
        return suite.values

    def set_dtype(self, dst_type: Any) -> "NeuralCollapse":  # noqa: ARG002
        """States stay in float64, whatever the features are in."""
        return self

    def merge_state(self, incoming_state: "dict[str, Any] | Metric") -> None:
        """Add the samples that another metric of the same kind has seen."""
        if not isinstance(incoming_state, NeuralCollapse) or incoming_state.space != self.space:
            raise ValueError("merge_state needs another NeuralCollapse of the same space")
        with torch.inference_mode(False), torch.no_grad():
            self._own()
            self._statistics().merge(incoming_state._statistics())
        self._update_count += incoming_state._update_count

    def _statistics(self) -> ClassStatistics:
        """The states, as statistics that share their memory, with the samples that were put by."""
        if self.moments == "per_class" and not self.panels:
            self.panels.extend(empty_panels(self.num_classes, self.dim, device=self.device))
        statistics = ClassStatistics(
            counts=self.counts,
            means=self.means,
            spreads=self.spreads,
            within=getattr(self, "within", None),
            panels=self.panels if self.moments == "per_class" else None,
            resolution=self.resolution,
            rejected=self.rejected,
        )
        if self.waiting_labels:
            features, labels = torch.cat(self.waiting_features), torch.cat(self.waiting_labels)
            self.waiting_features.clear()
            self.waiting_labels.clear()
            statistics.add(features, labels, space=self.space, ignore_index=self.ignore_index)
        return statistics

    def _own(self) -> None:
        """Replace states that must not be changed in place.

        Before samples come in, never after: in a MetricCollection metrics share their states by reference.
        """
        for name in self._defaults:
            state = getattr(self, name)
            if isinstance(state, Tensor) and _borrowed(state):
                setattr(self, name, state.clone())
            elif isinstance(state, list) and any(map(_borrowed, state)):
                state[:] = [part.clone() for part in state]

    def _refuse(self, rejected: int) -> None:
        if rejected:
            raise ValueError(
                f"labels must lie in 0..{self.num_classes - 1} or be ignore_index={self.ignore_index}; "
                f"{rejected} of the samples had others"
            )

    @staticmethod
    def _fitting(
        name: str, given: Tensor | None, held: _Held, shape: tuple[int, ...]
    ) -> Tensor | None:
        value = held.get() if given is None else given
        if value is not None and tuple(value.shape) != shape:
            raise ValueError(f"{name} must have shape {shape}; got {tuple(value.shape)}")
        if value is not None and not (
            value.is_floating_point() and bool(torch.isfinite(value).all())
        ):
            raise ValueError(
                f"{name} must be finite floating numbers; got {value.dtype}, or NaN or infinity"
            )
        return value

    def _sync_dist(self, dist_sync_fn: Any = None, process_group: Any = None) -> None:  # noqa: ARG002
        """Replace the states by those of all processes.

        Sums in place, about common means, instead of torchmetrics' gathering: that would hold K·d² numbers for each
        process at once.
        """
        group = process_group or self.process_group
        # The copy that torchmetrics has just made becomes the sum, and the states themselves are what it restores:
        # other metrics of a MetricCollection may share them.
        own = {name: getattr(self, name) for name in self._defaults}
        for name, copied in (self._cache or copy.deepcopy(own)).items():
            setattr(self, name, copied)
        self._cache = own
        with torch.inference_mode(False), torch.no_grad():
            self._own()
            statistics = self._statistics()

            def summed(tensor: Tensor) -> Tensor:
                torch.distributed.all_reduce(tensor, group=group)
                return tensor

            total = summed(statistics.counts.clone())
            means = (
                summed(statistics.means * statistics.counts[:, None]) / total.clamp(min=1)[:, None]
            )
            statistics.recenter(means)
            statistics.counts.copy_(total)
            for tensor in (
                statistics.spreads,
                statistics.within,
                statistics.rejected,
                *(statistics.panels or ()),
            ):
                if tensor is not None:
                    summed(tensor)
            torch.distributed.all_reduce(
                statistics.resolution, op=torch.distributed.ReduceOp.MAX, group=group
            )


def _borrowed(state: Tensor) -> bool:
    """Whether a state must not be changed in place.

    A reset in inference mode makes tensors that only inference mode may change; and a metric that was sent to several
    processes has its states in memory that all of them share.
    """
    return state.is_inference() or (state.device.type == "cpu" and state.is_shared())


def _chosen(statistics: ClassStatistics, classes: Tensor) -> ClassStatistics:
    """The statistics of some of the classes; classes without samples have no part in the pooled scatter."""
    return ClassStatistics(
        counts=statistics.counts[classes],
        means=statistics.means[classes],
        spreads=statistics.spreads[classes],
        within=statistics.within,
        panels=None
        if statistics.panels is None
        else [panel[classes] for panel in statistics.panels],
        resolution=statistics.resolution,
        rejected=statistics.rejected,
    )
