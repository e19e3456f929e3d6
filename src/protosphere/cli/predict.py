"""``protosphere predict``: the classes of images, by a run."""

import csv
import json
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from torch import Tensor

    from protosphere.data.image_files import Loaded
    from protosphere.recipes.trained import TrainedModel

_FIELDS = ("image", "class", "confidence", "rejection")


def predict(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    images: Annotated[list[Path], typer.Argument(help="Image files, folders of them, .npz files of arrays.")],
    output: Annotated[str, typer.Option("--format", help="'csv', or 'json' (an object a line).")] = "csv",
    device: Annotated[str, typer.Option(help="Where to compute: 'auto', 'cpu', 'cuda'.")] = "auto",
    batch: Annotated[int, typer.Option(help="Images at a time.", min=1)] = 256,
) -> None:
    """Classify images: class, confidence, and a rejection score, larger the farther from every prototype."""
    from protosphere.cli.errors import told
    from protosphere.cli.waiting import bar_of

    with told():
        if output not in ("csv", "json"):
            raise ValueError(f"--format must be csv or json; got {output}")
        from protosphere.cli.devices import device_named
        from protosphere.data.image_files import found_images, load_images
        from protosphere.recipes.trained import load_model

        files = found_images(images)
        model = load_model(run, device=device_named(device))
        writer = csv.DictWriter(sys.stdout, _FIELDS, lineterminator="\n")
        if output == "csv":
            writer.writeheader()
        bad = good = 0
        with bar_of("classifying") as progress:
            for rows, problems in _classified(model, load_images(files, channels=model.channels), batch):
                for row in rows:
                    writer.writerow(row) if output == "csv" else typer.echo(json.dumps(row, ensure_ascii=False))
                for problem in problems:
                    typer.echo(f"Passed over: {problem}.", err=True)
                good, bad = good + len(rows), bad + len(problems)
                progress(min(1.0, (good + bad) / len(files)))
        if bad:
            typer.echo(f"{good} images classified, {bad} passed over.", err=True)
        if not good:
            raise ValueError("there must be an image that can be read; there was none")


def _classified(
    model: "TrainedModel", stream: "Iterable[Loaded]", batch: int
) -> Iterator[tuple[list[dict[str, Any]], list[str]]]:
    """Rows and problems, batch by batch, in order."""
    import torch

    from protosphere.geometry import cosines

    objective = model.objective
    place = next(objective.parameters()).device
    rest = iter(stream)
    while some := list(islice(rest, batch)):
        readable = [one for one in some if one.image is not None]
        problems = [one.problem for one in some if one.problem is not None]
        if not readable:
            yield [], problems
            continue
        pixels = torch.stack([_sized(model, one.image) for one in readable])  # type: ignore[arg-type]
        with torch.no_grad():
            features = objective.encoder(model.clean(pixels.to(place))).float()
            confidence, chosen = objective.head(features).softmax(1).max(1)
            far = -cosines(features, objective.head.prototypes).amax(1)  # type: ignore[arg-type]
        rows = [
            {
                "image": one.name,
                "class": model.class_names[index],
                "confidence": round(sure, 6),
                "rejection": round(away, 6),
            }
            for one, index, sure, away in zip(readable, chosen.tolist(), confidence.tolist(), far.tolist(), strict=True)
        ]
        yield rows, problems


def _sized(model: "TrainedModel", image: "Tensor") -> "Tensor":
    """An image of the run's size, cut as in its evaluation: the middle for folders, the whole elsewhere."""
    from torchvision.transforms.v2 import functional as v2

    size = model.clean.size
    if model.recipe.data.source != "folder":
        same = image.shape[1:] == (size, size)
        return image if same else v2.resize(image, [size, size], antialias=True)
    cut: Tensor = v2.center_crop(v2.resize(image, [round(size / 0.875)], antialias=True), [size, size])
    return cut
