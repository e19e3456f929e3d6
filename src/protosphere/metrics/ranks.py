"""Effective ranks: how many directions samples of a class, class means and prototypes fill."""

from collections.abc import Iterable

import torch
from jaxtyping import Float
from torch import Tensor

from protosphere.geometry.class_statistics import ClassStatistics
from protosphere.geometry.spectrum import effective_rank, over_classes, symmetric_eigenvalues
from protosphere.metrics.frame import Frame, UndefinedMetricError, named


def frame_effective_rank(frame: Frame) -> Float[Tensor, ""]:
    """How many directions class means or prototypes fill: erank of the covariance of the K vectors.

    At collapse K − 1, with ReLU features too; in d < K − 1 dimensions at most d. 0 if they coincide.
    """
    if frame.collapsed:
        return frame.vectors.new_zeros(())
    # The covariance d × d and the Gram matrix K × K share their positive eigenvalues.
    tall = frame.centered.shape[0] > frame.centered.shape[1]
    return effective_rank(
        symmetric_eigenvalues(frame.centered.T @ frame.centered if tall else frame.gram)
    )


def intra_effective_rank(
    statistics: ClassStatistics, spectra: Iterable[Float[Tensor, "_"]] | None = None
) -> Float[Tensor, ""]:
    """How many directions the samples of a class fill: mean_c erank(Cov of u_i − μ_c).

    1 is the least that a covariance can have which is not zero; a zero covariance counts 0. It measures the shape of
    the spread and not its size, and grows with the number of samples.

    Args:
        statistics: with the scatter of each class, unless the spectra are given.
        spectra: the eigenvalues of each class's scatter, where they are known already.

    Raises:
        UndefinedMetricError: a class has fewer than two samples.
    """
    alone = statistics.counts < 2
    if not len(alone):
        raise UndefinedMetricError("a covariance needs samples; there are none")
    if bool(alone.any()):
        raise UndefinedMetricError(
            f"a covariance needs two samples of a class; {named(alone, 'has fewer')}"
        )
    if spectra is not None:
        return _mean_rank(statistics, spectra)
    if statistics.means.device.type != "cpu":
        return _mean_rank(statistics, map(symmetric_eigenvalues, statistics.class_scatters()))
    with over_classes(symmetric_eigenvalues, statistics.class_scatters()) as values:
        return _mean_rank(statistics, values)


def _mean_rank(statistics: ClassStatistics, spectra: Iterable[Tensor]) -> Tensor:
    zero = statistics.spreads.new_zeros(())
    # A covariance that is only rounding has a rank that means nothing.
    pairs = zip(spectra, statistics.collapsed().tolist(), strict=True)
    return torch.stack(
        [zero if rounding else effective_rank(values).to(zero) for values, rounding in pairs]
    ).mean()
