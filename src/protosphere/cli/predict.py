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
    import torch
    from torch import Tensor

    from protosphere.data.image_files import Loaded
    from protosphere.recipes.loading import TrainedModel

_FIELDS = ("image", "class", "confidence", "rejection")


def predict(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    images: Annotated[
        list[Path], typer.Argument(help="Image files, folders of them, .npz files of arrays.")
    ],
    output: Annotated[
        str, typer.Option("--format", help="'csv', or 'json' (an object a line).")
    ] = "csv",
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
        from protosphere.recipes.loading import load_model

        files = found_images(images)
        with bar_of("loading the run") as progress:
            model = load_model(run, device=device_named(device), progress=progress)
        writer = csv.DictWriter(sys.stdout, _FIELDS, lineterminator="\n")
        if output == "csv":
            writer.writeheader()
        bad = good = 0
        with bar_of("classifying") as progress:
            for rows, problems in _classified(
                model, load_images(files, channels=model.channels), batch
            ):
                for row in rows:
                    writer.writerow(row) if output == "csv" else typer.echo(
                        json.dumps(row, ensure_ascii=False)
                    )
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
        with torch.no_grad():
            features = objective.encoder(
                _prepared(model, [one.image for one in readable], place)
            ).float()  # type: ignore[misc]
            confidence, chosen = objective.head(features).softmax(1).max(1)
            far = -cosines(features, objective.head.prototypes).amax(1)  # type: ignore[arg-type]
        rows = [
            {
                "image": one.name,
                "class": model.class_names[index],
                "confidence": round(sure, 6),
                "rejection": round(away, 6),
            }
            for one, index, sure, away in zip(
                readable, chosen.tolist(), confidence.tolist(), far.tolist(), strict=True
            )
        ]
        yield rows, problems


def _prepared(model: "TrainedModel", images: "list[Tensor]", device: "torch.device") -> "Tensor":
    """Images as in the run's evaluation: of folders the middle, elsewhere the whole; resized and normalized."""
    import torch

    from protosphere.data.folders import middle

    if model.recipe.data.source == "folder":
        images = [middle(image, model.clean.size) for image in images]
    if len({image.shape for image in images}) == 1:
        return model.clean(torch.stack(images).to(device))
    return torch.cat([model.clean(image[None].to(device)) for image in images])
