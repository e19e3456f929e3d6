"""Variants of NTCE on CIFAR-100, each one change of settings that a first sweep chose.

That sweep had the seed 4 and the ranges 0.05 to 0.4 of the learning rate, 2e-4 to 2e-3 of weight
decay and 0.05 to 0.3 of the temperature. Like the variants, it was evaluated with averaged
statistics of batch norm where it averaged the weights, before these were computed for the average.

ResNet-18, batches of 512, 40 epochs, evaluated on the validation images of the sweeps. Runs that
were interrupted continue.

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
from sweeps import EPOCHS, overrides

RESULTS = harness.RESULTS / "variants.json"
# What the first sweeps chose, those of commit 495c6306ed1e.
_FIRST_SWEEPS = {
    "ce": (
        "optimizer.lr=0.38669951264274177",
        "optimizer.weight_decay=0.00047185702779494257",
        "loss.label_smoothing=0.13088242909971226",
        "training.ema_decay=0.999",
    ),
    "ntce": (
        "optimizer.lr=0.2543342877104621",
        "optimizer.weight_decay=0.0011413419924873815",
        "loss.temperature=0.05862231799974095",
        "training.ema_decay=0.999",
    ),
}
_NO_EMA = "training.ema_decay=null"
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
        base: Loss whose first sweep the settings come from.
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
    # Without averaged weights, these compare with the trials of the later sweeps.
    _mean("no-ema", "temperature 0.1, no EMA", _NO_EMA),
    _mean("no-ema-0.13", "temperature 0.13, no EMA", "loss.temperature=0.13", _NO_EMA),
    Variant("no-ema", "no EMA", (_NO_EMA,)),
    Variant("ce-no-ema", "cross-entropy with settings of its own, no EMA", (_NO_EMA,), base="ce"),
    Variant(
        "ce-nonl-no-ema",
        "mean of cross-entropy and NONL, temperature 0.1; settings of cross-entropy, no EMA",
        (_NO_EMA,),
        partial(use_cross_entropy_and_nonl, 0.13, 0.1),
        base="ce",
    ),
)


def jobs() -> list[Job]:
    """Return all jobs, the most important first."""
    return [_job(variant) for variant in VARIANTS]


def first_settings(loss: str) -> tuple[str, ...]:
    """Return what the first sweep of a loss chose, as values of ``--set``.

    Args:
        loss: Name of the loss, ce or ntce.
    """
    return _FIRST_SWEEPS[loss]


def _job(variant: Variant) -> Job:
    settings = (*overrides(), *first_settings(variant.base), *variant.overrides)
    recipe = f"cifar100-strong-{variant.base}"
    name = f"variant-{variant.name}"
    return Job("variants", name, recipe, "cifar100", settings, prepare=variant.prepare)


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
            f"{100 * row['accuracy']:.2f}%",
            f"{100 * row['train_accuracy']:.1f}%",
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


if __name__ == "__main__":
    main(__doc__, jobs, collect)
