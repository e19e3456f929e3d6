"""Access to timm, which is an optional dependency: its import, model names and layer groups."""

import difflib
from types import ModuleType
from typing import Any

from torch import nn


def import_timm() -> ModuleType:
    """Import timm.

    Raises:
        ImportError: timm is not installed.
    """
    try:
        import timm  # noqa: PLC0415
    except ImportError as error:
        raise ImportError(
            'backbones need timm, which is not installed: pip install "protosphere[train]"'
        ) from error
    module: ModuleType = timm
    return module


def check_model_name(name: str) -> None:
    """Check that timm has a model.

    Args:
        name: Name of the model, with or without the tag of its weights.

    Raises:
        ValueError: timm has no such model.
        ImportError: timm is not installed.
    """
    timm = import_timm()
    if not timm.is_model(name):
        near = difflib.get_close_matches(name, ["small", *timm.list_models()], 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"backbone must be 'small' or a timm model, got {name!r}{hint}")


def layer_ids(backbone: nn.Module, *, coarse: bool) -> tuple[dict[str, int], int]:
    """Number the layers of a backbone from its input to its output with timm's group matcher.

    Args:
        backbone: The backbone.
        coarse: Whether a layer is a stage instead of a block.

    Returns:
        The layer of each parameter by name, 0 for the stem, and the number of layers including the
        stem. Parameters after the last block that belong to no layer have this number, which is
        that of a classifier.

    Raises:
        ValueError: The backbone has no group matcher.
        ImportError: timm is not installed.

    >>> from protosphere.encoders import create_backbone
    >>> ids, num_layers = layer_ids(create_backbone("small"), coarse=True)
    >>> ids["layers.0.weight"], ids["layers.7.bias"], num_layers
    (0, 2, 3)
    """
    import_timm()
    from timm.models._manipulate import group_with_matcher  # noqa: PLC0415

    matcher: Any = getattr(backbone, "group_matcher", None)
    if not callable(matcher):
        kind = type(backbone).__name__
        raise ValueError(f"the backbone must have layers that timm can number, got {kind}")
    # The empty name matches no layer, so its number is that of a classifier.
    names = ["", *(name for name, _ in backbone.named_parameters())]
    ids: dict[str, int] = group_with_matcher(
        ((name, name) for name in names), matcher(coarse=coarse), reverse=True
    )
    num_layers = ids.pop("")
    return ids, num_layers
