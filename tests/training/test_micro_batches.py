"""A batch in pieces: the gradient is that of the whole batch, whatever the loss."""

import copy

import pytest
import torch
from torch import Tensor, nn

from protosphere.classifiers import CosineClassifier
from protosphere.classifiers.protocol import Head
from protosphere.data.augmentation import Augmentation
from protosphere.data.loaders import MemoryLoader, derive_seed
from protosphere.data.mixing import Mixup, mix_images
from protosphere.losses import MixedLabels, NONLLoss
from protosphere.training import SGD, AdamW, Objective, Schedule, TrainConfig, train
from protosphere.training.micro_batches import split_batch
from support.group_training import LOSSES, create_objective, train_five_steps
from support.training import (
    PLAIN_POLICY,
    RANDOM_POLICY,
    memory_loader,
    small_objective,
    small_split,
)


class _Repeats(nn.Module):
    """Dropout that records its outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.outputs: list[Tensor] = []

    def forward(self, features: Tensor) -> Tensor:
        dropped = nn.functional.dropout(features, 0.5)
        self.outputs.append(dropped.detach().clone())
        return dropped


@pytest.mark.long
@pytest.mark.parametrize("name", LOSSES)
def test_weights_after_five_steps_are_those_of_the_whole_batch(name: str) -> None:
    """In two, three and five pieces, in float64 and without batch norm."""
    expected, expected_losses, _ = train_five_steps(None, name, None)
    for micro_batch_size in (10, 7, 4):
        weights, losses, _ = train_five_steps(None, name, micro_batch_size)
        assert losses == pytest.approx(expected_losses, rel=1e-6)
        torch.testing.assert_close(weights, expected, rtol=1e-10, atol=1e-10)
    start = create_objective(name, None)
    for key, parameter in start.named_parameters():
        assert not parameter.requires_grad or not torch.equal(expected[key], parameter), key


def _random_encoder() -> nn.Module:
    """An encoder with batch norm and dropout."""
    torch.manual_seed(0)
    layers = (nn.Flatten(), nn.Linear(192, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 6))
    return nn.Sequential(*layers).double()


class _DoubleLoader(MemoryLoader):
    """Random crops and flips, in float64."""

    def prepare(self, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        images, labels = super().prepare(*tensors)
        return images.double(), labels


@pytest.mark.parametrize("micro_batch_size", [None, 18, 7])
def test_training_equals_that_of_pieces_in_one_graph(micro_batch_size: int | None) -> None:
    """One, two and five pieces, each normalized, augmented, mixed and dropped out on its own."""
    split = small_split()
    augmentation = Augmentation(RANDOM_POLICY, (0.0,) * 3, (1.0,) * 3)
    loader, loss = _DoubleLoader(split, augmentation), NONLLoss()
    encoder, head = _random_encoder(), CosineClassifier(6, 5).double()
    objective = Objective(copy.deepcopy(encoder), copy.deepcopy(head), loss)
    config = TrainConfig(
        Schedule(0.1, 3),
        35,
        optimizer=SGD(momentum=0.9, weight_decay=0.0),
        micro_batch_size=micro_batch_size,
        mixing=Mixup(),
    )
    list(train(objective, loader, config))

    optimizer = torch.optim.SGD([*encoder.parameters(), *head.parameters()], momentum=0.9)
    step = 0
    for epoch in range(3):
        for batch in loader.batches(35, seed=config.seed, epoch=epoch):
            torch.manual_seed(derive_seed("step", config.seed, step))
            features, mixed = [], []
            for piece in split_batch(batch, micro_batch_size or 35):
                images, labels = loader.prepare(*piece)
                images, weights = mix_images(images, Mixup())
                features.append(encoder(images))
                mixed.append(MixedLabels(labels, labels.roll(1), weights))
            targets = MixedLabels(*(torch.cat(parts) for parts in zip(*mixed, strict=True)))
            optimizer.param_groups[0]["lr"] = config.schedule.at_step(step, steps_per_epoch=2)
            optimizer.zero_grad()
            loss(torch.cat(features), head, targets).backward()
            optimizer.step()
            step += 1
    for got, expected in ((objective.encoder, encoder), (objective.head, head)):
        torch.testing.assert_close(got.state_dict(), expected.state_dict(), rtol=1e-10, atol=1e-10)


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
