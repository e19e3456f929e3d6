"""Run folders as training leaves them, written without training and without torch."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from protosphere.runs import RunFolder
from protosphere.runs.arrays import write_arrays
from protosphere.runs.metadata import DataMetadata, machine, write_class_names
from support.report_runs import geometry_arrays, simplex


def write_run(
    folder: Path,
    *,
    name: str = "digits-nonl",
    seed: int = 42,
    epochs: int = 4,
    last_epoch: int | None = None,
    class_names: Sequence[str] = ("zero", "one", "two", "three"),
    metrics: Mapping[str, float] | None = None,
    recipe: Mapping[str, Any] | None = None,
) -> Path:
    """Write a run that was evaluated after every epoch.

    Args:
        folder: The run folder.
        name: Name of the recipe.
        seed: Seed of the recipe.
        epochs: Number of epochs of the recipe.
        last_epoch: Epoch after which the run ended; None for the last one.
        class_names: Class names.
        metrics: Metrics of every evaluation.
        recipe: Sections of the recipe that replace the usual ones.

    Returns:
        The folder.
    """
    run = RunFolder(folder)
    content = {
        "name": name,
        "data": {"source": "digits", "validation_fraction": 0.0},
        "model": {"backbone": {"name": "small", "pretrained": False}},
        "loss": {"name": "nonl", "temperature": 0.2},
        "optimizer": {"name": "sgd", "lr": 0.1, "weight_decay": 0.0005},
        "schedule": {"name": "cosine", "epochs": epochs},
        "training": {"batch_size": 64, "precision": "fp32"},
        "evaluation": {"every": 1},
        "checkpoint": {"every": 1, "monitor": None, "patience": None},
        "seed": seed,
    }
    run.start(yaml.safe_dump(content | dict(recipe or {}), sort_keys=False))
    run.write_json("machine.json", machine("cpu") | {"commit": "0123456789ab"})
    write_class_names(run, class_names)
    DataMetadata(
        num_train=1200,
        num_eval=600,
        split="test",
        train_fingerprint="train",
        eval_fingerprint="test",
        channels=1,
        mean=(0.5,),
        std=(0.5,),
        evaluation_crop="resize",
        class_counts=(300,) * len(class_names),
    ).write(run)
    means = simplex(min(len(class_names), 20))
    # More classes than that are no simplex, which would take time.
    write_arrays(run, geometry_arrays(np.resize(means, (len(class_names), len(means)))))
    values = {"accuracy": 0.9, "nearest_mean_accuracy": 0.8, "train_accuracy": 0.95}
    records: list[dict[str, Any]] = []
    for epoch in range(1, (epochs if last_epoch is None else last_epoch) + 1):
        step = {"step": 10 * epoch, "epoch": epoch}
        records.append({"kind": "train", **step, "loss": 1 / epoch, "lr": 0.1})
        records.append({"kind": "evaluation", **step, "split": "test", **values, **(metrics or {})})
    run.metrics.write_text("".join(json.dumps(record) + "\n" for record in records))
    return folder
