"""NONL from logits warns once of logits that no cosine head returns."""

import copy
import pickle
import warnings

import pytest
import torch
from torch import nn

from protosphere.classifiers import CosineClassifier
from protosphere.losses import NONLFromLogits

LABELS = torch.arange(32) % 4


def test_logits_of_a_linear_layer_are_warned_of_once() -> None:
    loss, head = NONLFromLogits(), nn.Linear(8, 4)
    logits = head(300 * torch.randn(32, 8))
    with pytest.warns(UserWarning, match=r"got a logit of .* use CosineClassifier"):
        loss(logits, LABELS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loss(logits, LABELS)
    with pytest.warns(UserWarning, match="use CosineClassifier"):
        NONLFromLogits()(logits, LABELS)


def test_training_with_a_linear_layer_diverges_and_is_warned_of() -> None:
    loss, head = NONLFromLogits(), nn.Linear(8, 4)
    features = torch.eye(8)[LABELS] + 0.1 * torch.randn(32, 8)
    optimizer = torch.optim.SGD(head.parameters(), lr=10.0)

    def train() -> float:
        for _ in range(300):
            optimizer.zero_grad()
            value = loss(head(features), LABELS)
            value.backward()
            optimizer.step()
        return float(value.detach())

    with pytest.warns(UserWarning, match="use CosineClassifier"):
        value = train()
    assert value < -500


@pytest.mark.parametrize("temperature", [0.01, 0.1, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_cosines_over_a_temperature_never_warn(temperature: float, dtype: torch.dtype) -> None:
    head = CosineClassifier(8, 4, temperature=temperature)
    features = head.prototypes.detach()[LABELS] * torch.linspace(0.01, 100, 32)[:, None]
    logits = head(features)
    assert logits.max() > 0.99 / temperature
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        NONLFromLogits()(logits.to(dtype), LABELS)


def test_ignored_samples_and_empty_batches_do_not_warn() -> None:
    loss, logits, labels = NONLFromLogits(), torch.randn(32, 4), LABELS.clone()
    logits[3], labels[3] = torch.inf, -100
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loss(logits, labels)
        loss(logits[:0], labels[:0])


def test_module_can_be_copied_and_pickled_and_remembers_its_warning() -> None:
    loss, logits = NONLFromLogits(), torch.full((32, 4), 200.0)
    with pytest.warns(UserWarning, match="use CosineClassifier"):
        loss(logits, LABELS)
    for twin in (copy.deepcopy(loss), pickle.loads(pickle.dumps(loss))):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            twin(logits, LABELS)


@pytest.mark.compiled
def test_compiled_module_has_no_graph_break() -> None:
    loss = torch.compile(NONLFromLogits(), fullgraph=True, backend="aot_eager")
    logits = 200 * torch.randn(32, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.isfinite(loss(logits, LABELS))
