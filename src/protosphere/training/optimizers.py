"""Optimizers: SGD, AdamW and timm's by name, as settings that create them."""

import difflib
import inspect
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, ClassVar, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor, nn

# Parameters, or groups of them as dictionaries with the key "params".
Parameters: TypeAlias = Iterable[nn.Parameter] | Iterable[dict[str, Any]]


def _check_momentum(name: str, value: float) -> None:
    if not 0 <= value < 1:
        raise ValueError(f"{name} must be at least 0 and less than 1, got {value}")


def _check_weight_decay(value: float) -> None:
    if not 0 <= value < math.inf:
        raise ValueError(f"weight_decay must be a number of at least 0, got {value}")


@runtime_checkable
class OptimizerConfig(Protocol):
    """What an optimizer of :class:`TrainConfig` must have; those of this module do."""

    @property
    def name(self) -> str:
        """Name of the optimizer, as it is stored in checkpoints."""
        ...

    @property
    def is_capturable(self) -> bool:
        """Whether a step can be captured in a CUDA graph and skipped by ``found_inf``."""
        ...

    def create(
        self, parameters: Parameters, lr: float | Tensor, *, capturable: bool = False
    ) -> torch.optim.Optimizer:
        """Create the optimizer.

        Args:
            parameters: Parameters to optimize, or groups of them; a group may have its own ``lr``
                and ``weight_decay``.
            lr: Learning rate; a tensor if it is changed in place.
            capturable: Whether a step must be capturable in a CUDA graph.

        Returns:
            The optimizer.
        """
        ...


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent.

    Args:
        momentum: Momentum factor.
        weight_decay: Weight decay (L2 penalty) of all parameters.

    Raises:
        ValueError: An argument is out of range.
    """

    momentum: float = 0.9
    weight_decay: float = 1e-4
    name: ClassVar[str] = "sgd"
    is_capturable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_momentum("momentum", self.momentum)
        _check_weight_decay(self.weight_decay)

    def create(
        self, parameters: Parameters, lr: float | Tensor, *, capturable: bool = False
    ) -> torch.optim.Optimizer:
        """Create the optimizer; see :meth:`OptimizerConfig.create`."""
        optimizer = torch.optim.SGD(
            parameters,
            lr,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            fused=True if capturable else None,
        )
        if capturable and self.momentum:
            # torch leaves new buffers uninitialized if loss scaling skips the first step.
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    buffer = torch.zeros_like(parameter, requires_grad=False)
                    optimizer.state[parameter]["momentum_buffer"] = buffer
        return optimizer


@dataclass(frozen=True)
class AdamW:
    """Adam with decoupled weight decay.

    Args:
        betas: Decay rates of the running averages of the gradient and of its square.
        weight_decay: Weight decay coefficient of all parameters.

    Raises:
        ValueError: An argument is out of range.
    """

    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 1e-4
    name: ClassVar[str] = "adamw"
    is_capturable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for beta in self.betas:
            _check_momentum("betas", beta)
        _check_weight_decay(self.weight_decay)

    def create(
        self, parameters: Parameters, lr: float | Tensor, *, capturable: bool = False
    ) -> torch.optim.Optimizer:
        """Create the optimizer; see :meth:`OptimizerConfig.create`."""
        return torch.optim.AdamW(
            parameters,
            lr,
            betas=self.betas,
            weight_decay=self.weight_decay,
            fused=True if capturable else None,
            capturable=capturable,
        )


@dataclass(frozen=True)
class TimmOptimizer:
    """An optimizer of timm, as ``timm.optim.create_optimizer_v2`` creates it.

    Its step is not captured in CUDA graphs but runs after them.

    Args:
        optimizer_name: Name of the optimizer in timm, such as ``"lamb"`` or ``"lion"``.
        weight_decay: Weight decay of all parameters, as the optimizer defines it.
        options: Further arguments of the optimizer, such as ``betas``.

    Raises:
        ValueError: timm has no such optimizer, it needs second-order gradients, or it cannot be
            created because of the options or because a package is not installed, or does not use an
            option.
        ImportError: timm is not installed.

    >>> TimmOptimizer("lamb", weight_decay=0.02).name
    'lamb'
    """

    optimizer_name: str
    weight_decay: float = 1e-4
    options: Mapping[str, Any] = field(default_factory=dict)
    is_capturable: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _check_weight_decay(self.weight_decay)
        name, names = self.optimizer_name, timm_optimizer_names()
        if name not in names:
            near = difflib.get_close_matches(name, names, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"optimizer must be one of timm's, got {name!r}{hint}")
        try:
            self.create([nn.Parameter(torch.zeros(2, 2))], 0.1)
        except Exception as error:  # Each optimizer checks its arguments in its own way.
            reason = " ".join(str(error).split())
            raise ValueError(
                f"the optimizer {name} cannot be created with the options {dict(self.options)}: "
                f"{reason}"
            ) from error
        self._check_options()

    def _check_options(self) -> None:
        """Raise ValueError for an option that timm accepts and does not use."""
        optim = _import_timm_optim()
        info = optim.get_optimizer_info(self.optimizer_name)
        optimizer = optim.get_optimizer_class(self.optimizer_name, bind_defaults=False)
        used = set(inspect.signature(optimizer).parameters) - {"params", "lr", "weight_decay"}
        used -= {"eps"} if not info.has_eps else set()
        used -= {"betas"} if not info.has_betas else set()
        for key in self.options:
            if key not in used:
                raise ValueError(
                    f"options must not have {key}, which has no effect on the optimizer "
                    f"{self.optimizer_name}; it has {', '.join(sorted(used))}"
                )

    @property
    def name(self) -> str:
        """Name of the optimizer, as it is stored in checkpoints."""
        return self.optimizer_name

    def create(
        self,
        parameters: Parameters,
        lr: float | Tensor,
        *,
        capturable: bool = False,  # noqa: ARG002
    ) -> torch.optim.Optimizer:
        """Create the optimizer; see :meth:`OptimizerConfig.create`."""
        optimizer: torch.optim.Optimizer = _import_timm_optim().create_optimizer_v2(
            parameters,
            opt=self.optimizer_name,
            lr=float(lr),
            weight_decay=self.weight_decay,
            **self.options,
        )
        return optimizer


def timm_optimizer_names() -> list[str]:
    """Return the names of timm's optimizers that can be used here.

    Those that need second-order gradients are left out.

    Raises:
        ImportError: timm is not installed.

    >>> "lamb" in timm_optimizer_names()
    True
    """
    optim = _import_timm_optim()
    names: list[str] = optim.list_optimizers()
    return [name for name in names if not optim.get_optimizer_info(name).second_order]


def _import_timm_optim() -> ModuleType:
    try:
        import timm.optim  # noqa: PLC0415
    except ImportError as error:
        raise ImportError(
            'this optimizer needs timm, which is not installed: pip install "protosphere[train]"'
        ) from error
    module: ModuleType = timm.optim
    return module
