"""``NeuralCollapse`` in collections, training loops, inference mode and autocast; bad input."""

import copy

import pytest
import torch
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy

from protosphere.classifiers import CosineClassifier
from protosphere.metrics import CATALOG, CHEAP, NeuralCollapse, measure, streaming
from support.clouds import STREAMING, defined

DIM, CLASSES = 6, 4
Batch = tuple[torch.Tensor, torch.Tensor]


@pytest.fixture
def batch() -> Batch:
    return torch.randn(40, DIM) + 1, torch.arange(40) % CLASSES


@pytest.fixture
def prototypes() -> torch.Tensor:
    return torch.randn(CLASSES, DIM)


def _assert_equal(one: dict, other: dict) -> None:
    one, other = defined(one), defined(other)
    assert set(one) == set(other)
    assert all(
        float(one[name]) == pytest.approx(float(other[name]), rel=1e-9, abs=1e-12) for name in one
    )


def _counts(collection: MetricCollection, name: str) -> torch.Tensor:
    metric = collection[name]
    assert isinstance(metric, NeuralCollapse)
    return metric.statistics.counts


def test_metrics_come_in_the_order_of_the_catalog(batch: Batch, prototypes: torch.Tensor) -> None:
    metric = NeuralCollapse(DIM, CLASSES, prototypes)
    metric.update(*batch)
    first = list(metric.compute())
    assert first == [name for name in CATALOG if name != "nc4_agreement"]
    assert set(metric.absent) == {"bias_spread", "bias_offset"}
    metric.update(*batch)
    assert list(metric.compute()) == first


def test_the_state_is_as_small_as_the_selected_metrics_allow(
    batch: Batch, prototypes: torch.Tensor
) -> None:
    sizes = {}
    for asked in ("cheap", ["nc1"], "all", "nc2_simplex"):
        metric = NeuralCollapse(DIM, CLASSES, prototypes, metrics=asked)
        metric.update(*batch)
        assert tuple(metric.compute()) == metric.names
        assert not metric.buffered_features, "compute() must flush the buffer"
        states = [getattr(metric, name) for name in metric._defaults]
        sizes[str(asked)] = sum(
            part.numel()
            for state in states
            for part in (state if isinstance(state, list) else [state])
        )
    assert sizes["nc2_simplex"] == sizes["cheap"] < CLASSES * DIM + 4 * CLASSES
    assert sizes["['nc1']"] == sizes["cheap"] + DIM**2
    assert sizes["all"] == sizes["cheap"] + CLASSES * DIM**2
    assert not {"nc1_trace", "intra_effective_rank", "nc4_agreement"} & set(CHEAP)
    assert {"nc1_ratio", "cdnv", "weight_instance_alignment", "nc2_gram", "mir"} <= set(CHEAP)


def test_prototypes_are_read_at_compute(batch: Batch) -> None:
    head = CosineClassifier(DIM, CLASSES)
    held = NeuralCollapse(DIM, CLASSES, head.prototypes)
    called = NeuralCollapse(DIM, CLASSES, lambda: head.prototypes)
    cloned = held.clone()
    given = NeuralCollapse(DIM, CLASSES)
    for metric in (held, called, cloned, given):
        metric.update(*batch)
    assert not list(held.parameters()), "the prototypes belong to the head"
    with torch.no_grad():
        head.prototypes.copy_(torch.randn(CLASSES, DIM))
    expected = measure(*batch, head.prototypes, metrics=STREAMING)
    for metric in (held, called, cloned):
        _assert_equal(expected, metric.compute())
    _assert_equal(expected, given.compute(prototypes=head.prototypes))
    assert given.compute()["weight_class_alignment"].isnan()
    assert given.absent["weight_class_alignment"] == "requires prototypes, and none were given"


def test_metric_collection(batch: Batch, prototypes: torch.Tensor) -> None:
    collection = MetricCollection(
        {
            "sphere": NeuralCollapse(DIM, CLASSES, prototypes),
            "raw": NeuralCollapse(DIM, CLASSES, prototypes, space="raw"),
            "cheap": NeuralCollapse(DIM, CLASSES, prototypes, metrics="cheap"),
            "nc2": NeuralCollapse(DIM, CLASSES, prototypes, metrics="nc2"),
        }
    )
    # Unit features first: both spaces then have the same state but must not be merged.
    unit = torch.nn.functional.normalize(batch[0].double())
    for features in (unit, batch[0].double()):
        collection.update(features, batch[1])
    values = collection.compute()
    everything = torch.cat([unit, batch[0].double()]), batch[1].repeat(2)
    for space in ("sphere", "raw"):
        expected = measure(*everything, prototypes, space=space, metrics=STREAMING)
        _assert_equal(
            {
                name.removeprefix(f"{space}_"): values[name]
                for name in values
                if name.startswith(f"{space}_")
            },
            expected,
        )
    assert float(values["cheap_cdnv"]) == pytest.approx(float(values["sphere_cdnv"]), rel=1e-12)
    collection.reset()
    assert _counts(collection, "sphere").sum() == 0


def test_metric_collection_reset_in_inference_mode(batch: Batch, prototypes: torch.Tensor) -> None:
    collection = MetricCollection(
        {name: NeuralCollapse(DIM, CLASSES, prototypes) for name in "abc"}
    )
    collection.update(*batch)
    expected = collection.compute()
    with torch.inference_mode():
        collection.reset()
        collection.update(*batch)
        _assert_equal(collection.compute(), expected)
    names = NeuralCollapse(DIM, CLASSES, prototypes).names
    assert {f"{name}_nc1_ratio" for name in "abc"} <= set(expected)
    assert len(expected) == 3 * len(names)


def test_metric_collection_with_different_ignore_index(
    batch: Batch, prototypes: torch.Tensor
) -> None:
    collection = MetricCollection(
        {"all": NeuralCollapse(DIM, CLASSES), "some": NeuralCollapse(DIM, CLASSES, ignore_index=0)}
    )
    collection.update(batch[0][batch[1] > 0], batch[1][batch[1] > 0])
    collection.update(*batch)
    collection.compute()
    assert _counts(collection, "all")[0] == 10
    assert _counts(collection, "some")[0] == 0


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.uint16, torch.int32])
def test_labels_of_any_integer_dtype(dtype: torch.dtype) -> None:
    classes = 128 if dtype == torch.int8 else 200
    labels = torch.arange(5 * classes) % classes
    metric = NeuralCollapse(4, classes, metrics="cheap")
    metric.update(torch.randn(len(labels), 4), labels.to(dtype))
    metric.compute()
    assert torch.equal(metric.counts, torch.full((classes,), 5.0, dtype=torch.float64))


def test_metric_as_an_attribute_of_a_module(batch: Batch) -> None:
    """The metric moves with the module, stays in float64 and adds nothing to its state dict."""

    class Module(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = torch.nn.Linear(DIM, DIM)
            self.head = CosineClassifier(DIM, CLASSES)
            self.accuracy = MulticlassAccuracy(CLASSES)
            self.collapse = NeuralCollapse(DIM, CLASSES, self.head.prototypes)

    module = Module().half().float().to("cpu")
    module.collapse.set_dtype(torch.float32)
    features = module.encoder(batch[0])
    module.collapse.update(features, batch[1])
    expected = measure(
        features.detach(), batch[1], module.head.prototypes.detach(), metrics=STREAMING
    )
    _assert_equal(module.collapse.compute(), expected)
    assert {name.split(".")[0] for name in module.state_dict()} == {"encoder", "head"}
    assert module.collapse.means.dtype == torch.float64


@pytest.mark.parametrize("buffer_size", [1, 50, 10**6])
def test_buffered_samples_are_copied_and_all_are_counted(
    buffer_size: int, prototypes: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "_BUFFER_SIZE", buffer_size)
    metric = NeuralCollapse(DIM, CLASSES, prototypes)
    features, labels = torch.randn(120, DIM), torch.arange(120) % CLASSES
    buffers = torch.empty(40, DIM), torch.empty(40, dtype=torch.long)
    for indices in torch.arange(120).split(40):
        # As with CUDA graphs, each batch overwrites the previous one.
        buffers[0].copy_(features[indices])
        buffers[1].copy_(labels[indices])
        metric.update(*buffers)
    metric.update(features[:8].bfloat16(), labels[:8])
    metric.update(features[8:16].double(), labels[8:16])
    assert metric.input_eps <= torch.finfo(torch.bfloat16).eps
    everything = torch.cat([features, features[:8].bfloat16().float(), features[8:16]])
    expected = measure(everything, torch.cat([labels, labels[:16]]), prototypes, metrics=STREAMING)
    _assert_equal(metric.compute(), expected)
    assert metric.input_eps == torch.finfo(torch.bfloat16).eps


def test_inside_and_outside_of_inference_mode(batch: Batch, prototypes: torch.Tensor) -> None:
    metric = NeuralCollapse(DIM, CLASSES, prototypes)
    with torch.inference_mode():
        metric.update(*batch)
        metric.compute()
        metric.reset()
        metric.update(*batch)
    metric.update(*batch)
    with torch.inference_mode():
        metric.update(*batch)
        inside = metric.compute()
    expected = measure(batch[0].repeat(3, 1), batch[1].repeat(3), prototypes, metrics=STREAMING)
    _assert_equal(inside, expected)
    _assert_equal(metric.compute(), expected)


def test_under_autocast(batch: Batch, prototypes: torch.Tensor) -> None:
    encoder = torch.nn.Linear(DIM, DIM)
    metric = NeuralCollapse(DIM, CLASSES, prototypes)
    with torch.autocast("cpu", torch.bfloat16):
        features = encoder(batch[0])
        assert features.dtype == torch.bfloat16
        metric.update(features, batch[1])
        values = metric.compute()
    expected = measure(features.detach().float(), batch[1], prototypes, metrics=STREAMING)
    _assert_equal(values, expected)


def test_forward_returns_the_batch_values_and_accumulates(
    batch: Batch, prototypes: torch.Tensor
) -> None:
    metric = NeuralCollapse(DIM, CLASSES, prototypes)
    other = torch.randn(24, DIM), torch.arange(24) % CLASSES
    metric.update(*batch)
    batch_values = metric(*other)
    _assert_equal(batch_values, measure(*other, prototypes, metrics=STREAMING))
    features, labels = map(torch.cat, zip(batch, other, strict=True))
    expected = measure(features, labels, prototypes, metrics=STREAMING)
    _assert_equal(metric.compute(), expected)


def test_ignored_samples_do_not_change_the_values(batch: Batch, prototypes: torch.Tensor) -> None:
    features, labels = batch
    ignored = labels.clone()
    ignored[::3] = -100
    with_nan = features.clone()
    with_nan[::3] = torch.nan
    metric = NeuralCollapse(DIM, CLASSES, prototypes)
    for indices in torch.arange(40).split(8):
        metric.update(with_nan[indices], ignored[indices])
    metric.update(with_nan[::3], ignored[::3])
    kept = ignored != -100
    expected = measure(features[kept], labels[kept], prototypes, metrics=STREAMING)
    _assert_equal(metric.compute(), expected)


def test_no_gradient_flows(batch: Batch, prototypes: torch.Tensor) -> None:
    features = batch[0].requires_grad_()
    metric = NeuralCollapse(DIM, CLASSES, prototypes.requires_grad_())
    metric.update(features, batch[1])
    assert not any(value.requires_grad for value in metric.compute().values())


def test_copies_are_independent(batch: Batch, prototypes: torch.Tensor) -> None:
    metric = NeuralCollapse(DIM, CLASSES, prototypes)
    metric.update(*batch)
    other = copy.deepcopy(metric)
    other.update(torch.randn(8, DIM), torch.arange(8) % CLASSES)
    expected = measure(*batch, prototypes, metrics=STREAMING)
    _assert_equal(metric.compute(), expected)


@pytest.mark.filterwarnings("ignore:The ``compute`` method")
def test_compute_without_samples(prototypes: torch.Tensor) -> None:
    metric = NeuralCollapse(DIM, CLASSES, prototypes)
    for _ in range(2):
        assert tuple(metric.compute()) == metric.names
        assert all("weights" in name for name in defined(metric.compute()))
        metric.update(torch.empty(0, DIM), torch.empty(0, dtype=torch.long))
    assert not defined(NeuralCollapse(DIM, CLASSES, classes="present").compute())


def test_statistics_include_buffered_samples(batch: Batch) -> None:
    features, labels = batch
    metric = NeuralCollapse(DIM, CLASSES, space="raw", metrics="cheap")
    metric.update(features, labels)
    assert metric.buffered_labels
    statistics = metric.statistics
    expected = torch.stack([features[labels == c].double().mean(0) for c in range(CLASSES)])
    torch.testing.assert_close(statistics.means, expected)
    assert statistics.counts.tolist() == [10] * CLASSES
    assert not metric.buffered_labels
    metric.update(features, labels)
    assert metric.statistics.counts.sum() == 80
    metric.reset()
    assert metric.statistics.counts.sum() == 0


def test_merging_metrics_keeps_the_coarsest_input_eps(batch: Batch) -> None:
    features, labels = batch
    metric = NeuralCollapse(DIM, CLASSES, metrics="cheap")
    other = NeuralCollapse(DIM, CLASSES, metrics="cheap")
    metric.update(features.double(), labels)
    other.update(features.bfloat16(), labels)
    metric.merge_state(other)
    assert metric.input_eps == torch.finfo(torch.bfloat16).eps
    assert metric.counts.sum() == 80


def test_repr_shows_the_arguments(prototypes: torch.Tensor) -> None:
    metric = NeuralCollapse(DIM, CLASSES, prototypes, metrics=["nc1", "cdnv"], classes="present")
    assert repr(metric) == (
        "NeuralCollapse(dim=6, num_classes=4, prototypes=<4 × 6 tensor>, bias=None, "
        "space='sphere', metrics=['nc1', 'cdnv'], classes='present', ignore_index=-100)"
    )
    assert "prototypes=<function>" in repr(NeuralCollapse(DIM, CLASSES, lambda: prototypes))


@pytest.mark.bad_input
def test_memory_budget() -> None:
    with pytest.raises(
        ValueError,
        match=r"1000 classes in 2048 dimensions requires memory_budget ≥ 16.6 GiB, got 4.0 GiB",
    ):
        NeuralCollapse(2048, 1000)
    NeuralCollapse(2048, 1000, metrics="cheap")
    NeuralCollapse(2048, 1000, memory_budget=17 << 30)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("features", "labels", "message"),
    [
        (
            torch.ones(3, 5),
            torch.arange(3),
            r"features must have shape \(samples, 6\), got \(3, 5\)",
        ),
        (torch.ones(3, 6, dtype=torch.long), torch.arange(3), "features must be float16"),
        (
            torch.ones(3, 6),
            torch.arange(4),
            r"labels must hold one class index per sample, shape \(3,\), got \(4,\)",
        ),
        (torch.ones(3, 6), torch.ones(3), "labels must be integer class indices, got .*float32"),
        (
            torch.ones(3, 6),
            torch.tensor([0, 1, 4]),
            "labels must be between 0 and 3 or ignore_index=-100, got 1 other label$",
        ),
        (torch.ones(3, 6), torch.tensor([-1, 1, 4]), "got 2 other labels"),
    ],
)
def test_bad_batches(features: torch.Tensor, labels: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        NeuralCollapse(DIM, CLASSES).update(features, labels)


@pytest.mark.bad_input
def test_bad_arguments(batch: Batch) -> None:
    for options, message in (
        ({"dim": 0}, "dim must be an integer of at least 1, got 0"),
        ({"space": "cube"}, "space must be"),
        ({"classes": "most"}, "classes must be 'all' or 'present', got 'most'"),
        ({"num_classes": True}, "num_classes must be an integer of at least 2, got True"),
        ({"num_classes": -2}, "num_classes must be an integer of at least 2, got -2"),
        ({"metrics": "nc9"}, "got 'nc9'; did you mean"),
        ({"metrics": []}, "metrics must name at least one metric"),
        ({"metrics": ["nc4_agreement"]}, "second pass over the samples, got .*use measure"),
        ({"bias": torch.zeros(CLASSES)}, "bias requires space='raw'"),
    ):
        with pytest.raises(ValueError, match=message):
            NeuralCollapse(**({"dim": DIM, "num_classes": CLASSES} | options))
    metric = NeuralCollapse(DIM, CLASSES)
    metric.update(*batch)
    with pytest.raises(ValueError, match=r"prototypes must have shape \(4, 6\), got \(4, 5\)"):
        metric.compute(prototypes=torch.ones(4, 5))
    with pytest.raises(ValueError, match="prototypes must be finite, got NaN or infinity"):
        metric.compute(prototypes=torch.full((4, 6), torch.nan))
    with pytest.raises(ValueError, match=r"prototypes must be floating-point numbers, got .*int64"):
        metric.compute(prototypes=torch.ones(4, 6, dtype=torch.long))
    with pytest.raises(ValueError, match="bias requires space='raw'"):
        metric.compute(bias=torch.zeros(CLASSES))
    with pytest.raises(
        ValueError, match="incoming_state must be a NeuralCollapse with space='sphere', got 'raw'"
    ):
        metric.merge_state(NeuralCollapse(DIM, CLASSES, space="raw"))
    with pytest.raises(ValueError, match="same classes, dimension and moments"):
        metric.merge_state(NeuralCollapse(DIM, CLASSES, metrics="cheap"))
