"""``protosphere export``: a trained model as ONNX or safetensors, for other programs."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from protosphere.cli.options import CheckpointChoice, DataOverrides, RunPath
from protosphere.cli.output_files import Overwrite
from protosphere.cli.unused_options import check_data_overrides


def export(
    run: RunPath,
    out: Annotated[Path, typer.Option(help="File to write, .onnx or .safetensors.")],
    what: Annotated[
        Literal["model", "backbone"],
        typer.Option(help="The whole model, or the backbone only (.safetensors)."),
    ] = "model",
    overwrite: Overwrite = False,
    checkpoint: CheckpointChoice = None,
    overrides: DataOverrides = None,
) -> None:
    """Export a run to ONNX or safetensors, with a JSON file that describes it.

    The ONNX model takes images (batch, channels, size, size) with pixels
    between 0 and 1, normalizes them, and returns logits, probabilities and
    features. It is compared with the run in onnxruntime before it is written.
    Safetensors have the weights, those of a timm backbone under timm's names.
    Class names, mean, standard deviation and size of the images stand in the
    file itself and in FILE.json.
    """
    from protosphere.cli.errors import report_errors
    from protosphere.cli.output_files import check_new_file
    from protosphere.cli.progress import progress_bar
    from protosphere.cli.text import echo

    with report_errors():
        from protosphere.evaluation.export import SUFFIXES, check_export, description_path
        from protosphere.recipes.loading import load_run

        check_new_file("--out", out, suffixes=SUFFIXES, overwrite=overwrite)
        check_new_file("--out", description_path(out), suffixes=(".json",), overwrite=overwrite)
        check_export(out, what)
        check_data_overrides(overrides or [])
        with progress_bar("loading the run") as progress:
            loaded = load_run(
                run, checkpoint=checkpoint, overrides=overrides or [], progress=progress
            )
        described = loaded.export(out, what=what, overwrite=overwrite)
        checked = ", checked in onnxruntime" if out.suffix == ".onnx" else ""
        content = "the model" if what == "model" else "the backbone"
        echo(f"Wrote {content} of {loaded.recipe.name}, step {loaded.step:,}, to {out}{checked}")
        echo(f"Wrote class names, normalization and size of the images to {described}")
