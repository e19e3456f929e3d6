"""Parameters that are sharded over processes, and their checkpoints with whole matrices."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from protosphere.parallel import ProcessGroup, Shards, find_shards
from protosphere.parallel.shards import gather_shards, select_shards
from protosphere.runs.checkpoints import Checkpoint
from protosphere.training.objective import Objective
from protosphere.training.optimizers import SGD, AdamW, OptimizerConfig


def gather_checkpoint(
    weights: dict[str, Tensor], state: dict[str, Any], shards: Mapping[str, Shards]
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Put the parts of all processes together on the first one; every process must call it.

    Args:
        weights: Weights of this process by name.
        state: State of a training step of this process.
        shards: The sharded parameters; see :func:`protosphere.parallel.find_shards`.

    Returns:
        Weights and state with whole matrices of weights, moving averages and optimizer states.
        On the other processes these are absent.
    """
    if not shards:
        return weights, state
    state = dict(state)
    if "ema" in state:
        state["ema"] = gather_shards(state["ema"], shards)
    state["optimizer"] = dict(state["optimizer"])
    for index, layout in _by_index(state, shards).items():
        entries = state["optimizer"][index]
        rows = layout.sizes[layout.rank]
        names = [name for name, value in entries.items() if _has_rows(value, rows)]
        state["optimizer"][index] = gather_shards(entries, dict.fromkeys(names, layout))
    return gather_shards(weights, shards), state


def select_checkpoint(checkpoint: Checkpoint, shards: Mapping[str, Shards]) -> Checkpoint:
    """Return a checkpoint with the parts of this process in place of whole matrices.

    Args:
        checkpoint: The checkpoint, of any number of processes.
        shards: The sharded parameters; see :func:`protosphere.parallel.find_shards`.

    Raises:
        ValueError: A matrix does not have a row for each row of all processes.
    """
    if not shards:
        return checkpoint
    state = dict(checkpoint.state)
    if "ema" in state:
        state["ema"] = select_shards(state["ema"], shards)
    state["optimizer"] = dict(state["optimizer"])
    for index, layout in _by_index(state, shards).items():
        entries = state["optimizer"][index]
        names = [name for name, value in entries.items() if _has_rows(value, layout.num_rows)]
        state["optimizer"][index] = select_shards(entries, dict.fromkeys(names, layout))
    return checkpoint._replace(weights=select_shards(checkpoint.weights, shards), state=state)


def _by_index(state: Mapping[str, Any], shards: Mapping[str, Shards]) -> dict[int, Shards]:
    """Return the sharded parameters that the optimizer has a state of, by their number in it."""
    names = [name for group in state["parameter_groups"] for name in group["names"]]
    return {
        index: shards[name]
        for index, name in enumerate(names)
        if name in shards and index in state["optimizer"]
    }


def _has_rows(value: object, num_rows: int) -> bool:
    """Whether an entry of the optimizer has a row for each row of the parameter."""
    return isinstance(value, Tensor) and value.ndim > 0 and len(value) == num_rows


def find_sharded_parameters(
    objective: Objective, optimizer: OptimizerConfig, group: ProcessGroup | None
) -> list[nn.Parameter]:
    """Return the parameters of an objective that are sharded over the processes of a run.

    Args:
        objective: The objective.
        optimizer: The optimizer of the run.
        group: Process group of the run.

    Raises:
        ValueError: They are sharded over other processes, or the optimizer may need all rows.
    """
    shards = find_shards(objective)
    if any(layout.group is not group for layout in shards.values()):
        raise ValueError("a sharded head must have the process group of the run")
    if shards and not isinstance(optimizer, SGD | AdamW):
        raise ValueError(
            "optimizer must be sgd or adamw with prototypes sharded over processes, because others "
            f"may need all of them at a time, got {optimizer.name}"
        )
    return [parameter for name, parameter in objective.named_parameters() if name in shards]
