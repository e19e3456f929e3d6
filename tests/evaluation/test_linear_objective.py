"""The objective of linear classifiers against autograd, and the L-BFGS that minimizes it."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from protosphere.evaluation.lbfgs import _HISTORY, _History, minimize
from protosphere.evaluation.linear_objective import (
    LinearObjective,
    binary_loss,
    principal_coordinates,
    softmax_loss,
)
from support.logistic import mixture


@pytest.mark.parametrize("kind", ["softmax", "binary"])
@pytest.mark.parametrize("weighted", [False, True])
def test_gradient_and_hessian_are_those_of_the_definition(kind: str, weighted: bool) -> None:
    features, labels = mixture(20, 3, 4)
    weights = torch.rand(20, 1, dtype=torch.float64) if weighted else None
    coordinates = principal_coordinates(features, weights)
    targets = F.one_hot(labels)
    loss = softmax_loss(labels) if kind == "softmax" else binary_loss(targets)
    num_problems = 1 if kind == "softmax" else 4
    own = LinearObjective(coordinates, loss, 0.7, 4, num_problems)
    mass = torch.ones(20, 1, dtype=torch.float64) if weights is None else weights

    def definition(point: Tensor) -> Tensor:
        weight, bias = coordinates.to_features(point.view(4, -1))
        logits = features @ weight.T + bias
        if kind == "softmax":
            losses = F.cross_entropy(logits, labels, reduction="none")[:, None]
        else:
            losses = F.binary_cross_entropy_with_logits(logits, targets.double(), reduction="none")
        penalties = 0.35 * weight.square().view(num_problems, -1).sum(1)
        return (losses * mass).sum(0) + penalties

    generator = torch.Generator().manual_seed(1)
    point = torch.randn(num_problems, 16 // num_problems, generator=generator, dtype=torch.float64)
    point.requires_grad_()
    values, gradient = own.value_and_gradient(point.detach())
    torch.testing.assert_close(values, definition(point.detach()), rtol=1e-12, atol=0)
    expected = torch.autograd.grad(definition(point).sum(), point)[0]
    torch.testing.assert_close(gradient, expected, rtol=1e-10, atol=1e-10)
    hessian = torch.autograd.functional.hessian(lambda at: definition(at).sum(), point.detach())
    diagonal = hessian.reshape(16, 16).diagonal().view_as(point)
    torch.testing.assert_close(own.hessian_diagonal(point.detach()), diagonal)


def test_small_losses_keep_their_digits_in_float32() -> None:
    logits = torch.tensor([[30.0, 0.0, -5.0]])
    losses, residuals = softmax_loss(torch.tensor([0]))(logits, slice(0, 1))
    exact = np.log1p(np.exp(-30.0) + np.exp(-35.0))
    assert float(losses) == pytest.approx(exact, rel=1e-6)
    assert float(residuals[0, 0]) == pytest.approx(-exact, rel=1e-6)
    assert float(residuals.sum()) == pytest.approx(0, abs=1e-6 * exact)


class _Quadratics:
    """½ (x − c)ᵀ A (x − c) + 1, one matrix and center per problem."""

    rounding = 1e-15

    def __init__(self, matrices: Tensor, centers: Tensor) -> None:
        self.matrices, self.centers = matrices, centers

    def value_and_gradient(self, point: Tensor) -> tuple[Tensor, Tensor]:
        offsets = point - self.centers
        products = (self.matrices @ offsets[:, :, None])[:, :, 0]
        return (offsets * products).sum(1) / 2 + 1, products

    def hessian_diagonal(self, point: Tensor) -> Tensor:
        return self.matrices.diagonal(dim1=1, dim2=2).clone()


def test_problems_are_minimized_independently_of_each_other() -> None:
    generator = torch.Generator().manual_seed(0)
    factors = torch.randn(4, 6, 6, generator=generator, dtype=torch.float64)
    scales = torch.tensor([1e-3, 1.0, 1e3, 1.0], dtype=torch.float64)[:, None, None]
    matrices = (factors @ factors.mT + torch.eye(6)) * scales
    centers = torch.randn(4, 6, generator=generator, dtype=torch.float64)
    start = torch.zeros_like(centers)
    start[3] = centers[3]  # has converged before it starts
    found = minimize(_Quadratics(matrices, centers), start, tol=1e-10, max_iter=200)
    assert found.converged.all()
    torch.testing.assert_close(found.point[1:], centers[1:], rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(found.values, torch.ones(4, dtype=torch.float64))
    alone = minimize(_Quadratics(matrices[:1], centers[:1]), start[:1], tol=1e-10, max_iter=200)
    torch.testing.assert_close(found.point[:1], alone.point, rtol=0, atol=1e-5)
    assert torch.equal(found.point[3], centers[3])


def _dense_inverse(pairs: list[tuple[Tensor, Tensor]], diagonal: Tensor) -> Tensor:
    """The inverse Hessian of BFGS as a matrix, by its update, from a diagonal that fits last."""
    usable = [(step, change) for step, change in pairs if step @ change > 0]
    step, change = usable[-1] if usable else (diagonal, diagonal.square())
    inverse = torch.diag(1 / diagonal) * (step @ change / (change.square() / diagonal).sum())
    for step, change in usable:
        left = torch.eye(len(diagonal)) - torch.outer(step, change) / (step @ change)
        inverse = left @ inverse @ left.T + torch.outer(step, step) / (step @ change)
    return inverse


@pytest.mark.parametrize("num_pairs", [0, 1, 5, _HISTORY, _HISTORY + 3])
def test_directions_are_those_of_the_update_of_bfgs(num_pairs: int) -> None:
    """For three problems, of which the first misses some pairs and the second all."""
    generator = torch.Generator().manual_seed(num_pairs)
    options: dict[str, Any] = {"generator": generator, "dtype": torch.float64}
    diagonals = torch.rand(2, 3, 20, **options) + 0.1
    gradient = torch.randn(3, 20, **options)
    history = _History(torch.zeros_like(gradient))
    history.precondition(diagonals[0], gradient)
    pairs: list[list[tuple[Tensor, Tensor]]] = [[], [], []]
    for index in range(num_pairs):
        if index == 3:
            history.precondition(diagonals[1], gradient)
        change = torch.randn(3, 20, **options)
        step = change * torch.rand(3, 20, **options)
        step[0] *= -1 if index % 4 == 1 else 1
        step[1] = 0
        values = torch.rand(3, **options)
        found, products = history.compare(step * history.root, gradient, gradient + change, values)
        gradient = gradient + change
        assert found.tolist() == values.tolist()
        history.accept(products)
        for problem in range(3):
            pairs[problem].append((step[problem], change[problem]))
    coefficients, slopes = history.direction()
    directions = history.combine(coefficients) / history.root
    for problem in range(3):
        diagonal = diagonals[int(num_pairs > 3), problem]
        inverse = _dense_inverse(pairs[problem][-_HISTORY:], diagonal)
        expected = -inverse @ gradient[problem]
        torch.testing.assert_close(directions[problem], expected, rtol=1e-8, atol=1e-8)
        assert float(slopes[problem]) == pytest.approx(float(gradient[problem] @ expected))
