"""The eager form of the primitive: the whole matrix, differentiated by autograd; the quickest when it is small."""

import torch
from torch import Tensor

from protosphere.geometry.sphere import compute_dtype, inner_products, normalise


def logsumexp_and_pulled(
    anchors: Tensor,
    keys: Tensor,
    scale: Tensor,
    key_log_weights: Tensor | None,
    partners: Tensor | None,
    anchor_labels: Tensor | None,
    key_labels: Tensor | None,
    pull: str,
    leave_out: str,
    on_sphere: bool,
) -> tuple[Tensor, Tensor]:
    """The primitive by its definition; memory O(anchors · keys)."""
    dtype = compute_dtype(anchors, keys, scale)
    if on_sphere:
        anchors, keys = normalise(anchors), normalise(keys)
    anchors, keys = anchors.to(dtype), keys.to(dtype)
    if len(anchors) <= len(keys):
        similarities = inner_products(anchors * scale, keys)
    else:
        similarities = inner_products(anchors, keys * scale)
    row = torch.arange(len(anchors), device=anchors.device)[:, None]
    column = torch.arange(len(keys), device=keys.device)[None, :]
    pulled, values = similarities.new_zeros(0), similarities
    if key_log_weights is not None:
        values = values + key_log_weights.to(dtype)
    if leave_out == "same_index":
        values = values.masked_fill(row == column, -torch.inf)
    if pull == "same_label" and anchor_labels is not None and key_labels is not None:
        pairs = anchor_labels[:, None] == key_labels[None, :]
        if leave_out == "same_index":
            pairs = pairs & (row != column)
        pulled = torch.where(pairs, similarities, 0).sum(1)
    elif pull == "key_of_anchor" and partners is not None:
        pairs = partners[:, None] == column
        pulled = similarities.gather(1, partners[:, None]).squeeze(1)
    elif pull == "anchor_of_key" and partners is not None:
        pairs = partners[None, :] == row
        pulled = similarities.gather(0, partners[None, :]).squeeze(0)
    if leave_out == "pulled":
        values = values.masked_fill(pairs, -torch.inf)
    return logsumexp(values, 1), pulled


def logsumexp(values: Tensor, axis: int) -> Tensor:
    """log Σ exp along an axis: −∞ where nothing is left in the sum, and then a zero gradient instead of NaN."""
    if values.shape[axis] == 0:
        return values.sum(axis) - torch.inf
    largest = values.detach().amax(axis, keepdim=True)
    largest = largest.masked_fill(largest == -torch.inf, 0)
    total = (values - largest).exp().sum(axis)
    empty = total == 0
    return torch.where(empty, -torch.inf, torch.where(empty, 1, total).log() + largest.squeeze(axis))
