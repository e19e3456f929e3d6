"""The primitive against a loop over pairs, its memory, its derivatives, and bad input."""

import itertools
from collections.abc import Callable
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from protosphere.kernels import Form, choose_form, chunked, dispatch, masked_logsumexp
from protosphere.kernels.problem import Exclude, PositiveLogitsFrom

F64 = torch.float64
NUM_ANCHORS, NUM_KEYS, DIM = 5, 7, 3


def _loop(
    anchors: Tensor,
    keys: Tensor,
    *,
    temperature: Tensor,
    similarity: str,
    positives: str,
    exclude: str,
    positive_index: Tensor | None,
    anchor_labels: Tensor,
    key_labels: Tensor,
    key_log_weights: Tensor,
) -> tuple[Tensor, Tensor]:
    """Values and positive logits, pair by pair."""
    if similarity == "cosine":
        anchors = anchors / anchors.norm(dim=1, keepdim=True)
        keys = keys / keys.norm(dim=1, keepdim=True)
    num_queries = {"none": 0, "anchor_of_key": len(keys)}.get(positives, len(anchors))
    values: list[Tensor] = []
    positive_logits: list[list[Tensor]] = [[] for _ in range(num_queries)]
    for a, anchor in enumerate(anchors):
        terms = []
        for k, key in enumerate(keys):
            logit = ((anchor * key).sum() - (1 if similarity == "cosine" else 0)) / temperature
            same_index = exclude == "same_index" and a == k
            is_positive = False
            if positives == "same_label":
                is_positive = bool(anchor_labels[a] == key_labels[k]) and not same_index
            elif positive_index is not None:
                of_anchor = positives == "key_of_anchor"
                is_positive = bool(positive_index[a] == k if of_anchor else positive_index[k] == a)
            if is_positive:
                positive_logits[k if positives == "anchor_of_key" else a].append(logit)
            if not same_index and not (exclude == "positives" and is_positive):
                terms.append(logit + key_log_weights[k])
        nothing = torch.tensor(-torch.inf, dtype=F64)
        values.append(torch.stack(terms).logsumexp(0) if terms else nothing)
    zero = torch.zeros((), dtype=F64)
    means = [torch.stack(logits).mean() if logits else zero for logits in positive_logits]
    return torch.stack(values), torch.stack(means) if means else torch.zeros(0, dtype=F64)


@pytest.mark.parametrize(
    ("positives", "exclude"),
    [
        (positives, exclude)
        for positives, exclude in itertools.product(
            ("none", "key_of_anchor", "anchor_of_key", "same_label"),
            ("none", "positives", "same_index"),
        )
        if (positives, exclude) != ("none", "positives")
    ],
)
@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_equals_a_loop_over_pairs(
    positives: str, exclude: str, similarity: str, form: Form
) -> None:
    inputs = [
        torch.randn(NUM_ANCHORS, DIM, dtype=F64),
        torch.randn(NUM_KEYS, DIM, dtype=F64),
        torch.tensor(0.4, dtype=F64),
        torch.randn(NUM_KEYS, dtype=F64),
    ]
    index = {
        "key_of_anchor": torch.tensor([6, 0, 3, 3, 2]),
        "anchor_of_key": torch.tensor([4, 0, 1, 1, 0, 2, 4]),
    }
    options: dict[str, Any] = {
        "similarity": similarity,
        "positives": positives,
        "exclude": exclude,
        "positive_index": index.get(positives),
        "anchor_labels": torch.tensor([0, 1, 2, 1, 0]),
        "key_labels": torch.tensor([2, 1, 0, 1, 5, 0, 2]),
    }
    weights = torch.linspace(0.5, 2, NUM_ANCHORS, dtype=F64)
    results = []
    for compute in (lambda *args, **kw: masked_logsumexp(*args, **kw, form=form), _loop):
        leaves = [tensor.clone().requires_grad_() for tensor in inputs]
        anchors, keys, temperature, log_weights = leaves
        values, positive_logits = compute(
            anchors, keys, temperature=temperature, key_log_weights=log_weights, **options
        )
        slopes = torch.linspace(1, 3, len(positive_logits), dtype=F64)
        total = (values * weights).sum() - (positive_logits * slopes).sum()
        results.append((values, positive_logits, *torch.autograd.grad(total, leaves)))
    for ours, loop in zip(*results, strict=True):
        torch.testing.assert_close(ours, loop, rtol=1e-12, atol=1e-12)


def test_an_anchor_without_a_key_is_minus_infinity_with_a_zero_gradient(form: Form) -> None:
    cases: list[dict[str, Any]] = [
        {"key_log_weights": torch.full((1,), -torch.inf)},
        {"exclude": "same_index"},
    ]
    for options in cases:
        anchors, keys = torch.randn(1, 4).requires_grad_(), torch.randn(1, 4).requires_grad_()
        values = masked_logsumexp(anchors, keys, form=form, **options).values
        assert values.tolist() == [-torch.inf]
        total = torch.where(values == -torch.inf, 0, values).sum()
        for gradient in torch.autograd.grad(total, (anchors, keys)):
            assert torch.equal(gradient, torch.zeros(1, 4))


def test_no_anchors_and_no_keys(form: Form) -> None:
    assert masked_logsumexp(torch.ones(0, 4), torch.ones(3, 4), form=form).values.shape == (0,)
    assert masked_logsumexp(torch.ones(2, 4), torch.ones(0, 4), form=form).values.tolist() == [
        -torch.inf,
        -torch.inf,
    ]


def test_gradients_are_computed_for_inputs_that_require_them(form: Form) -> None:
    for needed in itertools.product((False, True), repeat=2):
        anchors, keys = (torch.randn(4, 3).requires_grad_(need) for need in needed)
        values = masked_logsumexp(anchors, keys, form=form).values
        assert values.requires_grad == any(needed)
        if any(needed):
            values.sum().backward()
        assert [anchors.grad is not None, keys.grad is not None] == list(needed)


def _largest_allocation(step: Callable[[], None]) -> int:
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        step()
    return max(event.self_cpu_memory_usage for event in profile.events())


@pytest.mark.filterwarnings("ignore:Warning. Profiler clears events")
@pytest.mark.parametrize("exclude", ["none", "positives"])
def test_chunked_never_holds_the_matrix(exclude: Exclude, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunked, "_SIDE_ON_CPU", 64)
    monkeypatch.setattr(chunked, "_KEPT", 0)
    anchors, keys = torch.randn(600, 4).requires_grad_(), torch.randn(700, 4).requires_grad_()

    def step(form: Form) -> None:
        positive_index = torch.arange(600)
        result = masked_logsumexp(
            anchors,
            keys,
            positives="key_of_anchor",
            exclude=exclude,
            positive_index=positive_index,
            form=form,
        )
        (result.values - result.positive_logits).sum().backward()

    matrix = 600 * 700 * 4
    assert _largest_allocation(lambda: step("eager")) >= matrix
    assert _largest_allocation(lambda: step("chunked")) <= matrix / 20


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("store", [True, False])
@pytest.mark.parametrize("positives", ["anchor_of_key", "same_label"])
def test_operators_are_what_they_declare(store: bool, positives: str) -> None:
    """torch's own checks of a custom operator: schema, shapes without data, autograd, tracing."""
    anchors, keys = torch.randn(4, 3).requires_grad_(), torch.randn(6, 3).requires_grad_()
    scale, index = torch.tensor(2.0).requires_grad_(), torch.tensor([0, 1, 2, 3, 0, 1])
    source = "chords" if store and positives == "anchor_of_key" else "matrix"
    pairs = (torch.stack((index, index.roll(1)), 1), torch.randn(6, 2))
    tensors = (anchors, keys, scale, None, index, index[:4], index, *pairs)
    torch.library.opcheck(
        chunked._forward, (*tensors, positives, source, "positives", "cosine", store)
    )


def test_logits_from_chords_equal_those_of_the_matrix_and_keep_more_digits(form: Form) -> None:
    generator = torch.Generator().manual_seed(0)
    anchors = torch.randn(4, 6, dtype=F64, generator=generator)
    keys = 3 * anchors[[2, 0, 1, 1, 3]] + 1e-4 * torch.randn(5, 6, dtype=F64, generator=generator)
    positive_index, results = torch.tensor([2, 0, 1, 1, 3]), {}
    cases: list[tuple[torch.dtype, PositiveLogitsFrom]] = [
        (F64, "matrix"),
        (F64, "chords"),
        (torch.float32, "chords"),
        (torch.float32, "matrix"),
    ]
    for dtype, positive_logits_from in cases:
        a, k = anchors.to(dtype).requires_grad_(), keys.to(dtype).requires_grad_()
        scale = torch.tensor(0.2, dtype=dtype, requires_grad=True)
        values, positive_logits = masked_logsumexp(
            a,
            k,
            temperature=scale,
            positives="anchor_of_key",
            positive_logits_from=positive_logits_from,
            exclude="positives",
            positive_index=positive_index,
            form=form,
        )
        gradients = torch.autograd.grad(values.sum() - 2 * positive_logits.sum(), (a, k, scale))
        results[dtype, positive_logits_from] = [
            tensor.double() for tensor in (values, positive_logits, *gradients)
        ]
    for matrix, chords in zip(results[F64, "matrix"], results[F64, "chords"], strict=True):
        torch.testing.assert_close(chords, matrix, rtol=1e-6, atol=1e-12)
    exact = results[F64, "chords"][1]
    error = {
        positive_logits_from: ((results[torch.float32, positive_logits_from][1] - exact) / exact)
        .abs()
        .max()
        for positive_logits_from in ("matrix", "chords")
    }
    assert error["chords"] < 2e-2 < error["matrix"]


POSITIVES: list[dict[str, Any]] = [
    {"positives": "none"},
    {"positives": "key_of_anchor", "exclude": "positives", "positive_index": torch.arange(4) % 3},
    {"positives": "same_label", "exclude": "same_index"},
]


@pytest.mark.parametrize("options", POSITIVES, ids=lambda options: options["positives"])
def test_second_derivatives_are_those_of_finite_differences(
    options: dict[str, Any], form: Form
) -> None:
    labels = torch.tensor([0, 1, 0, 1])
    inputs = (
        torch.randn(4, 3, dtype=F64, requires_grad=True),
        torch.randn(4, 3, dtype=F64, requires_grad=True),
        torch.tensor(0.4, dtype=F64, requires_grad=True),
    )

    def compute(anchors: Tensor, keys: Tensor, temperature: Tensor) -> Tensor:
        result = masked_logsumexp(
            anchors,
            keys,
            temperature=temperature,
            anchor_labels=labels,
            key_labels=labels,
            form=form,
            **options,
        )
        return torch.cat(result)

    assert torch.autograd.gradgradcheck(compute, inputs)


def test_second_derivatives_with_one_tensor_as_anchors_and_keys(form: Form) -> None:
    vectors, labels = torch.randn(4, 3, dtype=F64, requires_grad=True), torch.tensor([0, 1, 0, 1])

    def compute(vectors: Tensor) -> Tensor:
        result = masked_logsumexp(
            vectors,
            vectors,
            positives="same_label",
            exclude="same_index",
            anchor_labels=labels,
            key_labels=labels,
            form=form,
        )
        return result.values - result.positive_logits

    assert torch.autograd.gradgradcheck(compute, (vectors,))


@pytest.mark.parametrize("limit", [2**20, 4], ids=["below the size limit", "above the size limit"])
@pytest.mark.parametrize("options", POSITIVES, ids=lambda options: options["positives"])
def test_auto_supports_torch_func_at_every_size(
    options: dict[str, Any], limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "_EAGER_LIMIT_ON_CPU", limit)
    keys, labels = torch.randn(4, 3, dtype=F64), torch.tensor([0, 1, 0, 1])

    def total(anchors: Tensor) -> Tensor:
        result = masked_logsumexp(anchors, keys, anchor_labels=labels, key_labels=labels, **options)
        return result.values.sum() - result.positive_logits.sum()

    batches = torch.randn(2, 4, 3, dtype=F64)
    expected = [torch.autograd.functional.jacobian(total, anchors) for anchors in batches]
    got = [torch.func.grad(total)(anchors) for anchors in batches]
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(torch.vmap(torch.func.grad(total))(batches), torch.stack(expected))


def test_chunked_under_torch_func_names_the_remedy() -> None:
    def total(anchors: Tensor) -> Tensor:
        return masked_logsumexp(anchors, torch.ones(5, 4), form="chunked").values.sum()

    with pytest.raises(RuntimeError, match=r'not support .* torch\.func .* use form="eager"'):
        torch.func.grad(total)(torch.randn(3, 4))


def test_every_form_has_a_row_and_a_name() -> None:
    assert set(get_args(Form)) == {"auto", *dispatch.FORMS}


def test_choice_follows_size() -> None:
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert [choose_form(512, 1000, cpu), choose_form(8192, 1000, cpu)] == ["eager", "chunked"]
    assert [choose_form(8192, 1000, cuda), choose_form(8192, 50_000, cuda)] == ["eager", "chunked"]


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"form": "fused"}, "form must be one of auto, eager, chunked, got 'fused'"),
        (
            {"positives": "all"},
            "positives must be one of none, key_of_anchor, anchor_of_key, same_label, got 'all'",
        ),
        ({"exclude": "positives"}, 'exclude="positives" requires positives, got positives="none"'),
        ({"similarity": "cos"}, "similarity must be one of cosine, dot, got 'cos'"),
        ({"temperature": -1.0}, "temperature must be a positive number, got -1.0"),
        ({"temperature": True}, "temperature must be a positive number, got True"),
        (
            {"positives": "same_label"},
            r"anchor_labels must have shape \(3,\) for positives='same_label', got None",
        ),
        (
            {"positives": "key_of_anchor"},
            r"positive_index must have shape \(3,\) for positives='key_of_anchor', got None",
        ),
        (
            {"key_log_weights": torch.ones(2)},
            r"key_log_weights must have shape \(3,\).*, got shape \(2,\)",
        ),
        (
            {
                "positives": "key_of_anchor",
                "positive_index": torch.arange(3),
                "positive_logits_from": "chords",
                "similarity": "dot",
            },
            'positive_logits_from="chords" requires similarity="cosine"',
        ),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        masked_logsumexp(torch.eye(3), torch.eye(3), **options)


@pytest.mark.bad_input
def test_bad_shapes() -> None:
    square = torch.eye(3)
    with pytest.raises(
        ValueError, match=r"matrices of the same width.*got shapes \(3, 3\) and \(3,\)"
    ):
        masked_logsumexp(square, square[0])
