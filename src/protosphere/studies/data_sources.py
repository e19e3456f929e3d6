"""Images from any source, and the features of a run for them."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from protosphere.data.folders import ImageFiles
from protosphere.data.image_files import find_images
from protosphere.data.progress import Progress, no_progress
from protosphere.data.splits import DataError, ImageSet, Split, to_uint8
from protosphere.data.transfer_sets import load_transfer_set, parse_target
from protosphere.evaluation.feature_cache import encode_images
from protosphere.evaluation.inference import measuring_device
from protosphere.recipes.datasets import ImageFilesData
from protosphere.recipes.loading import Run


@dataclass(frozen=True)
class ImageSource:
    """Images whose labels do not matter.

    Attributes:
        name: Name of a dataset, or of a file or folder.
        images: The images.
        class_names: Names of their classes, as far as they are known.
    """

    name: str
    images: ImageSet | ImageFiles
    class_names: tuple[str, ...] = ()


def load_source(source: str, *, root: Path | str = "data", download: bool = False) -> ImageSource:
    """Load the images of a dataset, of an ``.npz`` file, or of a folder.

    Args:
        source: Name of a dataset, whose test images are taken; an ``.npz`` file with ``x_test`` or
            with one array of images; a folder, whose images are found at any depth; or
            ``NAME=PATH``, which gives a file or a folder a name. Of a folder with train and test
            (or val), only the test images are taken.
        root: Folder of downloaded datasets.
        download: Whether a missing dataset is downloaded.

    Raises:
        DataError: The source does not exist or has no images.
    """
    name, path = parse_target(source, what="a source of images")
    if path is None:
        dataset = load_transfer_set(name, root=root, download=download)
        return ImageSource(name, dataset.test.images, dataset.class_names)
    return _load_folder(name, path) if path.is_dir() else _load_arrays(name, path)


def image_digest(images: Split) -> str:
    """Return a digest of images without their labels and class names.

    Args:
        images: Images in memory or on disk.

    Raises:
        DataError: A file cannot be read.
    """
    assert isinstance(images, ImageSet | ImageFiles)
    labels = torch.zeros_like(images.labels)
    return replace(images, labels=labels, class_names=()).fingerprint()


def encode_split(
    run: Run, images: Split, *, progress: Progress = no_progress
) -> Float[Tensor, "samples dim"]:
    """Compute the features of images as the head of a run receives them.

    Args:
        run: The run, whose own evaluation transform is applied.
        images: The images.
        progress: Called with the fraction that is done.

    Returns:
        Features on the device of the run, or on the CPU if that has no float64.

    Raises:
        DataError: An image cannot be read.
    """
    assert isinstance(images, ImageSet | ImageFiles)
    data = run.recipe.data
    features = encode_images(
        run.objective.encoder,
        images,
        run.transform,
        device=run.device,
        workers=data.workers if isinstance(data, ImageFilesData) else 8,
        progress=progress,
    )
    return features.to(measuring_device(features.device))


def _load_folder(name: str, path: Path) -> ImageSource:
    root = path
    if (path / "train").is_dir():
        tests = [name for name in ("test", "val") if (path / name).is_dir()]
        root = path / tests[0] if tests else path
    files = tuple(str(file) for file in find_images([root]) if file.suffix.lower() != ".npz")
    if not files:
        raise DataError(f"{path} must have images in it; it has none")
    names = tuple(
        sorted(
            folder.name for folder in root.iterdir() if folder.is_dir() and folder.name[0] != "."
        )
    )
    labels = torch.zeros(len(files), dtype=torch.long)
    images = ImageFiles(files, labels, names or ("unknown",), str(path))
    return ImageSource(name, images, names)


def _load_arrays(name: str, path: Path) -> ImageSource:
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
    except Exception as error:  # Whatever a damaged archive makes NumPy raise.
        raise DataError(
            f"{path} must be an .npz file of plain arrays; it is damaged or in another format"
        ) from error
    candidates = [key for key, array in arrays.items() if array.ndim in (3, 4)]
    if "x_test" in arrays:
        candidates = ["x_test"]
    if len(candidates) != 1:
        found = ", ".join(candidates) if candidates else "none"
        raise DataError(f"{path} must have x_test or one array of images; it has {found}")
    pixels = torch.from_numpy(to_uint8(arrays[candidates[0]], source=path.name))
    given = arrays.get("class_names", np.empty(0, dtype=str))
    names = tuple(map(str, given.tolist())) if given.dtype.kind == "U" else ()
    labels = torch.zeros(len(pixels), dtype=torch.long)
    return ImageSource(name, ImageSet(pixels, labels, names or ("unknown",)), names)
