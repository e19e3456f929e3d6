"""Sum, maximum, log-sum-exp and gather over a process group, with gradients.

Gradients are those of the sum over ranks of what the ranks compute from the result. Where every
rank computes the same scalar, each of them so gets world_size times its part of the gradient, and
the average of DistributedDataParallel is the gradient of the scalar. Every rank must call a
collective, and run backward through it, in the same order. Without a group nothing is exchanged.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float, Shaped
from torch import Tensor
from torch.autograd.function import once_differentiable

from protosphere.parallel.world import ProcessGroup, check_group, row_counts, world_size


def _all_reduce(tensor: Tensor, operation: Any, group: ProcessGroup) -> Tensor:
    """Return the reduced tensor; the argument, which may be an expanded view, is not changed."""
    check_group(group)
    result = tensor.detach().clone(memory_format=torch.contiguous_format)
    dist.all_reduce(result, op=operation, group=group)
    return result


class _Sum(torch.autograd.Function):
    """Σ over ranks, whose backward is the sum over ranks of the gradients."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        return _all_reduce(tensor, dist.ReduceOp.SUM, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _Sum.apply(gradient, ctx.group), None


class _GradientOfSum(torch.autograd.Function):
    """A value that is known already, with the gradient of a sum over ranks."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, summand: Tensor, group: ProcessGroup) -> Tensor:  # noqa: ARG004
        ctx.group = group
        return value.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor, None]:
        return None, _all_reduce(gradient, dist.ReduceOp.SUM, ctx.group), None


def sum_over(
    tensor: Float[Tensor, "*shape"], group: ProcessGroup | None
) -> Float[Tensor, "*shape"]:
    """Return the sum over the ranks of a group, on every rank, with a gradient.

    Args:
        tensor: Summand of this rank, of the same shape on every rank.
        group: Process group, or None to return the tensor itself.

    >>> sum_over(torch.ones(2), None)
    tensor([1., 1.])
    """
    if group is None:
        return tensor
    result: Tensor = _Sum.apply(tensor, group)
    return result


def with_gradient_of_sum(
    value: Float[Tensor, "*shape"], summand: Float[Tensor, "*shape"], group: ProcessGroup
) -> Float[Tensor, "*shape"]:
    """Return a value with the gradient of Σ over ranks of the summands.

    For values that every rank knows already: nothing is exchanged in the forward pass. It has no
    second derivative.

    Args:
        value: The value, the same on every rank; its own gradient is not used.
        summand: What has the gradient on this rank; its value is not used.
        group: Process group.
    """
    result: Tensor = _GradientOfSum.apply(value.detach(), summand, group)
    return result


def max_over(
    tensor: Float[Tensor, "*shape"], group: ProcessGroup | None
) -> Float[Tensor, "*shape"]:
    """Return the maximum over the ranks of a group, on every rank, without a gradient.

    Args:
        tensor: Values of this rank, of the same shape on every rank.
        group: Process group, or None for those of this rank.

    >>> max_over(torch.tensor([1.0, 2.0]), None)
    tensor([1., 2.])
    """
    if group is None:
        return tensor.detach()
    return _all_reduce(tensor, dist.ReduceOp.MAX, group)


def logsumexp_over(
    values: Float[Tensor, "*shape"], group: ProcessGroup | None
) -> Float[Tensor, "*shape"]:
    """Return log Σ exp over the ranks of a group, on every rank, with a gradient.

    Exchanges the maximum, the sum of exponentials and, in the backward pass, the gradient. Where
    all ranks have −∞ the result is −∞ with a zero gradient.

    Args:
        values: Logarithms of the summands of this rank, of the same shape on every rank.
        group: Process group, or None to return the values themselves.

    >>> logsumexp_over(torch.tensor([1.0, 2.0]), None)
    tensor([1., 2.])
    """
    if group is None:
        return values
    largest = max_over(values, group)
    largest = largest.masked_fill(largest == -torch.inf, 0)
    total = sum_over((values - largest).exp(), group)
    empty = total == 0
    return torch.where(empty, -torch.inf, torch.where(empty, 1, total).log() + largest)


class _Gather(torch.autograd.Function):
    """The rows of all ranks, own first; the backward sums the gradients of each rank's rows."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, sizes: tuple[int, ...], dtype: torch.dtype, group: ProcessGroup
    ) -> Tensor:
        ctx.sizes, ctx.group = sizes, group
        rank, length = dist.get_rank(group), max(sizes)
        own = rows.new_zeros((length, *rows.shape[1:]), dtype=dtype)
        own[: len(rows)] = rows
        gathered = own.new_empty((len(sizes) * length, *rows.shape[1:]))
        dist.all_gather_into_tensor(gathered, own, group=group)
        blocks = gathered.to(rows.dtype).view(len(sizes), *own.shape)
        return torch.cat([blocks[r, : sizes[r]] for r in _own_first(rank, len(sizes))])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        sizes, rank = ctx.sizes, dist.get_rank(ctx.group)
        order = _own_first(rank, len(sizes))
        blocks = gradient.new_zeros((len(sizes), max(sizes), *gradient.shape[1:]))
        for r, block in zip(order, gradient.split([sizes[r] for r in order]), strict=True):
            blocks[r, : sizes[r]] = block
        if blocks.is_cuda and "nccl" in dist.get_backend(ctx.group):
            own = torch.empty_like(blocks[0])
            dist.reduce_scatter_tensor(own, blocks.flatten(0, 1), group=ctx.group)
        else:
            # Not all versions of gloo have a reduce-scatter.
            dist.all_reduce(blocks, group=ctx.group)
            own = blocks[rank]
        return own[: sizes[rank]], None, None, None


def _own_first(rank: int, size: int) -> list[int]:
    return [(rank + step) % size for step in range(size)]


def gather_rows(
    rows: Shaped[Tensor, "rows *width"],
    group: ProcessGroup | None,
    *,
    sizes: Sequence[int] | None = None,
    dtype: torch.dtype | None = None,
) -> Shaped[Tensor, "all_rows *width"]:
    """Return the rows of all ranks: those of this rank first, then of the ranks that follow it.

    Ranks may have different numbers of rows, or none. The backward pass sums the gradients that
    the ranks have for the rows of each rank; there is no second derivative.

    Args:
        rows: Rows of this rank, as wide on every rank.
        group: Process group, or None to return the rows themselves.
        sizes: Number of rows of each rank; :func:`row_counts` if not given.
        dtype: Type in which the rows travel, if it is narrower than theirs and holds their values.

    >>> gather_rows(torch.tensor([[1.0, 2.0]]), None)
    tensor([[1., 2.]])
    """
    if group is None or world_size(group) == 1:
        return rows
    if sizes is None:
        sizes = row_counts(len(rows), group, device=rows.device)
    if not any(sizes):
        return rows
    result: Tensor = _Gather.apply(rows, tuple(sizes), dtype or rows.dtype, group)
    return result
