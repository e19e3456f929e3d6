"""Data: datasets, image folders, augmentation, loaders, and files of features."""

from protosphere.data.augmentation import (
    Augmentation,
    AugmentationPolicy,
    ColorJitter,
    EvaluationTransform,
    PaddedCrop,
    RandomResizedCrop,
)
from protosphere.data.datasets import (
    DataError,
    ImageDataset,
    ImageSet,
    Split,
    load_arrays,
    load_digits,
    load_synthetic,
    load_torchvision,
    split_validation,
)
from protosphere.data.feature_files import (
    FeatureFile,
    FeatureFileError,
    read_features,
    write_features,
)
from protosphere.data.folders import ImageFiles, load_folder
from protosphere.data.loaders import FeatureLoader, FolderLoader, Loader, MemoryLoader
from protosphere.data.mixing import CutMix, MixedImages, Mixup, MixupOrCutMix, mix_images

__all__ = [
    "Augmentation",
    "AugmentationPolicy",
    "ColorJitter",
    "CutMix",
    "DataError",
    "EvaluationTransform",
    "FeatureFile",
    "FeatureFileError",
    "FeatureLoader",
    "FolderLoader",
    "ImageDataset",
    "ImageFiles",
    "ImageSet",
    "Loader",
    "MemoryLoader",
    "MixedImages",
    "Mixup",
    "MixupOrCutMix",
    "PaddedCrop",
    "RandomResizedCrop",
    "Split",
    "load_arrays",
    "load_digits",
    "load_folder",
    "load_synthetic",
    "load_torchvision",
    "mix_images",
    "read_features",
    "split_validation",
    "write_features",
]
