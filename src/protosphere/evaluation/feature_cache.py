"""Features of a frozen encoder, computed once and kept in files that name what they are of."""

import hashlib
import json
import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from protosphere.data.evaluation_transform import EvaluationTransform
from protosphere.data.folders import ImageFiles
from protosphere.data.image_batches import image_batches
from protosphere.data.progress import Progress, no_progress
from protosphere.data.splits import ImageSet
from protosphere.evaluation.inference import evaluation_mode
from protosphere.storage.atomic import create_folder, write_atomically

# Changes whenever the same weights and images would give other features than before.
_FORMAT = "1"
_LOG = logging.getLogger("protosphere")


@dataclass(frozen=True)
class FeatureCache:
    """Files of features, FOLDER/KEY.safetensors.

    Attributes:
        folder: Where the files are; None keeps none, so that all features are computed.
        recompute: Whether files that exist are replaced instead of read.
    """

    folder: Path | None
    recompute: bool = False

    def get(
        self, key: str, compute: Callable[[], Float[Tensor, "samples dim"]], *, num_samples: int
    ) -> Float[Tensor, "samples dim"]:
        """Return the features of a key, which are computed and written if there is no file.

        A damaged file is replaced.

        Args:
            key: What :func:`feature_key` returns.
            compute: Computes the features.
            num_samples: Number of samples that a file must have.

        Returns:
            The features, on the CPU if they were read from a file.

        Raises:
            StorageError: The file could not be written.
        """
        if self.folder is None:
            return compute()
        path = self.folder / f"{key}.safetensors"
        features = None if self.recompute else _read(path, num_samples)
        if features is None:
            features = compute()
            _write(path, features)
        return features


def feature_key(
    encoder_digest: str, transform: EvaluationTransform, fingerprint: str, *, split: str
) -> str:
    """Return the name of the features of a split: other weights, images or pixels have another.

    Args:
        encoder_digest: What :func:`digest_encoder` returns.
        transform: Transform of the images.
        fingerprint: Fingerprint of the images.
        split: Name of the split.
    """
    content = [_FORMAT, encoder_digest, asdict(transform), fingerprint, split]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]


def digest_encoder(encoder: nn.Module) -> str:
    """Return a digest of the layers, parameters and buffers of an encoder.

    Args:
        encoder: The encoder.
    """
    digest = hashlib.sha256(repr(encoder).encode())
    for name, tensor in sorted(encoder.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        content = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
        digest.update(content.numpy().data)
    return digest.hexdigest()


@torch.no_grad()
def encode_images(
    encoder: nn.Module,
    images: ImageSet | ImageFiles,
    transform: EvaluationTransform,
    *,
    device: torch.device | str,
    batch_size: int = 256,
    workers: int = 8,
    progress: Progress = no_progress,
) -> Float[Tensor, "samples dim"]:
    """Compute the features of images batch by batch, in evaluation mode and float32.

    Args:
        encoder: Module from images to features, on the device.
        images: Images in memory or on disk, of any size and number of channels.
        transform: The transform of the encoder's evaluation images.
        device: Where to compute.
        batch_size: Number of images in a batch.
        workers: Largest number of processes that decode files.
        progress: Called with the fraction of images that is done.

    Raises:
        DataError: A file cannot be read.
    """
    features = torch.empty(0, device=device)
    num_done = 0
    with evaluation_mode(encoder):
        for batch in image_batches(
            images, transform, device=device, batch_size=batch_size, workers=workers
        ):
            encoded = encoder(batch).float()
            if not num_done:
                # Filled in place: batches put together at the end would take twice the memory.
                features = encoded.new_empty(len(images), *encoded.shape[1:])
            features[num_done : num_done + len(encoded)] = encoded
            num_done += len(encoded)
            progress(num_done / len(images))
    return features


def _read(path: Path, num_samples: int) -> Tensor | None:
    """Read features; None if there is no file, or a damaged one."""
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            features: Tensor = file.get_tensor("features")
    except (SafetensorError, OSError, ValueError):
        features = torch.empty(0)
    if features.ndim != 2 or len(features) != num_samples:
        _LOG.warning("%s is damaged; the features are computed again", path)
        return None
    return features


def _write(path: Path, features: Tensor) -> None:
    create_folder(path.parent)
    write_atomically(path, save({"features": features.cpu().contiguous()}))
