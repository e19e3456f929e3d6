"""What the benchmarks of a run share: what identifies a run, and the name of its method."""

import hashlib
from typing import Any

import torch

from protosphere.recipes.loading import Run
from protosphere.recipes.schema import Recipe
from protosphere.runs import RunFolder
from protosphere.runs.metadata import DataMetadata

# Losses whose name in the paper's tables is another one.
_PAPER_NAMES = {"etf-dr": "etf_dr"}


def run_settings(run: Run) -> dict[str, Any]:
    """Return what identifies the weights and training data of a run in the settings of a result.

    Args:
        run: The run.
    """
    data = DataMetadata.read(RunFolder(run.path))
    return {
        "recipe": run.recipe.name,
        "step": run.step,
        "weights": weights_digest(run.objective),
        "data": data.train_fingerprint,
        "classes": len(run.class_names),
    }


def weights_digest(module: torch.nn.Module) -> str:
    """Return a digest of the parameters and buffers of a module.

    Args:
        module: The module.
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]


def method_name(recipe: Recipe) -> str:
    """Return the loss of a recipe, as the paper's tables name it.

    Args:
        recipe: The recipe.
    """
    name = str(recipe.loss.name)
    return _PAPER_NAMES.get(name, name)


def method_of(run: Run) -> str:
    """Return the loss of a run, as the paper's tables name it.

    Args:
        run: The run.
    """
    return method_name(run.recipe)
