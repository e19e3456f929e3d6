"""The recipes that come with the package: families with one recipe per loss, and variants."""

import difflib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from protosphere.recipes import families
from protosphere.recipes.registry import LOSSES
from protosphere.recipes.schema import Recipe, RecipeError


@dataclass(frozen=True)
class Family:
    """Recipes that differ in their loss alone.

    Attributes:
        make: Creates the recipe of a loss, given the loss's name.
        losses: Names of the losses that it has recipes for.
        description: What the recipes are and which accuracy to expect.
    """

    make: Callable[[str], Recipe]
    losses: tuple[str, ...]
    description: str


def _losses(training: str) -> tuple[str, ...]:
    return tuple(name for name, entry in LOSSES.items() if entry.training == training)


def _with_batchnorm(family: str) -> Recipe:
    recipe = get_recipe(f"{family}-etf-dr")
    return recipe.model_copy(
        update={
            "name": f"{family}-etf-dr-batchnorm",
            "model": recipe.model.model_copy(update={"neck": "batchnorm"}),
        }
    )


_CLASSIFIER, _CONTRASTIVE = _losses("classifier"), _losses("contrastive")


def _families() -> Iterator[tuple[str, Family]]:
    """Yield the families with the prefix of their recipes' names."""
    yield (
        "digits",
        Family(
            families.digits,
            _CLASSIFIER,
            "Handwritten digits (8x8 pixels) on a CPU in seconds. Test accuracy 95 to 99%.",
        ),
    )
    for num_classes, paper in (
        (10, "ce 94.6, etf-dr 94.4, normface 94.8, ntce 94.7, nonl 94.9"),
        (100, "ce 72.1, etf-dr 72.1, normface 72.4, ntce 72.9, nonl 73.6"),
    ):
        yield (
            f"cifar{num_classes}",
            Family(
                lambda loss, k=num_classes: families.cifar(k, loss),  # type: ignore[misc]
                _CLASSIFIER,
                f"CIFAR-{num_classes} with the paper's settings: ResNet-18, 1000 epochs, batch "
                f"size 512, SGD with lr 0.2 and cosine decay. Test accuracy in the paper: {paper} "
                "%. docs/benchmarks.md has shorter runs.",
            ),
        )
    yield (
        "cifar100-strong",
        Family(
            families.cifar100_strong,
            _CLASSIFIER,
            "CIFAR-100 with settings that suit cross-entropy: ResNet-18 with zero-initialized "
            "residual blocks, 200 epochs, batch size 128, SGD with lr 0.1 and weight decay 5e-4, "
            "padded crops. docs/benchmarks.md has measured accuracies.",
        ),
    )
    yield (
        "cifar100-best",
        Family(
            families.cifar100_best,
            families.TUNED_LOSSES,
            "CIFAR-100 with the best of eight trials of each loss on validation images: the model "
            "and crops of cifar100-strong, 100 epochs, batch size 512, SGD; learning rate, weight "
            "decay, temperature or label smoothing, and mixup differ between losses. "
            "docs/benchmarks.md has measured accuracies.",
        ),
    )
    for num_classes, paper in (
        (10, "ce 70.2, etf-dr 71.3, normface 74.3, ntce 77.3, nonl 76.3"),
        (100, "ce 37.4, etf-dr 36.2, normface 35.9, ntce 39.0, nonl 40.0"),
    ):
        yield (
            f"cifar{num_classes}-lt",
            Family(
                lambda loss, k=num_classes: families.cifar_long_tail(k, loss),  # type: ignore[misc]
                _CLASSIFIER,
                f"Long-tailed CIFAR-{num_classes}, the smallest class 0.01 of the largest "
                "(data.long_tail=0.1 for another ratio), with the settings of cifar100-strong. "
                f"Test accuracy in the paper, with its own settings: {paper}%.",
            ),
        )
    yield (
        "folder",
        Family(
            families.folder,
            _CLASSIFIER,
            "Your own images: a folder with train/CLASS/* and val/CLASS/*, given by data.path. "
            "ResNet-18 from scratch, 224 pixels, 100 epochs, batch size 64.",
        ),
    )
    yield (
        "folder-finetune",
        Family(
            families.folder_finetune,
            _CLASSIFIER,
            "Your own images with a pretrained backbone: ResNet-50 with timm's weights (or a file, "
            "model.backbone.pretrained=PATH), 224 pixels, 30 epochs, AdamW. `protosphere init "
            "FOLDER` writes a recipe for your folder.",
        ),
    )
    yield (
        "flowers102",
        Family(
            families.flowers102,
            _CLASSIFIER,
            "Flowers-102 (2,040 training images) with a pretrained backbone: EfficientNet-Lite0, "
            "112 pixels, 60 epochs, AdamW. docs/benchmarks.md has measured accuracies.",
        ),
    )
    for backbone, paper in (
        ("resnet50", "ce 84.4, etf-dr 84.5, normface 84.4, ntce 84.7, nonl 84.9"),
        ("resnet101", "ce 85.3, normface 85.4, ntce 85.4, nonl 85.5"),
        ("resnet152", "ce 85.5, normface 85.6, ntce 85.4, nonl 85.8"),
    ):
        yield (
            "imagenet100" if backbone == "resnet50" else f"imagenet100-{backbone}",
            Family(
                lambda loss, name=backbone: families.imagenet100(name, loss),  # type: ignore[misc]
                _CLASSIFIER,
                f"ImageNet-100 with the paper's settings: {backbone}, 224 pixels, 500 epochs, "
                "batch size 1024. Images from data/imagenet (train, val), classes listed in "
                f"data/imagenet100.txt. Test accuracy in the paper: {paper}%; not yet measured "
                "with this package.",
            ),
        )
    for batch_size, paper in (
        (2048, "ce 75.4, etf-dr 75.4 (best batch size), normface 75.6, ntce 76.0, nonl 75.0"),
        (4096, "ce 75.4, normface 76.4, ntce 76.7, nonl 76.2"),
        (8192, "ce 75.1, normface 76.3, ntce 76.7, nonl 76.5"),
    ):
        yield (
            "imagenet1k" if batch_size == 2048 else f"imagenet1k-{batch_size}",
            Family(
                lambda loss, size=batch_size: families.imagenet1k(size, loss),  # type: ignore[misc]
                _CLASSIFIER,
                "ImageNet-1K with the paper's settings: ResNet-50, 224 pixels, 500 epochs, batch "
                f"size {batch_size}. Images from data/imagenet (train, val). Test accuracy in the "
                f"paper: {paper}%; not yet measured with this package.",
            ),
        )


def _contrastive_families() -> Iterator[tuple[str, Family]]:
    yield (
        "digits",
        Family(
            families.digits_contrastive,
            _CONTRASTIVE,
            "Handwritten digits, two views of each image and a projection head; classified by "
            "class means. Test accuracy about 99%.",
        ),
    )
    for num_classes, paper in ((10, "95.0"), (100, "73.9")):
        yield (
            f"cifar{num_classes}",
            Family(
                lambda loss, k=num_classes: families.cifar_contrastive(k, loss),  # type: ignore[misc]
                _CONTRASTIVE,
                f"CIFAR-{num_classes}, contrastive, with the paper's settings: two views with "
                "color jitter, ResNet-18 with a 512-512-128 projection head, 1000 epochs, batch "
                "size 512, SGD with lr 0.05; classified by class means. Test accuracy of scl in "
                f"the paper: {paper}%. docs/benchmarks.md has shorter runs.",
            ),
        )
    for dataset, title, paper in (
        ("imagenet100", "ImageNet-100", "86.8"),
        ("imagenet1k", "ImageNet-1K", "75.1"),
    ):
        yield (
            dataset,
            Family(
                lambda loss, name=dataset: families.imagenet_contrastive(name, loss),  # type: ignore[misc]
                _CONTRASTIVE,
                f"{title}, contrastive, with the paper's settings: two views with color jitter "
                "and blur, ResNet-50 with a 2048-2048-128 projection head, 500 epochs; classified "
                f"by class means. Test accuracy of scl in the paper: {paper}%; not yet measured "
                "with this package.",
            ),
        )


def _variants() -> Iterator[tuple[str, Callable[[], Recipe], str]]:
    """Yield recipes that are not members of a family: name, constructor, description."""
    yield (
        "cifar100-strong-ce-smooth",
        families.cifar100_strong_smooth,
        "cifar100-strong-ce with label smoothing 0.1; not yet measured with this package.",
    )
    for family in ("cifar10", "cifar100", "imagenet100", "imagenet1k"):
        yield (
            f"{family}-etf-dr-batchnorm",
            lambda name=family: _with_batchnorm(name),  # type: ignore[misc]
            f"{family}-etf-dr with a batch norm after the last ReLU of the encoder, so that "
            "features can be negative and reach the simplex ETF; not yet measured with this "
            "package.",
        )


def _entries() -> Iterator[tuple[list[tuple[str, Callable[[], Recipe]]], str]]:
    for group in (_families(), _contrastive_families()):
        for prefix, family in group:
            recipes = [
                (f"{prefix}-{loss}", lambda loss=loss, make=family.make: make(loss))
                for loss in family.losses
            ]
            yield recipes, family.description  # type: ignore[misc]
    for name, make, description in _variants():
        yield [(name, make)], description


def groups() -> list[tuple[list[str], str]]:
    """Return the recipes in groups: the names that belong together and their description."""
    return [([name for name, _ in recipes], text) for recipes, text in _entries()]


def names() -> list[str]:
    """Return the names of all recipes."""
    return [name for group, _ in groups() for name in group]


def get_recipe(name: str) -> Recipe:
    """Return a recipe by name.

    Raises:
        RecipeError: There is no recipe of that name.
    """
    for recipes, _ in _entries():
        for known, make in recipes:
            if known == name:
                return make()
    near = difflib.get_close_matches(name, names(), 1)
    hint = f"did you mean {near[0]}?" if near else "`protosphere recipes` lists them"
    raise RecipeError(f"there is no recipe {name!r}; {hint}")


def description(name: str) -> str:
    """Return what a recipe is and which accuracy to expect."""
    return next(text for group, text in groups() if name in group)
