"""Groups of classes: train on superclasses, such as the 20 of CIFAR-100."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from jaxtyping import Integer
from torch import Tensor

from protosphere.data.folder_memory import MemoryImages
from protosphere.data.folders import ImageFiles
from protosphere.data.splits import DataError, ImageSet, Split

SomeSplit = TypeVar("SomeSplit", bound=Split)
ClassGroups = Mapping[str, Sequence[str]]

CIFAR100_SUPERCLASSES: dict[str, tuple[str, ...]] = {
    "aquatic_mammals": ("beaver", "dolphin", "otter", "seal", "whale"),
    "fish": ("aquarium_fish", "flatfish", "ray", "shark", "trout"),
    "flowers": ("orchid", "poppy", "rose", "sunflower", "tulip"),
    "food_containers": ("bottle", "bowl", "can", "cup", "plate"),
    "fruit_and_vegetables": ("apple", "mushroom", "orange", "pear", "sweet_pepper"),
    "household_electrical_devices": ("clock", "keyboard", "lamp", "telephone", "television"),
    "household_furniture": ("bed", "chair", "couch", "table", "wardrobe"),
    "insects": ("bee", "beetle", "butterfly", "caterpillar", "cockroach"),
    "large_carnivores": ("bear", "leopard", "lion", "tiger", "wolf"),
    "large_man-made_outdoor_things": ("bridge", "castle", "house", "road", "skyscraper"),
    "large_natural_outdoor_scenes": ("cloud", "forest", "mountain", "plain", "sea"),
    "large_omnivores_and_herbivores": ("camel", "cattle", "chimpanzee", "elephant", "kangaroo"),
    "medium_mammals": ("fox", "porcupine", "possum", "raccoon", "skunk"),
    "non-insect_invertebrates": ("crab", "lobster", "snail", "spider", "worm"),
    "people": ("baby", "boy", "girl", "man", "woman"),
    "reptiles": ("crocodile", "dinosaur", "lizard", "snake", "turtle"),
    "small_mammals": ("hamster", "mouse", "rabbit", "shrew", "squirrel"),
    "trees": ("maple_tree", "oak_tree", "palm_tree", "pine_tree", "willow_tree"),
    "vehicles_1": ("bicycle", "bus", "motorcycle", "pickup_truck", "train"),
    "vehicles_2": ("lawn_mower", "rocket", "streetcar", "tank", "tractor"),
}
"""The classes of each superclass of CIFAR-100, both in alphabetical order, as in the dataset."""

BUNDLED_GROUPS: dict[str, ClassGroups] = {"cifar100-superclasses": CIFAR100_SUPERCLASSES}
"""Groups that ``data.class_groups`` can name."""


def read_class_groups(source: Path | str) -> ClassGroups:
    """Return groups by name or from a file.

    Args:
        source: A key of ``BUNDLED_GROUPS``, or a JSON file that maps the name of each group to the
            list of the names of its classes. Labels follow the order of the groups in the file.

    Raises:
        DataError: There is no such file, or it does not hold at least two groups of names.

    >>> groups = read_class_groups("cifar100-superclasses")
    >>> len(groups), groups["people"]
    (20, ('baby', 'boy', 'girl', 'man', 'woman'))
    """
    if str(source) in BUNDLED_GROUPS:
        return BUNDLED_GROUPS[str(source)]
    rule = f"class_groups must be {', '.join(BUNDLED_GROUPS)} or a JSON file"
    path = Path(source).expanduser()
    try:
        content = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_unique)
    except FileNotFoundError:
        raise DataError(f"{rule}; {path} does not exist") from None
    except OSError as error:
        raise DataError(f"{rule}; {path} cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        reason = str(error) if isinstance(error, DataError) else "it is not JSON"
        raise DataError(f"{path} must map each group to a list of its classes; {reason}") from None
    if not isinstance(content, dict) or not all(map(_is_group, content.values())):
        raise DataError(
            f"{path} must map each group to a list of its classes; it has another structure"
        )
    if len(content) < 2:
        raise DataError(f"{path} must have at least 2 groups of classes, got {len(content)}")
    return content


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    repeated = next((name for index, name in enumerate(names) if name in names[:index]), None)
    if repeated is not None:
        raise DataError(f"it has the group {repeated!r} twice")
    return dict(pairs)


def _is_group(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(name, str) for name in value)


def group_classes(split: SomeSplit, groups: ClassGroups) -> SomeSplit:
    """Return a split whose classes are groups of its classes.

    Args:
        split: Images with the original labels.
        groups: Names of the classes of each group; every class must be in exactly one group. The
            superclasses of CIFAR-100 are also found in arrays without class names, whose classes
            are called "class 0" to "class 99".

    Returns:
        The same images, with one class per group in the order of the groups.

    Raises:
        DataError: A class is in no group or in two, or a group has a class that the split has not.

    >>> from protosphere.data import load_digits
    >>> digits = load_digits().train
    >>> parity = {"even": ["0", "2", "4", "6", "8"], "odd": ["1", "3", "5", "7", "9"]}
    >>> grouped = group_classes(digits, parity)
    >>> grouped.class_names, bool((grouped.labels == digits.labels % 2).all())
    (('even', 'odd'), True)
    """
    names = _original_names(split.class_names, groups)
    group_of: dict[str, int] = {}
    for index, (group, members) in enumerate(groups.items()):
        for name in members:
            if name in group_of:
                other = tuple(groups)[group_of[name]]
                raise DataError(
                    f"class groups must have each class once; {name} is in {other} and in {group}"
                )
            group_of[name] = index
    for wrong, verb in (
        ([name for name in group_of if name not in names], "are not classes of the data"),
        ([name for name in names if name not in group_of], "are in no group"),
    ):
        if wrong:
            few = ", ".join(wrong[:3]) + (", ..." if len(wrong) > 3 else "")
            raise DataError(
                f"class groups must have the {len(names)} classes of the data; "
                f"{len(wrong)} {verb}: {few}"
            )
    table = torch.tensor([group_of[name] for name in names])
    labels = table.to(split.labels.device)[split.labels]
    return relabel(split, labels, class_names=tuple(groups))


def _original_names(names: tuple[str, ...], groups: ClassGroups) -> tuple[str, ...]:
    """Return the class names, those of CIFAR-100 for numbered classes of the same number."""
    numbered = tuple(f"class {index}" for index in range(100))
    if groups is CIFAR100_SUPERCLASSES and names == numbered:
        return tuple(sorted(name for members in groups.values() for name in members))
    return names


def relabel(
    split: SomeSplit,
    labels: Integer[Tensor, "samples"],
    *,
    class_names: tuple[str, ...] | None = None,
) -> SomeSplit:
    """Return the same images with other labels.

    Args:
        split: The images, in memory or on disk.
        labels: Class index of each image.
        class_names: Name of each class; None keeps the names.

    Raises:
        TypeError: The split is of a kind whose labels cannot be replaced.
    """
    if isinstance(split, ImageSet | ImageFiles):
        return replace(split, labels=labels, class_names=class_names or split.class_names)
    if isinstance(split, MemoryImages):
        files = relabel(split.files, labels.cpu(), class_names=class_names)
        return replace(split, files=files, labels=labels)
    raise TypeError(f"labels of {type(split).__name__} cannot be replaced")
