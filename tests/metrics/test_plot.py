"""``NeuralCollapse``: keys that loggers can rely on, and ``plot`` as torchmetrics has it."""

from importlib.util import find_spec
from typing import Any, cast

import numpy as np
import pytest
import torch
from torchmetrics import MetricCollection, MetricTracker

from protosphere.metrics import NeuralCollapse

DIM, CLASSES = 6, 4
# What metrics can be computed differs: with samples of all classes, of two, of one sample each.
BATCHES = [
    torch.arange(40) % CLASSES,
    torch.arange(40) % 2,
    torch.arange(CLASSES),
    torch.empty(0, dtype=torch.long),
]


@pytest.fixture
def metric() -> NeuralCollapse:
    return NeuralCollapse(DIM, CLASSES, torch.randn(CLASSES, DIM), metrics=["nc1", "nc2", "ranks"])


@pytest.mark.filterwarnings("ignore:The ``compute`` method")
@pytest.mark.parametrize("classes", ["all", "present"])
@pytest.mark.parametrize("metrics", ["all", "cheap", ["nc1"], ["bias_spread"]])
def test_the_keys_are_the_selected_metrics_whatever_the_samples(metrics, classes) -> None:
    for labels in BATCHES:
        metric = NeuralCollapse(DIM, CLASSES, metrics=metrics, classes=classes)
        assert tuple(metric.compute()) == metric.names
        metric.update(torch.randn(len(labels), DIM), labels)
        values = metric.compute()
        assert tuple(values) == metric.names
        assert {name for name, value in values.items() if value.isnan()} == set(metric.absent)
        assert {value.dtype for value in values.values()} == {torch.float64}
        assert all(value.shape == () for value in values.values())


def test_a_tracker_stacks_epochs_of_which_one_lacks_a_class(metric: NeuralCollapse) -> None:
    tracker = MetricTracker(MetricCollection({"test": metric}), maximize=False)
    for labels in BATCHES[:2]:
        tracker.increment()
        tracker.update(torch.randn(len(labels), DIM), labels)
    series = tracker.compute_all()
    assert isinstance(series, dict)
    assert list(series) == list(metric.names)
    assert series["nc2_simplex"].isnan().tolist() == [False, True]


@pytest.mark.skipif(find_spec("matplotlib") is not None, reason="matplotlib is installed")
def test_without_matplotlib_the_error_is_that_of_torchmetrics(metric: NeuralCollapse) -> None:
    metric.update(torch.randn(40, DIM), BATCHES[0])
    with pytest.raises(ModuleNotFoundError, match=r"Plot function expects `matplotlib`"):
        metric.plot()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_plot_draws_a_point_or_a_line_for_each_metric(metric: NeuralCollapse) -> None:
    mpl = pytest.importorskip("matplotlib")
    mpl.use("Agg")
    results = []
    for labels in BATCHES[:2]:
        results.append(metric(torch.randn(len(labels), DIM), labels))
    _, axes = metric.plot()
    assert [line.get_label() for line in axes.lines] == list(metric.names)
    figure, axes = metric.plot(results)
    assert {np.size(line.get_ydata()) for line in axes.lines} == {2}
    assert metric.plot(results[0], ax=cast(Any, axes)) == (None, axes)
    figure.canvas.draw()
    mpl.pyplot.close("all")
