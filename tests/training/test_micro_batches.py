"""A batch in pieces: the gradient is that of the whole batch, whatever the loss."""

import copy
import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from protosphere.classifiers import CosineClassifier, LinearClassifier, MeanClassifier
from protosphere.classifiers.protocol import Head
from protosphere.data.loaders import FeatureLoader
from protosphere.data.mixing import Mixup
from protosphere.losses import (
    CrossEntropyLoss,
    DotRegressionLoss,
    MixedLabels,
    NONLLoss,
    NormFaceLoss,
    NTCELoss,
    PrototypeLoss,
    SCLLoss,
)
from protosphere.training import SGD, AdamW, Objective, Schedule, TrainConfig, train
from protosphere.training.micro_batches import split_batch
from support.training import PLAIN_POLICY, memory_loader, small_objective, small_split

F64 = torch.float64


def _without_head(loss: nn.Module) -> Any:
    return lambda features, head, labels: loss(features, labels)


NUM_CLASSES, DIM = 4, 6
LOSSES: dict[str, tuple[Any, Any]] = {
    "ce": (CrossEntropyLoss(), LinearClassifier),
    "normface, smoothed": (NormFaceLoss(label_smoothing=0.1), CosineClassifier),
    "ntce": (NTCELoss(), CosineClassifier),
    "nonl": (NONLLoss(), CosineClassifier),
    "nonl, two directions": (NONLLoss(negatives="both"), CosineClassifier),
    "dot regression": (DotRegressionLoss(), CosineClassifier),
    "scl": (_without_head(SCLLoss(temperature=0.2)), MeanClassifier),
    "prototype loss": (_without_head(PrototypeLoss(temperature=0.2)), MeanClassifier),
}


class _Repeats(nn.Module):
    """Dropout that records its outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.outputs: list[Tensor] = []

    def forward(self, features: Tensor) -> Tensor:
        dropped = nn.functional.dropout(features, 0.5)
        self.outputs.append(dropped.detach().clone())
        return dropped


def _objective(name: str) -> Objective:
    torch.manual_seed(0)
    loss, head = LOSSES[name]
    encoder = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, DIM))
    return Objective(encoder, head(DIM, NUM_CLASSES), loss).to(F64)


def _loader() -> FeatureLoader:
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(20, 5, dtype=F64, generator=generator)
    return FeatureLoader(features, torch.arange(20) % NUM_CLASSES)


@pytest.mark.parametrize("micro_batch_size", [10, 7, 4])
@pytest.mark.parametrize("name", LOSSES)
def test_weights_after_five_steps_are_those_of_the_whole_batch(
    name: str, micro_batch_size: int
) -> None:
    """Two, three and five pieces, in float64 and without batch norm."""
    whole = _objective(name)
    divided = copy.deepcopy(whole)
    config = TrainConfig(Schedule(0.1, 5), 20, optimizer=SGD(momentum=0.9), grad_clip=1.0)
    pieces = dataclasses.replace(config, micro_batch_size=micro_batch_size)
    losses = [
        [progress.loss for progress in train(objective, _loader(), settings)]
        for objective, settings in ((whole, config), (divided, pieces))
    ]
    assert losses[1] == pytest.approx(losses[0], rel=1e-6)
    start = _objective(name)
    for got, expected, initial in zip(
        divided.parameters(), whole.parameters(), start.parameters(), strict=True
    ):
        torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)
        assert not got.requires_grad or not torch.equal(got, initial)


def test_the_loss_sees_the_whole_batch_once_and_the_encoder_every_piece_twice() -> None:
    objective = small_objective()
    sizes: dict[str, list[int]] = {"encoder": [], "loss": []}
    compute = objective.loss

    def loss(features: Tensor, head: Head, labels: Tensor) -> Tensor:
        sizes["loss"].append(len(features))
        return compute(features, head, labels)

    objective.encoder.register_forward_pre_hook(
        lambda module, args: sizes["encoder"].append(len(args[0]))
    )
    objective.loss = loss
    config = TrainConfig(Schedule(0.1, 1), 32, micro_batch_size=12)
    list(train(objective, memory_loader(small_split()), config))
    assert sizes == {"loss": [32, 32], "encoder": [11, 11, 10, 11, 11, 10] * 2}


def test_processes_with_parts_of_other_sizes_have_as_many_pieces() -> None:
    for size, expected in ((9, [5, 4]), (8, [4, 4])):
        pieces = split_batch((torch.arange(size),), 5, sizes=(8, 9))
        assert [len(piece[0]) for piece in pieces] == expected
    # 5 samples in pieces of 2 would be three of them, one with a single sample.
    assert len(split_batch((torch.arange(5),), 2, sizes=(4, 5))) == 2


def test_the_second_pass_repeats_augmentation_and_dropout() -> None:
    objective, dropout = small_objective(), _Repeats()
    objective.encoder = nn.Sequential(objective.encoder, dropout)
    config = TrainConfig(Schedule(0.1, 1), 32, micro_batch_size=16)
    list(train(objective, memory_loader(small_split()), config))
    for first in (0, 4):
        one, two, *again = dropout.outputs[first : first + 4]
        assert torch.equal(one, again[0])
        assert torch.equal(two, again[1])
        assert not torch.equal(one, two)


def test_running_statistics_are_updated_once_per_piece() -> None:
    objective = small_objective()
    reference = copy.deepcopy(objective.encoder).train()
    loader = memory_loader(small_split(), PLAIN_POLICY)
    config = TrainConfig(Schedule(0.1, 1), 64, micro_batch_size=32)
    (index,) = next(iter(loader.batches(64, seed=config.seed, epoch=0)))
    list(train(objective, loader, config))
    with torch.no_grad():
        for piece in index.split(32):
            reference(loader.prepare(piece)[0])
    expected = dict(reference.named_buffers())
    for name, buffer in objective.encoder.named_buffers():
        torch.testing.assert_close(buffer, expected[name])


def test_mixed_labels_of_all_pieces_reach_the_loss() -> None:
    received: list[MixedLabels] = []
    objective = small_objective()

    def loss(features: Tensor, head: Head, labels: MixedLabels) -> Tensor:
        assert isinstance(labels, MixedLabels)
        received.append(labels)
        return features.mean()

    objective.loss = loss
    config = TrainConfig(Schedule(0.1, 1), 64, micro_batch_size=32, mixing=Mixup())
    list(train(objective, memory_loader(small_split()), config))
    (labels,) = received
    assert len(labels.labels) == len(labels.other_labels) == len(labels.weights) == 64
    for piece in (slice(0, 32), slice(32, 64)):
        assert torch.equal(labels.other_labels[piece], labels.labels[piece].roll(1))


def test_a_frozen_encoder_needs_no_second_pass() -> None:
    objective = small_objective(freeze="backbone")
    num_calls = 0

    def count(module: nn.Module, args: object) -> None:
        nonlocal num_calls
        num_calls += 1

    objective.encoder.register_forward_pre_hook(count)
    before = objective.head.prototypes.detach().clone()
    config = TrainConfig(Schedule(0.1, 1), 64, micro_batch_size=16, optimizer=AdamW())
    list(train(objective, memory_loader(small_split()), config))
    assert num_calls == 4
    assert not torch.equal(objective.head.prototypes, before)


def test_no_piece_has_a_single_sample() -> None:
    sizes = [[len(piece[0]) for piece in split_batch((torch.zeros(n),), 2)] for n in (2, 3, 5, 9)]
    assert sizes == [[2], [3], [3, 2], [3, 2, 2, 2]]
