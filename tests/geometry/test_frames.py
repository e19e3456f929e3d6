"""Simplex ETFs in every dimension that has one, the nearest ETF, and codes with known optima."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from protosphere.geometry import nearest_etf, simplex_etf, spherical_code

F64 = torch.float64


def _largest_cosine(code: torch.Tensor) -> float:
    gram = code @ code.mT
    return float(gram[~torch.eye(len(code), dtype=torch.bool)].max())


@given(classes=st.integers(2, 30), extra=st.integers(0, 5), seed=st.integers(0, 1000))
def test_simplex_is_an_equiangular_tight_frame(classes: int, extra: int, seed: int) -> None:
    dim = classes - 1 + extra
    frame = simplex_etf(classes, dim, seed=seed)
    eye = torch.eye(classes, dtype=F64)
    assert frame.shape == (classes, dim)
    assert frame.dtype == F64
    torch.testing.assert_close(
        frame @ frame.mT, (classes * eye - 1) / (classes - 1), rtol=0, atol=1e-13
    )
    assert frame.sum(0).abs().max() < 1e-13
    spectrum = torch.linalg.svdvals(frame)[: classes - 1]
    torch.testing.assert_close(
        spectrum, torch.full_like(spectrum, math.sqrt(classes / (classes - 1)))
    )


def test_orientation_is_uniform_and_follows_the_seed() -> None:
    assert torch.equal(simplex_etf(3, 4, seed=1), simplex_etf(3, 4, seed=1))
    assert not torch.equal(simplex_etf(3, 4, seed=1), simplex_etf(3, 4, seed=2))
    # Under Haar measure each vector is uniform on the sphere: mean 0, second moments 1/d.
    first = torch.stack([simplex_etf(3, 4, seed=seed)[0] for seed in range(2000)])
    assert first.mean(0).abs().max() < 0.05
    assert (first.mT @ first / 2000 - torch.eye(4, dtype=F64) / 4).abs().max() < 0.03


@given(classes=st.integers(2, 6), extra=st.integers(0, 4), seed=st.integers(0, 10**6))
def test_nearest_etf_is_an_etf_and_no_other_is_closer(classes: int, extra: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    dim = classes - 1 + extra
    means = torch.randn(classes, dim, dtype=F64, generator=generator)
    previous = simplex_etf(classes, dim, seed=seed)
    eye = torch.eye(classes, dtype=F64)
    for proximity in (0.0, 0.7):
        frame = nearest_etf(means, previous=previous if proximity else None, proximity=proximity)
        torch.testing.assert_close(
            frame @ frame.mT, (classes * eye - 1) / (classes - 1), rtol=0, atol=1e-12
        )

        def distance(other: torch.Tensor, proximity: float = proximity) -> float:
            return float(
                (means - other).square().sum() + proximity * (other - previous).square().sum()
            )

        rivals = [previous]
        for _ in range(10):
            skew = torch.randn(dim, dim, dtype=F64, generator=generator)
            rivals.append(frame @ torch.linalg.matrix_exp(0.1 * (skew - skew.mT)))
        assert all(distance(frame) <= distance(rival) + 1e-12 for rival in rivals)


def test_nearest_etf_keeps_the_dtype_of_the_means() -> None:
    frame = simplex_etf(5, 8)
    for dtype, wanted in (
        (torch.float64, F64),
        (torch.float32, torch.float32),
        (torch.bfloat16, torch.float32),
    ):
        assert nearest_etf(frame.to(dtype)).dtype == wanted


@pytest.mark.long
@pytest.mark.parametrize(
    ("classes", "dim", "steps", "optimum"),
    [
        (4, 3, 1, -1 / 3),  # simplex
        (5, 3, 1, 0.0),  # Rankin: up to 2d vectors reach right angles
        (6, 3, 1, 0.0),  # octahedron
        (13, 10, 1, 0.0),
        (5, 2, 500, math.cos(2 * math.pi / 5)),  # regular polygon
        (10, 3, 1000, 0.404406),  # Tammes; there is a local minimum nearby
        (12, 3, 500, 1 / math.sqrt(5)),  # icosahedron
    ],
)
def test_spherical_code_reaches_the_known_optimum(
    classes: int, dim: int, steps: int, optimum: float
) -> None:
    code = spherical_code(classes, dim, steps=steps)
    assert code.shape == (classes, dim)
    torch.testing.assert_close(code.norm(dim=1), torch.ones(classes, dtype=F64))
    assert _largest_cosine(code) == pytest.approx(optimum, abs=5e-5)


def test_frames_are_built_on_the_cpu_in_any_context() -> None:
    for context in (torch.no_grad(), torch.inference_mode(), torch.device("meta")):
        with context:
            code, frame = spherical_code(7, 3, steps=50), simplex_etf(4, 3)
        assert code.device == frame.device == torch.device("cpu")
        assert not code.requires_grad


@pytest.mark.bad_input
def test_bad_arguments() -> None:
    for call, message in (
        (lambda: simplex_etf(10, 8), "a simplex of 10 classes needs at least 9 dimensions, got 8"),
        (lambda: simplex_etf(1, 8), "num_classes must be at least 2, got 1"),
        (lambda: spherical_code(7, 3, steps=0), "steps must be at least 1, got 0"),
        (lambda: spherical_code(3, 1), "3 classes need at least 2 dimensions, got 1"),
        (lambda: nearest_etf(torch.ones(5, 3)), r"dim ≥ num_classes − 1, got \(5, 3\)"),
        (
            lambda: nearest_etf(torch.full((3, 4), torch.nan)),
            "class_means must be finite, got NaN .* in 3 of 3",
        ),
        (
            lambda: nearest_etf(torch.ones(3, 4), proximity=1.0),
            "proximity requires a previous frame, got none",
        ),
        (
            lambda: nearest_etf(torch.ones(3, 4), previous=torch.ones(3, 5), proximity=1.0),
            r"previous must have the shape of class_means, \(3, 4\), got \(3, 5\)",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            call()
