"""The primitive against a loop over pairs, in both forms; what it may hold in memory; what it refuses."""

import itertools

import pytest
import torch

from protosphere.kernels import choose_form, chunked, masked_logsumexp

F64 = torch.float64
ANCHORS, KEYS, DIM = 5, 7, 3


def _loop(
    anchors,
    keys,
    temperature,
    similarity,
    pull,
    leave_out,
    partners,
    a_labels,
    k_labels,
    log_weights,
):
    """values and pulled, pair by pair."""
    if similarity == "cosine":
        anchors = anchors / anchors.norm(dim=1, keepdim=True)
        keys = keys / keys.norm(dim=1, keepdim=True)
    askers = {"nothing": 0, "anchor_of_key": len(keys)}.get(pull, len(anchors))
    values, pulled = [], [torch.zeros((), dtype=F64)] * askers
    for a, anchor in enumerate(anchors):
        terms = []
        for k, key in enumerate(keys):
            scaled = ((anchor * key).sum() - (1 if similarity == "cosine" else 0)) / temperature
            pulls = {
                "nothing": False,
                "key_of_anchor": pull == "key_of_anchor" and partners[a] == k,
                "anchor_of_key": pull == "anchor_of_key" and partners[k] == a,
                "same_label": a_labels[a] == k_labels[k]
                and not (leave_out == "same_index" and a == k),
            }[pull]
            if pulls:
                place = k if pull == "anchor_of_key" else a
                pulled[place] = pulled[place] + scaled
            if not (leave_out == "pulled" and pulls) and not (leave_out == "same_index" and a == k):
                terms.append(scaled + log_weights[k])
        values.append(
            torch.stack(terms).logsumexp(0) if terms else torch.tensor(-torch.inf, dtype=F64)
        )
    return torch.stack(values), torch.stack(pulled) if pulled else torch.zeros(0, dtype=F64)


@pytest.mark.parametrize(
    ("pull", "leave_out"),
    [
        (pull, leave_out)
        for pull, leave_out in itertools.product(
            ("nothing", "key_of_anchor", "anchor_of_key", "same_label"),
            ("nothing", "pulled", "same_index"),
        )
        if (pull, leave_out) != ("nothing", "pulled")
    ],
)
@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_equals_a_loop_over_pairs(pull: str, leave_out: str, similarity: str, form: str) -> None:
    inputs = [
        torch.randn(ANCHORS, DIM, dtype=F64),
        torch.randn(KEYS, DIM, dtype=F64),
        torch.tensor(0.4, dtype=F64),
        torch.randn(KEYS, dtype=F64),
    ]
    a_labels, k_labels = torch.tensor([0, 1, 2, 1, 0]), torch.tensor([2, 1, 0, 1, 5, 0, 2])
    partners = {
        "key_of_anchor": torch.tensor([6, 0, 3, 3, 2]),
        "anchor_of_key": torch.tensor([4, 0, 1, 1, 0, 2, 4]),
    }
    weights = torch.linspace(0.5, 2, ANCHORS, dtype=F64)
    results = []
    for which in ("ours", "loop"):
        anchors, keys, temperature, log_weights = leaves = [
            tensor.clone().requires_grad_() for tensor in inputs
        ]
        if which == "ours":
            values, pulled = masked_logsumexp(
                anchors,
                keys,
                temperature=temperature,
                similarity=similarity,
                pull=pull,
                leave_out=leave_out,
                partners=partners.get(pull),
                anchor_labels=a_labels,
                key_labels=k_labels,
                key_log_weights=log_weights,
                form=form,
            )
        else:
            found = partners.get(pull)
            values, pulled = _loop(
                anchors,
                keys,
                temperature,
                similarity,
                pull,
                leave_out,
                found,
                a_labels,
                k_labels,
                log_weights,
            )
        total = (values * weights).sum() - (
            pulled * torch.linspace(1, 3, len(pulled), dtype=F64)
        ).sum()
        results.append((values, pulled, *torch.autograd.grad(total, leaves)))
    for ours, loop in zip(*results, strict=True):
        torch.testing.assert_close(ours, loop, rtol=1e-12, atol=1e-12)


def test_an_anchor_without_a_key_is_minus_infinity_with_a_zero_gradient(form: str) -> None:
    for weights, leave_out in ((torch.full((1,), -torch.inf), "nothing"), (None, "same_index")):
        anchors, keys = torch.randn(1, 4).requires_grad_(), torch.randn(1, 4).requires_grad_()
        values = masked_logsumexp(
            anchors, keys, leave_out=leave_out, key_log_weights=weights, form=form
        ).values
        assert values.tolist() == [-torch.inf]
        torch.where(values == -torch.inf, 0, values).sum().backward()
        assert torch.equal(anchors.grad, torch.zeros(1, 4))
        assert torch.equal(keys.grad, torch.zeros(1, 4))


def test_no_anchors_and_no_keys(form: str) -> None:
    assert masked_logsumexp(torch.ones(0, 4), torch.ones(3, 4), form=form).values.shape == (0,)
    assert masked_logsumexp(torch.ones(2, 4), torch.ones(0, 4), form=form).values.tolist() == [
        -torch.inf,
        -torch.inf,
    ]


def test_only_the_gradients_asked_for_are_given(form: str) -> None:
    for wanted in itertools.product((False, True), repeat=2):
        anchors, keys = (torch.randn(4, 3).requires_grad_(want) for want in wanted)
        values = masked_logsumexp(anchors, keys, form=form).values
        assert values.requires_grad == any(wanted)
        if any(wanted):
            values.sum().backward()
        assert [anchors.grad is not None, keys.grad is not None] == list(wanted)


def _largest_allocation(step) -> int:
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        step()
    return max(event.self_cpu_memory_usage for event in profile.events())


@pytest.mark.filterwarnings("ignore:Warning. Profiler clears events")
@pytest.mark.parametrize("leave_out", ["nothing", "pulled"])
def test_chunked_never_holds_the_matrix(leave_out: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunked, "_SIDE_ON_CPU", 64)
    monkeypatch.setattr(chunked, "_KEPT", 0)
    anchors, keys = torch.randn(600, 4).requires_grad_(), torch.randn(700, 4).requires_grad_()

    def step(form: str) -> None:
        partners = torch.arange(600)
        result = masked_logsumexp(
            anchors, keys, pull="key_of_anchor", leave_out=leave_out, partners=partners, form=form
        )
        (result.values - result.pulled).sum().backward()

    matrix = 600 * 700 * 4
    assert _largest_allocation(lambda: step("eager")) >= matrix
    assert _largest_allocation(lambda: step("chunked")) <= matrix / 20


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("keep", [True, False])
def test_operators_are_what_they_declare(keep: bool) -> None:
    """torch's own checks of a custom operator: schema, shapes without data, autograd, and tracing."""
    anchors, keys = torch.randn(4, 3).requires_grad_(), torch.randn(6, 3).requires_grad_()
    scale, partners = torch.tensor(2.0).requires_grad_(), torch.tensor([0, 1, 2, 3, 0, 1])
    pull = ("anchor_of_key", "chords" if keep else "matrix", "pulled")
    torch.library.opcheck(
        chunked._forward, (anchors, keys, scale, None, partners, None, None, *pull, True, keep)
    )


def test_partners_by_chords_equal_those_of_the_matrix_and_keep_more_digits(form: str) -> None:
    generator = torch.Generator().manual_seed(0)
    anchors = torch.randn(4, 6, dtype=F64, generator=generator)
    keys = 3 * anchors[[2, 0, 1, 1, 3]] + 1e-4 * torch.randn(5, 6, dtype=F64, generator=generator)
    partners, results = torch.tensor([2, 0, 1, 1, 3]), {}
    for dtype, pull_from in (
        (F64, "matrix"),
        (F64, "chords"),
        (torch.float32, "chords"),
        (torch.float32, "matrix"),
    ):
        a, k = anchors.to(dtype).requires_grad_(), keys.to(dtype).requires_grad_()
        scale = torch.tensor(0.2, dtype=dtype, requires_grad=True)
        values, pulled = masked_logsumexp(
            a,
            k,
            temperature=scale,
            pull="anchor_of_key",
            pull_from=pull_from,
            leave_out="pulled",
            partners=partners,
            form=form,
        )
        gradients = torch.autograd.grad(values.sum() - 2 * pulled.sum(), (a, k, scale))
        results[dtype, pull_from] = [tensor.double() for tensor in (values, pulled, *gradients)]
    for matrix, chords in zip(results[F64, "matrix"], results[F64, "chords"], strict=True):
        torch.testing.assert_close(chords, matrix, rtol=1e-6, atol=1e-12)
    exact = results[F64, "chords"][1]
    error = {
        pull_from: ((results[torch.float32, pull_from][1] - exact) / exact).abs().max()
        for pull_from in ("matrix", "chords")
    }
    assert error["chords"] < 2e-2 < error["matrix"]


def test_chunked_says_that_it_has_no_second_derivative() -> None:
    anchors, keys = torch.randn(3, 4).requires_grad_(), torch.randn(5, 4)
    for form in ("eager", "chunked"):
        values = masked_logsumexp(anchors, keys, form=form).values
        if form == "eager":
            (slope,) = torch.autograd.grad(values.sum(), anchors, create_graph=True)
            assert torch.autograd.grad(slope.square().sum(), anchors)[0].abs().sum() > 0
        else:
            with pytest.raises(RuntimeError, match='ask for form="eager"'):
                torch.autograd.grad(values.sum(), anchors, create_graph=True)


def test_choice_follows_size() -> None:
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert [choose_form(512, 1000, cpu), choose_form(8192, 1000, cpu)] == ["eager", "chunked"]
    assert [choose_form(8192, 1000, cuda), choose_form(8192, 50_000, cuda)] == ["eager", "chunked"]


@pytest.mark.bad_input
def test_choices_that_do_not_make_sense() -> None:
    square = torch.eye(3)
    for options, sentence in (
        ({"form": "fused"}, "form must be one of auto, eager, chunked; got 'fused'"),
        (
            {"pull": "all"},
            "pull must be one of nothing, key_of_anchor, anchor_of_key, same_label; got 'all'",
        ),
        (
            {"leave_out": "pulled"},
            'leave_out="pulled" needs something that is pulled; got pull="nothing"',
        ),
        ({"similarity": "cos"}, "similarity must be one of cosine, dot; got 'cos'"),
        ({"temperature": -1.0}, "temperature must be a positive number; got -1.0"),
        (
            {"pull": "same_label"},
            r"anchor_labels must have shape \(3,\) for pull='same_label'; got nothing",
        ),
        (
            {"pull": "key_of_anchor"},
            r"partners must have shape \(3,\) for pull='key_of_anchor'; got nothing",
        ),
        (
            {"key_log_weights": torch.ones(2)},
            r"key_log_weights must have shape \(3,\).*; got shape \(2,\)",
        ),
        (
            {
                "pull": "key_of_anchor",
                "partners": torch.arange(3),
                "pull_from": "chords",
                "similarity": "dot",
            },
            'pull_from="chords" is for cosines of partners',
        ),
    ):
        with pytest.raises(ValueError, match=sentence):
            masked_logsumexp(square, square, **options)
    with pytest.raises(
        ValueError, match=r"matrices of the same width.*got shapes \(3, 3\) and \(3,\)"
    ):
        masked_logsumexp(square, square[0])
