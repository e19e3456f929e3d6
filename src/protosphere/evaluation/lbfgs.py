"""L-BFGS for one or many independent convex problems at once, on the device.

By hand rather than ``torch.optim.LBFGS``: that reads several scalars of every pair of its history
back to the host in each step, knows no diagonal preconditioner, and minimizes one function at a
time. Here the two-loop recursion stays on the device, every line search advances all problems in
one evaluation, and the host reads one flag per evaluation and one per iteration.
"""

from collections import deque
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

_HISTORY = 12
_MAX_TRIALS = 30
# As many iterations without a decrease beyond rounding have reached the precision of the objective.
_PATIENCE = 20
_SUFFICIENT_DECREASE, _CURVATURE = 1e-4, 0.9
# The diagonal of the Hessian costs one evaluation; it changes less and less.
_DIAGONAL_ITERATIONS = frozenset({0, 4, 12, 30, 80, 200, 500})


@runtime_checkable
class Objective(Protocol):
    """Convex functions of one row of parameters each, evaluated together."""

    @property
    def rounding(self) -> float:
        """Relative size of differences of values that may be rounding."""
        ...

    def value_and_gradient(
        self, point: Float[Tensor, "problems parameters"]
    ) -> tuple[Float[Tensor, "problems"], Float[Tensor, "problems parameters"]]:
        """Return the value and the gradient of every problem, in float64."""
        ...

    def hessian_diagonal(
        self, point: Float[Tensor, "problems parameters"]
    ) -> Float[Tensor, "problems parameters"]:
        """Return the positive diagonal of the Hessian of every problem, in float64."""
        ...


class Minimum(NamedTuple):
    """Where the iterations of :func:`minimize` ended.

    Attributes:
        point: Parameters of each problem.
        values: Value of each problem.
        iterations: Number of iterations of all problems together.
        converged: Whether each problem has met the tolerance.
    """

    point: Float[Tensor, "problems parameters"]
    values: Float[Tensor, "problems"]
    iterations: int
    converged: Bool[Tensor, "problems"]


class _Pair(NamedTuple):
    step: Tensor
    change: Tensor  # of the gradient
    inverse_product: Tensor  # 1 / <step, change>; 0 for problems that have no such pair


class _State(NamedTuple):
    point: Tensor
    values: Tensor
    gradient: Tensor


def minimize(
    objective: Objective,
    start: Float[Tensor, "problems parameters"],
    *,
    tol: float,
    max_iter: int,
) -> Minimum:
    """Minimize convex functions by L-BFGS, preconditioned with the diagonal of the Hessian.

    A problem has converged when its gradient g, in the norm of the estimated inverse Hessian H, is
    small relative to its value f: √(gᵀHg / 2f) ≤ tol. As gᵀHg / 2 estimates the distance of f from
    its minimum, the relative error of f is about tol².

    Args:
        objective: The functions, all of them positive.
        start: First parameters of each problem, in float64.
        tol: Tolerance of the gradient norm.
        max_iter: Largest number of iterations.

    Returns:
        The last parameters, values and whether they have converged. Problems that can be improved
        no further in the precision of the objective end early without having converged.

    Reference:
        Nocedal and Wright, Numerical Optimization, chapter 7; the line search is the bisection for
        the weak Wolfe conditions of Lewis and Overton, Nonsmooth optimization via quasi-Newton
        methods, 2013, with the approximate conditions of Hager and Zhang, SIOPT 2005.
    """
    state = _State(start, *objective.value_and_gradient(start))
    history: deque[_Pair] = deque(maxlen=_HISTORY)
    converged = torch.zeros_like(state.values, dtype=torch.bool)
    stalled = torch.zeros_like(converged)
    lowest, idle = state.values, torch.zeros_like(state.values)
    scale = torch.ones_like(state.values)
    diagonal = torch.ones_like(start)
    iteration = 0
    while True:
        if iteration in _DIAGONAL_ITERATIONS:
            diagonal = objective.hessian_diagonal(state.point)
            scale = _scale(history, diagonal, scale)
        direction = -_inverse_hessian_product(state.gradient, history, scale, diagonal)
        slopes = (state.gradient * direction).sum(1)
        converged = -slopes <= 2 * tol**2 * state.values
        active = ~(converged | stalled)
        if iteration == max_iter or not active.any():
            return Minimum(state.point, state.values, iteration, converged)
        following, accepted = _line_search(objective, state, direction, slopes, active)
        failed = active & ~accepted
        if failed.any():
            # Without a history the direction was the preconditioned gradient: nothing is left.
            stalled = stalled if history else stalled | failed
            history.clear()
            scale = torch.ones_like(scale)
        else:
            history.append(_pair(state, following))
            scale = _scale(history, diagonal, scale)
        state = following
        improved = state.values < lowest * (1 - objective.rounding)
        lowest = torch.where(improved, state.values, lowest)
        idle = torch.where(improved, 0, idle + 1)
        stalled = stalled | (idle >= _PATIENCE)
        iteration += 1


def _pair(before: _State, after: _State) -> _Pair:
    step, change = after.point - before.point, after.gradient - before.gradient
    product = (step * change).sum(1)
    return _Pair(step, change, torch.where(product > 0, 1 / product, 0))


def _scale(history: deque[_Pair], diagonal: Tensor, scale: Tensor) -> Tensor:
    """Return the factor of the inverse diagonal that fits the newest pair of each problem."""
    if not history:
        return scale
    _, change, inverse_product = history[-1]
    fitted = 1 / (inverse_product * (change.square() / diagonal).sum(1))
    return torch.where(inverse_product > 0, fitted, scale)


def _inverse_hessian_product(
    gradient: Tensor, history: deque[_Pair], scale: Tensor, diagonal: Tensor
) -> Tensor:
    """Multiply by the inverse-Hessian estimate, by the two-loop recursion."""
    product = gradient.clone()
    factors = []
    for step, change, inverse_product in reversed(history):
        factor = (inverse_product * (step * product).sum(1))[:, None]
        product.addcmul_(factor, change, value=-1)
        factors.append(factor)
    product *= scale[:, None] / diagonal
    for (step, change, inverse_product), factor in zip(history, reversed(factors), strict=True):
        product.addcmul_(factor - (inverse_product * (change * product).sum(1))[:, None], step)
    return product


def _line_search(
    objective: Objective, state: _State, direction: Tensor, slopes: Tensor, active: Tensor
) -> tuple[_State, Tensor]:
    """Return the next state and which problems have moved; the others stay where they are."""
    length = torch.ones_like(slopes)
    low, high = torch.zeros_like(slopes), torch.full_like(slopes, torch.inf)
    point, values, gradient = state
    pending = active
    for _ in range(_MAX_TRIALS):
        trial = torch.addcmul(state.point, length[:, None], direction)
        trial_values, trial_gradient = objective.value_and_gradient(trial)
        trial_slopes = (trial_gradient * direction).sum(1)
        change = trial_values - state.values
        # Where the change of the value may be rounding, the slope decides (Hager and Zhang).
        decreased = (change <= _SUFFICIENT_DECREASE * length * slopes) | (
            (change <= objective.rounding * state.values)
            & (trial_slopes <= (2 * _SUFFICIENT_DECREASE - 1) * slopes)
        )
        steep = trial_slopes < _CURVATURE * slopes
        accepted = pending & decreased & ~steep
        point = torch.where(accepted[:, None], trial, point)
        values = torch.where(accepted, trial_values, values)
        gradient = torch.where(accepted[:, None], trial_gradient, gradient)
        pending = pending & ~accepted
        if not pending.any():
            break
        low = torch.where(decreased, length, low)
        high = torch.where(decreased, high, length)
        length = torch.where(high.isinf(), 2 * length, (low + high) / 2)
    return _State(point, values, gradient), active & ~pending
