"""Average gradients over processes, during the backward pass and after it.

Not ``DistributedDataParallel``: it wraps the module, so that an objective would lose its ``head``
and ``encoder`` and its weights their names in checkpoints, and it averages at every backward pass,
of which a batch in pieces has several. The losses give each process ``world_size`` times its part
of the gradient, so that the average is the gradient of one process with the whole batch.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from zlib import crc32

import torch
import torch.distributed as dist
from torch import Tensor, nn

from protosphere.parallel.shards import find_shards
from protosphere.parallel.world import ProcessGroup, gather_numbers, world_size

# Of one all-reduce: enough to use the network well, and little beside the gradients themselves.
_BUCKET_BYTES = 32 * 2**20


class GradientAverage:
    """The average of the gradients of some parameters over the processes of a group.

    Which parameters have gradients is agreed on in the first call: one that has them on any process
    counts as zero on the others. Gradients are exchanged in buckets, in the same order on every
    process. From the second step on, the exchange of a bucket of the encoder starts within
    :meth:`overlap` as soon as its gradients and those of all buckets before it are there. The
    backward pass of a loss comes before that of the encoder, so that its own exchange does not
    come between buckets.

    Args:
        parameters: The trained parameters, in the same order on every process.
        group: Process group; None does nothing.
        encoder: The encoder, some of whose parameters are among them; None exchanges all gradients
            after the backward pass.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        group: ProcessGroup | None,
        *,
        encoder: nn.Module | None = None,
    ) -> None:
        self._parameters, self._group = list(parameters), group
        # The backward pass computes the gradients of the last parameters first.
        self._encoder = [] if encoder is None else list(encoder.parameters())[::-1]
        self._has_gradient: list[bool] | None = None
        self._buckets: list[list[nn.Parameter]] = []
        # Of each parameter of the encoder its bucket, and of each bucket what is missing of it.
        self._bucket_index: dict[nn.Parameter, int] = {}
        self._missing: dict[int, set[nn.Parameter]] = {}
        self._exchanges: deque[tuple[Tensor, dist.Work]] = deque()
        self._num_started = 0
        self._is_overlapping = False

    @contextmanager
    def overlap(self) -> Iterator[None]:
        """Exchange gradients during a backward pass that computes all of them."""
        self._missing = {}
        for parameter, index in self._bucket_index.items():
            self._missing.setdefault(index, set()).add(parameter)
        self._is_overlapping = True
        try:
            yield
        finally:
            self._is_overlapping = False

    @torch.no_grad()
    def __call__(self) -> None:
        """Replace the gradients by their averages; every process must call it.

        Raises:
            RuntimeError: A parameter has its first gradient after the first call.
        """
        if self._group is None:
            return
        own = [parameter.grad is not None for parameter in self._parameters]
        if self._has_gradient is None:
            self._has_gradient = self._agree(own, self._group)
        if any(mine and not known for mine, known in zip(own, self._has_gradient, strict=True)):
            raise RuntimeError("the same parameters must have gradients at every step")
        for bucket in self._buckets:
            if not self._exchanges:  # One at a time, for the sake of memory.
                self._start_exchange()
            flat, work = self._exchanges.popleft()
            work.wait()
            parts = flat.div_(world_size(self._group)).split([p.numel() for p in bucket])
            for parameter, part in zip(bucket, parts, strict=True):
                assert parameter.grad is not None
                parameter.grad.copy_(part.view(parameter.shape))
        self._num_started = 0

    def _agree(self, own: Sequence[bool], group: ProcessGroup) -> list[bool]:
        """Find out which parameters have gradients on any process, and divide them into buckets."""
        flags = torch.tensor(own, dtype=torch.uint8, device=self._parameters[0].device)
        dist.all_reduce(flags, op=dist.ReduceOp.MAX, group=group)
        known = [bool(flag) for flag in flags.tolist()]
        used = {parameter for parameter, flag in zip(self._parameters, known, strict=True) if flag}
        encoder = [parameter for parameter in self._encoder if parameter in used]
        others = used - set(encoder)
        self._buckets = _divide(encoder)
        for index, bucket in enumerate(self._buckets):
            for parameter in bucket:
                self._bucket_index[parameter] = index
                parameter.register_post_accumulate_grad_hook(self._count)
        self._buckets += _divide([p for p in self._parameters if p in others])
        return known

    @torch.no_grad()
    def _count(self, parameter: nn.Parameter) -> None:
        """Start the exchange of the buckets that are complete with this gradient."""
        if not self._is_overlapping:
            return
        self._missing[self._bucket_index[parameter]].discard(parameter)
        while self._missing.get(self._num_started) == set():
            self._start_exchange()

    def _start_exchange(self) -> None:
        """Start the exchange of the next bucket."""
        gradients = []
        for parameter in self._buckets[self._num_started]:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            gradients.append(parameter.grad.reshape(-1))
        flat = torch.cat(gradients)
        work = dist.all_reduce(flat, group=self._group, async_op=True)
        assert work is not None
        self._exchanges.append((flat, work))
        self._num_started += 1


def _divide(parameters: Sequence[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Put parameters of one dtype together, in their order."""
    buckets: list[list[nn.Parameter]] = []
    size = 0
    for parameter in parameters:
        if not buckets or size > _BUCKET_BYTES or parameter.dtype != buckets[-1][0].dtype:
            buckets.append([])
            size = 0
        buckets[-1].append(parameter)
        size += parameter.numel() * parameter.element_size()
    return buckets


def broadcast_state(module: nn.Module, group: ProcessGroup | None) -> None:
    """Give a module the parameters and buffers of the first process; every process must call it.

    Parameters that are sharded over processes stay as they are, and so do the buffers of parts with
    a true attribute ``is_per_process``.

    Args:
        module: The module, on the device of the group.
        group: Process group; None does nothing.

    Raises:
        ValueError: The modules of the processes have other shapes.
    """
    shards = find_shards(module)
    parameters = [p for name, p in module.named_parameters() if name not in shards]
    parts = [part for part in module.modules() if not getattr(part, "is_per_process", False)]
    tensors = [*parameters, *(buffer for part in parts for buffer in part.buffers(recurse=False))]
    if group is not None and tensors:
        _check_shapes(tensors, group)
    _broadcast(tensors, group)


def broadcast_buffers(module: nn.Module, group: ProcessGroup | None) -> None:
    """Give a module the buffers of the first process; every process must call it.

    Args:
        module: The module, on the device of the group.
        group: Process group; None does nothing.
    """
    _broadcast(list(module.buffers()), group)


def _check_shapes(tensors: Sequence[Tensor], group: ProcessGroup) -> None:
    """Raise ValueError on all processes if those of one are others; a broadcast may not notice."""
    described = crc32(str([(tensor.shape, tensor.dtype) for tensor in tensors]).encode())
    numbers = gather_numbers([described], group, device=tensors[0].device)
    others = [rank for rank, number in enumerate(numbers) if number != numbers[0]]
    if others:
        raise ValueError(
            "the modules of all processes must have the same shapes, but that of process "
            f"{others[0]} has others than that of process 0"
        )


@torch.no_grad()
def _broadcast(tensors: Sequence[Tensor], group: ProcessGroup | None) -> None:
    if group is None:
        return
    for tensor in tensors:
        # A tensor may be a view, or be laid out as no collective takes it.
        sent = tensor.detach().contiguous()
        dist.broadcast(sent, group=group, group_src=0)
        tensor.copy_(sent)
