"""``NeuralCollapse`` in a module: dtypes, devices, copies, heads, arrays and trackers."""

import copy
import gc
import pickle
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torchmetrics import Metric, MetricCollection, MetricTracker

from protosphere.classifiers import CosineClassifier, LinearClassifier, MeanClassifier
from protosphere.metrics import NeuralCollapse, measure
from support.clouds import STREAMING, defined

DIM, CLASSES = 6, 4
Convert = Callable[[nn.Module], nn.Module]

CONVERSIONS: dict[str, Convert] = {
    "to(bfloat16)": lambda module: module.to(torch.bfloat16),
    "to(float16)": lambda module: module.to(torch.float16),
    "to(float32)": lambda module: module.to(torch.float32),
    "to(device, dtype)": lambda module: module.to("cpu", torch.float32),
    "to(float32), to(float64)": lambda module: module.to(torch.float32).to(torch.float64),
    "bfloat16()": lambda module: module.bfloat16(),
    "half()": lambda module: module.half(),
    "float()": lambda module: module.float(),
    "double()": lambda module: module.double(),
    "type(float16)": lambda module: module.type(torch.float16),
}


@pytest.fixture
def batch() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(40, DIM) + 1, torch.arange(40) % CLASSES


def _states(metric: NeuralCollapse) -> list[torch.Tensor]:
    states = [getattr(metric, name) for name in metric._defaults] + list(metric._defaults.values())
    return [part for state in states for part in (state if isinstance(state, list) else [state])]


def _alignment(metric: Metric, batch: tuple[torch.Tensor, torch.Tensor]) -> float:
    metric.update(*batch)
    value = float(metric.compute()["weight_class_alignment"])
    metric.reset()
    return value


def _expected(head: Any, batch: tuple[torch.Tensor, torch.Tensor]) -> Any:
    values = measure(*batch, head.prototypes.detach(), metrics=["weight_class_alignment"])
    return pytest.approx(values["weight_class_alignment"], rel=1e-9)


class Module(nn.Module):
    """A head and its metric, which refers to the head or to its prototypes."""

    def __init__(self, by_head: bool = True, *, metric_first: bool = False) -> None:
        super().__init__()
        head = CosineClassifier(DIM, CLASSES)
        collapse = NeuralCollapse(DIM, CLASSES, head if by_head else head.prototypes)
        children = {"head": head, "collapse": collapse}
        for name in reversed(children) if metric_first else children:
            self.add_module(name, children[name])
        self.head, self.collapse = head, collapse


@pytest.mark.parametrize("metrics", ["all", "cheap", "nc1"])
@pytest.mark.parametrize("convert", CONVERSIONS.values(), ids=CONVERSIONS)
@pytest.mark.parametrize("wrap", [False, True], ids=["metric", "child"])
def test_the_state_stays_in_float64_under_every_conversion(
    convert: Convert, metrics: str, wrap: bool, batch: tuple[torch.Tensor, torch.Tensor]
) -> None:
    expected = NeuralCollapse(DIM, CLASSES, metrics=metrics)
    metric = NeuralCollapse(DIM, CLASSES, metrics=metrics)
    dtypes = [state.dtype for state in _states(metric)]
    module: nn.Module = nn.ModuleDict({"collapse": metric}) if wrap else metric
    convert(module)
    assert [state.dtype for state in _states(metric)] == dtypes
    for _ in range(2):
        metric.update(*batch)
        expected.update(*batch)
        convert(module)  # With samples in the buffer.
        metric.compute()
        expected.compute()
        convert(module)  # With class scatters and a result.
        assert metric.statistics.means.dtype == torch.float64
    assert defined(metric.compute()) == defined(expected.compute())
    metric.reset()
    assert metric.counts.dtype == torch.float64


def test_a_conversion_with_a_device_moves_the_state(
    batch: tuple[torch.Tensor, torch.Tensor],
) -> None:
    metric = NeuralCollapse(DIM, CLASSES, compute_with_cache=True)
    metric.update(*batch)
    metric.compute()
    metric.update(*batch)
    nn.ModuleDict({"collapse": metric}).to("meta", torch.bfloat16)
    assert metric.device.type == "meta"
    assert all(state.device.type == "meta" for state in _states(metric))
    assert metric.means.dtype == torch.float64
    assert metric.buffered_features[0].dtype == torch.float32


def test_a_converted_collection_keeps_its_groups_and_its_state_dict(
    batch: tuple[torch.Tensor, torch.Tensor],
) -> None:
    collection = MetricCollection({name: NeuralCollapse(DIM, CLASSES) for name in "ab"})
    collection.persistent()
    collection.update(*batch)
    collection.to(torch.bfloat16)
    collection.update(*batch)
    values = collection.compute()
    expected = measure(batch[0].repeat(2, 1), batch[1].repeat(2), metrics=STREAMING)
    for name, value in expected.items():
        assert float(values[f"b_{name}"]) == pytest.approx(value, rel=1e-9, abs=1e-12)
    state = collection.to(torch.float16).state_dict()
    loaded = MetricCollection({name: NeuralCollapse(DIM, CLASSES) for name in "ab"})
    loaded.persistent()
    loaded.to(torch.bfloat16).load_state_dict(state)
    metric = loaded["a"]
    assert isinstance(metric, NeuralCollapse)
    assert metric.means.dtype == torch.float64
    assert metric.statistics.counts.tolist() == [20] * CLASSES


@pytest.mark.parametrize("metric_first", [False, True])
@pytest.mark.parametrize("by_head", [False, True], ids=["by tensor", "by head"])
def test_a_copied_module_measures_its_own_prototypes(
    by_head: bool, metric_first: bool, batch: tuple[torch.Tensor, torch.Tensor]
) -> None:
    module = Module(by_head, metric_first=metric_first)
    nested = nn.Sequential(AveragedModel(module).module)
    copies = [
        copy.deepcopy(module),
        AveragedModel(module).module,
        copy.deepcopy(copy.deepcopy(nested))[0],
        pickle.loads(pickle.dumps(copy.deepcopy(module))),
    ]
    for other in (module, *copies):
        nn.init.normal_(other.head.prototypes)
    for other in (module, *copies):
        assert _alignment(other.collapse, batch) == _expected(other.head, batch)


def test_a_copied_module_does_not_keep_the_original_alive() -> None:
    module = Module()
    other, original = copy.deepcopy(module), weakref.ref(module)
    del module
    gc.collect()
    assert original() is None
    assert other.collapse.device.type == "cpu"


@pytest.mark.parametrize("by_head", [False, True], ids=["by tensor", "by head"])
def test_a_metric_that_is_copied_alone_shares_the_prototypes(
    by_head: bool, batch: tuple[torch.Tensor, torch.Tensor]
) -> None:
    module = Module(by_head)
    copies = [module.collapse.clone(), copy.deepcopy([module.collapse])[0]]
    copies.append(copies[0].clone())
    cloned = MetricCollection([module.collapse]).clone(prefix="val_")["NeuralCollapse"]
    nn.init.normal_(module.head.prototypes)
    for metric in (*copies, cloned):
        assert _alignment(metric, batch) == _expected(module.head, batch)


def test_the_prototypes_of_a_head_are_read_at_compute(
    batch: tuple[torch.Tensor, torch.Tensor],
) -> None:
    module = Module()
    assert list(module.state_dict()) == ["head.prototypes"]
    assert not list(module.collapse.parameters()), "the head is not a part of the metric"
    prototypes = torch.randn(CLASSES, DIM)
    module.load_state_dict({"head.prototypes": prototypes}, assign=True)
    assert module.head.prototypes.data_ptr() == prototypes.data_ptr()
    assert _alignment(module.collapse, batch) == _expected(module.head, batch)
    module.to(torch.float64)
    nn.init.normal_(module.head.prototypes)
    assert _alignment(module.collapse, batch) == _expected(module.head, batch)
    other = SimpleNamespace(prototypes=torch.randn(CLASSES, DIM))
    assert _alignment(NeuralCollapse(DIM, CLASSES, other), batch) == _expected(other, batch)
    assert "prototypes=<CosineClassifier>" in repr(module.collapse)


def test_the_bias_of_a_head_is_read_at_compute(batch: tuple[torch.Tensor, torch.Tensor]) -> None:
    head = LinearClassifier(DIM, CLASSES)
    metric = NeuralCollapse(DIM, CLASSES, head, bias=head, space="raw")
    head.load_state_dict(
        {k: torch.randn_like(v) for k, v in head.state_dict().items()}, assign=True
    )
    metric.update(*batch)
    assert head.bias is not None
    weight, bias = head.prototypes.detach(), head.bias.detach()
    expected = measure(*batch, weight, bias=bias, space="raw", metrics=["bias_offset"])
    assert float(metric.compute()["bias_offset"]) == pytest.approx(expected["bias_offset"])
    without = LinearClassifier(DIM, CLASSES, bias=False)
    metric = NeuralCollapse(DIM, CLASSES, without, bias=without, space="raw")
    metric.update(*batch)
    assert metric.compute()["bias_offset"].isnan()


def test_arrays_are_accepted_as_by_measure(batch: tuple[torch.Tensor, torch.Tensor]) -> None:
    weight, bias = torch.randn(CLASSES, DIM), torch.randn(CLASSES)
    read_only = weight.numpy().astype(">f8")
    read_only.flags.writeable = False
    changed = bias.numpy().copy()
    given = NeuralCollapse(DIM, CLASSES, read_only, bias=changed, space="raw")
    changed[:] = 0  # The array was copied.
    called = NeuralCollapse(DIM, CLASSES, lambda: read_only, bias=bias.numpy, space="raw")
    later = NeuralCollapse(DIM, CLASSES, space="raw")
    expected = measure(*batch, weight, bias=bias, space="raw", metrics=STREAMING)
    for metric in (given, called, later):
        metric.update(batch[0].numpy(), batch[1].numpy().astype(np.uint8))
    batch[0].zero_()
    for values in (
        given.compute(),
        called.compute(),
        later.compute(prototypes=read_only, bias=bias.numpy()),
    ):
        assert {name: float(value) for name, value in defined(values).items()} == pytest.approx(
            expected, rel=1e-9
        )


@pytest.mark.parametrize("in_collection", [False, True])
def test_a_tracker_has_the_values_of_each_epoch(
    in_collection: bool, batch: tuple[torch.Tensor, torch.Tensor]
) -> None:
    head = CosineClassifier(DIM, CLASSES)
    metric = NeuralCollapse(DIM, CLASSES, head, metrics="alignment", compute_with_cache=True)
    tracker = MetricTracker(MetricCollection([metric]) if in_collection else metric, maximize=False)
    epochs = []
    for _ in range(3):
        nn.init.normal_(head.prototypes)
        tracker.increment()
        tracker.update(*batch)
        tracker.compute()
        epochs.append(float(measure(*batch, head.prototypes.detach())["weight_class_alignment"]))
    tracked = tracker.compute_all()["weight_class_alignment"]
    assert tracked.tolist() == pytest.approx(epochs, rel=1e-9)
    if in_collection:
        best, step = cast(Any, tracker.best_metric(return_step=True))
        assert best["weight_class_alignment"] == pytest.approx(min(epochs), rel=1e-9)
        assert step["weight_class_alignment"] == epochs.index(min(epochs))


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prototypes": torch.ones(3, DIM)}, r"prototypes must have shape \(4, 6\), got \(3, 6\)$"),
        ({"prototypes": np.ones((4, 5))}, r"prototypes must have shape \(4, 6\), got \(4, 5\)$"),
        (
            {"prototypes": torch.ones(4, 6, dtype=torch.int64)},
            "prototypes must be floating-point numbers, got torch.int64$",
        ),
        (
            {"prototypes": np.ones((4, 6), dtype=int)},
            "prototypes must be floating-point numbers, got int64$",
        ),
        (
            {"prototypes": MeanClassifier(DIM, 3)},
            r"prototypes must have shape \(4, 6\), got \(3, 6\)$",
        ),
        *(
            (
                {"prototypes": value},
                "prototypes must be a tensor, a NumPy array, a head with prototypes, or a function "
                f"that returns prototypes, got {type(value).__name__}$",
            )
            for value in ([[1.0] * DIM] * CLASSES, nn.Linear(DIM, CLASSES), "head", 0)
        ),
        (
            {"bias": 0.0, "space": "raw"},
            "bias must be a tensor, a NumPy array, a head with bias, or a function that returns "
            "bias, got float$",
        ),
        ({"bias": np.ones(3), "space": "raw"}, r"bias must have shape \(4,\), got \(3,\)$"),
    ],
)
def test_parameters_are_checked_when_the_metric_is_created(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        NeuralCollapse(DIM, CLASSES, **options)


@pytest.mark.bad_input
def test_bad_arrays_and_functions_get_a_sentence(batch: tuple[torch.Tensor, torch.Tensor]) -> None:
    metric = NeuralCollapse(DIM, CLASSES, lambda: [[1.0]])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"features must be float16, .* got int64"):
        metric.update(np.ones((4, DIM), dtype=int), np.arange(4))
    with pytest.raises(ValueError, match="labels must be integer class indices, got <U1"):
        metric.update(np.ones((4, DIM)), np.array(list("abcd")))
    with pytest.raises(ValueError, match=r"labels must be between 0 and 3 .*got 1 other label$"):
        metric.update(np.ones((4, DIM)), np.arange(1, 5))
    metric.update(*batch)
    with pytest.raises(
        ValueError, match=r"prototypes must be a tensor or a NumPy array, got list$"
    ):
        metric.compute()
