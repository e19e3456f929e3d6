"""Normalization and cosines: zero vectors, gradients and precision."""

import math

import pytest
import torch

from protosphere.geometry import cosines, normalize, squared_chords
from protosphere.geometry.sphere import inner_products

F64 = torch.float64


def test_unit_length_and_direction() -> None:
    vectors = torch.randn(4, 3, 7, dtype=F64)
    unit = normalize(vectors)
    torch.testing.assert_close(unit.norm(dim=-1), torch.ones(4, 3, dtype=F64))
    torch.testing.assert_close(unit * vectors.norm(dim=-1, keepdim=True), vectors)


def test_gradient_is_correct_and_tangent() -> None:
    vectors = torch.randn(5, 4, dtype=F64).requires_grad_()
    assert torch.autograd.gradcheck(normalize, (vectors,))
    assert torch.autograd.gradgradcheck(normalize, (vectors,))
    (normalize(vectors) * torch.randn(5, 4, dtype=F64)).sum().backward()
    assert vectors.grad is not None
    assert (vectors.grad * vectors).sum(1).abs().max() < 1e-12


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_vectors_without_direction_map_to_zero_with_zero_gradient(dtype: torch.dtype) -> None:
    wide = torch.promote_types(dtype, torch.float32)
    limit = math.sqrt(torch.finfo(wide).tiny)
    norms = [0.0, limit / 2 if dtype != torch.float16 else 0.0, 1.0]
    vectors = torch.tensor([[norm, 0.0] for norm in norms], dtype=dtype).requires_grad_()
    unit = normalize(vectors)
    assert unit.dtype == wide
    assert unit.tolist() == [[0.0, 0.0], [0.0, 0.0], [1.0, 0.0]]
    unit.sum().backward()
    assert vectors.grad.tolist() == [[0.0, 0.0], [0.0, 0.0], [0.0, 1.0]]


def test_small_and_large_vectors_keep_their_direction_and_a_finite_gradient() -> None:
    for norm in (1e-18, 1e-6, 1e6, 1e18):
        vectors = (torch.tensor([[0.6, 0.8]]) * norm).requires_grad_()
        unit = normalize(vectors)
        torch.testing.assert_close(unit.detach(), torch.tensor([[0.6, 0.8]]))
        unit[0, 0].backward()
        assert vectors.grad is not None
        torch.testing.assert_close(vectors.grad * norm, torch.tensor([[0.64, -0.48]]))
    overflowing = torch.full((1, 4), 3e38).requires_grad_()
    normalize(overflowing).sum().backward()
    torch.testing.assert_close(overflowing.grad, torch.zeros(1, 4), rtol=0, atol=0)


def test_cosines_match_the_definition_in_float32_or_wider() -> None:
    left, right = torch.randn(3, 8), torch.randn(5, 8)
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        a, b = left.to(dtype), right.to(dtype)
        got = cosines(a, b)
        assert got.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        exact = torch.nn.functional.cosine_similarity(a.double()[:, None], b.double()[None], dim=-1)
        assert (got.double() - exact).abs().max() < 5e-7


def test_inner_products_ignore_autocast_in_forward_and_backward() -> None:
    left, right = torch.randn(6, 9).requires_grad_(), torch.randn(4, 9).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        product = inner_products(left, right)
        product.square().sum().backward()
    exact = 2 * (left.detach() @ right.detach().mT) @ right.detach()
    assert product.dtype == torch.float32
    torch.testing.assert_close(left.grad, exact)


def test_squared_chords_are_accurate_where_cosines_cancel() -> None:
    base = torch.tensor([[1.0, 0.0]])
    for angle in (1e-6, 1e-3, 0.5, math.pi):
        turned = torch.tensor([[math.cos(angle), math.sin(angle)]], dtype=F64).float()
        expected = (2 * math.sin(angle / 2)) ** 2
        assert squared_chords(base, turned).item() == pytest.approx(expected, rel=1e-5)
    assert squared_chords(base, torch.zeros(1, 2)).item() == 2


@pytest.mark.bad_input
def test_cosines_of_mismatched_shapes() -> None:
    with pytest.raises(
        ValueError, match=r"same number of columns, got shapes \(2, 3\) and \(2, 4\)"
    ):
        cosines(torch.ones(2, 3), torch.ones(2, 4))
