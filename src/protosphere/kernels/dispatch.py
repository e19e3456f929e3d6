"""The primitive of every loss: its public function, and the table of forms that compute it."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from protosphere.geometry.sphere import compute_dtype
from protosphere.kernels import chunked, eager
from protosphere.kernels.problem import (
    Exclude,
    PositiveLogitsFrom,
    Positives,
    Problem,
    Similarity,
    check_choices,
    inside_functorch,
    read_temperature,
)

Form = Literal["auto", "eager", "chunked"]
"""Names of the forms of the log-sum-exp; ``"auto"`` chooses by size."""

# A form is a module with a function from the problem to (values, positive logits) and a row here.
FORMS: dict[str, Callable[[Problem], tuple[Tensor, Tensor]]] = {
    "eager": eager.compute,
    "chunked": chunked.compute,
}

# Number of pairs up to which the whole matrix is cheap and the eager form is the faster one.
_EAGER_LIMIT_ON_CPU = 2**20
_EAGER_LIMIT = 2**24


class MaskedLogSumExp(NamedTuple):
    """Result of :func:`masked_logsumexp`.

    Attributes:
        values: Log-sum-exp of each anchor; −∞, with a zero gradient, where no key is left.
        positive_logits: Logits of the positives; empty for ``positives="none"``.
    """

    values: Float[Tensor, "anchors"]
    positive_logits: Float[Tensor, "positives"]


def choose_form(
    num_anchors: int, num_keys: int, device: torch.device
) -> Literal["eager", "chunked"]:
    """Return the form that ``form="auto"`` stands for at this size.

    Args:
        num_anchors: Number of anchors.
        num_keys: Number of keys.
        device: Device of the tensors.

    Returns:
        ``"eager"`` while the matrix is small, else ``"chunked"``. Under a transform of
        ``torch.func``, which the chunked form does not support, always ``"eager"``.

    >>> choose_form(512, 100, torch.device("cpu")), choose_form(8192, 50_000, torch.device("cpu"))
    ('eager', 'chunked')
    """
    limit = _EAGER_LIMIT_ON_CPU if device.type == "cpu" else _EAGER_LIMIT
    return "eager" if num_anchors * num_keys <= limit or inside_functorch() else "chunked"


def masked_logsumexp(
    anchors: Float[Tensor, "anchors dim"],
    keys: Float[Tensor, "keys dim"],
    *,
    temperature: float | Float[Tensor, ""] | Float[Tensor, "1"] = 1.0,
    similarity: Similarity = "cosine",
    positives: Positives = "none",
    positive_logits_from: PositiveLogitsFrom = "matrix",
    exclude: Exclude = "none",
    positive_index: Int[Tensor, "positives"] | None = None,
    anchor_labels: Int[Tensor, "anchors"] | None = None,
    key_labels: Int[Tensor, "keys"] | None = None,
    key_log_weights: Float[Tensor, "keys"] | Float[Tensor, "anchors keys"] | None = None,
    pair_index: Int[Tensor, "keys entries"] | None = None,
    pair_log_weights: Float[Tensor, "keys entries"] | None = None,
    form: Form = "auto",
) -> MaskedLogSumExp:
    """Log-sum-exp over keys of scaled similarities, for every anchor, with some pairs excluded.

    values_a = log Σ_{k not excluded} exp(S_ak + ω_k), with the logits S_ak = (cos(a, k) − 1)/τ,
    or a·k/τ for ``similarity="dot"``.

    The logits of the positives are returned beside the sums, without ω, whether or not the
    positives are part of the sums.

    Cosines are measured from 1. That shifts every logit alike, so no loss changes, and it keeps the
    digits that matter near collapse, where logits of about 1/τ would differ in their last digits
    only. Attraction and repulsion are combined in one matrix of slopes before it is multiplied with
    the vectors. Everything is computed in float32 or wider, outside autocast.

    Args:
        anchors: One vector per row.
        keys: One vector per row, of the same dimension.
        temperature: Temperature τ, a positive number or a tensor with one element, which may
            require a gradient.
        similarity: ``"cosine"``, or ``"dot"`` for inner products of the vectors as they are.
        positives: Which pairs are positives: ``"none"``, the key given for each anchor
            (``"key_of_anchor"``), the anchor given for each key (``"anchor_of_key"``), or all pairs
            of one label (``"same_label"``), whose mean logit is returned for each anchor, 0 if it
            has no positive.
        positive_logits_from: Whether the logits of single positives are read from the matrix,
            accurate to 1e-7/τ in float32, or computed from chords as −‖u − v‖²/(2τ), for losses in
            which their differences matter near collapse. Logits of ``"same_label"`` always keep
            their small differences.
        exclude: Which pairs the sums exclude: ``"none"``, the ``"positives"``, or the pairs of an
            anchor and the key with the ``"same_index"``, which are no positives of ``"same_label"``
            either.
        positive_index: Index of the positive key of each anchor (``"key_of_anchor"``), or of the
            positive anchor of each key (``"anchor_of_key"``).
        anchor_labels: Labels of the anchors for ``"same_label"``, less than 2²⁴.
        key_labels: Labels of the keys for ``"same_label"``, less than 2²⁴; a negative label
            matches no anchor.
        key_log_weights: Log-weight ω of each key in the sums; −∞ excludes the key. A constant
            matrix gives one for each anchor and key.
        pair_index: For each key the indices of some anchors whose pair has a weight of its own.
        pair_log_weights: Constant log-weights of these pairs, added to that of the key; −∞
            excludes the pair.
        form: ``"eager"`` holds the whole matrix, ``"chunked"`` one tile of it at a time, in the
            forward and the backward pass; ``"auto"`` chooses by size. Values and gradients are the
            same. Second derivatives of the chunked form hold the whole matrix, and transforms of
            ``torch.func`` require the eager form, which ``"auto"`` then chooses.

    Returns:
        The log-sum-exp of each anchor and the logits of the positives.

    Raises:
        ValueError: An unknown option, options or shapes that do not fit each other, or a
            temperature that is not positive.
        RuntimeError: ``form="chunked"`` under a transform of ``torch.func``.

    >>> anchors, keys = torch.eye(2), torch.tensor([[5.0, 0.0], [0.0, 3.0], [0.0, 1.0]])
    >>> masked_logsumexp(anchors, keys).values  # log(1 + 2/e), log(2 + 1/e)
    tensor([0.5514, 0.8620])
    >>> masked_logsumexp(
    ...     anchors, keys, positives="key_of_anchor", exclude="positives",
    ...     positive_index=torch.tensor([1, 1]),
    ... )
    MaskedLogSumExp(values=tensor([0.3133, 0.3133]), positive_logits=tensor([-1.,  0.]))
    """
    check_choices(form=(form, Form))
    temperature = read_temperature(temperature)
    if not isinstance(temperature, Tensor):
        temperature = torch.full(
            (), temperature, dtype=compute_dtype(anchors, keys), device=anchors.device
        )
    problem = Problem(
        anchors=anchors,
        keys=keys,
        scale=temperature.reciprocal(),
        key_log_weights=key_log_weights,
        positive_index=positive_index,
        anchor_labels=anchor_labels,
        key_labels=key_labels,
        pair_index=pair_index,
        pair_log_weights=pair_log_weights,
        positives=positives,
        positive_logits_from=positive_logits_from,
        exclude=exclude,
        similarity=similarity,
    )
    problem.check()
    if form == "auto":
        form = choose_form(len(anchors), len(keys), anchors.device)
    with torch.autocast(anchors.device.type, enabled=False):
        values, positive_logits = FORMS[form](problem)
    return MaskedLogSumExp(values, positive_logits)
