"""``protosphere measure``: how close the features of a file or of a run are to neural collapse."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from protosphere.cli.options import AsJson, DataOverrides, Device
from protosphere.cli.output_files import Overwrite, check_new_file
from protosphere.cli.plot_files import check_plot, plot_option, save_plot
from protosphere.cli.unused_options import check_data_overrides, refuse_unused

if TYPE_CHECKING:
    from protosphere.data.feature_files import FeatureFile
    from protosphere.metrics import Measurement


def measure(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="FILE|RUN",
            help="File with features and labels (.npz, .safetensors, .pt), or a run folder.",
        ),
    ],
    features: Annotated[
        str | None,
        typer.Option(
            metavar="<key>",
            help="Key of the features in the file, of shape (samples, dim).",
            show_default="features",
        ),
    ] = None,
    labels: Annotated[
        str | None,
        typer.Option(
            metavar="<key>",
            help="Key of the labels in the file, of shape (samples,).",
            show_default="labels",
        ),
    ] = None,
    prototypes: Annotated[
        str | None,
        typer.Option(
            metavar="<key>",
            help="Key of the weights of the classifier in the file, of shape (classes, dim).",
            show_default="prototypes, if the file has it",
        ),
    ] = None,
    bias: Annotated[
        str | None,
        typer.Option(
            metavar="<key>",
            help="Key of the bias of the classifier in the file, used by --space raw.",
            show_default="bias, if the file has it",
        ),
    ] = None,
    class_names: Annotated[
        Path | None, typer.Option(help="Text file with one class name per line.")
    ] = None,
    space: Annotated[
        Literal["sphere", "raw"],
        typer.Option(help="Normalize features to unit length, or measure them unchanged."),
    ] = "sphere",
    metrics: Annotated[
        list[str] | None,
        typer.Option(
            metavar="<name>",
            help="Metrics to compute: all, cheap, a group (nc1, for example) or the name of a "
            "metric; may be repeated.",
            show_default="all",
        ),
    ] = None,
    classes: Annotated[
        Literal["all", "present"],
        typer.Option(help="Require samples of all classes, or leave out classes without any."),
    ] = "all",
    device: Device = "cpu",
    memory: Annotated[
        float, typer.Option(metavar="<GiB>", help="GiB of features to read at a time.")
    ] = 0.5,
    split: Annotated[
        Literal["train", "validation", "test"] | None,
        typer.Option(help="Split of the run to compute features of.", show_default="train"),
    ] = None,
    overrides: DataOverrides = None,
    save: Annotated[
        Path | None,
        typer.Option(
            help="Save features, labels and weights of the run to this new .npz file.",
        ),
    ] = None,
    plot: Annotated[
        Path | None, plot_option("metrics, and cosines and spectrum of the class means,")
    ] = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Measure how close features of any model are to neural collapse."""
    from protosphere.cli.errors import report_errors
    from protosphere.cli.measure_text import print_measurement, to_record
    from protosphere.cli.progress import progress_bar
    from protosphere.cli.text import to_json

    with report_errors():
        from protosphere.data.feature_files import read_features, write_features
        from protosphere.metrics import measure_detailed
        from protosphere.recipes.devices import resolve_device

        check_plot(plot, overwrite=overwrite)
        device = resolve_device(device)
        memory_budget = _num_bytes(memory)
        keys = {"features": features, "labels": labels, "prototypes": prototypes, "bias": bias}
        run_options = {"split": split, "set": overrides, "save": save}
        _refuse_options(keys if path.is_dir() else run_options, path)
        refuse_unused({"--bias": bias if space == "sphere" else None}, "with --space sphere")
        if save is not None:
            check_new_file("--save", save, suffixes=(".npz",), overwrite=overwrite)
        check_data_overrides(overrides or [])
        if path.is_dir():
            content = _features_of_run(path, split or "train", overrides or [], device)
            if save is not None:
                write_features(save, content)
        else:
            given = {name: key for name, key in keys.items() if key is not None}
            content = read_features(path, **given)
        names = _read_class_names(class_names, content)
        content, names = _index_labels(path, content, names)
        if content.prototypes is not None:
            _check_class_names(names, len(content.prototypes), exactly=True)
        used_bias = content.bias if space == "raw" else None
        with progress_bar("measuring") as progress:
            measurement = measure_detailed(
                content.features,
                content.labels,
                content.prototypes,
                bias=used_bias,
                space=space,
                metrics=metrics or "all",
                classes=classes,
                device=device,
                memory_budget=memory_budget,
                progress=progress,
            )
        _check_class_names(names, max(measurement.classes) + 1)
        if plot is not None:
            _plot(plot, measurement, content, names, path)
    record = to_record(path, measurement, space, names)
    if as_json:
        typer.echo(to_json(record, indent=2))
    else:
        print_measurement(record, has_unused_bias=content.bias is not None and used_bias is None)


def _features_of_run(path: Path, split: Any, overrides: list[str], device: str) -> "FeatureFile":
    from protosphere.cli.progress import progress_bar
    from protosphere.recipes.loading import load_run

    with progress_bar("loading the run") as progress:
        run = load_run(path, overrides=overrides, device=device, progress=progress)
    with progress_bar("computing features") as progress:
        return run.features(split, progress=progress)


def _index_labels(
    path: Path, content: "FeatureFile", names: list[str] | None
) -> tuple["FeatureFile", list[str] | None]:
    """Replace labels that are class names by their positions in the names, which may be sorted."""
    import numpy as np

    labels = content.labels
    if not isinstance(labels, np.ndarray) or labels.dtype.kind not in "US":
        return content, names
    if labels.dtype.kind == "S":
        labels = np.char.decode(labels, "utf-8")
    present, indices = np.unique(labels, return_inverse=True)
    if names is None and content.prototypes is not None:
        raise ValueError(
            f"{path.name} has class names as labels: class_names, in the order of the prototypes, "
            "must be in the file or be given with --class-names"
        )
    names = present.tolist() if names is None else names
    positions = {name: position for position, name in enumerate(names)}
    if unknown := [name for name in present.tolist() if name not in positions]:
        raise ValueError(f"labels in {path.name} must be among the class names, got {unknown[0]!r}")
    mapping = np.array([positions[name] for name in present.tolist()])
    return replace(content, labels=mapping[indices]), names


def _plot(
    plot: Path,
    measurement: "Measurement",
    content: "FeatureFile",
    names: list[str] | None,
    path: Path,
) -> None:
    from protosphere.studies.plots.measurement import plot_measurement

    figure = plot_measurement(
        measurement, prototypes=content.prototypes, class_names=names, title=path.resolve().name
    )
    save_plot(plot, figure, "the measurement")


def _num_bytes(memory: float) -> int:
    if not 0 < memory < 1e9:
        raise ValueError(f"--memory must be a positive number of GiB, got {memory}")
    return max(1, int(memory * 2**30))


def _refuse_options(options: dict[str, Any], path: Path) -> None:
    """Raise ValueError if an option is given that means nothing for this file or run."""
    needed, given = ("file", "run folder") if path.is_dir() else ("run folder", "file")
    for name, value in options.items():
        if value not in (None, []) and path.exists():
            raise ValueError(
                f"--{name} must be given together with a {needed}, got the {given} {path}"
            )


def _read_class_names(path: Path | None, content: "FeatureFile") -> list[str] | None:
    if path is None:
        return None if content.class_names is None else list(content.class_names)
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(
            f"--class-names must be a readable text file in UTF-8, got {path}"
        ) from error


def _check_class_names(names: list[str] | None, num_classes: int, *, exactly: bool = False) -> None:
    """Check that there are enough names, or exactly as many as classes.

    Without prototypes there may be more names: those of classes without samples.
    """
    if names is None or len(names) == num_classes or (len(names) > num_classes and not exactly):
        return
    raise ValueError(f"class names must be one per class, {num_classes} in total, got {len(names)}")
