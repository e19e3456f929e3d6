"""The one primitive of every loss: log-sum-exp of scaled cosines between anchors and keys, some pairs left out."""

import math
from numbers import Real
from typing import Literal, NamedTuple, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from protosphere.geometry.sphere import compute_dtype
from protosphere.kernels import chunked, eager

Form = Literal["auto", "eager", "chunked"]
Pull = Literal["nothing", "key_of_anchor", "anchor_of_key", "same_label"]
PullFrom = Literal["matrix", "chords"]
LeaveOut = Literal["nothing", "pulled", "same_index"]
Similarity = Literal["cosine", "dot"]

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
    return (
        "eager"
        if anchors * keys <= (_EAGER_ON_CPU if device.type == "cpu" else _EAGER)
        else "chunked"
    )


def masked_logsumexp(
    anchors: Float[Tensor, "anchors dim"],
    keys: Float[Tensor, "keys dim"],
    *,
    temperature: float | Float[Tensor, ""] | Float[Tensor, "1"] = 1.0,
    similarity: Similarity = "cosine",
    pull: Pull = "nothing",
    pull_from: PullFrom = "matrix",
    leave_out: LeaveOut = "nothing",
    partners: Int[Tensor, "partners"] | None = None,
    anchor_labels: Int[Tensor, "anchors"] | None = None,
    key_labels: Int[Tensor, "keys"] | None = None,
    key_log_weights: Float[Tensor, "keys"] | None = None,
    form: Form = "auto",
) -> MaskedLogSumExp:
    """Log-sum-exp over keys of scaled similarities, for every anchor, with some pairs left out.

    values_a = log Σ_{k kept for a} exp(S_ak + ω_k), where S_ak = (cos(a, k) − 1)/τ, or a·k/τ for ``similarity="dot"``.

    Beside the sums, which push anchors and keys apart, a loss needs the similarities that it pulls up, its positives.
    They come without ω, and whether or not the sums have them.

    Cosines are counted from 1, which changes no loss and keeps the digits that matter near collapse, where similarities
    of 1/τ would differ only in their last. Attraction and repulsion meet in one matrix of slopes before anything is
    multiplied. All is calculated in float32 or wider, outside autocast.

    Args:
        anchors: one vector a row.
        keys: one vector a row, of the same dimension.
        temperature: τ, a positive number or a tensor of one; a tensor can be learned.
        similarity: cosines, or plain inner products of the vectors as they are.
        pull: which similarities are returned as ``pulled``: of each anchor to its partner (``"key_of_anchor"``), of
            each key to its partner (``"anchor_of_key"``), or for each anchor the sum over the keys of its label
            (``"same_label"``).
        pull_from: whether the similarities of partners are read from the matrix, to 1e-7/τ in float32, or calculated
            from chords as −‖u − v‖²/2τ, for losses in which their differences matter near collapse; for cosines only.
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
        ValueError: a choice that does not exist or does not fit another, shapes that do not fit, a temperature that is
            not positive.

    >>> anchors, keys = torch.eye(2), torch.tensor([[5.0, 0.0], [0.0, 3.0], [0.0, 1.0]])
    >>> masked_logsumexp(anchors, keys).values  # log(1 + 2/e), log(2 + 1/e)
    tensor([0.5514, 0.8620])
    >>> others = torch.tensor([1, 1])
    >>> masked_logsumexp(anchors, keys, pull="key_of_anchor", leave_out="pulled", partners=others)
    MaskedLogSumExp(values=tensor([0.3133, 0.3133]), pulled=tensor([-1.,  0.]))
    """
    check_choices(
        similarity=(similarity, Similarity),
        pull=(pull, Pull),
        pull_from=(pull_from, PullFrom),
        leave_out=(leave_out, LeaveOut),
        form=(form, Form),
    )
    _check_tensors(anchors, keys, partners, anchor_labels, key_labels, key_log_weights, pull)
    if leave_out == "pulled" and pull == "nothing":
        raise ValueError('leave_out="pulled" needs something that is pulled; got pull="nothing"')
    if pull_from == "chords" and (
        similarity == "dot" or pull not in ("key_of_anchor", "anchor_of_key")
    ):
        raise ValueError(
            f'pull_from="chords" is for cosines of partners; got {similarity=} and {pull=}'
        )
    temperature = read_temperature(temperature)
    if form == "auto":
        form = choose_form(len(anchors), len(keys), anchors.device)
    if not isinstance(temperature, Tensor):
        temperature = torch.full(
            (), temperature, dtype=compute_dtype(anchors, keys), device=anchors.device
        )
    compute = eager.logsumexp_and_pulled if form == "eager" else chunked.logsumexp_and_pulled
    with torch.autocast(anchors.device.type, enabled=False):
        values, pulled = compute(
            anchors,
            keys,
            temperature.reciprocal(),
            key_log_weights,
            partners,
            anchor_labels,
            key_labels,
            pull,
            pull_from,
            leave_out,
            similarity == "cosine",
        )
    return MaskedLogSumExp(values, pulled)


def read_temperature(
    temperature: object, *, name: str = "temperature"
) -> float | Float[Tensor, ""]:
    """A temperature as a number, or as a tensor of no axes in float32 or wider.

    Values of tensors are read only where that costs no wait: on the CPU, outside a compiled graph.

    Raises:
        ValueError: it is not one positive, finite number.
    """
    if isinstance(temperature, Tensor):
        if temperature.numel() != 1 or not temperature.dtype.is_floating_point:
            raise ValueError(
                f"{name} must be one number; got a tensor of shape {tuple(temperature.shape)} and {temperature.dtype}"
            )
        if can_read_values(temperature):
            read_temperature(float(temperature.detach()), name=name)
        return temperature.to(compute_dtype(temperature)).reshape(())
    if (
        not isinstance(temperature, Real)
        or not torch.finfo(torch.float32).tiny <= float(temperature) < math.inf
    ):
        raise ValueError(f"{name} must be a positive number; got {temperature!r}")
    return float(temperature)


def can_read_values(tensor: Tensor) -> bool:
    """Whether values may be looked at: it makes a device wait and breaks a compiled graph."""
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()


def check_choices(**choices: tuple[object, object]) -> None:
    """Raise ValueError unless each value is one of its Literal's."""
    for name, (choice, literal) in choices.items():
        if choice not in get_args(literal):
            raise ValueError(
                f"{name} must be one of {', '.join(get_args(literal))}; got {choice!r}"
            )


def _check_tensors(
    anchors: Tensor,
    keys: Tensor,
    partners: Tensor | None,
    anchor_labels: Tensor | None,
    key_labels: Tensor | None,
    key_log_weights: Tensor | None,
    pull: Pull,
) -> None:
    if anchors.ndim != 2 or keys.ndim != 2 or anchors.shape[1] != keys.shape[1]:
        raise ValueError(
            "anchors and keys must be matrices of the same width, one vector a row; "
            f"got shapes {tuple(anchors.shape)} and {tuple(keys.shape)}"
        )
    needed: dict[str, tuple[Tensor | None, int]] = {}
    if pull == "same_label":
        needed = {
            "anchor_labels": (anchor_labels, len(anchors)),
            "key_labels": (key_labels, len(keys)),
        }
    elif pull != "nothing":
        needed = {"partners": (partners, len(anchors if pull == "key_of_anchor" else keys))}
    if key_log_weights is not None:
        needed["key_log_weights"] = (key_log_weights, len(keys))
    for name, (tensor, length) in needed.items():
        if tensor is None or tensor.shape != (length,):
            came = "nothing" if tensor is None else f"shape {tuple(tensor.shape)}"
            raise ValueError(f"{name} must have shape ({length},) for {pull=}; got {came}")
