"""Features and decisions of an objective on all images of a feed."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from jaxtyping import Float, Integer
from torch import Tensor, nn

from protosphere.data.loaders import Feed
from protosphere.training import Objective


class Outputs(NamedTuple):
    """What came out, one row an image, in the feed's order.

    Attributes:
        features: float32, as the head is given them.
        decisions: the class that the head scores highest.
        labels: of the images.
    """

    features: Float[Tensor, "samples dim"]
    decisions: Integer[Tensor, "samples"]
    labels: Integer[Tensor, "samples"]


class Samples(NamedTuple):
    """Features and labels, one row an image."""

    features: Float[Tensor, "samples dim"]
    labels: Integer[Tensor, "samples"]


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """In evaluation mode; afterwards as before."""
    mode = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(mode)


def batch_outputs(objective: Objective, feed: Feed, *, batch: int = 512) -> Iterator[Outputs]:
    """Outputs batch by batch, in float32: rounding a network to bfloat16 would be measured as spread of classes."""
    with evaluating(objective):
        for images, labels in feed.in_order(batch):
            with torch.no_grad():
                features = objective.encoder(images).float()
                decisions = objective.head(features).argmax(1)
            yield Outputs(features, decisions, labels)


@torch.no_grad()
def encoded(
    encoder: nn.Module,
    feed: Feed,
    *,
    batch: int = 512,
    progress: Callable[[float], None] = lambda _: None,
) -> Samples:
    """Features of an encoder, in the mode it is in, for all clean images of a feed; float32."""
    parts: list[Samples] = []
    done = 0
    for images, labels in feed.in_order(batch):
        parts.append(Samples(encoder(images).float(), labels))
        done += len(labels)
        progress(done / len(feed))
    return Samples(*(torch.cat(column) for column in zip(*parts, strict=True)))


def outputs(
    objective: Objective,
    feed: Feed,
    *,
    batch: int = 512,
    progress: Callable[[float], None] = lambda _: None,
) -> Outputs:
    """Outputs for all images of a feed.

    Args:
        objective: on the feed's device; it is left in the mode it was in.
        feed: the images.
        batch: how many at a time.
        progress: called with the share that is done.
    """
    parts: list[Outputs] = []
    done = 0
    for part in batch_outputs(objective, feed, batch=batch):
        parts.append(part)
        done += len(part.labels)
        progress(done / len(feed))
    return Outputs(*(torch.cat(column) for column in zip(*parts, strict=True)))
