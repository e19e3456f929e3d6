"""Variants of NTCE on CIFAR-100, each one change of the settings that its sweep chose.

The sweep of a loss, for results/sweeps/LOSS, is

    protosphere sweep cifar100-strong-LOSS --trials 8 --seed 15 --out SWEEP \\
        --set training.batch_size=512 --set schedule.epochs=40 \\
        --set "evaluation={every: 10, metrics: cheap}" --set "checkpoint={every: 10, keep: 1}" \\
        --over optimizer.lr=log:0.1..0.5 --over optimizer.weight_decay=log:0.0003..0.002 \\
        --over "augmentation.mixing=null,{name: mixup, alpha: 0.2}" \\
        --over training.ema_decay=null,0.999 \\
        --over loss.temperature=log:0.05..0.25      # ce: loss.label_smoothing=0..0.2

The sweeps of commit 495c6306ed1e had the seed 4 and other ranges: lr log:0.05..0.4, weight_decay
log:0.0002..0.002 and temperature log:0.05..0.3; sweep.json has the seed and the ranges of a sweep.

ResNet-18, batches of 512, 40 epochs, evaluated on the validation images of the sweeps; the settings
are those of results/sweeps. Runs that were interrupted continue.

    python benchmarks/variants.py DATA --runs RUNS [--seconds 400]
    python benchmarks/variants.py DATA --runs RUNS --collect

DATA holds cifar100.npz with x_train, y_train, x_test and y_test. ``--collect`` adds the complete
runs to results/variants.json.
"""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import harness
from jobs import Job, describe_machine, is_trained, main, write_results
from protosphere.losses import (
    CrossEntropyLoss,
    NONLLoss,
    NormFaceLoss,
    NTCELoss,
    nonl_loss,
    ntce_loss,
)
from protosphere.recipes import registry
from protosphere.runs import RunFolder

RESULTS = harness.RESULTS / "variants.json"
SWEEPS = harness.RESULTS / "sweeps"
SWEPT = ("ce", "normface", "ntce", "nonl", "normface-nonl")
# The variant with the settings of a loss until it has a sweep of its own.
WITHOUT_SWEEP = {"normface-nonl": "mean-repeated"}
EPOCHS = 40
# Training images without the validation images, in batches of 512.
STEPS = EPOCHS * math.ceil(45_000 / 512)
METRICS = (
    "accuracy",
    "nearest_mean_accuracy",
    "train_accuracy",
    "inter_effective_rank",
    "weight_class_alignment",
    "nc1_ratio",
)


class Variant(NamedTuple):
    """One change.

    Attributes:
        name: Name in run folders.
        title: What is changed.
        overrides: Values of ``--set`` after those of the sweep.
        prepare: Called in the process of the job before it trains.
        base: Loss whose sweep the settings come from.
    """

    name: str
    title: str
    overrides: tuple[str, ...] = ()
    prepare: Callable[[], None] | None = None
    base: str = "ntce"


class SumOfLosses(nn.Module):
    """The mean of several losses of the same head.

    Args:
        losses: Losses, called with features, head and labels.
    """

    def __init__(self, *losses: nn.Module) -> None:
        super().__init__()
        self.losses = nn.ModuleList(losses)

    def forward(self, features: Tensor, head: nn.Module, labels: Tensor) -> Tensor:
        """Return the mean of the losses."""
        return torch.stack([loss(features, head, labels) for loss in self.losses]).mean()


class CrossEntropyAndNONL(nn.Module):
    """The mean of cross-entropy of a linear classifier and NONL with the weights as prototypes.

    Args:
        label_smoothing: Label smoothing of cross-entropy.
        temperature: Temperature of NONL.
    """

    def __init__(self, label_smoothing: float, temperature: float) -> None:
        super().__init__()
        self.cross_entropy = CrossEntropyLoss(label_smoothing=label_smoothing)
        self.temperature = temperature

    def forward(self, features: Tensor, head: Any, labels: Tensor) -> Tensor:
        """Return the mean of the losses."""
        nonl = nonl_loss(features, head.prototypes, labels, temperature=self.temperature)
        return (self.cross_entropy(features, head, labels) + nonl) / 2


class MarginAndNONL(nn.Module):
    """The mean of NormFace with a margin and NONL.

    Args:
        margin: Margin that is subtracted from the cosine of the right class.
    """

    def __init__(self, margin: float) -> None:
        super().__init__()
        self.normface, self.nonl = NormFaceLoss(margin=margin), NONLLoss()

    def forward(self, features: Tensor, head: Any, labels: Tensor) -> Tensor:
        """Return the mean of the losses."""
        return (self.normface(features, head, labels) + self.nonl(features, head, labels)) / 2


class ScheduledNTCE(nn.Module):
    """NTCE with a temperature that falls to that of the head along a half cosine.

    Args:
        start: Temperature of the first step.
        steps: Number of steps after which it is that of the head.
    """

    def __init__(self, start: float, steps: int) -> None:
        super().__init__()
        self.start, self.steps = start, steps
        self.register_buffer("step", torch.zeros(()))

    def forward(self, features: Tensor, head: Any, labels: Tensor) -> Tensor:
        """Return the loss and count the step."""
        progress = (self.step / self.steps).clamp(max=1)
        end = head.temperature
        temperature = end + (self.start - end) * (1 + torch.cos(math.pi * progress)) / 2
        if self.training:
            self.step += 1
        return ntce_loss(features, head.prototypes, labels, temperature=temperature)


def _replace_loss(name: str, create: Callable[[], nn.Module]) -> None:
    registry.LOSSES[name] = replace(registry.LOSSES[name], loss=lambda *_: create())


def use_both_directions(name: str) -> None:
    """Let recipes of this process add NormFace to NTCE or NONL."""
    other = NTCELoss if name == "ntce" else NONLLoss
    _replace_loss(name, lambda: SumOfLosses(NormFaceLoss(), other()))


def use_schedule(start: float) -> None:
    """Let NTCE of this process start at another temperature."""
    _replace_loss("ntce", lambda: ScheduledNTCE(start, STEPS))


def use_cross_entropy_and_nonl(label_smoothing: float, temperature: float) -> None:
    """Let cross-entropy of this process be the mean with NONL."""
    _replace_loss("ce", lambda: CrossEntropyAndNONL(label_smoothing, temperature))


def use_margin_and_nonl(margin: float) -> None:
    """Let NormFace of this process be the mean with NONL, with a margin."""
    _replace_loss("normface", lambda: MarginAndNONL(margin))


def _mean(name: str, title: str, *overrides: str) -> Variant:
    """Return a variant with the mean of NormFace and NONL."""
    loss = ("loss.name=normface-nonl", "loss.temperature=0.1")
    return Variant(f"mean-{name}", f"mean of NormFace and NONL, {title}", (*loss, *overrides))


VARIANTS = (
    Variant("both", "mean of NormFace and NTCE", prepare=partial(use_both_directions, "ntce")),
    Variant("temperature-0.1", "temperature 0.1", ("loss.temperature=0.1",)),
    Variant(
        "both-0.1",
        "mean of NormFace and NTCE, temperature 0.1",
        ("loss.temperature=0.1",),
        partial(use_both_directions, "ntce"),
    ),
    Variant(
        "both-nonl-0.1",
        "mean of NormFace and NONL, temperature 0.1",
        ("loss.name=nonl", "loss.temperature=0.1"),
        partial(use_both_directions, "nonl"),
    ),
    Variant("smoothing-0.1", "label smoothing 0.1", ("loss.label_smoothing=0.1",)),
    Variant(
        "queue-1024",
        "queue of 1,024 from epoch 10",
        ("loss.queue={size: 1024, start_epoch: 10}",),
    ),
    Variant(
        "schedule",
        "temperature from 0.17 along a cosine",
        prepare=partial(use_schedule, 0.17),
    ),
    Variant("head-lr", "learning rate of the head × 0.1", ("optimizer.lr_scale.head=0.1",)),
    Variant("learned", "learned temperature", ("loss.learn_temperature=true",)),
    Variant(
        "lr-0.39",
        "learning rate 0.39, weight decay 4.7e-4",
        ("optimizer.lr=0.39", "optimizer.weight_decay=4.7e-4"),
    ),
    Variant("chosen", "none, once more"),
    _mean("repeated", "temperature 0.1, once more"),
    _mean("0.75", "temperature 0.1, weights 0.75 and 0.25", "loss.normface_weight=0.75"),
    _mean("0.25", "temperature 0.1, weights 0.25 and 0.75", "loss.normface_weight=0.25"),
    _mean("temperature-0.13", "temperature 0.13", "loss.temperature=0.13"),
    _mean("temperature-0.08", "temperature 0.08", "loss.temperature=0.08"),
    Variant(
        "ce-nonl",
        "mean of cross-entropy and NONL, temperature 0.1; settings of cross-entropy",
        prepare=partial(use_cross_entropy_and_nonl, 0.13, 0.1),
        base="ce",
    ),
    Variant(
        "mean-margin",
        "mean of NormFace with margin 0.1 and NONL, temperature 0.1",
        ("loss.name=normface", "loss.temperature=0.1"),
        partial(use_margin_and_nonl, 0.1),
    ),
    _mean(
        "lr-0.39",
        "temperature 0.1, learning rate 0.39, weight decay 4.7e-4",
        "optimizer.lr=0.39",
        "optimizer.weight_decay=4.7e-4",
    ),
    _mean(
        "head-lr",
        "temperature 0.1, learning rate of the head × 0.1",
        "optimizer.lr_scale.head=0.1",
    ),
)


def jobs() -> list[Job]:
    """Return all jobs, the most important first."""
    return [_job(variant) for variant in VARIANTS]


def has_sweep(loss: str) -> bool:
    """Whether the sweep of a loss is among the results.

    Args:
        loss: Name of the loss.
    """
    return (SWEEPS / loss / "sweep.json").exists()


def chosen_settings(loss: str) -> list[str]:
    """Return what the sweep of a loss chose, as values of ``--set`` for cifar100-strong-LOSS.

    The settings of NormFace + NONL are those of a variant until it has a sweep.

    Args:
        loss: Name of the loss.
    """
    if loss in WITHOUT_SWEEP and not has_sweep(loss):
        return variant_settings(WITHOUT_SWEEP[loss])
    record = json.loads((SWEEPS / loss / "sweep.json").read_text())
    best = next(trial for trial in record["trials"] if trial["number"] == record["best"])
    return [f"{key}={json.dumps(value)}" for key, value in best["settings"].items()]


def variant_settings(name: str) -> list[str]:
    """Return the settings of a variant that differs in settings alone, as values of ``--set``.

    Args:
        name: Name of the variant.
    """
    variant = next(variant for variant in VARIANTS if variant.name == name)
    if variant.prepare is not None:
        raise ValueError(f"{name} is more than settings")
    return [*chosen_settings(variant.base), *variant.overrides]


def _job(variant: Variant) -> Job:
    overrides = (
        "training.batch_size=512",
        "data.validation_fraction=0.1",
        f"schedule.epochs={EPOCHS}",
        f"evaluation={{every: {EPOCHS // 4}, metrics: cheap}}",
        f"checkpoint={{every: {EPOCHS // 4}, keep: 1}}",
        *chosen_settings(variant.base),
        *variant.overrides,
    )
    recipe = f"cifar100-strong-{variant.base}"
    name = f"variant-{variant.name}"
    return Job("variants", name, recipe, "cifar100", overrides, prepare=variant.prepare)


def collect(runs: Path) -> None:
    """Add the complete runs to the results."""
    old = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"rows": []}
    known = {row["variant"]: row for row in old["rows"]}
    machine, rows = old.get("machine"), []
    for variant in VARIANTS:
        folder = runs / f"variant-{variant.name}"
        if is_trained(folder):
            machine = json.loads((folder / "machine.json").read_text())
            evaluation = RunFolder(folder).last_evaluation()
            assert evaluation is not None
            values = {name: evaluation[name] for name in METRICS}
            about = {"variant": variant.name, "change": variant.title, "commit": machine["commit"]}
            rows.append({**about, **values})
        elif variant.name in known:
            rows.append(known[variant.name])
    record = write_results(RESULTS, "variants", machine, rows)
    print(table(record), f"written to {RESULTS}", sep="\n\n")


def table(record: dict[str, Any]) -> str:
    """Return the variants as a Markdown table."""
    lines = [
        "| change | validation accuracy | training accuracy | effective rank of class means "
        "(of 99) | ‖prototype − class mean‖² | within/between-class variance |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for row in record["rows"]:
        cells = [
            f"{100 * row['accuracy']:.2f} %",
            f"{100 * row['train_accuracy']:.1f} %",
            f"{row['inter_effective_rank']:.1f}",
            f"{row['weight_class_alignment']:.3f}",
            f"{row['nc1_ratio']:.3f}",
        ]
        lines.append(f"| {row['change']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def source(record: dict[str, Any]) -> str:
    """Return the line beneath the table of variants."""
    commits = [row["commit"] for row in record["rows"]]
    return describe_machine(record["machine"], "several runs at a time on the GPU", *commits)


def sweep_table() -> str:
    """Return the chosen trial of each sweep as a row of a Markdown table."""
    lines = [
        "| loss | best validation accuracy | the next ones | learning rate | weight decay "
        "| temperature or smoothing | mixup | EMA |",
        "|---|---:|---:|---:|---:|---:|---|---|",
    ]
    for loss in filter(has_sweep, SWEPT):
        record = json.loads((SWEEPS / loss / "sweep.json").read_text())
        complete = [trial for trial in record["trials"] if trial["state"] == "complete"]
        best, *others = sorted(complete, key=lambda trial: -trial["value"])
        settings = best["settings"]
        own = settings.get("loss.temperature", settings.get("loss.label_smoothing"))
        cells = [
            f"{100 * best['value']:.2f} %",
            ", ".join(f"{100 * trial['value']:.2f}" for trial in others[:2]),
            f"{settings['optimizer.lr']:.2f}",
            f"{settings['optimizer.weight_decay']:.1e}",
            f"{own:.3f}",
            "no" if settings["augmentation.mixing"] is None else "yes",
            "no" if settings["training.ema_decay"] is None else "yes",
        ]
        lines.append(f"| {registry.LOSSES[loss].title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def sweep_source() -> str:
    """Return the line beneath the table of sweeps."""
    machine = json.loads((SWEEPS / "ce" / "machine.json").read_text())
    record = json.loads((SWEEPS / "ce" / "sweep.json").read_text())
    error = math.sqrt(0.75 * 0.25 / record["num_validation"])
    detail = f"several sweeps at a time; standard error of an accuracy {100 * error:.1f} points"
    return describe_machine(machine, detail)


if __name__ == "__main__":
    main(__doc__, jobs, collect)
