"""``protosphere prototypes``: a classifier of class means from any features, without training."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from protosphere.cli.options import AsJson, Command, Format, Group

if TYPE_CHECKING:
    from protosphere.classifiers import PrototypeClassifier

app = typer.Typer(
    name="prototypes",
    help="Classify the embeddings of any model by class means: built in one pass, changed without "
    "training.",
    no_args_is_help=True,
    cls=Group,
)

ClassifierPath = Annotated[
    Path, typer.Argument(metavar="CLASSIFIER", help="Saved classifier (.safetensors).")
]
FeaturesPath = Annotated[
    Path,
    typer.Argument(
        metavar="FEATURES", help="File with features and labels (.npz, .safetensors, .pt)."
    ),
]
UnlabeledPath = Annotated[
    Path, typer.Argument(metavar="FEATURES", help="File with features (.npz, .safetensors, .pt).")
]
FeaturesKey = Annotated[
    str,
    typer.Option(
        "--features", metavar="<key>", help="Key of the features, of shape (samples, dim)."
    ),
]
LabelsKey = Annotated[
    str, typer.Option("--labels", metavar="<key>", help="Key of the labels, of shape (samples,).")
]
ClassName = Annotated[str, typer.Argument(metavar="CLASS", help="Name of the class.")]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace an existing file of the same kind.")
]


@app.command(cls=Command)
def build(
    path: FeaturesPath,
    out: Annotated[Path, typer.Option(help="File to save the classifier to (.safetensors).")],
    features: FeaturesKey = "features",
    labels: LabelsKey = "labels",
    rule: Annotated[
        Literal["cosine", "nearest"],
        typer.Option(help="Classify by the largest cosine or by the nearest class mean."),
    ] = "cosine",
    whitening: Annotated[
        Literal["none", "shrunk"],
        typer.Option(
            help="Whiten the features by their shrunk within-class covariance first; better on "
            "features that were not trained for class means."
        ),
    ] = "none",
    shrinkage: Annotated[
        str,
        typer.Option(
            metavar="<auto|cv|number>",
            help="Shrinkage of the covariance with --whitening shrunk, from 0 to 1; cv chooses it "
            "by cross-validation, best if labels are wrong.",
        ),
    ] = "auto",
    calibrate: Annotated[
        Path | None,
        typer.Option(
            help="File with held-out features and labels, to calibrate the temperature on."
        ),
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Build a classifier from features and labels."""
    from protosphere.cli.errors import report_errors
    from protosphere.cli.text import count, echo

    with report_errors():
        from protosphere.classifiers import PrototypeClassifier
        from protosphere.cli.prototype_files import (
            check_directions,
            check_output,
            parse_shrinkage,
            read_labeled,
        )

        check_output(out, overwrite=overwrite)
        amount = parse_shrinkage(shrinkage, whitening=whitening)
        inputs, targets = read_labeled(path, features, labels)
        classifier = PrototypeClassifier(rule=rule, whitening=whitening, shrinkage=amount)
        classifier.fit(inputs, targets)
        if calibrate is not None:
            held_out, held_out_targets = read_labeled(calibrate, features, labels, like=classifier)
            classifier.calibrate(held_out, held_out_targets)
        check_directions(classifier)
        classifier.save(out)
    echo(
        f"{count(len(classifier.classes_), 'class')} from {count(len(inputs), 'sample')} in "
        f"{count(classifier.n_features_in_, 'dimension')}, {_options(classifier)}, saved to {out}"
    )


@app.command(cls=Command)
def add(
    path: ClassifierPath,
    name: ClassName,
    samples: UnlabeledPath,
    features: FeaturesKey = "features",
    predict: Annotated[
        Path | None,
        typer.Option(
            metavar="<path>",
            help="File with features to classify after adding the class; printed as CSV, in which "
            "a name that begins with =, +, -, @, a tab or a carriage return gets a leading "
            "apostrophe.",
        ),
    ] = None,
) -> None:
    """Add a class to a classifier, from features of its samples."""
    from protosphere.cli.errors import report_errors
    from protosphere.cli.text import count, echo

    with report_errors():
        from protosphere.cli.prototype_files import (
            check_directions,
            load_classifier,
            parse_class,
            read_unlabeled,
        )

        classifier = load_classifier(path)
        inputs = read_unlabeled(samples, features, like=classifier)
        classifier.add_class(parse_class(classifier, name), inputs)
        check_directions(classifier)
        rows = None
        if predict is not None:
            others = read_unlabeled(predict, features, like=classifier)
            rows = _predictions(classifier, others)
        classifier.save(path)
    classes = count(len(classifier.classes_), "class")
    line = f"Added {name} from {count(len(inputs), 'sample')}; the classifier has {classes}"
    echo(line, err=rows is not None)
    if rows is not None:
        _print_rows(rows)


@app.command(cls=Command)
def remove(path: ClassifierPath, name: ClassName) -> None:
    """Remove a class; the means of the others do not change.

    With whitening, the covariance still counts the samples of the removed
    class.
    """
    from protosphere.cli.errors import report_errors
    from protosphere.cli.text import count, echo

    with report_errors():
        from protosphere.cli.prototype_files import load_classifier, parse_class

        classifier = load_classifier(path)
        classifier.remove_class(parse_class(classifier, name))
        classifier.save(path)
    echo(f"Removed {name}; the classifier has {count(len(classifier.classes_), 'class')}")


@app.command(cls=Command)
def score(
    path: ClassifierPath,
    samples: FeaturesPath,
    features: FeaturesKey = "features",
    labels: LabelsKey = "labels",
    as_json: AsJson = False,
) -> None:
    """Compute accuracy and balanced accuracy on features and labels.

    The balanced accuracy is the mean over the classes of the file.
    """
    from protosphere.cli.errors import report_errors
    from protosphere.cli.text import echo, to_json

    with report_errors():
        from protosphere.cli.prototype_files import (
            compute_accuracies,
            load_classifier,
            read_labeled,
        )

        classifier = load_classifier(path)
        inputs, targets = read_labeled(samples, features, labels, like=classifier)
        accuracies = compute_accuracies(classifier.predict(inputs), targets)
    if as_json:
        typer.echo(to_json(accuracies, indent=2))
    else:
        echo(_describe_accuracies(accuracies))
    _note_unknown(classifier, targets)


@app.command(cls=Command)
def predict(
    path: ClassifierPath,
    samples: UnlabeledPath,
    features: FeaturesKey = "features",
    labels: Annotated[
        str | None,
        typer.Option(
            "--labels",
            metavar="<key>",
            help="Key of the labels that accuracies are computed with; by default labels, if the "
            "file has this key.",
        ),
    ] = None,
    output_format: Format = None,
) -> None:
    """Classify features: class, confidence, and a rejection score.

    The rejection score is minus the largest score of a class: the larger it
    is, the less a sample resembles any class. If the file has labels, accuracy
    and balanced accuracy follow: after CSV on standard error, in JSON beside
    the list of predictions.
    """
    from protosphere.cli.errors import report_errors
    from protosphere.cli.text import echo, to_json

    with report_errors():
        from protosphere.cli.prototype_files import (
            compute_accuracies,
            load_classifier,
            read_samples,
        )

        classifier = load_classifier(path)
        inputs, targets, problem = read_samples(samples, features, labels, like=classifier)
        rows = _predictions(classifier, inputs)
        accuracies: dict[str, Any] = {"num_samples": len(inputs)}
        if targets is not None:
            accuracies = compute_accuracies([row["class"] for row in rows], targets)
    if output_format == "json":
        typer.echo(to_json({**accuracies, "predictions": rows}, indent=2))
    else:
        _print_rows(rows)
        if targets is not None:
            echo(_describe_accuracies(accuracies), err=True)
    if targets is not None:
        _note_unknown(classifier, targets)
    if problem is not None:
        echo(f"No accuracy: {problem}", err=True)


@app.command(cls=Command)
def info(path: ClassifierPath) -> None:
    """Describe a classifier: size, options and the samples of each class."""
    from protosphere.cli.errors import report_errors
    from protosphere.cli.text import count, echo

    with report_errors():
        from protosphere.cli.prototype_files import load_classifier

        classifier = load_classifier(path)
        options = _options(classifier)
    echo(
        f"{count(len(classifier.classes_), 'class')} in "
        f"{count(classifier.n_features_in_, 'dimension')}, rule {classifier.rule}, {options}"
    )
    for name, weight in zip(
        classifier.classes_.tolist(), classifier.weights_.tolist(), strict=True
    ):
        echo(f"{name}: {count(int(weight), 'sample') if weight == int(weight) else weight}")


@app.command(cls=Command)
def export(
    path: ClassifierPath,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="ONNX file to write (.onnx).")],
    overwrite: Overwrite = False,
) -> None:
    """Export a classifier to ONNX, with its class names beside it (.classes.json).

    The model takes features of norms between 1e-12 and 1e18, and returns
    scores and probabilities.
    """
    from protosphere.cli.errors import report_errors
    from protosphere.cli.text import count, echo

    with report_errors():
        from protosphere.classifiers.onnx import export_onnx
        from protosphere.cli.prototype_files import check_export, load_classifier
        from protosphere.storage import write_atomically

        names = out.with_suffix(".classes.json")
        check_export(out, names, overwrite=overwrite)
        classifier = load_classifier(path)
        export_onnx(classifier, out)
        text = json.dumps(classifier.classes_.tolist(), ensure_ascii=False)
        write_atomically(names, f"{text}\n".encode())
    echo(f"Exported {count(len(classifier.classes_), 'class')} to {out}, class names to {names}")


def _options(classifier: "PrototypeClassifier") -> str:
    temperature = f"temperature {classifier.temperature_:.3g}"
    if classifier.shrinkage_ is None:
        return temperature
    return f"whitened with shrinkage {classifier.shrinkage_:.3g}, {temperature}"


def _predictions(classifier: "PrototypeClassifier", inputs: Any) -> list[dict[str, Any]]:
    probabilities = classifier.predict_proba(inputs)
    scores = classifier.rejection_score(inputs)
    best = probabilities.argmax(1)
    return [
        {
            "class": name,
            "confidence": round(float(row[index]), 6),
            "rejection_score": round(float(score), 6),
        }
        for name, row, index, score in zip(
            classifier.classes_[best].tolist(), probabilities, best, scores, strict=True
        )
    ]


def _print_rows(rows: list[dict[str, Any]]) -> None:
    from protosphere.cli.text import CsvPrinter

    table = CsvPrinter(("class", "confidence", "rejection_score"))
    for row in rows:
        table.print(row)
    sys.stdout.flush()  # What follows on standard error comes after it, also in one file.


def _describe_accuracies(accuracies: Mapping[str, Any]) -> str:
    from protosphere.cli.text import count

    samples = count(accuracies["num_samples"], "sample")
    return (
        f"accuracy {100 * accuracies['accuracy']:.2f}%, balanced accuracy "
        f"{100 * accuracies['balanced_accuracy']:.2f}% on {samples}"
    )


def _note_unknown(classifier: "PrototypeClassifier", targets: Any) -> None:
    """Name a class of the labels that the classifier does not have, if there is one."""
    from protosphere.cli.text import count, echo

    known = set(classifier.classes_.tolist())
    unknown = [target for target in dict.fromkeys(targets.tolist()) if target not in known]
    if unknown:
        classes = count(len(unknown), "class")
        echo(f"The classifier does not know {classes} of the file, such as {unknown[0]}", err=True)
