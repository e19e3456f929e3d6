"""Fully sharded training (FSDP2): an encoder whose weights are divided over the processes.

Each process keeps its part of the weights of the encoder, of their gradients and of the state of
the optimizer, as ``DTensor``; the weights of a layer are gathered while it computes. The gradients
are averaged over the processes, as the losses expect. The head stays whole on every process.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from protosphere.encoders import Encoder
from protosphere.encoders.timm_models import layer_ids
from protosphere.parallel import ProcessGroup, find_shards, sum_over
from protosphere.training.config import TrainConfig

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
# Optimizers whose step on the parts of a weight is their step on the weight.
OPTIMIZERS = (
    "sgd", "adamw", "adabelief", "adam", "adan", "adopt", "laprop", "lars", "lion", "madgrad",
    "mars", "nadamw", "nesterov", "radam", "rmsprop",
)  # fmt: skip


def check_fsdp(objective: nn.Module, config: TrainConfig) -> None:
    """Check that the weights of an encoder can be divided over processes.

    Args:
        objective: The objective.
        config: Settings of the run.

    Raises:
        ValueError: The step is compiled, the optimizer needs whole weights, prototypes are sharded,
            or the weights are divided already.
    """
    if any(is_divided(parameter) for parameter in objective.parameters()):
        raise ValueError(
            "weights must be whole before training with fsdp; they are divided already"
        )
    if config.compile:
        raise ValueError("compile must be False with fsdp, got True")
    if config.optimizer.name not in OPTIMIZERS:
        raise ValueError(
            f"the optimizer must be one of {', '.join(OPTIMIZERS)} with fsdp, got "
            f"{config.optimizer.name}"
        )
    if find_shards(objective):
        raise ValueError("fsdp must be False if prototypes are sharded over processes, got True")


def shard_encoder(encoder: nn.Module, group: ProcessGroup, *, device: torch.device) -> None:
    """Divide the weights of an encoder over the processes of a group, in place.

    The names in its state dict stay; the weights become ``DTensor``. Every process must call it,
    with the same weights.

    Args:
        encoder: The encoder, on the device.
        group: Process group.
        device: Device of the weights.

    Raises:
        ValueError: The backend of the group cannot do it on the device, or not with this version
            of torch.
    """
    from torch.distributed.device_mesh import DeviceMesh  # noqa: PLC0415  Not in every build.
    from torch.distributed.fsdp import FSDPModule, fully_shard  # noqa: PLC0415

    # Gloo has sums and no averages.
    only_sums = "nccl" not in dist.get_backend(group)
    if only_sums and device.type == "cuda":
        raise ValueError(
            f"fsdp on a GPU needs a process group of NCCL, got one of {dist.get_backend(group)}"
        )
    if only_sums and not hasattr(FSDPModule, "set_force_sum_reduction_for_comms"):
        raise ValueError(
            f"fsdp without NCCL needs a newer version of torch, got {torch.__version__}"
        )
    mesh = DeviceMesh.from_group(group, device.type)
    # Operations in place on a view would remove what gathers the weights in the backward pass.
    encoder.register_forward_hook(lambda _module, _inputs, output: _without_view(output))
    for part in [*find_blocks(encoder), encoder]:
        fully_shard(part, mesh=mesh)
        if only_sums:
            part.set_force_sum_reduction_for_comms(True)  # type: ignore[operator]


def _without_view(output: Tensor) -> Tensor:
    return output.clone() if output._is_view() else output


def find_blocks(encoder: nn.Module) -> list[nn.Module]:
    """Return the parts of an encoder whose weights are gathered at a time.

    Of each layer that timm numbers in the backbone, the stem excepted, it is the submodule with the
    most parameters: a block of a transformer, or a residual block. A backbone without such layers
    has none, and its weights are gathered together.

    Args:
        encoder: The encoder.

    >>> from protosphere.encoders import create_backbone
    >>> [type(block).__name__ for block in find_blocks(Encoder(create_backbone("small")))]
    ['Conv2d', 'Conv2d']
    """
    backbone = encoder.backbone if isinstance(encoder, Encoder) else encoder
    try:
        ids, _ = layer_ids(backbone, coarse=False)
    except (ValueError, ImportError):
        return []
    largest: dict[int, nn.Module] = {}
    for layer, module in _parts(backbone, "", ids):
        if layer and (layer not in largest or _size(module) > _size(largest[layer])):
            largest[layer] = module
    # A norm by itself is not worth an exchange.
    return [module for module in largest.values() if 1000 * _size(module) > _size(backbone)]


def _parts(
    module: nn.Module, prefix: str, ids: Mapping[str, int]
) -> Iterator[tuple[int, nn.Module]]:
    """Yield the largest submodules whose parameters belong to one layer, with its number."""
    for name, child in module.named_children():
        path = f"{prefix}{name}."
        layers = {ids[path + parameter] for parameter, _ in child.named_parameters()}
        # Containers may be iterated instead of called.
        if len(layers) > 1 or isinstance(child, _CONTAINERS):
            yield from _parts(child, path, ids)
        elif layers:
            yield layers.pop(), child


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def is_divided(tensor: Tensor) -> bool:
    """Return whether a tensor is a ``DTensor``, of which each process has a part.

    Args:
        tensor: The tensor.

    >>> is_divided(torch.zeros(2))
    False
    """
    return hasattr(tensor, "full_tensor")  # The class takes long to import.


def own_part(tensor: Tensor) -> Tensor:
    """Return what this process has of a tensor, sharing its memory.

    Args:
        tensor: A tensor, divided over the processes or not.
    """
    if not is_divided(tensor):
        return tensor
    with torch.no_grad():
        part: Tensor = tensor.to_local()  # type: ignore[attr-defined]
    return part


@torch.no_grad()
def clip_gradients(
    parameters: Sequence[nn.Parameter],
    max_norm: float,
    group: ProcessGroup | None,
    *,
    sharded: Sequence[nn.Parameter] = (),
) -> None:
    """Scale gradients down to a norm, that of all parameters together.

    Args:
        parameters: The parameters; those without a gradient are left out.
        max_norm: The largest norm.
        group: The processes over which some of the parameters are divided.
        sharded: Parameters of which each process has some rows as a plain tensor.
    """
    divided: list[Tensor] = []
    whole: list[Tensor] = []
    for parameter in parameters:
        if parameter.grad is not None:
            is_part = is_divided(parameter.grad) or any(parameter is one for one in sharded)
            (divided if is_part else whole).append(own_part(parameter.grad))
    squares = sum_over(torch.nn.utils.get_total_norm(divided).square(), group)
    if whole:
        squares = squares + torch.nn.utils.get_total_norm(whole).square()
    factor = (max_norm / (squares.sqrt() + 1e-6)).clamp(max=1.0)
    torch._foreach_mul_(divided + whole, factor)


def gather_state(state: Any, *, keep: bool) -> Any:
    """Return a state with whole tensors in place of divided ones; every process must call it.

    Args:
        state: A tensor, another value, or a dictionary or list of them.
        keep: Whether to return them, on the CPU; otherwise the result is None.

    Returns:
        The state; None unless ``keep`` is True.
    """
    if isinstance(state, Mapping):
        entries = {name: gather_state(value, keep=keep) for name, value in state.items()}
        return entries if keep else None
    if isinstance(state, list | tuple):
        items = [gather_state(value, keep=keep) for value in state]
        return type(state)(items) if keep else None
    if isinstance(state, Tensor) and is_divided(state):
        whole: Tensor = state.detach().full_tensor()  # type: ignore[attr-defined]
        return whole.cpu() if keep else None
    return state if keep else None


@torch.no_grad()
def divide_like(state: Mapping[str, Any], like: Mapping[str, Any] | Tensor) -> dict[str, Any]:
    """Return a state with the own parts of whole tensors where the tensors of another are divided.

    Args:
        state: Whole tensors and other values by name.
        like: Tensors by the same names; or one tensor, for all tensors of its shape.

    Returns:
        The state; entries that ``like`` does not have are as they were.
    """
    targets = {name: like if isinstance(like, Tensor) else like.get(name) for name in state}
    return {
        name: _divide(value, target)
        if isinstance(target, Tensor)
        and is_divided(target)
        and isinstance(value, Tensor)
        and value.shape == target.shape
        else value
        for (name, value), target in zip(state.items(), targets.values(), strict=True)
    }


def _divide(tensor: Tensor, target: Any) -> Tensor:
    from torch.distributed.tensor import DTensor  # noqa: PLC0415  Not in every build.

    mesh, rank = target.device_mesh, target.device_mesh.get_local_rank()
    parts = tensor.chunk(mesh.size())
    return DTensor.from_local(
        (parts[rank] if rank < len(parts) else tensor[:0]).to(target.device),
        mesh,
        target.placements,
        run_check=False,
        shape=target.shape,
        stride=target.stride(),
    )


@contextmanager
def whole_weights(encoder: nn.Module) -> Iterator[None]:
    """Give every process the whole weights while the context is active, for evaluation.

    Every process must enter and leave it; inside of it the encoder exchanges nothing. Does nothing
    to an encoder that is not divided.

    Args:
        encoder: The encoder.
    """
    if not any(is_divided(parameter) for parameter in encoder.parameters()):
        yield
        return
    from torch.distributed.fsdp import FSDPModule  # noqa: PLC0415  Not in every build.

    parts = [module for module in encoder.modules() if isinstance(module, FSDPModule)]
    for part in parts:
        part.set_reshard_after_forward(False, recurse=False)
        part.unshard()
    try:
        yield
    finally:
        for part in parts:
            part.reshard()
            part.set_reshard_after_forward(part is not encoder, recurse=False)
