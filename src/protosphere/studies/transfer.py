"""The transfer of a run to other sets: cached features, classifiers, few-shot draws, rows."""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, Protocol

from torch import Tensor, nn

from protosphere.data.progress import Progress, no_progress, split_progress
from protosphere.data.splits import DataError
from protosphere.data.transfer_sets import (
    TRANSFER_SETS,
    TransferSet,
    TransferSplit,
    transfer_set,
)
from protosphere.encoders import Encoder
from protosphere.evaluation.feature_cache import (
    FeatureCache,
    digest_encoder,
    encode_images,
    feature_key,
)
from protosphere.evaluation.few_shot import (
    FewShotResult,
    check_shots,
    evaluate_few_shot,
    few_shot_classifiers,
)
from protosphere.evaluation.inference import measuring_device
from protosphere.evaluation.transfer import (
    CLASSIFIERS,
    DEFAULT_CS,
    TransferClassifier,
    TransferFeatures,
    TransferResult,
    classifiers_for,
    evaluate_transfer,
)
from protosphere.recipes import build
from protosphere.recipes.loading import Run
from protosphere.report.paper import paper_value
from protosphere.runs.results import ResultFile
from protosphere.studies.common import method_of, reported_split, run_settings

FINE = "fine"
# Part of the progress that the features take, and what the paper calls a set.
_ENCODING = 0.6
_PAPER_COLUMNS = {"voc2007": "voc2007_map"}


@dataclass(frozen=True)
class TransferRow:
    """One number of a transfer.

    Attributes:
        target: Name of the set.
        classifier: ``logistic``, ``class_means``, ``whitened_class_means`` or ``knn``.
        metric: ``top1``, ``mean_per_class`` or ``map``.
        value: The metric, as a fraction; for draws of a few images, its mean over the draws.
        top1: Accuracy, as a fraction; None for several labels per image.
        mean_per_class: Mean of the accuracies within each class; None likewise.
        seconds: Time to fit the classifier to given features.
        chosen_c: Chosen C of the logistic regression.
        num_train: Number of training images.
        num_test: Number of test images.
        num_classes: Number of classes.
        shots: Number of training images per class; None for all.
        num_draws: Number of random draws of them.
        std: Standard deviation of the metric over the draws.
    """

    target: str
    classifier: str
    metric: str
    value: float
    top1: float | None
    mean_per_class: float | None
    seconds: float
    chosen_c: float | None
    num_train: int
    num_test: int
    num_classes: int
    shots: int | None = None
    num_draws: int | None = None
    std: float | None = None


def run_transfer(
    run: Run,
    target: TransferSet,
    *,
    classifiers: Sequence[TransferClassifier] = CLASSIFIERS,
    shots: Sequence[int] = (),
    num_draws: int = 10,
    cs: Sequence[float] = DEFAULT_CS,
    seed: int = 0,
    use_cache: bool = True,
    batch_size: int = 256,
    workers: int = 8,
    recompute: bool = False,
    progress: Progress = no_progress,
) -> tuple[TransferRow, ...]:
    """Evaluate classifiers on the frozen features of a run, on the images of another set.

    The features are those before the projection. They are kept in RUN/benchmarks/features, rows in
    RUN/benchmarks/transfer-TARGET.json and few-shot-TARGET.json, after each classifier.

    Args:
        run: The run.
        target: The set.
        classifiers: Which classifiers; those that the metric of the set has no use for are left
            out.
        shots: Numbers of training images per class to also classify with; none for a set with
            several labels per image.
        num_draws: Number of random draws of these images.
        cs: Values of C of the logistic regression to choose from.
        seed: Seed of the draws.
        use_cache: Whether features are read from files, and written to them.
        batch_size: Number of images that are encoded at a time.
        workers: Largest number of processes that decode image files.
        recompute: Whether these rows, and the features, of an earlier call are computed again.
        progress: Called with the fraction that is done.

    Returns:
        One row for each classifier, then one for each number of images per class and classifier.

    Raises:
        DataError: A class has fewer images than are to be drawn, or an image cannot be read.
        StorageError: A file could not be written.
    """
    shots = () if target.metric == "map" else sorted(set(shots))
    if shots:
        check_shots(target.train.targets, shots)
    common = run_settings(run) | {
        "target": target.name,
        "metric": target.metric,
        "train": target.train.fingerprint,
        "test": target.test.fingerprint,
    }
    validation = hashlib.sha256(target.is_validation.numpy()).hexdigest()[:16]  # type: ignore[arg-type]
    names = [name for name in classifiers_for(target.metric) if name in classifiers]
    wanted: set[tuple[str, int | None]] = {(name, None) for name in names}
    wanted |= {(name, number) for number in shots for name in few_shot_classifiers(number)}
    files = [
        ResultFile(
            run.path,
            f"{benchmark}-{re.sub(r'[^-.a-zA-Z0-9_]+', '_', target.name)}",
            TransferRow,
            common | settings,
            recompute=recompute and (lambda row: (row.classifier, row.shots) in wanted),
        )
        for benchmark, settings in (
            ("transfer", {"cs": list(cs), "validation": validation}),
            ("few-shot", {"seed": seed, "num_draws": num_draws}),
        )
    ]
    tasks = [
        _Task(files[0], name, None, partial(evaluate_transfer, classifier=name, cs=cs))
        for name in names
    ]
    draw = partial(evaluate_few_shot, num_draws=num_draws, seed=seed)
    tasks += [
        _Task(files[1], name, number, partial(draw, classifier=name, shots=number))
        for number in shots
        for name in few_shot_classifiers(number)
    ]
    missing = [task for task in tasks if task.find() is None]
    if missing:
        folder = run.path / "benchmarks" / "features" if use_cache else None
        features = compute_features(
            run,
            target,
            cache=FeatureCache(folder, recompute=recompute),
            batch_size=batch_size,
            workers=workers,
            progress=lambda fraction: progress(_ENCODING * fraction),
        )
        for index, task in enumerate(missing):
            result = task.evaluate(features, progress=_part(progress, index, len(missing)))
            task.file.append(_row(target, result))
    progress(1.0)
    return tuple(row for task in tasks if (row := task.find()) is not None)


def compute_features(
    run: Run,
    target: TransferSet,
    *,
    cache: FeatureCache,
    batch_size: int = 256,
    workers: int = 8,
    progress: Progress = no_progress,
) -> TransferFeatures:
    """Compute the features of a set before the projection of a run, or read them from a cache.

    Images get the size, the channels and the normalization that the run is evaluated with.

    Args:
        run: The run.
        target: The set.
        cache: Files of features.
        batch_size: Number of images that are encoded at a time.
        workers: Largest number of processes that decode image files.
        progress: Called with the fraction of images that is done.

    Returns:
        Features and targets on the device of the run (on the CPU for MPS, without float64).

    Raises:
        DataError: An image cannot be read.
        StorageError: A file of features could not be written.
    """
    encoder: nn.Module = run.objective.encoder
    if isinstance(encoder, Encoder):
        encoder = encoder.without_projection()
    digest = digest_encoder(encoder)
    stages = split_progress(progress, [len(target.train), len(target.test)])

    def encode(split: TransferSplit, stage: Progress, *, name: str) -> Tensor:
        compute = partial(
            encode_images,
            encoder,
            split.images,
            run.transform,
            device=run.device,
            batch_size=batch_size,
            workers=workers,
            progress=stage,
        )
        key = feature_key(digest, run.transform, split.fingerprint, split=name)
        return cache.get(key, compute, num_samples=len(split))

    features = TransferFeatures(
        encode(target.train, stages[0], name="train").cpu(),
        target.train.targets,
        encode(target.test, stages[1], name="test").cpu(),
        target.test.targets,
        target.is_validation,
        target.num_classes,
        target.metric,
    )
    return features.to(measuring_device(run.device))


def fine_set(run: Run, *, seed: int = 0) -> TransferSet:
    """Return the data of a run that was trained on groups of classes, with their own classes.

    All training images are used: without a long tail, wrong labels or held-out images.

    Args:
        run: A run whose recipe has ``data.class_groups``.
        seed: Seed of the validation part.

    Raises:
        DataError: The run was not trained on groups of classes, or its data are not there.
        RunFolderError: They are not the data of the run.
    """
    data = run.recipe.data
    if data.class_groups is None:
        raise DataError(
            f"{run.path} must have been trained on groups of classes (data.class_groups) to be "
            "transferred to the fine ones; it was trained on the classes themselves"
        )
    run.dataset()  # Checks that these are the images that the run was trained on.
    changes = {
        "class_groups": None,
        "long_tail": None,
        "label_noise": None,
        "validation_fraction": 0.0,
    }
    recipe = run.recipe.model_copy(update={"data": data.model_copy(update=changes)})
    split = reported_split(recipe)
    dataset = build.load_dataset(recipe, download=run.download, split=split)
    entry = TRANSFER_SETS.get(data.source)
    metric = "top1" if entry is None else entry.metric
    return transfer_set(FINE, metric, dataset.train, dataset.test, seed=seed)


def paper_transfer(run: Run, target: str) -> float | None:
    """Return what the paper has for the transfer of an ImageNet run of this loss, in percent.

    Args:
        run: The run.
        target: Name of the set, or ``"mean"`` of all eight.

    Returns:
        The number of Table 4; None for other runs and other sets.
    """
    if not run.recipe.name.startswith("imagenet"):
        return None
    return paper_value("table4_transfer", method_of(run), _PAPER_COLUMNS.get(target, target))


class _Evaluate(Protocol):
    def __call__(
        self, features: TransferFeatures, *, progress: Progress
    ) -> TransferResult | FewShotResult: ...


class _Task(NamedTuple):
    """A row to compute: where it is kept, what it is of, and how it is computed."""

    file: ResultFile[TransferRow]
    classifier: TransferClassifier
    shots: int | None
    evaluate: _Evaluate

    def find(self) -> TransferRow | None:
        """Return the row, if it has been computed."""
        wanted = (self.classifier, self.shots)
        return next((row for row in self.file.rows if (row.classifier, row.shots) == wanted), None)


def _row(target: TransferSet, result: TransferResult | FewShotResult) -> TransferRow:
    row = TransferRow(
        target=target.name,
        classifier=result.classifier,
        metric=target.metric,
        **result.score._asdict(),
        seconds=result.seconds,
        chosen_c=None,
        num_train=len(target.train),
        num_test=len(target.test),
        num_classes=target.num_classes,
    )
    if isinstance(result, TransferResult):
        return replace(row, chosen_c=result.chosen_c)
    return replace(
        row,
        num_train=result.shots * len(target.train.targets.unique()),
        shots=result.shots,
        num_draws=result.num_draws,
        std=result.std,
    )


def _part(progress: Progress, index: int, count: int) -> Progress:
    """Return the progress of one of several tasks, after the features."""
    return lambda fraction: progress(_ENCODING + (1 - _ENCODING) * (index + fraction) / count)
