"""Geometry of classes: the unit sphere, simplex frames, per-class statistics and spectra."""

from protosphere.geometry.class_statistics import ClassStatistics, empty_statistics
from protosphere.geometry.frames import nearest_etf, simplex_etf, spherical_code
from protosphere.geometry.spectrum import effective_rank
from protosphere.geometry.sphere import cosines, normalize, squared_chords

__all__ = [
    "ClassStatistics",
    "cosines",
    "effective_rank",
    "empty_statistics",
    "nearest_etf",
    "normalize",
    "simplex_etf",
    "spherical_code",
    "squared_chords",
]
