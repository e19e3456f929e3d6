"""Positives of one label, with the digits that matter near collapse: shared by all forms.

Near collapse the cosines of positives differ in their sixth digit, and the slope of a positive (its
probability minus its fraction of the attraction) is a difference of almost equal numbers. Three
measures keep float32 accurate there: the logits of positives come from differences to a reference
vector, exponentials are summed in float64, and the difference of slopes is a single ``expm1``. What
remains is the rounding of the unit vectors themselves, 3e-8 against the spread of a class.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from protosphere.kernels.problem import Problem


def accumulation_dtype(device: torch.device) -> torch.dtype:
    """Return the dtype in which exponentials are summed: float64 where the device has it."""
    return torch.float32 if device.type == "mps" else torch.float64


def chord_operands(
    anchors: Float[Tensor, "anchors dim"],
    keys: Float[Tensor, "keys dim"],
    anchor_labels: Int[Tensor, "anchors"],
    key_labels: Int[Tensor, "keys"],
) -> tuple[Float[Tensor, "anchors width"], Float[Tensor, "keys width"]]:
    """Return two matrices whose product is cos − 1 for every pair of one label.

    With offsets δ = u − r from a reference vector r of the label, cos(u, v) − 1 = −‖u − v‖²/2 =
    δ_u·δ_v − ‖δ_u‖²/2 − ‖δ_v‖²/2: a sum of numbers as small as the result. Entries of other pairs
    mean nothing.

    Args:
        anchors: Unit vectors, or zeros.
        keys: Unit vectors, or zeros.
        anchor_labels: Label of each anchor.
        key_labels: Label of each key.

    Returns:
        Left operand for the anchors and right operand for the keys, 3 columns wider than the
        vectors. A zero vector has the cosine 0 with everything.
    """
    references = keys.detach()
    left = anchors - _first_of_label(references, key_labels, anchor_labels)
    right = keys - _first_of_label(references, key_labels, key_labels)
    return _with_columns(anchors, left, (1, 2)), _with_columns(keys, right, (2, 1), sign=-1)


def num_positives(problem: Problem) -> Int[Tensor, "anchors"]:
    """Return the number of positives of each anchor of a problem with positives of one label."""
    assert problem.anchor_labels is not None
    assert problem.key_labels is not None
    ordered = problem.key_labels.sort().values
    labels = problem.anchor_labels.contiguous()
    counts = torch.searchsorted(ordered, labels, right=True) - torch.searchsorted(ordered, labels)
    if problem.exclude == "same_index":
        length = min(len(labels), len(ordered))
        itself = labels[:length] == problem.key_labels[:length]
        counts = counts - torch.nn.functional.pad(itself.to(counts), (0, len(labels) - length))
    return counts


def _first_of_label(
    references: Tensor, reference_labels: Tensor, labels: Tensor
) -> Float[Tensor, "rows dim"]:
    """Return for each label the first reference vector with this label, zeros if there is none."""
    if len(references) == 0:
        return references.new_zeros(len(labels), references.shape[1])
    ordered, order = reference_labels.sort(stable=True)
    position = torch.searchsorted(ordered, labels.contiguous()).clamp(max=len(ordered) - 1)
    first = references.index_select(0, order.index_select(0, position))
    return torch.where((ordered.index_select(0, position) == labels)[:, None], first, 0)


def _with_columns(
    unit: Tensor, offsets: Tensor, places: tuple[int, int], *, sign: int = 1
) -> Float[Tensor, "rows width"]:
    """Append (‖δ‖²/2, 1, 0), or (0 or 1, ...) for a zero vector, in the order of its side.

    The anchors' columns are (h, 1, z) and the keys' −(1, h, z) with h = ‖δ‖²/2 and z = 0. A zero
    vector has δ = 0, h = 1, z = 1 and 0 in place of its own 1, which makes every product −1.
    """
    zero = (unit.detach() == 0).all(1)
    half = torch.where(zero, 1, offsets.square().sum(1) / 2)
    one, mark = (~zero).to(unit.dtype), zero.to(unit.dtype)
    columns = {places[0]: half, places[1]: one, 3: mark}
    extra = torch.stack([columns[place] for place in (1, 2, 3)], 1)
    return torch.cat((torch.where(zero[:, None], 0, offsets), sign * extra), 1)


def positive_shift(
    grad_values: Float[Tensor, "anchors"],
    grad_positives: Float[Tensor, "anchors"],
    counts: Int[Tensor, "anchors"],
    values: Float[Tensor, "anchors"],
) -> tuple[Float[Tensor, "anchors"], Bool[Tensor, "anchors"]]:
    """Return the shift t for which the slope of a positive is one accurate number.

    w·exp(x − lse) + g = −g·expm1(x − t) with t = lse + log(−g/w), where w is the gradient reaching
    the log-sum-exp and g the one reaching the positive logit.

    Args:
        grad_values: Gradient reaching the log-sum-exp, w.
        grad_positives: Gradient reaching the mean positive logits, g times the number of positives.
        counts: Number of positives of each anchor.
        values: Log-sum-exp in the accumulation dtype.

    Returns:
        The shift of each anchor in the accumulation dtype, and whether it exists: w and g must have
        opposite signs.
    """
    ratio = -grad_positives.to(values.dtype) / grad_values.to(values.dtype) / counts.clamp(min=1)
    exists = (ratio > 1e-30) & (ratio < 1e30) & torch.isfinite(values)
    return torch.where(exists, values + torch.where(exists, ratio, 1).log(), 0), exists
