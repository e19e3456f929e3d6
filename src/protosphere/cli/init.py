"""``protosphere init``: look at a folder of images and write a recipe for it."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from protosphere.cli.output_files import Overwrite
from protosphere.cli.program import program_name

if TYPE_CHECKING:
    from protosphere.data.folder_summary import FolderSummary
    from protosphere.recipes.find_weights import Weights
    from protosphere.recipes.suggest import Precision

# Files that cannot be read are named up to this number.
_MAX_NAMED = 5


def init(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER",
            help="Folder of images: train/CLASS/* and val/CLASS/*, or CLASS/* without splits.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="Recipe to write.")] = Path("recipe.yaml"),
    loss: Annotated[str, typer.Option(help="Loss of the recipe.")] = "normface",
    backbone: Annotated[
        str | None,
        typer.Option(help="A timm model; without this option that of the weights, or resnet18."),
    ] = None,
    pretrained: Annotated[
        str,
        typer.Option(
            metavar="<PATH|auto|none>",
            help="File of weights under timm's names; auto looks into timm's cache, without "
            "the network; none starts from random weights.",
        ),
    ] = "auto",
    overwrite: Overwrite = False,
) -> None:
    """Look at a folder of images and write a recipe to train on it.

    Prints classes, counts, sizes and files that cannot be read, and explains
    each choice in a comment of the recipe.
    """
    from protosphere.cli.errors import report_errors
    from protosphere.cli.output_files import check_new_file, write_text
    from protosphere.cli.progress import progress_bar
    from protosphere.cli.text import count, echo

    with report_errors():
        from protosphere.data.folder_summary import summarize_folder
        from protosphere.recipes.suggest import recipe_name, suggest_recipe

        check_new_file("--out", out, suffixes=(".yaml", ".yml"), overwrite=overwrite)
        weights = _find_weights(pretrained, backbone)
        with progress_bar("reading headers") as progress:
            summary = summarize_folder(folder, progress=progress)
        text = suggest_recipe(
            summary, loss=loss, backbone=backbone, weights=weights, precision=_choose_precision()
        )
        _print_summary(summary)
        if weights is not None:
            echo(f"Pretrained weights: {weights.backbone}")
        elif pretrained == "auto":
            echo("Pretrained weights: none in timm's cache; training starts from random weights")
        write_text(out, text)
        if summary.problems:
            files = count(len(summary.problems), "file")
            echo(f"Warning: {files} cannot be read; training stops at the first", err=True)
            for problem in summary.problems[:_MAX_NAMED]:
                echo(f"  {problem}", err=True)
        run = f"runs/{recipe_name(summary.path, loss)}"
        command = shlex.join(["train", str(out), "--out", run])
        echo(f"Wrote {out}. Next: {program_name()} {command}")


def _find_weights(pretrained: str, backbone: str | None) -> "Weights | None":
    from protosphere.recipes.find_weights import find_cached_weights, weights_from_file

    if pretrained == "none":
        return None
    if pretrained == "auto":
        return find_cached_weights(backbone)
    return weights_from_file(Path(pretrained), backbone)


def _choose_precision() -> "Precision":
    import torch

    if not torch.cuda.is_available():
        return "fp32"
    return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"


def _print_summary(summary: "FolderSummary") -> None:
    from protosphere.cli.text import count, echo

    images, classes = (
        count(summary.num_train, "training image"),
        count(summary.num_classes, "class"),
    )
    echo(f"{summary.path}: {images} of {classes}")
    echo(
        f"Images per class: {min(summary.counts):,} to {max(summary.counts):,}, "
        f"median {summary.median_count:,g}; imbalance {summary.imbalance:.3g}"
    )
    width, height = summary.median_size
    shortest, longest = summary.shorter_side_range
    echo(f"Size: {width} x {height} pixels (median); shorter side {shortest} to {longest}")
    if summary.num_grayscale:
        echo(f"Grayscale: {count(summary.num_grayscale, 'image')}; all images are read as RGB")
    if summary.test_folder is None:
        echo("Test images: no folder val or test; images of each class are held out")
    else:
        split = "Validation" if summary.test_folder == "val" else "Test"
        echo(f"{split} images: {summary.num_test:,} in {summary.test_folder}")
