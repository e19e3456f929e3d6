"""The catalogue: recipes by name, each a function of nothing that says what to expect of it."""

import difflib
from collections.abc import Callable
from typing import get_args

from protosphere.recipes.schema import Data, Encoder, Loss, LossKind, Optimisation, Recipe, RecipeError, Views

LOSSES: tuple[LossKind, ...] = get_args(LossKind)
_CIFAR_TEMPERATURE = 0.1


def _digits(loss: LossKind) -> Recipe:
    """Handwritten digits on a CPU in seconds: 95 (etf-dr) to 99 % (nonl, ce, normface) on the test images."""
    return Recipe(
        name=f"digits-{loss}",
        data=Data(source="digits"),
        encoder=Encoder(backbone="small", stem="imagenet"),
        loss=Loss(kind=loss, temperature=0.2),
        optimisation=Optimisation(epochs=15, batch=64, rate=0.1, weight_decay=5e-4),
        views=Views(size=8, crop="padded", padding=1, flip=0.0),
        evaluate_every=5,
    )


def _cifar(classes: int) -> Callable[[LossKind], Recipe]:
    def recipe(loss: LossKind) -> Recipe:
        return Recipe(
            name=f"cifar{classes}-{loss}",
            data=Data(source="cifar10" if classes == 10 else "cifar100"),
            loss=Loss(kind=loss, temperature=_CIFAR_TEMPERATURE),
            optimisation=Optimisation(precision="bfloat16"),
        )

    recipe.__doc__ = (
        f"CIFAR-{classes} as in the paper: ResNet-18, 1000 epochs, batch 512, SGD 0.2 by cosine. "
        f"The paper's table has {'94.4 to 94.9' if classes == 10 else '72.1 to 73.6'} %; not measured here yet."
    )
    return recipe


def _cifar100_strong(loss: LossKind) -> Recipe:
    """CIFAR-100 with what plain cross-entropy likes: 200 epochs, weight decay 5e-4, padded crops; ce is known for about
    75.6 %; not measured here yet.
    """
    return Recipe(
        name=f"cifar100-strong-{loss}",
        data=Data(source="cifar100"),
        loss=Loss(kind=loss, temperature=_CIFAR_TEMPERATURE),
        optimisation=Optimisation(epochs=200, batch=128, rate=0.1, weight_decay=5e-4, precision="bfloat16"),
        views=Views(crop="padded"),
    )


FAMILIES: dict[str, Callable[[LossKind], Recipe]] = {
    "digits": _digits,
    "cifar10": _cifar(10),
    "cifar100": _cifar(100),
    "cifar100-strong": _cifar100_strong,
}


def names() -> list[str]:
    """The names of all recipes."""
    return [f"{family}-{loss}" for family in FAMILIES for loss in LOSSES]


def recipe(name: str) -> Recipe:
    """A recipe by name.

    Raises:
        RecipeError: there is none.
    """
    for family, make in FAMILIES.items():
        for loss in LOSSES:
            if name == f"{family}-{loss}":
                return make(loss)
    near = difflib.get_close_matches(name, names(), 1)
    hint = f"did you mean {near[0]}?" if near else "`protosphere recipes` lists them"
    raise RecipeError(f"there is no recipe {name!r}; {hint}")


def expectation(name: str) -> str:
    """What to expect of a recipe, in a sentence or two."""
    family = next(family for family in sorted(FAMILIES, key=len, reverse=True) if name.startswith(f"{family}-"))
    return " ".join((FAMILIES[family].__doc__ or "").split())
