"""Heads: logits, predictions, what is learned, what is saved."""

import pytest
import torch
from safetensors.torch import load, save

from protosphere.classifiers import CosineClassifier, FixedFrameClassifier, LinearClassifier
from protosphere.geometry import cosines
from protosphere.losses import nonl_loss, normface_from_logits, normface_loss

HEADS = [
    lambda: LinearClassifier(6, 4),
    lambda: CosineClassifier(6, 4),
    lambda: CosineClassifier(6, 4, temperature_kind="learned"),
    lambda: FixedFrameClassifier(6, 4),
    lambda: FixedFrameClassifier(2, 4, frame="separated"),
]


@pytest.mark.parametrize("build", HEADS)
def test_every_head_predicts_the_largest_logit_and_survives_saving(build) -> None:
    head = build()
    features = torch.randn(9, head.prototypes.shape[1])
    logits = head(features)
    assert logits.shape == (9, 4)
    assert torch.equal(head.predict(features), logits.argmax(1))
    torch.manual_seed(99)
    other = build()
    other.load_state_dict(
        load(save({name: value.contiguous() for name, value in head.state_dict().items()}))
    )
    assert torch.equal(other(features), logits)


def test_linear_is_nn_linear() -> None:
    head = LinearClassifier(6, 4)
    features = torch.randn(3, 6)
    assert torch.equal(head(features), features @ head.prototypes.mT + head.bias)
    assert LinearClassifier(6, 4, bias=False).bias is None


def test_cosine_logits_are_scaled_cosines_and_fit_the_losses() -> None:
    head = CosineClassifier(6, 4, temperature=0.2)
    features, labels = torch.randn(8, 6), torch.arange(8) % 4
    torch.testing.assert_close(head(features), cosines(features, head.prototypes) / 0.2)
    torch.testing.assert_close(
        normface_from_logits(head(features), labels),
        normface_loss(features, head.prototypes, labels, temperature=head.temperature),
    )
    # Gaussian rows point in every direction and are not of one length.
    assert head.prototypes.norm(dim=1).std() > 0
    assert [name for name, _ in head.named_parameters()] == ["prototypes"]
    half = head(features.bfloat16())
    assert half.dtype == torch.float32
    assert head.bfloat16().temperature == 0.2


def test_a_learned_temperature_belongs_to_the_head() -> None:
    head = CosineClassifier(6, 4, temperature=0.3, temperature_kind="learned")
    assert dict(head.named_parameters()).keys() == {"prototypes", "log_temperature"}
    assert head.temperature.item() == pytest.approx(0.3)
    labels = torch.arange(8) % 4
    nonl_loss(
        torch.randn(8, 6),
        head.prototypes,
        labels,
        temperature=head.temperature,
        min_temperature=0.05,
    ).backward()
    assert head.log_temperature.grad.abs() > 0


def test_a_fixed_frame_is_not_trained() -> None:
    head = FixedFrameClassifier(6, 4)
    assert not list(head.parameters())
    assert list(head.state_dict()) == ["prototypes"]
    off_diagonal = (head.prototypes @ head.prototypes.mT)[~torch.eye(4, dtype=torch.bool)]
    torch.testing.assert_close(off_diagonal, torch.full((12,), -1 / 3))


@pytest.mark.bad_input
def test_heads_that_make_no_sense() -> None:
    for call, sentence in (
        (lambda: LinearClassifier(0, 4), "dim ≥ 1 and num_classes ≥ 2; got dim=0, num_classes=4"),
        (lambda: CosineClassifier(4, 1), "got dim=4, num_classes=1"),
        (
            lambda: CosineClassifier(4, 3, temperature=0.0),
            "temperature must be a positive number; got 0.0",
        ),
        (
            lambda: CosineClassifier(4, 3, temperature_kind="free"),
            'must be "fixed" or "learned"; got \'free\'',
        ),
        (
            lambda: FixedFrameClassifier(4, 10),
            "a simplex of 10 classes needs at least 9 dimensions; got 4",
        ),
        (
            lambda: FixedFrameClassifier(4, 3, frame="random"),
            'frame must be "simplex" or "separated"; got \'random\'',
        ),
        (
            lambda: CosineClassifier(4, 3)(torch.ones(2, 5)),
            r"matrix \(samples, 4\), as wide as the head; got \(2, 5\)",
        ),
    ):
        with pytest.raises(ValueError, match=sentence):
            call()
