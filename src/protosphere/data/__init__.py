"""Data as they come: files of features."""

from protosphere.data.feature_files import (
    FeatureFile,
    FeatureFileError,
    read_features,
    write_features,
)

__all__ = ["FeatureFile", "FeatureFileError", "read_features", "write_features"]
