"""Settings that would have no effect on a new run, because of other settings or of the data.

Settings that never go together are refused by the schema. Those here can change when a run is
resumed, or depend on the data, so that runs that were trained with them stay readable.
"""

import math
from collections.abc import Iterator, Sequence

from protosphere.data.augmentation import AugmentationPolicy
from protosphere.data.mixing import MixupOrCutMix
from protosphere.recipes.schema import Recipe, RecipeError
from protosphere.recipes.schema.sections import MultiStepSchedule

# Keys that may change when a run is resumed, and that say nothing of a run that is evaluated.
_ONLY_IN_TRAINING = ("checkpoint", "evaluation.every", "loss.shard_prototypes", "training.fsdp")


def check_effects(recipe: Recipe, *, num_train: int | None = None) -> None:
    """Check that the settings of a recipe that is to be trained have an effect.

    Args:
        recipe: The recipe.
        num_train: Number of training images, if it is known.

    Raises:
        RecipeError: A setting has no effect; one sentence says which, and because of what.

    >>> from protosphere.recipes.catalog import get_recipe
    >>> check_effects(get_recipe("cifar100-nonl"))
    """
    problem = next(_problems(recipe, num_train), None)
    if problem is not None:
        raise RecipeError(problem)


def check_run_overrides(overrides: Sequence[str]) -> None:
    """Check that overrides of a run that is loaded have an effect.

    Args:
        overrides: Each ``dotted.path=value``.

    Raises:
        RecipeError: One only says how a run is trained.

    >>> check_run_overrides(["data.root=images", "evaluation.metrics=cheap"])
    """
    for override in overrides:
        key = override.partition("=")[0].strip()
        if key in _ONLY_IN_TRAINING or key.startswith("checkpoint."):
            raise RecipeError(f"{key} has no effect on a run that has been trained")


def _problems(recipe: Recipe, num_train: int | None) -> Iterator[str]:
    yield from _of_checkpoints(recipe)
    yield from _of_schedule(recipe)
    yield from _of_mixing(recipe.augmentation)
    yield from _of_color_jitter(recipe.augmentation)
    if num_train is not None:
        yield from _of_batches(recipe, num_train)


def _of_checkpoints(recipe: Recipe) -> Iterator[str]:
    epochs, every = recipe.schedule.epochs, recipe.evaluation.every
    monitor, patience = recipe.checkpoint.monitor, recipe.checkpoint.patience
    count = math.ceil(epochs / every)
    if monitor is not None and count == 1 < epochs:
        yield (
            "checkpoint.monitor has no effect on a run with one evaluation: evaluation.every must "
            f"be less than schedule.epochs ({epochs}), got {every}"
        )
    # The first evaluation is a new best, and the last one ends the run anyway.
    if patience is not None and patience > count - 2:
        rule = "be null" if count < 3 else f"be at most {count - 2} or null"
        evaluations = "1 evaluation" if count == 1 else f"{count} evaluations"
        yield (
            f"checkpoint.patience must {rule} for a run with {evaluations} (schedule.epochs "
            f"{epochs}, evaluation.every {every}), which it could not end early, got {patience}"
        )


def _of_schedule(recipe: Recipe) -> Iterator[str]:
    schedule = recipe.schedule
    if isinstance(schedule, MultiStepSchedule) and schedule.milestones[0] < schedule.warmup_epochs:
        yield (
            f"schedule.milestones must be at least schedule.warmup_epochs "
            f"({schedule.warmup_epochs}), got {list(schedule.milestones)}"
        )


def _of_mixing(policy: AugmentationPolicy) -> Iterator[str]:
    mixing = policy.mixing
    if mixing is None:
        return
    if not mixing.p:
        yield "augmentation.mixing must be null or have a p greater than 0, got p 0"
    if isinstance(mixing, MixupOrCutMix):
        for p, key, default in (
            (1, "mixup_alpha", MixupOrCutMix.mixup_alpha),
            (0, "cutmix_alpha", MixupOrCutMix.cutmix_alpha),
        ):
            if mixing.cutmix_p == p and getattr(mixing, key) != default:
                yield (
                    f"augmentation.mixing.{key} has no effect with augmentation.mixing.cutmix_p {p}"
                )


def _of_color_jitter(policy: AugmentationPolicy) -> Iterator[str]:
    jitter = policy.color_jitter
    if jitter is None:
        return
    if not jitter.p:
        yield "augmentation.color_jitter must be null or have a p greater than 0, got p 0"
    if not any((jitter.brightness, jitter.contrast, jitter.saturation, jitter.hue)):
        yield (
            "augmentation.color_jitter must be null or have a brightness, contrast, saturation or "
            "hue greater than 0, got none"
        )


def _of_batches(recipe: Recipe, num_train: int) -> Iterator[str]:
    training, queue = recipe.training, getattr(recipe.loss, "queue", None)
    if training.micro_batch_size is not None and training.micro_batch_size >= num_train:
        yield (
            f"training.micro_batch_size must be less than the number of training images "
            f"({num_train}) or null, got {training.micro_batch_size}"
        )
    if queue is not None and queue.max_age is not None:
        num_features = recipe.augmentation.num_views * min(training.batch_size, num_train)
        steps = math.ceil(queue.size / num_features)
        if queue.max_age >= steps:
            yield (
                f"loss.queue.max_age has no effect with loss.queue.size {queue.size}, which holds "
                f"the features of {steps} {'step' if steps == 1 else 'steps'} of {num_features}: "
                f"it must be less than {steps} or null, got {queue.max_age}"
            )
