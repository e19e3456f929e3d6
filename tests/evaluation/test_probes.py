"""Classifiers on fixed features: each against its definition, what they cost, and an encoder left as it was."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from protosphere.classifiers import LinearClassifier, MeanClassifier
from protosphere.data.augmentation import Augmentation
from protosphere.data.datasets import load
from protosphere.data.loaders import MemoryFeed
from protosphere.encoders import backbone
from protosphere.evaluation import outputs
from protosphere.evaluation.inference import Samples
from protosphere.evaluation.probes import PROBES, FeatureFeed, _Neighbours, _trained, probe
from protosphere.training import Objective, Schedule, Settings

TRAINED = ("linear", "normalized", "cached")
SETTINGS = Settings(Schedule(0.5, 12, "steps", milestones=(8, 10)), batch=64, weight_decay=0.0)


@pytest.fixture(scope="module")
def objective() -> Objective:
    """An encoder that was not trained, which classifies digits well enough to compare classifiers on it."""
    torch.manual_seed(0)
    encoder = torch.nn.Sequential(backbone("small", in_channels=1), torch.nn.Identity())
    objective = Objective(encoder, LinearClassifier(64, 10), lambda features, *_: features.sum())
    for module in encoder.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = 1.0  # One batch, all there is, gives the statistics.
    with torch.no_grad():
        encoder.train()(load("digits").train.images / 255)
    return objective


@pytest.fixture(scope="module")
def feeds() -> tuple[MemoryFeed, MemoryFeed]:
    source = load("digits")
    train, test = (
        MemoryFeed(part, Augmentation(8, "padded", padding=1))
        for part in (source.train, source.test)
    )
    return train, test


def test_every_classifier(objective: Objective, feeds: tuple) -> None:
    before = {name: value.clone() for name, value in objective.state_dict().items()}
    objective.train()
    found = {result.name: result for result in probe(objective, *feeds, SETTINGS)}
    assert objective.training
    assert all(torch.equal(value, before[name]) for name, value in objective.state_dict().items())
    assert list(found) == list(PROBES)
    passes = {
        "head": 0,
        "cosine": 0,
        "prototypes": 1,
        "linear": 12,
        "normalized": 12,
        "cached": 1,
        "neighbours": 1,
    }
    assert {name: result.passes for name, result in found.items()} == passes
    assert found["head"].accuracy < 0.3
    assert {name: found[name].accuracy for name in PROBES[2:] if found[name].accuracy < 0.4} == {}
    assert found["prototypes"].metrics["weight_class_alignment"] == pytest.approx(0, abs=1e-9)
    assert found["cached"].metrics["weight_class_alignment"] > 0.01
    assert {name for name, result in found.items() if result.metrics} == set(PROBES[2:-1])
    assert {result.space for result in found.values()} == {"output"}
    assert all(parameter.grad is None for parameter in objective.encoder.parameters())
    # All are of the training features, each with its own weights.
    of_features = {found[name].metrics["inter_effective_rank"] for name in PROBES[2:-1]}
    assert max(of_features) == pytest.approx(min(of_features))
    of_weights = [found[name].metrics["weights_effective_rank"] for name in PROBES[2:-1]]
    assert len(set(of_weights)) == len(of_weights)


def test_seconds_are_those_until_it_classifies(
    objective: Objective, feeds: tuple, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock that goes on by 1 whenever the encoder is asked for a batch, of 512 when clean and 64 in training."""
    now = [0.0]

    def tick(*_: object) -> None:
        now[0] += 1

    def clock() -> float:
        now[0] += 1e-6
        return now[0]

    handle = objective.encoder.register_forward_pre_hook(tick)
    monkeypatch.setattr("protosphere.evaluation.probes.time.perf_counter", clock)
    found = {one.name: one.seconds for one in probe(objective, *feeds, SETTINGS)}
    handle.remove()
    trained = 12 * (1198 // 64) + 1  # One to see how wide features are.
    expected = [0, 0, 3, trained, trained, 3, 3]
    assert found == pytest.approx(dict(zip(PROBES, expected, strict=True)), abs=0.01)


def test_by_definition(objective: Objective, feeds: tuple) -> None:
    """Prototypes, neighbours and the cosine, counted in NumPy; the cached probe beside scikit-learn's."""
    own, other = (outputs(objective, feed) for feed in feeds)
    unit, test = (part.features.double().numpy() for part in (own, other))
    unit, test = (part / np.linalg.norm(part, axis=1, keepdims=True) for part in (unit, test))
    labels, truth = own.labels.numpy(), other.labels.numpy()
    names = ("cosine", "prototypes", "cached", "neighbours")
    found = {
        result.name: result.accuracy for result in probe(objective, *feeds, SETTINGS, names=names)
    }
    means = np.stack([unit[labels == index].mean(0) for index in range(10)])
    cosines = test @ (means / np.linalg.norm(means, axis=1, keepdims=True)).T
    assert found["prototypes"] == pytest.approx((cosines.argmax(1) == truth).mean(), abs=1 / 599)
    weights = objective.head.prototypes.detach().double().numpy()
    by_cosine = (test @ (weights / np.linalg.norm(weights, axis=1, keepdims=True)).T).argmax(1)
    assert found["cosine"] == pytest.approx((by_cosine == truth).mean(), abs=1 / 599)
    near = test @ unit.T
    votes = np.zeros((len(test), 10))
    for row, similar in enumerate(near):
        for index in np.argsort(-similar)[:20]:
            votes[row, labels[index]] += np.exp(similar[index] / 0.07)
    assert found["neighbours"] == pytest.approx((votes.argmax(1) == truth).mean(), abs=2 / 599)
    logistic = LogisticRegression(max_iter=3000).fit(own.features.numpy(), labels)
    assert found["cached"] == pytest.approx(logistic.score(other.features.numpy(), truth), abs=0.08)


def test_before_and_behind_a_projection(objective: Objective, feeds: tuple) -> None:
    """Behind a projection to one dimension classifiers see that one, before it all; linear probes stand before it."""
    narrow = torch.nn.Linear(64, 1, bias=False)
    encoder = torch.nn.Sequential(*objective.encoder, narrow)
    contrastive = Objective(encoder, MeanClassifier(1, 10), objective.loss)
    found = {
        (one.name, one.space): one
        for one in probe(contrastive, *feeds, SETTINGS, body=encoder[:-1])
    }
    both = ("prototypes", "cached", "neighbours")
    before = {("linear", "body"), ("normalized", "body"), *((name, "body") for name in both)}
    assert (
        set(found)
        == {("head", "output"), ("cosine", "output"), *((name, "output") for name in both)} | before
    )
    assert {key for key, one in found.items() if one.accuracy > 0.4} == before
    plain = {
        one.name: one for one in probe(objective, *feeds, SETTINGS, names=("prototypes", "cached"))
    }
    for name, one in plain.items():
        assert found[name, "body"].accuracy == one.accuracy
        assert found[name, "body"].metrics == pytest.approx(one.metrics)
        assert (
            found[name, "output"].metrics["inter_effective_rank"]
            < 1.001
            < one.metrics["inter_effective_rank"]
        )


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_as_on_a_cpu(objective: Objective, feeds: tuple) -> None:
    """Compiled and recorded: on images for the linear probes, on features for the cached one."""
    on_gpu = [MemoryFeed(load("digits").train.to("cuda"), feeds[0].augmentation)] * 2
    compiled = replace(SETTINGS, execution="compiled")
    slow = {one.name: one for one in probe(objective, feeds[0], feeds[0], SETTINGS)}
    fast = {one.name: one for one in probe(copy.deepcopy(objective).cuda(), *on_gpu, compiled)}
    assert list(fast) == list(slow)
    for name, one in fast.items():
        assert one.accuracy == pytest.approx(
            slow[name].accuracy, abs=0.03 if name in TRAINED else 0.002
        )
        if name == "prototypes":
            assert one.metrics == pytest.approx(slow[name].metrics, rel=1e-2, abs=1e-6)


def test_features_as_a_feed() -> None:
    features, labels = torch.randn(10, 3), torch.arange(10)
    feed = FeatureFeed(features, labels)
    seen = torch.cat([feed.prepared(*parts)[1] for parts in feed.batches(5, seed=0, epoch=1)])
    assert sorted(seen.tolist()) == list(range(10))
    assert not torch.equal(seen, labels)
    assert torch.equal(torch.cat([part for part, _ in feed.in_order(4)]), features)


def test_neighbours_vote_by_how_near_they_are() -> None:
    """One at an angle of 0 outvotes two at 60 degrees, exp(1/0.07) against 2 exp(0.5/0.07)."""
    bank = torch.tensor([[1.0, 0.0], [0.5, 3**0.5 / 2], [0.5, -(3**0.5) / 2]])
    votes = _Neighbours(Samples(bank, torch.tensor([0, 1, 1])), 2)(torch.tensor([[2.0, 0.0]]))
    torch.testing.assert_close(
        votes[0, 1] / votes[0, 0], torch.tensor(2.0) * torch.tensor(-0.5 / 0.07).exp()
    )


@pytest.mark.parametrize("name", ["cached", "normalized"])
def test_only_encoders_are_rounded(name: str) -> None:
    """On features as they are, the precision that is asked for the encoder makes no difference."""
    torch.manual_seed(0)
    labels = torch.arange(600) % 20
    feed = FeatureFeed(torch.randn(20, 32)[labels] + torch.randn(600, 32), labels)
    one, other = (
        _trained(
            name,
            torch.nn.Identity(),
            feed,
            replace(SETTINGS, precision=precision),
            32,
            20,
            lambda _: None,
        )
        for precision in ("float32", "bfloat16")
    )
    torch.testing.assert_close(one.prototypes, other.prototypes, rtol=0, atol=1e-5)
