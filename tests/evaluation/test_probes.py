"""Probes: each against its definition, what it costs, and an objective that stays unchanged."""

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import nn

from protosphere.classifiers import CosineClassifier, LinearClassifier, MeanClassifier
from protosphere.data.augmentation import Augmentation, AugmentationPolicy, PaddedCrop
from protosphere.data.datasets import load_digits
from protosphere.data.loaders import FeatureLoader, MemoryLoader
from protosphere.data.splits import ImageSet
from protosphere.encoders import Encoder, create_backbone
from protosphere.evaluation import LabeledFeatures, collect_outputs
from protosphere.evaluation.probes import (
    PROBES,
    NearestNeighbors,
    ProbeName,
    run_probes,
    train_head,
)
from protosphere.losses import CrossEntropyLoss, NormFaceLoss
from protosphere.training import SGD, Objective, Schedule, TrainConfig

EPOCHS = 12
CONFIG = TrainConfig(
    Schedule(0.5, EPOCHS, "multistep", milestones=(8, 10)),
    batch_size=64,
    optimizer=SGD(weight_decay=0.0),
)
NUM_PASSES = {
    "head": 0,
    "cosine": 0,
    "class_means": 1,
    "linear": EPOCHS,
    "normalized": EPOCHS,
    "cached_linear": 1,
    "knn": 1,
}
WITH_WEIGHTS: tuple[ProbeName, ...] = ("class_means", "linear", "normalized", "cached_linear")
ON_BOTH: tuple[ProbeName, ...] = ("class_means", "cached_linear", "knn")
TRAINED = ("linear", "normalized", "cached_linear")
Loaders = tuple[MemoryLoader, MemoryLoader]


@pytest.fixture(scope="module")
def objective() -> Objective:
    """An untrained encoder with batch statistics, good enough to compare classifiers on digits."""
    torch.manual_seed(0)
    backbone = create_backbone("small", in_channels=1)
    for module in backbone.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 1.0  # The statistics are those of one batch with all images.
    with torch.no_grad():
        backbone.train()(load_digits().train.images / 255)
    head = LinearClassifier(64, 10)
    return Objective(Encoder(backbone), head, lambda features, *_: features.sum())


@pytest.fixture(scope="module")
def loaders() -> Loaders:
    dataset = load_digits()
    policy = AugmentationPolicy(size=8, crop=PaddedCrop(padding=1), hflip=0.0)
    augmentation = Augmentation(policy, mean=(0.0,), std=(1.0,))
    train, test = dataset.train, dataset.test
    assert isinstance(train, ImageSet)
    assert isinstance(test, ImageSet)
    return MemoryLoader(train, augmentation), MemoryLoader(test, augmentation)


@pytest.mark.long
def test_every_probe(objective: Objective, loaders: Loaders) -> None:
    results = {result.name: result for result in run_probes(objective, *loaders, CONFIG)}
    assert tuple(results) == PROBES
    assert {name: result.num_passes for name, result in results.items()} == NUM_PASSES
    assert {result.features for result in results.values()} == {"output"}
    assert results["head"].accuracy < 0.3, "the head is not trained"
    fitted = {name: result.accuracy for name, result in results.items() if result.num_passes}
    assert min(fitted.values()) > 0.4, fitted
    assert {name for name, result in results.items() if result.metrics} == set(WITH_WEIGHTS)


@pytest.mark.long
def test_probes_leave_the_objective_unchanged(objective: Objective, loaders: Loaders) -> None:
    before = copy.deepcopy(objective.state_dict())
    objective.train()
    for _ in run_probes(objective, *loaders, CONFIG, names=("linear", "class_means")):
        pass
    assert objective.training
    assert all(torch.equal(value, before[name]) for name, value in objective.state_dict().items())
    assert all(parameter.grad is None for parameter in objective.encoder.parameters())


@pytest.mark.long
def test_metrics_are_those_of_the_features_with_the_weights_of_the_probe(
    objective: Objective, loaders: Loaders
) -> None:
    results = run_probes(objective, *loaders, CONFIG, names=WITH_WEIGHTS)
    metrics = {result.name: result.metrics for result in results}
    assert metrics["class_means"]["weight_class_alignment"] == pytest.approx(0, abs=1e-9)
    assert metrics["cached_linear"]["weight_class_alignment"] > 0.01
    feature_ranks = [values["inter_effective_rank"] for values in metrics.values()]
    assert max(feature_ranks) == pytest.approx(min(feature_ranks))
    weight_ranks = {values["weights_effective_rank"] for values in metrics.values()}
    assert len(weight_ranks) == len(WITH_WEIGHTS)


def test_metrics_are_not_measured_on_request(objective: Objective, loaders: Loaders) -> None:
    (result,) = run_probes(objective, *loaders, CONFIG, names=["class_means"], metrics="none")
    assert result.metrics == {}


@pytest.mark.long
def test_seconds_are_those_until_the_probe_can_classify(
    objective: Objective, loaders: Loaders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock advances by 1 at each forward pass of the encoder, for 512 images or 64."""
    now = [0.0]

    def advance(*_: object) -> None:
        now[0] += 1

    def clock() -> float:
        now[0] += 1e-6  # The training loop divides by the time between two readings.
        return now[0]

    handle = objective.encoder.register_forward_pre_hook(advance)
    monkeypatch.setattr("protosphere.evaluation.probes.time.perf_counter", clock)
    seconds = {result.name: result.seconds for result in run_probes(objective, *loaders, CONFIG)}
    handle.remove()
    training = EPOCHS * (1198 // 64) + 1  # One pass to find the dimension of the features.
    expected = {
        "head": 0,
        "cosine": 0,
        "class_means": 3,
        "linear": training,
        "normalized": training,
        "cached_linear": 3,
        "knn": 3,
    }
    assert seconds == pytest.approx(expected, abs=0.01)


def unit_features(objective: Objective, loader: MemoryLoader) -> tuple[np.ndarray, np.ndarray]:
    outputs = collect_outputs(objective, loader)
    features = outputs.features.double().numpy()
    return features / np.linalg.norm(features, axis=1, keepdims=True), outputs.labels.numpy()


def test_class_means_cosine_and_knn_match_their_definitions(
    objective: Objective, loaders: Loaders
) -> None:
    (train, labels), (test, test_labels) = (unit_features(objective, part) for part in loaders)
    results = run_probes(objective, *loaders, CONFIG, names=("cosine", "class_means", "knn"))
    accuracies = {result.name: result.accuracy for result in results}

    def accuracy_by_cosine(prototypes: np.ndarray) -> float:
        unit = prototypes / np.linalg.norm(prototypes, axis=1, keepdims=True)
        return float(((test @ unit.T).argmax(1) == test_labels).mean())

    means = np.stack([train[labels == index].mean(0) for index in range(10)])
    weights = objective.head.prototypes.detach().double().numpy()
    votes = np.zeros((len(test), 10))
    for row, cosines in enumerate(test @ train.T):
        for index in np.argsort(-cosines)[:20]:
            votes[row, labels[index]] += np.exp(cosines[index] / 0.07)
    one_image = 1 / 599
    assert accuracies["class_means"] == pytest.approx(accuracy_by_cosine(means), abs=one_image)
    assert accuracies["cosine"] == pytest.approx(accuracy_by_cosine(weights), abs=one_image)
    by_votes = (votes.argmax(1) == test_labels).mean()
    assert accuracies["knn"] == pytest.approx(by_votes, abs=2 * one_image)


def test_the_cached_linear_probe_is_near_logistic_regression(
    objective: Objective, loaders: Loaders
) -> None:
    train, test = (collect_outputs(objective, loader) for loader in loaders)
    logistic = LogisticRegression(max_iter=3000).fit(train.features.numpy(), train.labels.numpy())
    (result,) = run_probes(objective, *loaders, CONFIG, names=["cached_linear"])
    expected = logistic.score(test.features.numpy(), test.labels.numpy())
    assert result.accuracy == pytest.approx(expected, abs=0.08)


@pytest.mark.long
def test_probes_before_and_after_a_projection(objective: Objective, loaders: Loaders) -> None:
    """After a projection to one dimension little is left; linear probes stand before it."""
    assert isinstance(objective.encoder, Encoder)
    projection = nn.Linear(64, 1, bias=False)
    encoder = Encoder(objective.encoder.backbone, projection=projection)
    contrastive = Objective(encoder, MeanClassifier(1, 10), objective.loss)
    results = {
        (result.name, result.features): result
        for result in run_probes(contrastive, *loaders, CONFIG)
    }
    before = {(name, "backbone") for name in ("linear", "normalized", *ON_BOTH)}
    after = {(name, "output") for name in ("head", "cosine", *ON_BOTH)}
    assert set(results) == before | after
    assert {key for key, result in results.items() if result.accuracy > 0.4} == before
    for name in ("class_means", "cached_linear"):
        (plain,) = run_probes(objective, *loaders, CONFIG, names=[name])
        assert results[name, "backbone"].accuracy == plain.accuracy
        assert results[name, "backbone"].metrics == pytest.approx(plain.metrics)
        assert results[name, "output"].metrics["inter_effective_rank"] < 1.001
        assert plain.metrics["inter_effective_rank"] > 1.001


def test_an_encoder_of_another_class_has_no_projection(
    objective: Objective, loaders: Loaders
) -> None:
    plain = Objective(nn.Sequential(objective.encoder), objective.head, objective.loss)
    (result,) = run_probes(plain, *loaders, CONFIG, names=["class_means"], metrics="none")
    assert result.features == "output"


@pytest.mark.bad_input
def test_an_unknown_probe_is_refused(objective: Objective, loaders: Loaders) -> None:
    with pytest.raises(ValueError, match=r"names must be among head, cosine, .*; got 'svm'"):
        next(run_probes(objective, *loaders, CONFIG, names=["svm"]))  # type: ignore[list-item]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_probes_on_a_gpu_equal_those_on_a_cpu(objective: Objective, loaders: Loaders) -> None:
    """Compiled and captured: on images for the linear probes, on features for the cached one."""
    loader = loaders[0]
    on_gpu = MemoryLoader(loader.split.to("cuda"), loader.augmentation)
    gpu_objective, config = copy.deepcopy(objective).cuda(), replace(CONFIG, compile=True)
    on_cpu = {result.name: result for result in run_probes(objective, loader, loader, CONFIG)}
    for result in run_probes(gpu_objective, on_gpu, on_gpu, config):
        expected = on_cpu[result.name]
        # Learning rate 0.5 on features of an untrained encoder amplifies the rounding.
        tolerance = 0.06 if result.name in TRAINED else 0.002
        assert result.accuracy == pytest.approx(expected.accuracy, abs=tolerance)
        if result.name == "class_means":
            assert result.metrics == pytest.approx(expected.metrics, rel=1e-2, abs=1e-6)


def test_near_neighbors_have_more_weight() -> None:
    """One neighbor at 0° outvotes two at 60°: exp(1/0.07) against 2 exp(0.5/0.07)."""
    features = torch.tensor([[1.0, 0.0], [0.5, 3**0.5 / 2], [0.5, -(3**0.5) / 2]])
    knn = NearestNeighbors(LabeledFeatures(features, torch.tensor([0, 1, 1])), num_classes=2)
    votes = knn(torch.tensor([[2.0, 0.0]]))
    expected = 2 * torch.tensor(-0.5 / 0.07).exp()
    torch.testing.assert_close(votes[0, 1] / votes[0, 0], expected)


@pytest.mark.parametrize(
    ("create_head", "loss"),
    [
        (partial(LinearClassifier, 32, 20), CrossEntropyLoss()),
        (partial(CosineClassifier, 32, 20), NormFaceLoss()),
    ],
    ids=["linear", "cosine"],
)
def test_precision_does_not_affect_a_head_on_features(
    create_head: Callable[[], CosineClassifier], loss: nn.Module
) -> None:
    """bf16 is the precision of the encoder; features that are computed already are not rounded."""
    labels = torch.arange(600) % 20
    loader = FeatureLoader(torch.randn(20, 32)[labels] + torch.randn(600, 32), labels)
    exact, rounded = (
        train_head(nn.Identity(), loader, create_head, loss, replace(CONFIG, precision=precision))
        for precision in ("fp32", "bf16")
    )
    torch.testing.assert_close(exact.prototypes, rounded.prototypes, rtol=0, atol=1e-5)
