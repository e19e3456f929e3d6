"""What the benchmarks of a run share: what identifies a run, and the name of its method."""

import gc
import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from protosphere.data.folders import find_split_folders
from protosphere.recipes import catalog
from protosphere.recipes.build import EvaluationSplit
from protosphere.recipes.datasets import FolderData
from protosphere.recipes.loading import Run
from protosphere.recipes.schema import Recipe
from protosphere.runs import RunFolder, RunFolderError
from protosphere.runs.metadata import DataMetadata
from protosphere.storage.atomic import reason

# Losses whose name in the paper's tables is another one.
_PAPER_NAMES = {"etf-dr": "etf_dr"}
# Characters of the error of another package.
_MAX_ERROR = 300


def check_targets_exist(targets: Iterable[str]) -> None:
    """Check that targets that can only be paths exist.

    Args:
        targets: Run folders, names of recipes, or YAML files.

    Raises:
        RunFolderError: One does not exist.
    """
    for target in targets:
        if len(Path(target).parts) > 1 and not Path(target).exists():
            raise RunFolderError(f"{target} must be a run folder or a recipe; it does not exist")


def is_run_target(target: str) -> bool:
    """Return whether a target is a folder of runs, not a recipe.

    A folder that has the name of a recipe is one if it has a recipe of its own.

    Args:
        target: Run folder, name of a recipe, or YAML file.
    """
    path = Path(target)
    return path.is_dir() and (target not in catalog.names() or (path / "recipe.yaml").exists())


def describe_error(error: Exception) -> str:
    """Return an error in one line, without what differs from one attempt to the next.

    Args:
        error: The error that a run has ended with.
    """
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return "out of memory"
    if isinstance(error, OSError):
        return f"cannot use {error.filename or 'a file'}: {reason(error)}"
    lines = str(error).strip().splitlines() or ["no message"]
    is_own = type(error).__module__.startswith("protosphere.") or isinstance(error, ValueError)
    text = lines[0].rstrip(".")
    return text if is_own else f"{type(error).__name__}: {text}"[:_MAX_ERROR]


def free_memory() -> None:
    """Give the memory of the last run on a GPU to the next one."""
    if torch.cuda.is_initialized():
        gc.collect()  # Cycles of objects may hold it.
        torch.cuda.empty_cache()


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


def reported_split(recipe: Recipe) -> EvaluationSplit:
    """Return which images the numbers of a benchmark are of: the test images if there are any.

    A folder of one's own may have only training and validation images, as ``protosphere init``
    allows; its numbers are of the validation images.

    Args:
        recipe: The recipe of the run.

    Raises:
        DataError: The folder of the images does not exist.
    """
    data = recipe.data
    if not isinstance(data, FolderData) or not data.has_validation:
        return "test"
    root = Path(data.path).expanduser()
    folder = find_split_folders(root)[1] if data.validation_folder is None else root / "test"
    return "test" if folder is not None and folder.is_dir() else "validation"


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
