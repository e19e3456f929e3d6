"""The one primitive of every loss: log-sum-exp of scaled cosines between anchors and keys, some pairs left out."""

from typing import Literal, NamedTuple, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from protosphere.geometry.sphere import compute_dtype
from protosphere.kernels import chunked, eager

Form = Literal["auto", "eager", "chunked"]
Pull = Literal["nothing", "key_of_anchor", "anchor_of_key", "same_label"]
LeaveOut = Literal["nothing", "pulled", "same_index"]

# Up to this many pairs the whole matrix is cheap and eager is quicker; see `choose_form`.
_EAGER_ON_CPU = 2**20
_EAGER = 2**24


class MaskedLogSumExp(NamedTuple):
    """What the primitive returns.

    Attributes:
        values: the log-sum-exp of each anchor; −∞, with a zero gradient, where no key was left.
        pulled: the scaled similarities asked for by ``pull``; empty if none were.
    """

    values: Float[Tensor, "anchors"]
    pulled: Float[Tensor, "pulled"]


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
    temperature: float | Float[Tensor, ""] | Float[Tensor, "1"] = 1.0,
    similarity: Literal["cosine", "dot"] = "cosine",
    pull: Pull = "nothing",
    leave_out: LeaveOut = "nothing",
    partners: Int[Tensor, "partners"] | None = None,
    anchor_labels: Int[Tensor, "anchors"] | None = None,
    key_labels: Int[Tensor, "keys"] | None = None,
    key_log_weights: Float[Tensor, "keys"] | None = None,
    form: Form = "auto",
) -> MaskedLogSumExp:
    """Log-sum-exp over keys of scaled similarities, for every anchor, with some pairs left out.

    values_a = log Σ_{k kept for a} exp(S_ak + ω_k), where S_ak = cos(a, k)/τ, or a·k/τ for ``similarity="dot"``.

    Beside the sums, which push anchors and keys apart, a loss needs the similarities that it pulls up, its positives.
    They come from the same pass, without ω, and whether or not the sums have them. So attraction and repulsion meet in
    one matrix of slopes before anything is multiplied: near collapse they almost cancel, and what is left keeps its
    digits. Calculated in float32 or wider, outside autocast.

    Args:
        anchors: one vector a row.
        keys: one vector a row, of the same dimension.
        temperature: τ, a positive number or a tensor of one; a tensor can be learned.
        similarity: cosines, or plain inner products of the vectors as they are.
        pull: which similarities are returned as ``pulled``: of each anchor to its partner (``"key_of_anchor"``), of
            each key to its partner (``"anchor_of_key"``), or for each anchor the sum over the keys of its label
            (``"same_label"``).
        leave_out: which pairs the sums do not have: none, the pulled ones, or those of an anchor and the key at the
            same position (``"same_index"``), which ``"same_label"`` then does not pull either.
        partners: with ``"key_of_anchor"`` one position among the keys for each anchor; with ``"anchor_of_key"`` one
            position among the anchors for each key.
        anchor_labels: with ``"same_label"``; below 2²⁴.
        key_labels: with ``"same_label"``; below 2²⁴.
        key_log_weights: ω, added to every similarity of its key in the sums; −∞ leaves the key out altogether.
        form: ``"eager"`` holds the whole matrix, ``"chunked"`` a tile of it, in forward and backward alike; the
            values and gradients are the same, and ``"auto"`` chooses by size.

    Returns:
        The log-sum-exp per anchor, and the similarities that are pulled.

    Raises:
        ValueError: a choice that does not exist, or one without the tensors that it needs.

    >>> anchors, keys = torch.eye(2), torch.tensor([[5.0, 0.0], [0.0, 3.0], [0.0, 1.0]])
    >>> masked_logsumexp(anchors, keys).values  # log(e + 2), log(2e + 1)
    tensor([1.5514, 1.8620])
    >>> own = torch.tensor([0, 1])
    >>> masked_logsumexp(anchors, keys, pull="key_of_anchor", leave_out="pulled", partners=own)
    MaskedLogSumExp(values=tensor([0.6931, 1.3133]), pulled=tensor([1., 1.]))
    """
    _check_choices(pull, leave_out, form, partners, anchor_labels, key_labels)
    if form == "auto":
        form = choose_form(len(anchors), len(keys), anchors.device)
    if not isinstance(temperature, Tensor):
        temperature = torch.full((), temperature, dtype=compute_dtype(anchors, keys), device=anchors.device)
    compute = eager.logsumexp_and_pulled if form == "eager" else chunked.logsumexp_and_pulled
    with torch.autocast(anchors.device.type, enabled=False):
        values, pulled = compute(
            anchors,
            keys,
            temperature.to(compute_dtype(temperature)).reciprocal().reshape(()),
            key_log_weights,
            partners,
            anchor_labels,
            key_labels,
            pull,
            leave_out,
            similarity == "cosine",
        )
    return MaskedLogSumExp(values, pulled)


def _check_choices(
    pull: Pull,
    leave_out: LeaveOut,
    form: Form,
    partners: Tensor | None,
    anchor_labels: Tensor | None,
    key_labels: Tensor | None,
) -> None:
    for name, choice, choices in (("pull", pull, Pull), ("leave_out", leave_out, LeaveOut), ("form", form, Form)):
        if choice not in get_args(choices):
            raise ValueError(f"{name} must be one of {', '.join(get_args(choices))}; got {choice!r}")
    if leave_out == "pulled" and pull == "nothing":
        raise ValueError('leave_out="pulled" needs something that is pulled; got pull="nothing"')
    if pull == "same_label" and (anchor_labels is None or key_labels is None):
        raise ValueError('pull="same_label" needs anchor_labels and key_labels; at least one is missing')
    if pull in ("key_of_anchor", "anchor_of_key") and partners is None:
        raise ValueError(f"pull={pull!r} needs partners; got none")
