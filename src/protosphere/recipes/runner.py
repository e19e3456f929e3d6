"""Run a recipe in a run folder: train, evaluate, log and save; resume after an interruption."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

import torch

from protosphere.data.datasets import ChannelStatistics, ImageDataset
from protosphere.data.loaders import MemoryLoader
from protosphere.evaluation import evaluate
from protosphere.parallel.launch import PeerError, World
from protosphere.recipes import build, reports
from protosphere.recipes.devices import resolve_device
from protosphere.recipes.initialization import (
    Initialization,
    check_resumed_source,
    check_source,
    initialize_from,
    initialize_sharded_head,
    read_initialization,
    write_initialization,
)
from protosphere.recipes.monitor import BestEvaluation, is_patience_exhausted
from protosphere.recipes.schema import Recipe, RecipeError, compare_texts
from protosphere.runs import RunFolder, RunFolderError
from protosphere.runs.checkpoints import (
    Checkpoint,
    has_checkpoint,
    load_checkpoint,
)
from protosphere.runs.metadata import (
    DataMetadata,
    check_class_names,
    check_fingerprints,
    machine,
    write_class_names,
)
from protosphere.training import Progress, TrainingError, train


@dataclass(frozen=True)
class Event:
    """What happened since the last event.

    Attributes:
        progress: The state of training.
        metrics: Metrics of the evaluation after this epoch, or None if there was none.
        resumed_at: Step of the checkpoint that the run was resumed from; 0 for a new run.
        best: The best evaluation so far, if the recipe monitors a metric.
        stopped_early: Whether this is the last event because the monitored metric has stopped
            improving.
    """

    progress: Progress
    metrics: dict[str, float] | None
    resumed_at: int
    best: BestEvaluation | None = None
    stopped_early: bool = False


def run_recipe(
    recipe: Recipe,
    folder: RunFolder | Path | str,
    dataset: ImageDataset,
    *,
    device: torch.device | str = "cpu",
    start: Literal["fresh", "resume"] = "fresh",
    init_from: Path | str | None = None,
    report_every: int | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    load_progress: Callable[[float], None] = lambda _: None,
    world: World | None = None,
) -> Iterator[Event]:
    """Run a recipe. The generator trains while it is iterated; exhaust it to complete the run.

    Of several processes, only the first one uses the folder; all of them train and evaluate. They
    must all iterate, and they get the same events.

    Args:
        recipe: The recipe.
        folder: The run folder; it is locked while the run goes on.
        dataset: The data, as :func:`protosphere.recipes.build.load_dataset` loads them.
        device: Where to train; ``"auto"`` finds a GPU, as ``--device auto`` does.
        start: ``"fresh"`` refuses a folder that has a run; ``"resume"`` continues from its last
            checkpoint, if there is one.
        init_from: Folder of an earlier run whose weights new training starts from. A run that is
            resumed has its own weights, or those that it was started from if it has no checkpoint;
            it can only be given the folder that it was started from.
        report_every: Number of steps between events within an epoch; None for one event per epoch.
        should_stop: Called after each step; once it returns True, a checkpoint is saved and the
            run ends.
        load_progress: Called with the fraction of the images that has been loaded into memory, if
            they are.
        world: The processes that train together; None for this one alone.

    Yields:
        An event at the end of each epoch and every ``report_every`` steps.

    Raises:
        RunFolderError: The folder is in use, belongs to another recipe or other data, or is
            damaged.
        TrainingError: The loss is not finite; the message names the last checkpoint.
        PeerError: Another process has failed.
        ValueError: The device cannot compute on this machine.
    """
    device = resolve_device(device)
    folder = folder if isinstance(folder, RunFolder) else RunFolder(folder)
    world = World() if world is None else world
    # Everything that can be refused is checked before the folder is touched.
    plan = world.from_first(
        lambda: _make_plan(recipe, folder, dataset, start, init_from, device, world.local_size)
    )
    with world.together():
        objective = build.create_objective(
            recipe,
            num_classes=dataset.train.num_classes,
            in_channels=dataset.train.channels,
            device=device,
            class_counts=build.count_classes(dataset),
            # The other processes get the weights of the first one.
            pretrained="recipe" if plan.loads_pretrained and world.is_first else "none",
            group=world.group,
        )
        initialization = None
        if plan.init_from is not None and world.is_first:
            initialization = initialize_from(
                objective, plan.init_from, class_names=dataset.train.class_names
            )
        config = build.create_train_config(
            recipe, objective, device=device, report_every=report_every, world_size=world.size
        )
        loaders = build.create_loaders(
            recipe,
            dataset,
            device,
            statistics=plan.statistics,
            in_memory=plan.in_memory,
            progress=load_progress,
        )
        data = _describe(recipe, dataset, plan.statistics, isinstance(loaders[0], MemoryLoader))
    _check_same_data(world, data)
    if plan.init_from is not None:
        initialization = initialize_sharded_head(
            objective,
            initialization,
            plan.init_from,
            class_names=dataset.train.class_names,
            world=world,
        )
    with ExitStack() as stack:
        checkpoint, is_done = world.from_first(
            lambda: _open_folder(
                stack, recipe, folder, dataset, data, start, initialization, plan, device
            )
        )
        if is_done:
            return
        resumed_at = 0 if checkpoint is None else checkpoint.step
        try:
            for progress in train(
                objective,
                loaders[0],
                config,
                resume=checkpoint,
                should_stop=should_stop,
                world=world,
            ):
                if progress.at_epoch_end:
                    world.from_first(
                        partial(reports.log_training, folder, progress, loaders[0].device)
                    )
                evaluation = None
                if reports.is_evaluated(recipe, progress):
                    with progress.ema_weights():
                        evaluation = evaluate(
                            objective, *loaders, metrics=recipe.evaluation.metrics, world=world
                        )
                outcome = world.from_first(
                    partial(reports.record, recipe, folder, progress, evaluation)
                )
                if outcome.saves:
                    reports.save(recipe, folder, progress, objective, outcome, world)
                yield Event(progress, outcome.metrics, resumed_at, outcome.best, outcome.stop)
                if outcome.stop:
                    return
        except TrainingError as error:
            if not world.is_first:  # It fails on all of them, and the first one sees the folder.
                raise PeerError("training has failed") from error
            last = load_checkpoint(folder.checkpoints)
            saved = (
                "there is no checkpoint"
                if last is None
                else f"the last checkpoint is of step {last.step}"
            )
            raise TrainingError(f"{error}; {saved}") from None


class _Plan(NamedTuple):
    """What follows from the run folder; processes that do not see it get it from the first one."""

    is_new: bool
    init_from: Path | str | None
    loads_pretrained: bool
    statistics: ChannelStatistics
    in_memory: bool


def _make_plan(
    recipe: Recipe,
    folder: RunFolder,
    dataset: ImageDataset,
    start: Literal["fresh", "resume"],
    init_from: Path | str | None,
    device: torch.device | str,
    local_size: int,
) -> _Plan:
    if start == "fresh":
        _refuse_a_run(folder)
    is_new = start == "fresh" or not has_checkpoint(folder.checkpoints)
    if is_new and start == "resume" and init_from is None:
        init_from = read_initialization(folder)  # It was killed before its first checkpoint.
    if not is_new and init_from is not None:
        check_resumed_source(folder, init_from)
    if is_new and init_from is None:
        _check_frozen(recipe)
    elif is_new and init_from is not None:
        check_source(init_from)
    # Crops of images in memory are others than those of files, whatever memory there is now.
    in_memory = None if is_new else DataMetadata.read(folder).in_memory
    if in_memory is None:
        in_memory = build.keeps_in_memory(recipe, dataset, device, copies=local_size)
    return _Plan(
        is_new,
        init_from if is_new else None,
        is_new and init_from is None,
        _statistics(recipe, dataset, init_from if is_new else folder.path),
        in_memory,
    )


def _check_same_data(world: World, data: DataMetadata) -> None:
    fingerprints = world.gather((data.train_fingerprint, data.eval_fingerprint))
    others = [rank for rank, one in enumerate(fingerprints) if one != fingerprints[0]]
    if others and world.is_first:
        raise RunFolderError(
            f"the images must be the same for every process, but those of process {others[0]} are "
            "others than those of process 0"
        )
    if others:
        raise PeerError("the images of the processes differ")


def _open_folder(
    stack: ExitStack,
    recipe: Recipe,
    folder: RunFolder,
    dataset: ImageDataset,
    data: DataMetadata,
    start: Literal["fresh", "resume"],
    initialization: Initialization | None,
    plan: _Plan,
    device: torch.device | str,
) -> tuple[Checkpoint | None, bool]:
    """Lock the folder and write what is known before training.

    Returns:
        The checkpoint to resume from, and whether the run has stopped early before.
    """
    stack.enter_context(folder.lock())
    folder.start(recipe.to_yaml(), compare=compare_texts)
    checkpoint = load_checkpoint(folder.checkpoints)
    if start == "fresh":
        _refuse_a_run(folder)  # Another process may have started one.
    if checkpoint is not None:
        check_class_names(folder, dataset.train.class_names)
        check_fingerprints(folder, train=data.train_fingerprint, eval=data.eval_fingerprint)
    if start == "resume":
        folder.write_recipe(recipe.to_yaml())  # The location of the data may have changed.
    folder.write_json("machine.json", machine(_device_name(device)))
    write_class_names(folder, dataset.train.class_names)
    data.write(folder)
    if plan.is_new:
        write_initialization(folder, initialization)
    folder.discard_records_after(0 if checkpoint is None else checkpoint.step)
    return checkpoint, is_patience_exhausted(recipe.checkpoint, folder.records())


def _statistics(
    recipe: Recipe, dataset: ImageDataset, source: Path | str | None
) -> ChannelStatistics:
    """Return what images are normalized with: weights of a run expect what the run recorded."""
    if source is not None:
        data = DataMetadata.read(RunFolder(source))
        if data.channels == dataset.train.channels:
            return ChannelStatistics(data.mean, data.std)
    return build.channel_statistics(recipe, dataset)


def _refuse_a_run(folder: RunFolder) -> None:
    if has_checkpoint(folder.checkpoints) or folder.records():
        raise RunFolderError(
            f"{folder.path} already has a run; resume it (--resume) or choose another folder"
        )


def _check_frozen(recipe: Recipe) -> None:
    if recipe.model.freeze != "none" and not recipe.model.backbone.pretrained:
        raise RecipeError(
            "model.freeze must be none without model.backbone.pretrained or the weights of a run "
            "(--init-from): random weights would be frozen"
        )


def _describe(
    recipe: Recipe, dataset: ImageDataset, statistics: ChannelStatistics, in_memory: bool
) -> DataMetadata:
    return DataMetadata(
        num_train=len(dataset.train),
        num_eval=len(dataset.test),
        split=recipe.split,
        train_fingerprint=dataset.train.fingerprint(),
        eval_fingerprint=dataset.test.fingerprint(),
        channels=dataset.train.channels,
        mean=tuple(statistics.mean),
        std=tuple(statistics.std),
        evaluation_crop=dataset.train.evaluation_crop,
        class_counts=build.count_classes(dataset),
        in_memory=in_memory,
    )


def _device_name(device: torch.device | str) -> str:
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name(device)
    return str(device)
