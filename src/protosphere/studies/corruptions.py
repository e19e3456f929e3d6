"""The errors of a run on corrupted versions of its test images."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from protosphere.classifiers import empty_means
from protosphere.data.corruption_files import (
    CorruptionArrays,
    CorruptionFolder,
    open_corruption_files,
)
from protosphere.data.corruptions import (
    CORRUPTIONS,
    CORRUPTIONS_VERSION,
    EXTRA_CORRUPTIONS,
    SEVERITIES,
    corrupt,
)
from protosphere.data.decoding import CROP_FRACTION
from protosphere.data.folder_memory import (
    MemoryImages,
    fits_in_memory,
    load_into_memory,
    memory_limit,
)
from protosphere.data.folders import ImageFiles
from protosphere.data.frost_textures import FrostTextures
from protosphere.data.image_batches import image_batches, pixel_batches
from protosphere.data.progress import Progress, no_progress, split_progress
from protosphere.data.splits import DataError, ImageSet
from protosphere.evaluation.corruptions import measure_errors
from protosphere.evaluation.inference import evaluation_mode, measuring_device
from protosphere.recipes.datasets import ImageFilesData
from protosphere.recipes.loading import Run
from protosphere.runs.results import ResultFile
from protosphere.studies.common import reported_split, run_settings

CLEAN = "clean"


@dataclass(frozen=True)
class CorruptionRow:
    """The error under one corruption at one severity.

    Attributes:
        corruption: Name of the corruption, or ``"clean"``.
        severity: Severity, 1 to 5; 0 for clean images.
        error: Fraction of images that the head classifies wrongly.
        class_means_error: The same for class means of the training features; None if they were not
            asked for.
        num_images: Number of images.
    """

    corruption: str
    severity: int
    error: float
    class_means_error: float | None
    num_images: int


class _Task(NamedTuple):
    corruption: str
    severity: int


def run_corruptions(
    run: Run,
    *,
    corruptions: Sequence[str] = CORRUPTIONS,
    severities: Sequence[int] = SEVERITIES,
    folder: Path | str | None = None,
    frost: FrostTextures | None = None,
    seed: int = 0,
    class_means: bool = False,
    batch_size: int = 256,
    recompute: bool = False,
    progress: Progress = no_progress,
) -> tuple[CorruptionRow, ...]:
    """Classify corrupted test images, and keep the errors in the run folder.

    Without test images, those of a folder are its validation images.

    Images in memory are corrupted as they are stored; image files are cropped for evaluation
    first, as those of ImageNet-C. Then they are normalized as in training. Each error is written
    when it is known: a call that was interrupted continues, and a call with other corruptions or
    severities adds to what is there.

    Args:
        run: The run.
        corruptions: Which corruptions.
        severities: Which severities.
        folder: CIFAR-10-C, CIFAR-100-C or ImageNet-C on disk; None computes the corruptions.
        frost: Textures of frost; None means the procedural ones.
        seed: Seed of the corruptions.
        class_means: Whether images are also classified by class means, which takes one pass over
            the training images.
        batch_size: Number of images in a batch.
        recompute: Whether errors that the folder has are computed again, of these corruptions and
            severities.
        progress: Called with the fraction that is done.

    Returns:
        One row for clean images, then one per corruption and severity.
        ``benchmarks/corruptions.json`` holds them, or ``benchmarks/corruption-files.json`` for
        images from disk. If the images come from disk and the clean ones are missing, there is no
        row for these.

    Raises:
        ValueError: A corruption or severity is unknown.
        DataError: The run has no test images, they are gray, or corrupted ones are missing.
    """
    check_corruptions(corruptions, severities)
    if run.channels != 3:
        raise DataError(f"corruptions need color images; those of {run.path} are gray")
    source = None
    if folder is not None:
        source = open_corruption_files(
            folder, class_names=run.class_names, corruptions=corruptions, severities=severities
        )
    clean = _clean_images(run, required=source is None)
    settings: dict[str, Any] = run_settings(run) | {
        "test": None if clean is None else clean.fingerprint(),
        "size": run.transform.size,
    }
    if source is None:
        settings |= {
            "version": CORRUPTIONS_VERSION,
            "seed": seed,
            "frost": "procedural" if frost is None else frost.fingerprint,
        }
    else:
        settings |= {"folder": str(Path(folder or "").expanduser().resolve())}
    name = "corruptions" if source is None else "corruption-files"
    tasks = [_Task(name, severity) for name in corruptions for severity in severities]
    if clean is not None:
        tasks.insert(0, _Task(CLEAN, 0))

    def is_replaced(row: CorruptionRow) -> bool:
        is_incomplete = class_means and row.class_means_error is None
        return (recompute or is_incomplete) and _Task(row.corruption, row.severity) in tasks

    result = ResultFile(
        run.path,
        name,
        CorruptionRow,
        settings,
        recompute=is_replaced if recompute or class_means else False,
    )
    done = {_Task(row.corruption, row.severity) for row in result.rows}
    pending = [task for task in tasks if task not in done]
    if pending:
        worker = _Worker(run, clean, source, frost, seed, batch_size)
        worker.measure(pending, result, class_means=class_means, progress=progress)
    rows = {_Task(row.corruption, row.severity): row for row in result.rows}
    if not class_means:
        rows = {task: replace(row, class_means_error=None) for task, row in rows.items()}
    return tuple(rows[task] for task in tasks)


def check_corruptions(corruptions: Sequence[str], severities: Sequence[int]) -> None:
    """Check names and severities before anything is computed.

    Args:
        corruptions: Names of corruptions.
        severities: Severities.

    Raises:
        ValueError: One is unknown.
    """
    known = CORRUPTIONS + EXTRA_CORRUPTIONS
    for name in corruptions:
        if name not in known:
            raise ValueError(f"a corruption must be one of {', '.join(known)}; got {name!r}")
    for severity in severities:
        if severity not in SEVERITIES:
            raise ValueError(f"a severity must be a whole number from 1 to 5, got {severity}")


def check_baseline(run: Run, baseline: Run) -> None:
    """Check that a run can be compared with a baseline.

    Args:
        run: The run.
        baseline: The baseline.

    Raises:
        DataError: They have other classes or other test images.
    """
    if run.class_names != baseline.class_names:
        raise DataError(
            f"the baseline must have the classes of {run.path}; {baseline.path} has "
            f"{_describe_classes(run, baseline)}"
        )
    own, other = (_clean_images(one, required=False) for one in (run, baseline))
    if own is not None and other is not None and own.fingerprint() != other.fingerprint():
        raise DataError(
            f"the baseline must have the test images of {run.path}; {baseline.path} has others"
        )


def _describe_classes(run: Run, baseline: Run) -> str:
    if len(run.class_names) != len(baseline.class_names):
        return f"{len(baseline.class_names)} instead of {len(run.class_names)}"
    return "others, or the same in another order"


def _clean_images(run: Run, *, required: bool) -> ImageSet | ImageFiles | None:
    try:
        images = run.dataset(reported_split(run.recipe)).test
    except DataError:
        if required:
            raise
        return None
    assert isinstance(images, ImageSet | ImageFiles)
    if not len(images):
        raise DataError(f"corruptions need test images; {run.path} has none")
    return images


@dataclass(frozen=True)
class _Worker:
    """What one run is measured with."""

    run: Run
    clean: ImageSet | ImageFiles | None
    source: CorruptionArrays | CorruptionFolder | None
    frost: FrostTextures | None
    seed: int
    batch_size: int

    def measure(
        self,
        tasks: Sequence[_Task],
        result: ResultFile[CorruptionRow],
        *,
        class_means: bool,
        progress: Progress,
    ) -> None:
        """Measure errors, each written at once."""
        train = self.run.dataset(None).train if class_means else None
        num_clean = 0 if self.clean is None else len(self.clean)
        sizes = [0 if train is None else len(train), *[max(num_clean, 1)] * len(tasks)]
        first, *stages = split_progress(progress, sizes)
        means = None
        if train is not None:
            assert isinstance(train, ImageSet | ImageFiles)
            means = self._class_means(train, first)
        clean = self._load_clean(tasks)
        for task, stage in zip(tasks, stages, strict=True):
            batches = self._batches(task, clean, stage)
            errors = measure_errors(self.run.objective, batches, means=means)
            result.append(
                CorruptionRow(
                    task.corruption,
                    task.severity,
                    errors.head,
                    errors.class_means,
                    errors.num_images,
                )
            )

    def _load_clean(self, tasks: Sequence[_Task]) -> ImageSet | ImageFiles | MemoryImages | None:
        """Return the clean images, files decoded once if they are read several times."""
        clean, size = self.clean, self.run.transform.size
        num_passes = len(tasks) if self.source is None else 1
        if not isinstance(clean, ImageFiles) or num_passes == 1:
            return clean
        if not fits_in_memory(len(clean), size, limit_bytes=memory_limit()):
            return clean
        return load_into_memory(clean, size=size, workers=self._workers)

    def _batches(
        self,
        task: _Task,
        clean: ImageSet | ImageFiles | MemoryImages | None,
        progress: Progress,
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield corrupted, normalized images and labels."""
        from_disk = self.source is not None and task.corruption != CLEAN
        if from_disk:
            assert self.source is not None
            images: ImageSet | ImageFiles | MemoryImages | None = self.source.images(*task)
        else:
            images = clean
        assert images is not None
        labels = images.labels.to(self.run.device)
        device = measuring_device(self.run.device)
        start = 0
        for pixels in pixel_batches(
            images,
            self.run.transform,
            device=device,
            batch_size=self.batch_size,
            workers=self._workers,
            crop_fraction=1.0 if from_disk else CROP_FRACTION,
        ):
            stop = start + len(pixels)
            if not from_disk and task.corruption != CLEAN:
                pixels = corrupt(  # noqa: PLW2901
                    pixels,
                    task.corruption,
                    severity=task.severity,
                    seed=self.seed,
                    first_index=start,
                    frost=self.frost,
                )
            yield self.run.transform.normalize(pixels.to(self.run.device)), labels[start:stop]
            start = stop
            progress(start / len(labels))

    def _class_means(self, train: ImageSet | ImageFiles, progress: Progress) -> Tensor:
        run = self.run
        device = measuring_device(run.device)
        sums = empty_means(*run.objective.head.prototypes.shape, device=device)
        labels, start = train.labels.to(device), 0
        with evaluation_mode(run.objective), torch.no_grad():
            for images in image_batches(
                train,
                run.transform,
                device=run.device,
                batch_size=self.batch_size,
                workers=self._workers,
            ):
                features = run.objective.encoder(images).float().to(device)
                stop = start + len(features)
                sums = sums.add(features, labels[start:stop])
                start = stop
                progress(start / len(labels))
        return sums.means.nan_to_num()

    @property
    def _workers(self) -> int:
        data = self.run.recipe.data
        return data.workers if isinstance(data, ImageFilesData) else 8
