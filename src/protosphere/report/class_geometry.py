"""Cosines and spectra of class means and prototypes as numbers for figures, in float64."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class Binned:
    """A matrix in blocks.

    Attributes:
        values: Mean of the finite entries of each block, NaN if there is none.
        edges: First row of each block, and the number of rows at the end; the same for columns.
    """

    values: Matrix
    edges: NDArray[np.int64]

    @property
    def is_exact(self) -> bool:
        """Whether each block is a single entry."""
        return len(self.edges) - 1 == int(self.edges[-1])


def simplex_deviation(cosines: NDArray[Any]) -> Matrix:
    """Return by how much cosines exceed those of a simplex, −1/(K−1), with NaN on the diagonal.

    Args:
        cosines: Cosines between K vectors, shape (K, K).

    >>> simplex_deviation(np.array([[1.0, -0.9], [-0.9, 1.0]])).round(3).tolist()
    [[nan, 0.1], [0.1, nan]]
    """
    deviation = np.array(cosines, np.float64)
    deviation += 1 / max(len(deviation) - 1, 1)
    np.fill_diagonal(deviation, np.nan)
    return deviation


def off_diagonal(matrix: NDArray[Any]) -> NDArray[np.float64]:
    """Return the finite entries of a symmetric matrix above its diagonal.

    Args:
        matrix: Square matrix.
    """
    entries = np.asarray(matrix, np.float64)[np.triu_indices(len(matrix), 1)]
    return entries[np.isfinite(entries)]


def bin_matrix(matrix: NDArray[Any], max_side: int) -> Binned:
    """Return the means of blocks of a square matrix, with at most a number of blocks per side.

    Blocks are of one size, except that the last ones of a side may be smaller. NaN entries are left
    out of the means.

    Args:
        matrix: Square matrix.
        max_side: Largest number of blocks along each side.

    >>> bin_matrix(np.array([[np.nan, 1, 2], [1, np.nan, 4], [2, 4, np.nan]]), 2).values.tolist()
    [[1.0, 3.0], [3.0, nan]]
    """
    values = np.asarray(matrix, np.float64)
    size = math.ceil(len(values) / max_side) or 1
    starts = np.arange(0, len(values), size)
    edges = np.append(starts, len(values))
    if size == 1:
        return Binned(values, edges)
    known = np.isfinite(values)
    sums = np.add.reduceat(np.add.reduceat(np.where(known, values, 0), starts, 0), starts, 1)
    counts = np.add.reduceat(np.add.reduceat(known.astype(np.int64), starts, 0), starts, 1)
    with np.errstate(invalid="ignore"):
        return Binned(sums / counts, edges)


def mean_spectrum(means: NDArray[Any]) -> NDArray[np.float64]:
    """Return singular values of centered class means, relative to those of a simplex.

    The K − 1 singular values of a simplex of the same total variance are equal; they are the unit,
    so that a simplex has the spectrum 1, …, 1.

    Args:
        means: Class means, shape (K, d).

    Returns:
        min(K − 1, d) values, largest first; zeros if all means are equal.

    >>> mean_spectrum(np.eye(4)).round(6).tolist()
    [1.0, 1.0, 1.0]
    """
    vectors = np.asarray(means, np.float64)
    count = len(vectors)
    values = np.linalg.svd(vectors - vectors.mean(0), compute_uv=False)[: max(count - 1, 0)]
    scale = math.sqrt(float(np.sum(values**2)) / max(count - 1, 1))
    return values / scale if scale > 0 else np.zeros_like(values)


def leading_fractions(means: NDArray[Any]) -> NDArray[np.float64]:
    """Return the fraction of the between-class variance in each of the three leading directions.

    Args:
        means: Class means, shape (K, d).

    Returns:
        One fraction per direction, 0 for directions that do not exist.

    >>> leading_fractions(np.array([[1.0, 0.0], [-1.0, 0.0]])).tolist()
    [1.0, 0.0, 0.0]
    """
    squares = mean_spectrum(means) ** 2
    fractions = np.zeros(3)
    total = squares.sum()
    if total > 0:
        leading = squares[:3] / total
        fractions[: len(leading)] = leading
    return fractions


def simplex_radius(num_classes: int) -> float:
    """Return the root mean square norm of the vertices of a simplex, projected to three directions.

    √(3/(K−1)) for K ≥ 4, as the vertices have the same variance 1/(K−1) in all directions.

    Args:
        num_classes: Number of classes K, at least 2.

    >>> simplex_radius(4), round(simplex_radius(100), 3)
    (1.0, 0.174)
    """
    return math.sqrt(min(3, num_classes - 1) / (num_classes - 1))
