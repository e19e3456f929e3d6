"""The unit sphere: safe normalization and accurate cosines."""

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor


def compute_dtype(*tensors: Tensor) -> torch.dtype:
    """Return the dtype to compute in: the widest of the inputs, at least float32.

    >>> compute_dtype(torch.zeros(1, dtype=torch.bfloat16), torch.zeros(1, dtype=torch.float16))
    torch.float32
    """
    dtype = torch.float32
    for tensor in tensors:
        dtype = torch.promote_types(dtype, tensor.dtype)
    return dtype


def min_norm(dtype: torch.dtype) -> float:
    """Return the norm below which a vector counts as zero: √(smallest normal number).

    Below it the squared norm is subnormal and the direction is inaccurate.
    """
    return math.sqrt(torch.finfo(dtype).tiny)


def inverse_norms(vectors: Float[Tensor, "*rows dim"]) -> Float[Tensor, "*rows"]:
    """Return 1/‖v‖ of each vector, in float32 or wider; 0 where the vector counts as zero."""
    dtype = compute_dtype(vectors)
    norms = torch.linalg.vector_norm(vectors.to(dtype), dim=-1)
    nonzero = (norms > min_norm(dtype)) & torch.isfinite(norms)
    return torch.where(nonzero, 1 / torch.where(nonzero, norms, 1), 0)


class _Normalize(torch.autograd.Function):
    """v ↦ v/‖v‖ with a backward that projects to the tangent space and divides by ‖v‖ once.

    Autograd through the division would form 1/‖v‖³, which overflows for small float32 vectors.
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
        if torch.is_grad_enabled():
            # Second derivatives must see that the norms depend on the vectors.
            inverse = inverse_norms(vectors).unsqueeze(-1)
        with torch.autocast(gradient.device.type, enabled=False):
            radial = torch.linalg.vecdot(gradient, unit).unsqueeze(-1)
        tangent: Tensor = torch.addcmul(gradient, radial, unit, value=-1).mul_(inverse)
        return tangent.to(vectors.dtype)


def normalize(vectors: Float[Tensor, "*rows dim"]) -> Float[Tensor, "*rows dim"]:
    """Normalize vectors to unit length.

    u = v / ‖v‖, computed and returned in float32 or wider.

    A finite vector whose norm is below :func:`min_norm` (1.1e-19 in float32, 1.5e-154 in float64)
    or overflows has no direction that can be computed: it maps to zero and gets a zero gradient.

    Args:
        vectors: Vectors along the last dimension, with any number of leading dimensions.

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
    """a bᵀ, forward and backward outside autocast: bfloat16 products would lose precision."""

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
    """Return all inner products of two sets of vectors, in float32 or wider even under autocast.

    Args:
        left: One vector per row.
        right: One vector per row, with the same dimension.

    Returns:
        Matrix with one row per vector of ``left`` and one column per vector of ``right``.
    """
    dtype = compute_dtype(left, right)
    products: Tensor = _Product.apply(left.to(dtype), right.to(dtype))
    return products


def cosines(
    left: Float[Tensor, "rows dim"], right: Float[Tensor, "columns dim"]
) -> Float[Tensor, "rows columns"]:
    """Return all cosines between two sets of vectors, in float32 or wider.

    cos_ij = a_i·b_j / (‖a_i‖ ‖b_j‖), and 0 where either vector is zero.

    Args:
        left: One vector per row.
        right: One vector per row, with the same dimension.

    Returns:
        Matrix with one row per vector of ``left`` and one column per vector of ``right``.

    Raises:
        ValueError: The inputs are not matrices with the same number of columns.

    >>> cosines(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 2.0], [3.0, 0.0]]))
    tensor([[0., 1.]])
    """
    if left.ndim != 2 or right.ndim != 2 or left.shape[1] != right.shape[1]:
        raise ValueError(
            "left and right must be matrices with the same number of columns, "
            f"got shapes {tuple(left.shape)} and {tuple(right.shape)}"
        )
    return inner_products(normalize(left), normalize(right))


def squared_chords(
    left: Float[Tensor, "rows dim"], right: Float[Tensor, "rows dim"]
) -> Float[Tensor, "rows"]:
    """Return the squared chord between the directions of corresponding rows.

    q_i = ‖u_i − v_i‖² = 2 − 2 cos(u_i, v_i), and 2 where either vector is zero. Accurate for nearly
    equal directions, where 1 − cos cancels: 1 − cos = q/2 and sin² = q(1 − q/4).

    Args:
        left: One vector per row.
        right: Matrix of the same shape.

    Returns:
        One value per row, in float32 or wider.

    Raises:
        ValueError: The inputs are not matrices of the same shape.

    >>> squared_chords(torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 5.0]]))
    tensor([2.])
    """
    if left.shape != right.shape or left.ndim != 2:
        raise ValueError(
            "left and right must be matrices of the same shape, "
            f"got shapes {tuple(left.shape)} and {tuple(right.shape)}"
        )
    dtype = compute_dtype(left, right)
    return unit_squared_chords(normalize(left.to(dtype)), normalize(right.to(dtype)))


def unit_squared_chords(
    left: Float[Tensor, "rows dim"], right: Float[Tensor, "rows dim"]
) -> Float[Tensor, "rows"]:
    """:func:`squared_chords` of vectors that are already unit (or zero)."""
    # ‖u − 0‖² would be 1, but a zero vector has cosine 0 with everything.
    norms = (torch.linalg.vector_norm(vectors.detach(), dim=-1) for vectors in (left, right))
    return torch.where(torch.minimum(*norms) == 0, 2, (left - right).square().sum(-1))
