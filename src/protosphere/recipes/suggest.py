"""Suggest a recipe for a folder of images: a commented YAML text, every choice with its reason."""

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import yaml

from protosphere.data.folder_memory import stored_side
from protosphere.data.folder_summary import FolderSummary
from protosphere.data.sampling import num_batches
from protosphere.data.splits import DataError
from protosphere.encoders.timm_models import import_timm
from protosphere.recipes.find_weights import Weights
from protosphere.recipes.registry import LOSSES
from protosphere.recipes.schema import RecipeError, recipe_from_yaml

Precision = Literal["fp32", "bf16", "fp16"]

# Sides of the training images: multiples of 32 in this range. Pretrained models, which have seen
# large images, do poorly on very small ones.
_MIN_SIZE = {"scratch": 32, "pretrained": 128}
_MAX_SIZE = 384
# From this ratio of the largest to the smallest class on, classes are sampled.
_IMBALANCED = 3.0
# Balanced sampling may repeat an image this often in an epoch; beyond it, sqrt repeats less.
_MAX_REPEATS = 10.0
# Epochs are chosen so that training sees about this many images, within these bounds.
_IMAGES_SEEN = {"scratch": 600_000, "pretrained": 100_000}
_EPOCHS = {"scratch": (30, 100), "pretrained": (10, 60)}
# Fractions to hold out; the larger ones are for classes of two or three images.
_FRACTIONS = (0.1, 0.2, 0.25, 0.3, 0.4, 0.5)
_MANY_IMAGES = 10_000
_WARMUP_LR = {"scratch": 1e-3, "pretrained": 1e-6}
_EVALUATIONS = 20
_LINE_LENGTH = 100
_PATIENCE = 8


class _Line(NamedTuple):
    """A key of a section, its value, and why it has this value."""

    key: str
    value: Any
    reason: str = ""


def suggest_recipe(
    summary: FolderSummary,
    *,
    loss: str = "normface",
    backbone: str | None = None,
    weights: Weights | None = None,
    precision: Precision = "fp32",
) -> str:
    """Write a recipe for a folder of images.

    Args:
        summary: What the folder holds.
        loss: Name of the loss.
        backbone: Name of a timm model; None is that of the weights, or else a ResNet-18.
        weights: Pretrained weights to start from; None starts from random weights.
        precision: Precision of training.

    Returns:
        YAML with comments, a valid recipe.

    Raises:
        RecipeError: There is no such loss or backbone.
        DataError: A class has too few images to hold some of them out.
    """
    if loss not in LOSSES:
        raise RecipeError(f"loss must be one of {', '.join(LOSSES)}; got {loss!r}")
    name = recipe_name(summary.path, loss)
    backbone = weights.backbone if weights is not None else backbone or "resnet18"
    start = "scratch" if weights is None else "pretrained"
    size, size_reason = _choose_size(summary, backbone, start)
    fraction = 0.0 if summary.test_folder else _choose_fraction(summary)
    num_train = round((1 - fraction) * summary.num_train)
    epochs = _choose_epochs(num_train, start)
    batch_size = _choose_batch_size(num_train)
    # The incomplete last batch of an epoch is left out.
    num_seen = num_batches(num_train, batch_size) * min(batch_size, num_train)
    every = math.ceil(epochs / _EVALUATIONS)
    sections: dict[str, Sequence[_Line]] = {
        "data": _data(summary, fraction, size),
        "augmentation": _augmentation(loss, size, size_reason),
        "model": _model(loss, backbone, weights, size),
        "loss": _loss(loss, summary.num_classes),
        "optimizer": _optimizer(start, batch_size),
        "schedule": [
            _Line("name", "cosine"),
            _Line("epochs", epochs, f"{epochs * num_seen:,} images are seen in all."),
            _Line("warmup_epochs", min(5, epochs // 10), "Epochs of linear warmup."),
            _Line("warmup_lr", _WARMUP_LR[start]),
        ],
        "training": [
            _Line("batch_size", batch_size, "At most a quarter of the training images."),
            _Line("precision", precision, "bf16 and fp16 are for GPUs, fp32 for CPUs."),
        ],
        "evaluation": [
            _Line("every", every, f"Epochs between evaluations: at most {_EVALUATIONS} of them."),
        ],
        "checkpoint": _checkpoint(summary, fraction, every),
    }
    text = "\n".join(
        [
            *_header(summary),
            "",
            f"name: {_scalar(name)}",
            *(line for key, lines in sections.items() for line in _section(key, lines)),
            "",
            "seed: 42",
            "",
        ]
    )
    recipe_from_yaml(text)  # What is written must be valid.
    return text


def recipe_name(folder: Path, loss: str) -> str:
    """Return the name of a recipe for a folder: that of the folder, and the loss.

    >>> recipe_name(Path("photos/My Flowers"), "nonl")
    'my-flowers-nonl'
    """
    words = re.sub(r"[^0-9a-z]+", "-", folder.resolve().name.lower()).strip("-")
    return f"{words or 'images'}-{loss}"


def _choose_size(summary: FolderSummary, backbone: str, start: str) -> tuple[int, str]:
    """Return the side of the training images, and why."""
    own, is_fixed = _own_size(backbone)
    if is_fixed:
        return own, f"The only size that {backbone} takes."
    smallest, largest = _MIN_SIZE[start], min(own, _MAX_SIZE)
    size = max(smallest, min(summary.shorter_side, largest) // 32 * 32)
    median = f"their shorter side is {summary.shorter_side} (median)"
    if size > summary.shorter_side:
        return size, f"Images are enlarged for this model: {median}."
    if size == largest // 32 * 32:
        return size, f"The size that {backbone} was made for."
    return size, f"Not larger than the images: {median}."


def _own_size(backbone: str) -> tuple[int, bool]:
    """Return the image size of timm's configuration of a model, and whether it is the only one."""
    timm = import_timm()
    if not timm.is_model(backbone):
        raise RecipeError(f"backbone must be a timm model, got {backbone!r}")
    config = timm.get_pretrained_cfg(backbone)
    return (224, False) if config is None else (config.input_size[-1], config.fixed_input_size)


def _choose_fraction(summary: FolderSummary) -> float:
    """Return the smallest usual fraction that leaves each class images on both sides."""
    smallest = min(summary.counts)
    if smallest < 2:
        few = summary.class_names[summary.counts.index(smallest)]
        raise DataError(
            f"each class must have at least 2 images, because {summary.path} has no folder val or "
            f"test and some images of each class are held out; {few} has {smallest}"
        )
    first = 0.1 if summary.num_train >= _MANY_IMAGES else 0.2
    return next(
        fraction
        for fraction in _FRACTIONS
        if fraction >= first
        and all(0 < round(fraction * number) < number for number in summary.counts)
    )


def _choose_epochs(num_train: int, start: str) -> int:
    low, high = _EPOCHS[start]
    return max(low, min(high, round(_IMAGES_SEEN[start] / num_train)))


def _choose_batch_size(num_train: int) -> int:
    """Return a power of two: at most a quarter of the images, and 64 to 256 if there are many."""
    usual = 64 if num_train < _MANY_IMAGES else 128 if num_train < 10 * _MANY_IMAGES else 256
    return 1 << (max(2, min(usual, num_train // 4)).bit_length() - 1)


def _header(summary: FolderSummary) -> list[str]:
    width, height = summary.median_size
    return [
        f"# A recipe for {_comment(summary.path)}, written by `protosphere init`: "
        f"{summary.num_train:,} training images of",
        f"# {summary.num_classes:,} classes, {width} x {height} pixels (median). "
        "docs/own-images.md explains the choices; `protosphere",
        "# recipes FILE` checks the file and prints all other keys with their defaults.",
    ]


def _data(summary: FolderSummary, fraction: float, size: int) -> list[_Line]:
    lines = [_Line("source", "folder"), _Line("path", str(summary.path))]
    if fraction:
        reason = f"There is no folder val or test: {fraction:.0%} of each class are held out."
        lines.append(_Line("validation_fraction", fraction, reason))
    elif summary.test_folder == "val":
        reason = "Images to choose the checkpoint by; null makes them test images."
        lines.append(_Line("validation_folder", "val", reason))
    lines.append(_sampler(summary))
    needed = 3 * (summary.num_train + summary.num_test) * stored_side(size) ** 2
    reason = f"Decode all images once if they fit; they take {_bytes(needed)}."
    lines.append(_Line("in_memory", "auto", reason))
    return lines


def _sampler(summary: FolderSummary) -> _Line:
    ratio = summary.imbalance
    if ratio < _IMBALANCED:
        return _Line("sampler", "uniform", "Classes have similar numbers of images.")
    reason = f"The largest class has {ratio:.3g} times the images of the smallest"
    repeats = summary.num_train / (summary.num_classes * min(summary.counts))
    if repeats <= _MAX_REPEATS:
        return _Line("sampler", "balanced", f"{reason}; all are drawn equally often.")
    return _Line("sampler", "sqrt", f"{reason}; balanced would repeat it {repeats:.0f} times.")


def _bytes(number: int) -> str:
    unit, factor = ("GiB", 30) if number >= 1 << 30 else ("MiB", 20)
    return f"{max(0.1, number / (1 << factor)):.3g} {unit}"


def _augmentation(loss: str, size: int, size_reason: str) -> list[_Line]:
    lines = [
        _Line("size", size, size_reason),
        _Line(
            "crop",
            {"name": "random_resized", "scale": [0.35, 1.0]},
            "Fraction of the image's area that a training crop has.",
        ),
        _Line("hflip", 0.5, "0 if the mirror image of a class is not of the class, as with text."),
    ]
    if LOSSES[loss].training == "contrastive":
        lines.append(_Line("num_views", 2, "Contrastive losses compare two crops of each image."))
    return lines


def _model(loss: str, backbone: str, weights: Weights | None, size: int) -> list[_Line]:
    settings: dict[str, Any] = {"name": backbone}
    if weights is None:
        if size <= 64 and re.fullmatch(r"resnet\d+", backbone):
            settings["stem"] = "cifar"
        reason = "Random weights; `pretrained: true` or a file of weights needs far fewer images."
    else:
        settings["pretrained"] = weights.pretrained
        reason = "timm's weights, which are in its cache." if weights.pretrained is True else ""
    lines = [_Line("backbone", settings, reason)]
    if LOSSES[loss].training == "contrastive":
        lines.append(_Line("projection", {"name": "mlp"}, "As is usual with contrastive losses."))
    return lines


def _loss(loss: str, num_classes: int) -> list[_Line]:
    lines = [_Line("name", loss, f"{LOSSES[loss].title}; others: {_others(loss)}.")]
    if "temperature" in LOSSES[loss].settings.model_fields:
        temperature = 0.2 if num_classes <= 20 else 0.1
        lines.append(_Line("temperature", temperature, "The more classes, the lower."))
    return lines


def _others(loss: str) -> str:
    return ", ".join(name for name in LOSSES if name != loss)


def _optimizer(start: str, batch_size: int) -> list[_Line]:
    if start == "scratch":
        reason = "In proportion to the batch size."
        return [
            _Line("name", "sgd"),
            _Line("lr", round(0.05 * batch_size / 64, 5), reason),
            _Line("weight_decay", 5e-4),
        ]
    return [
        _Line("name", "adamw"),
        _Line("lr", 0.01, "Of the head, which starts from random weights."),
        _Line("lr_scale", {"backbone": 0.1}, "The pretrained backbone is changed more slowly."),
        _Line("weight_decay", 0.05),
        _Line("exclude_from_decay", "norms_and_biases"),
    ]


def _checkpoint(summary: FolderSummary, fraction: float, every: int) -> list[_Line]:
    lines = [_Line("every", every, "Epochs between checkpoints.")]
    if not fraction and summary.test_folder != "val":
        return lines
    metric = "accuracy" if summary.imbalance < _IMBALANCED else "balanced_accuracy"
    why = "" if metric == "accuracy" else "; it counts all classes alike"
    return [
        *lines,
        _Line("monitor", metric, f"The checkpoint with the best {metric} is kept{why}."),
        _Line("patience", _PATIENCE, "Stop after this many evaluations without a new best."),
    ]


def _section(key: str, lines: Sequence[_Line]) -> list[str]:
    section = ["", f"{key}:"]
    for line in lines:
        text, comment = f"  {line.key}: {_scalar(line.value)}", f"# {_comment(line.reason)}"
        if not line.reason:
            section.append(text)
        elif len(text) + len(comment) + 2 <= _LINE_LENGTH:
            section.append(f"{text}  {comment}")
        else:
            section += [f"  {comment}", text]
    return section


def _scalar(value: Any) -> str:
    """Return a value as YAML on one line."""
    text: str = yaml.safe_dump(
        value, default_flow_style=True, sort_keys=False, allow_unicode=True, width=1 << 20
    )
    return text.removesuffix("...\n").rstrip("\n")


def _comment(text: object) -> str:
    """Return a text that ends with its line in YAML."""
    return "".join(character if character.isprintable() else "?" for character in str(text))
