"""The arguments of the primitive as one frozen value, with the checks that every form relies on."""

import math
from dataclasses import dataclass
from numbers import Real
from typing import Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from protosphere.geometry.sphere import compute_dtype

Similarity = Literal["cosine", "dot"]
Positives = Literal["none", "key_of_anchor", "anchor_of_key", "same_label"]
PositiveLogitsFrom = Literal["matrix", "chords"]
Exclude = Literal["none", "positives", "same_index"]


@dataclass(frozen=True)
class Problem:
    """A masked log-sum-exp to compute; every form takes this one value.

    The fields are those of :func:`~protosphere.kernels.masked_logsumexp`, with the temperature as
    its inverse. Tensors come first: the custom operators of the chunked form take the fields in
    this order.

    Attributes:
        anchors: One vector per row.
        keys: One vector per row, of the same dimension.
        scale: Inverse temperature 1/τ, a tensor without axes.
        key_log_weights: Log-weight added to every logit of a key, or a matrix with one for each
            anchor and key, or None.
        positive_index: Index of the positive of each anchor or key, or None.
        anchor_labels: Label of each anchor, or None.
        key_labels: Label of each key, or None.
        pair_index: Indices of some anchors for each key, or None.
        pair_log_weights: Log-weight added to the logits of these anchors and the key, or None.
        positives: Which pairs are positives.
        positive_logits_from: How the logits of positives are computed.
        exclude: Which pairs are excluded from the sums.
        similarity: Cosines, or inner products of the vectors as they are.
    """

    anchors: Float[Tensor, "anchors dim"]
    keys: Float[Tensor, "keys dim"]
    scale: Float[Tensor, ""]
    key_log_weights: Float[Tensor, "keys"] | Float[Tensor, "anchors keys"] | None
    positive_index: Int[Tensor, "positives"] | None
    anchor_labels: Int[Tensor, "anchors"] | None
    key_labels: Int[Tensor, "keys"] | None
    pair_index: Int[Tensor, "keys entries"] | None
    pair_log_weights: Float[Tensor, "keys entries"] | None
    positives: Positives
    positive_logits_from: PositiveLogitsFrom
    exclude: Exclude
    similarity: Similarity

    @property
    def on_sphere(self) -> bool:
        """Whether the vectors are normalized, and logits measured from the largest possible one."""
        return self.similarity == "cosine"

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the computation, float32 or wider."""
        return compute_dtype(self.anchors, self.keys, self.scale)

    @property
    def num_positive_logits(self) -> int:
        """Number of positive logits: one per anchor or per key, or none."""
        if self.positives == "none":
            return 0
        return len(self.keys if self.positives == "anchor_of_key" else self.anchors)

    def check(self) -> None:
        """Raise ValueError if options or shapes do not fit each other."""
        check_choices(
            similarity=(self.similarity, Similarity),
            positives=(self.positives, Positives),
            positive_logits_from=(self.positive_logits_from, PositiveLogitsFrom),
            exclude=(self.exclude, Exclude),
        )
        self._check_shapes()
        if self.exclude == "positives" and self.positives == "none":
            raise ValueError('exclude="positives" requires positives, got positives="none"')
        if self.positive_logits_from == "chords" and (
            self.similarity == "dot" or self.positives not in ("key_of_anchor", "anchor_of_key")
        ):
            raise ValueError(
                'positive_logits_from="chords" requires similarity="cosine" and one positive per '
                f"anchor or key, got similarity={self.similarity!r}, positives={self.positives!r}"
            )

    def _check_shapes(self) -> None:
        anchors, keys = self.anchors, self.keys
        if anchors.ndim != 2 or keys.ndim != 2 or anchors.shape[1] != keys.shape[1]:
            raise ValueError(
                "anchors and keys must be matrices of the same width, one vector per row, "
                f"got shapes {tuple(anchors.shape)} and {tuple(keys.shape)}"
            )
        required: dict[str, tuple[Tensor | None, int]] = {}
        if self.positives == "same_label":
            required["anchor_labels"] = (self.anchor_labels, len(anchors))
            required["key_labels"] = (self.key_labels, len(keys))
        elif self.positives != "none":
            required["positive_index"] = (self.positive_index, self.num_positive_logits)
        if self.key_log_weights is not None and self.key_log_weights.ndim != 2:
            required["key_log_weights"] = (self.key_log_weights, len(keys))
        for name, (tensor, length) in required.items():
            if tensor is None or tensor.shape != (length,):
                given = "None" if tensor is None else f"shape {tuple(tensor.shape)}"
                raise ValueError(
                    f"{name} must have shape ({length},) for positives={self.positives!r}, "
                    f"got {given}"
                )
        self._check_pairs()

    def _check_pairs(self) -> None:
        """Check weights of single pairs, which are constants."""
        weights, shape = self.key_log_weights, (len(self.anchors), len(self.keys))
        is_matrix = weights is not None and weights.ndim == 2
        if weights is not None and is_matrix and weights.shape != shape:
            raise ValueError(
                f"key_log_weights must have shape ({shape[1]},) or {shape}, "
                f"got {tuple(weights.shape)}"
            )
        given = [
            None if tensor is None else tuple(tensor.shape)
            for tensor in (self.pair_index, self.pair_log_weights)
        ]
        if given[0] != given[1] or (given[0] and (len(given[0]), given[0][0]) != (2, shape[1])):
            raise ValueError(
                "pair_index and pair_log_weights must have one shape "
                f"({shape[1]}, entries), got {given[0]} and {given[1]}"
            )
        for tensor in (weights if is_matrix else None, self.pair_log_weights):
            if tensor is not None and tensor.requires_grad:
                raise ValueError("log-weights of pairs must be constants, got requires_grad=True")
        if self.pair_index is not None and self.positives == "same_label":
            raise ValueError('pair_index cannot be combined with positives="same_label"')


def read_temperature(
    temperature: object, *, name: str = "temperature"
) -> float | Float[Tensor, ""]:
    """Check a temperature and return it as a float, or as a 0-d tensor in float32 or wider.

    Values of tensors are checked only where reading them costs no synchronization: on the CPU,
    outside compiled code.

    Args:
        temperature: A positive number, or a floating-point tensor with one element.
        name: Name of the argument in error messages.

    Returns:
        The temperature.

    Raises:
        ValueError: The temperature is not one positive, finite number.
    """
    if isinstance(temperature, Tensor):
        if temperature.numel() != 1 or not temperature.dtype.is_floating_point:
            raise ValueError(
                f"{name} must be one floating-point number, got a tensor of shape "
                f"{tuple(temperature.shape)} and {temperature.dtype}"
            )
        if can_read_values(temperature):
            read_temperature(float(temperature.detach()), name=name)
        return temperature.to(compute_dtype(temperature)).reshape(())
    if (
        isinstance(temperature, bool)
        or not isinstance(temperature, Real)
        or not torch.finfo(torch.float32).tiny <= float(temperature) < math.inf
    ):
        raise ValueError(f"{name} must be a positive number, got {temperature!r}")
    return float(temperature)


def inside_functorch() -> bool:
    """Whether the call runs under a ``torch.func`` transform (``grad``, ``vmap``, ...)."""
    # While torch.compile traces, the transforms are part of the graph and not on this stack.
    if torch.compiler.is_compiling():
        return False
    return torch._C._functorch.maybe_current_level() is not None


def can_read_values(tensor: Tensor) -> bool:
    """Whether reading values costs no synchronization, no graph break and no transform's rules."""
    return (
        tensor.device.type == "cpu" and not torch.compiler.is_compiling() and not inside_functorch()
    )


def check_choices(**choices: tuple[object, object]) -> None:
    """Raise ValueError unless each value is one of its Literal's.

    Args:
        **choices: For each argument its value and the Literal of the allowed values.
    """
    for name, (choice, literal) in choices.items():
        if choice not in get_args(literal):
            raise ValueError(
                f"{name} must be one of {', '.join(get_args(literal))}, got {choice!r}"
            )
