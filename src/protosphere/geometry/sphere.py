"""The unit sphere: safe normalization, and cosines that keep their precision."""

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor


def compute_dtype(*tensors: Tensor) -> torch.dtype:
    """The dtype to calculate in: the widest of the inputs, and never narrower than float32.

    >>> compute_dtype(torch.zeros(1, dtype=torch.bfloat16), torch.zeros(1, dtype=torch.float16))
    torch.float32
    """
    dtype = torch.float32
    for tensor in tensors:
        dtype = torch.promote_types(dtype, tensor.dtype)
    return dtype


def min_norm(dtype: torch.dtype) -> float:
    """The length below which a vector counts as zero: the root of the smallest normal number.

    Below it the squared length is no longer a normal number, and the direction cannot be trusted.
    """
    return math.sqrt(torch.finfo(dtype).tiny)


def inverse_norms(vectors: Float[Tensor, "*rows dim"]) -> Float[Tensor, "*rows"]:
    """1 / ‖v‖ for each vector in float32 or wider, and 0 where the vector counts as zero."""
    dtype = compute_dtype(vectors)
    lengths = torch.linalg.vector_norm(vectors.to(dtype), dim=-1)
    present = (lengths > min_norm(dtype)) & torch.isfinite(lengths)
    return torch.where(present, 1 / torch.where(present, lengths, 1), 0)


class _Normalize(torch.autograd.Function):
    """v ↦ v/‖v‖, whose backward projects to the tangent space last and divides by ‖v‖ only once.

    Autograd through the division would form 1/‖v‖³, which overflows for short float32 vectors.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(vectors: Tensor) -> tuple[Tensor, Tensor]:
        inverse = inverse_norms(vectors).unsqueeze(-1)
        return vectors.to(inverse.dtype) * inverse, inverse

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*inputs, *output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> Tensor:
        vectors, unit, inverse = ctx.saved_tensors
        if (
            torch.is_grad_enabled()
        ):  # A gradient of the gradient needs to know that lengths depend on the vectors.
            inverse = inverse_norms(vectors).unsqueeze(-1)
        with torch.autocast(gradient.device.type, enabled=False):
            radial = torch.linalg.vecdot(gradient, unit).unsqueeze(-1)
        tangent: Tensor = torch.addcmul(gradient, radial, unit, value=-1).mul_(inverse)
        return tangent.to(vectors.dtype)


def normalize(vectors: Float[Tensor, "*rows dim"]) -> Float[Tensor, "*rows dim"]:
    """Put every vector on the unit sphere.

    u = v / ‖v‖, calculated and returned in float32 or wider.

    A finite vector shorter than the root of the smallest normal number (1.1e-19 in float32, 1.5e-154 in float64), or
    so long that its length overflows, has no direction that can be calculated: it maps to zero and receives a zero
    gradient.

    Args:
        vectors: any number of leading axes; the last one is the dimension of the sphere's space.

    Returns:
        Unit vectors (or zeros) of the same shape.

    >>> normalize(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """
    unit, _ = _Normalize.apply(vectors)
    result: Tensor = unit
    return result


class _Product(torch.autograd.Function):
    """a bᵀ, forward and backward outside autocast: products in bfloat16 would cost the gradient its digits."""

    generate_vmap_rule = True

    @staticmethod
    def forward(left: Tensor, right: Tensor) -> Tensor:
        with torch.autocast(left.device.type, enabled=False):
            return left @ right.mT

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:  # noqa: ARG004
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        left, right = ctx.saved_tensors
        with torch.autocast(gradient.device.type, enabled=False):
            return (
                gradient @ right if ctx.needs_input_grad[0] else None,
                gradient.mT @ left if ctx.needs_input_grad[1] else None,
            )


def inner_products(
    left: Float[Tensor, "rows dim"], right: Float[Tensor, "columns dim"]
) -> Float[Tensor, "rows columns"]:
    """All inner products of two sets of vectors, in float32 or wider even under autocast."""
    dtype = compute_dtype(left, right)
    products: Tensor = _Product.apply(left.to(dtype), right.to(dtype))
    return products


def cosines(
    left: Float[Tensor, "rows dim"], right: Float[Tensor, "columns dim"]
) -> Float[Tensor, "rows columns"]:
    """The matrix of cosines between two sets of vectors, in float32 or wider.

    cos_ij = a_i·b_j / (‖a_i‖ ‖b_j‖), and 0 where either vector is zero.

    Args:
        left: one vector a row.
        right: one vector a row, of the same dimension.

    Returns:
        One row for each vector of ``left``, one column for each of ``right``.

    Raises:
        ValueError: the two are not matrices of the same width.

    >>> cosines(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 2.0], [3.0, 0.0]]))
    tensor([[0., 1.]])
    """
    if left.ndim != 2 or right.ndim != 2 or left.shape[1] != right.shape[1]:
        raise ValueError(
            "cosines need two matrices of the same width, one vector a row; "
            f"got shapes {tuple(left.shape)} and {tuple(right.shape)}"
        )
    return inner_products(normalize(left), normalize(right))


def squared_chords(
    left: Float[Tensor, "rows dim"], right: Float[Tensor, "rows dim"]
) -> Float[Tensor, "rows"]:
    """Squared distance on the sphere between vectors of the same row.

    q_i = ‖u_i − v_i‖² = 2 − 2 cos(u_i, v_i), and 2 where either vector is zero. Accurate for vectors that nearly
    coincide, where 1 − cos has no digits left: 1 − cos = q/2 and sin² = q(1 − q/4).

    Args:
        left: one vector a row.
        right: as many vectors of the same dimension.

    Returns:
        One value a row, in float32 or wider.

    Raises:
        ValueError: the two are not matrices of one shape.

    >>> squared_chords(torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 5.0]]))
    tensor([2.])
    """
    if left.shape != right.shape or left.ndim != 2:
        raise ValueError(
            "squared_chords needs two matrices of one shape, one pair of vectors a row; "
            f"got shapes {tuple(left.shape)} and {tuple(right.shape)}"
        )
    dtype = compute_dtype(left, right)
    return unit_squared_chords(normalize(left.to(dtype)), normalize(right.to(dtype)))


def unit_squared_chords(
    left: Float[Tensor, "rows dim"], right: Float[Tensor, "rows dim"]
) -> Float[Tensor, "rows"]:
    """The same between vectors that :func:`normalize` has made."""
    # ‖u − 0‖² would be 1, but a zero vector stands at a right angle to everything.
    lengths = (torch.linalg.vector_norm(vectors.detach(), dim=-1) for vectors in (left, right))
    return torch.where(torch.minimum(*lengths) == 0, 2, (left - right).square().sum(-1))
