"""Fixed class prototypes: simplex ETF, nearest simplex ETF, and spherical codes."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from protosphere.geometry.sphere import compute_dtype, normalize


def simplex_etf(num_classes: int, dim: int, *, seed: int = 0) -> Float[Tensor, "classes dim"]:
    """Return a simplex equiangular tight frame in a random orientation.

    E = √(K/(K−1)) V Uᵀ with pairwise cosines −1/(K−1), where V (K × (K−1)) is an orthonormal basis
    of the complement of the ones vector and U (d × (K−1)) is Haar-distributed with orthonormal
    columns. It exists for every d ≥ K − 1.

    Args:
        num_classes: Number of classes K, at least 2.
        dim: Dimension d, at least K − 1; use :func:`spherical_code` for smaller ones.
        seed: Seed of the random orientation.

    Returns:
        One unit vector per row, in float64.

    Raises:
        ValueError: There are fewer than two classes, or the dimension is too small for a simplex.

    >>> frame = simplex_etf(3, 8)
    >>> (frame @ frame.T).round(decimals=4)
    tensor([[ 1.0000, -0.5000, -0.5000],
            [-0.5000,  1.0000, -0.5000],
            [-0.5000, -0.5000,  1.0000]], dtype=torch.float64)
    """
    _check_classes(num_classes)
    if dim < num_classes - 1:
        raise ValueError(
            f"a simplex of {num_classes} classes needs at least {num_classes - 1} dimensions, "
            f"got {dim}; a spherical code exists in fewer dimensions"
        )
    return _simplex(num_classes) @ _haar(dim, num_classes - 1, seed).mT


def nearest_etf(
    class_means: Float[Tensor, "classes dim"],
    *,
    previous: Float[Tensor, "classes dim"] | None = None,
    proximity: float = 0.0,
) -> Float[Tensor, "classes dim"]:
    """Return the simplex ETF closest to given class means, with an optional proximal term.

    argmin_E ‖M − E‖² + λ‖E − E₀‖² over simplex ETFs. All of them have the same norm, so this
    maximizes ⟨E, M + λE₀⟩, and the polar factor of one thin SVD gives the solution in closed form:
    U = A Bᵀ where (M + λE₀)ᵀ V = A Σ Bᵀ.

    Args:
        class_means: Class means M, one per row. Without ``previous`` a common offset and a common
            scale have no effect.
        previous: Frame E₀ of the proximal term.
        proximity: Weight λ of the proximal term.

    Returns:
        One unit vector per row, computed in float64 and returned in the dtype of the class means
        (float32 or wider).

    Raises:
        ValueError: Values are not finite, no simplex exists for the shape, or ``proximity`` is
            negative or given without ``previous``.

    >>> frame = simplex_etf(4, 6)
    >>> noisy = 3 * frame + 0.1 * torch.ones_like(frame)
    >>> bool(torch.allclose(nearest_etf(noisy), frame))
    True
    """
    if class_means.ndim != 2 or class_means.shape[1] < len(class_means) - 1:
        raise ValueError(
            "class_means must have shape (num_classes, dim) with dim ≥ num_classes − 1, "
            f"got {tuple(class_means.shape)}"
        )
    _check_classes(len(class_means))
    _check_finite(class_means, "class_means")
    if not 0 <= proximity < math.inf:
        raise ValueError(f"proximity must be a finite non-negative number, got {proximity}")
    if proximity > 0 and previous is None:
        raise ValueError("proximity requires a previous frame, got none")
    target = class_means.double()
    if previous is not None:
        if previous.shape != class_means.shape:
            raise ValueError(
                f"previous must have the shape of class_means, {tuple(class_means.shape)}, "
                f"got {tuple(previous.shape)}"
            )
        _check_finite(previous, "previous")
        target = target + proximity * previous.double()
    simplex = _simplex(len(class_means)).to(target.device)
    left, _, right = torch.linalg.svd(target.mT @ simplex, full_matrices=False)
    nearest: Tensor = simplex @ (left @ right).mT
    return nearest.to(compute_dtype(class_means))


def spherical_code(
    num_classes: int, dim: int, *, seed: int = 0, steps: int = 2000
) -> Float[Tensor, "classes dim"]:
    """Return unit vectors that minimize the largest pairwise cosine.

    argmin over unit vectors of max_{i≠j} cos(w_i, w_j). The first two of three cases have a closed
    form that is optimal (Rankin): for K ≤ d + 1 the simplex, with cosine −1/(K−1); for K ≤ 2d,
    K − d simplices in orthogonal subspaces, with cosine 0. For larger K, gradient descent on a
    log-sum-exp of the cosines whose sharpness increases during the descent.

    Args:
        num_classes: Number of classes K, at least 2.
        dim: Dimension d, at least 1, or at least 2 for three or more classes.
        seed: Seed of the random orientation and of the initial vectors.
        steps: Number of gradient steps, where gradient descent is needed.

    Returns:
        One unit vector per row, in float64.

    Raises:
        ValueError: There are fewer than two classes, too few dimensions, or no steps.

    >>> code = spherical_code(6, 3)
    >>> float((code @ code.T - 2 * torch.eye(6)).max().round(decimals=6))
    0.0
    """
    _check_classes(num_classes)
    if dim < 1 or (dim == 1 and num_classes > 2):
        raise ValueError(
            f"{num_classes} classes need at least {min(num_classes - 1, 2)} dimensions, got {dim}"
        )
    if num_classes <= dim + 1:
        return simplex_etf(num_classes, dim, seed=seed)
    if num_classes <= 2 * dim:
        groups = num_classes - dim
        sizes = [num_classes // groups + (group < num_classes % groups) for group in range(groups)]
        blocks: Tensor = torch.block_diag(*(_simplex(size) for size in sizes))
        return blocks @ _haar(dim, dim, seed).mT
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    # Small codes have poor local minima, and restarts are cheap.
    starts = 5 if num_classes <= 50 else 1
    with torch.device("cpu"), torch.inference_mode(False), torch.enable_grad():
        codes = [
            _descend(num_classes, dim, seed * starts + start, steps) for start in range(starts)
        ]
    return min(codes, key=lambda code: float((code @ code.mT).fill_diagonal_(-1).max()))


def _simplex(num_classes: int) -> Tensor:
    """√(K/(K−1)) V, the simplex in K − 1 dimensions, from the Helmert basis."""
    order = torch.arange(1, num_classes, dtype=torch.float64, device="cpu")
    basis = torch.ones(num_classes, num_classes - 1, dtype=torch.float64, device="cpu").triu()
    basis.diagonal(-1).copy_(-order)
    return basis / (order * (order + 1)).sqrt() * math.sqrt(num_classes / (num_classes - 1))


def _haar(rows: int, columns: int, seed: int) -> Tensor:
    """Haar-distributed orthonormal columns: QR of a Gaussian matrix, signs of diag(R) fixed."""
    generator = torch.Generator().manual_seed(seed)
    gaussian = torch.randn(rows, columns, dtype=torch.float64, device="cpu", generator=generator)
    q, r = torch.linalg.qr(gaussian)
    orthonormal: Tensor = q * r.diagonal().sign()
    return orthonormal


def _descend(num_classes: int, dim: int, seed: int, steps: int) -> Tensor:
    """Return the best code of one Adam run."""
    generator = torch.Generator().manual_seed(seed)
    code = torch.randn(num_classes, dim, dtype=torch.float64, device="cpu", generator=generator)
    code = normalize(code).requires_grad_()
    best_code, best_cosine = code.detach().clone(), math.inf
    diagonal = torch.eye(num_classes, dtype=torch.bool, device="cpu")
    optimizer = torch.optim.Adam([code], lr=0.1)
    for step in range(steps):
        progress = step / steps
        sharpness = 10 * 1000**progress
        optimizer.param_groups[0]["lr"] = 0.1 * (1 - progress) ** 2
        unit = normalize(code)
        pairs = (unit @ unit.mT).masked_fill(diagonal, -math.inf)
        largest = float(pairs.detach().max())
        if largest < best_cosine:
            best_code, best_cosine = unit.detach().clone(), largest
        optimizer.zero_grad()
        (pairs * sharpness).flatten().logsumexp(0).div(sharpness).backward()
        optimizer.step()
        with torch.no_grad():
            code.copy_(normalize(code))
    return best_code


def _check_classes(num_classes: int) -> None:
    if num_classes < 2:
        raise ValueError(f"num_classes must be at least 2, got {num_classes}")


def _check_finite(values: Tensor, name: str) -> None:
    if not bool(torch.isfinite(values).all()):
        bad = int((~torch.isfinite(values)).any(1).sum())
        raise ValueError(
            f"{name} must be finite, got NaN or infinity in {bad} of {len(values)} rows"
        )
