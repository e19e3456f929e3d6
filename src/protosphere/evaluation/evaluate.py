"""Evaluation of a trained objective: accuracies, calibration, collapse metrics and arrays."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Integer
from numpy.typing import NDArray
from torch import Tensor

from protosphere.classifiers import (
    FittedHead,
    ShardedCosineClassifier,
    class_means,
    empty_means,
)
from protosphere.data.loaders import Loader
from protosphere.data.progress import no_progress, split_progress
from protosphere.data.sampling import evaluation_slices
from protosphere.evaluation.average_precision import mean_per_class_accuracy
from protosphere.evaluation.calibration import (
    adaptive_calibration_error,
    expected_calibration_error,
)
from protosphere.evaluation.geometry_arrays import Points, arrays_with_points, choose_points
from protosphere.evaluation.inference import (
    collect_outputs,
    iterate_outputs,
    measuring_device,
    with_progress,
)
from protosphere.geometry import normalize
from protosphere.geometry.class_statistics import empty_statistics
from protosphere.metrics import CATALOG, measure_detailed
from protosphere.metrics.catalog import select
from protosphere.metrics.compute import MetricInputs, compute_metrics
from protosphere.metrics.definition import Sign
from protosphere.metrics.over_processes import exchange_classes, measure_over
from protosphere.metrics.verdicts import Verdict, verdicts
from protosphere.parallel import find_shards
from protosphere.parallel.gradients import broadcast_buffers
from protosphere.parallel.launch import World
from protosphere.parallel.rows import gather_in_order
from protosphere.training import Objective
from protosphere.training.fsdp import whole_weights


class Evaluation(NamedTuple):
    """The result of :func:`evaluate`.

    Attributes:
        metrics: ``accuracy``, ``balanced_accuracy``, ``loss``, ``ece``, ``adaptive_ece``,
            ``nearest_mean_accuracy`` and ``train_accuracy``, fractions but for the loss, and the
            collapse metrics by name. A metric that could not be computed is absent.
        arrays: Arrays for plots; see :func:`protosphere.evaluation.geometry_arrays`.
        verdicts: Assessment of the four conditions of neural collapse, NC1 to NC4.
    """

    metrics: dict[str, float]
    arrays: dict[str, NDArray[Any]]
    verdicts: tuple[Verdict, ...] = ()


class _TrainingResults(NamedTuple):
    """What is measured on the training images."""

    means: Float[Tensor, "classes dim"]
    accuracy: dict[str, float]
    collapse: dict[str, float]
    absent: dict[str, str]
    sign: Sign


class _TestResults(NamedTuple):
    """What is known of the evaluation images of all processes, in their original order."""

    predictions: Integer[Tensor, "samples"]
    labels: Integer[Tensor, "samples"]
    confidences: Float[Tensor, "samples"]
    losses: Float[Tensor, "samples"]
    nearest_means: Integer[Tensor, "samples"]
    points: Points


def evaluate(
    objective: Objective,
    train: Loader,
    test: Loader,
    *,
    metrics: Literal["all", "cheap"] = "all",
    batch_size: int = 512,
    progress: Callable[[float], None] = no_progress,
    world: World | None = None,
) -> Evaluation:
    """Evaluate an objective on training and evaluation images, without augmentation.

    The collapse metrics are those of the training features on the unit sphere. On the evaluation
    images are computed: ``accuracy``; ``balanced_accuracy``, the mean over the classes that have
    images of the accuracy within the class; ``loss``, the cross-entropy of the softmax of the
    head's logits, whatever loss was trained; ``ece`` and ``adaptive_ece``, the calibration errors
    of that softmax with 15 bins of equal width and of equal mass; ``nearest_mean_accuracy``, with
    the class means of the training features. A :class:`~protosphere.classifiers.FittedHead` is
    fitted to the training images first.

    Several processes share the images: each of them takes whole batches in turn, and every image
    counts once. The result is that of one process, up to the rounding of float64 sums.

    Args:
        objective: The objective, on the device of the loaders. Its modes are restored at the end.
            The other processes get the encoder's buffers of the first one, such as the running
            statistics of batch norm. While it lasts, every process has all prototypes of a sharded
            head and the whole weights of an encoder that is divided (FSDP).
        train: Training images.
        test: Images of the split that is evaluated, test or validation.
        metrics: ``"all"`` collapse metrics, which holds all training features in memory, those of
            a class on one process, or only the ``"cheap"`` ones, which are computed batch by batch.
        batch_size: Number of images in a batch.
        progress: Called with the fraction of the images of this process that is done.
        world: The processes that evaluate together, with the same weights and loaders of the same
            images; all of them must call it. None for this one alone.

    Returns:
        The evaluation, the same on every process.

    Raises:
        ValueError: A class has no training image.
        PeerError: Another process has failed.
    """
    world = World() if world is None else world
    train_progress, test_progress = split_progress(progress, [len(train), len(test)])
    objective = _with_all_classes(objective)
    broadcast_buffers(objective.encoder, world.group)
    measure_training = {"all": _measure_all, "cheap": _measure_cheap}[metrics]
    with whole_weights(objective.encoder):
        training = measure_training(objective, train, batch_size, train_progress, world)
        results = _predict(objective, test, batch_size, test_progress, training.means, world)
    prototypes = objective.head.prototypes.detach()
    return world.from_first(lambda: _summarize(training, results, prototypes, len(train)))


def _with_all_classes(objective: Objective) -> Objective:
    """Return the objective with the prototypes of all classes in place of those of this process."""
    if not find_shards(objective):
        return objective
    assert isinstance(objective.head, ShardedCosineClassifier)
    return Objective(objective.encoder, objective.head.full_classifier(), objective.loss)


def _predict(
    objective: Objective,
    loader: Loader,
    batch_size: int,
    progress: Callable[[float], None],
    means: Float[Tensor, "classes dim"],
    world: World,
) -> _TestResults:
    """Predict the evaluation images of this process, and gather what the summary needs."""
    with world.together():
        outputs = collect_outputs(
            objective, loader, batch_size=batch_size, progress=progress, shard=world.shard
        )
        nearest = [_nearest_means(part, means) for part in outputs.features.split(batch_size)]
        positions = _positions(len(loader), batch_size, world)
    columns = (*outputs[1:], torch.cat(nearest))
    predictions, labels, confidences, losses, nearest_means = gather_in_order(
        world, positions, columns
    )
    chosen = choose_points(labels)
    own = outputs.features[torch.isin(positions, chosen).to(outputs.features.device)]
    (points,) = gather_in_order(world, positions[torch.isin(positions, chosen)], [own])
    return _TestResults(
        predictions, labels, confidences, losses, nearest_means, Points(chosen, points)
    )


def _summarize(
    training: _TrainingResults,
    results: _TestResults,
    prototypes: Float[Tensor, "classes dim"],
    num_samples: int,
) -> Evaluation:
    correct = results.predictions == results.labels
    num_classes, dim = prototypes.shape
    values = {
        "accuracy": _fraction(correct),
        "balanced_accuracy": mean_per_class_accuracy(
            results.predictions.cpu(), results.labels.cpu()
        ),
        # To the CPU first: not every device has float64.
        "loss": float(results.losses.cpu().double().mean()),
        "ece": expected_calibration_error(results.confidences, correct),
        "adaptive_ece": adaptive_calibration_error(results.confidences, correct),
        "nearest_mean_accuracy": _fraction(results.nearest_means == results.labels),
    }
    judged = verdicts(
        training.collapse,
        training.absent,
        num_classes,
        dim,
        sign=training.sign,
        num_samples=num_samples,
    )
    arrays = arrays_with_points(
        training.means,
        prototypes,
        results.labels,
        results.predictions,
        results.confidences,
        results.points,
    )
    return Evaluation(values | training.accuracy | training.collapse, arrays, tuple(judged))


def fit_head(
    objective: Objective,
    loader: Loader,
    *,
    batch_size: int = 512,
    progress: Callable[[float], None] = no_progress,
) -> None:
    """Fit the head of an objective to the class means of the images of a loader.

    Args:
        objective: An objective whose head is a :class:`~protosphere.classifiers.FittedHead`.
        loader: Training images; they are not augmented.
        batch_size: Number of images in a batch.
        progress: Called with the fraction of images that is done.

    Raises:
        TypeError: The head is trained, not fitted.
    """
    head = objective.head
    if not isinstance(head, FittedHead):
        raise TypeError(
            "only a head with set_means can be fitted, such as MeanClassifier; "
            f"got {type(head).__name__}"
        )
    means = empty_means(*head.prototypes.shape, device=measuring_device(loader.device))
    batches = iterate_outputs(objective, loader, batch_size=batch_size)
    for batch in with_progress(batches, len(loader), progress):
        means = means.add(batch.features, batch.labels)
    head.set_means(means.means)


def _measure_all(
    objective: Objective,
    loader: Loader,
    batch_size: int,
    progress: Callable[[float], None],
    world: World,
) -> _TrainingResults:
    """Measure all metrics on features that are held in memory, those of a class together."""
    head = objective.head
    with world.together():
        outputs = collect_outputs(
            objective, loader, batch_size=batch_size, progress=progress, shard=world.shard
        )
        positions = _positions(len(loader), batch_size, world).to(outputs.labels.device)
    rows = exchange_classes(outputs.features, outputs.labels, positions, world=world)
    predictions = outputs.predictions
    if isinstance(head, FittedHead):
        num_classes = len(head.prototypes)
        with world.together():
            means = class_means(rows.features, rows.labels, num_classes=num_classes)
        if world.group is not None:
            means = means.all_reduce(world.group)
        with world.together():
            head.set_means(means.means)
            # In the batches of the encoder: the rounding of a product depends on its size.
            device, parts = head.prototypes.device, outputs.features.split(batch_size)
            predictions = torch.cat([head.predict(part.to(device)) for part in parts])
            predictions = predictions.to(outputs.labels.device)
    num_correct = sum(world.gather(int((predictions == outputs.labels).sum())))
    prototypes = head.prototypes.detach().to(outputs.features.device)
    if world.size == 1:
        measurement = measure_detailed(outputs.features, outputs.labels, prototypes)
    else:
        del outputs  # The exchanged features take as much memory.
        measurement = measure_over(rows, prototypes, world=world)
    return _TrainingResults(
        measurement.statistics.means,
        {"train_accuracy": num_correct / len(loader)},
        measurement.values,
        measurement.absent,
        measurement.sign,
    )


def _measure_cheap(
    objective: Objective,
    loader: Loader,
    batch_size: int,
    progress: Callable[[float], None],
    world: World,
) -> _TrainingResults:
    """Measure the cheap metrics batch by batch."""
    head, device = objective.head, measuring_device(loader.device)
    statistics = empty_statistics(*head.prototypes.shape, device=device)
    num_correct = torch.zeros((), dtype=torch.long, device=device)
    num_samples = len(_positions(len(loader), batch_size, world))
    with world.together():
        batches = iterate_outputs(objective, loader, batch_size=batch_size, shard=world.shard)
        for batch in with_progress(batches, num_samples, progress):
            statistics.add(batch.features, batch.labels)
            num_correct += (batch.predictions == batch.labels).sum()
    if world.group is not None:
        statistics.all_reduce(world.group)
    if isinstance(head, FittedHead):
        # The predictions were made with other class means, so there is no accuracy to report.
        head.set_means(statistics.means)
        accuracy = {}
    else:
        accuracy = {"train_accuracy": sum(world.gather(int(num_correct))) / len(loader)}

    def compute() -> tuple[dict[str, float], dict[str, str]]:
        inputs = MetricInputs(statistics, head.prototypes.detach())
        results = compute_metrics(inputs, select("cheap"))
        return {name: float(value) for name, value in results.values.items()}, results.absent

    values, absent = world.from_first(compute)
    # The sign of the features only decides what is attainable, which nothing here reports.
    unselected = dict.fromkeys(CATALOG, "not among the cheap metrics")
    return _TrainingResults(statistics.means, accuracy, values, unselected | absent, "any")


def _positions(num_samples: int, batch_size: int, world: World) -> Integer[Tensor, "own"]:
    """Return which images are those of this process."""
    parts = evaluation_slices(num_samples, batch_size, shard=world.shard)
    return torch.cat([torch.arange(0), *(torch.arange(p.start, p.stop) for p in parts)])


def _nearest_means(
    features: Float[Tensor, "samples dim"], means: Float[Tensor, "classes dim"]
) -> Integer[Tensor, "samples"]:
    unit = normalize(features)
    return torch.cdist(unit, means.to(unit)).argmin(1)


def _fraction(values: Bool[Tensor, "samples"]) -> float:
    return float(values.cpu().double().mean())
