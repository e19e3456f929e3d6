"""L-BFGS for one or many independent convex problems at once, on the device.

By hand rather than ``torch.optim.LBFGS``: that reads several scalars of every pair of its history
back to the host in each step, knows no diagonal preconditioner, and minimizes one function at a
time. Here the vectors stay on the device and only their inner products come to the host, in one
transfer per evaluation; all decisions and the small linear algebra are made there. A step is two
products with the history on the device, however long that is.
"""

from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
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


class _State(NamedTuple):
    point: Tensor
    gradient: Tensor
    values: np.ndarray


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
    its minimum, the relative error of f is about tol², up to some hundred times more where the
    Hessian is far from diagonal.

    Args:
        objective: The functions, all of them positive.
        start: First parameters of each problem, in float64.
        tol: Tolerance of the gradient norm.
        max_iter: Largest number of iterations.

    Returns:
        The last parameters, values and whether they have converged. Problems that can be improved
        no further in the precision of the objective end early without having converged.

    Reference:
        Nocedal and Wright, Numerical Optimization, chapter 7, theorem 7.4 for the product with the
        inverse Hessian; the line search is the bisection for the weak Wolfe conditions of Lewis
        and Overton, Nonsmooth optimization via quasi-Newton methods, 2013, with the approximate
        conditions of Hager and Zhang, SIOPT 2005.
    """
    values, gradient = objective.value_and_gradient(start)
    state = _State(start, gradient, _host(values))
    history = _History(start)
    stalled = np.zeros(len(start), dtype=bool)
    lowest, idle = state.values, np.zeros(len(start))
    iteration = 0
    while True:
        if iteration in _DIAGONAL_ITERATIONS:
            history.precondition(objective.hessian_diagonal(state.point), state.gradient)
        coefficients, slopes = history.direction()
        converged = -slopes <= 2 * tol**2 * state.values
        active = ~(converged | stalled)
        if iteration == max_iter or not active.any():
            found = (torch.from_numpy(one).to(start.device) for one in (state.values, converged))
            values, done = found
            return Minimum(state.point, values, iteration, done)
        state, accepted = _line_search(objective, state, history, coefficients, slopes, active)
        failed = active & ~accepted
        if failed.any():
            # Without a history the direction was the preconditioned gradient: nothing is left.
            stalled = stalled if history.slots else stalled | failed
            history.clear(state.gradient)
        improved = state.values < lowest * (1 - objective.rounding)
        lowest = np.where(improved, state.values, lowest)
        idle = np.where(improved, 0, idle + 1)
        stalled = stalled | (idle >= _PATIENCE)
        iteration += 1


class _History:
    """The newest steps s and changes of the gradient y, the gradient, and their inner products.

    All are in coordinates in which the diagonal of the Hessian is 1. The vectors are rows of
    ``basis`` on the device: steps, changes, gradient; their inner products ``gram`` on the host, 0
    where a problem has no such pair.
    """

    def __init__(self, start: Tensor) -> None:
        num_problems, num_parameters = start.shape
        size = 2 * _HISTORY + 1
        self.basis = start.new_zeros((num_problems, size, num_parameters))
        self.gram = np.zeros((num_problems, size, size))
        self.usable = np.zeros((num_problems, size))
        self.usable[:, -1] = 1
        self.root = torch.ones_like(start)
        self.scale = np.ones(num_problems)
        self.slots: list[int] = []  # from the oldest pair to the newest

    def precondition(self, diagonal: Tensor, gradient: Tensor) -> None:
        """Take another diagonal of the Hessian."""
        root = diagonal.sqrt()
        ratio = (root / self.root)[:, None]
        self.basis[:, :_HISTORY] *= ratio
        self.basis[:, _HISTORY:-1] /= ratio
        self.root = root
        self._set_gradient(gradient)
        if self.slots:
            self._fit_scale(self.slots[-1])

    def clear(self, gradient: Tensor) -> None:
        """Forget all pairs."""
        self.slots = []
        self.scale = np.ones_like(self.scale)
        self.usable[:, :-1] = 0
        self.basis[:, :-1] = 0  # a failed step may be infinite
        self._set_gradient(gradient)

    def direction(self) -> tuple[np.ndarray, np.ndarray]:
        """Return −Hg, H the estimated inverse Hessian, as coefficients of the basis, and −gᵀHg."""
        coefficients = np.zeros_like(self.gram[:, 0])
        coefficients[:, -1] = -self.scale
        if self.slots:
            steps = np.array(self.slots)
            changes, scale = steps + _HISTORY, self.scale[:, None, None]
            with_changes = self.gram[:, :, changes]
            products = with_changes[:, steps]
            diagonal = np.einsum("pii->pi", products)
            triangle = np.triu(products) + np.eye(len(steps)) * (diagonal == 0)[:, None]
            inner = np.linalg.solve(triangle, self.gram[:, steps, -1:])
            mixed = with_changes[:, changes] @ inner - self.gram[:, changes, -1:]
            mixed = diagonal[:, :, None] * inner + scale * mixed
            coefficients[:, steps] = -np.linalg.solve(triangle.swapaxes(1, 2), mixed)[:, :, 0]
            coefficients[:, changes] = (scale * inner)[:, :, 0]
        return coefficients, (coefficients * self.gram[:, -1]).sum(1)

    def combine(self, coefficients: np.ndarray) -> Tensor:
        """Return a combination of the basis, in preconditioned coordinates."""
        on_device = torch.from_numpy(coefficients).to(self.basis.device)
        return (on_device[:, None] @ self.basis)[:, 0]

    def compare(
        self, step: Tensor, before: Tensor, after: Tensor, values: Tensor
    ) -> tuple[np.ndarray, np.ndarray]:
        """Put a step in the place of the oldest pair; return values and products with the basis.

        The host waits here, once per evaluation.
        """
        slot = self._next_slot()
        self.basis[:, slot] = step
        torch.div(after - before, self.root, out=self.basis[:, _HISTORY + slot])
        torch.div(after, self.root, out=self.basis[:, -1])
        newest = torch.stack([self.basis[:, row] for row in (slot, _HISTORY + slot, -1)], 1)
        products = (newest @ self.basis.mT).flatten(1)
        found = _host(torch.cat([values[:, None], products], 1))
        return found[:, 0], found[:, 1:].reshape(len(found), 3, -1)

    def accept(self, products: np.ndarray) -> None:
        """Keep the pair that was put in the place of the oldest."""
        slot = self._next_slot()
        rows = [slot, _HISTORY + slot, 2 * _HISTORY]
        # A problem that did not move, or not to less slope, has no pair.
        self.usable[:, rows[:2]] = products[:, 0, rows[1]][:, None] > 0
        self.gram[:, rows] = products
        self.gram[:, :, rows] = products.swapaxes(1, 2)
        self._mask()
        self.slots = [*self.slots[-_HISTORY + 1 :], slot]
        self._fit_scale(slot)

    def _next_slot(self) -> int:
        return len(self.slots) if len(self.slots) < _HISTORY else self.slots[0]

    def _set_gradient(self, gradient: Tensor) -> None:
        torch.div(gradient, self.root, out=self.basis[:, -1])
        self.gram = _host(self.basis @ self.basis.mT)
        self._mask()

    def _mask(self) -> None:
        self.gram *= self.usable[:, None] * self.usable[:, :, None]

    def _fit_scale(self, slot: int) -> None:
        """Let the estimate without a history fit the newest pair of each problem."""
        product = self.gram[:, slot, _HISTORY + slot]
        square = self.gram[:, _HISTORY + slot, _HISTORY + slot]
        np.divide(product, square, out=self.scale, where=product > 0)


def _host(values: Tensor) -> np.ndarray:
    """Copy to the host, which waits for it."""
    array: np.ndarray = values.cpu().numpy()
    return array


def _line_search(
    objective: Objective,
    state: _State,
    history: _History,
    coefficients: np.ndarray,
    slopes: np.ndarray,
    active: np.ndarray,
) -> tuple[_State, np.ndarray]:
    """Return the next state and which problems have moved; the others stay where they are."""
    device = state.point.device
    direction = history.combine(coefficients)
    length = active.astype(slopes.dtype)
    low, high = np.zeros_like(slopes), np.full_like(slopes, np.inf)
    pending = active
    following = state
    for _ in range(_MAX_TRIALS):
        step = direction
        if (length != 1).any():
            step = direction * torch.from_numpy(length).to(device)[:, None]
        point = torch.addcdiv(state.point, step, history.root)
        values, gradient = objective.value_and_gradient(point)
        trial_values, products = history.compare(step, state.gradient, gradient, values)
        following = _State(point, gradient, trial_values)
        change = trial_values - state.values
        gain = products[:, 0, -1]  # of a step with the slope at its end
        # Where the change of the value may be rounding, the slope decides (Hager and Zhang).
        decreased = (change <= _SUFFICIENT_DECREASE * length * slopes) | (
            (change <= objective.rounding * state.values)
            & (gain <= (2 * _SUFFICIENT_DECREASE - 1) * length * slopes)
        )
        steep = gain < _CURVATURE * length * slopes
        pending = pending & ~(decreased & ~steep)
        if not pending.any():
            history.accept(products)
            return following, active
        low = np.where(decreased, length, low)
        high = np.where(decreased, high, length)
        middle = np.where(np.isinf(high), 2 * length, (low + high) / 2)
        length = np.where(pending, middle, length)
    moved = active & ~pending
    kept = torch.from_numpy(moved).to(device)[:, None]
    return (
        _State(
            torch.where(kept, following.point, state.point),
            torch.where(kept, following.gradient, state.gradient),
            np.where(moved, following.values, state.values),
        ),
        moved,
    )
