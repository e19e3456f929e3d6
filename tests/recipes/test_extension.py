"""Adding a loss: a function and module, their export and a registry row; nothing else is edited."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import protosphere

LOSS = '''"""A loss for this test: the squared chord between a feature and its prototype."""

import torch
from torch import Tensor, nn

from protosphere.geometry import squared_chords


def chord_loss(
    features: Tensor,
    prototypes: Tensor,
    labels: Tensor,
    *,
    scale: float = 1.0,
    class_weights: Tensor | None = None,
) -> Tensor:
    chords = squared_chords(features, prototypes[labels])
    weights = torch.ones_like(chords) if class_weights is None else class_weights[labels]
    return scale * (weights * chords).sum() / weights.sum()


class ChordLoss(nn.Module):
    def __init__(self, *, scale: float = 1.0, class_weights: Tensor | None = None) -> None:
        super().__init__()
        self.scale = scale
        self.register_buffer("class_weights", class_weights, persistent=False)

    def forward(self, features: Tensor, head: nn.Module, labels: Tensor) -> Tensor:
        options = {"scale": self.scale, "class_weights": self.class_weights}
        return chord_loss(features, head.prototypes, labels, **options)
'''
EXPORT = "\nfrom protosphere.losses.chord import ChordLoss, chord_loss\n"
ROW = '''
from protosphere.losses import ChordLoss


class ChordSettings(LossSettings):
    """A loss for this test."""

    name: Literal["chord"] = "chord"
    scale: float = Field(1.0, gt=0)


LOSSES["chord"] = LossEntry(
    ChordSettings,
    "chord",
    head=lambda _, dim, num_classes: CosineClassifier(dim, num_classes),
    loss=lambda s, _: ChordLoss(scale=s.scale, class_weights=s.weight_tensor()),
)
'''
PROGRAM = """
import sys
from pathlib import Path

from protosphere.recipes import build, catalog
from protosphere.recipes.loading import load_run, read_recipe
from protosphere.recipes.runner import run_recipe
from protosphere.recipes.schema import RecipeError, json_schema
from protosphere.runs import RunFolder

overrides = ["schedule.epochs=1", "training.batch_size=512", "loss.scale=2"]
recipe = read_recipe("digits-chord", overrides)  # The catalog has a recipe for every loss.
dataset = build.load_dataset(recipe)
events = list(run_recipe(recipe, RunFolder(sys.argv[1]), dataset))
assert events[-1].progress.step == 2, events[-1].progress.step
assert load_run(sys.argv[1]).evaluate().metrics["accuracy"] > 0
assert "chord" in json_schema()["properties"]["loss"]["discriminator"]["mapping"]
try:
    read_recipe("digits-chord", ["loss.scale=-1"])
except RecipeError as error:
    print(error)
"""


@pytest.mark.whole_program
def test_a_loss_is_added_in_three_source_files(tmp_path: Path) -> None:
    """With its oracle and row in tests/support/losses.py that makes four files."""
    package = tmp_path / "src" / "protosphere"
    original = Path(protosphere.__file__).parent
    shutil.copytree(original, package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "losses" / "chord.py").write_text(LOSS)
    for file, addition in (("losses/__init__.py", EXPORT), ("recipes/registry.py", ROW)):
        with (package / file).open("a") as stream:
            stream.write(addition)
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "run")],
        env={"PYTHONPATH": str(tmp_path / "src"), "PATH": "", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "loss.scale must be greater than 0, got -1"


@pytest.mark.whole_program
def test_training_starts_without_importing_what_takes_seconds() -> None:
    """The compiler, torchmetrics and timm are imported by the runs that need them."""
    program = (
        "import sys, protosphere.recipes.runner, protosphere.recipes.loading\n"
        "print([n for n in ('torch._dynamo', 'torchmetrics', 'timm') if n in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"
