"""Parameter groups: learning rate multipliers, layer-wise decay and exclusion from weight decay."""

import fnmatch
import math
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, NamedTuple

from torch import nn

from protosphere.encoders import Encoder
from protosphere.encoders.timm_models import layer_ids
from protosphere.training.objective import Objective


class ParameterGroup(NamedTuple):
    """Parameters that are optimized in the same way.

    Attributes:
        names: Names of the parameters in the objective.
        parameters: The parameters.
        lr_scale: Multiplier of the learning rate.
        has_weight_decay: Whether weight decay applies.
    """

    names: list[str]
    parameters: list[nn.Parameter]
    lr_scale: float
    has_weight_decay: bool

    def description(self) -> dict[str, Any]:
        """Return everything besides the parameters themselves as plain types, for checkpoints."""
        return {
            "names": list(self.names),
            "lr_scale": self.lr_scale,
            "has_weight_decay": self.has_weight_decay,
        }


@dataclass(frozen=True)
class ParameterGroups:
    """How parts of an objective are optimized differently.

    A parameter of layer l of L in the backbone has the learning rate
    lr · ``backbone_lr_scale`` · ``layer_decay``^(L − l), where the stem is layer 0 and layer L
    would be a classifier, as in timm and BEiT.

    Args:
        backbone_lr_scale: Multiplier of the learning rate for the backbone.
        neck_lr_scale: Multiplier of the learning rate for neck and projection.
        head_lr_scale: Multiplier of the learning rate for the head.
        layer_decay: Factor between the learning rates of successive layers of the backbone; None
            for no decay.
        exclude_from_decay: ``"norms_and_biases"`` applies no weight decay to biases, parameters of
            at most one dimension and those that the backbone lists in ``no_weight_decay()``.

    Raises:
        ValueError: An argument is out of range.

    >>> ParameterGroups(backbone_lr_scale=0.1, exclude_from_decay="norms_and_biases").head_lr_scale
    1.0
    """

    _: KW_ONLY
    backbone_lr_scale: float = 1.0
    neck_lr_scale: float = 1.0
    head_lr_scale: float = 1.0
    layer_decay: float | None = None
    exclude_from_decay: Literal["none", "norms_and_biases"] = "none"

    def __post_init__(self) -> None:
        for name in ("backbone_lr_scale", "neck_lr_scale", "head_lr_scale"):
            value = getattr(self, name)
            if not 0 < value < math.inf:
                raise ValueError(f"{name} must be a positive number, got {value}")
        if self.layer_decay is not None and not 0 < self.layer_decay <= 1:
            raise ValueError(
                f"layer_decay must be greater than 0 and at most 1, got {self.layer_decay}"
            )
        if self.exclude_from_decay not in ("none", "norms_and_biases"):
            raise ValueError(
                "exclude_from_decay must be 'none' or 'norms_and_biases', "
                f"got {self.exclude_from_decay!r}"
            )

    def split(self, objective: Objective) -> list[ParameterGroup]:
        """Divide the parameters of an objective that require gradients into groups.

        Args:
            objective: The objective. Parameters of an encoder that is not an
                :class:`~protosphere.encoders.Encoder` are those of a backbone.

        Returns:
            The groups, each with at least one parameter, in the order of their first parameters.

        Raises:
            ValueError: No parameter requires a gradient, a multiplier is for a part without such
                parameters, or ``layer_decay`` is given and timm cannot number the layers of the
                backbone.
            ImportError: ``layer_decay`` is given and timm is not installed.
        """
        trainable = {name: p for name, p in objective.named_parameters() if p.requires_grad}
        if not trainable:
            raise ValueError("there must be something to train, but every parameter is frozen")
        self._check_parts({_part(objective, name) for name in trainable})
        scales = self._layer_scales(objective)
        excluded = self._excluded(objective, trainable)
        groups: dict[tuple[float, bool], ParameterGroup] = {}
        for name, parameter in trainable.items():
            scale = getattr(self, _part(objective, name)) * scales.get(name, 1.0)
            key = (scale, name not in excluded)
            group = groups.setdefault(key, ParameterGroup([], [], *key))
            group.names.append(name)
            group.parameters.append(parameter)
        return list(groups.values())

    def _check_parts(self, parts: set[str]) -> None:
        """Raise ValueError if a setting would have no effect."""
        for name in ("backbone_lr_scale", "neck_lr_scale", "head_lr_scale"):
            if name not in parts and getattr(self, name) != 1:
                part = name.removesuffix("_lr_scale")
                raise ValueError(
                    f"{name} must be 1 for a model whose {part} has nothing to train, "
                    f"got {getattr(self, name)}"
                )
        if self.layer_decay is not None and "backbone_lr_scale" not in parts:
            raise ValueError(
                "layer_decay must not be given for a backbone that has nothing to train, "
                f"got {self.layer_decay}"
            )

    def _layer_scales(self, objective: Objective) -> dict[str, float]:
        """Return the factor of layer-wise decay by parameter name."""
        if self.layer_decay is None:
            return {}
        prefix, backbone = _backbone(objective)
        ids, num_layers = layer_ids(backbone, coarse=False)
        return {
            f"{prefix}{name}": self.layer_decay ** (num_layers - layer)
            for name, layer in ids.items()
        }

    def _excluded(self, objective: Objective, trainable: dict[str, nn.Parameter]) -> set[str]:
        """Return the names of the parameters without weight decay."""
        if self.exclude_from_decay == "none":
            return set()
        names = {
            name
            for name, p in trainable.items()
            if p.ndim <= 1 or name.rpartition(".")[2] == "bias"
        }
        prefix, backbone = _backbone(objective)
        listed: set[str] = getattr(backbone, "no_weight_decay", set)()
        for pattern in listed:  # timm has names and patterns of names.
            names |= set(fnmatch.filter(trainable, f"{prefix}{pattern}"))
        return names


def _backbone(objective: Objective) -> tuple[str, nn.Module]:
    """Return the backbone and the prefix of its parameters in the objective."""
    if isinstance(objective.encoder, Encoder):
        return "encoder.backbone.", objective.encoder.backbone
    return "encoder.", objective.encoder


def _part(objective: Objective, name: str) -> str:
    """Return the multiplier that applies to a parameter."""
    if name.startswith(_backbone(objective)[0]):
        return "backbone_lr_scale"
    return "neck_lr_scale" if name.startswith("encoder.") else "head_lr_scale"
