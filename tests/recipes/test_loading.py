"""A run that is taken up again: class means of its own weights, its own normalization, what classifiers are given."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from protosphere.classifiers import class_means
from protosphere.cli.app import app
from protosphere.data.datasets import load
from protosphere.evaluation import outputs
from protosphere.recipes import build, catalog, trained
from protosphere.recipes.runner import execute
from protosphere.recipes.schema import Recipe, with_settings
from protosphere.runs import RunFolder, RunFolderError
from protosphere.runs.checkpoints import load_checkpoint

SETTINGS = {
    "data.source": "synthetic",
    "data.num_classes": "3",
    "data.samples": "24",
    "data.resolution": "8",
    "optimization.epochs": "1",
    "optimization.batch": "8",
    "optimization.precision": "float32",
    "encoder.backbone": "small",
    "encoder.stem": "imagenet",
    "encoder.neck": "linear",
    "views.size": "8",
}


@pytest.mark.parametrize("projection", ["mlp", "none"])
def test_what_probes_are_given(
    projection: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One view without colors in place of the two that were trained on; all before the projection, the neck too."""
    settings = SETTINGS | {"encoder.projection": projection}
    options = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    arguments = [
        "train",
        "cifar10-scl",
        "--out",
        str(tmp_path / "run"),
        "--device",
        "cpu",
        *options,
    ]
    ran = CliRunner().invoke(app, arguments)
    assert ran.exit_code == 0, ran.output
    seen: dict = {}
    monkeypatch.setattr(
        trained, "probe", lambda *parts, **named: seen.update(named, parts=parts) or iter(())
    )
    folder = RunFolder(tmp_path / "run")
    folder.write_json("data.json", folder.read_json("data.json") | {"mean": [0.1, 0.2, 0.3]})
    run = trained.load_run(folder.path)
    list(run.probed())
    objective, *feeds, _ = seen["parts"]
    assert run.train.views == 2
    for feed in feeds:
        assert feed.views == 1
        assert not any(feed.augmentation.jitter)
        assert feed.augmentation.gray_probability == 0
        assert feed.augmentation.crop == "resized"
        assert feed.augmentation.mean == (0.1, 0.2, 0.3), (
            "as the run noted, not as the data have it"
        )
    if projection == "none":
        assert seen["body"] is None
    else:
        assert list(seen["body"]) == list(objective.encoder)[:-1]
        assert isinstance(list(seen["body"])[1], nn.Module)
    assert seen["metrics"] == "all"


def _digits(path: Path, *settings: str) -> Recipe:
    """Digits as arrays, which can be taken away and changed, in two epochs of ten steps."""
    source = load("digits")
    content = {
        f"x_{name}": part.images[:640, 0]
        for name, part in (("train", source.train), ("test", source.test))
    }
    content |= {
        f"y_{name}": part.labels[:640]
        for name, part in (("train", source.train), ("test", source.test))
    }
    np.savez(path, **{name: value.numpy() for name, value in content.items()})
    arrays = [
        "data.source=arrays",
        f"data.path={path}",
        "optimization.epochs=2",
        "evaluate_every=1",
        "save_every=1",
    ]
    return with_settings(catalog.recipe("digits-scl"), [*arrays, *settings])


def _run(recipe: Recipe, folder: Path, stop: Callable[[], bool] = lambda: False) -> None:
    for _ in execute(
        recipe, RunFolder(folder), build.build_source(recipe), start="resume", stop=stop
    ):
        pass


@pytest.mark.parametrize("average", ["null", "0.6"])
@pytest.mark.parametrize("steps", [5, 15])
def test_class_means_are_those_of_the_weights(average: str, steps: int, tmp_path: Path) -> None:
    """Before the first evaluation, between two, and at the end; resuming makes no difference."""
    recipe = _digits(tmp_path / "d.npz", f"optimization.average={average}")
    counter = iter(range(1, 100))
    _run(recipe, tmp_path / "run", stop=lambda: next(counter) == steps)

    def see_that_own() -> None:
        run = trained.load_run(tmp_path / "run")
        found = outputs(run.objective, run.train)
        expected = class_means(found.features, found.labels, num_classes=10).means.float()
        for objective in (run.objective, trained.load_model(tmp_path / "run").objective):
            torch.testing.assert_close(objective.head.prototypes, expected, rtol=0, atol=1e-6)

    see_that_own()
    (tmp_path / "d.npz").rename(tmp_path / "away.npz")
    with pytest.raises(
        RunFolderError,
        match="must be taken of its training images, since it stopped between evaluations",
    ):
        trained.load_model(tmp_path / "run")
    (tmp_path / "away.npz").rename(tmp_path / "d.npz")
    _run(recipe, tmp_path / "run")
    see_that_own()
    _run(recipe, tmp_path / "whole")
    one, other = (load_checkpoint(tmp_path / name / "checkpoints") for name in ("run", "whole"))
    assert all(torch.equal(value, other.weights[name]) for name, value in one.weights.items())
    (tmp_path / "d.npz").unlink()
    assert trained.load_model(tmp_path / "run").objective.head.has_means, (
        "a run that has ended needs no data"
    )
