"""Weights of single pairs in the primitive: listed pairs, a whole matrix, and bad input."""

from typing import Any

import pytest
import torch
from torch import Tensor

from protosphere.kernels import Form, masked_logsumexp

F64 = torch.float64
NUM_ANCHORS, NUM_KEYS, DIM = 5, 7, 3


def _results(form: Form, weights: Tensor, **options: Any) -> list[Tensor]:
    """Value and gradients, of the definition for the form "loop"."""
    generator = torch.Generator().manual_seed(0)
    anchors = torch.randn(NUM_ANCHORS, DIM, dtype=F64, generator=generator).requires_grad_()
    keys = torch.randn(NUM_KEYS, DIM, dtype=F64, generator=generator).requires_grad_()
    temperature = torch.tensor(0.4, dtype=F64, requires_grad=True)
    if options:
        values = masked_logsumexp(
            anchors, keys, temperature=temperature, similarity="dot", form=form, **options
        ).values
    else:
        values = (anchors @ keys.mT / temperature + weights).logsumexp(1)
    total = (values * torch.linspace(0.5, 2, NUM_ANCHORS, dtype=F64)).sum()
    return [values, *torch.autograd.grad(total, (anchors, keys, temperature))]


def _weights(entries: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Log-weights of keys, of listed pairs and their indices, and of all pairs."""
    of_keys = torch.randn(NUM_KEYS, dtype=F64)
    index = torch.stack([torch.randperm(NUM_ANCHORS)[:entries] for _ in range(NUM_KEYS)])
    of_pairs = torch.randn(NUM_KEYS, entries, dtype=F64)
    of_pairs[2], of_pairs[4, 0], of_keys[3] = -torch.inf, -torch.inf, -torch.inf
    matrix = of_keys.expand(NUM_ANCHORS, NUM_KEYS).clone()
    for k in range(NUM_KEYS):
        for e in range(entries):
            matrix[index[k, e], k] += of_pairs[k, e]
    return of_keys, index, of_pairs, matrix


@pytest.mark.parametrize("entries", [1, 2, 3])
def test_listed_pairs_and_a_matrix_equal_the_definition(entries: int, form: Form) -> None:
    of_keys, index, of_pairs, matrix = _weights(entries)
    expected = _results(form, matrix)
    listed = _results(
        form, matrix, key_log_weights=of_keys, pair_index=index, pair_log_weights=of_pairs
    )
    dense = _results(form, matrix, key_log_weights=matrix)
    for wanted, one, other in zip(expected, listed, dense, strict=True):
        torch.testing.assert_close(one, wanted, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(other, wanted, rtol=1e-12, atol=1e-12)


def test_a_pair_listed_twice_gets_both_weights(form: Form) -> None:
    index = torch.tensor([[1, 1]]).expand(NUM_KEYS, 2)
    of_pairs = torch.randn(NUM_KEYS, 2, dtype=F64)
    matrix = torch.zeros(NUM_ANCHORS, NUM_KEYS, dtype=F64)
    matrix[1] = of_pairs.sum(1)
    got = _results(form, matrix, pair_index=index, pair_log_weights=of_pairs)
    for ours, wanted in zip(got, _results(form, matrix), strict=True):
        torch.testing.assert_close(ours, wanted, rtol=1e-12, atol=1e-12)


def test_an_anchor_whose_pairs_are_all_excluded_is_minus_infinity(form: Form) -> None:
    anchors, keys = torch.randn(2, DIM).requires_grad_(), torch.randn(4, DIM)
    values = masked_logsumexp(
        anchors,
        keys,
        pair_index=torch.zeros(4, 1, dtype=torch.int64),
        pair_log_weights=torch.full((4, 1), -torch.inf),
        form=form,
    ).values
    assert values[0] == -torch.inf
    (gradient,) = torch.autograd.grad(values[1], anchors)
    assert torch.isfinite(values[1])
    assert torch.equal(gradient[0], torch.zeros(DIM))


INDEX, PAIRS = torch.zeros(4, 2, dtype=torch.int64), torch.zeros(4, 2)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pair_index": INDEX}, r"must have one shape \(4, entries\), got \(4, 2\) and None"),
        (
            {"pair_index": INDEX[:3], "pair_log_weights": PAIRS[:3]},
            r"must have one shape \(4, entries\), got \(3, 2\) and \(3, 2\)",
        ),
        ({"key_log_weights": torch.zeros(4, 3)}, r"shape \(4,\) or \(3, 4\), got \(4, 3\)"),
        (
            {"key_log_weights": torch.zeros(3, 4, requires_grad=True)},
            "log-weights of pairs must be constants, got requires_grad=True",
        ),
        (
            {"pair_index": INDEX, "pair_log_weights": PAIRS.clone().requires_grad_()},
            "log-weights of pairs must be constants, got requires_grad=True",
        ),
        (
            {
                "pair_index": INDEX,
                "pair_log_weights": PAIRS,
                "positives": "same_label",
                "anchor_labels": torch.arange(3),
                "key_labels": torch.arange(4),
            },
            'pair_index cannot be combined with positives="same_label"',
        ),
    ],
)
def test_bad_weights(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        masked_logsumexp(torch.randn(3, DIM), torch.randn(4, DIM), **options)
