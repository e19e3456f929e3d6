"""What holds for every loss: options, samples left out, invariances, dtypes, modules, forms."""

import inspect
import shutil
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from protosphere.classifiers import CosineClassifier, LinearClassifier
from protosphere.geometry import cosines
from protosphere.kernels import dispatch
from protosphere.losses import CrossEntropyLoss, nonl_loss, normface_loss, ntce_loss
from support.losses import TABLE
from support.scalar_loops import Row

F64 = torch.float64
CLASSES, DIM = 4, 5

every_loss = pytest.mark.parametrize("row", TABLE, ids=str)
with_form = pytest.mark.parametrize("row", [row for row in TABLE if row.has_form], ids=str)


def _batch(
    samples: int = 11, classes: int = CLASSES, dtype: torch.dtype = F64, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(samples, DIM, dtype=dtype, generator=generator)
    prototypes = torch.randn(classes, DIM, dtype=dtype, generator=generator)
    return features, prototypes, torch.arange(samples) % classes


@every_loss
@pytest.mark.parametrize("weighted", [False, True])
def test_module_equals_function(row: Row, weighted: bool) -> None:
    features, prototypes, labels = _batch()
    weights = torch.rand(CLASSES, dtype=F64) if weighted else None
    settings = row.settings(form="chunked", reduction="sum", ignore_index=2, class_weights=weights)
    temperature = {"temperature": 0.4} if row.temperature in ("head", "module") else {}
    got = row.call_module(features, prototypes, labels, **settings, **temperature)
    assert got == row.call(features, prototypes, labels, **settings, **temperature)


@every_loss
def test_module_has_no_state_and_shows_its_options(row: Row) -> None:
    module = row.module(
        **row.settings(reduction="sum", class_weights=torch.ones(CLASSES)), ignore_index=7
    )
    assert not list(module.parameters())
    assert not module.state_dict()
    options = {**row.options, "reduction": "sum", "ignore_index": 7}
    for name, value in options.items():
        assert f"{name}={value!r}" in repr(module)
    assert f"class_weights=({CLASSES} values)" in repr(module)


@pytest.mark.parametrize("row", [row for row in TABLE if row.temperature == "head"], ids=str)
def test_module_follows_the_temperature_of_the_head(row: Row) -> None:
    features, prototypes, labels = _batch()
    assert "temperature" not in inspect.signature(row.module).parameters
    values = [
        row.call_module(features, prototypes, labels, **row.options, temperature=temperature)
        for temperature in (0.1, 0.9)
    ]
    assert values[0] != values[1]
    learned = torch.tensor(0.4, dtype=F64, requires_grad=True)
    settings = row.settings(temperature=learned, **row.learned_temperature)
    row.call_module(features, prototypes, labels, **settings).backward()
    assert learned.grad is not None
    assert learned.grad != 0


@pytest.mark.parametrize("row", [row for row in TABLE if row.inputs == "prototypes"], ids=str)
def test_module_is_called_with_a_classifier_of_the_library(row: Row) -> None:
    features, _, labels = _batch(dtype=torch.float32)
    head = (
        LinearClassifier(DIM, CLASSES)
        if row.temperature == "function"
        else CosineClassifier(DIM, CLASSES, temperature=0.3)
    )
    value = row.module(**row.options)(features, head, labels)
    value.backward()
    assert torch.isfinite(value)
    assert head.prototypes.grad is not None


def test_cross_entropy_module_reads_weight_and_bias_of_a_linear_layer() -> None:
    features, _, labels = _batch(dtype=torch.float32)
    layer = nn.Linear(DIM, CLASSES)
    expected = nn.functional.cross_entropy(layer(features), labels, label_smoothing=0.1)
    got = CrossEntropyLoss(label_smoothing=0.1)(features, layer, labels)
    torch.testing.assert_close(got, expected)


@every_loss
def test_ignored_samples_do_not_change_the_loss(row: Row) -> None:
    features, prototypes, labels = _batch()
    labels[[1, 6]] = 77
    kept = labels != 77
    features[1], features[6] = torch.nan, torch.inf  # As padding may hold.
    inputs = features.clone().requires_grad_(), prototypes.clone().requires_grad_()
    fewer = features[kept].requires_grad_(), prototypes.clone().requires_grad_()
    settings = row.settings(temperature=0.2, class_weights=torch.rand(CLASSES, dtype=F64))
    if row.inputs == "logits":
        # The product of the logits would carry the NaN into the gradient of the prototypes.
        inputs = (torch.where(kept[:, None], features, 0).requires_grad_(), inputs[1])
    value = row.call(*inputs, labels, ignore_index=77, **settings)
    without = row.call(*fewer, labels[kept], **settings)
    assert value.item() == pytest.approx(without.item(), rel=1e-12)
    gradients = torch.autograd.grad(value, inputs, allow_unused=True)
    expected = torch.autograd.grad(without, fewer, allow_unused=True)
    assert torch.equal(gradients[0][~kept], torch.zeros(2, DIM, dtype=F64))
    torch.testing.assert_close(gradients[0][kept], expected[0], rtol=1e-12, atol=1e-13)
    if row.inputs != "features":
        torch.testing.assert_close(gradients[1], expected[1], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("row", [row for row in TABLE if row.inputs == "logits"], ids=str)
def test_ignored_logits_may_be_nan(row: Row) -> None:
    logits = torch.randn(6, 3, dtype=F64)
    logits[2] = torch.nan
    logits.requires_grad_()
    value = row.function(logits, torch.tensor([0, 1, -100, 2, 0, 1]), **row.options)
    (gradient,) = torch.autograd.grad(value, logits)
    assert torch.isfinite(gradient).all()
    assert torch.equal(gradient[2], torch.zeros(3, dtype=F64))


@every_loss
@pytest.mark.parametrize("samples", [0, 5])
def test_nothing_kept_is_zero_with_a_zero_gradient(row: Row, samples: int) -> None:
    features, prototypes, _ = _batch(samples)
    for reduction in ("mean", "sum", "none"):
        x, w = features.clone().requires_grad_(), prototypes.clone().requires_grad_()
        labels = torch.full((samples,), -100)
        value = row.call(x, w, labels, **row.settings(reduction=reduction))
        assert value.shape == ((samples,) if reduction == "none" else ())
        assert torch.equal(value, torch.zeros_like(value))
        (gradient,) = torch.autograd.grad(value.sum(), x)
        assert torch.equal(gradient, torch.zeros_like(x))


@every_loss
def test_weights_of_zero_are_zero_and_not_nan(row: Row) -> None:
    features, prototypes, labels = _batch()
    features.requires_grad_()
    settings = row.settings(class_weights=torch.zeros(CLASSES, dtype=F64))
    value = row.call(features, prototypes, labels, **settings)
    (gradient,) = torch.autograd.grad(value, features)
    assert value == 0
    assert torch.equal(gradient, torch.zeros_like(features))


@every_loss
def test_samples_left_out_do_not_count(row: Row) -> None:
    """A batch of one class has no negatives, and the only sample of a class no positive."""
    features, prototypes, _ = _batch(4)
    settings = row.settings(reduction="none")
    one_class = row.call(features, prototypes, torch.tensor([2, 2, 2, 2]), **settings)
    assert (one_class == 0).all() == row.needs_negatives
    labels = torch.tensor([0, 1, 1, 2])
    values = row.call(features, prototypes, labels, **settings)
    left_out = torch.tensor([True, False, False, True]) & row.needs_positives
    assert torch.equal(values == 0, left_out)
    mean = row.call(features, prototypes, labels, **row.settings())
    assert mean.item() == pytest.approx(values.sum().item() / (~left_out).sum().item(), rel=1e-12)


@every_loss
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ignored", [False, True])
@pytest.mark.long
def test_gradient_equals_finite_differences(
    row: Row, reduction: str, weighted: bool, ignored: bool
) -> None:
    features, prototypes, labels = _batch(6, 3)
    if ignored:
        labels[2] = -100
    weights = torch.linspace(0.5, 2, 3, dtype=F64) if weighted else None
    for form in row.forms:
        settings = row.settings(
            temperature=0.3, form=form, reduction=reduction, class_weights=weights
        )

        def value(x: Tensor, w: Tensor, settings: dict[str, Any] = settings) -> Tensor:
            return row.call(x, w, labels, **settings)

        assert torch.autograd.gradcheck(
            value, (features.requires_grad_(), prototypes.requires_grad_())
        )


@pytest.mark.parametrize("row", [row for row in TABLE if row.has_temperature], ids=str)
def test_temperature_can_be_a_tensor_and_learned(row: Row, form: str) -> None:
    features, prototypes, labels = _batch()
    number = row.call(features, prototypes, labels, **row.settings(temperature=0.3, form=form))
    for shape in ((), (1,)):
        tensor = torch.full(shape, 0.3, dtype=F64)
        settings = row.settings(temperature=tensor, form=form)
        value = row.call(features, prototypes, labels, **settings)
        torch.testing.assert_close(value, number, rtol=1e-13, atol=1e-13)

    def of_temperature(temperature: Tensor) -> Tensor:
        settings = row.settings(temperature=temperature, form=form, **row.learned_temperature)
        return row.call(features, prototypes, labels, **settings)

    assert torch.autograd.gradcheck(
        of_temperature, (torch.tensor(0.3, dtype=F64, requires_grad=True),)
    )


def test_min_temperature_is_a_floor() -> None:
    features, prototypes, labels = _batch()
    at_floor = nonl_loss(features, prototypes, labels, temperature=0.5)
    for low in (0.1, torch.tensor(0.1, dtype=F64)):
        assert (
            nonl_loss(features, prototypes, labels, temperature=low, min_temperature=0.5)
            == at_floor
        )


@pytest.mark.parametrize("row", [row for row in TABLE if row.on_sphere], ids=str)
@given(
    seed=st.integers(0, 10**6), samples=st.integers(2, 9), classes=st.integers(2, 6), data=st.data()
)
def test_invariant_to_rotation_scale_order_and_relabeling(
    row: Row, seed: int, samples: int, classes: int, data: st.DataObject
) -> None:
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(samples, DIM, dtype=F64, generator=generator)
    prototypes = torch.randn(classes, DIM, dtype=F64, generator=generator)
    labels = torch.randint(0, classes, (samples,), generator=generator)
    settings = row.settings(
        temperature=data.draw(st.sampled_from([0.07, 0.5, 1.0])), reduction="none"
    )
    values = row.call(features, prototypes, labels, **settings)
    rotation, _ = torch.linalg.qr(torch.randn(DIM, DIM, dtype=F64, generator=generator))
    lengths = 10 ** (6 * torch.rand(samples, 1, dtype=F64, generator=generator) - 3)
    order = torch.randperm(samples, generator=generator)
    names = torch.randperm(classes, generator=generator)
    moved_prototypes = torch.empty_like(prototypes)
    moved_prototypes[names] = 3 * prototypes @ rotation
    moved = (features * lengths @ rotation)[order], moved_prototypes, names[labels][order]
    torch.testing.assert_close(row.call(*moved, **settings), values[order], rtol=1e-9, atol=1e-9)


@every_loss
def test_value_is_in_float32_or_wider_and_labels_may_be_any_integers(row: Row) -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        features, prototypes, labels = _batch(dtype=dtype)
        wanted = torch.float64 if dtype == torch.float64 else torch.float32
        values = [
            row.call(features, prototypes, labels.to(kind), **row.settings())
            for kind in (torch.int64, torch.int32, torch.uint8)
        ]
        assert {value.dtype for value in values} == {wanted}
        assert values[0] == values[1] == values[2]


@pytest.mark.parametrize("row", [row for row in TABLE if row.inputs == "prototypes"], ids=str)
def test_features_and_prototypes_may_differ_in_dtype(row: Row) -> None:
    features, prototypes, labels = _batch(dtype=torch.bfloat16)
    x, w = features.requires_grad_(), prototypes.float().requires_grad_()
    value = row.function(x, w, labels, **row.settings())
    value.backward()
    assert (value.dtype, x.grad.dtype, w.grad.dtype) == (
        torch.float32,
        torch.bfloat16,
        torch.float32,
    )
    alike = row.function(x.float(), w, labels, **row.settings())
    assert value.item() == pytest.approx(alike.item(), rel=1e-6)


@with_form
def test_forms_agree_when_large_enough_for_real_tiles(row: Row) -> None:
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(2500, 8, dtype=F64, generator=generator)
    prototypes = torch.randn(1300, 8, dtype=F64, generator=generator)
    labels = torch.randint(0, 1300, (2500,), generator=generator)
    results = []
    for form in ("eager", "chunked"):
        x, w = features.clone().requires_grad_(), prototypes.clone().requires_grad_()
        value = row.call(x, w, labels, **row.settings(temperature=0.1, form=form))
        results.append((value, *torch.autograd.grad(value, (x, w), allow_unused=True)))
    for eager, chunked in zip(*results, strict=True):
        torch.testing.assert_close(chunked, eager, rtol=1e-11, atol=1e-14)


@pytest.mark.compiled
@every_loss
def test_compiles_without_a_break(row: Row) -> None:
    features, prototypes, labels = _batch(24, 5, torch.float32)
    labels[3] = -100
    for form in row.forms:
        torch.compiler.reset()
        settings = row.settings(temperature=0.2, form=form, class_weights=torch.rand(5))

        def loss(x: Tensor, w: Tensor, y: Tensor, settings: dict[str, Any] = settings) -> Tensor:
            return row.call(x, w, y, **settings)

        results = []
        for function in (loss, torch.compile(loss, fullgraph=True, backend="aot_eager")):
            x, w = features.clone().requires_grad_(), prototypes.clone().requires_grad_()
            value = function(x, w, labels)
            results.append((value, *torch.autograd.grad(value, (x, w), allow_unused=True)))
        for plain, compiled in zip(*results, strict=True):
            torch.testing.assert_close(compiled, plain, rtol=1e-5, atol=1e-6)


@pytest.mark.compiled
@pytest.mark.skipif(shutil.which("g++") is None, reason="the code generator needs a C++ compiler")
@pytest.mark.parametrize("classes", [5, 40])
def test_compiled_code_of_the_main_losses_computes_the_same(classes: int) -> None:
    """Through the real code generator, with fewer and with more classes than samples."""
    features, prototypes, labels = _batch(24, classes, torch.float32)
    torch.compiler.reset()
    functions, weights = (normface_loss, ntce_loss, nonl_loss), torch.tensor([1.0, 0.7, -0.4])

    def losses(x: Tensor, w: Tensor, y: Tensor) -> Tensor:
        return torch.stack([function(x, w, y, temperature=0.2) for function in functions])

    results = []
    for function in (losses, torch.compile(losses, fullgraph=True)):
        x, w = features.clone().requires_grad_(), prototypes.clone().requires_grad_()
        values = function(x, w, labels)
        results.append((values, *torch.autograd.grad(values @ weights, (x, w))))
    for plain, compiled in zip(*results, strict=True):
        torch.testing.assert_close(compiled, plain, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("row", [row for row in TABLE if row.on_features], ids=str)
def test_from_logits_equals_the_loss_on_features(row: Row) -> None:
    assert row.on_features is not None
    features, prototypes, labels = _batch()
    labels[4] = -100
    settings = row.settings(class_weights=torch.rand(CLASSES, dtype=F64), reduction="none")
    got = row.function(cosines(features, prototypes) / 0.2, labels, **settings)
    expected = row.on_features(features, prototypes, labels, temperature=0.2, **settings)
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("limit", [2**20, 4], ids=["below the size limit", "above the size limit"])
@with_form
def test_auto_supports_higher_derivatives_and_torch_func_at_every_size(
    row: Row, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "_EAGER_LIMIT_ON_CPU", limit)
    features, prototypes, labels = _batch(6, 3)

    def loss(x: Tensor) -> Tensor:
        return row.call(x, prototypes, labels, **row.settings(temperature=0.5))

    leaf = features.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(leaf), leaf, create_graph=True)
    (second,) = torch.autograd.grad(gradient.square().sum(), leaf)
    assert second.abs().sum() > 0
    torch.testing.assert_close(torch.func.grad(loss)(features), gradient.detach())
    hessian = torch.func.jacrev(torch.func.grad(loss))(features)
    product = torch.einsum("ijkl,ij->kl", hessian, 2 * gradient.detach())
    torch.testing.assert_close(product, second)
    stacked = torch.stack((features, features.flip(0)))
    expected = torch.stack([loss(x) for x in stacked])
    torch.testing.assert_close(torch.vmap(loss)(stacked), expected)


def test_angle_margin_is_continuous_and_monotone_and_keeps_attracting() -> None:
    """Past θ + m = π the plain cos(θ + m) rises again with the angle: it would repel."""
    margin = 0.5
    angles = torch.linspace(0, torch.pi, 2001, dtype=F64)
    features = torch.stack((angles.cos(), angles.sin()), 1)
    # The other prototype is orthogonal to the plane in which the samples turn.
    features = torch.cat((features, torch.zeros(2001, 1, dtype=F64)), 1)
    prototypes = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]], dtype=F64)
    values = normface_loss(
        features,
        prototypes,
        torch.zeros(2001, dtype=torch.int64),
        temperature=0.5,
        margin=margin,
        margin_kind="angle",
        reduction="none",
    )
    steps = values.diff()
    assert (steps > 0).all()
    assert steps.max() < 0.01
    plain = angles + margin < torch.pi
    logits = (angles + margin).cos() / 0.5
    expected = torch.nn.functional.softplus(-logits)
    torch.testing.assert_close(values[plain], expected[plain])
