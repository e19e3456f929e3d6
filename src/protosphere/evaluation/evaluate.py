"""An assessment: accuracies, collapse metrics, and what a report draws of the geometry."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Integer
from torch import Tensor

from protosphere.classifiers import MeanClassifier, class_means
from protosphere.classifiers.class_means import empty_means
from protosphere.data.loaders import Feed
from protosphere.evaluation.inference import Outputs, batch_outputs, outputs
from protosphere.geometry import normalize
from protosphere.metrics import NeuralCollapse, examine
from protosphere.training import Objective

# Samples that are drawn in three dimensions; more would only hide each other.
_DRAWN = 2000


class Assessment(NamedTuple):
    """What was found.

    Attributes:
        numbers: accuracies as shares of 1, and the metrics by name.
        geometry: arrays for a report, all on the CPU: see :func:`assess`.
    """

    numbers: dict[str, float]
    geometry: dict[str, Tensor]


def assess(
    objective: Objective,
    train: Feed,
    test: Feed,
    *,
    metrics: Literal["all", "cheap"] = "all",
    batch: int = 512,
    progress: Callable[[float], None] = lambda _: None,
) -> Assessment:
    """Assess an objective on the clean images of both parts.

    The collapse metrics are those of the training part, on the unit sphere. ``geometry`` holds, for K classes:
    ``class_means`` and ``prototypes`` (K, d), of unit vectors; ``class_cosines``, about the mean of class means, and
    ``prototype_cosines`` (K, K); ``confusion`` (K, K) of the test part, true classes in rows;
    ``class_accuracy`` (K), NaN where the test part has none; and, in the three directions in which class means differ
    most, ``means_3d``, ``prototypes_3d`` and ``samples_3d`` with ``sample_labels``, some of the test part.

    A head that is class means takes those of the training images first, so that its accuracy is that of the prototypes.

    Args:
        objective: it is left in the mode it was in.
        train: the training images.
        test: the test images.
        metrics: ``"cheap"`` are those that class sums give, in memory that the samples do not fill.
        batch: images at a time.
        progress: called with the share that is done.
    """
    share = len(train) / (len(train) + len(test))

    def first(done: float) -> None:
        progress(share * done)

    def second(done: float) -> None:
        progress(share + (1 - share) * done)

    means, values = _measured(objective, train, metrics, batch, first)
    found = outputs(objective, test, batch=batch, progress=second)
    unit = normalize(found.features)
    nearest = torch.cdist(unit, means.to(unit)).argmin(1)
    numbers = {
        "test_accuracy": _share(found.decisions == found.labels),
        "nearest_mean_accuracy": _share(nearest == found.labels),
        **values,
    }
    return Assessment(
        numbers, _geometry(means, normalize(_prototypes(objective).float()), found, unit)
    )


def take_means(
    objective: Objective,
    feed: Feed,
    *,
    batch: int = 512,
    progress: Callable[[float], None] = lambda _: None,
) -> None:
    """Let a head that is class means take those of the clean images of a feed."""
    head = objective.head
    assert isinstance(head, MeanClassifier)
    means = empty_means(*head.prototypes.shape, device=feed.device)
    done = 0
    for part in batch_outputs(objective, feed, batch=batch):
        means = means.added(part.features, part.labels)
        done += len(part.labels)
        progress(done / len(feed))
    head.take(means)


def _prototypes(objective: Objective) -> Tensor:
    prototypes = objective.head.prototypes
    assert isinstance(prototypes, Tensor)
    return prototypes.detach()


def _measured(
    objective: Objective,
    feed: Feed,
    metrics: Literal["all", "cheap"],
    batch: int,
    progress: Callable[[float], None],
) -> tuple[Float[Tensor, "classes dim"], dict[str, float]]:
    """Class means, and accuracy and metrics of the training part; a head that is class means takes them."""
    head = objective.head
    if metrics == "all":
        found = outputs(objective, feed, batch=batch, progress=progress)
        decisions = found.decisions
        if isinstance(head, MeanClassifier):
            head.take(class_means(found.features, found.labels, num_classes=len(head.prototypes)))
            decisions = head.predict(found.features)
        measured = examine(found.features, found.labels, _prototypes(objective))
        return measured.statistics.means, {
            "train_accuracy": _share(decisions == found.labels)
        } | measured.values
    classes, dim = _prototypes(objective).shape
    collapse = NeuralCollapse(dim, classes, lambda: _prototypes(objective), metrics="cheap").to(
        feed.device
    )
    means = empty_means(classes, dim, device=feed.device)
    correct = torch.zeros((), dtype=torch.long, device=feed.device)
    done = 0
    for part in batch_outputs(objective, feed, batch=batch):
        collapse.update(part.features, part.labels)
        correct += (part.decisions == part.labels).sum()
        if isinstance(head, MeanClassifier):
            means = means.added(part.features, part.labels)
        done += len(part.labels)
        progress(done / len(feed))
    accuracy = {"train_accuracy": int(correct) / len(feed)}
    if isinstance(head, MeanClassifier):
        head.take(means)
        accuracy = {}  # Decisions were made before there were means.
    return collapse.means, accuracy | {
        name: float(value) for name, value in collapse.compute().items()
    }


def _share(chosen: Tensor) -> float:
    return float(chosen.double().mean())


def _geometry(
    means: Tensor, prototypes: Tensor, found: Outputs, unit: Float[Tensor, "samples dim"]
) -> dict[str, Tensor]:
    means, prototypes, unit = means.double().cpu(), prototypes.double().cpu(), unit.cpu()
    labels, decisions = found.labels.cpu(), found.decisions.cpu()
    classes = len(means)
    centered = means - means.mean(0)
    directions = normalize(centered)
    confusion = torch.bincount(labels * classes + decisions, minlength=classes**2).reshape(
        classes, classes
    )
    axes = _axes(centered)
    some = _spread_over_classes(labels, _DRAWN)
    samples = (unit[some].double() - means.mean(0)) @ axes
    drawn = {
        "class_means": means,
        "prototypes": prototypes,
        "class_cosines": directions @ directions.T,
        "prototype_cosines": prototypes @ prototypes.T,
        "class_accuracy": confusion.diagonal() / confusion.sum(1),
        "means_3d": centered @ axes,
        "prototypes_3d": (prototypes - prototypes.mean(0)) @ axes,
        "samples_3d": samples,
    }
    floats = {name: value.float().contiguous() for name, value in drawn.items()}
    return floats | {"confusion": confusion.int(), "sample_labels": labels[some].int()}


def _axes(centered: Float[Tensor, "classes dim"]) -> Float[Tensor, "dim 3"]:
    """The three directions in which class means differ most, the largest entry of each positive."""
    _, _, rows = torch.linalg.svd(centered, full_matrices=False)
    rows = rows[:3]
    signs = rows.gather(1, rows.abs().argmax(1, keepdim=True)).sign()
    axes: Tensor = (rows * signs).T
    return torch.nn.functional.pad(axes, (0, 3 - axes.shape[1]))


def _spread_over_classes(
    labels: Integer[Tensor, "samples"], count: int
) -> Integer[Tensor, "chosen"]:
    """Up to ``count`` samples, as many of each class as possible, the first ones of each."""
    order = labels.argsort(stable=True)
    counts = torch.bincount(labels)
    starts = counts.cumsum(0) - counts
    place = torch.empty_like(order)
    place[order] = torch.arange(len(labels)) - starts[labels[order]]
    return torch.sort(place.argsort(stable=True)[:count]).values
