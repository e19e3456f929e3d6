"""Trained runs: load one from its folder to predict, evaluate, or extract features."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import torch

from protosphere.classifiers.protocol import FittedHead
from protosphere.data.augmentation import EvaluationTransform
from protosphere.data.datasets import ChannelStatistics, DataError, ImageDataset
from protosphere.data.feature_files import FeatureFile
from protosphere.data.image_inputs import ImageInput
from protosphere.data.loaders import Loader
from protosphere.data.progress import Progress, no_progress
from protosphere.evaluation import Evaluation, collect_outputs, evaluate, fit_head
from protosphere.evaluation.export import ExportPart, export_model
from protosphere.evaluation.predict import Predictions, predict_images
from protosphere.evaluation.probes import PROBES, ProbeName, ProbeResult, run_probes
from protosphere.recipes import build, catalog
from protosphere.recipes.devices import resolve_device
from protosphere.recipes.monitor import load_chosen_checkpoint
from protosphere.recipes.schema import (
    Recipe,
    RecipeError,
    apply_overrides,
    find_difference,
    recipe_from_yaml,
)
from protosphere.runs import RunFolder, RunFolderError
from protosphere.runs.checkpoints import Checkpoint
from protosphere.runs.metadata import (
    DataMetadata,
    check_class_names,
    check_fingerprints,
    read_class_names,
)
from protosphere.training import Objective

_LOG = logging.getLogger(__name__)


def read_recipe(name: str, overrides: Sequence[str] = ()) -> Recipe:
    """Return a recipe of the catalog or of a YAML file.

    Args:
        name: Name of a recipe, or path of a YAML file.
        overrides: Values to replace, each ``dotted.path=value``.

    Raises:
        RecipeError: There is no such recipe, or it is not valid.
    """
    path = Path(name)
    if name in catalog.names() or (path.suffix not in (".yaml", ".yml") and not path.is_file()):
        return apply_overrides(catalog.get_recipe(name), overrides)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise RecipeError(f"{path} must be a YAML file; it does not exist") from None
    except (OSError, UnicodeDecodeError):
        raise RecipeError(f"cannot read {path}: it must be a YAML file") from None
    return apply_overrides(recipe_from_yaml(text, path), overrides)


def read_run_recipe(folder: RunFolder, overrides: Sequence[str] = ()) -> Recipe:
    """Return the recipe of a run.

    Args:
        folder: The run folder.
        overrides: Values to replace, each ``dotted.path=value``: where the data are and the like.

    Raises:
        RunFolderError: The folder is not a run, or an override changes what was trained.
        RecipeError: An override is not valid.
    """
    try:
        stored = recipe_from_yaml(folder.recipe.read_text(encoding="utf-8"), folder.recipe)
    except (OSError, UnicodeDecodeError):
        raise RunFolderError(f"{folder.path} is not a run folder: it has no recipe") from None
    recipe = apply_overrides(stored, overrides)
    if changed := find_difference(stored, recipe):
        raise RunFolderError(
            f"{folder.path}: overrides must not change what was trained: {changed}"
        )
    return recipe


@dataclass(frozen=True)
class Run:
    """A trained run.

    Its data are read only by the methods that need them.

    Attributes:
        path: The run folder.
        recipe: The recipe, with overrides applied.
        step: Step of the checkpoint that was loaded.
        class_names: Class names, in the order of the class indices.
        channels: Number of channels of the images.
        device: Where the model is.
        objective: Encoder, head and loss with the weights of the checkpoint, or their
            moving average if the run has one.
        transform: The transform of images for evaluation.
        split: The split that the run was evaluated on during training.

    >>> run = load_run("runs/digits")  # doctest: +SKIP
    >>> run.predict(["photo.jpg"]).classes  # doctest: +SKIP
    """

    path: Path
    recipe: Recipe
    step: int
    class_names: tuple[str, ...]
    channels: int
    device: torch.device
    objective: Objective = field(repr=False)
    transform: EvaluationTransform
    split: build.EvaluationSplit
    download: bool = False
    _datasets: dict[str, ImageDataset] = field(default_factory=dict, repr=False, compare=False)

    def predict(
        self,
        images: ImageInput | Iterable[ImageInput],
        *,
        top_k: int = 1,
        batch_size: int = 256,
    ) -> Predictions:
        """Classify images, read as ``protosphere predict`` reads files.

        Args:
            images: One image or several: paths, Pillow images, uint8 arrays (height, width,
                channels) or uint8 tensors (channels, height, width), of any size.
            top_k: Number of the most probable classes to return for each image.
            batch_size: Number of images that are classified at a time.

        Returns:
            Class index, confidence, rejection score and most probable classes of each image.

        Raises:
            ValueError: An image has another type or shape or cannot be read, or there are none.
        """
        return predict_images(
            self.objective, self.transform, images, top_k=top_k, batch_size=batch_size
        )

    def export(
        self, path: Path | str, *, what: ExportPart = "model", overwrite: bool = False
    ) -> Path:
        """Write the model to an ONNX or safetensors file, with a JSON file that describes it.

        Args:
            path: File to write, ``.onnx`` or ``.safetensors``.
            what: The whole ``"model"``, or the ``"backbone"`` (``.safetensors`` only).
            overwrite: Whether files that exist are replaced.

        Returns:
            Path of the JSON file.

        Raises:
            ValueError: The suffix is another one, or a file exists.
            ExportError: The model cannot be exported, or the exported one gives other results.
        """
        return export_model(
            self.objective,
            self.transform,
            path,
            class_names=self.class_names,
            recipe=self.recipe.name,
            backbone=self.recipe.model.backbone.name,
            what=what,
            overwrite=overwrite,
        )

    def features(
        self,
        split: Literal["train", "validation", "test"] = "train",
        *,
        progress: Progress = no_progress,
    ) -> FeatureFile:
        """Compute the features of a split, as the head receives them.

        Args:
            split: Which images.
            progress: Called with the fraction that is done.

        Returns:
            Features, labels, the head's prototypes and bias, and the class names.

        Raises:
            ValueError: There is no such split.
            DataError: The data are not there.
            RunFolderError: They are not the data of the run.
        """
        if split not in ("train", "validation", "test"):
            raise ValueError(f"split must be train, validation or test, got {split!r}")
        train, test = self._loaders(None if split == "train" else split)
        loader = train if split == "train" else test
        outputs = collect_outputs(self.objective, loader, progress=progress)
        head = self.objective.head
        return FeatureFile(
            outputs.features,
            outputs.labels,
            head.prototypes.detach(),
            None if head.bias is None else head.bias.detach(),
            self.class_names,
        )

    def evaluate(
        self,
        *,
        split: build.EvaluationSplit | None = None,
        metrics: Literal["all", "cheap"] | None = None,
        progress: Progress = no_progress,
    ) -> Evaluation:
        """Evaluate the run: accuracies, collapse metrics and arrays for plots.

        Args:
            split: Images to compute the accuracy on; None for the split of the run.
            metrics: Which collapse metrics; None for those of the recipe.
            progress: Called with the fraction that is done.

        Raises:
            ValueError: There are no such metrics.
            DataError: There is no such split, or the data are not there.
            RunFolderError: They are not the data of the run.
        """
        metrics = self.recipe.evaluation.metrics if metrics is None else metrics
        if metrics not in ("all", "cheap"):
            raise ValueError(f"metrics must be all or cheap, got {metrics!r}")
        train, test = self._loaders(split)
        self._compare_images(split)
        return evaluate(self.objective, train, test, metrics=metrics, progress=progress)

    def probe(
        self,
        names: Sequence[ProbeName] = PROBES,
        *,
        split: build.EvaluationSplit | None = None,
        metrics: Literal["all", "none"] | None = None,
        progress: Progress = no_progress,
    ) -> Iterator[ProbeResult]:
        """Compare classifiers on the frozen features of the run.

        Linear classifiers are trained with one view of each image, cropped and flipped as in
        training but without any other augmentation.

        Args:
            names: Which classifiers.
            split: Images to compute the accuracy on; None for the split of the run.
            metrics: Whether collapse metrics are measured for each classifier; None measures them
                if the recipe has ``evaluation.metrics: all``.
            progress: Called with the fraction of the present classifier that is done.

        Yields:
            One result for each classifier and kind of features.
        """
        if metrics is None:
            metrics = "all" if self.recipe.evaluation.metrics == "all" else "none"
        if metrics not in ("all", "none"):
            raise ValueError(f"metrics must be all or none, got {metrics!r}")
        policy = replace(
            self.recipe.augmentation,
            num_views=1,
            color_jitter=None,
            grayscale=0.0,
            gaussian_blur=0.0,
            auto_augment=None,
            random_erasing=0.0,
            mixing=None,
        )
        data = self.recipe.data.model_copy(update={"sampler": "uniform"})
        recipe = self.recipe.model_copy(update={"augmentation": policy, "data": data})
        train, test = build.create_loaders(
            recipe, self.dataset(split), self.device, statistics=self._statistics()
        )
        config = build.create_probe_config(recipe, device=self.device)
        return run_probes(
            self.objective, train, test, config, names=names, metrics=metrics, progress=progress
        )

    def dataset(self, split: build.EvaluationSplit | None = None) -> ImageDataset:
        """Load the data of the run.

        Args:
            split: Which images stand in ``dataset.test``; None for the split of the run.

        Raises:
            DataError: The data are not there.
            RunFolderError: They have other classes or training images than the run.
        """
        split = self.split if split is None else split
        if split not in self._datasets:
            dataset = build.load_dataset(self.recipe, download=self.download, split=split)
            folder = RunFolder(self.path)
            check_class_names(folder, dataset.train.class_names)
            check_fingerprints(folder, train=dataset.train.fingerprint())
            self._datasets[split] = dataset
        return self._datasets[split]

    def _compare_images(self, split: build.EvaluationSplit | None) -> None:
        """Warn if the images are not those that the run was evaluated on during training."""
        known = DataMetadata.read(RunFolder(self.path)).eval_fingerprint
        if split in (None, self.split) and self.dataset(split).test.fingerprint() != known:
            _LOG.warning(
                "these %s images are not those that the run was evaluated on during training",
                self.split,
            )

    def _loaders(self, split: build.EvaluationSplit | None) -> tuple[Loader, Loader]:
        return build.create_loaders(
            self.recipe, self.dataset(split), self.device, statistics=self._statistics()
        )

    def _statistics(self) -> ChannelStatistics:
        return ChannelStatistics(self.transform.mean, self.transform.std)


def load_run(
    path: Path | str,
    *,
    device: torch.device | str = "cpu",
    overrides: Sequence[str] = (),
    checkpoint: Literal["best", "last"] | None = None,
    download: bool = False,
    progress: Progress = no_progress,
) -> Run:
    """Load a trained run.

    Args:
        path: The run folder.
        device: Where to put the model; ``"auto"`` finds a GPU, as ``--device auto`` does.
        overrides: Values of the recipe to replace, as :func:`read_run_recipe` takes them.
        checkpoint: Which checkpoint: the best one by the metric that the recipe monitors, or the
            last one. None takes the best one if the recipe monitors a metric.
        download: Whether a missing dataset is downloaded when the data are needed.
        progress: Called with the fraction that is done while class means are computed, for
            contrastive runs that were stopped between two evaluations.

    Returns:
        The run, in evaluation mode.

    Raises:
        RunFolderError: The folder is not a run, has no checkpoint, or a damaged one.
        RecipeError: An override is not valid.
        ValueError: The device cannot compute on this machine.
    """
    folder, device = RunFolder(path), resolve_device(device)
    recipe = read_run_recipe(folder, overrides)
    weights = load_chosen_checkpoint(folder, recipe.checkpoint, checkpoint)
    names, data = tuple(read_class_names(folder)), DataMetadata.read(folder)
    objective = build.create_objective(
        recipe,
        num_classes=len(names),
        in_channels=data.channels,
        device=device,
        class_counts=data.class_counts,
        pretrained="none",
    )
    _load_weights(objective, weights, folder)
    run = Run(
        path=folder.path,
        recipe=recipe,
        step=weights.step,
        class_names=names,
        channels=data.channels,
        device=torch.device(device),
        objective=objective.eval(),
        transform=EvaluationTransform(
            recipe.augmentation.size, data.mean, data.std, crop=data.evaluation_crop
        ),
        split=data.split,
        download=download,
    )
    if isinstance(objective.head, FittedHead) and not objective.head.is_fitted:
        _fit(run, progress)
    return run


def _fit(run: Run, progress: Progress) -> None:
    """Compute the class means of a contrastive run that was stopped between two evaluations."""
    try:
        train, _ = run._loaders(None)
    except DataError as error:
        raise RunFolderError(
            f"{run.path} was stopped between two evaluations, so its class means must be computed "
            f"from its training images: {error}"
        ) from None
    fit_head(run.objective, train, progress=progress)


def _load_weights(objective: Objective, checkpoint: Checkpoint, folder: RunFolder) -> None:
    try:
        objective.load_state_dict(checkpoint.weights | checkpoint.state.get("ema", {}))
    except RuntimeError:
        raise RunFolderError(
            f"the checkpoint in {folder.path} does not fit its recipe: it is of another model"
        ) from None
