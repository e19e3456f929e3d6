"""The geometry below everything: the sphere, frames of prototypes on it, moments of classes, spectra."""

from protosphere.geometry.class_statistics import ClassStatistics, empty_statistics
from protosphere.geometry.frames import nearest_etf, separated_code, simplex_etf
from protosphere.geometry.spectrum import effective_rank
from protosphere.geometry.sphere import cosines, normalise, squared_chords

__all__ = [
    "ClassStatistics",
    "cosines",
    "effective_rank",
    "empty_statistics",
    "nearest_etf",
    "normalise",
    "separated_code",
    "simplex_etf",
    "squared_chords",
]
