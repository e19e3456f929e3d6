"""The datasets that a recipe can name: one settings class and one row each.

To add a dataset, write its settings class and its row here; the schema and the command line read
:data:`DATASETS`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from pydantic import Field, model_validator

from protosphere.data.datasets import (
    ImageDataset,
    load_arrays,
    load_digits,
    load_synthetic,
    load_torchvision,
)
from protosphere.data.flowers import load_flowers102
from protosphere.data.folders import load_folder
from protosphere.recipes.section import Section

SomeData = TypeVar("SomeData", bound="DataSettings")


class LabelNoise(Section):
    """Wrong labels among the training images."""

    name: Literal["symmetric", "asymmetric"] = Field(
        description="Wrong labels drawn from all other classes, or always of the same similar "
        "class.",
    )
    fraction: float = Field(gt=0, lt=1, description="Fraction of wrong labels in each class.")


class DataSettings(Section):
    """Keys that every dataset has."""

    source: str
    validation_fraction: float = Field(
        0.0, ge=0, lt=1, description="Fraction of the training images to evaluate on instead."
    )
    sampler: Literal["uniform", "balanced", "sqrt"] = Field(
        "uniform",
        description="How training images are drawn: each once per epoch, all classes equally "
        "often, or classes in proportion to the square root of their size.",
    )
    class_groups: str | None = Field(
        None,
        min_length=1,
        description="Train on groups of classes: cifar100-superclasses, or a JSON file that maps "
        "each group to a list of its classes.",
    )
    long_tail: float | None = Field(
        None,
        gt=0,
        le=1,
        description="Reduce the training classes exponentially, the last one to this fraction of "
        "the largest.",
    )
    label_noise: LabelNoise | None = Field(
        None, description="Replace some training labels by wrong ones."
    )

    @property
    def has_validation(self) -> bool:
        """Whether a run is evaluated on validation images, not on test images."""
        return bool(self.validation_fraction)


class DigitsData(DataSettings):
    """Handwritten digits, 8 by 8 pixels, bundled with scikit-learn."""

    source: Literal["digits"] = "digits"


class TorchvisionData(DataSettings):
    """A dataset of torchvision."""

    source: Literal["mnist", "fashion-mnist", "kmnist", "cifar10", "cifar100"]
    root: str = Field("data", min_length=1, description="Folder of downloaded datasets.")


class ImageFilesData(DataSettings):
    """Keys of datasets whose images are files."""

    workers: int = Field(8, ge=0, description="Number of processes that read images.")
    in_memory: Literal["auto"] | bool = Field(
        "auto",
        description="Decode all images once and keep them in memory; auto does so if they fit.",
    )


class FlowersData(ImageFilesData):
    """Oxford Flowers-102: its training and validation images are the training split."""

    source: Literal["flowers102"] = "flowers102"
    root: str = Field("data", min_length=1, description="Folder of downloaded datasets.")


class ArraysData(DataSettings):
    """An .npz file with x_train, y_train, x_test and y_test."""

    source: Literal["arrays"] = "arrays"
    path: str = Field(min_length=1, description="The .npz file.")


class FolderData(ImageFilesData):
    """A folder of images: train/CLASS/* and val/CLASS/* (or test/CLASS/*), or only CLASS/*."""

    source: Literal["folder"] = "folder"
    path: str = Field(
        min_length=1, description="Folder that contains train and val, or one folder per class."
    )
    validation_folder: str | None = Field(
        None,
        min_length=1,
        description="Folder beside train with validation images, such as val; the test images are "
        "then in test. null: val holds test images.",
    )
    classes: str | None = Field(
        None, min_length=1, description="Text file with the class folders to use, one per line."
    )

    @model_validator(mode="after")
    def _check_validation(self) -> "FolderData":
        if self.validation_folder is not None and self.validation_fraction:
            raise ValueError("validation_fraction must be 0 with a validation_folder")
        for name, images in (("train", "training"), ("test", "test")):
            if self.validation_folder == name:
                raise ValueError(
                    f"validation_folder must not be {name}, the folder of {images} images"
                )
        return self

    @property
    def has_validation(self) -> bool:
        """Whether a run is evaluated on validation images, not on test images."""
        return self.validation_folder is not None or super().has_validation


class SyntheticData(DataSettings):
    """Noise around one random image per class, for tests and benchmarks."""

    source: Literal["synthetic"] = "synthetic"
    num_classes: int = Field(10, ge=2)
    num_samples: int = Field(1000, ge=2, description="Number of images in each split.")
    image_size: int = Field(32, ge=1, description="Side of the images in pixels.")


@dataclass(frozen=True)
class LoadOptions:
    """How a dataset is loaded, beside what the recipe says of it.

    Attributes:
        seed: Seed of the recipe.
        download: Whether a missing dataset is downloaded.
        split: The split that is evaluated.
    """

    seed: int
    download: bool = False
    split: Literal["test", "validation"] = "test"


@dataclass(frozen=True)
class DatasetEntry(Generic[SomeData]):
    """What the project needs to know of a dataset.

    Attributes:
        settings: The keys that a recipe can set under ``data``.
        load: Loads the dataset.
    """

    settings: type[SomeData]
    load: Callable[[SomeData, LoadOptions], ImageDataset]


def _load_torchvision(data: TorchvisionData, options: LoadOptions) -> ImageDataset:
    return load_torchvision(data.source, root=data.root, download=options.download)


def _load_folder(data: FolderData, options: LoadOptions) -> ImageDataset:
    is_test = options.split == "test"
    folder = data.validation_folder if not is_test or data.validation_folder is None else "test"
    splits = load_folder(data.path, classes=data.classes, test_folder=folder, require_test=is_test)
    return ImageDataset(Path(data.path).name, *splits)


def _load_synthetic(data: SyntheticData, options: LoadOptions) -> ImageDataset:
    return load_synthetic(
        num_classes=data.num_classes,
        num_samples=data.num_samples,
        image_size=data.image_size,
        seed=options.seed,
    )


DATASETS: dict[str, DatasetEntry[Any]] = {
    "digits": DatasetEntry(DigitsData, lambda *_: load_digits()),
    "mnist": DatasetEntry(TorchvisionData, _load_torchvision),
    "fashion-mnist": DatasetEntry(TorchvisionData, _load_torchvision),
    "kmnist": DatasetEntry(TorchvisionData, _load_torchvision),
    "cifar10": DatasetEntry(TorchvisionData, _load_torchvision),
    "cifar100": DatasetEntry(TorchvisionData, _load_torchvision),
    "flowers102": DatasetEntry(
        FlowersData, lambda data, options: load_flowers102(data.root, download=options.download)
    ),
    "arrays": DatasetEntry(ArraysData, lambda data, _: load_arrays(data.path)),
    "folder": DatasetEntry(FolderData, _load_folder),
    "synthetic": DatasetEntry(SyntheticData, _load_synthetic),
}
