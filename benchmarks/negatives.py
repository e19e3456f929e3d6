"""Negatives of NTCE and NONL on CIFAR-100: of a part of the batch, of the batch, and of a queue.

ResNet-18, batches of 512, 60 epochs. With local negatives the encoder sees the whole batch, but the
loss is the mean of the losses of parts of 64 samples: what eight processes compute that exchange
gradients and no negatives. Runs that were interrupted continue.

    python benchmarks/negatives.py DATA --runs RUNS [--group sizes ...] [--seconds 400]
    python benchmarks/negatives.py DATA --runs RUNS --collect

DATA holds cifar100.npz with x_train, y_train, x_test and y_test. The groups are, in their order,
baselines, sizes, rescaled, start and second-seed. ``--collect`` adds the complete runs to
results/negatives.json.
"""

import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import harness
from jobs import Job, is_trained, main, write_results
from protosphere.recipes import registry
from protosphere.recipes.build import create_loaders, create_objective
from protosphere.recipes.loading import load_run
from protosphere.runs import RunFolder
from protosphere.training.objective import Loss, Objective

RESULTS = harness.RESULTS / "negatives.json"
EPOCHS = 60
PART_SIZE = 64
LOSSES = ("nonl", "ntce")
METRICS = (
    "accuracy",
    "nearest_mean_accuracy",
    "inter_effective_rank",
    "weight_class_alignment",
    "intra_effective_rank",
    "nc1_ratio",
)
# Batches that a cosine of gradients is the mean of.
_NUM_BATCHES = 4


class Negatives(NamedTuple):
    """Which samples are negatives.

    Attributes:
        name: Name in run folders.
        title: Name in the table.
        overrides: Values of ``--set``.
        part_size: Number of samples of the parts that the loss is computed on; None for the batch.
    """

    name: str
    title: str
    overrides: tuple[str, ...] = ()
    part_size: int | None = None

    def prepare(self, loss: str) -> Callable[[], None] | None:
        """Return what changes a loss in the process of a job; None if nothing does."""
        return None if self.part_size is None else partial(divide_loss, loss, self.part_size)


def _queue(
    size: int, *, start_epoch: int = 10, name: str | None = None, rescale: bool = False
) -> Negatives:
    title = f"queue of {size:,}, from epoch {start_epoch}" if start_epoch else f"queue of {size:,}"
    keys = f"size: {size}, start_epoch: {start_epoch}, rescale: {str(rescale).lower()}"
    return Negatives(
        name or f"queue-{size}",
        f"{title}, rescaled" if rescale else title,
        (f"loss.queue={{{keys}}}",),
    )


LOCAL = Negatives(f"local-{PART_SIZE}", f"local, {PART_SIZE}", part_size=PART_SIZE)
GLOBAL = Negatives("global", "global, 512")
QUEUE = _queue(4096)
SIZES = (_queue(1024), _queue(16384))
STARTS = tuple(_queue(4096, start_epoch=s, name=f"queue-4096-start-{s}") for s in (0, 30))
RESCALED = tuple(_queue(s, name=f"rescaled-queue-{s}", rescale=True) for s in (4096, 1024, 16384))
ALL = (
    LOCAL,
    GLOBAL,
    *sorted((QUEUE, *SIZES), key=lambda queue: int(queue.name[6:])),
    *STARTS,
    *sorted(RESCALED, key=lambda queue: int(queue.name[15:])),
)


def jobs() -> list[Job]:
    """Return all jobs, the most important first."""
    groups = (
        ("baselines", 42, (GLOBAL, LOCAL, QUEUE)),
        ("sizes", 42, SIZES),
        ("rescaled", 42, RESCALED),
        ("start", 42, STARTS),
        ("second-seed", 43, (GLOBAL, *RESCALED, QUEUE, *SIZES, *STARTS, LOCAL)),
    )
    return [
        _job(group, loss, negatives, seed)
        for group, seed, settings in groups
        for loss in LOSSES
        for negatives in settings
    ]


def _job(group: str, loss: str, negatives: Negatives, seed: int) -> Job:
    schedule = (
        f"schedule.epochs={EPOCHS}",
        f"evaluation={{every: {EPOCHS}, metrics: all}}",
        f"checkpoint={{every: {EPOCHS // 4}, keep: 1}}",
    )
    return Job(
        group,
        _run_name(loss, negatives, seed),
        f"cifar100-{loss}",
        "cifar100",
        (*schedule, f"seed={seed}", *negatives.overrides),
        prepare=negatives.prepare(loss),
        finish=measure_gradients if negatives is GLOBAL else None,
    )


def _run_name(loss: str, negatives: Negatives, seed: int) -> str:
    return f"negatives-{loss}-{negatives.name}-{seed}"


class LossOfParts(nn.Module):
    """The mean of the losses of equal parts of a batch.

    Args:
        loss: Loss, called with features, head and labels.
        part_size: Number of samples of a part.
    """

    def __init__(self, loss: Loss, part_size: int) -> None:
        super().__init__()
        self.loss, self.part_size = loss, part_size

    def forward(self, features: Tensor, head: nn.Module, labels: Tensor) -> Tensor:
        """Return the mean of the losses of the parts."""
        parts = zip(features.split(self.part_size), labels.split(self.part_size), strict=True)
        return torch.stack([self.loss(part, head, own) for part, own in parts]).mean()


def divide_loss(name: str, part_size: int) -> None:
    """Let recipes of this process compute a loss on parts of a batch.

    Args:
        name: Name of the loss.
        part_size: Number of samples of a part.
    """
    entry = registry.LOSSES[name]
    registry.LOSSES[name] = replace(
        entry, loss=lambda settings, group: LossOfParts(entry.loss(settings, group), part_size)
    )


def measure_gradients(folder: Path, device: str) -> None:
    """Write the cosine of local and global gradients, before training and after it.

    Args:
        folder: Folder of a complete run.
        device: Device to compute on.
    """
    run = load_run(folder, device=device)
    recipe, dataset = run.recipe, run.dataset("test")
    loader, _ = create_loaders(recipe, dataset, device)
    new = create_objective(
        recipe, num_classes=len(run.class_names), in_channels=run.channels, device=device
    )
    batches = loader.batches(recipe.training.batch_size, seed=recipe.seed, epoch=EPOCHS)
    prepared = [loader.prepare(*batch) for batch in itertools.islice(batches, _NUM_BATCHES)]
    cosines = {}
    for when, objective in (("before", new), ("after", run.objective)):
        values = [gradient_cosines(objective, *batch) for batch in prepared]
        cosines[f"features_{when}"] = sum(value[0] for value in values) / len(values)
        cosines[f"parameters_{when}"] = sum(value[1] for value in values) / len(values)
    (folder / "gradients.json").write_text(json.dumps(cosines) + "\n")


def gradient_cosines(objective: Objective, images: Tensor, labels: Tensor) -> tuple[float, float]:
    """Return the cosine between the gradients with local negatives and with those of the batch.

    Args:
        objective: The objective; batch norm uses the statistics of the batch.
        images: Images of the batch.
        labels: Class index of each image.

    Returns:
        The cosine of the gradients of the features, and of those of all parameters.
    """
    objective.train()
    features = objective.encoder(images)
    inputs = [features, *(p for p in objective.parameters() if p.requires_grad)]
    local, whole = (
        torch.autograd.grad(loss(features, objective.head, labels), inputs, retain_graph=True)
        for loss in (LossOfParts(objective.loss, PART_SIZE), objective.loss)
    )
    flat = [
        torch.cat([gradient.flatten() for gradient in gradients])
        for gradients in (local[:1], whole[:1], local[1:], whole[1:])
    ]
    return (
        float(torch.cosine_similarity(flat[0], flat[1], dim=0)),
        float(torch.cosine_similarity(flat[2], flat[3], dim=0)),
    )


def collect(runs: Path) -> None:
    """Add the complete runs to the results."""
    old = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"rows": []}
    known = {row["run"]: row for row in old["rows"]}
    machine, rows = old.get("machine"), []
    for loss, negatives, seed in itertools.product(LOSSES, ALL, (42, 43)):
        folder = runs / _run_name(loss, negatives, seed)
        if (folder / "done").exists() and is_trained(folder):
            machine = json.loads((folder / "machine.json").read_text())
            rows.append(_row(folder, loss, negatives, seed))
        elif folder.name in known:
            rows.append(known[folder.name])
    record = write_results(RESULTS, "negatives", machine, rows)
    print(table(record), source(record), f"written to {RESULTS}", sep="\n\n")


def _row(folder: Path, loss: str, negatives: Negatives, seed: int) -> dict[str, Any]:
    run = RunFolder(folder)
    evaluation = run.last_evaluation()
    assert evaluation is not None
    data = json.loads((folder / "data.json").read_text())
    speeds = [r["images_per_second"] for r in run.records() if r["kind"] == "train"]
    row = {
        "run": folder.name,
        "loss": loss,
        "negatives": negatives.title,
        "seed": seed,
        "epochs": evaluation["epoch"],
        **{name: evaluation[name] for name in METRICS},
        "seconds": round(sum(data["num_train"] / speed for speed in speeds), 1),
    }
    gradients = folder / "gradients.json"
    if gradients.exists():
        row["gradient_cosine_of_local"] = json.loads(gradients.read_text())
    return row


def table(record: dict[str, Any]) -> str:
    """Return the runs as a Markdown table, the seeds of a setting in one row."""
    lines = [
        "| loss | negatives | seeds | test accuracy | nearest class mean "
        "| effective rank of class means (of 99) | ‖prototype − class mean‖² "
        "| effective rank within classes |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    settings = dict.fromkeys((row["loss"], row["negatives"]) for row in record["rows"])
    for loss, negatives in settings:
        rows = [
            row for row in record["rows"] if (row["loss"], row["negatives"]) == (loss, negatives)
        ]
        cells = [
            _values(rows, "accuracy", ".2f", 100) + "%",
            _values(rows, "nearest_mean_accuracy", ".2f", 100) + "%",
            _values(rows, "inter_effective_rank", ".1f"),
            _values(rows, "weight_class_alignment", ".3f"),
            _values(rows, "intra_effective_rank", ".1f"),
        ]
        lines.append(f"| {loss.upper()} | {negatives} | {len(rows)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _values(rows: Sequence[dict[str, Any]], name: str, form: str, factor: float = 1) -> str:
    return ", ".join(f"{factor * row[name]:{form}}" for row in rows)


def source(record: dict[str, Any]) -> str:
    """Return the line beneath the table: how the runs were trained, and local gradients."""
    machine = record["machine"]
    cosines = {
        row["loss"]: row["gradient_cosine_of_local"]
        for row in record["rows"]
        if "gradient_cosine_of_local" in row and row["seed"] == 42
    }
    versions = machine["versions"]
    parts = [f"{machine['device']}, torch {versions['torch']}, several runs at a time on the GPU"]
    for loss, value in cosines.items():
        cells = [
            f"{value[f'{kind}_before']:.2f} before training and {value[f'{kind}_after']:.2f} after "
            f"it for {kind}"
            for kind in ("features", "parameters")
            if f"{kind}_before" in value
        ]
        parts.append(
            f"{loss.upper()}: cosine of the gradients with local negatives and with those of the "
            f"batch {', '.join(cells)}"
        )
    return "; ".join([*parts, f"commit {record['commit']}."])


if __name__ == "__main__":
    main(__doc__, jobs, collect)
