"""The losses and datasets that a recipe can name: one settings class and one row each.

To add a loss, write its settings class and its row here; the schema, the catalog, the command line
and the contract tests read :data:`LOSSES`. The same holds for :data:`DATASETS`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from protosphere.classifiers import (
    CosineClassifier,
    FixedFrameClassifier,
    LinearClassifier,
    MeanClassifier,
)
from protosphere.classifiers.protocol import Head
from protosphere.data.datasets import (
    ImageDataset,
    load_arrays,
    load_digits,
    load_synthetic,
    load_torchvision,
)
from protosphere.data.folders import load_folder
from protosphere.losses import (
    CrossEntropyLoss,
    DotRegressionLoss,
    NONLLoss,
    NormFaceLoss,
    NTCELoss,
    PrototypeLoss,
    SCLLoss,
)
from protosphere.recipes.section import Section

Form = Literal["auto", "eager", "chunked"]
SomeLoss = TypeVar("SomeLoss", bound="LossSettings")
SomeData = TypeVar("SomeData", bound="DataSettings")


class LossSettings(Section):
    """Keys that every loss has."""

    name: str
    class_weights: tuple[Annotated[float, Field(ge=0)], ...] | None = Field(
        None, description="One non-negative weight per class."
    )

    @model_validator(mode="after")
    def _check_class_weights(self) -> "LossSettings":
        if self.class_weights is not None and not any(self.class_weights):
            raise ValueError("class_weights must not all be zero")
        return self

    def weight_tensor(self) -> Tensor | None:
        """Return the class weights as a tensor."""
        return None if self.class_weights is None else torch.tensor(self.class_weights)


class _FormSettings(LossSettings):
    form: Form = Field(
        "auto", description="How pairs are summed: all at once, in tiles, or chosen by size."
    )


class _TemperatureSettings(_FormSettings):
    temperature: float = Field(0.1, gt=0, description="Temperature of the scaled cosines.")


class _CosineHeadSettings(_TemperatureSettings):
    learn_temperature: bool = Field(
        False, description="Train the temperature; the value above is where it starts."
    )
    min_temperature: float | None = Field(
        None, gt=0, description="Lower bound of a learned temperature."
    )

    @model_validator(mode="after")
    def _check_min_temperature(self) -> "_CosineHeadSettings":
        if not self.learn_temperature and self.min_temperature is not None:
            raise ValueError("min_temperature has no effect without learn_temperature: true")
        if self.min_temperature is not None and self.temperature < self.min_temperature:
            raise ValueError(
                f"temperature must be at least min_temperature ({self.min_temperature}), got "
                f"{self.temperature}"
            )
        return self


class CESettings(_FormSettings):
    """Cross-entropy of a linear classifier."""

    name: Literal["ce"] = "ce"
    label_smoothing: float = Field(0.0, ge=0, lt=1)


class NormFaceSettings(_CosineHeadSettings):
    """NormFace: softmax over scaled cosines, optionally with a margin."""

    name: Literal["normface"] = "normface"
    margin: float = Field(0.0, ge=0, le=math.pi)
    margin_kind: Literal["cosine", "angle"] | None = Field(
        None, description="What the margin is added to; null means cosine."
    )

    @model_validator(mode="after")
    def _check_margin(self) -> "NormFaceSettings":
        if self.margin_kind is not None and not self.margin:
            raise ValueError("margin_kind has no effect without a margin")
        if self.margin_kind != "angle" and self.margin > 2:
            raise ValueError(f"margin must be at most 2 for margin_kind cosine, got {self.margin}")
        return self


class NTCESettings(_CosineHeadSettings):
    """NTCE: each prototype against all samples of the batch."""

    name: Literal["ntce"] = "ntce"


class NONLSettings(_CosineHeadSettings):
    """NONL: each prototype against the samples of other classes."""

    name: Literal["nonl"] = "nonl"
    negatives: Literal["samples", "prototypes", "both"] = "samples"

    @model_validator(mode="after")
    def _require_min_temperature(self) -> "NONLSettings":
        if self.learn_temperature and self.min_temperature is None:
            raise ValueError(
                "learn_temperature needs min_temperature: NONL has no minimum as it goes to 0"
            )
        return self


class DotRegressionSettings(LossSettings):
    """Dot regression onto a fixed simplex ETF."""

    name: Literal["etf-dr"] = "etf-dr"
    frame: Literal["simplex", "code"] = Field(
        "simplex", description="code also exists in fewer than num_classes - 1 dimensions."
    )


class SCLSettings(_TemperatureSettings):
    """Supervised contrastive loss."""

    name: Literal["scl"] = "scl"


class PrototypeLossSettings(_TemperatureSettings):
    """Prototype loss: each sample against the class means of the batch."""

    name: Literal["proto"] = "proto"


@dataclass(frozen=True)
class LossEntry(Generic[SomeLoss]):
    """What the project needs to know of a loss.

    Attributes:
        settings: The keys that a recipe can set under ``loss``.
        title: Name of the loss in tables.
        head: Creates the classifier head from the settings, the feature dimension and the number
            of classes.
        loss: Creates the loss module from the settings.
        call: ``"head"`` for a module called with (features, head, labels), ``"features"`` for one
            called with (features, labels).
        training: ``"classifier"`` for losses that train a head, ``"contrastive"`` for losses that
            compare samples with each other.
    """

    settings: type[SomeLoss]
    title: str
    head: Callable[[SomeLoss, int, int], Head]
    loss: Callable[[SomeLoss], nn.Module]
    call: Literal["head", "features"] = "head"
    training: Literal["classifier", "contrastive"] = "classifier"


def _linear_head(_: LossSettings, dim: int, num_classes: int) -> Head:
    return LinearClassifier(dim, num_classes)


def _cosine_head(settings: _CosineHeadSettings, dim: int, num_classes: int) -> Head:
    return CosineClassifier(
        dim,
        num_classes,
        temperature=settings.temperature,
        learn_temperature=settings.learn_temperature,
        min_temperature=settings.min_temperature,
    )


def _fixed_head(settings: DotRegressionSettings, dim: int, num_classes: int) -> Head:
    return FixedFrameClassifier(dim, num_classes, frame=settings.frame)


def _mean_head(settings: _TemperatureSettings, dim: int, num_classes: int) -> Head:
    return MeanClassifier(dim, num_classes, temperature=settings.temperature)


LOSSES: dict[str, LossEntry[Any]] = {
    "ce": LossEntry(
        CESettings,
        "cross-entropy",
        head=_linear_head,
        loss=lambda s: CrossEntropyLoss(
            label_smoothing=s.label_smoothing, class_weights=s.weight_tensor(), form=s.form
        ),
    ),
    "normface": LossEntry(
        NormFaceSettings,
        "NormFace",
        head=_cosine_head,
        loss=lambda s: NormFaceLoss(
            margin=s.margin,
            margin_kind=s.margin_kind or "cosine",
            class_weights=s.weight_tensor(),
            form=s.form,
        ),
    ),
    "ntce": LossEntry(
        NTCESettings,
        "NTCE",
        head=_cosine_head,
        loss=lambda s: NTCELoss(class_weights=s.weight_tensor(), form=s.form),
    ),
    "nonl": LossEntry(
        NONLSettings,
        "NONL",
        head=_cosine_head,
        loss=lambda s: NONLLoss(
            negatives=s.negatives,
            class_weights=s.weight_tensor(),
            form=s.form,
        ),
    ),
    "etf-dr": LossEntry(
        DotRegressionSettings,
        "ETF + DR",
        head=_fixed_head,
        loss=lambda s: DotRegressionLoss(class_weights=s.weight_tensor()),
    ),
    "scl": LossEntry(
        SCLSettings,
        "SCL",
        head=_mean_head,
        loss=lambda s: SCLLoss(
            temperature=s.temperature, class_weights=s.weight_tensor(), form=s.form
        ),
        call="features",
        training="contrastive",
    ),
    "proto": LossEntry(
        PrototypeLossSettings,
        "prototype loss",
        head=_mean_head,
        loss=lambda s: PrototypeLoss(
            temperature=s.temperature, class_weights=s.weight_tensor(), form=s.form
        ),
        call="features",
        training="contrastive",
    ),
}


class DataSettings(Section):
    """Keys that every dataset has."""

    source: str
    validation_fraction: float = Field(
        0.0, ge=0, lt=1, description="Fraction of the training images to evaluate on instead."
    )


class DigitsData(DataSettings):
    """Handwritten digits, 8 by 8 pixels, bundled with scikit-learn."""

    source: Literal["digits"] = "digits"


class TorchvisionData(DataSettings):
    """A dataset of torchvision."""

    source: Literal["mnist", "fashion-mnist", "kmnist", "cifar10", "cifar100"]
    root: str = Field("data", description="Folder of downloaded datasets.")


class ArraysData(DataSettings):
    """An .npz file with x_train, y_train, x_test and y_test."""

    source: Literal["arrays"] = "arrays"
    path: str = Field(description="The .npz file.")


class FolderData(DataSettings):
    """A folder of images: train/CLASS/* and val/CLASS/* (or test/CLASS/*)."""

    source: Literal["folder"] = "folder"
    path: str = Field(description="Folder that contains train and val.")
    classes: str | None = Field(
        None, description="Text file with the class folders to use, one per line."
    )
    workers: int = Field(8, ge=0, description="Number of processes that read images.")


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
        require_test: Whether the dataset must have test images.
    """

    seed: int
    download: bool = False
    require_test: bool = True


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
    splits = load_folder(data.path, classes=data.classes, require_test=options.require_test)
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
    "arrays": DatasetEntry(ArraysData, lambda data, _: load_arrays(data.path)),
    "folder": DatasetEntry(FolderData, _load_folder),
    "synthetic": DatasetEntry(SyntheticData, _load_synthetic),
}
