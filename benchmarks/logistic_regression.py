"""Logistic regression: L-BFGS on the device against scikit-learn's lbfgs on the CPU, in one run.

Both minimize Σ_i CE_i + ½ l2 ‖weight‖² (scikit-learn with C = 1/l2) on the same float32 features.
The two tolerances mean different things, so what is compared is the time until the objective is
first within 1e-4 of the optimum. For scikit-learn the objective is recorded at every evaluation of
one run, which ends there or after --max-seconds; for protosphere the whole fit counts, from arrays
in main memory until its own tolerance is met, which is nearer to the optimum. The optimum is that
of a fit in float64; strong convexity bounds what it can lack: F − F* ≤ ‖∇F‖² / 2 l2. Objectives of
the finished models are computed again from their coefficients, in float64.

    python benchmarks/logistic_regression.py
    python benchmarks/logistic_regression.py --features train.npz --test-features test.npz
"""

import argparse
import statistics
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import scipy.optimize
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor
from torch.nn import functional as F

import harness
from protosphere.data.feature_files import read_features
from protosphere.evaluation.logistic_regression import (
    LogisticRegressionFit,
    fit_logistic_regression,
    fit_regularization_path,
)

GAPS = (1e-2, 1e-3, 1e-4)
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Data(NamedTuple):
    """Features and labels to fit and to test."""

    features: np.ndarray
    labels: np.ndarray
    test_features: np.ndarray
    test_labels: np.ndarray


def synthetic_data(num_samples: int, dim: int, num_classes: int) -> Data:
    """Return features like those after a ReLU: class means and noise with decaying spectra."""
    generator = torch.Generator().manual_seed(0)
    num_test = num_samples // 5
    labels = torch.arange(num_samples + num_test) % num_classes
    labels = labels[torch.randperm(len(labels), generator=generator)]
    axes = torch.linalg.qr(torch.randn(dim, dim, generator=generator)).Q
    spectrum = torch.arange(1, dim + 1) ** -0.6
    means = torch.randn(num_classes, dim, generator=generator) * spectrum
    means[:, num_classes:] = 0
    noise = torch.randn(len(labels), dim, generator=generator) * spectrum * 2.2
    features = F.relu((means[labels] + noise) @ axes + 0.1).numpy()
    classes = labels.numpy()
    return Data(
        features[:num_samples], classes[:num_samples], features[num_samples:], classes[num_samples:]
    )


def collapsed_data(num_samples: int, dim: int, num_classes: int) -> Data:
    """Return features like those of a collapsed network on images of other classes.

    A fifth of the directions, with as many clusters that are unrelated to the classes, has nearly
    all variance; the classes differ in the others, whose scales decay from 0.1 to 1e-6.
    """
    generator = torch.Generator().manual_seed(0)
    num_all, num_strong = num_samples + num_samples // 5, dim // 5
    labels = torch.randint(num_classes, (num_all,), generator=generator)
    clusters = torch.randint(num_strong, (num_all,), generator=generator)
    strong = F.one_hot(clusters, num_strong) * num_strong**0.5
    means = torch.randn(num_classes, dim - num_strong, generator=generator)
    weak = means[labels] + 2 * torch.randn(num_all, dim - num_strong, generator=generator)
    noise = 0.3 * torch.randn(num_all, num_strong, generator=generator)
    axes = torch.linalg.qr(torch.randn(dim, dim, generator=generator)).Q
    scales = torch.logspace(-1, -6, dim - num_strong)
    features = (torch.cat([strong + noise, weak * scales], 1) @ axes).numpy()
    classes = labels.numpy()
    return Data(
        features[:num_samples], classes[:num_samples], features[num_samples:], classes[num_samples:]
    )


def file_data(path: str, test_path: str | None, num_samples: int) -> Data:
    """Read features from files; without a test set, a fifth of the samples is kept for it.

    A file of benchmarks/encode_features.py has both sets.
    """
    with_test = path.endswith(".npz") and "features_test" in np.load(path).files
    features, labels = _arrays(path, "_train" if with_test else "")
    order = np.random.default_rng(0).permutation(len(labels))
    features, labels = features[order], labels[order]
    if with_test or test_path is not None:
        test = _arrays(test_path, "") if test_path is not None else _arrays(path, "_test")
    else:
        num_test = len(labels) // 5
        test = features[:num_test], labels[:num_test]
        features, labels = features[num_test:], labels[num_test:]
    return Data(features[:num_samples], labels[:num_samples], *test)


def _arrays(path: str, suffix: str) -> tuple[np.ndarray, np.ndarray]:
    content = read_features(path, features=f"features{suffix}", labels=f"labels{suffix}")
    # Copies: arrays that are mapped to a file cannot be written, which torch warns of.
    return np.array(content.features, dtype=np.float32), np.array(content.labels, dtype=int)


class Judge:
    """Objective, bound and accuracy of coefficients, in float64 on the device."""

    def __init__(self, data: Data, l2: float) -> None:
        self.data, self.l2 = data, l2
        self.features = torch.from_numpy(data.features).to(DEVICE, torch.float64)
        self.labels = torch.from_numpy(data.labels).to(DEVICE)

    def objective(self, weight: Tensor, bias: Tensor) -> Tensor:
        """Return Σ_i CE_i + ½ l2 ‖weight‖²."""
        logits = self.features @ weight.T + bias
        losses = F.cross_entropy(logits, self.labels, reduction="sum")
        return losses + self.l2 / 2 * weight.square().sum()

    def bound(self, weight: Tensor, bias: Tensor) -> float:
        """Return how far the objective can at most be from the optimum, relative to itself."""
        weight = weight.clone().requires_grad_()
        value = self.objective(weight, bias)
        (gradient,) = torch.autograd.grad(value, weight)
        return float(gradient.square().sum() / (2 * self.l2) / value.detach())

    def result(self, weight: Any, bias: Any) -> dict[str, float]:
        """Return objective and test accuracy."""
        weight = torch.as_tensor(weight, dtype=torch.float64, device=DEVICE)
        bias = torch.as_tensor(bias, dtype=torch.float64, device=DEVICE)
        test = torch.from_numpy(self.data.test_features).to(DEVICE, torch.float64)
        predictions = (test @ weight.T + bias).argmax(1).cpu().numpy()
        return {
            "objective": float(self.objective(weight, bias)),
            "accuracy": float((predictions == self.data.test_labels).mean()),
        }


def fit_own(data: Data, num_classes: int, l2: float, **options: Any) -> LogisticRegressionFit:
    """Fit from arrays in main memory; the weights are there again when it returns."""
    features = torch.from_numpy(data.features).to(DEVICE)
    labels = torch.from_numpy(data.labels).to(DEVICE)
    fit = fit_logistic_regression(features, labels, num_classes=num_classes, l2=l2, **options)
    return fit._replace(weight=fit.weight.cpu(), bias=fit.bias.cpu())


@contextmanager
def recorded(trace: list[tuple[float, float]], stop: float, max_seconds: float) -> Iterator[None]:
    """Record seconds and objective of every evaluation of a fit of scikit-learn.

    The first evaluation is at zero, where the objective is N log K: this gives the scale of the
    others, which differs between versions of scikit-learn.
    """
    minimize = scipy.optimize.minimize
    start = time.perf_counter()

    def traced_minimize(function: Any, point: Any, *arguments: Any, **options: Any) -> Any:
        def traced(*inputs: Any) -> Any:
            value, gradient = function(*inputs)
            trace.append((time.perf_counter() - start, float(value)))
            return value, gradient

        def end(_: Any) -> None:
            seconds, value = trace[-1]
            if value / trace[0][1] <= stop or seconds > max_seconds:
                raise StopIteration

        return minimize(traced, point, *arguments, **options | {"callback": end})

    with mock.patch.object(scipy.optimize, "minimize", traced_minimize):
        yield


def fit_sklearn(
    data: Data, judge: Judge, optimum: float, dtype: type, max_seconds: float
) -> dict[str, Any]:
    """Fit scikit-learn's LogisticRegression until it is within the last of ``GAPS``."""
    features = data.features.astype(dtype)
    model = LogisticRegression(C=1 / judge.l2, tol=1e-12, max_iter=100_000)
    trace: list[tuple[float, float]] = []
    at_zero = len(data.labels) * np.log(len(np.unique(data.labels)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it was told to stop early
        with recorded(trace, optimum * (1 + GAPS[-1]) / at_zero, max_seconds):
            model.fit(features, data.labels)
    gaps = [(seconds, value / trace[0][1] * at_zero / optimum - 1) for seconds, value in trace]
    reached = {
        f"{gap:g}": next((seconds for seconds, found in gaps if found <= gap), None) for gap in GAPS
    }
    return {
        "seconds": reached[f"{GAPS[-1]:g}"],
        "seconds_to_gap": reached,
        "stopped_after": gaps[-1][0],
        "evaluations": len(trace),
        "curve": [(round(s, 3), float(f"{g:.3e}")) for s, g in gaps[:: max(1, len(gaps) // 50)]],
        **judge.result(model.coef_, model.intercept_),
    }


def table(record: dict[str, Any]) -> str:
    """Return the results as a Markdown table."""
    cases = record["cases"]
    own = cases["protosphere"]["seconds"]
    lines = [
        f"| {record['num_samples']:,} × {record['dim']} features, {record['num_classes']} classes "
        "| seconds | protosphere is | relative to optimum | test accuracy |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, case in cases.items():
        seconds = case["seconds"] or case["stopped_after"]
        sign = "" if case["seconds"] else "> "
        ratio = "" if name == "protosphere" else f"**{sign}{seconds / own:.1f}×** as fast"
        gap = case["objective"] / record["optimum"] - 1
        lines.append(
            f"| {name} | {sign}{seconds:.3g} | {ratio} | {gap:.0e} | {case['accuracy']:.2%} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure, print the table and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--features", help="file of features and labels instead of synthetic ones")
    parser.add_argument("--test-features", help="file of features and labels for the accuracy")
    parser.add_argument("--samples", type=int, default=50_000)
    parser.add_argument("--dim", type=int, default=512, help="of synthetic features")
    parser.add_argument("--classes", type=int, default=100, help="of synthetic features")
    parser.add_argument("--collapsed", action="store_true", help="nearly collinear synthetic ones")
    parser.add_argument("--l2", type=float, default=1.0, help="strength of the penalty, 1/C")
    parser.add_argument("--repeats", type=int, default=harness.REPEATS)
    parser.add_argument("--max-seconds", type=float, default=60.0, help="of each scikit-learn fit")
    parser.add_argument("--path", type=int, default=0, help="strengths of a path 1e3 … 1e-3")
    parser.add_argument("--no-write", action="store_true", help="only print")
    options = parser.parse_args()
    synthesize = collapsed_data if options.collapsed else synthetic_data
    data = (
        file_data(options.features, options.test_features, options.samples)
        if options.features
        else synthesize(options.samples, options.dim, options.classes)
    )
    num_classes = int(data.labels.max()) + 1
    judge = Judge(data, options.l2)
    best = fit_logistic_regression(
        judge.features, judge.labels, num_classes=num_classes, l2=options.l2, tol=1e-7
    )
    optimum = float(judge.objective(best.weight, best.bias))
    seconds = []
    for _ in range(options.repeats + 1):  # the first one also loads libraries
        start = time.perf_counter()
        fit = fit_own(data, num_classes, options.l2)
        seconds.append(time.perf_counter() - start)
    cases: dict[str, Any] = {
        "protosphere": {
            "seconds": statistics.median(seconds[1:]),
            "spread": (max(seconds[1:]) - min(seconds[1:])) / statistics.median(seconds[1:]),
            "iterations": fit.iterations,
            "converged": fit.converged,
            **judge.result(fit.weight, fit.bias),
        }
    }
    if options.path:
        grid = torch.logspace(3, -3, options.path, dtype=torch.float64).tolist()
        start = time.perf_counter()
        path = fit_regularization_path(
            judge.features.float(), judge.labels, num_classes=num_classes, grid=grid
        )
        cases["protosphere"]["path"] = {
            "grid": grid,
            "seconds": time.perf_counter() - start,
            "iterations": [one.iterations for one in path],
            "converged": [one.converged for one in path],
        }
    for dtype in (np.float32, np.float64):
        cases[f"scikit-learn, {np.dtype(dtype)}"] = fit_sklearn(
            data, judge, optimum, dtype, options.max_seconds
        )
    record = {
        "num_samples": len(data.labels),
        "dim": data.features.shape[1],
        "num_classes": num_classes,
        "features": options.features or ("collapsed" if options.collapsed else "synthetic"),
        "l2": options.l2,
        "optimum": optimum,
        "optimum_lacks_at_most": judge.bound(best.weight, best.bias),
        "cases": cases,
    }
    print(table(record))
    print(
        record
        if options.no_write
        else f"\nwritten to {harness.write('logistic_regression', record)}"
    )


if __name__ == "__main__":
    main()
