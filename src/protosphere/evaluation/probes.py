"""Probes: classifiers on frozen features, with their accuracy and their cost."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, NamedTuple, TypeVar, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from protosphere.classifiers import CosineClassifier, LinearClassifier, MeanClassifier, class_means
from protosphere.data.loaders import FeatureLoader, Loader
from protosphere.data.progress import no_progress
from protosphere.encoders import Encoder
from protosphere.evaluation.inference import (
    LabeledFeatures,
    encode,
    evaluation_mode,
    iterate_features,
)
from protosphere.geometry import normalize
from protosphere.losses import CrossEntropyLoss, NormFaceLoss
from protosphere.metrics import measure
from protosphere.training import Objective, TrainConfig, train

ProbeName = Literal["head", "cosine", "class_means", "linear", "normalized", "cached_linear", "knn"]
FeatureSpace = Literal["output", "backbone"]
PROBES: tuple[ProbeName, ...] = get_args(ProbeName)
_HeadT = TypeVar("_HeadT", LinearClassifier, CosineClassifier)
_NUM_NEIGHBORS, _KNN_TEMPERATURE = 20, 0.07


@dataclass(frozen=True)
class ProbeResult:
    """The result of one probe.

    Attributes:
        name: Name of the probe.
        features: What it classifies: the ``"output"`` of the encoder, or the features of the
            ``"backbone"`` (and neck), before the projection.
        accuracy: Accuracy on the evaluation images, as a fraction.
        num_passes: Number of forward passes over the training images.
        seconds: Time until the probe can classify, including these passes.
        metrics: Collapse metrics of the training features with the probe's weights, if it has any.
    """

    name: ProbeName
    features: FeatureSpace
    accuracy: float
    num_passes: int
    seconds: float
    metrics: dict[str, float] = field(default_factory=dict)


class _Task(NamedTuple):
    """What a probe is fitted to."""

    objective: Objective
    encoder: nn.Module
    loader: Loader
    config: TrainConfig
    progress: Callable[[float], None]

    @property
    def num_classes(self) -> int:
        return len(self.objective.head.prototypes)


class _Fitted(NamedTuple):
    """A fitted probe; ``weights`` are what metrics are measured with, if at all."""

    classify: Callable[[Tensor], Tensor]
    num_passes: int
    weights: Float[Tensor, "classes dim"] | None = None


class _Definition(NamedTuple):
    """How a probe is fitted, and where it stands if the encoder has a projection."""

    fit: Callable[[_Task], _Fitted]
    position: Literal["output", "before_projection", "both"]


def run_probes(
    objective: Objective,
    train_loader: Loader,
    test_loader: Loader,
    config: TrainConfig,
    *,
    names: Sequence[ProbeName] = PROBES,
    metrics: Literal["all", "none"] = "all",
    progress: Callable[[float], None] = no_progress,
) -> Iterator[ProbeResult]:
    """Compare classifiers on the frozen features of a trained objective.

    - ``head``: the head of the objective.
    - ``cosine``: its prototypes by cosine, without norms and biases.
    - ``class_means``: class means of unit features over the training images, one forward pass.
    - ``linear``: a linear layer with bias, trained on augmented images.
    - ``normalized``: unit features and unit weights, trained with NormFace on augmented images.
    - ``cached_linear``: a linear layer with bias, trained on features that are computed once.
    - ``knn``: the 20 nearest training samples by cosine, with votes of weight exp(cos/0.07).

    If the encoder has a projection, ``linear`` and ``normalized`` use the features before it, and
    ``class_means``, ``cached_linear`` and ``knn`` are run on both its output and those features.

    Args:
        objective: A trained objective; it is left unchanged.
        train_loader: Training images, one view of each.
        test_loader: Evaluation images.
        config: Settings for training the linear layers.
        names: Which probes to run, in this order.
        metrics: ``"all"`` also measures the training features with the weights of each probe, which
            holds them in memory.
        progress: Called with the fraction of the current probe that is done.

    Yields:
        One result for each name and kind of features.

    Raises:
        ValueError: A name is not that of a probe.
    """
    for name in names:
        if name not in _DEFINITIONS:
            raise ValueError(f"names must be among {', '.join(PROBES)}; got {name!r}")
    encoders: list[tuple[FeatureSpace, nn.Module]] = [("output", objective.encoder)]
    if isinstance(objective.encoder, Encoder) and objective.encoder.projection is not None:
        encoders.append(("backbone", objective.encoder.without_projection()))
    with evaluation_mode(objective):
        for name in names:
            for space, encoder in _select(encoders, _DEFINITIONS[name].position):
                progress(0.0)
                task = _Task(objective, encoder, train_loader, config, progress)
                start = time.perf_counter()
                fitted = _DEFINITIONS[name].fit(task)
                if train_loader.device.type == "cuda":
                    torch.cuda.synchronize(train_loader.device)
                seconds = time.perf_counter() - start
                yield ProbeResult(
                    name,
                    space,
                    accuracy=_accuracy(encoder, fitted.classify, test_loader),
                    num_passes=fitted.num_passes,
                    seconds=seconds,
                    metrics=_metrics(encoder, train_loader, fitted) if metrics == "all" else {},
                )


def _select(
    encoders: list[tuple[FeatureSpace, nn.Module]],
    position: Literal["output", "before_projection", "both"],
) -> list[tuple[FeatureSpace, nn.Module]]:
    """Return the encoders for a probe; without a projection, its input is the output."""
    return {"output": encoders[:1], "before_projection": encoders[-1:], "both": encoders}[position]


def _fit_head(task: _Task) -> _Fitted:
    return _Fitted(task.objective.head, num_passes=0)


def _fit_cosine(task: _Task) -> _Fitted:
    prototypes = task.objective.head.prototypes
    head = CosineClassifier(prototypes.shape[1], len(prototypes)).to(prototypes.device)
    with torch.no_grad():
        head.prototypes.copy_(prototypes)
    return _Fitted(head, num_passes=0)


def _fit_class_means(task: _Task) -> _Fitted:
    features, labels = encode(task.encoder, task.loader, progress=task.progress)
    head = MeanClassifier(features.shape[1], task.num_classes).to(features.device)
    head.set_means(class_means(features, labels, num_classes=task.num_classes).means)
    return _Fitted(head, num_passes=1, weights=head.prototypes)


def _fit_linear(task: _Task) -> _Fitted:
    create_head = partial(LinearClassifier, _feature_dim(task), task.num_classes)
    return _fit_on_images(task, create_head, CrossEntropyLoss())


def _fit_normalized(task: _Task) -> _Fitted:
    create_head = partial(CosineClassifier, _feature_dim(task), task.num_classes)
    return _fit_on_images(task, create_head, NormFaceLoss())


def _fit_cached_linear(task: _Task) -> _Fitted:
    features, labels = encode(task.encoder, task.loader, progress=task.progress)
    create_head = partial(LinearClassifier, features.shape[1], task.num_classes)
    loader = FeatureLoader(features, labels)
    head = train_head(
        nn.Identity(),
        loader,
        create_head,
        CrossEntropyLoss(),
        task.config,
        progress=task.progress,
    )
    return _Fitted(head, num_passes=1, weights=head.prototypes.detach())


def _fit_knn(task: _Task) -> _Fitted:
    samples = encode(task.encoder, task.loader, progress=task.progress)
    return _Fitted(NearestNeighbors(samples, task.num_classes), num_passes=1)


_DEFINITIONS: dict[ProbeName, _Definition] = {
    "head": _Definition(_fit_head, "output"),
    "cosine": _Definition(_fit_cosine, "output"),
    "class_means": _Definition(_fit_class_means, "both"),
    "linear": _Definition(_fit_linear, "before_projection"),
    "normalized": _Definition(_fit_normalized, "before_projection"),
    "cached_linear": _Definition(_fit_cached_linear, "both"),
    "knn": _Definition(_fit_knn, "both"),
}


class NearestNeighbors:
    """Votes of the nearest training samples by cosine, each of weight exp(cos/0.07).

    Args:
        samples: Training features and labels.
        num_classes: Number of classes.
    """

    def __init__(self, samples: LabeledFeatures, num_classes: int) -> None:
        self.features = normalize(samples.features)
        self.labels = samples.labels
        self.num_classes = num_classes

    def __call__(self, features: Float[Tensor, "samples dim"]) -> Float[Tensor, "samples classes"]:
        """Return the votes for each class, relative to one vote at a cosine of 1."""
        cosines = normalize(features) @ self.features.T
        nearest = cosines.topk(min(_NUM_NEIGHBORS, len(self.features)), dim=1)
        weights = ((nearest.values - 1) / _KNN_TEMPERATURE).exp()
        votes = torch.zeros(len(features), self.num_classes, device=features.device)
        return votes.scatter_add_(1, self.labels[nearest.indices], weights)


class _FrozenEncoder(nn.Module):
    """An encoder without gradients, which neither the optimizer nor ``train()`` reaches."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self._encoder = [encoder]  # In a list, so that it is not a child.

    def forward(self, images: Tensor) -> Tensor:
        with torch.no_grad():
            features: Tensor = self._encoder[0](images)
        return features


def _feature_dim(task: _Task) -> int:
    images, _ = next(task.loader.evaluation_batches(1))
    with torch.no_grad():
        return int(task.encoder(images).shape[1])


def _fit_on_images(task: _Task, create_head: Callable[[], _HeadT], loss: nn.Module) -> _Fitted:
    """Train a head on augmented images, in front of the frozen encoder."""
    encoder = _FrozenEncoder(task.encoder)
    head = train_head(encoder, task.loader, create_head, loss, task.config, progress=task.progress)
    num_passes = task.config.schedule.epochs
    return _Fitted(head, num_passes, weights=head.prototypes.detach())


def train_head(
    encoder: nn.Module,
    loader: Loader,
    create_head: Callable[[], _HeadT],
    loss: nn.Module,
    config: TrainConfig,
    *,
    progress: Callable[[float], None] = no_progress,
) -> _HeadT:
    """Train a head on features that do not change.

    Args:
        encoder: Module without parameters to train, from batches of the loader to features.
        loader: Training images or features.
        create_head: Function that returns the head; random numbers are seeded before the call.
        loss: Loss module, called as ``loss(features, head, labels)``.
        config: Settings of the training.
        progress: Called with the fraction of epochs that is done.

    Returns:
        The trained head, in evaluation mode.
    """
    torch.manual_seed(config.seed)
    head = create_head()
    objective = Objective(encoder, head, loss).to(loader.device)
    with torch.enable_grad():
        for report in train(objective, loader, config):
            progress(report.epoch / config.schedule.epochs)
    head.eval()
    return head


@torch.no_grad()
def _accuracy(encoder: nn.Module, classify: Callable[[Tensor], Tensor], loader: Loader) -> float:
    num_correct = torch.zeros((), dtype=torch.long, device=loader.device)
    for features, labels in iterate_features(encoder, loader):
        num_correct += (classify(features).argmax(1) == labels).sum()
    return int(num_correct) / len(loader)


def _metrics(encoder: nn.Module, loader: Loader, fitted: _Fitted) -> dict[str, float]:
    """Return collapse metrics of the training features, for a probe that was fitted to them."""
    if fitted.weights is None:
        return {}
    features, labels = encode(encoder, loader)
    return measure(features, labels, fitted.weights, classes="present")
