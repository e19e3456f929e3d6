"""The scores of a prototype classifier as arrays, as torch modules and as one linear layer."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from protosphere.classifiers.checks import nonfinite_error
from protosphere.classifiers.class_scatter import ClassScatter
from protosphere.classifiers.whitening import Rule, Shrinkage, WhitenedClassMeans

# Rows that are scored at a time, fewer if the scores of so many classes would take much memory.
_CHUNK_ROWS = 1 << 16
_MIN_CHUNK_ROWS = 1 << 8
_CHUNK_SCORES = 1 << 24


@dataclass(frozen=True)
class ArrayWhitening:
    """The whitening z = A (u − m) as arrays; see :class:`protosphere.classifiers.Whitening`.

    Attributes:
        center: Center m of shape (dim,).
        matrix: Matrix A of shape (dim, dim).
        shrinkage: Shrinkage that A was computed with.
    """

    center: NDArray[np.float64]
    matrix: NDArray[np.float64]
    shrinkage: float


@dataclass(frozen=True)
class ScoreForm:
    """The numbers that scores are computed from.

    Without whitening the scores of unit features u are u @ weight.T + bias. With whitening u is
    replaced by z = A (u − m), which is normalized under the rule ``"cosine"``; under the rule
    ``"nearest"`` ‖z‖² is subtracted from the scores.

    Attributes:
        rule: Decision rule.
        weight: Weight of shape (classes, dim).
        bias: Bias of shape (classes,); −∞ for a class without samples.
        whitening: The whitening, or None.
    """

    rule: Rule
    weight: NDArray[np.float64]
    bias: NDArray[np.float64]
    whitening: ArrayWhitening | None = None

    def scores(self, features: NDArray[Any]) -> NDArray[Any]:
        """Return the scores of features of any norm, in their dtype.

        Raises:
            ValueError: A feature is not finite.
        """
        result = np.empty((len(features), len(self.bias)), features.dtype)
        for rows, scores in self._chunks(features):
            result[rows] = scores
        return result

    def best(self, features: NDArray[Any]) -> tuple[NDArray[np.intp], NDArray[Any]]:
        """Return the index of the highest score of each sample, and that score.

        They are the largest numbers of :meth:`scores`, of which only a chunk is held in memory.

        Raises:
            ValueError: A feature is not finite.
        """
        indices = np.empty(len(features), np.intp)
        highest = np.empty(len(features), features.dtype)
        for rows, scores in self._chunks(features):
            indices[rows] = scores.argmax(1)
            highest[rows] = scores[np.arange(len(scores)), indices[rows]]
        return indices, highest

    def _chunks(self, features: NDArray[Any]) -> Iterator[tuple[slice, NDArray[Any]]]:
        """Yield the scores of a chunk of rows after the other."""
        weight, bias = self.weight.astype(features.dtype), self.bias.astype(features.dtype)
        chunk_rows = min(_CHUNK_ROWS, max(_MIN_CHUNK_ROWS, _CHUNK_SCORES // len(bias)))
        for rows, norms in _finite_norms(features, chunk_rows):
            if self.whitening is None:
                scores = features[rows] @ weight.T
                scores /= norms
                scores += bias
                yield rows, scores
                continue
            unit = features[rows] / norms
            unit -= self.whitening.center.astype(unit.dtype)
            whitened = unit @ self.whitening.matrix.astype(unit.dtype).T
            scores = whitened @ weight.T
            if self.rule == "cosine":
                lengths = np.linalg.norm(whitened, axis=1, keepdims=True)
                lengths[lengths == 0] = 1
                scores /= lengths
                scores += bias
            else:
                scores += bias
                scores -= (whitened**2).sum(1, keepdims=True)
            yield rows, scores

    def linear(self, temperature: float) -> nn.Linear:
        """Return a float32 layer with the predictions for unit features, divided by a temperature.

        Its outputs are the scores over the temperature; with whitening those times ‖z‖ under the
        rule ``"cosine"`` and plus ‖z‖² over the temperature under ``"nearest"``.
        """
        weight, bias = self.weight, self.bias
        if self.whitening is not None:
            weight = weight @ self.whitening.matrix
            bias = bias - weight @ self.whitening.center
        return _layer(weight / temperature, bias / temperature)

    def module(self, temperature: float) -> nn.Module:
        """Return a float32 module from features of any norm to the scores over a temperature."""
        if self.whitening is None:
            return nn.Sequential(_Normalize(), self.linear(temperature))
        whiten = nn.Sequential(_Normalize(), _Whiten(self.whitening))
        layer = _layer(self.weight / temperature, self.bias / temperature)
        if self.rule == "cosine":
            return nn.Sequential(whiten, _Normalize(), layer)
        return nn.Sequential(whiten, _MinusSquares(layer, temperature))


def plain_form(means: NDArray[np.float64], *, rule: Rule) -> ScoreForm:
    """Return the scores by class means of unit features.

    Args:
        means: Class means; NaN for a class without samples.
        rule: ``"cosine"`` for cos(u, μ_c), ``"nearest"`` for −‖u − μ_c‖².
    """
    weight, bias = _weight_and_bias(means, rule)
    # Unit features: ‖u‖² = 1 is part of the bias.
    return ScoreForm(rule, weight, bias - 1 if rule == "nearest" else bias)


def whitened_form(scatter: ClassScatter, *, rule: Rule, shrinkage: Shrinkage) -> ScoreForm:
    """Return the scores by class means of whitened features.

    Args:
        scatter: Class means and scatter.
        rule: ``"cosine"`` for the cosine of whitened feature and mean, ``"nearest"`` for minus
            their squared distance.
        shrinkage: Shrinkage between 0 and 1, or ``"auto"``.
    """
    classifier = WhitenedClassMeans.from_scatter(scatter, shrinkage=shrinkage)
    whitening = classifier.whitening
    weight, bias = _weight_and_bias(classifier.prototypes.numpy(), rule)
    arrays = ArrayWhitening(whitening.center.numpy(), whitening.matrix.numpy(), whitening.shrinkage)
    return ScoreForm(rule, weight, bias, arrays)


def _weight_and_bias(
    means: NDArray[np.float64], rule: Rule
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return weight and bias of the scores, for ``"nearest"`` without the squared features."""
    absent = np.asarray(np.isnan(means).any(axis=1))
    bias, means = np.where(absent, -np.inf, 0.0), np.where(absent[:, None], 0.0, means)
    if rule == "cosine":
        norms = np.linalg.norm(means, axis=1, keepdims=True)
        return means / np.where(norms > 0, norms, 1), bias
    return 2 * means, bias - (means**2).sum(1)


def _finite_norms(features: NDArray[Any], chunk_rows: int) -> Iterator[tuple[slice, NDArray[Any]]]:
    """Yield chunks of rows and the norms to divide them by, after a check that they are finite."""
    for start in range(0, len(features), chunk_rows):
        rows = slice(start, start + chunk_rows)
        norms = np.linalg.norm(features[rows], axis=1, keepdims=True)
        finite = np.isfinite(norms)
        if not bool(finite.all()):
            raise nonfinite_error(start + int(finite.argmin()))
        norms[norms == 0] = 1
        yield rows, norms


def _layer(weight: NDArray[np.float64], bias: NDArray[np.float64]) -> nn.Linear:
    # Neither in torch's default dtype nor on its default device, which may be others.
    layer = nn.Linear(weight.shape[1], weight.shape[0], device="cpu", dtype=torch.float32)
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(weight))
        layer.bias.copy_(torch.from_numpy(bias))
    return layer


class _Normalize(nn.Module):
    def forward(self, features: Tensor) -> Tensor:
        return nn.functional.normalize(features, dim=-1)


class _Whiten(nn.Module):
    """Maps unit features u to A (u − m)."""

    center: Tensor
    matrix: Tensor

    def __init__(self, whitening: ArrayWhitening) -> None:
        super().__init__()
        self.register_buffer("center", torch.from_numpy(whitening.center).float())
        self.register_buffer("matrix", torch.from_numpy(whitening.matrix).float())

    def forward(self, unit: Tensor) -> Tensor:
        return (unit - self.center) @ self.matrix.mT


class _MinusSquares(nn.Module):
    """Subtracts ‖z‖² over the temperature from the outputs of a layer on z."""

    def __init__(self, layer: nn.Linear, temperature: float) -> None:
        super().__init__()
        self.layer, self.temperature = layer, temperature

    def forward(self, whitened: Tensor) -> Tensor:
        squares = whitened.square().sum(-1, keepdim=True)
        scores: Tensor = self.layer(whitened) - squares / self.temperature
        return scores
