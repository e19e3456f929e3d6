"""Fine-tune a pretrained backbone with every loss: the same number of trials, then several seeds.

Every method gets nine trials: three learning rates times three values of a setting of its own.
They are compared on a fifth of the training images. The best setting is then trained on all
training images with several seeds and evaluated on the test images. Beside them, classifiers on the
frozen features of the same backbone.

``python benchmarks/finetuning.py --data flowers102.npz --weights WEIGHTS.safetensors`` continues
where an earlier call has stopped. With ``--frozen`` it evaluates the classifiers on frozen
features.
"""

import argparse
import json
import multiprocessing
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch._dynamo
from rich.progress import track
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import harness
from protosphere.classifiers import PrototypeClassifier
from protosphere.data.datasets import ImageDataset
from protosphere.evaluation.inference import encode
from protosphere.recipes import build, catalog
from protosphere.recipes.runner import run_recipe
from protosphere.recipes.schema import Recipe, apply_overrides

FAMILY = "flowers102"
LRS = (0.003, 0.01, 0.03)
# The recipe of each method, and the key and values of its own setting.
METHODS: dict[str, tuple[str, str, tuple[float, ...]]] = {
    "ce": ("ce", "optimizer.weight_decay", (0.01, 0.05, 0.2)),
    "ce-smooth": ("ce", "loss.label_smoothing", (0.05, 0.1, 0.2)),
    "normface": ("normface", "loss.temperature", (0.05, 0.1, 0.2)),
    "ntce": ("ntce", "loss.temperature", (0.05, 0.1, 0.2)),
    "nonl": ("nonl", "loss.temperature", (0.05, 0.1, 0.2)),
}
VALIDATION_FRACTION = 0.2
METRICS = (
    "accuracy",
    "nearest_mean_accuracy",
    "ece",
    "adaptive_ece",
    "loss",
    "train_accuracy",
    "nc1_ratio",
    "inter_effective_rank",
    "weight_class_alignment",
    "nc2_simplex",
)
REGULARIZATION = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
Job = dict[str, Any]


def recipe_of(job: Job, options: argparse.Namespace) -> Recipe:
    """Return the recipe of a trial or of a final run."""
    loss, key, _ = METHODS[job["method"]]
    epochs = options.epochs
    overrides = [
        "data.source=arrays",
        f"data.path={options.data}",
        f"data.validation_fraction={0.0 if job['final'] else VALIDATION_FRACTION}",
        f"model.backbone.pretrained={options.weights}",
        f"optimizer.lr={job['lr']}",
        f"{key}={job['value']}",
        f"schedule.epochs={epochs}",
        f"evaluation={{every: {epochs}, metrics: all}}",
        f"checkpoint={{every: {epochs}, keep: 1}}",
        f"seed={job['seed']}",
    ]
    return apply_overrides(catalog.get_recipe(f"{FAMILY}-{loss}"), overrides)


def run_job(arguments: tuple[Job, argparse.Namespace]) -> Job:
    """Train and evaluate one run."""
    job, options = arguments
    torch.set_num_threads(1)
    # CUDA graphs without the compiler: compiling would take longer than one of these runs.
    torch._dynamo.config.disable = True
    recipe = recipe_of(job, options)
    dataset = _dataset(recipe)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        events = list(run_recipe(recipe, Path(folder) / "run", dataset, device=options.device))
    metrics = events[-1].metrics
    assert metrics is not None
    seconds = round(time.perf_counter() - start, 1)
    return {**job, "seconds": seconds, "metrics": {name: metrics[name] for name in METRICS}}


_DATASETS: dict[tuple[str, float, int], ImageDataset] = {}


def _dataset(recipe: Recipe) -> ImageDataset:
    data: Any = recipe.data
    key = (data.path, data.validation_fraction, recipe.seed)
    if key not in _DATASETS:
        _DATASETS[key] = build.load_dataset(recipe)
    return _DATASETS[key]


def run_jobs(jobs: list[Job], done: list[Job], options: argparse.Namespace) -> list[Job]:
    """Run the jobs that are not done yet, several at a time, and save each result at once."""
    keys = ("method", "lr", "value", "final", "seed")

    def identity(job: Job) -> tuple[Any, ...]:
        return tuple(job[key] for key in keys)

    known = {identity(job): job for job in done}
    todo = [(job, options) for job in jobs if identity(job) not in known]
    if todo:
        context = multiprocessing.get_context("spawn")
        with context.Pool(min(options.workers, len(todo))) as pool:
            results = pool.imap_unordered(run_job, todo)
            for result in track(results, total=len(todo), description="runs"):
                done.append(result)
                known[identity(result)] = result
                options.progress.write_text(json.dumps(done))
    return [known[identity(job)] for job in jobs]


def frozen_classifiers(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Class means and logistic regression on the features of the pretrained backbone."""
    job = {"method": "ce", "lr": 0.001, "value": 0.01, "final": True, "seed": 0}
    recipe = recipe_of(job, options)
    dataset = build.load_dataset(recipe)
    train, test = build.create_loaders(recipe, dataset, options.device)
    objective = build.create_objective(
        recipe, num_classes=dataset.train.num_classes, in_channels=3, device=options.device
    )
    start = time.perf_counter()
    fitted, tested = (encode(objective.encoder, loader) for loader in (train, test))
    x, y, test_x, test_y = (
        tensor.cpu().numpy()
        for tensor in (fitted.features, fitted.labels, tested.features, tested.labels)
    )
    encoding = time.perf_counter() - start
    rows = []

    def record(name: str, classifier: Any, seconds: float) -> None:
        accuracy = float(np.mean(classifier.predict(test_x) == test_y))
        rows.append({"classifier": name, "accuracy": accuracy, "seconds": round(seconds, 3)})

    start = time.perf_counter()
    means = PrototypeClassifier().fit(x, y)
    record("class means on the sphere", means, time.perf_counter() - start)
    # The regularization is chosen by as many trials as the settings of the methods.
    held = np.arange(len(y)) % 5 == 0
    scores = {}
    for c in REGULARIZATION:
        trial = _logistic_regression(c).fit(x[~held], y[~held])
        scores[c] = float(np.mean(trial.predict(x[held]) == y[held]))
    best = max(scores, key=lambda c: scores[c])
    start = time.perf_counter()
    linear = _logistic_regression(best).fit(x, y)
    record(f"logistic regression, C = {best:g}", linear, time.perf_counter() - start)
    return [{**row, "encoding_seconds": round(encoding, 2)} for row in rows]


def _logistic_regression(c: float) -> Any:
    return make_pipeline(StandardScaler(), LogisticRegression(C=c, max_iter=2000))


def summary(runs: list[Job]) -> dict[str, dict[str, float]]:
    """Return mean and standard deviation of each metric over the seeds."""
    values = {name: [run["metrics"][name] for run in runs] for name in METRICS}
    return {
        name: {
            "mean": round(statistics.mean(numbers), 6),
            "std": round(statistics.stdev(numbers), 6) if len(numbers) > 1 else 0.0,
        }
        for name, numbers in values.items()
    }


TITLES = {
    "ce": "CE",
    "ce-smooth": "CE with label smoothing",
    "normface": "NormFace",
    "ntce": "NTCE",
    "nonl": "NONL",
}


def table(record: dict[str, Any]) -> str:
    """Return the results on the test images as a Markdown table."""
    lines = [
        "| fine-tuned with | chosen settings | seeds | test accuracy | nearest class mean "
        "| calibration error | within/between-class variance | effective rank of class means |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for method, result in record["methods"].items():
        key = METHODS[method][1]
        test = result["test"]
        accuracy, nearest, ece = (
            f"{100 * test[name]['mean']:.1f} ± {100 * test[name]['std']:.1f}%"
            for name in ("accuracy", "nearest_mean_accuracy", "ece")
        )
        settings = f"lr {result['lr']:g}, {key.split('.')[1].replace('_', ' ')} {result[key]:g}"
        cells = [settings, str(len(result["runs"])), accuracy, nearest, ece]
        cells += [f"{test['nc1_ratio']['mean']:.3f}"]
        cells += [f"{test['inter_effective_rank']['mean']:.1f}"]
        lines.append(f"| {TITLES[method]} | {' | '.join(cells)} |")
    return "\n".join(lines)


def frozen_table(record: dict[str, Any]) -> str:
    """Return the results of classifiers on frozen features as a Markdown table."""
    lines = [
        "| classifier on frozen features | test accuracy | seconds to fit | seconds to encode |",
        "|---|---:|---:|---:|",
    ]
    lines += [
        f"| {row['classifier']} | {100 * row['accuracy']:.1f}% | {row['seconds']:.2f} "
        f"| {row['encoding_seconds']:.0f} |"
        for row in record["rows"]
    ]
    return "\n".join(lines)


def main() -> None:
    """Run the trials, the final runs and the frozen classifiers, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help=".npz file of the images")
    parser.add_argument("--weights", type=Path, required=True, help="pretrained weights")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=4, help="runs at a time")
    parser.add_argument("--progress", type=Path, default=Path("finetuning-progress.json"))
    parser.add_argument("--frozen", action="store_true", help="only classifiers on frozen features")
    options = parser.parse_args()
    if options.frozen:
        print(
            f"written to {harness.write('frozen_features', {'rows': frozen_classifiers(options)})}"
        )
        return
    done: list[Job] = json.loads(options.progress.read_text()) if options.progress.exists() else []
    trials = [
        {"method": method, "lr": lr, "value": value, "final": False, "seed": 0}
        for method, (_, _, values) in METHODS.items()
        for lr in LRS
        for value in values
    ]
    finished = run_jobs(trials, done, options)
    chosen = {
        method: max(
            (trial for trial in finished if trial["method"] == method),
            key=lambda trial: (trial["metrics"]["accuracy"], -trial["metrics"]["loss"]),
        )
        for method in METHODS
    }
    finals = [
        {**{key: best[key] for key in ("method", "lr", "value")}, "final": True, "seed": seed}
        for best in chosen.values()
        for seed in range(1, options.seeds + 1)
    ]
    final_runs = run_jobs(finals, done, options)
    methods = {
        method: {
            "lr": best["lr"],
            METHODS[method][1]: best["value"],
            "validation_accuracy": best["metrics"]["accuracy"],
            "test": summary([run for run in final_runs if run["method"] == method]),
            "runs": [run for run in final_runs if run["method"] == method],
        }
        for method, best in chosen.items()
    }
    record = {
        "epochs": options.epochs,
        "trials_per_method": len(finished) // len(METHODS),
        "methods": methods,
        "trials": finished,
    }
    print(f"written to {harness.write('finetuning', record)}")


if __name__ == "__main__":
    main()
