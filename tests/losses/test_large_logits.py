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


def test_an_ordinary_linear_head_is_warned_of_once() -> None:
    loss, features = NONLFromLogits(), 300 * torch.randn(32, 8)
    head = nn.Linear(8, 4)
    with pytest.warns(UserWarning, match="got a logit of .* use CosineClassifier") as record:
        for _ in range(3):
            loss(head(features), LABELS)
    assert len(record) == 1
    assert record[0].filename == __file__
    with pytest.warns(UserWarning, match="use CosineClassifier"):
        NONLFromLogits()(head(features), LABELS)


def test_training_behind_a_linear_head_is_warned_of() -> None:
    """The loss falls without bound there, because the logits grow."""
    loss, head = NONLFromLogits(), nn.Linear(8, 4)
    features = torch.randn(32, 8)
    optimizer = torch.optim.SGD(head.parameters(), lr=2.0)
    with pytest.warns(UserWarning, match="use CosineClassifier"):
        for _ in range(200):
            optimizer.zero_grad()
            loss(head(features), LABELS).backward()
            optimizer.step()


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
