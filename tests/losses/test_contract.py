"""What holds for every loss alike: options, left-out anchors, invariances, dtypes, twins; run on the whole table."""

import shutil

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from protosphere.losses import nonl_loss, normface_loss, ntce_loss
from support.table import ON_SPHERE, TABLE, WITH_FORM, Row

F64 = torch.float64
CLASSES, DIM = 4, 5

every_loss = pytest.mark.parametrize("row", TABLE, ids=str)


def _batch(samples: int = 11, classes: int = CLASSES, dtype: torch.dtype = F64, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(samples, DIM, dtype=dtype, generator=generator)
    prototypes = torch.randn(classes, DIM, dtype=dtype, generator=generator)
    return features, prototypes, torch.arange(samples) % classes


@every_loss
@pytest.mark.parametrize("weighted", [False, True])
def test_module_equals_function(row: Row, weighted: bool) -> None:
    features, prototypes, labels = _batch()
    weights = torch.rand(CLASSES, dtype=F64) if weighted else None
    settings = row.settings(
        temperature=0.4, form="chunked", reduction="sum", ignore_index=2, class_weights=weights
    )
    module = row.module(**settings)
    assert not list(module.parameters())
    assert not module.state_dict()
    assert row.call(module, features, prototypes, labels) == row.call(
        row.function, features, prototypes, labels, **settings
    )
    if row.has_temperature:
        assert "temperature=0.4" in repr(module)
        warm = row.call(module, features, prototypes, labels, temperature=0.9)
        assert warm == row.call(
            row.function, features, prototypes, labels, **{**settings, "temperature": 0.9}
        )


@every_loss
def test_an_ignored_row_might_as_well_not_be_there(row: Row) -> None:
    features, prototypes, labels = _batch()
    labels[[1, 6]] = 77
    there = labels != 77
    features[1], features[6] = torch.nan, torch.inf  # Whatever stands in padding.
    inputs = features.clone().requires_grad_(), prototypes.clone().requires_grad_()
    fewer = features[there].requires_grad_(), prototypes.clone().requires_grad_()
    settings = row.settings(temperature=0.2, class_weights=torch.rand(CLASSES, dtype=F64))
    if row.on == "logits":
        # The product would carry the NaN into the prototypes' gradient before the loss is asked.
        inputs = (torch.where(there[:, None], features, 0).requires_grad_(), inputs[1])
    value = row.call(row.function, *inputs, labels, ignore_index=77, **settings)
    without = row.call(row.function, *fewer, labels[there], **settings)
    assert value.item() == pytest.approx(without.item(), rel=1e-12)
    gradients = torch.autograd.grad(value, inputs, allow_unused=True)
    wanted = torch.autograd.grad(without, fewer, allow_unused=True)
    assert torch.equal(gradients[0][~there], torch.zeros(2, DIM, dtype=F64))
    torch.testing.assert_close(gradients[0][there], wanted[0], rtol=1e-12, atol=1e-13)
    if row.on != "features":
        torch.testing.assert_close(gradients[1], wanted[1], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("row", [row for row in TABLE if row.on == "logits"], ids=str)
def test_ignored_logits_may_be_nan(row: Row) -> None:
    logits = torch.randn(6, 3, dtype=F64)
    logits[2] = torch.nan
    logits.requires_grad_()
    row.function(logits, torch.tensor([0, 1, -100, 2, 0, 1]), **row.options).backward()
    assert torch.isfinite(logits.grad).all()
    assert torch.equal(logits.grad[2], torch.zeros(3, dtype=F64))


@every_loss
@pytest.mark.parametrize("samples", [0, 5])
def test_nothing_kept_is_zero_with_a_zero_gradient(row: Row, samples: int) -> None:
    features, prototypes, _ = _batch(samples)
    for reduction in ("mean", "sum", "none"):
        x, w = features.clone().requires_grad_(), prototypes.clone().requires_grad_()
        labels = torch.full((samples,), -100)
        value = row.call(row.function, x, w, labels, **row.settings(reduction=reduction))
        assert value.shape == ((samples,) if reduction == "none" else ())
        assert torch.equal(value, torch.zeros_like(value))
        value.sum().backward()
        assert torch.equal(x.grad, torch.zeros_like(x))


@every_loss
def test_weights_of_zero_are_zero_and_not_nan(row: Row) -> None:
    features, prototypes, labels = _batch()
    features.requires_grad_()
    settings = row.settings(class_weights=torch.zeros(CLASSES, dtype=F64))
    value = row.call(row.function, features, prototypes, labels, **settings)
    value.backward()
    assert value == 0
    assert torch.equal(features.grad, torch.zeros_like(features))


@every_loss
def test_left_out_anchors_count_nowhere(row: Row) -> None:
    """A class that is the whole batch has no NONL; a sample without a positive has no SCL."""
    features, prototypes, _ = _batch(4)
    alone, pair = torch.tensor([2, 2, 2, 2]), torch.tensor([0, 1, 1, 2])
    one_class = row.call(
        row.function, features, prototypes, alone, **row.settings(reduction="none")
    )
    lone_ends = row.call(row.function, features, prototypes, pair, **row.settings(reduction="none"))
    needs_negatives = row.name in ("NONL", "NONL, from logits")
    assert (one_class == 0).all() == needs_negatives
    assert (lone_ends == 0).tolist() == [row.name == "SCL", False, False, row.name == "SCL"]
    mean = row.call(row.function, features, prototypes, pair, **row.settings())
    assert mean.item() == pytest.approx(
        lone_ends.sum().item() / (2 if row.name == "SCL" else 4), rel=1e-12
    )


@every_loss
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ignored", [False, True])
def test_gradient_is_that_of_finite_differences(
    row: Row, reduction: str, weighted: bool, ignored: bool
) -> None:
    features, prototypes, labels = _batch(6, 3)
    if ignored:
        labels[2] = -100
    weights = torch.linspace(0.5, 2, 3, dtype=F64) if weighted else None
    for form in ("eager", "chunked") if row.has_form else (None,):
        settings = row.settings(
            temperature=0.3, form=form, reduction=reduction, class_weights=weights
        )

        def value(x: torch.Tensor, w: torch.Tensor, settings: dict = settings) -> torch.Tensor:
            return row.call(row.function, x, w, labels, **settings)

        assert torch.autograd.gradcheck(
            value, (features.requires_grad_(), prototypes.requires_grad_())
        )


@pytest.mark.parametrize("row", [row for row in TABLE if row.has_temperature], ids=str)
def test_temperature_can_be_a_tensor_and_learned(row: Row, form: str) -> None:
    features, prototypes, labels = _batch()
    floor = {"min_temperature": 0.01} if row.name.startswith("NONL") else {}
    number = row.call(
        row.function, features, prototypes, labels, **row.settings(temperature=0.3, form=form)
    )
    for shape in ((), (1,)):
        tensor = torch.full(shape, 0.3, dtype=F64)
        settings = row.settings(temperature=tensor, form=form)
        value = row.call(row.function, features, prototypes, labels, **settings)
        torch.testing.assert_close(value, number, rtol=1e-13, atol=1e-13)

    def of_temperature(temperature: torch.Tensor) -> torch.Tensor:
        settings = row.settings(temperature=temperature, form=form, **floor)
        return row.call(row.function, features, prototypes, labels, **settings)

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


@pytest.mark.parametrize("row", ON_SPHERE, ids=str)
@given(
    seed=st.integers(0, 10**6), samples=st.integers(2, 9), classes=st.integers(2, 6), data=st.data()
)
def test_invariant_to_rotation_scale_order_and_relabeling(
    row, seed, samples, classes, data
) -> None:
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(samples, DIM, dtype=F64, generator=generator)
    prototypes = torch.randn(classes, DIM, dtype=F64, generator=generator)
    labels = torch.randint(0, classes, (samples,), generator=generator)
    settings = row.settings(
        temperature=data.draw(st.sampled_from([0.07, 0.5, 1.0])), reduction="none"
    )
    values = row.call(row.function, features, prototypes, labels, **settings)
    rotation, _ = torch.linalg.qr(torch.randn(DIM, DIM, dtype=F64, generator=generator))
    lengths = 10 ** (6 * torch.rand(samples, 1, dtype=F64, generator=generator) - 3)
    order = torch.randperm(samples, generator=generator)
    names = torch.randperm(classes, generator=generator)
    moved_prototypes = torch.empty_like(prototypes)
    moved_prototypes[names] = 3 * prototypes @ rotation
    moved = (features * lengths @ rotation)[order], moved_prototypes, names[labels][order]
    torch.testing.assert_close(
        row.call(row.function, *moved, **settings), values[order], rtol=1e-9, atol=1e-9
    )


@every_loss
def test_value_is_in_float32_or_wider_and_labels_may_be_any_integers(row: Row) -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        features, prototypes, labels = _batch(dtype=dtype)
        wanted = torch.float64 if dtype == torch.float64 else torch.float32
        values = [
            row.call(row.function, features, prototypes, labels.to(kind), **row.settings())
            for kind in (torch.int64, torch.int32, torch.uint8)
        ]
        assert {value.dtype for value in values} == {wanted}
        assert values[0] == values[1] == values[2]


@pytest.mark.parametrize("row", [row for row in TABLE if row.on == "prototypes"], ids=str)
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


@pytest.mark.parametrize("row", WITH_FORM, ids=str)
def test_forms_agree_when_large_enough_for_real_tiles(row: Row) -> None:
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(2500, 8, dtype=F64, generator=generator)
    prototypes = torch.randn(1300, 8, dtype=F64, generator=generator)
    labels = torch.randint(0, 1300, (2500,), generator=generator)
    results = []
    for form in ("eager", "chunked"):
        x, w = features.clone().requires_grad_(), prototypes.clone().requires_grad_()
        value = row.call(row.function, x, w, labels, **row.settings(temperature=0.1, form=form))
        results.append((value, *torch.autograd.grad(value, (x, w), allow_unused=True)))
    for eager, chunked in zip(*results, strict=True):
        torch.testing.assert_close(chunked, eager, rtol=1e-11, atol=1e-14)


@pytest.mark.compiled
@every_loss
def test_compiles_without_a_break(row: Row) -> None:
    features, prototypes, labels = _batch(24, 5, torch.float32)
    labels[3] = -100
    for form in ("eager", "chunked") if row.has_form else (None,):
        torch.compiler.reset()
        settings = row.settings(temperature=0.2, form=form, class_weights=torch.rand(5))

        def loss(
            x: torch.Tensor, w: torch.Tensor, y: torch.Tensor, settings: dict = settings
        ) -> torch.Tensor:
            return row.call(row.function, x, w, y, **settings)

        results = []
        for function in (loss, torch.compile(loss, fullgraph=True, backend="aot_eager")):
            x, w = features.clone().requires_grad_(), prototypes.clone().requires_grad_()
            value = function(x, w, labels)
            results.append((value, *torch.autograd.grad(value, (x, w), allow_unused=True)))
        for plain, compiled in zip(*results, strict=True):
            torch.testing.assert_close(compiled, plain, rtol=1e-5, atol=1e-6)


@pytest.mark.compiled
@pytest.mark.skipif(shutil.which("g++") is None, reason="the code generator needs a C++ compiler")
@pytest.mark.parametrize("loss", [normface_loss, ntce_loss, nonl_loss])
@pytest.mark.parametrize("classes", [5, 40])
def test_compiled_code_of_the_main_losses_computes_the_same(loss, classes: int) -> None:
    """Through the real code generator, with fewer and with more classes than samples."""
    features, prototypes, labels = _batch(24, classes, torch.float32)
    torch.compiler.reset()
    results = []
    for function in (loss, torch.compile(loss, fullgraph=True)):
        x, w = features.clone().requires_grad_(), prototypes.clone().requires_grad_()
        value = function(x, w, labels, temperature=0.2)
        results.append((value, *torch.autograd.grad(value, (x, w))))
    for plain, compiled in zip(*results, strict=True):
        torch.testing.assert_close(compiled, plain, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("row", [row for row in TABLE if row.on == "logits"], ids=str)
def test_from_logits_equals_the_form_on_features(row: Row) -> None:
    from protosphere.geometry import cosines

    twin = {"NormFace": normface_loss, "NTCE": ntce_loss, "NONL": nonl_loss}[row.name.split(",")[0]]
    features, prototypes, labels = _batch()
    labels[4] = -100
    settings = row.settings(class_weights=torch.rand(CLASSES, dtype=F64), reduction="none")
    got = row.function(cosines(features, prototypes) / 0.2, labels, **settings)
    torch.testing.assert_close(
        got, twin(features, prototypes, labels, temperature=0.2, **settings), rtol=1e-12, atol=0
    )
