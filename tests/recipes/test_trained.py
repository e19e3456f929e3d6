"""A run that is taken up again: what its classifiers are given."""

from pathlib import Path

import pytest
from torch import nn
from typer.testing import CliRunner

from protosphere.cli.app import app
from protosphere.recipes import trained

SETTINGS = {
    "data.source": "synthetic",
    "data.num_classes": "3",
    "data.samples": "24",
    "data.resolution": "8",
    "optimisation.epochs": "1",
    "optimisation.batch": "8",
    "optimisation.precision": "float32",
    "encoder.backbone": "small",
    "encoder.stem": "imagenet",
    "encoder.neck": "linear",
    "views.size": "8",
}


@pytest.mark.parametrize("projection", ["mlp", "none"])
def test_what_probes_are_given(projection: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One view without colours in place of the two that were trained on; all before the projection, the neck too."""
    settings = SETTINGS | {"encoder.projection": projection}
    options = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    arguments = ["train", "cifar10-scl", "--out", str(tmp_path / "run"), "--device", "cpu", *options]
    ran = CliRunner().invoke(app, arguments)
    assert ran.exit_code == 0, ran.output
    seen: dict = {}
    monkeypatch.setattr(trained, "probe", lambda *parts, **named: seen.update(named, parts=parts) or iter(()))
    run = trained.load_run(tmp_path / "run")
    list(run.probed())
    objective, *feeds, _ = seen["parts"]
    assert run.train.views == 2
    for feed in feeds:
        assert feed.views == 1
        assert not any(feed.augmentation.jitter)
        assert feed.augmentation.grey_probability == 0
        assert feed.augmentation.crop == "resized"
    if projection == "none":
        assert seen["body"] is None
    else:
        assert list(seen["body"]) == list(objective.encoder)[:-1]
        assert isinstance(list(seen["body"])[1], nn.Module)
    assert seen["metrics"] == "all"
