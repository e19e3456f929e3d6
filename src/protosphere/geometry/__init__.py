"""The geometry below everything: the sphere, and frames of prototypes on it."""

from protosphere.geometry.frames import nearest_etf, separated_code, simplex_etf
from protosphere.geometry.sphere import cosines, normalise, squared_chords

__all__ = ["cosines", "nearest_etf", "normalise", "separated_code", "simplex_etf", "squared_chords"]
