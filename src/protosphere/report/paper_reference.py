"""The paper's accuracy for the data and loss of a run."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from protosphere.report.paper import paper_value
from protosphere.report.read_run import section_value
from protosphere.report.sources import RunData

_NUM_CLASSES = {"cifar10": 10, "cifar100": 100, "imagenet100": 100, "imagenet1k": 1000}
_EPOCHS = {"cifar10": 1000, "cifar100": 1000, "imagenet100": 500, "imagenet1k": 500}


class PaperResult(NamedTuple):
    """A number of the paper.

    Attributes:
        accuracy: Test accuracy in percent.
        table: Number of the table.
        epochs: Number of epochs that the paper trained.
    """

    accuracy: float
    table: int
    epochs: int


def find_paper_result(run: RunData) -> PaperResult | None:
    """Return the paper's accuracy for the data and the loss of a run; None if it has none.

    Runs on other classes, on a long tail or on wrong labels, and accuracies of validation images
    have no counterpart in these tables.

    Args:
        run: The run.
    """
    dataset = data_name(run.recipe)
    loss = paper_method(run)
    changes = ("long_tail", "label_noise", "class_groups")
    is_changed = any(section_value(run.recipe, "data", key) for key in changes)
    num_classes = len(run.class_names) or _NUM_CLASSES.get(dataset)
    is_test = run.data.get("split", "test") == "test"
    if dataset not in _EPOCHS or is_changed or not is_test or num_classes != _NUM_CLASSES[dataset]:
        return None
    table, accuracy = 1, paper_value("table1_classifier_accuracy", loss, dataset)
    if loss == "scl":  # Its accuracy is that of class means.
        table, accuracy = 2, paper_value("table2_scl_accuracy", "fixed_prototypes", dataset)
    return None if accuracy is None else PaperResult(accuracy, table, _EPOCHS[dataset])


def paper_method(run: RunData) -> str:
    """Return the loss of a run, as the paper's tables name it.

    Args:
        run: The run.
    """
    return str(section_value(run.recipe, "loss", "name")).replace("-", "_")


def data_name(recipe: Mapping[str, Any]) -> str:
    """Return what data are called: a dataset, or the file or folder of one's own images.

    Args:
        recipe: Recipe as plain values.

    >>> data_name({"data": {"source": "arrays", "path": "/data/cifar100.npz"}})
    'cifar100'
    """
    source = str(section_value(recipe, "data", "source") or "")
    path = str(section_value(recipe, "data", "path") or "")
    if source not in ("arrays", "folder") or not path:
        return source
    if Path(path).name == "imagenet":  # Of ImageNet, a list of classes makes the difference.
        return "imagenet100" if section_value(recipe, "data", "classes") else "imagenet1k"
    return Path(path).stem if source == "arrays" else Path(path).name
