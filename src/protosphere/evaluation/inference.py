"""Inference: features and predictions for all images of a loader, through one loop."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

import torch
from jaxtyping import Float, Integer
from torch import Tensor, nn

from protosphere.data.loaders import Loader
from protosphere.data.progress import no_progress
from protosphere.data.sampling import evaluation_slices
from protosphere.evaluation.calibration import score_samples
from protosphere.training import Objective


class Outputs(NamedTuple):
    """The outputs of an objective, one row per image in the order of the loader.

    Attributes:
        features: Features as the head receives them, in float32.
        predictions: Predicted class index of each image.
        labels: True class index of each image.
        confidences: Softmax probability of the predicted class.
        losses: Cross-entropy of the softmax of the logits.
    """

    features: Float[Tensor, "samples dim"]
    predictions: Integer[Tensor, "samples"]
    labels: Integer[Tensor, "samples"]
    confidences: Float[Tensor, "samples"]
    losses: Float[Tensor, "samples"]


class LabeledFeatures(NamedTuple):
    """The features of an encoder, one row per image in the order of the loader.

    Attributes:
        features: Features in float32.
        labels: True class index of each image.
    """

    features: Float[Tensor, "samples dim"]
    labels: Integer[Tensor, "samples"]


_BatchT = TypeVar("_BatchT", Outputs, LabeledFeatures)


@contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """Put a module into evaluation mode; at exit, every submodule returns to its own mode.

    Args:
        module: The module.
    """
    modes = {child: child.training for child in module.modules()}
    module.eval()
    try:
        yield
    finally:
        for child, mode in modes.items():
            child.training = mode


def measuring_device(device: torch.device) -> torch.device:
    """Return where the outputs of a device are measured: on the CPU for MPS, without float64.

    Args:
        device: Device that the model is on.
    """
    return torch.device("cpu") if device.type == "mps" else device


def iterate_features(
    encoder: nn.Module, loader: Loader, *, batch_size: int = 512, shard: tuple[int, int] = (0, 1)
) -> Iterator[LabeledFeatures]:
    """Yield the features of all images, batch by batch, without augmentation.

    The encoder runs in evaluation mode and float32: rounding it to bfloat16 would be measured as
    variance within classes. Convolutions on a GPU have the precision that torch is set to, which is
    TF32 unless ``torch.backends.cudnn.allow_tf32`` is off.

    Args:
        encoder: Module from images to features, on the device of the loader.
        loader: The images.
        batch_size: Number of images in a batch.
        shard: Which process, and of how many: they take whole batches in turn.
    """
    with evaluation_mode(encoder):
        for images, labels in loader.evaluation_batches(batch_size, shard=shard):
            with torch.no_grad():
                features = encoder(images).float()
            yield LabeledFeatures(features, labels)


def iterate_outputs(
    objective: Objective, loader: Loader, *, batch_size: int = 512, shard: tuple[int, int] = (0, 1)
) -> Iterator[Outputs]:
    """Yield features and predictions of all images, batch by batch, without augmentation.

    The logits themselves are not kept: all images × all classes may not fit into memory.

    Args:
        objective: Objective on the device of the loader; its modes are restored at the end.
        loader: The images.
        batch_size: Number of images in a batch.
        shard: Which process, and of how many: they take whole batches in turn.
    """
    with evaluation_mode(objective):
        batches = iterate_features(objective.encoder, loader, batch_size=batch_size, shard=shard)
        for features, labels in batches:
            with torch.no_grad():
                scores = score_samples(objective.head(features), labels)
            outputs = (features, scores.predictions, labels, scores.confidences, scores.losses)
            yield Outputs(*(tensor.to(measuring_device(tensor.device)) for tensor in outputs))


def collect_outputs(
    objective: Objective,
    loader: Loader,
    *,
    batch_size: int = 512,
    progress: Callable[[float], None] = no_progress,
    shard: tuple[int, int] = (0, 1),
) -> Outputs:
    """Return features and predictions of all images.

    Args:
        objective: Objective on the device of the loader; its modes are restored at the end.
        loader: The images.
        batch_size: Number of images in a batch.
        progress: Called with the fraction of images that is done.
        shard: Which process, and of how many: they take whole batches in turn. A process may have
            none.
    """
    parts = evaluation_slices(len(loader), batch_size, shard=shard)
    batches = iterate_outputs(objective, loader, batch_size=batch_size, shard=shard)
    num_samples = sum(part.stop - part.start for part in parts)
    outputs = list(with_progress(batches, num_samples, progress))
    if not outputs:
        device = measuring_device(loader.device)
        none = torch.zeros(0, objective.head.prototypes.shape[1], device=device)
        labels, values = none[:, 0].long(), none[:, 0]
        return Outputs(none, labels, labels, values, values)
    return Outputs(*(torch.cat(column) for column in zip(*outputs, strict=True)))


def encode(
    encoder: nn.Module,
    loader: Loader,
    *,
    batch_size: int = 512,
    progress: Callable[[float], None] = no_progress,
) -> LabeledFeatures:
    """Return the features of all images.

    Args:
        encoder: Module from images to features, on the device of the loader.
        loader: The images.
        batch_size: Number of images in a batch.
        progress: Called with the fraction of images that is done.
    """
    batches = iterate_features(encoder, loader, batch_size=batch_size)
    columns = zip(*with_progress(batches, len(loader), progress), strict=True)
    return LabeledFeatures(*(torch.cat(column) for column in columns))


def with_progress(
    batches: Iterator[_BatchT], num_samples: int, progress: Callable[[float], None]
) -> Iterator[_BatchT]:
    """Yield batches and report the fraction of samples after each.

    Args:
        batches: The batches.
        num_samples: Number of samples of all batches.
        progress: Called with the fraction of samples that is done.
    """
    num_done = 0
    for batch in batches:
        yield batch
        num_done += len(batch.labels)
        progress(num_done / num_samples)
