"""``protosphere predict``: classify images with a trained run."""

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from protosphere.cli.options import BatchSize, Device, Format, RunPath

if TYPE_CHECKING:
    from protosphere.data.image_files import LoadedImage
    from protosphere.recipes.loading import Run

_FIELDS = ("image", "class", "confidence", "rejection_score")


def predict(
    run: RunPath,
    images: Annotated[
        list[Path],
        typer.Argument(
            metavar="IMAGES",
            help="Image files, folders of image files, or .npz files of arrays.",
        ),
    ],
    output_format: Format = "csv",
    device: Device = "auto",
    batch_size: BatchSize = 256,
) -> None:
    """Classify images: class, confidence, and a rejection score.

    The rejection score is minus the largest cosine between the features of an
    image and the prototypes: the larger it is, the less the image looks like
    any class. JSON is one object per line.
    """
    from protosphere.cli.errors import report_errors
    from protosphere.cli.progress import progress_bar
    from protosphere.cli.text import CsvPrinter, count, echo, to_json

    with report_errors():
        from protosphere.cli.devices import resolve_device
        from protosphere.data.image_files import find_images, load_images
        from protosphere.recipes.loading import load_run

        with progress_bar("loading the run") as progress:
            loaded_run = load_run(run, device=resolve_device(device), progress=progress)
        files = find_images(images)
        table = CsvPrinter(_FIELDS) if output_format == "csv" else None
        num_classified = num_skipped = 0
        with progress_bar("classifying") as progress:
            stream = load_images(files, channels=loaded_run.channels)
            for rows, problems in _predict_batches(loaded_run, stream, batch_size):
                for row in rows:
                    table.print(row) if table else typer.echo(to_json(row))
                for problem in problems:
                    echo(f"Skipped: {problem}", err=True)
                num_classified += len(rows)
                num_skipped += len(problems)
                progress(min(1.0, (num_classified + num_skipped) / len(files)))
        if num_skipped:
            echo(f"{count(num_classified, 'image')} classified, {num_skipped:,} skipped", err=True)
        if not num_classified:
            raise ValueError("at least one image must be readable, got none")


def _predict_batches(
    run: "Run", images: "Iterable[LoadedImage]", batch_size: int
) -> Iterator[tuple[list[dict[str, Any]], list[str]]]:
    """Rows and problems of each batch, in order."""
    remaining = iter(images)
    while batch := list(islice(remaining, batch_size)):
        problems = [item.problem for item in batch if item.problem is not None]
        names = [item.name for item in batch if item.image is not None]
        if not names:
            yield [], problems
            continue
        readable = [item.image for item in batch if item.image is not None]
        predictions = run.predict(readable, batch_size=batch_size)
        columns = (
            names,
            (run.class_names[index] for index in predictions.classes.tolist()),
            (round(value, 6) for value in predictions.confidences.tolist()),
            (round(value, 6) for value in predictions.rejection_scores.tolist()),
        )
        yield [dict(zip(_FIELDS, row, strict=True)) for row in zip(*columns, strict=True)], problems
