"""Pretrained weights of backbones: timm's own, or from a file, and the input they expect."""

import logging
import pickle
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from protosphere.encoders.timm_models import check_model_name, import_timm

_LOG = logging.getLogger("protosphere")
# Entries of a checkpoint under which training programs store the weights.
_WRAPPERS = ("state_dict", "model")
# Parts of a key that wrappers of the model add, and what our own runs call the backbone.
_PREFIXES = ("module.", "_orig_mod.")
_BACKBONE_PREFIXES = ("encoder.backbone.", "backbone.")
# First bytes of the files of torch.save and of pickles.
_PICKLE_STARTS = (b"PK", b"\x80")


class InputConfig(NamedTuple):
    """What a pretrained model expects of its input.

    Attributes:
        mean: Mean of each channel, which is subtracted.
        std: Standard deviation of each channel, by which the result is divided.
        size: Height and width of the images.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    size: int


def input_config(name: str, *, in_channels: int = 3) -> InputConfig | None:
    """Return the input that the pretrained weights of a model expect.

    Args:
        name: Name of the backbone.
        in_channels: Number of image channels. Other numbers than 3 take the mean over the three
            channels for all of them.

    Returns:
        The values of timm's own configuration of the model; None if there is none, as for
        ``"small"``.

    Raises:
        ValueError: The model is unknown.
        ImportError: timm is not installed.

    >>> input_config("resnet18").mean
    (0.485, 0.456, 0.406)
    """
    if name == "small":
        return None
    check_model_name(name)
    config = import_timm().get_pretrained_cfg(name)
    if config is None:
        return None
    mean, std = tuple(config.mean), tuple(config.std)
    if in_channels != len(mean):
        mean, std = ((sum(values) / len(values),) * in_channels for values in (mean, std))
    return InputConfig(mean, std, int(config.input_size[-1]))


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """Read a state dict from a file; no code that the file contains is executed.

    Args:
        path: A ``.safetensors`` file, or a file of ``torch.save`` that holds a state dict, alone
            or under the key ``"state_dict"`` or ``"model"``.

    Returns:
        The weights by name, on the CPU.

    Raises:
        ValueError: The file is missing or is not such a file.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"pretrained must be true or a file of weights, but {path} is not a file")
    if path.suffix == ".safetensors":
        try:
            return load_file(path)
        except (SafetensorError, OSError) as error:
            raise _not_weights(path) from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # A pickle of another protocol is refused below.
            content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        with path.open("rb") as file:
            is_pickle = file.read(2).startswith(_PICKLE_STARTS)
        words = ("GLOBAL", "Unsupported operand")
        if not (is_pickle and any(word in str(error) for word in words)):
            raise _not_weights(path) from error
        raise ValueError(
            f"{path} must hold only tensors; it is a pickle of other Python objects, which could "
            "run code, so it is not loaded (save the state dict, best as .safetensors)"
        ) from error
    except Exception as error:  # The parser can raise anything on a file of another kind.
        raise _not_weights(path) from error
    for wrapper in _WRAPPERS:
        if isinstance(content, Mapping) and isinstance(content.get(wrapper), Mapping):
            content = content[wrapper]
    if not isinstance(content, Mapping) or not content:
        raise _not_weights(path)
    if not all(isinstance(value, Tensor) for value in content.values()):
        raise _not_weights(path)
    return dict(content)


def load_backbone_weights(
    backbone: nn.Module, path: str | Path, *, name: str, in_channels: int = 3
) -> list[str]:
    """Load the weights of a backbone from a file.

    The weights of the classifier are left out. If the weights are of color images and the backbone
    is of another number of channels, its first convolution is adapted as timm does it.

    Args:
        backbone: The backbone, which is changed in place.
        path: File of :func:`read_weights`, of this model in timm, or the weights of one of our own
            runs.
        name: Name of the model, for the error.
        in_channels: Number of image channels of the backbone.

    Returns:
        Names of the weights in the file that were left out.

    Raises:
        ValueError: The file is not one of weights, or its weights are of another model.
    """
    weights, left_out = _backbone_part(read_weights(path))
    config: Mapping[str, Any] = getattr(backbone, "pretrained_cfg", None) or {}
    for classifier in _names(config.get("classifier")):
        left_out += [key for key in weights if key.startswith(f"{classifier}.")]
    weights = {key: value for key, value in weights.items() if key not in left_out}
    for layer in _names(config.get("first_conv")):
        key = f"{layer}.weight"
        if in_channels != 3 and key in weights and weights[key].shape[1] == 3:
            from timm.models import adapt_input_conv  # noqa: PLC0415

            weights[key] = adapt_input_conv(in_channels, weights[key])
    misfits = _misfits(backbone.state_dict(), weights)
    if misfits:
        more = f" (and {len(misfits) - 1} more do not fit)" if len(misfits) > 1 else ""
        raise ValueError(
            f"{path} must hold the weights of {name}, but has those of another model: "
            f"{misfits[0]}{more}"
        )
    # Files of old versions of torch have no counters of batches.
    backbone.load_state_dict(weights, strict=False)
    if left_out:
        _LOG.info("%s: left out %s", path, ", ".join(left_out))
    return left_out


def create_pretrained(name: str, **options: Any) -> nn.Module:
    """Create a timm model with timm's own weights, which are downloaded unless they are cached.

    Args:
        name: Name of the model.
        **options: Further arguments of ``timm.create_model``.

    Returns:
        The model.

    Raises:
        ValueError: timm has no weights of this model, or they cannot be fetched.
    """
    timm = import_timm()
    config = timm.get_pretrained_cfg(name)
    alternative = "give the path of a .safetensors or state dict file as pretrained instead"
    if config is None or not config.has_weights:
        raise ValueError(f"timm has no pretrained weights of {name}; {alternative}")
    unreachable = f"the pretrained weights of {name} cannot be fetched; {alternative}"
    if config.hf_hub_id and not _can_be_fetched(config.hf_hub_id):
        raise ValueError(unreachable)
    hub = logging.getLogger("huggingface_hub")
    level = hub.level
    hub.setLevel(logging.ERROR)  # It reports every attempt.
    try:
        model: nn.Module = timm.create_model(name, pretrained=True, **options)
    except (OSError, RuntimeError, ValueError) as error:
        raise ValueError(unreachable) from error
    finally:
        hub.setLevel(level)
    return model


def _can_be_fetched(repository: str) -> bool:
    """Whether a repository of weights is cached or answers; timm itself tries for a minute."""
    from huggingface_hub import HfApi, constants  # noqa: PLC0415
    from huggingface_hub.errors import HfHubHTTPError  # noqa: PLC0415

    cache = Path(constants.HF_HUB_CACHE, f"models--{repository.replace('/', '--')}", "snapshots")
    if any(cache.glob("*/*")):
        return True
    try:
        HfApi().model_info(repository, timeout=10)
    except HfHubHTTPError:  # It answers; timm finds out what it has.
        return True
    except Exception:  # Of the HTTP client, which differs between versions.
        return False
    return True


def _backbone_part(weights: dict[str, Tensor]) -> tuple[dict[str, Tensor], list[str]]:
    """Return the weights of the backbone under its own names, and the names of all others."""
    for prefix in _PREFIXES:
        if all(key.startswith(prefix) for key in weights):
            weights = {key.removeprefix(prefix): value for key, value in weights.items()}
    for prefix in _BACKBONE_PREFIXES:
        part = {
            key.removeprefix(prefix): value
            for key, value in weights.items()
            if key.startswith(prefix)
        }
        if part:
            return part, [key for key in weights if not key.startswith(prefix)]
    return weights, []


def _misfits(expected: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> list[str]:
    """Describe each weight that is missing, of another shape or unexpected."""
    problems = []
    for key, value in expected.items():
        if key not in given:
            if not key.endswith("num_batches_tracked"):
                problems.append(f"{key} is missing")
        elif given[key].shape != value.shape:
            shapes = f"{tuple(given[key].shape)} instead of {tuple(value.shape)}"
            problems.append(f"{key} has shape {shapes}")
    return problems + [f"{key} is unexpected" for key in given if key not in expected]


def _names(value: Any) -> tuple[str, ...]:
    """Return the names in an entry of timm's configuration: None, one or several."""
    if value is None:
        return ()
    return (value,) if isinstance(value, str) else tuple(value)


def _not_weights(path: Path) -> ValueError:
    return ValueError(f"{path} must be a .safetensors file or a state dict, but it is neither")
