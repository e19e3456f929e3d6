"""Classifiers on features that are no longer trained: class means, linear probes, neighbours; what each costs."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

import torch
from jaxtyping import Float, Integer
from torch import Tensor, nn

from protosphere.classifiers import CosineClassifier, LinearClassifier, MeanClassifier, class_means
from protosphere.data.loaders import Batch, Feed, index_batches
from protosphere.evaluation.inference import Samples, encoded, evaluating
from protosphere.geometry import normalize
from protosphere.losses import cross_entropy_loss, normface_loss
from protosphere.metrics import measure
from protosphere.training import Objective, Settings, train

Probe = Literal["head", "cosine", "prototypes", "linear", "normalized", "cached", "neighbours"]
FeatureSpace = Literal["output", "body"]
PROBES: tuple[Probe, ...] = get_args(Probe)
_NEIGHBOURS, _VOTE = 20, 0.07


@dataclass(frozen=True)
class Probed:
    """What a classifier was found to be worth.

    Attributes:
        name: of the classifier.
        space: what it classifies: the encoder's outputs, or the features before the projection.
        accuracy: on the test images, a share of 1.
        passes: forward passes over the training images that it took.
        seconds: that it took, those passes included, until it could classify.
        metrics: collapse metrics of the clean training features of that space with its weights, where it has weights.
    """

    name: Probe
    space: FeatureSpace
    accuracy: float
    passes: int
    seconds: float
    metrics: dict[str, float] = field(default_factory=dict)


class FeatureFeed:
    """Features in place of images: what trains a head on features that were computed once."""

    def __init__(
        self, features: Float[Tensor, "samples dim"], labels: Integer[Tensor, "samples"]
    ) -> None:
        self.features, self.labels = features, labels

    @property
    def device(self) -> torch.device:
        """Where the features are."""
        return self.features.device

    def __len__(self) -> int:
        return len(self.labels)

    def batches(
        self, size: int, *, seed: int, epoch: int, first: int = 0
    ) -> Iterator[tuple[Tensor, ...]]:
        """Indices of samples."""
        return index_batches(
            len(self), size, seed=seed, epoch=epoch, first=first, device=self.device
        )

    def prepared(self, *parts: Tensor) -> Batch:
        """The samples of these indices."""
        return self.features[parts[0]], self.labels[parts[0]]

    def in_order(self, size: int) -> Iterator[Batch]:
        """All samples."""
        yield from zip(self.features.split(size), self.labels.split(size), strict=True)


class _Frozen(nn.Module):
    """An encoder that is not trained: it gets no gradient, and stays in the mode it is in."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.held = [encoder]  # Not a child, so that neither optimizers nor train() reach it.

    def forward(self, images: Tensor) -> Tensor:
        with torch.no_grad():
            features: Tensor = self.held[0](images)
        return features


def probe(
    objective: Objective,
    train_feed: Feed,
    test_feed: Feed,
    settings: Settings,
    *,
    names: Sequence[Probe] = PROBES,
    body: nn.Module | None = None,
    metrics: Literal["all", "none"] = "all",
    progress: Callable[[float], None] = lambda _: None,
) -> Iterator[Probed]:
    """Classify by each of several classifiers.

    ``head``: the objective's own. ``cosine``: its prototypes by the cosine, without lengths and biases. ``prototypes``:
    class means of unit features over the clean training images, one pass. ``linear``: a linear layer with a bias,
    images augmented anew each epoch. ``normalized``: unit features and unit weights, NormFace, likewise. ``cached``: a
    linear layer on clean features, computed once. ``neighbours``: the twenty nearest training samples by cosine, each
    voting with exp(cos/0.07).

    Behind a projection, ``linear`` and ``normalized`` stand on the features before it, and ``prototypes``, ``cached``
    and ``neighbours`` are tried on its outputs and before it.

    Args:
        objective: trained; it is left as it was.
        train_feed: the training images, one view each.
        test_feed: the test images.
        settings: how linear layers are trained.
        names: which classifiers, in this order.
        body: the part of the encoder before the projection, if there is a projection.
        metrics: ``"all"`` also measures the training features with the weights, which holds them all in memory.
        progress: called with the share of the classifier at work that is done.

    Yields:
        One result a name, or one a name and space.
    """
    spaces: dict[FeatureSpace, nn.Module] = {"output": objective.encoder}
    if body is not None:
        spaces["body"] = body
    classes = len(objective.head.prototypes)  # type: ignore[arg-type]
    with evaluating(objective):
        for name in names:
            if name in ("head", "cosine"):
                head = objective.head if name == "head" else _by_cosine(objective)
                yield Probed(name, "output", _accuracy(objective.encoder, head, test_feed), 0, 0.0)
                continue
            for space in list(spaces)[-1:] if name in ("linear", "normalized") else spaces:
                progress(0.0)
                result, head = _probed(
                    name, space, spaces[space], train_feed, test_feed, settings, classes, progress
                )
                if metrics == "all" and name != "neighbours":
                    samples = encoded(spaces[space], train_feed)
                    weights = head.prototypes.detach()  # type: ignore[operator]
                    measured = measure(samples.features, samples.labels, weights, classes="present")
                    result = replace(result, metrics=measured)
                yield result


def _probed(
    name: Probe,
    space: FeatureSpace,
    encoder: nn.Module,
    train_feed: Feed,
    test_feed: Feed,
    settings: Settings,
    classes: int,
    progress: Callable[[float], None],
) -> tuple[Probed, nn.Module]:
    start = time.perf_counter()
    passes = 1
    head: nn.Module
    if name in ("linear", "normalized"):
        head = _trained(
            name,
            _Frozen(encoder),
            train_feed,
            settings,
            _width(encoder, train_feed),
            classes,
            progress,
        )
        passes = settings.schedule.epochs
    else:
        found = encoded(encoder, train_feed, progress=progress)
        if name == "prototypes":
            head = MeanClassifier(found.features.shape[1], classes).to(train_feed.device)
            head.take(class_means(found.features, found.labels, num_classes=classes))
        elif name == "cached":
            feed = FeatureFeed(found.features, found.labels)
            head = _trained(
                name, nn.Identity(), feed, settings, found.features.shape[1], classes, progress
            )
        else:
            head = _Neighbours(found, classes)
    if train_feed.device.type == "cuda":
        torch.cuda.synchronize(train_feed.device)
    seconds = time.perf_counter() - start
    return Probed(name, space, _accuracy(encoder, head, test_feed), passes, seconds), head


class _Neighbours(nn.Module):
    def __init__(self, found: Samples, classes: int) -> None:
        super().__init__()
        self.bank, self.labels, self.classes = normalize(found.features), found.labels, classes

    def forward(self, features: Tensor) -> Tensor:
        near = (normalize(features) @ self.bank.T).topk(min(_NEIGHBOURS, len(self.bank)), dim=1)
        votes = torch.zeros(len(features), self.classes, device=features.device)
        return votes.scatter_add_(1, self.labels[near.indices], ((near.values - 1) / _VOTE).exp())


def _by_cosine(objective: Objective) -> nn.Module:
    prototypes = objective.head.prototypes
    assert isinstance(prototypes, Tensor)
    head = CosineClassifier(prototypes.shape[1], len(prototypes)).to(prototypes.device)
    with torch.no_grad():
        head.prototypes.copy_(prototypes)
    return head


def _trained(
    name: Probe,
    encoder: nn.Module,
    feed: Feed,
    settings: Settings,
    dim: int,
    classes: int,
    progress: Callable[[float], None],
) -> nn.Module:
    torch.manual_seed(settings.seed)
    head: nn.Module
    if name == "normalized":
        head = CosineClassifier(dim, classes)
        objective = Objective(
            encoder, head, lambda z, head, y: normface_loss(z, head.prototypes, y)
        )  # type: ignore[arg-type]
    else:
        head = LinearClassifier(dim, classes)
        objective = Objective(
            encoder,
            head,
            lambda z, head, y: cross_entropy_loss(z, head.prototypes, y, bias=head.bias),  # type: ignore[arg-type]
        )
    with torch.enable_grad():
        for record in train(objective.to(feed.device), feed, settings):
            progress(record.epoch / settings.schedule.epochs)
    return head.eval()


def _width(body: nn.Module, feed: Feed) -> int:
    images, _ = next(feed.in_order(1))
    with torch.no_grad():
        return int(body(images).shape[1])


@torch.no_grad()
def _accuracy(encoder: nn.Module, head: nn.Module, feed: Feed) -> float:
    right = torch.zeros((), dtype=torch.long, device=feed.device)
    for images, labels in feed.in_order(512):
        right += (head(encoder(images).float()).argmax(1) == labels).sum()
    return int(right) / len(feed)
