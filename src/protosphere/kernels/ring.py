"""The primitive over a process group, with the keys of one other rank in memory at a time.

The features of the ranks go around in a ring, once in the forward and once in the backward pass, in
which their gradients travel with them. Each block of keys is computed by the operators of the
chunked form.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from protosphere.geometry.sphere import compute_dtype
from protosphere.kernels import chunked
from protosphere.kernels.dispatch import MaskedLogSumExp
from protosphere.kernels.eager import logsumexp
from protosphere.kernels.problem import Problem, read_temperature
from protosphere.kernels.same_label import accumulation_dtype, num_positives
from protosphere.parallel import ProcessGroup


class _Ring(NamedTuple):
    """What the blocks have in common.

    Attributes:
        sizes: Number of samples of this rank, then of the ranks that follow it.
        dtype: Type in which the features travel.
        group: Process group.
    """

    sizes: tuple[int, ...]
    dtype: torch.dtype
    group: ProcessGroup

    def start_shift(self, block: Tensor) -> tuple[Tensor, list[Any]]:
        """Start to give a block to the rank before and to get that of the rank behind."""
        if block.is_cuda and "nccl" not in dist.get_backend(self.group):
            # Only NCCL sends from the memory of a GPU.
            copy, requests = self.start_shift(block.cpu())
            for request in requests:
                request.wait()
            return copy.to(block.device), []
        received = torch.empty_like(block)
        size, rank = len(self.sizes), dist.get_rank(self.group)
        before, behind = (
            dist.get_global_rank(self.group, (rank + step) % size) for step in (-1, 1)
        )
        operations = [
            dist.P2POp(dist.isend, block, before, self.group),
            dist.P2POp(dist.irecv, received, behind, self.group),
        ]
        return received, dist.batch_isend_irecv(operations)

    def blocks(self, features: Tensor, labels: Tensor, scale: Tensor) -> Iterator[Problem]:
        """Yield the problem of each block of keys, while the next block is on its way."""
        block = features.new_zeros((max(self.sizes), features.shape[1]), dtype=self.dtype)
        block[: len(features)] = features
        for step, key_labels in enumerate(labels.split(list(self.sizes))):
            last = step == len(self.sizes) - 1
            following, requests = (block, []) if last else self.start_shift(block)
            ignored = key_labels < 0
            yield Problem(
                anchors=features,
                keys=block[: len(key_labels)].to(features.dtype),
                scale=scale,
                key_log_weights=features.new_zeros(len(ignored)).masked_fill(ignored, -torch.inf),
                positive_index=None,
                anchor_labels=labels[: len(features)],
                key_labels=key_labels,
                pair_index=None,
                pair_log_weights=None,
                positives="same_label",
                positive_logits_from="matrix",
                exclude="none" if step else "same_index",
                similarity="cosine",
            )
            for request in requests:
                request.wait()
            block = following


class _RingLogSumExp(torch.autograd.Function):
    """Log-sum-exp and mean positive logit of each own sample, over the samples of all ranks."""

    @staticmethod
    def forward(
        ctx: Any, features: Tensor, scale: Tensor, labels: Tensor, ring: _Ring
    ) -> tuple[Tensor, Tensor]:
        dtype = accumulation_dtype(features.device)
        values = features.new_full((len(features),), -torch.inf, dtype=dtype)
        positive_logits = features.new_zeros(len(features))
        counts = labels.new_zeros(len(features))
        for problem in ring.blocks(features, labels, scale):
            block_values, block_logits = chunked.forward_of_block(problem)
            block_counts = num_positives(problem)
            values = logsumexp(torch.stack((values, block_values)), 0)
            positive_logits += block_logits * block_counts
            counts += block_counts
        ctx.save_for_backward(features, scale, labels, values, counts)
        ctx.ring = ring
        return values.to(features.dtype, copy=True), positive_logits / counts.clamp(min=1)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_values: Tensor, grad_positives: Tensor
    ) -> tuple[Tensor, Tensor | None, None, None]:
        features, scale, labels, values, counts = ctx.saved_tensors
        ring: _Ring = ctx.ring
        of_positive = grad_positives / counts.clamp(min=1)
        needs_grad = [True, True, ctx.needs_input_grad[1], False]
        d_anchors, d_scale = torch.zeros_like(features), torch.zeros_like(scale)
        d_keys = features.new_zeros(max(ring.sizes), features.shape[1])
        for problem in ring.blocks(features, labels, scale):
            upstream = grad_values, of_positive * num_positives(problem)
            gradients = chunked.backward_of_block(problem, upstream, values, needs_grad)
            d_anchors += gradients[0]
            d_keys[: len(problem.keys)] += gradients[1]
            if needs_grad[2]:
                d_scale += gradients[2]
            if len(ring.sizes) > 1:
                # After the last block this brings the gradients of the own samples home.
                d_keys, requests = ring.start_shift(d_keys)
                for request in requests:
                    request.wait()
        return d_anchors + d_keys[: len(features)], d_scale if needs_grad[2] else None, None, None


def ring_logsumexp(
    features: Float[Tensor, "samples dim"],
    labels: Int[Tensor, "all_samples"],
    *,
    sizes: Sequence[int],
    temperature: float | Float[Tensor, ""] | Float[Tensor, "1"],
    dtype: torch.dtype,
    group: ProcessGroup,
) -> MaskedLogSumExp:
    """Log-sum-exp of scaled cosines of each sample with all others of a process group.

    :func:`~protosphere.kernels.masked_logsumexp` with the own samples as anchors, those of all
    ranks as keys, ``positives="same_label"`` and ``exclude="same_index"``. Every rank must call it.
    There is no second derivative.

    Args:
        features: Features of this rank.
        labels: Labels of this rank, then of the ranks that follow it, less than 2²⁴; a sample with
            a negative label is no key.
        sizes: Number of samples of each rank, not all 0.
        temperature: Temperature τ, a positive number or a tensor with one element.
        dtype: Type in which the features travel, which holds their values.
        group: Process group.

    Returns:
        Log-sum-exp of each sample, and its mean logit with the others of its label.
    """
    temperature = read_temperature(temperature)
    if not isinstance(temperature, Tensor):
        temperature = torch.full((), temperature, dtype=features.dtype, device=features.device)
    features = features.to(compute_dtype(features, temperature))
    rank = dist.get_rank(group)
    ring = _Ring((*sizes[rank:], *sizes[:rank]), dtype, group)
    values, positive_logits = _RingLogSumExp.apply(features, temperature.reciprocal(), labels, ring)
    return MaskedLogSumExp(values, positive_logits)
