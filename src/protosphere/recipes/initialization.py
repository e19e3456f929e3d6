"""Start new training from the weights of an earlier run."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from torch import Tensor, nn

from protosphere.parallel import find_shards
from protosphere.parallel.launch import World
from protosphere.parallel.shards import select_shards
from protosphere.recipes.monitor import load_best_checkpoint
from protosphere.recipes.schema import RecipeError, recipe_from_yaml
from protosphere.recipes.schema.sections import CheckpointSettings
from protosphere.runs import RunFolder, RunFolderError
from protosphere.runs.checkpoints import Checkpoint, has_checkpoint
from protosphere.runs.metadata import read_class_names
from protosphere.training import Objective

_FILE = "init.json"


class Initialization(NamedTuple):
    """What new training has taken from an earlier run.

    Attributes:
        run: Path of the earlier run.
        step: Step of its checkpoint.
        parts: Parts of the model that have its weights; the others start anew.
    """

    run: str
    step: int
    parts: tuple[str, ...]


def initialize_from(
    objective: Objective, path: Path | str, *, class_names: Sequence[str]
) -> Initialization:
    """Give an objective the weights of an earlier run.

    The backbone must be the same. Neck and projection are taken if they are the same, and the head
    if the classes are the same too. If the earlier run has a best checkpoint, its weights are
    taken, otherwise those of the last one; if it has a moving average, that.

    Args:
        objective: The objective to initialize.
        path: Folder of the earlier run.
        class_names: Class names of the new training.

    Raises:
        RunFolderError: The folder is not a run or has no checkpoint, or its backbone is another.
    """
    folder = RunFolder(path)
    checkpoint = _read_checkpoint(folder)
    weights = _averaged(checkpoint)
    encoder = objective.encoder
    assert isinstance(encoder.backbone, nn.Module)
    if not _load(encoder.backbone, weights, "encoder.backbone."):
        raise RunFolderError(f"{path} must be a run with the same backbone, but it has another one")
    parts = ["backbone"]
    for name in ("neck", "projection"):
        part = getattr(encoder, name, None)
        if part is not None and _load(part, weights, f"encoder.{name}."):
            parts.append(name)
    head = objective.head
    assert isinstance(head, nn.Module)
    if list(class_names) == read_class_names(folder) and _load(head, weights, "head."):
        parts.append("head")
    return Initialization(str(folder.path.resolve()), checkpoint.step, tuple(parts))


def initialize_sharded_head(
    objective: Objective,
    initialization: Initialization | None,
    path: Path | str,
    *,
    class_names: Sequence[str],
    world: World,
) -> Initialization | None:
    """Give each process its prototypes of an earlier run; every process must call it.

    Nothing happens unless the head is sharded over processes and the earlier run has a head of the
    same size for the same classes.

    Args:
        objective: The objective to initialize.
        initialization: What :func:`initialize_from` returned on the first process.
        path: Folder of the earlier run, which only the first process uses.
        class_names: Class names of the new training.
        world: The processes that train together.

    Returns:
        On the first process, the initialization with the head, if it has been taken.
    """
    head = objective.head
    assert isinstance(head, nn.Module)
    shards = find_shards(head)
    if not shards:
        return initialization
    shapes = {
        key: (shards[key].num_rows, *value.shape[1:]) if key in shards else tuple(value.shape)
        for key, value in head.state_dict().items()
    }

    def read_head() -> dict[str, Tensor] | None:
        folder = RunFolder(path)
        own = _with_prefix(_averaged(_read_checkpoint(folder)), "head.")
        is_same = list(class_names) == read_class_names(folder)
        return own if is_same and _shapes(own) == shapes else None

    weights = world.from_first(read_head)
    if weights is None:
        return initialization
    head.load_state_dict(select_shards(weights, shards))
    if initialization is None:
        return None
    return initialization._replace(parts=(*initialization.parts, "head"))


def check_source(path: Path | str) -> None:
    """Check that training can start from the weights of a folder, without loading them.

    Args:
        path: Folder of the earlier run.

    Raises:
        RunFolderError: The folder is not a run or has no checkpoint.
    """
    folder = RunFolder(path)
    _read_settings(folder)
    if not has_checkpoint(folder.checkpoints):
        raise RunFolderError(f"{folder.path} has no checkpoint")


def check_resumed_source(folder: RunFolder, path: Path | str) -> None:
    """Check that a run with a checkpoint was started from the weights that it is given again.

    Args:
        folder: Folder of the run that is resumed.
        path: Folder of the earlier run.

    Raises:
        RunFolderError: It was started from others, or from none.
    """
    source = read_initialization(folder)
    if source is None or Path(source).resolve() != Path(path).resolve():
        started = "without" if source is None else f"from those of {source}, not"
        raise RunFolderError(
            f"--init-from has no effect on a run that is resumed: {folder.path} was started "
            f"{started} the weights of {path}"
        )


def write_initialization(folder: RunFolder, initialization: Initialization | None) -> None:
    """Write what a run has taken from an earlier one, or remove the file if that is nothing.

    Args:
        folder: The run folder.
        initialization: What :func:`initialize_from` returned.
    """
    if initialization is not None:
        folder.write_json(_FILE, initialization._asdict())
    else:
        (folder.path / _FILE).unlink(missing_ok=True)


def read_initialization(folder: RunFolder) -> str | None:
    """Return the path of the run that a run has taken its first weights from, or None.

    Args:
        folder: The run folder.

    Raises:
        RunFolderError: The file that says so is damaged.
    """
    if not (folder.path / _FILE).exists():
        return None
    try:
        return str(folder.read_json(_FILE)["run"])
    except (KeyError, TypeError):
        raise RunFolderError(f"{folder.path / _FILE} must name a run, but does not") from None


def _read_settings(folder: RunFolder) -> CheckpointSettings:
    try:
        return recipe_from_yaml(folder.recipe.read_text(encoding="utf-8")).checkpoint
    except (OSError, UnicodeDecodeError, RecipeError):
        raise RunFolderError(f"{folder.path} must be a run folder, but has no recipe") from None


def _read_checkpoint(folder: RunFolder) -> Checkpoint:
    checkpoint = load_best_checkpoint(folder, _read_settings(folder))
    if checkpoint is None:
        raise RunFolderError(f"{folder.path} has no checkpoint")
    return checkpoint


def _averaged(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """Return the weights of a checkpoint, or their moving average if there is one."""
    weights: dict[str, Tensor] = checkpoint.weights | checkpoint.state.get("ema", {})
    return weights


def _with_prefix(weights: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {
        key.removeprefix(prefix): value for key, value in weights.items() if key.startswith(prefix)
    }


def _shapes(weights: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {key: tuple(value.shape) for key, value in weights.items()}


def _load(module: nn.Module, weights: Mapping[str, Tensor], prefix: str) -> bool:
    """Load the weights of a part if they fit exactly, and return whether they do."""
    own = _with_prefix(weights, prefix)
    if _shapes(own) != _shapes(module.state_dict()):
        return False
    module.load_state_dict(own)
    return True
