"""A queue of the features of recent steps, which are further keys of NTCE, NONL and SCL."""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Integer
from torch import Tensor, nn

from protosphere.geometry.sphere import compute_dtype, normalize
from protosphere.kernels.problem import can_read_values
from protosphere.losses.targets import check_features
from protosphere.parallel import ProcessGroup, gather_numbers, gather_rows, row_counts, world_size


class QueuedFeatures(NamedTuple):
    """The features of earlier steps that are keys beside those of the batch.

    They are constants and never anchors.

    Attributes:
        features: Features; the loss normalizes them.
        labels: Class index of each feature, any where ``kept`` is False.
        kept: False for entries that are no keys.
        rescale: Whether NTCE and NONL rescale the repulsion of the features of the batch; see
            :class:`FeatureQueue`.
    """

    features: Float[Tensor, "keys dim"]
    labels: Int[Tensor, "keys"]
    kept: Bool[Tensor, "keys"]
    rescale: bool = False

    def key_log_weights(self, like: Tensor) -> Float[Tensor, "keys"]:
        """Return log-weights that exclude entries from a sum over keys."""
        return like.new_zeros(len(self.kept)).masked_fill(~self.kept, -torch.inf)


class FeatureQueue(nn.Module):
    """The unit features of the last samples and their labels, for losses with ``queue=``.

    Each step reads the queue and then adds its own features, which take the place of the oldest
    ones. They are stored in float32, or in float64 after ``.double()``; conversions to narrower
    dtypes, such as ``.to(torch.bfloat16)``, do not change them. Shapes are static and nothing waits
    for the device, so that a step with a queue can be compiled and captured in a CUDA graph.

    Args:
        size: Number of features.
        dim: Dimension of the features.
        max_age: Number of steps after which a feature is no key any more; None for no limit but the
            size. The features of the last step have the age 1.
        start: Number of steps before the queue is used; it is filled meanwhile.
        rescale: Whether the samples of a batch stand for all keys in NTCE and NONL: with M samples
            and Q entries the repulsion that they receive as negatives is multiplied by (M + Q)/M,
            and so is the sum over the positives of NTCE. Entries are not moved by the gradient, so
            that without it the features of the batch get M of the M + Q parts of the repulsion that
            a batch of M + Q samples would get, but all of the attraction.
        persistent: Whether the queue is part of the state dict, as for ``register_buffer``.

    Raises:
        ValueError: An argument is out of its range.

    >>> queue = FeatureQueue(4, 2)
    >>> queue.add(torch.tensor([[3.0, 0.0], [0.0, 2.0]]), torch.tensor([5, 7]))
    >>> queue.read().labels[queue.read().kept]
    tensor([5, 7])
    """

    features: Tensor
    labels: Tensor
    added_at: Tensor
    position: Tensor
    step: Tensor

    # Of several processes, each has entries of its own.
    is_per_process = True

    def __init__(
        self,
        size: int,
        dim: int,
        *,
        max_age: int | None = None,
        start: int = 0,
        rescale: bool = False,
        persistent: bool = True,
    ) -> None:
        super().__init__()
        for name, value, least in (
            ("size", size, 1),
            ("dim", dim, 1),
            ("max_age", 1 if max_age is None else max_age, 1),
            ("start", start, 0),
        ):
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")
        self.size, self.dim, self.max_age, self.start = size, dim, max_age, start
        self.rescale = rescale
        for name, buffer in {
            "features": torch.zeros(size, dim),
            "labels": torch.full((size,), -1),  # −1 for entries that are no keys.
            "added_at": torch.full((size,), -1),
            "position": torch.zeros((), dtype=torch.int64),
            "step": torch.zeros((), dtype=torch.int64),
        }.items():
            self.register_buffer(name, buffer, persistent=persistent)

    def read(self) -> QueuedFeatures:
        """Return the features for the loss of the current step, as copies."""
        kept = (self.labels >= 0) & (self.step >= self.start)
        if self.max_age is not None:
            kept = kept & (self.step - self.added_at <= self.max_age)
        features, labels = _copy(self.features), _copy(self.labels.clamp(min=0))
        return QueuedFeatures(features, labels, _copy(kept), self.rescale)

    @torch.no_grad()
    def add(
        self,
        features: Float[Tensor, "samples dim"],
        labels: Integer[Tensor, "samples"],
        *,
        ignore_index: int = -100,
        group: ProcessGroup | None = None,
    ) -> None:
        """Add the features of a step; of more than ``size`` only the last ones.

        Samples that are ignored or whose features are not finite take a place but are no keys.

        Args:
            features: Features; their directions are stored.
            labels: Class index of each sample.
            ignore_index: Samples with this label are ignored.
            group: Process group whose ranks all add the features of all of them, in the order of
                ranks; None to add those of this process.

        Raises:
            ValueError: The features are not as wide as the queue.
        """
        check_features(features)
        if features.shape[1] != self.dim:
            raise ValueError(
                f"features must be as wide as the queue, {self.dim}; got {features.shape[1]}"
            )
        features = features.detach()
        is_key = (labels != ignore_index) & torch.isfinite(features).all(1)
        labels = labels.long().masked_fill(~is_key, -1)
        features = torch.where(is_key[:, None], features, 0)
        unit = normalize(features.to(compute_dtype(features))).to(self.features.dtype)
        if group is not None:
            unit, labels = _gather_in_order(unit, group), _gather_in_order(labels, group)
        unit, labels = unit[-self.size :], labels[-self.size :]
        places = (self.position + torch.arange(len(labels), device=labels.device)) % self.size
        self.features.index_copy_(0, places, unit)
        self.labels.index_copy_(0, places, labels)
        self.added_at.index_copy_(0, places, self.step.expand(len(labels)))
        self.position.copy_((self.position + len(labels)) % self.size)
        self.step.add_(1)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "FeatureQueue":
        """Move the buffers to another device or dtype; features stay in float32 or wider."""

        def move(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            is_narrow = moved.is_floating_point() and moved.dtype != compute_dtype(moved)
            return tensor.to(moved.device) if is_narrow else moved

        super()._apply(move, recurse)  # type: ignore[no-untyped-call]
        return self

    def extra_repr(self) -> str:
        """Describe the options."""
        options = f"max_age={self.max_age}, start={self.start}, rescale={self.rescale}"
        return f"{self.size}, {self.dim}, {options}"


def check_queue(
    queue: QueuedFeatures | None, features: Tensor, *, num_classes: int | None = None
) -> None:
    """Raise ValueError unless the queue is None or fits the features and classes.

    Values are read only where that costs no device synchronization.

    Args:
        queue: What was given as the queue.
        features: Features of the batch.
        num_classes: Number of classes, None if unknown.
    """
    if queue is None:
        return
    if not isinstance(queue, QueuedFeatures):
        raise ValueError(
            "queue must be None or QueuedFeatures, such as FeatureQueue.read() returns, got "
            f"{type(queue).__name__}"
        )
    check_features(queue.features, name="queue.features")
    length = len(queue.features)
    if queue.features.shape[1] != features.shape[1]:
        raise ValueError(
            f"queue.features must be as wide as the features, {features.shape[1]}; got "
            f"{queue.features.shape[1]}"
        )
    if queue.labels.shape != (length,) or queue.kept.shape != (length,):
        raise ValueError(
            f"queue.labels and queue.kept must have one entry for each of the {length} features, "
            f"got shapes {tuple(queue.labels.shape)} and {tuple(queue.kept.shape)}"
        )
    if queue.features.requires_grad:
        raise ValueError("queue.features must be constants, got requires_grad=True")
    if length and can_read_values(queue.labels):
        smallest, largest = (int(value) for value in queue.labels.aminmax())
        if smallest < 0 or (num_classes is not None and largest >= num_classes):
            limit = "at least 0" if num_classes is None else f"from 0 to {num_classes - 1}"
            raise ValueError(
                f"queue.labels must be {limit}, got values from {smallest} to {largest}"
            )


def check_options_with_queue(
    queue: object, *, soft_labels: bool, negatives: str = "samples"
) -> None:
    """Raise ValueError if there is a queue and an option that it does not go with.

    Args:
        queue: The queue, or None.
        soft_labels: Whether labels are probabilities, mixed or smoothed.
        negatives: The negatives of NONL.
    """
    if queue is None:
        return
    if soft_labels:
        raise ValueError(
            "queue must be None with soft labels or label smoothing, because its entries have one "
            "class each"
        )
    if negatives == "prototypes":
        raise ValueError(
            'queue must be None with negatives="prototypes", which has no samples as keys'
        )


def gather_queue(queue: FeatureQueue, group: ProcessGroup | None) -> dict[str, Tensor]:
    """Return the entries of the queues of all ranks as those of one; every rank must call it.

    Args:
        queue: The queue of this rank.
        group: Process group; None for the queue of this process, which is not copied.

    Returns:
        The buffers of the queue by name.
    """
    state = dict(queue.named_buffers())
    if group is None or world_size(group) == 1:
        return state
    device = queue.features.device
    numbers = gather_numbers([queue.size, queue.position], group, device=device)
    sizes = [size for size, _ in numbers]
    slots = math.gcd(*sizes)
    for name in ("features", "labels", "added_at"):
        parts = _gather_in_order(state[name], group).split(sizes)
        # Every slot has entries of all ranks, so that those of one step stay together.
        blocks = [part.unflatten(0, (slots, -1)) for part in parts]
        state[name] = torch.cat(blocks, 1).flatten(0, 1)
    state["position"] = torch.tensor(sum(position for _, position in numbers), device=device)
    return state


@torch.no_grad()
def load_queue(
    queue: FeatureQueue, state: Mapping[str, Tensor], group: ProcessGroup | None
) -> None:
    """Load what :func:`gather_queue` returned, on any number of ranks; every rank must call it.

    Args:
        queue: The queue of this rank, which gets its part.
        state: Buffers of the queue of all ranks by name.
        group: Process group; None for the whole queue.

    Raises:
        ValueError: The queues of all ranks together are larger or smaller.
    """
    sizes, rank = [queue.size], 0
    if group is not None:
        sizes = row_counts(queue.size, group, device=queue.features.device)
        rank = torch.distributed.get_rank(group)
    total, slots = sum(sizes), math.gcd(*sizes)
    if len(state["labels"]) != total:
        raise ValueError(f"the queue must have {total} entries, got {len(state['labels'])}")
    first, last = (sum(sizes[:end]) // slots for end in (rank, rank + 1))
    for name, buffer in queue.named_buffers():
        value = state[name]
        if value.ndim:
            value = value.unflatten(0, (slots, -1))[:, first:last].flatten(0, 1)
        elif name == "position":
            value = value * queue.size // total
        buffer.copy_(value)


def _gather_in_order(rows: Tensor, group: ProcessGroup) -> Tensor:
    """Return the rows of all ranks in the order of ranks."""
    sizes = row_counts(len(rows), group, device=rows.device)
    gathered = gather_rows(rows, group, sizes=sizes)  # Those of this rank come first.
    before = sum(sizes[: torch.distributed.get_rank(group)])
    return gathered.roll(before, 0)


@torch.library.custom_op("protosphere::copy_queue", mutates_args=(), schema="(Tensor x) -> Tensor")
def _copy(*arguments: Any) -> Tensor:
    """Copy a tensor of the queue for the loss, before the queue is overwritten.

    A compiler may compute a plain copy again in the backward pass, when it has been overwritten.
    """
    copy: Tensor = arguments[0].clone()
    return copy


@_copy.register_fake
def _(*arguments: Any) -> Tensor:
    return torch.empty_like(arguments[0])
