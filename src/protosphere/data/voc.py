"""Labels of Pascal VOC: which classes are in an image, from its annotation file."""

from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import torch
from jaxtyping import Integer
from torch import Tensor

from protosphere.data.splits import DataError

VOC_CLASSES = (
    "aeroplane",
    "bicycle",
    "bird",
    "boat",
    "bottle",
    "bus",
    "car",
    "cat",
    "chair",
    "cow",
    "diningtable",
    "dog",
    "horse",
    "motorbike",
    "person",
    "pottedplant",
    "sheep",
    "sofa",
    "train",
    "tvmonitor",
)


def read_annotations(paths: Sequence[Path | str]) -> Integer[Tensor, "images classes"]:
    """Read which classes are in each image.

    Args:
        paths: Annotation files (``Annotations/NUMBER.xml``), one for each image.

    Returns:
        1 where an image has an object of the class, 0 where it has none, and -1 where all its
        objects of the class are marked as difficult, which the challenge does not count.

    Raises:
        DataError: A file cannot be read, or has an object of another class.
    """
    targets = torch.zeros(len(paths), len(VOC_CLASSES), dtype=torch.long)
    for row, path in zip(targets, paths, strict=True):
        for name, is_difficult in _objects(Path(path)):
            index = VOC_CLASSES.index(name)
            if not is_difficult:
                row[index] = 1
            elif row[index] == 0:
                row[index] = -1
    return targets


def _objects(path: Path) -> list[tuple[str, bool]]:
    try:
        root = ElementTree.parse(path).getroot()
    except (OSError, ElementTree.ParseError) as error:
        raise DataError(
            f"{path} must be an annotation file of Pascal VOC; it cannot be read"
        ) from error
    objects = [
        ((node.findtext("name") or "").strip(), (node.findtext("difficult") or "0").strip() == "1")
        for node in root.findall("object")
    ]
    for name, _ in objects:
        if name not in VOC_CLASSES:
            raise DataError(
                f"{path} must have objects of the 20 classes of Pascal VOC, got {name!r}"
            )
    return objects
