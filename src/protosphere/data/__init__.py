"""Data: datasets, image folders, augmentation, loaders, and files of features."""

from protosphere.data.augmentation import (
    Augmentation,
    AugmentationPolicy,
    ColorJitter,
    EvaluationTransform,
    PaddedCrop,
    RandomResizedCrop,
)
from protosphere.data.auto_augment import RandAugment, TrivialAugmentWide
from protosphere.data.class_groups import (
    CIFAR100_SUPERCLASSES,
    group_classes,
    read_class_groups,
)
from protosphere.data.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS, corrupt
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
from protosphere.data.folder_memory import MemoryImages, fits_in_memory, load_into_memory
from protosphere.data.folder_summary import FolderSummary, summarize_folder
from protosphere.data.folders import ImageFiles, load_folder
from protosphere.data.frost_textures import (
    FrostTextures,
    procedural_frost_textures,
    read_frost_textures,
)
from protosphere.data.imbalance import (
    balanced_class_weights,
    class_counts,
    effective_class_weights,
)
from protosphere.data.label_noise import add_label_noise, class_flips, noisy_labels
from protosphere.data.loaders import FeatureLoader, FolderLoader, Loader, MemoryLoader
from protosphere.data.long_tail import long_tail_counts, long_tail_indices, take_long_tail
from protosphere.data.mixing import CutMix, MixedImages, Mixup, MixupOrCutMix, mix_images

__all__ = [
    "CIFAR100_SUPERCLASSES",
    "CORRUPTIONS",
    "EXTRA_CORRUPTIONS",
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
    "FolderSummary",
    "FrostTextures",
    "ImageDataset",
    "ImageFiles",
    "ImageSet",
    "Loader",
    "MemoryImages",
    "MemoryLoader",
    "MixedImages",
    "Mixup",
    "MixupOrCutMix",
    "PaddedCrop",
    "RandAugment",
    "RandomResizedCrop",
    "Split",
    "TrivialAugmentWide",
    "add_label_noise",
    "balanced_class_weights",
    "class_counts",
    "class_flips",
    "corrupt",
    "effective_class_weights",
    "fits_in_memory",
    "group_classes",
    "load_arrays",
    "load_digits",
    "load_folder",
    "load_into_memory",
    "load_synthetic",
    "load_torchvision",
    "long_tail_counts",
    "long_tail_indices",
    "mix_images",
    "noisy_labels",
    "procedural_frost_textures",
    "read_class_groups",
    "read_features",
    "read_frost_textures",
    "split_validation",
    "summarize_folder",
    "take_long_tail",
    "write_features",
]
