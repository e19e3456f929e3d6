"""Rescaled repulsion: the gradient of batch and queue is that of one large batch."""

import itertools
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from protosphere import losses
from protosphere.kernels.dispatch import Form
from protosphere.losses import FeatureQueue, QueuedFeatures, SCLLoss

F64 = torch.float64
CLASSES, PER_CLASS, DIM = 3, 4, 5
LOSSES = {"ntce": losses.ntce_loss, "nonl": losses.nonl_loss}
every_loss = pytest.mark.parametrize("name", LOSSES)


def _samples() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(CLASSES * PER_CLASS, DIM, dtype=F64, generator=generator)
    prototypes = torch.randn(CLASSES, DIM, dtype=F64, generator=generator)
    return features, prototypes, torch.arange(CLASSES).repeat_interleave(PER_CLASS)


def _batches(per_class: int) -> Iterator[Tensor]:
    """All batches with so many samples of each class, as masks of the samples."""
    of_class = [
        torch.tensor([i in chosen for i in range(PER_CLASS)])
        for chosen in itertools.combinations(range(PER_CLASS), per_class)
    ]
    for parts in itertools.product(of_class, repeat=CLASSES):
        yield torch.cat(parts)


def _gradients(
    name: str, in_batch: Tensor, *, rescale: bool, form: Form = "eager", unused: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """Value and gradients with the samples of the batch; the others are in the queue."""
    features, prototypes, labels = _samples()
    features.requires_grad_()
    prototypes.requires_grad_()
    rest = features.detach()[~in_batch]
    queue = QueuedFeatures(
        torch.cat((rest, torch.ones(unused, DIM, dtype=F64))),
        torch.cat((labels[~in_batch], labels.new_zeros(unused))),
        torch.arange(len(rest) + unused) < len(rest),
        rescale,
    )
    value = LOSSES[name](
        features[in_batch], prototypes, labels[in_batch], temperature=0.3, queue=queue, form=form
    )
    of_features, of_prototypes = torch.autograd.grad(value, (features, prototypes))
    return value.detach(), of_features, of_prototypes


def _mean_gradients(name: str, *, rescale: bool) -> tuple[Tensor, Tensor]:
    found = [_gradients(name, batch, rescale=rescale)[1:] for batch in _batches(2)]
    of_features, of_prototypes = (torch.stack(parts).mean(0) for parts in zip(*found, strict=True))
    return of_features, of_prototypes


def test_the_mean_of_nonl_over_all_batches_is_the_gradient_of_all_samples() -> None:
    features, prototypes, labels = (x.requires_grad_(x.is_floating_point()) for x in _samples())
    loss = losses.nonl_loss(features, prototypes, labels, temperature=0.3)
    expected = torch.autograd.grad(loss, (features, prototypes))
    for got, value in zip(_mean_gradients("nonl", rescale=True), expected, strict=True):
        torch.testing.assert_close(got, value, rtol=1e-12, atol=1e-14)
    # Without rescaling only the prototypes are repelled as much as by all samples.
    of_features, of_prototypes = _mean_gradients("nonl", rescale=False)
    torch.testing.assert_close(of_prototypes, expected[1], rtol=1e-12, atol=1e-14)
    assert (of_features - expected[0]).norm() > 0.05 * expected[0].norm()


def test_ntce_weighs_the_positives_of_the_batch() -> None:
    """log(Σ over negatives of batch and queue + (M + Q)/M Σ over positives of the batch)."""
    features, prototypes, labels = _samples()
    batch = next(_batches(1))
    value, *_ = _gradients("ntce", batch, rescale=True)
    unit, w = (torch.nn.functional.normalize(x) for x in (features, prototypes))
    logits, values = unit @ w.T / 0.3, []
    weight = len(labels) / batch.sum()
    for i in batch.nonzero().flatten().tolist():
        column, own = logits[:, labels[i]].exp(), labels == labels[i]
        total = column[~own].sum() + weight * column[own & batch].sum()
        values.append(total.log() - logits[i, labels[i]])
    torch.testing.assert_close(value, torch.stack(values).mean(), rtol=1e-12, atol=0)


def test_ntce_near_collapse_follows_the_gradient_of_all_samples() -> None:
    """Attraction and repulsion nearly cancel there; they must within the batch."""
    generator = torch.Generator().manual_seed(1)
    prototypes = torch.nn.functional.normalize(torch.randn(20, 64, dtype=F64, generator=generator))
    labels = torch.randint(20, (640,), generator=generator)
    noise = torch.randn(640, 64, dtype=F64, generator=generator)
    features = (prototypes[labels] + 0.02 * noise).requires_grad_()
    (expected,) = torch.autograd.grad(
        losses.ntce_loss(features, prototypes, labels, temperature=0.1), features
    )
    kept = torch.ones(512, dtype=torch.bool)
    queue = QueuedFeatures(features.detach()[128:], labels[128:], kept, rescale=True)
    loss = losses.ntce_loss(features[:128], prototypes, labels[:128], temperature=0.1, queue=queue)
    (got,) = torch.autograd.grad(loss, features)
    assert torch.cosine_similarity(got[:128].flatten(), expected[:128].flatten(), dim=0) > 0.9
    assert got[:128].norm() / 5 == pytest.approx(float(expected[:128].norm()), rel=0.15)


@every_loss
@pytest.mark.parametrize("form", ["eager", "chunked"])
def test_the_value_stays_and_entries_that_are_no_keys_do_not_count(name: str, form: Form) -> None:
    batch = next(_batches(1))
    value, of_features, of_prototypes = _gradients(name, batch, rescale=True)
    got = _gradients(name, batch, rescale=True, form=form, unused=3)
    for one, other in zip(got, (value, of_features, of_prototypes), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)
    if name == "nonl":
        plain, _, plain_prototypes = _gradients(name, batch, rescale=False)
        torch.testing.assert_close(value, plain, rtol=1e-14, atol=0)
        torch.testing.assert_close(of_prototypes, plain_prototypes, rtol=1e-12, atol=1e-14)


def test_a_learned_temperature_has_the_gradient_without_rescaling() -> None:
    features, prototypes, labels = _samples()
    batch = next(_batches(2))
    gradients = []
    for rescale in (False, True):
        temperature = torch.tensor(0.3, dtype=F64, requires_grad=True)
        kept = torch.ones(int((~batch).sum()), dtype=torch.bool)
        queue = QueuedFeatures(features[~batch], labels[~batch], kept, rescale)
        loss = losses.nonl_loss(
            features[batch],
            prototypes,
            labels[batch],
            temperature=temperature,
            min_temperature=0.01,
            queue=queue,
        )
        gradients.append(torch.autograd.grad(loss, temperature)[0])
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-12, atol=0)


@every_loss
def test_copies_of_the_batch_in_the_queue_change_no_gradient(name: str) -> None:
    features, prototypes, labels = (x.requires_grad_(x.is_floating_point()) for x in _samples())
    queue, found = FeatureQueue(2 * len(labels), DIM, rescale=True).double(), []
    for _ in range(3):  # No copies, one, and two.
        loss = LOSSES[name](features, prototypes, labels, temperature=0.3, queue=queue.read())
        found.append(torch.autograd.grad(loss, (features, prototypes)))
        queue.add(features, labels)
    for got in found[1:]:
        torch.testing.assert_close(got, found[0], rtol=1e-12, atol=1e-14)


@every_loss
def test_an_unused_queue_changes_nothing(name: str) -> None:
    features, prototypes, labels = _samples()
    found = []
    for queue in (None, FeatureQueue(4, DIM, rescale=True).read()):
        copy = features.clone().requires_grad_()
        loss = LOSSES[name](copy, prototypes, labels, temperature=0.3, queue=queue)
        found.append(torch.autograd.grad(loss, copy)[0])
    torch.testing.assert_close(found[1], found[0], rtol=1e-12, atol=1e-15)


@pytest.mark.bad_input
def test_scl_refuses_it() -> None:
    with pytest.raises(ValueError, match="rescale must be False"):
        SCLLoss(queue=FeatureQueue(4, DIM, rescale=True))
