"""``NeuralCollapse`` as people use it: collections, training loops, inference mode, autocast, budgets, prototypes."""

import copy

import pytest
import torch
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy

from protosphere.classifiers import CosineClassifier
from protosphere.metrics import CHEAP, CATALOG, NeuralCollapse, measure, streaming

DIM, CLASSES = 6, 4


@pytest.fixture
def batch() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(40, DIM) + 1, torch.arange(40) % CLASSES


@pytest.fixture
def prototypes() -> torch.Tensor:
    return torch.randn(CLASSES, DIM)


def _equal(one: dict, other: dict) -> None:
    assert set(one) == set(other)
    assert all(
        float(one[name]) == pytest.approx(float(other[name]), rel=1e-9, abs=1e-12) for name in one
    )


def test_keys_are_stable_and_in_the_order_of_the_catalog(batch, prototypes) -> None:
    metric = NeuralCollapse(DIM, CLASSES, prototypes)
    metric.update(*batch)
    first = list(metric.compute())
    assert first == [name for name in CATALOG if name in first]
    assert set(CATALOG) - set(first) == {"nc4_agreement", "bias_spread", "bias_offset"}
    metric.update(*batch)
    assert list(metric.compute()) == first


def test_what_is_kept_is_what_is_asked_for(batch, prototypes) -> None:
    sizes = {}
    for asked in ("cheap", ["nc1"], "all", "nc2_simplex"):
        metric = NeuralCollapse(DIM, CLASSES, prototypes, metrics=asked)
        metric.update(*batch)
        assert set(metric.compute()) <= set(metric.names)
        assert not metric.waiting_features, "what was put by has been added"
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


def test_prototypes_of_the_moment_count(batch) -> None:
    head = CosineClassifier(DIM, CLASSES)
    held = NeuralCollapse(DIM, CLASSES, head.prototypes)
    called = NeuralCollapse(DIM, CLASSES, lambda: head.prototypes)
    cloned = held.clone()
    given = NeuralCollapse(DIM, CLASSES)
    for metric in (held, called, cloned, given):
        metric.update(*batch)
    assert not list(held.parameters()), "the head's parameters are the head's"
    with torch.no_grad():
        head.prototypes.copy_(torch.randn(CLASSES, DIM))
    expected = measure(*batch, head.prototypes)
    del expected["nc4_agreement"]
    for metric in (held, called, cloned):
        _equal(expected, metric.compute())
    _equal(expected, given.compute(prototypes=head.prototypes))
    assert "weight_class_alignment" not in given.compute()
    assert given.absent["weight_class_alignment"] == "it needs prototypes; none were given"


def test_in_a_collection_with_others(batch, prototypes) -> None:
    collection = MetricCollection(
        {
            "sphere": NeuralCollapse(DIM, CLASSES, prototypes),
            "raw": NeuralCollapse(DIM, CLASSES, prototypes, space="raw"),
            "cheap": NeuralCollapse(DIM, CLASSES, prototypes, metrics="cheap"),
            "nc2": NeuralCollapse(DIM, CLASSES, prototypes, metrics="nc2"),
        }
    )
    # Unit features at first: the spaces must not be taken for one because their states agree then.
    unit = torch.nn.functional.normalize(batch[0].double())
    for features in (unit, batch[0].double()):
        collection.update(features, batch[1])
    found = collection.compute()
    everything = torch.cat([unit, batch[0].double()]), batch[1].repeat(2)
    for space in ("sphere", "raw"):
        expected = measure(*everything, prototypes, space=space)
        del expected["nc4_agreement"]
        _equal(
            {
                name.removeprefix(f"{space}_"): found[name]
                for name in found
                if name.startswith(f"{space}_")
            },
            expected,
        )
    assert float(found["cheap_cdnv"]) == pytest.approx(float(found["sphere_cdnv"]), rel=1e-12)
    collection.reset()
    assert collection["sphere"].counts.sum() == 0


def test_in_a_collection_reset_in_inference_mode(batch, prototypes) -> None:
    collection = MetricCollection(
        {name: NeuralCollapse(DIM, CLASSES, prototypes) for name in "abc"}
    )
    collection.update(*batch)
    expected = collection.compute()
    with torch.inference_mode():
        collection.reset()
        collection.update(*batch)
        _equal(collection.compute(), expected)
    assert len(expected) == 3 * 26


def test_a_collection_tells_metrics_that_ignore_different_labels_apart(batch, prototypes) -> None:
    collection = MetricCollection(
        {"all": NeuralCollapse(DIM, CLASSES), "some": NeuralCollapse(DIM, CLASSES, ignore_index=0)}
    )
    collection.update(batch[0][batch[1] > 0], batch[1][batch[1] > 0])
    collection.update(*batch)
    collection.compute()
    assert collection["all"].counts[0] == 10
    assert collection["some"].counts[0] == 0


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.uint16, torch.int32])
def test_labels_of_any_whole_dtype(dtype: torch.dtype) -> None:
    classes = 128 if dtype == torch.int8 else 200
    labels = torch.arange(5 * classes) % classes
    metric = NeuralCollapse(4, classes, metrics="cheap")
    metric.update(torch.randn(len(labels), 4), labels.to(dtype))
    metric.compute()
    assert torch.equal(metric.counts, torch.full((classes,), 5.0, dtype=torch.float64))


def test_beside_an_accuracy_in_a_training_module(batch) -> None:
    """As a Lightning module has it: metrics as attributes, moved with the module, not in its state dict."""

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
    expected = measure(features.detach(), batch[1], module.head.prototypes.detach())
    del expected["nc4_agreement"]
    _equal(module.collapse.compute(), expected)
    assert {name.split(".")[0] for name in module.state_dict()} == {"encoder", "head"}
    assert module.collapse.means.dtype == torch.float64


@pytest.mark.parametrize("put_by", [1, 50, 10**6])
def test_samples_that_are_put_by_are_copies_and_all_come_in(
    put_by: int, prototypes, monkeypatch
) -> None:
    monkeypatch.setattr(streaming, "_PUT_BY", put_by)
    metric = NeuralCollapse(DIM, CLASSES, prototypes)
    features, labels = torch.randn(120, DIM), torch.arange(120) % CLASSES
    buffers = torch.empty(40, DIM), torch.empty(40, dtype=torch.long)
    for part in torch.arange(120).split(40):
        buffers[0].copy_(
            features[part]
        )  # As a captured graph has it: each batch overwrites the last.
        buffers[1].copy_(labels[part])
        metric.update(*buffers)
    metric.update(features[:8].bfloat16(), labels[:8])
    metric.update(features[8:16].double(), labels[8:16])
    assert metric.resolution <= torch.finfo(torch.bfloat16).eps
    everything = torch.cat([features, features[:8].bfloat16().float(), features[8:16]])
    expected = measure(everything, torch.cat([labels, labels[:16]]), prototypes)
    del expected["nc4_agreement"]
    _equal(metric.compute(), expected)
    assert metric.resolution == torch.finfo(torch.bfloat16).eps


def test_in_and_out_of_inference_mode(batch, prototypes) -> None:
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
    expected = measure(batch[0].repeat(3, 1), batch[1].repeat(3), prototypes)
    del expected["nc4_agreement"]
    _equal(inside, expected)
    _equal(metric.compute(), expected)


def test_under_autocast(batch, prototypes) -> None:
    encoder = torch.nn.Linear(DIM, DIM)
    metric = NeuralCollapse(DIM, CLASSES, prototypes)
    with torch.autocast("cpu", torch.bfloat16):
        features = encoder(batch[0])
        assert features.dtype == torch.bfloat16
        metric.update(features, batch[1])
        found = metric.compute()
    expected = measure(features.detach().float(), batch[1], prototypes)
    del expected["nc4_agreement"]
    _equal(found, expected)


def test_forward_gives_the_batch_and_keeps_the_whole(batch, prototypes) -> None:
    metric = NeuralCollapse(DIM, CLASSES, prototypes)
    other = torch.randn(24, DIM), torch.arange(24) % CLASSES
    metric.update(*batch)
    of_batch = metric(*other)
    for found, samples in (
        (of_batch, other),
        (metric.compute(), tuple(map(torch.cat, zip(batch, other, strict=True)))),
    ):
        expected = measure(*samples, prototypes)
        del expected["nc4_agreement"]
        _equal(found, expected)


def test_ignored_samples_are_as_if_they_were_not_there(batch, prototypes) -> None:
    features, labels = batch
    ignored = labels.clone()
    ignored[::3] = -100
    poisoned = features.clone()
    poisoned[::3] = torch.nan
    metric = NeuralCollapse(DIM, CLASSES, prototypes)
    for part in torch.arange(40).split(8):
        metric.update(poisoned[part], ignored[part])
    metric.update(poisoned[::3], ignored[::3])
    kept = ignored != -100
    expected = measure(features[kept], labels[kept], prototypes)
    del expected["nc4_agreement"]
    _equal(metric.compute(), expected)


def test_no_gradient_flows(batch, prototypes) -> None:
    features = batch[0].requires_grad_()
    metric = NeuralCollapse(DIM, CLASSES, prototypes.requires_grad_())
    metric.update(features, batch[1])
    assert not any(value.requires_grad for value in metric.compute().values())


def test_copies_are_independent(batch, prototypes) -> None:
    metric = NeuralCollapse(DIM, CLASSES, prototypes)
    metric.update(*batch)
    other = copy.deepcopy(metric)
    other.update(torch.randn(8, DIM), torch.arange(8) % CLASSES)
    expected = measure(*batch, prototypes)
    del expected["nc4_agreement"]
    _equal(metric.compute(), expected)


@pytest.mark.filterwarnings("ignore:The ``compute`` method")
def test_before_any_sample_only_the_prototypes_are_known(prototypes) -> None:
    metric = NeuralCollapse(DIM, CLASSES, prototypes)
    assert all("weights" in name for name in metric.compute())
    metric.update(torch.empty(0, DIM), torch.empty(0, dtype=torch.long))
    assert all("weights" in name for name in metric.compute())
    assert NeuralCollapse(DIM, CLASSES, classes="present").compute() == {}


@pytest.mark.bad_input
def test_the_memory_budget() -> None:
    with pytest.raises(
        ValueError,
        match=r"1000 classes in 2048 dimensions must keep 16.6 GiB, .* got 4.0 GiB. Raise it",
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
            r"features must be a floating matrix \(samples, 6\); got \(3, 5\)",
        ),
        (torch.ones(3, 6, dtype=torch.long), torch.arange(3), "features must be a floating matrix"),
        (
            torch.ones(3, 6),
            torch.arange(4),
            r"labels must hold one class index per sample, shape \(3,\); got \(4,\)",
        ),
        (torch.ones(3, 6), torch.ones(3), "labels must hold one class index per sample"),
        (
            torch.ones(3, 6),
            torch.tensor([0, 1, 4]),
            r"labels must lie in 0..3 or be ignore_index=-100; 1 of the",
        ),
        (torch.ones(3, 6), torch.tensor([-1, 1, 4]), "2 of the samples had others"),
    ],
)
def test_bad_batches(features: torch.Tensor, labels: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        NeuralCollapse(DIM, CLASSES).update(features, labels)


@pytest.mark.bad_input
def test_bad_arguments(batch) -> None:
    for options, message in (
        ({"dim": 0}, "needs dim ≥ 1 and num_classes ≥ 2; got dim=0"),
        ({"space": "cube"}, "space must be"),
        ({"classes": "most"}, "classes 'all' or 'present'"),
        ({"metrics": "nc9"}, "got 'nc9'"),
        ({"bias": torch.zeros(CLASSES)}, "a bias must come with space='raw'"),
    ):
        with pytest.raises(ValueError, match=message):
            NeuralCollapse(**({"dim": DIM, "num_classes": CLASSES} | options))
    metric = NeuralCollapse(DIM, CLASSES)
    metric.update(*batch)
    with pytest.raises(ValueError, match=r"prototypes must have shape \(4, 6\); got \(4, 5\)"):
        metric.compute(prototypes=torch.ones(4, 5))
    for prototypes in (torch.full((4, 6), torch.nan), torch.ones(4, 6, dtype=torch.long)):
        with pytest.raises(ValueError, match="prototypes must be finite floating numbers"):
            metric.compute(prototypes=prototypes)
    with pytest.raises(ValueError, match="a bias must come with space='raw'"):
        metric.compute(bias=torch.zeros(CLASSES))
    with pytest.raises(ValueError, match="another NeuralCollapse of the same space"):
        metric.merge_state(NeuralCollapse(DIM, CLASSES, space="raw"))
    with pytest.raises(ValueError, match="same classes, dimensions and moments"):
        metric.merge_state(NeuralCollapse(DIM, CLASSES, metrics="cheap"))
