"""Average gradients over processes after the backward pass.

Not ``DistributedDataParallel``: it wraps the module, so that an objective would lose its ``head``
and ``encoder`` and its weights their names in checkpoints, and it averages at every backward pass,
of which a batch in pieces has several. The losses give each process ``world_size`` times its part
of the gradient, so that the average is the gradient of one process with the whole batch.
"""

from collections.abc import Sequence
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
    counts as zero on the others.

    Args:
        parameters: The trained parameters, in the same order on every process.
        group: Process group; None does nothing.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], group: ProcessGroup | None) -> None:
        self._parameters, self._group = list(parameters), group
        self._has_gradient: list[bool] | None = None

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
            flags = torch.tensor(own, dtype=torch.uint8, device=self._parameters[0].device)
            dist.all_reduce(flags, op=dist.ReduceOp.MAX, group=self._group)
            self._has_gradient = [bool(flag) for flag in flags.tolist()]
        if any(mine and not known for mine, known in zip(own, self._has_gradient, strict=True)):
            raise RuntimeError("the same parameters must have gradients at every step")
        gradients = []
        for parameter, known in zip(self._parameters, self._has_gradient, strict=True):
            if known:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                gradients.append(parameter.grad)
        for bucket in _buckets(gradients):
            flat = torch.cat([gradient.reshape(-1) for gradient in bucket])
            dist.all_reduce(flat, group=self._group)
            flat /= world_size(self._group)
            parts = flat.split([gradient.numel() for gradient in bucket])
            for gradient, part in zip(bucket, parts, strict=True):
                gradient.copy_(part.view(gradient.shape))


def _buckets(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    """Put tensors of one dtype together, in their order."""
    buckets: list[list[Tensor]] = []
    size = 0
    for tensor in tensors:
        if not buckets or size > _BUCKET_BYTES or tensor.dtype != buckets[-1][0].dtype:
            buckets.append([])
            size = 0
        buckets[-1].append(tensor)
        size += tensor.numel() * tensor.element_size()
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
