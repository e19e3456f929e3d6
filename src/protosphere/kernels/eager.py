"""The eager form of the primitive: the whole matrix, differentiated by autograd; the quickest when it is small."""

import torch
from torch import Tensor

from protosphere.geometry.sphere import compute_dtype, inner_products, normalise


def logsumexp_and_pairs(
    anchors: Tensor,
    keys: Tensor,
    scale: Tensor,
    key_log_weights: Tensor | None,
    anchor_labels: Tensor | None,
    key_labels: Tensor | None,
    pair_anchors: Tensor,
    pair_keys: Tensor,
    leave_out_same_index: bool,
    on_sphere: bool,
) -> tuple[Tensor, Tensor]:
    """The primitive by its definition; memory O(anchors · keys)."""
    dtype = compute_dtype(anchors, keys, scale)
    if on_sphere:
        anchors, keys = normalise(anchors), normalise(keys)
    similarities = inner_products(anchors.to(dtype) * scale, keys.to(dtype))
    paired = similarities[pair_anchors, pair_keys]
    if key_log_weights is not None:
        similarities = similarities + key_log_weights.to(dtype)
    if anchor_labels is not None and key_labels is not None:
        similarities = similarities.masked_fill(anchor_labels[:, None] == key_labels[None, :], -torch.inf)
    if leave_out_same_index:
        position = torch.arange(max(similarities.shape), device=similarities.device)
        same = position[: len(anchors), None] == position[None, : len(keys)]
        similarities = similarities.masked_fill(same, -torch.inf)
    return logsumexp(similarities, 1), paired


def logsumexp(values: Tensor, axis: int) -> Tensor:
    """log Σ exp along an axis: −∞ where nothing is left in the sum, and then a zero gradient instead of NaN."""
    if values.shape[axis] == 0:
        return values.sum(axis) - torch.inf
    largest = values.detach().amax(axis, keepdim=True)
    largest = largest.masked_fill(largest == -torch.inf, 0)
    total = (values - largest).exp().sum(axis)
    empty = total == 0
    return torch.where(empty, -torch.inf, torch.where(empty, 1, total).log() + largest.squeeze(axis))
