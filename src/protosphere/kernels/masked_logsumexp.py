"""The one primitive of every loss: log-sum-exp of scaled cosines between anchors and keys, some pairs left out."""

from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from protosphere.geometry.sphere import compute_dtype
from protosphere.kernels import chunked, eager

Form = Literal["auto", "eager", "chunked"]

# Up to this many pairs the whole matrix is cheap and eager is quicker; see `choose_form`.
_EAGER_ON_CPU = 2**20
_EAGER = 2**24


class MaskedLogSumExp(NamedTuple):
    """What the primitive returns.

    Attributes:
        values: the log-sum-exp of each anchor; −∞, with a zero gradient, where no key was left.
        paired: the scaled similarity of each pair asked for.
    """

    values: Float[Tensor, "anchors"]
    paired: Float[Tensor, "pairs"]


def choose_form(anchors: int, keys: int, device: torch.device) -> Literal["eager", "chunked"]:
    """The form that suits a matrix of this size: eager while it is small, chunked beyond.

    >>> choose_form(512, 100, torch.device("cpu")), choose_form(8192, 50_000, torch.device("cpu"))
    ('eager', 'chunked')
    """
    return "eager" if anchors * keys <= (_EAGER_ON_CPU if device.type == "cpu" else _EAGER) else "chunked"


def masked_logsumexp(
    anchors: Float[Tensor, "anchors dim"],
    keys: Float[Tensor, "keys dim"],
    *,
    temperature: float | Float[Tensor, ""] = 1.0,
    similarity: Literal["cosine", "dot"] = "cosine",
    leave_out: Literal["nothing", "same_label", "same_index"] = "nothing",
    anchor_labels: Int[Tensor, "anchors"] | None = None,
    key_labels: Int[Tensor, "keys"] | None = None,
    key_log_weights: Float[Tensor, "keys"] | None = None,
    pairs: tuple[Int[Tensor, "pairs"], Int[Tensor, "pairs"]] | None = None,
    form: Form = "auto",
) -> MaskedLogSumExp:
    """Log-sum-exp over keys of scaled similarities, for every anchor, with some pairs left out.

    values_a = log Σ_{k kept for a} exp(S_ak + ω_k) and paired_p = S at the p-th pair, where
    S_ak = cos(a, k)/τ, or a·k/τ for ``similarity="dot"``.

    The pairs are similarities that a loss needs beside the sums (its positives). They come without ω, whether or not
    the pair is left out of the sums, and from the same pass, so that anchors and keys are normalised, and their
    gradients projected to the tangent space, once. Calculated in float32 or wider, outside autocast.

    Args:
        anchors: one vector a row.
        keys: one vector a row, of the same dimension.
        temperature: τ, a positive number or a tensor of one; a tensor can be learned.
        similarity: cosines, or plain inner products of the vectors as they are.
        leave_out: no pair; pairs whose ``anchor_labels`` and ``key_labels`` agree; or pairs of the same position.
        anchor_labels: with ``leave_out="same_label"``.
        key_labels: with ``leave_out="same_label"``.
        key_log_weights: ω, added to every similarity of its key in the sums; −∞ leaves the key out altogether.
        pairs: positions of anchors and of keys whose scaled similarities are returned as well.
        form: ``"eager"`` holds the whole matrix, ``"chunked"`` a tile of it, in forward and backward alike; the
            values and gradients are the same, and ``"auto"`` chooses by size.

    Returns:
        The log-sum-exp per anchor and the similarity per pair.

    Raises:
        ValueError: ``leave_out="same_label"`` without labels of both, or an unknown form.

    >>> anchors, keys = torch.eye(2), torch.tensor([[5.0, 0.0], [0.0, 3.0], [0.0, 1.0]])
    >>> masked_logsumexp(anchors, keys).values  # log(e + 2), log(2e + 1)
    tensor([1.5514, 1.8620])
    """
    if form not in ("auto", "eager", "chunked"):
        raise ValueError(f'form must be "auto", "eager" or "chunked"; got {form!r}')
    on_sphere = similarity == "cosine"
    if leave_out == "same_label":
        if anchor_labels is None or key_labels is None:
            raise ValueError('leave_out="same_label" needs anchor_labels and key_labels; at least one is missing')
    else:
        anchor_labels = key_labels = None
    if not isinstance(temperature, Tensor):
        temperature = torch.full((), temperature, dtype=compute_dtype(anchors, keys), device=anchors.device)
    if pairs is None:
        nowhere = torch.empty(0, dtype=torch.int64, device=anchors.device)
        pairs = (nowhere, nowhere)
    compute = {"eager": eager.logsumexp_and_pairs, "chunked": chunked.logsumexp_and_pairs}
    with torch.autocast(anchors.device.type, enabled=False):
        values, paired = compute[choose_form(len(anchors), len(keys), anchors.device) if form == "auto" else form](
            anchors,
            keys,
            temperature.to(compute_dtype(temperature)).reciprocal().reshape(()),
            key_log_weights,
            anchor_labels,
            key_labels,
            *pairs,
            leave_out_same_index=leave_out == "same_index",
            on_sphere=on_sphere,
        )
    return MaskedLogSumExp(values, paired)
