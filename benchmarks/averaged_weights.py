"""Averaged weights on CIFAR-100 with three kinds of batch-norm statistics.

ResNet-18, cross-entropy with the settings that a first sweep chose, batches of 512, 100 epochs, a
moving average of the weights with decay 0.999, all training images; accuracy on the test images.
During training the average is evaluated with the average of the running statistics; at the end also
with its own statistics, as training does it, beside the weights themselves.

    python benchmarks/averaged_weights.py DATA --runs RUNS
    python benchmarks/averaged_weights.py DATA --runs RUNS --collect

DATA holds cifar100.npz with x_train, y_train, x_test and y_test. ``--collect`` writes
results/averaged_weights.json.
"""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import harness
from jobs import Job, describe_machine, is_trained, main, write_results
from protosphere.evaluation.inference import collect_outputs
from protosphere.recipes.loading import load_run
from protosphere.runs import RunFolder
from protosphere.runs.checkpoints import load_checkpoint
from protosphere.training.averaged_weights import AveragedWeights, find_batch_norms
from variants import first_settings

RESULTS = harness.RESULTS / "averaged_weights.json"
NAME = "averaged-ce"
FINAL = "statistics.json"
EPOCHS = 100


def keep_averaged_statistics() -> None:
    """Let training of this process evaluate and save the average of the running statistics."""
    AveragedWeights.refresh = lambda *_: None  # type: ignore[method-assign]


def compare_statistics(folder: Path, device: str) -> None:
    """Evaluate the last checkpoint in three ways and write the accuracies into the run folder.

    Args:
        folder: Run folder, trained with the average of the running statistics.
        device: Device to compute on.
    """
    run = load_run(folder, device=device)
    checkpoint = load_checkpoint(RunFolder(folder).checkpoints)
    assert checkpoint is not None
    train, test = run._loaders("test")
    results = {}

    def load(*states: dict[str, Tensor]) -> None:
        run.objective.load_state_dict({name: t for state in states for name, t in state.items()})

    def evaluate(name: str) -> None:
        outputs = collect_outputs(run.objective, test)
        results[name] = float((outputs.predictions == outputs.labels).double().mean())

    load(checkpoint.weights)
    evaluate("weights")
    load(checkpoint.weights, checkpoint.state["ema"])
    evaluate("average, averaged statistics")
    run.objective.train()
    for layer in find_batch_norms(run.objective):
        layer.reset_running_stats()
        layer.momentum = None
    torch.manual_seed(0)
    with torch.no_grad():
        for batch in train.batches(512, seed=0, epoch=0):
            _encode(run.objective.encoder, train.prepare(*batch)[0])
    run.objective.eval()
    evaluate("average, own statistics")
    (folder / FINAL).write_text(json.dumps(results, indent=1) + "\n")


def _encode(encoder: nn.Module, images: Tensor) -> None:
    with torch.autocast(images.device.type, torch.bfloat16):
        encoder(images)


def jobs() -> list[Job]:
    """Return the one job."""
    overrides = (
        "training.batch_size=512",
        f"schedule.epochs={EPOCHS}",
        f"evaluation={{every: {EPOCHS // 10}, metrics: cheap}}",
        f"checkpoint={{every: {EPOCHS // 5}, keep: 1}}",
        *first_settings("ce"),
    )
    return [
        Job(
            "averaged",
            NAME,
            "cifar100-strong-ce",
            "cifar100",
            overrides,
            prepare=keep_averaged_statistics,
            finish=compare_statistics,
        )
    ]


def collect(runs: Path) -> None:
    """Write the results of the run."""
    folder, rows = runs / NAME, []
    if is_trained(folder):
        evaluations = [row for row in RunFolder(folder).records() if row["kind"] == "evaluation"]
        rows = [
            {"epoch": row["epoch"], "average, averaged statistics": row["accuracy"]}
            for row in evaluations[:-1]
        ]
        final = json.loads((folder / FINAL).read_text())
        rows.append({"epoch": EPOCHS, **final})
    machine = json.loads((folder / "machine.json").read_text()) if rows else {}
    record = write_results(RESULTS, "averaged_weights", machine, rows)
    print(table(record), f"written to {RESULTS}", sep="\n\n")


def table(record: dict[str, Any]) -> str:
    """Return the accuracies after the last epoch as a Markdown table."""
    last = record["rows"][-1]
    best = max(record["rows"], key=lambda row: row["average, averaged statistics"])
    lines = [
        "| evaluated | test accuracy |",
        "|---|---:|",
        f"| weights of the last step | {100 * last['weights']:.2f}% |",
        "| averaged weights, average of the running statistics "
        f"| {100 * last['average, averaged statistics']:.2f}% |",
        f"| the same, best evaluation of ten (epoch {best['epoch']}) "
        f"| {100 * best['average, averaged statistics']:.2f}% |",
        "| averaged weights, their own statistics "
        f"| {100 * last['average, own statistics']:.2f}% |",
    ]
    return "\n".join(lines)


def source(record: dict[str, Any]) -> str:
    """Return the line beneath the table."""
    return describe_machine(record["machine"], "one seed")


if __name__ == "__main__":
    main(__doc__, jobs, collect)
