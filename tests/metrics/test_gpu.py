"""On a GPU: the values of the CPU, and no synchronization where class sums suffice."""

import pytest
import torch

from protosphere.geometry.class_statistics import Space
from protosphere.metrics import NeuralCollapse, measure, streaming
from support.clouds import CLOUDS, cloud, defined

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("space", ["sphere", "raw"])
@pytest.mark.parametrize("name", CLOUDS)
def test_values_equal_those_of_the_cpu(name: str, space: Space) -> None:
    features, labels, prototypes, _ = map(torch.from_numpy, cloud(**CLOUDS[name]))
    expected = measure(features, labels, prototypes, space=space)
    on_gpu = [tensor.cuda() for tensor in (features, labels, prototypes)]
    metric = NeuralCollapse(features.shape[1], len(prototypes), on_gpu[2], space=space).cuda()
    for batch in torch.arange(len(labels)).split(9):
        metric.update(on_gpu[0][batch.cuda()], on_gpu[1][batch.cuda()])
    for values in (
        measure(*on_gpu, space=space),
        measure(features, labels, prototypes, space=space, device="cuda"),
        defined(metric.compute()),
    ):
        assert set(values) | {"nc4_agreement"} == set(expected)
        for key, value in values.items():
            assert float(value) == pytest.approx(expected[key], rel=1e-8, abs=1e-12), key


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("metrics", ["cheap", ["nc1"]])
def test_class_sums_do_not_synchronize(
    metrics: str | list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "_BUFFER_SIZE", 1)
    metric = NeuralCollapse(64, 10, metrics=metrics).cuda()
    features, labels = torch.randn(256, 64, device="cuda"), torch.arange(256, device="cuda") % 10
    metric.update(features, labels)
    torch.cuda.set_sync_debug_mode("error")
    try:
        metric.update(features, labels)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert metric.counts.sum() == 512


@pytest.mark.bad_input
def test_labels_out_of_range_are_reported_by_compute() -> None:
    metric = NeuralCollapse(4, 3).cuda()
    metric.update(torch.randn(3, 4, device="cuda"), torch.tensor([0, 1, 9], device="cuda"))
    with pytest.raises(ValueError, match=r"got 1 other label$"):
        metric.compute()


def test_autocast_and_half_precision() -> None:
    features, labels = torch.randn(90, 16, device="cuda"), torch.arange(90, device="cuda") % 3
    linear = torch.nn.Linear(16, 16).cuda()
    metric = NeuralCollapse(16, 3).cuda()
    with torch.autocast("cuda", torch.bfloat16), torch.inference_mode():
        outputs = linear(features)
        metric.update(outputs, labels)
    expected = measure(outputs.float().cpu(), labels.cpu())
    for name, value in defined(metric.compute()).items():
        assert value == pytest.approx(expected[name], rel=1e-8, abs=1e-12), name


def test_the_state_moves_and_stays_in_float64_with_a_module_in_half_precision() -> None:
    features, labels = torch.randn(90, 16), torch.arange(90) % 3
    metric = NeuralCollapse(16, 3, torch.randn(3, 16).numpy())
    torch.nn.ModuleDict({"collapse": metric}).to("cuda", torch.bfloat16)
    assert (metric.means.device.type, metric.means.dtype) == ("cuda", torch.float64)
    metric.update(features.numpy(), labels.numpy())
    metric.update(features.cuda(), labels.cuda())
    expected = measure(features.repeat(2, 1), labels.repeat(2))
    values = metric.compute()
    for name in ("nc1_ratio", "nc2_simplex", "intra_effective_rank"):
        assert float(values[name]) == pytest.approx(expected[name], rel=1e-8), name


@pytest.mark.parametrize("space", ["sphere", "raw"])
def test_features_are_not_modified(space: Space) -> None:
    """Even in float64, which needs no conversion, and with more classes than dimensions."""
    features = torch.randn(120, 8, dtype=torch.float64, device="cuda") + 1
    labels, prototypes = torch.arange(120, device="cuda") % 12, torch.randn(12, 8, device="cuda")
    before = features.clone()
    measure(features, labels, prototypes, space=space)
    assert torch.equal(features, before)
