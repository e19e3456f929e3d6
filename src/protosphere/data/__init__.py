"""Data as they come: for now files of features."""

from protosphere.data.feature_files import FeatureFile, FeatureFileError, read_features

__all__ = ["FeatureFile", "FeatureFileError", "read_features"]
