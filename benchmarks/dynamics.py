"""Training dynamics of the losses on CIFAR-100: gradients, lengths and effective learning rates.

ResNet-18, batches of 512, 40 epochs, with the settings that the sweeps of results/sweeps chose, but
without mixup, since mixed images have no single class. After the first epoch and every fifth one
the gradients of eight training batches are measured, the same augmented images each time, with the
weights that are trained (not their moving average) and batch norm in training mode. Training is the
same as without it, bit for bit on a CPU. The measurements are records of the kind "dynamics" in
metrics.jsonl of the run. Runs that were interrupted continue; losses that are among the results of
a GPU are not run again.

    python benchmarks/dynamics.py DATA --runs RUNS [--seconds 500]
    python benchmarks/dynamics.py DATA --runs RUNS --collect

DATA holds cifar100.npz with x_train, y_train, x_test and y_test. ``--collect`` adds the complete
runs to results/dynamics.json, those that were trained on a CPU to results/dynamics-cpu.json. On a
CPU a network with fewer pixels per layer takes 20 minutes for each loss:

    python benchmarks/dynamics.py DATA --runs RUNS --device cpu --workers 1 \\
        --set model.backbone.stem=imagenet --set schedule.epochs=30 \\
        --set training.precision=fp32 --set training.compile=false
"""

import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import harness
from jobs import Job, describe_machine, is_trained, main, write_results
from protosphere.classifiers import class_means
from protosphere.data.loaders import Loader
from protosphere.recipes import registry, reports, runner
from protosphere.runs import RunFolder
from protosphere.training import Objective, Progress, TrainConfig
from sweeps import LOSSES, chosen_settings, overrides
from table_lines import table_line

RESULTS = harness.RESULTS / "dynamics.json"
METHODS = LOSSES
NUM_BATCHES = 8
# Besides the first epoch. A measurement takes as long as one or two epochs.
EVERY = 5
SHOWN_EPOCHS = (1, 10, 20, 30, 40)
# Columns of the results in the table: title, mean and, if there is one, standard deviation.
QUANTITIES = (
    ("training accuracy on the batches", "accuracy", None),
    ("accuracy on the validation images", "validation_accuracy", None),
    ("effective rank of class means", "inter_effective_rank", None),
    ("‖gradient‖, backbone", "backbone_gradient_norm", None),
    ("‖gradient‖, head", "head_gradient_norm", None),
    ("‖weights‖, backbone", "backbone_weight_norm", None),
    ("‖weights‖, head", "head_weight_norm", None),
    ("length of features", "feature_length", "feature_length_std"),
    ("length of prototypes", "prototype_length", "prototype_length_std"),
    ("relative update of a convolution, lr · ‖g‖/‖w‖", "conv_relative_update", None),
    ("relative update of a prototype, lr · ‖g‖/‖w‖", "prototype_relative_update", None),
    ("effective learning rate of a convolution, lr/‖w‖²", "conv_effective_lr", None),
    ("effective learning rate of a prototype, lr/‖w‖²", "prototype_effective_lr", None),
    ("cosine of prototype and class mean", "prototype_mean_cosine", None),
    ("fraction of the gradient from correct samples", "correct_gradient_fraction", None),
    ("effective fraction of samples", "effective_sample_fraction", None),
)


class BatchGradients(NamedTuple):
    """What one batch yields.

    Attributes:
        loss: The loss.
        features: Features as the head receives them, in float32 or wider.
        labels: Class index of each sample.
        correct: Whether the head classifies each sample correctly.
        feature_norms: Norm of the gradient with respect to the features of each sample.
        parameters: Gradient of each parameter, by the id of the parameter.
    """

    loss: float
    features: Tensor
    labels: Tensor
    correct: Tensor
    feature_norms: Tensor
    parameters: dict[int, Tensor]


def jobs() -> list[Job]:
    """Return all jobs, cross-entropy first."""
    return [_job(method) for method in METHODS]


def missing_jobs() -> list[Job]:
    """Return the jobs whose measurements are not among the results."""
    known = {row["method"] for row in _known_results(RESULTS)["rows"]}
    return [_job(method) for method in METHODS if method not in known]


def _known_results(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.exists() else {"rows": []}


def _job(method: str) -> Job:
    settings = (
        f"name=cifar100-dynamics-{method}",
        *overrides(),
        *chosen_settings(method),
        "augmentation.mixing=null",
    )
    recipe = f"cifar100-strong-{method}"
    return Job("dynamics", _run_name(method), recipe, "cifar100", settings, prepare=record)


def _run_name(method: str) -> str:
    return f"dynamics-{method}"


def record() -> None:
    """Let runs of this process write records of the kind "dynamics"."""
    recorder = Recorder(runner.train, reports.log_training)
    runner.train, reports.log_training = recorder.train, recorder.log


class Recorder:
    """Measures gradients at the end of some epochs and logs them beside the record of training.

    Args:
        train: The training loop.
        log_training: The function that writes the record of an epoch of training.
    """

    def __init__(
        self, train: Callable[..., Iterator[Progress]], log_training: Callable[..., None]
    ) -> None:
        self._train, self._log_training = train, log_training
        self._measured: dict[str, float] = {}

    def train(
        self, objective: Objective, loader: Loader, config: TrainConfig, **options: Any
    ) -> Iterator[Progress]:
        """Train as the training loop does, and measure before the report of an epoch."""
        check(config)
        batches: list[tuple[Tensor, Tensor]] = []
        for progress in self._train(objective, loader, config, **options):
            self._measured = {}
            epoch = round(progress.epoch)
            if progress.at_epoch_end and (epoch == 1 or epoch % EVERY == 0):
                with undisturbed(objective, loader.device):
                    batches = batches or prepare_batches(loader, config)
                    self._measured = measure(objective, batches, config, lr=progress.lr)
            yield progress

    def log(self, folder: RunFolder, progress: Progress, device: torch.device) -> None:
        """Write the record of training and what was measured."""
        self._log_training(folder, progress, device)
        if self._measured:
            identity = {"kind": "dynamics", "step": progress.step, "epoch": round(progress.epoch)}
            folder.log(identity | {"lr": progress.lr} | self._measured)


def check(config: TrainConfig) -> None:
    """Raise ValueError if the gradients of a training step cannot be measured."""
    if config.mixing is not None:
        raise ValueError("mixing must be None, since mixed images have no single class")
    if config.precision == "fp16":
        raise ValueError("precision must be fp32 or bf16, got fp16")


@contextmanager
def undisturbed(objective: Objective, device: torch.device) -> Iterator[None]:
    """Restore all buffers and the random state at exit; buffers keep their memory.

    Args:
        objective: The objective that is trained.
        device: Device that trains.
    """
    buffers = [(buffer, buffer.clone()) for buffer in objective.buffers()]
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        try:
            yield
        finally:
            with torch.no_grad():
                for buffer, saved in buffers:
                    buffer.copy_(saved)


def prepare_batches(loader: Loader, config: TrainConfig) -> list[tuple[Tensor, Tensor]]:
    """Return the augmented training batches that are measured, the same for all epochs and losses.

    Args:
        loader: Loader of the training images.
        config: Settings of the run.
    """
    torch.manual_seed(config.seed)
    batches = loader.sample_batches(config.batch_size, num_batches=NUM_BATCHES, seed=config.seed)
    return [loader.prepare(*batch) for batch in batches]


def measure(
    objective: Objective,
    batches: Sequence[tuple[Tensor, Tensor]],
    config: TrainConfig,
    *,
    lr: float,
) -> dict[str, float]:
    """Return gradients, lengths and effective learning rates of an objective in training mode.

    Gradients are those of the loss, without weight decay. Norms of gradients are means over the
    batches of the norm for one batch, which is what a step uses. Buffers such as the statistics of
    batch norm are changed; ``grad`` of the parameters is not.

    Args:
        objective: The objective.
        batches: Images, augmented and normalized, and their labels.
        config: Settings of the run: precision and multipliers of the learning rate.
        lr: Learning rate before the multipliers of parameter groups.
    """
    found = [_differentiate(objective, *batch, config.precision) for batch in batches]
    scales = {
        id(parameter): group.lr_scale
        for group in config.parameter_groups.split(objective)
        for parameter in group.parameters
    }
    prototypes = objective.head.prototypes
    lengths = torch.cat([one.features for one in found]).norm(dim=1)
    convolutions = [
        part.weight
        for part in objective.encoder.modules()
        if isinstance(part, nn.Conv2d) and part.weight.requires_grad
    ]
    values = {
        "batch_loss": statistics.fmean(one.loss for one in found),
        "accuracy": _mean([one.correct.double().mean() for one in found]),
        "feature_length": float(lengths.mean()),
        "feature_length_std": float(lengths.std()),
        "prototype_length": float(prototypes.detach().norm(dim=1).mean()),
        "prototype_length_std": float(prototypes.detach().norm(dim=1).std()),
        "prototype_mean_cosine": _prototype_mean_cosine(found, prototypes.detach()),
        "correct_gradient_fraction": _mean(
            [correct_gradient_fraction(one.feature_norms, one.correct) for one in found]
        ),
        "effective_sample_fraction": _mean(
            [effective_sample_fraction(one.feature_norms) for one in found]
        ),
    }
    for name, part in (("backbone", objective.encoder), ("head", objective.head)):
        assert isinstance(part, nn.Module)
        parameters = [p for p in part.parameters() if p.requires_grad]
        norms = [
            torch.stack([one.parameters[id(p)].norm() for p in parameters]).norm() for one in found
        ]
        values[f"{name}_gradient_norm"] = _mean(norms)
        weight_norms = torch.stack([p.detach().norm() for p in parameters])
        values[f"{name}_weight_norm"] = float(weight_norms.norm())
    values |= _scale_invariant(
        "conv",
        [lr * scales[id(weight)] for weight in convolutions],
        [_mean([one.parameters[id(weight)].norm() for one in found]) for weight in convolutions],
        [float(weight.detach().norm()) for weight in convolutions],
    )
    gradients = torch.stack([one.parameters[id(prototypes)].norm(dim=1) for one in found]).mean(0)
    values |= _scale_invariant(
        "prototype",
        [lr * scales[id(prototypes)]] * len(prototypes),
        gradients.tolist(),
        prototypes.detach().norm(dim=1).tolist(),
    )
    return values


def _scale_invariant(
    name: str, lrs: Sequence[float], gradients: Sequence[float], weights: Sequence[float]
) -> dict[str, float]:
    """Return the medians of lr · ‖g‖/‖w‖ and lr/‖w‖² over weights whose scale has no effect."""
    rows = list(zip(lrs, gradients, weights, strict=True))
    updates = [lr * gradient / weight for lr, gradient, weight in rows]
    return {
        f"{name}_relative_update": statistics.median(updates),
        f"{name}_effective_lr": statistics.median(lr / weight**2 for lr, _, weight in rows),
    }


def correct_gradient_fraction(norms: Tensor, correct: Tensor) -> Tensor:
    """Return which fraction of the gradient comes from correctly classified samples.

    Args:
        norms: Norm of the gradient with respect to the features of each sample.
        correct: Whether each sample is classified correctly.
    """
    return norms[correct].sum() / norms.sum()


def effective_sample_fraction(norms: Tensor) -> Tensor:
    """Return the effective number of samples, (Σ|g|)²/Σ|g|², as a fraction of the batch.

    It is 1 if all samples contribute equally and 1/M if one of M samples contributes everything.

    Args:
        norms: Norm of the gradient with respect to the features of each sample.
    """
    return norms.sum() ** 2 / norms.square().sum() / len(norms)


def _differentiate(
    objective: Objective, images: Tensor, labels: Tensor, precision: str
) -> BatchGradients:
    parameters = [p for p in objective.parameters() if p.requires_grad]
    with torch.autocast(images.device.type, torch.bfloat16, enabled=precision == "bf16"):
        features = objective.encoder(images)
        loss = objective.loss(features, objective.head, labels)
        with torch.no_grad():
            predictions = objective.head(features).argmax(1)
    # The gradients of a captured graph stay where they are: nothing is accumulated.
    gradient, *others = torch.autograd.grad(loss, [features, *parameters])
    dtype = torch.promote_types(features.dtype, torch.float32)
    return BatchGradients(
        float(loss.detach()),
        features.detach().to(dtype),
        labels,
        predictions == labels,
        gradient.to(dtype).norm(dim=1),
        {id(p): one.detach() for p, one in zip(parameters, others, strict=True)},
    )


def _prototype_mean_cosine(found: list[BatchGradients], prototypes: Tensor) -> float:
    """Return the mean cosine of prototypes and means of unit features, of classes with samples."""
    features = torch.cat([one.features for one in found])
    labels = torch.cat([one.labels for one in found])
    means = class_means(features, labels, num_classes=len(prototypes)).means
    return float(torch.cosine_similarity(prototypes.to(means), means, dim=1).nanmean())


def _mean(values: Sequence[Tensor]) -> float:
    return float(torch.stack(list(values)).double().mean())


def collect(runs: Path) -> None:
    """Add the complete runs to the results of a GPU or to those of a CPU."""
    found = {method: runs / _run_name(method) for method in METHODS}
    folders = {method: folder for method, folder in found.items() if is_trained(folder)}
    machines = [json.loads((path / "machine.json").read_text()) for path in folders.values()]
    if len({machine["device"] for machine in machines}) != 1:
        raise SystemExit(f"{runs} must have complete runs of this benchmark, all of one device")
    on_cpu = machines[0]["device"] == "cpu"
    path = RESULTS.with_stem(f"{RESULTS.stem}-cpu") if on_cpu else RESULTS
    rows = [row for row in _known_results(path)["rows"] if row["method"] not in folders]
    rows += [row for method in folders for row in _read_rows(folders[method], method)]
    rows.sort(key=lambda row: METHODS.index(row["method"]))
    results = write_results(path, "dynamics", machines[-1], rows)
    print(table(results), f"written to {path}", sep="\n\n")


def _read_rows(folder: Path, method: str) -> list[dict[str, Any]]:
    """Return a row per epoch: measurements, training loss, validation accuracy and rank."""
    rows: dict[int, dict[str, Any]] = {}
    for entry in RunFolder(folder).records():
        row = rows.setdefault(entry["epoch"], {"method": method, "epoch": entry["epoch"]})
        if entry["kind"] == "train":
            row["train_loss"] = entry["loss"]
        elif entry["kind"] == "evaluation":
            row["validation_accuracy"] = entry["accuracy"]
            row["inter_effective_rank"] = entry["inter_effective_rank"]
        elif entry["kind"] == "dynamics":
            row |= {name: value for name, value in entry.items() if name != "kind"}
    return [rows[epoch] for epoch in sorted(rows)]


def table(results: dict[str, Any]) -> str:
    """Return the measured values of some epochs as a Markdown table."""
    rows = {(row["method"], row["epoch"]): row for row in results["rows"]}
    methods = [method for method in METHODS if any(key[0] == method for key in rows)]
    epochs = [epoch for epoch in SHOWN_EPOCHS if any(key[1] == epoch for key in rows)]
    titles = " | ".join(f"epoch {epoch}" for epoch in epochs)
    lines = [f"| | loss | {titles} |", f"|---|---|{'---:|' * len(epochs)}"]
    for title, name, deviation in QUANTITIES:
        for method in methods:
            cells = [_cell(rows.get((method, epoch), {}), name, deviation) for epoch in epochs]
            first = title if method == methods[0] else ""
            lines.append(table_line(first, registry.LOSSES[method].title, *cells))
    return "\n".join(lines)


def _cell(row: dict[str, Any], name: str, deviation: str | None) -> str:
    spread = f" ± {row[deviation]:.2g}" if deviation in row else ""
    return f"{row[name]:.3g}{spread}" if name in row else "–"


def source(results: dict[str, Any]) -> str:
    """Return the line beneath the table."""
    on_cpu = results["machine"]["device"] == "cpu"
    detail = "one seed" if on_cpu else "several runs at a time on the GPU, one seed"
    return describe_machine(results["machine"], detail)


if __name__ == "__main__":
    main(__doc__, missing_jobs, collect)
