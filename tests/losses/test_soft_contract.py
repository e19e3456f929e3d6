"""What holds for every loss with soft labels: equal forms of labels, gradients, dtypes, memory."""

import warnings
from typing import Any

import pytest
import timm.data
import torch
from torch import Tensor, nn

from protosphere.classifiers import CosineClassifier
from protosphere.geometry import cosines, simplex_etf
from protosphere.kernels import chunked
from protosphere.losses import (
    MixedLabels,
    NONLFromLogits,
    NormFaceFromLogits,
    NTCEFromLogits,
    nonl_loss,
    ntce_loss,
)
from support.losses import TABLE
from support.scalar_loops import Labels, Row, assert_close, gradients

F64 = torch.float64
CLASSES, DIM, SAMPLES = 4, 5, 9
ROWS = [row for row in TABLE if row.soft_labels]
soft_losses = pytest.mark.parametrize("row", ROWS, ids=str)
KINDS = ["probabilities", "mixed", "smoothed"]


def _batch(
    samples: int = SAMPLES, classes: int = CLASSES, dtype: torch.dtype = F64
) -> tuple[Tensor, Tensor, Tensor]:
    labels = torch.arange(samples) % classes
    return torch.randn(samples, DIM, dtype=dtype), torch.randn(classes, DIM, dtype=dtype), labels


def _soft(kind: str, labels: Tensor, ignored: bool = False) -> tuple[Labels, dict[str, Any]]:
    """Soft labels of a kind, and the options that belong to it."""
    labels = labels.clone()
    if kind == "probabilities":
        q = torch.randn(len(labels), CLASSES).softmax(1)
        q[2] *= not ignored
        return q, {}
    if ignored:
        labels[2] = -100
    if kind == "smoothed":
        return labels, {"label_smoothing": 0.2}
    return MixedLabels(labels, labels.roll(1), torch.rand(len(labels))), {}


@soft_losses
@pytest.mark.parametrize("kind", ["probabilities", "mixed"])
def test_one_hot_labels_give_the_hard_loss(row: Row, kind: str, form: str) -> None:
    features, prototypes, labels = _batch()
    one_hot = nn.functional.one_hot(labels, CLASSES).double()
    mixed = MixedLabels(labels, labels.roll(1), torch.ones(SAMPLES))
    weights = torch.rand(CLASSES, dtype=F64)
    soft = one_hot if kind == "probabilities" else mixed
    for reduction in ("mean", "sum", "none"):
        x, w = features.clone().requires_grad_(), prototypes.clone().requires_grad_()
        settings = row.settings(
            temperature=0.5, form=form, reduction=reduction, class_weights=weights
        )
        hard, got = (row.call(x, w, y, **settings) for y in (labels, soft))
        assert_close(got, hard, 1e-14)
        for ours, expected in zip(gradients(got, x, w), gradients(hard, x, w), strict=True):
            assert_close(ours, expected, 1e-14)


@soft_losses
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("classes", [CLASSES, 25])
def test_mixed_labels_equal_their_probabilities(
    row: Row, smoothing: float, classes: int, form: str
) -> None:
    features, prototypes, labels = _batch(classes=classes)
    other = labels.roll(2)
    other[3] = labels[3]
    weights = torch.rand(SAMPLES, dtype=F64)
    weights[5], weights[6] = 0.5, 0.0
    q = torch.zeros(SAMPLES, classes, dtype=F64)
    q.scatter_add_(1, labels[:, None], weights[:, None])
    q.scatter_add_(1, other[:, None], 1 - weights[:, None])
    options = row.settings(temperature=0.3, form=form, label_smoothing=smoothing)
    x, w = features.requires_grad_(), prototypes.requires_grad_()
    results = []
    for soft in (MixedLabels(labels, other, weights), q):
        value = row.call(x, w, soft, reduction="none", **options)
        results.append((value, *gradients(value, x, w)))
    for mixed, dense in zip(*results, strict=True):
        torch.testing.assert_close(mixed, dense, rtol=1e-12, atol=1e-13)


@soft_losses
@pytest.mark.parametrize("kind", ["probabilities", "mixed"])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ignored", [False, True])
@pytest.mark.long
def test_gradient_equals_finite_differences(
    row: Row, kind: str, reduction: str, weighted: bool, ignored: bool
) -> None:
    features, prototypes, labels = _batch(5)
    soft, options = _soft(kind, labels, ignored)
    if isinstance(soft, Tensor):
        soft = soft.double()
    else:
        options["label_smoothing"] = 0.1
    weights = torch.linspace(0.5, 2, CLASSES, dtype=F64) if weighted else None
    options |= {"reduction": reduction, "class_weights": weights}
    # The forms agree by other tests: each is checked in half of the cases.
    form = "chunked" if weighted == ignored else "eager"

    def value(x: Tensor, w: Tensor) -> Tensor:
        return row.call(x, w, soft, **row.settings(temperature=0.3, form=form, **options))

    inputs = (features[:, :3].clone().requires_grad_(), prototypes[:, :3].clone().requires_grad_())
    assert torch.autograd.gradcheck(value, inputs, fast_mode=True)


@soft_losses
@pytest.mark.parametrize("kind", KINDS)
def test_ignored_samples_do_not_change_the_loss(row: Row, kind: str) -> None:
    features, prototypes, labels = _batch()
    soft, options = _soft(kind, labels, ignored=True)
    if isinstance(soft, MixedLabels):
        soft = soft._replace(other_labels=soft.other_labels.where(soft.other_labels >= 0, 1))
    kept = torch.arange(SAMPLES) != 2
    # As padding may hold. The product of the logits would carry it to all prototypes.
    features[2] = 0 if row.inputs == "logits" else torch.nan
    fewer = MixedLabels(*(f[kept] for f in soft)) if isinstance(soft, MixedLabels) else soft[kept]
    settings = row.settings(
        temperature=0.2, class_weights=torch.rand(CLASSES, dtype=F64), **options
    )
    x, w = features.requires_grad_(), prototypes.requires_grad_()
    value, without = row.call(x, w, soft, **settings), row.call(x[kept], w, fewer, **settings)
    assert value.item() == pytest.approx(without.item(), rel=1e-12)
    for ours, expected in zip(gradients(value, x, w), gradients(without, x, w), strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-12, atol=1e-13)


@soft_losses
@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_batch_is_zero_with_a_zero_gradient(row: Row, kind: str, form: str) -> None:
    features, prototypes, labels = _batch(0)
    soft, options = _soft(kind, labels) if kind != "probabilities" else (torch.rand(0, CLASSES), {})
    x, w = features.requires_grad_(), prototypes.requires_grad_()
    value = row.call(x, w, soft, **row.settings(form=form, **options))
    assert value == 0
    assert torch.equal(gradients(value, w)[0], torch.zeros_like(w))


@soft_losses
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_value_and_gradient_are_finite(row: Row, kind: str, dtype: torch.dtype) -> None:
    labels = torch.arange(32) % CLASSES
    frame = simplex_etf(CLASSES, DIM)
    soft, options = _soft(kind, labels)
    if isinstance(soft, Tensor) and soft.is_floating_point():
        soft = soft.to(dtype)
    for spread in (0.0, 3.0):
        for form in row.forms:
            noise = spread * torch.randn(32, DIM, dtype=F64)
            x, w = (t.to(dtype).requires_grad_() for t in (frame[labels] + noise, frame))
            value = row.call(x, w, soft, **row.settings(temperature=0.01, form=form, **options))
            assert torch.isfinite(value)
            assert value.dtype == torch.float32
            for gradient in torch.autograd.grad(value, (x, w)):
                assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("row", [row for row in ROWS if row.inputs != "logits"], ids=str)
@pytest.mark.parametrize("kind", ["mixed", "smoothed"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_gradients_near_collapse_are_within_one_percent(
    row: Row, kind: str, dtype: torch.dtype
) -> None:
    """Against float64 on the same rounded inputs."""
    labels = torch.arange(32) % CLASSES
    frame = simplex_etf(CLASSES, DIM)
    features = frame[labels] + 0.003 * torch.randn(32, DIM, dtype=F64)
    soft, options = _soft(kind, labels)
    results = []
    for wide in (dtype, F64):
        x, w = (t.to(dtype).to(wide).requires_grad_() for t in (features, frame))
        value = row.call(x, w, soft, **row.settings(temperature=0.1, **options))
        results.append([g.double() for g in torch.autograd.grad(value, (x, w))])
    for ours, exact in zip(*results, strict=True):
        assert (ours - exact).norm() <= 0.01 * exact.norm()


@soft_losses
@pytest.mark.parametrize("kind", KINDS)
def test_module_equals_function(row: Row, kind: str) -> None:
    features, prototypes, labels = _batch()
    soft, options = _soft(kind, labels)
    settings = row.settings(form="chunked", reduction="sum", **options)
    temperature = {"temperature": 0.4} if row.temperature == "head" else {}
    got = row.call_module(features, prototypes, soft, **settings, **temperature)
    assert got == row.call(features, prototypes, soft, **settings, **temperature)


@pytest.mark.parametrize("row", [row for row in ROWS if row.on_features], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_from_logits_equals_the_loss_on_features(row: Row, kind: str) -> None:
    assert row.on_features is not None
    features, prototypes, labels = _batch()
    soft, options = _soft(kind, labels, ignored=True)
    options |= {"class_weights": torch.rand(CLASSES, dtype=F64), "reduction": "none"}
    got = row.function(cosines(features, prototypes) / 0.2, soft, **options)
    expected = row.on_features(features, prototypes, soft, temperature=0.2, **options)
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("row", [row for row in ROWS if row.has_temperature], ids=str)
def test_temperature_can_be_learned(row: Row, form: str) -> None:
    features, prototypes, labels = _batch()
    soft, _ = _soft("mixed", labels)

    def of_temperature(temperature: Tensor) -> Tensor:
        settings = row.settings(temperature=temperature, form=form, **row.learned_temperature)
        return row.call(features, prototypes, soft, label_smoothing=0.1, **settings)

    temperature = torch.tensor(0.3, dtype=F64, requires_grad=True)
    assert torch.autograd.gradcheck(of_temperature, (temperature,))
    wide = row.call(
        features.float(), prototypes.float(), soft, **row.settings(temperature=temperature.detach())
    )
    assert torch.isfinite(wide)


@pytest.mark.parametrize("kind", KINDS)
def test_second_derivatives_and_torch_func(kind: str) -> None:
    features, prototypes, labels = _batch(5)
    soft, options = _soft(kind, labels)

    def loss(x: Tensor) -> Tensor:
        return nonl_loss(x, prototypes, soft, temperature=0.5, **options)

    assert torch.autograd.gradgradcheck(loss, (features.clone().requires_grad_(),))
    stacked = torch.stack((features, features.flip(0)))
    expected = torch.stack([loss(x) for x in stacked])
    torch.testing.assert_close(torch.vmap(loss)(stacked), expected)


def test_nonl_is_not_linear_in_the_labels_and_ntce_is() -> None:
    features, prototypes, labels = _batch()
    other, weight = labels.roll(1), 0.7
    mixed = MixedLabels(labels, other, torch.full((SAMPLES,), weight, dtype=F64))
    ntce, nonl = (
        (
            loss(features, prototypes, mixed),
            weight * loss(features, prototypes, labels)
            + (1 - weight) * loss(features, prototypes, other),
        )
        for loss in (ntce_loss, nonl_loss)
    )
    torch.testing.assert_close(*ntce, rtol=1e-12, atol=0)
    assert (nonl[0] - nonl[1]).abs() > 1e-2


@pytest.mark.filterwarnings("ignore:Warning. Profiler clears events")
@pytest.mark.parametrize("row", [row for row in ROWS if row.has_form], ids=str)
def test_no_matrix_is_held_for_smoothed_labels_of_two_classes(
    row: Row, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunked, "_SIDE_ON_CPU", 128)
    monkeypatch.setattr(chunked, "_KEPT", 0)
    features, prototypes = torch.randn(600, 4), torch.randn(700, 4)
    labels = torch.randint(700, (600,))
    mixed = MixedLabels(labels, labels.roll(1), torch.rand(600))

    def largest_allocation(form: str) -> int:
        x, w = features.clone().requires_grad_(), prototypes.clone().requires_grad_()
        activities = [torch.profiler.ProfilerActivity.CPU]
        with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
            settings = row.settings(form=form, label_smoothing=0.1)
            row.call(x, w, mixed, **settings).backward()
        return max(event.self_cpu_memory_usage for event in profile.events())

    matrix = 600 * 700 * 4
    assert largest_allocation("eager") >= matrix
    assert largest_allocation("chunked") <= matrix / 10


@pytest.mark.compiled
@pytest.mark.parametrize("kind", ["probabilities", "mixed"])
def test_compiles_without_a_break(kind: str) -> None:
    """All losses in one graph."""
    features, prototypes, labels = _batch(24, dtype=torch.float32)
    soft, _ = _soft(kind, labels, ignored=True)
    torch.compiler.reset()
    options = {"class_weights": torch.rand(CLASSES), "label_smoothing": 0.1}

    def losses(x: Tensor, w: Tensor, y: Labels) -> Tensor:
        return torch.stack(
            [
                row.call(x, w, y, **row.settings(temperature=0.2, form="chunked", **options))
                for row in ROWS
            ]
        )

    results = []
    for function in (losses, torch.compile(losses, fullgraph=True, backend="aot_eager")):
        x, w = features.clone().requires_grad_(), prototypes.clone().requires_grad_()
        values = function(x, w, soft)
        results.append((values, *gradients(values, x, w)))
    for plain, compiled in zip(*results, strict=True):
        torch.testing.assert_close(compiled, plain, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("criterion", [NormFaceFromLogits, NTCEFromLogits, NONLFromLogits])
def test_mixup_of_timm(criterion: type[nn.Module]) -> None:
    mixup = timm.data.Mixup(mixup_alpha=0.4, cutmix_alpha=1.0, label_smoothing=0.1, num_classes=6)
    images, targets = mixup(torch.randn(8, 3, 4, 4), torch.arange(8) % 6)
    model = nn.Sequential(nn.Flatten(), CosineClassifier(48, 6, temperature=0.1))
    value = criterion()(model(images), targets)
    value.backward()
    assert torch.isfinite(value)
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("kind", KINDS)
def test_nonl_from_logits_warns_of_large_logits_of_kept_samples(kind: str) -> None:
    soft, options = _soft(kind, torch.arange(SAMPLES) % CLASSES, ignored=True)
    logits = torch.randn(SAMPLES, CLASSES)
    logits[2] = 300  # Of an ignored sample.
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        NONLFromLogits(**options)(logits, soft)
    logits[5, 0] = 300
    with pytest.warns(UserWarning, match=r"got a logit of 300 .* use CosineClassifier"):
        NONLFromLogits(**options)(logits, soft)
