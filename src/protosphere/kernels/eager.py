"""The eager form of the primitive: the whole matrix, differentiated by autograd; the quickest when it is small."""

import torch
from torch import Tensor

from protosphere.geometry.sphere import (
    compute_dtype,
    inner_products,
    normalize,
    unit_squared_chords,
)


def logsumexp_and_pulled(
    anchors: Tensor,
    keys: Tensor,
    scale: Tensor,
    key_log_weights: Tensor | None,
    partners: Tensor | None,
    anchor_labels: Tensor | None,
    key_labels: Tensor | None,
    pull: str,
    pull_from: str,
    leave_out: str,
    on_sphere: bool,
) -> tuple[Tensor, Tensor]:
    """The primitive by its definition; memory O(anchors · keys)."""
    dtype = compute_dtype(anchors, keys, scale)
    anchors, keys = anchors.to(dtype), keys.to(dtype)
    if on_sphere:
        anchors, keys = normalize(anchors), normalize(keys)
    if len(anchors) <= len(keys):
        similarities = inner_products(anchors * scale, keys)
    else:
        similarities = inner_products(anchors, keys * scale)
    pairs = _pulled_pairs(similarities, partners, anchor_labels, key_labels, pull)
    values = similarities
    if key_log_weights is not None:
        values = values + key_log_weights.to(dtype)
    if leave_out == "same_index":
        values = values.masked_fill(_same_index(similarities), -torch.inf)
    elif leave_out == "pulled":
        values = values.masked_fill(pairs, -torch.inf)
    # On the sphere similarities are counted from the largest there can be.
    top = scale if on_sphere else torch.zeros_like(scale)
    pulled = similarities.new_zeros(0)
    if pull == "same_label":
        pulled = torch.where(
            pairs & ~_same_index(pairs) if leave_out == "same_index" else pairs,
            similarities - top,
            0,
        )
        pulled = pulled.sum(1)
    elif partners is not None and pull_from == "matrix":
        axis = 0 if pull == "anchor_of_key" else 1
        pulled = similarities.gather(axis, partners.unsqueeze(axis)).squeeze(axis) - top
    elif partners is not None:
        asking, asked = (keys, anchors) if pull == "anchor_of_key" else (anchors, keys)
        asked = asked.index_select(0, partners)
        pulled = unit_squared_chords(asking, asked) * (-scale / 2)
    return logsumexp(values, 1) - top, pulled


def _pulled_pairs(
    similarities: Tensor,
    partners: Tensor | None,
    anchor_labels: Tensor | None,
    key_labels: Tensor | None,
    pull: str,
) -> Tensor:
    """A matrix that is True where anchor and key are partners, or of one label."""
    anchors, keys = similarities.shape
    if pull == "same_label" and anchor_labels is not None and key_labels is not None:
        return anchor_labels[:, None] == key_labels[None, :]
    if pull == "key_of_anchor" and partners is not None:
        return partners[:, None] == torch.arange(keys, device=partners.device)
    if pull == "anchor_of_key" and partners is not None:
        return partners[None, :] == torch.arange(anchors, device=partners.device)[:, None]
    return torch.zeros((), dtype=torch.bool, device=similarities.device)


def _same_index(matrix: Tensor) -> Tensor:
    rows, columns = (torch.arange(size, device=matrix.device) for size in matrix.shape)
    return rows[:, None] == columns


def logsumexp(values: Tensor, axis: int) -> Tensor:
    """log Σ exp along an axis: −∞ where nothing is left in the sum, and then a zero gradient instead of NaN."""
    if values.shape[axis] == 0:
        return values.sum(axis) - torch.inf
    largest = values.detach().amax(axis, keepdim=True)
    largest = largest.masked_fill(largest == -torch.inf, 0)
    total = (values - largest).exp().sum(axis)
    empty = total == 0
    return torch.where(
        empty, -torch.inf, torch.where(empty, 1, total).log() + largest.squeeze(axis)
    )
