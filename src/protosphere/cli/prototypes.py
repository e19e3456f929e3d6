"""``protosphere prototypes``: a classifier from any file of features; classes added, removed, scored, exported."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    import numpy as np

    from protosphere.classifiers import PrototypeClassifier

app = typer.Typer(
    name="prototypes",
    help="A classifier that is class means: built from embeddings of any model in one pass, changed without training.",
    no_args_is_help=True,
)

# Means of unit features that are shorter than this are rounding.
_DIRECTED = 1e-6
File = Annotated[Path, typer.Argument(help="A saved classifier (.safetensors).")]
Features = Annotated[
    Path, typer.Argument(help="An .npz, .safetensors or .pt file with features (and labels).")
]
FeaturesKey = Annotated[
    str, typer.Option("--features", help="The key of the features, (samples, dim).")
]
LabelsKey = Annotated[str, typer.Option("--labels", help="The key of the labels, (samples,).")]


@app.command()
def build(
    file: Features,
    out: Annotated[Path, typer.Option(help="Where to save the classifier (.safetensors).")],
    features: FeaturesKey = "features",
    labels: LabelsKey = "labels",
    rule: Annotated[str, typer.Option(help="'cosine', or 'nearest' mean.")] = "cosine",
    calibrate: Annotated[
        Path | None,
        typer.Option(help="A file of other features and labels that gives the temperature."),
    ] = None,
) -> None:
    """Build a classifier from a file of features and labels."""
    from protosphere.cli.errors import told

    with told():
        from protosphere.classifiers import PrototypeClassifier

        inputs, targets = _read(file, features, labels)
        classifier = PrototypeClassifier(rule=rule).fit(inputs, targets)  # type: ignore[arg-type]
        if calibrate is not None:
            classifier.calibrate(*_read(calibrate, features, labels))
        _see_that_directed(classifier)
        _see_that_ours(out)
        _save(classifier, out)
    typer.echo(
        f"{len(classifier.classes_):,} classes from {len(inputs):,} samples in {classifier.n_features_in_:,} "
        f"dimensions, temperature {classifier.temperature_:.3g}, saved as {out}"
    )


@app.command()
def add(
    file: File,
    name: Annotated[str, typer.Argument(help="The new class.")],
    samples: Features,
    features: FeaturesKey = "features",
    predict: Annotated[
        Path | None, typer.Option(help="Then classify the features of this file, too.")
    ] = None,
) -> None:
    """Add a class, from features of it."""
    from protosphere.cli.errors import told

    with told():
        classifier = _load(file)
        inputs, _ = _read(samples, features, None)
        classifier.add_class(_named(classifier, name), inputs)
        _see_that_directed(classifier)
        rows = (
            [] if predict is None else _predictions(classifier, _read(predict, features, None)[0])
        )
        _save(classifier, file)
    typer.echo(
        f"{name} added from {len(inputs):,} samples; {len(classifier.classes_):,} classes",
        err=bool(rows),
    )
    _echo(rows, "csv")


@app.command()
def remove(file: File, name: Annotated[str, typer.Argument(help="The class to take out.")]) -> None:
    """Remove a class; the others are as if it had never been there."""
    from protosphere.cli.errors import told

    with told():
        classifier = _load(file)
        _save(classifier.remove_class(_named(classifier, name)), file)
    typer.echo(f"{name} removed; {len(classifier.classes_):,} classes")


@app.command()
def score(
    file: File, samples: Features, features: FeaturesKey = "features", labels: LabelsKey = "labels"
) -> None:
    """Say how many of a file's samples are classified as their labels have it."""
    from protosphere.cli.errors import told

    with told():
        classifier = _load(file)
        inputs, targets = _read(samples, features, labels)
        known = set(classifier.classes_.tolist())
        strangers = [target for target in dict.fromkeys(targets.tolist()) if target not in known]
        share = classifier.score(inputs, targets)
    typer.echo(f"{100 * share:.2f} % of {len(inputs):,} samples")
    if strangers:
        typer.echo(
            f"{len(strangers)} classes of the file are none of the classifier's, such as {strangers[0]}",
            err=True,
        )


@app.command()
def predict(
    file: File,
    samples: Features,
    features: FeaturesKey = "features",
    output: Annotated[str, typer.Option("--format", help="'csv' or 'json'.")] = "csv",
) -> None:
    """Classify the features of a file: class, confidence, and how far each is from every prototype."""
    from protosphere.cli.errors import told

    with told():
        if output not in ("csv", "json"):
            raise ValueError(f"--format must be csv or json; got {output}")
        classifier = _load(file)
        rows = _predictions(classifier, _read(samples, features, None)[0])
    _echo(rows, output)


@app.command()
def export(
    file: File, out: Annotated[Path, typer.Argument(help="Where to write it (.onnx).")]
) -> None:
    """Export a classifier as ONNX: features of lengths from 1e-12 to 1e18 in, scores and probabilities out."""
    from protosphere.cli.errors import told

    with told():
        from protosphere.classifiers.onnx import export_onnx
        from protosphere.storage import write_atomically

        names = out.with_suffix(".classes.json")
        if out.suffix != ".onnx":
            raise ValueError(f"a classifier is exported to an .onnx file; got {out}")
        if out.exists() != names.exists():
            raise ValueError(
                f"{out} and {names} must be new, or both of an earlier export; one of them is there"
            )
        classifier = _load(file)
        export_onnx(classifier, out)
        write_atomically(
            names, (json.dumps(classifier.classes_.tolist(), ensure_ascii=False) + "\n").encode()
        )
    typer.echo(f"{len(classifier.classes_):,} classes exported as {out}, their names as {names}")


def _load(file: Path) -> "PrototypeClassifier":
    from protosphere.classifiers import PrototypeClassifier

    return PrototypeClassifier.load(file)


def _see_that_directed(classifier: "PrototypeClassifier") -> None:
    """Raise ValueError where a class mean of unit features is next to nothing: what it then predicts is chance."""
    import numpy as np

    short = np.linalg.norm(classifier.prototypes_, axis=1) < _DIRECTED
    if bool(short.any()):
        name = classifier.classes_[short][0]
        raise ValueError(
            f"samples of a class must have a common direction; those of {name!s} are zero or cancel out"
        )


def _see_that_ours(out: Path) -> None:
    """Raise ValueError where the file that would be replaced is something else, such as features."""
    if not out.exists():
        return
    try:
        _load(out)
    except ValueError:
        raise ValueError(
            f"--out must be new, or a classifier to replace; {out} is something else"
        ) from None


def _save(classifier: "PrototypeClassifier", file: Path) -> None:
    """Whole or not at all: a classifier that is changed in place must survive a full disk."""
    from protosphere.storage import write_atomically

    write_atomically(file, classifier.to_bytes())


def _named(classifier: "PrototypeClassifier", name: str) -> Any:
    """A name from the command line, as the classifier's classes are: a number where they are numbers."""
    kind = classifier.classes_.dtype.kind
    if kind not in "iuf":
        return name
    try:
        return int(name) if kind in "iu" else float(name)
    except ValueError:
        raise ValueError(
            f"classes of this classifier are numbers, such as {classifier.classes_[0]}; got {name}"
        ) from None


def _read(file: Path, features: str, labels: str | None) -> "tuple[np.ndarray, np.ndarray]":
    """Features, and labels as names where the file has them."""
    import numpy as np
    import torch

    from protosphere.data import read_features

    content = read_features(file, features=features, labels=labels)
    parts = [content.features, content.labels]
    arrays = [
        (part.float().numpy() if part.is_floating_point() else part.numpy())
        if isinstance(part, torch.Tensor)
        else part
        for part in parts
    ]
    inputs, targets = arrays
    if inputs.ndim != 2 or inputs.dtype.kind != "f":
        raise ValueError(
            f"features in {file.name} must be (samples, dim), floating; got {inputs.shape} of {inputs.dtype}"
        )
    if labels is None:
        return inputs, np.empty(0)
    if targets.shape != inputs.shape[:1] or targets.dtype.kind not in "iuUSO":
        raise ValueError(
            f"labels in {file.name} must be whole numbers or texts, one a sample, ({len(inputs)},); "
            f"got {targets.shape} of {targets.dtype}"
        )
    if targets.dtype.kind == "S":
        targets = np.char.decode(targets, "utf-8")
    if content.class_names is None or targets.dtype.kind not in "iu":
        return inputs, targets
    if targets.min() < 0 or targets.max() >= len(content.class_names):
        raise ValueError(
            f"labels in {file.name} must lie in 0..{len(content.class_names) - 1}; they do not"
        )
    return inputs, np.array(content.class_names)[targets]


def _predictions(classifier: "PrototypeClassifier", inputs: "np.ndarray") -> list[dict[str, Any]]:
    shares, far = classifier.predict_proba(inputs), classifier.rejection_score(inputs)
    best = shares.argmax(1)
    names = classifier.classes_[best].tolist()
    return [
        {
            "class": name,
            "confidence": round(float(row[index]), 6),
            "rejection": round(float(distance), 6),
        }
        for name, row, index, distance in zip(names, shares, best, far, strict=True)
    ]


def _echo(rows: list[dict[str, Any]], output: str) -> None:
    import csv
    import sys

    if output == "json":
        typer.echo(json.dumps(rows, ensure_ascii=False, indent=1))
    elif rows:
        writer = csv.DictWriter(sys.stdout, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
