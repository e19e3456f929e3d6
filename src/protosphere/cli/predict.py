"""``protosphere predict``: classify images with a trained run."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from protosphere.cli.options import BatchSize, CheckpointChoice, Device, Format, RunPath
from protosphere.cli.output_files import Overwrite

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
    top_k: Annotated[
        int, typer.Option(help="Number of the most probable classes of each image.", min=1)
    ] = 1,
    out: Annotated[
        Path | None,
        typer.Option(
            help="File to write instead of printing: .csv, or .json with a list of all images."
        ),
    ] = None,
    overwrite: Overwrite = False,
    output_format: Format = None,
    checkpoint: CheckpointChoice = None,
    device: Device = "auto",
    batch_size: BatchSize = 256,
) -> None:
    """Classify images: class, confidence, and a rejection score.

    The rejection score is minus the largest cosine between the features of an
    image and the prototypes: the larger it is, the less the image looks like
    any class. With --top-k 3, CSV also has the columns class_2, confidence_2,
    class_3 and confidence_3, and JSON has a list top_k. Printed JSON is one
    object per line.
    """
    from protosphere.cli.errors import report_errors
    from protosphere.cli.output_files import check_new_file, write_csv, write_json
    from protosphere.cli.progress import progress_bar
    from protosphere.cli.text import CsvPrinter, count, echo, to_json

    with report_errors():
        from protosphere.data.image_files import find_images, load_images
        from protosphere.recipes.devices import resolve_device
        from protosphere.recipes.loading import load_run

        if out is not None:
            check_new_file("--out", out, suffixes=(".csv", ".json"), overwrite=overwrite)
            if output_format not in (None, out.suffix[1:]):
                raise ValueError(
                    f"--format must be {out.suffix[1:]} with --out {out}, got {output_format}"
                )
            output_format = "csv" if out.suffix == ".csv" else "json"
        with progress_bar("loading the run") as progress:
            loaded_run = load_run(
                run, checkpoint=checkpoint, device=resolve_device(device), progress=progress
            )
        num_classes = len(loaded_run.class_names)
        if top_k > num_classes:
            raise ValueError(
                f"--top-k must be at most {num_classes}, the number of classes, got {top_k}"
            )
        files = find_images(images)
        fields, flatten = _columns(top_k), output_format != "json"
        table = CsvPrinter(fields) if flatten and out is None else None
        written: list[dict[str, Any]] = []
        num_classified = num_skipped = 0
        with progress_bar("classifying") as progress:
            stream = load_images(files, channels=loaded_run.channels)
            for records, problems in _predict_batches(loaded_run, stream, top_k, batch_size):
                rows = [_flatten(record) for record in records] if flatten else records
                if out is not None:
                    written += rows
                else:
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
        if out is not None:
            write_csv(out, fields, written) if flatten else write_json(out, written)
            echo(f"Wrote the classes of {count(num_classified, 'image')} to {out}")


def _predict_batches(
    run: "Run", images: "Iterable[LoadedImage]", top_k: int, batch_size: int
) -> Iterator[tuple[list[dict[str, Any]], list[str]]]:
    """Records and problems of each batch, in order."""
    remaining = iter(images)
    while batch := list(islice(remaining, batch_size)):
        problems = [item.problem for item in batch if item.problem is not None]
        names = [item.name for item in batch if item.image is not None]
        if not names:
            yield [], problems
            continue
        readable = [item.image for item in batch if item.image is not None]
        predictions = run.predict(readable, top_k=top_k, batch_size=batch_size)
        records = []
        for name, score, classes, probabilities in zip(
            names,
            predictions.rejection_scores.tolist(),
            predictions.top_classes.tolist(),
            predictions.top_probabilities.tolist(),
            strict=True,
        ):
            top = [
                {"class": run.class_names[index], "confidence": round(probability, 6)}
                for index, probability in zip(classes, probabilities, strict=True)
            ]
            record = {"image": name, **top[0], "rejection_score": round(score, 6)}
            records.append(record | ({"top_k": top} if top_k > 1 else {}))
        yield records, problems


def _columns(top_k: int) -> list[str]:
    """The columns of CSV."""
    ranks = range(2, top_k + 1)
    return [*_FIELDS, *(f"{name}_{rank}" for rank in ranks for name in ("class", "confidence"))]


def _flatten(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record as a row of CSV."""
    row = {name: record[name] for name in _FIELDS}
    for rank, candidate in enumerate(record.get("top_k", ())[1:], start=2):
        row |= {f"{name}_{rank}": value for name, value in candidate.items()}
    return row
