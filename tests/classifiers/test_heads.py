"""Heads: logits, predictions, which tensors are learned, which are saved."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load, save
from torch import nn

from protosphere.classifiers import (
    CosineClassifier,
    FittedHead,
    FixedFrameClassifier,
    Head,
    LinearClassifier,
    MeanClassifier,
    class_means,
    rejection_score,
)
from protosphere.geometry import cosines
from protosphere.losses import NONLLoss, nonl_loss, normface_from_logits, normface_loss


def fitted_head() -> MeanClassifier:
    head = MeanClassifier(6, 4)
    head.set_means(torch.randn(4, 6))
    return head


HEADS: dict[str, Callable[[], Any]] = {
    "linear": lambda: LinearClassifier(6, 4),
    "linear without bias": lambda: LinearClassifier(6, 4, bias=False),
    "cosine": lambda: CosineClassifier(6, 4),
    "cosine, learned temperature": lambda: CosineClassifier(6, 4, learn_temperature=True),
    "simplex": lambda: FixedFrameClassifier(6, 4),
    "code": lambda: FixedFrameClassifier(2, 4, frame="code"),
    "class means": fitted_head,
}


@pytest.fixture(params=HEADS.values(), ids=list(HEADS))
def create_head(request: pytest.FixtureRequest) -> Callable[[], Any]:
    create: Callable[[], Any] = request.param
    return create


def test_predictions_have_the_largest_logit(create_head: Callable[[], Any]) -> None:
    head = create_head()
    features = torch.randn(9, head.prototypes.shape[1])
    logits = head(features)
    assert logits.shape == (9, 4)
    assert torch.equal(head.predict(features), logits.argmax(1))


@pytest.mark.parametrize("batch_shape", [(), (9,), (0,), (2, 3), (2, 1, 3)])
def test_features_may_have_any_number_of_leading_axes(
    create_head: Callable[[], Any], batch_shape: tuple[int, ...]
) -> None:
    head = create_head()
    dim = head.prototypes.shape[1]
    features = torch.randn(*batch_shape, dim)
    logits = head(features)
    assert logits.shape == (*batch_shape, 4)
    torch.testing.assert_close(logits.reshape(-1, 4), head(features.reshape(-1, dim)))
    assert head.predict(features).shape == batch_shape


def test_a_saved_head_gives_the_same_logits(create_head: Callable[[], Any]) -> None:
    head = create_head()
    features = torch.randn(9, head.prototypes.shape[1])
    torch.manual_seed(99)
    other = create_head()
    tensors = {name: value.contiguous() for name, value in head.state_dict().items()}
    other.load_state_dict(load(save(tensors)))
    assert torch.equal(other(features), head(features))


def test_every_head_has_a_bias_attribute(create_head: Callable[[], Any]) -> None:
    head = create_head()
    bias = head.bias
    assert bias is None or bias.shape == (4,)
    assert (bias is not None) == (isinstance(head, LinearClassifier) and "bias=True" in repr(head))


def test_only_the_mean_classifier_is_a_fitted_head(create_head: Callable[[], Any]) -> None:
    head = create_head()
    assert isinstance(head, Head)
    assert isinstance(head, FittedHead) == isinstance(head, MeanClassifier)
    assert not isinstance(nn.Linear(6, 4), Head)


def test_isinstance_does_not_evaluate_properties() -> None:
    """``is_fitted`` reads the prototypes, which on a GPU waits for the device."""

    class Head(MeanClassifier):
        @property
        def is_fitted(self) -> bool:
            raise AssertionError("evaluated")

    assert isinstance(Head(6, 4), FittedHead)


def test_the_linear_head_is_nn_linear() -> None:
    head = LinearClassifier(6, 4)
    features = torch.randn(3, 6)
    assert head.bias is not None
    assert torch.equal(head(features), features @ head.prototypes.mT + head.bias)
    assert LinearClassifier(6, 4, bias=False).bias is None


def test_cosine_logits_are_scaled_cosines_and_fit_the_losses() -> None:
    head = CosineClassifier(6, 4, temperature=0.2)
    features, labels = torch.randn(8, 6), torch.arange(8) % 4
    torch.testing.assert_close(head(features), cosines(features, head.prototypes) / 0.2)
    torch.testing.assert_close(
        normface_from_logits(head(features), labels),
        normface_loss(features, head.prototypes, labels, temperature=0.2),
    )
    assert [name for name, _ in head.named_parameters()] == ["prototypes"]


def test_half_precision_rounds_neither_logits_nor_temperature() -> None:
    head = CosineClassifier(6, 4, temperature=0.2)
    assert head(torch.randn(8, 6).bfloat16()).dtype == torch.float32
    assert head.bfloat16().temperature == 0.2


@pytest.mark.parametrize("dim", [64, 512])
def test_prototypes_start_with_the_norms_of_nn_linear(dim: int) -> None:
    """Gaussian rows, of length √d, would at first learn about 3d times more slowly."""
    prototypes = CosineClassifier(dim, 1000).prototypes.detach()
    reference = nn.Linear(dim, 1000).weight.detach()
    mean_norm = prototypes.norm(dim=1).mean().item()
    assert mean_norm == pytest.approx(1 / math.sqrt(3), rel=0.01)
    assert mean_norm == pytest.approx(reference.norm(dim=1).mean().item(), rel=0.01)
    assert prototypes.abs().max().item() == pytest.approx(reference.abs().max().item(), rel=0.01)


@pytest.mark.parametrize("learn_temperature", [False, True])
def test_a_cosine_head_is_created_and_materialized_as_nn_linear_is(
    learn_temperature: bool,
) -> None:
    head = CosineClassifier(
        6, 4, temperature=0.2, learn_temperature=learn_temperature, device="meta"
    )
    assert {parameter.device.type for parameter in head.parameters()} == {"meta"}
    assert (head.in_features, head.out_features) == (6, 4)
    head.to_empty(device="cpu")
    for parameter in head.parameters():
        nn.init.zeros_(parameter)
    torch.manual_seed(0)
    head.reset_parameters()
    torch.manual_seed(0)
    expected = CosineClassifier(6, 4, temperature=0.2, learn_temperature=learn_temperature)
    for name, value in expected.state_dict().items():
        assert torch.equal(head.state_dict()[name], value), name
    with torch.no_grad():
        assert float(head.temperature) == pytest.approx(0.2)
    half = CosineClassifier(6, 4, dtype=torch.bfloat16)
    assert half.prototypes.dtype == torch.bfloat16


def test_a_learned_temperature_belongs_to_the_head() -> None:
    head = CosineClassifier(6, 4, temperature=0.3, learn_temperature=True)
    assert dict(head.named_parameters()).keys() == {"prototypes", "log_temperature"}
    assert isinstance(head.temperature, torch.Tensor)
    assert head.temperature.item() == pytest.approx(0.3)
    labels = torch.arange(8) % 4
    nonl_loss(
        torch.randn(8, 6),
        head.prototypes,
        labels,
        temperature=head.temperature,
        min_temperature=0.05,
    ).backward()
    assert head.log_temperature is not None
    assert head.log_temperature.grad is not None
    assert head.log_temperature.grad.abs() > 0


def test_the_lower_bound_of_the_temperature_holds_in_training_and_prediction() -> None:
    head = CosineClassifier(6, 4, temperature=0.1, learn_temperature=True, min_temperature=0.08)
    features, labels = torch.randn(8, 6), torch.arange(8) % 4
    with torch.no_grad():
        assert head.log_temperature is not None
        head.log_temperature.fill_(math.log(0.01))
    assert isinstance(head.temperature, torch.Tensor)
    assert head.temperature.item() == pytest.approx(0.08)
    expected = nonl_loss(features, head.prototypes, labels, temperature=0.08)
    torch.testing.assert_close(NONLLoss()(features, head, labels), expected)
    torch.testing.assert_close(head(features), cosines(features, head.prototypes) / 0.08)
    assert "min_temperature=0.08" in repr(head)


def test_a_fixed_frame_is_not_trained() -> None:
    head = FixedFrameClassifier(6, 4)
    assert not list(head.parameters())
    assert list(head.state_dict()) == ["prototypes"]
    off_diagonal = (head.prototypes @ head.prototypes.mT)[~torch.eye(4, dtype=torch.bool)]
    torch.testing.assert_close(off_diagonal, torch.full((12,), -1 / 3))


def test_class_means_are_set_and_discarded() -> None:
    head = MeanClassifier(3, 4)
    assert not head.is_fitted
    means = class_means(torch.eye(3), torch.tensor([2, 0, 1]), num_classes=4).means
    head.set_means(means)
    assert head.is_fitted
    assert head.predict(torch.eye(3)).tolist() == [2, 0, 1]
    assert head.prototypes[3].tolist() == [0, 0, 0], "the class without samples"
    head.reset()
    assert not head.is_fitted
    assert list(head.state_dict()) == ["prototypes"]


def test_a_class_without_samples_is_never_predicted() -> None:
    head = MeanClassifier(3, 4)
    means = torch.eye(4, 3)
    means[2:] = torch.nan
    head.set_means(means)
    features = -torch.rand(20, 3)  # All cosines with the classes that have samples are negative.
    logits = head(features)
    assert (logits[:, 2:] == -torch.inf).all()
    expected = cosines(features, torch.eye(2, 3)) / head.temperature
    torch.testing.assert_close(logits[:, :2], expected)
    assert head.predict(features).max() <= 1
    assert logits.softmax(1)[:, 2:].count_nonzero() == 0
    loss = nn.functional.cross_entropy(logits, torch.zeros(20, dtype=torch.long))
    assert loss.isfinite()


def test_the_logits_of_a_head_without_class_means_are_zero() -> None:
    head = MeanClassifier(3, 4)
    logits = head(torch.randn(5, 3))
    assert logits.count_nonzero() == 0
    assert (logits.softmax(1) == 0.25).all()


def test_class_means_may_be_numpy_arrays() -> None:
    means = torch.randn(4, 6, dtype=torch.float64)
    means[1] = torch.nan
    head, other = MeanClassifier(6, 4), MeanClassifier(6, 4)
    head.set_means(means)
    other.set_means(means.numpy())
    assert torch.equal(head.prototypes, other.prototypes)


@pytest.mark.bad_input
def test_class_means_of_other_types_are_refused() -> None:
    head = MeanClassifier(6, 4)
    with pytest.raises(TypeError, match="means must be a tensor or a NumPy array, got list"):
        head.set_means([[0.0] * 6] * 4)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="means must hold real numbers, got <U1"):
        head.set_means(np.full((4, 6), "a"))


def test_rejection_score_is_minus_the_largest_cosine() -> None:
    features, prototypes = torch.randn(5, 6), torch.randn(4, 6)
    for row, score in zip(features, rejection_score(features, prototypes), strict=True):
        largest = max(float(torch.cosine_similarity(row, other, dim=0)) for other in prototypes)
        assert float(score) == pytest.approx(-largest, abs=1e-6)
    assert rejection_score(torch.randn(2, 3, 6), prototypes).shape == (2, 3)


@pytest.mark.parametrize(
    ("head", "text"),
    [
        (
            CosineClassifier(6, 4, temperature=0.3, learn_temperature=True),
            "CosineClassifier(dim=6, num_classes=4, temperature=0.3, learn_temperature=True)",
        ),
        (
            FixedFrameClassifier(2, 4, frame="code"),
            "FixedFrameClassifier(dim=2, num_classes=4, temperature=0.1, frame='code')",
        ),
        (MeanClassifier(6, 4), "MeanClassifier(dim=6, num_classes=4, temperature=0.1)"),
    ],
)
def test_repr_shows_the_arguments(head: nn.Module, text: str) -> None:
    assert repr(head) == text


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: LinearClassifier(0, 4), "dim must be an integer of at least 1, got 0"),
        (lambda: CosineClassifier(4, 1), "num_classes must be an integer of at least 2, got 1"),
        (
            lambda: CosineClassifier(4, 3, temperature=0.0),
            "temperature must be a positive number, got 0.0",
        ),
        (
            lambda: CosineClassifier(4, 3, temperature=True),
            "temperature must be a positive number, got True",
        ),
        (
            lambda: MeanClassifier(4, 3, temperature=math.nan),
            "temperature must be a positive number, got nan",
        ),
        (lambda: FixedFrameClassifier(4, 10), "at least 9 dimensions"),
        (
            lambda: FixedFrameClassifier(4, 3, frame="random"),  # type: ignore[arg-type]
            'frame must be "simplex" or "code", got \'random\'',
        ),
        (
            lambda: CosineClassifier(4, 3)(torch.ones(2, 5)),
            r"features must have shape \(..., 4\) for this head, got \(2, 5\)",
        ),
        (
            lambda: LinearClassifier(4, 3)(torch.ones(())),
            r"features must have shape \(..., 4\) for this head, got \(\)",
        ),
        (
            lambda: MeanClassifier(4, 3).set_means(torch.ones(1, 4)),
            r"means must have shape \(3, 4\), got \(1, 4\)",
        ),
    ],
)
def test_invalid_arguments_are_refused(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
