"""Find pretrained weights without the network: in the caches of timm, or of a given file."""

import json
import re
from pathlib import Path
from typing import NamedTuple

from protosphere.encoders import create_backbone
from protosphere.encoders.timm_models import import_timm

# Models that are fine-tuned often, the first one first; others that are cached come after them.
_PREFERRED = (
    "convnext_tiny",
    "resnet50",
    "tf_efficientnetv2_s",
    "efficientnet_b0",
    "tf_efficientnet_lite0",
    "resnet34",
    "mobilenetv3_large_100",
    "resnet18",
)
_WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")
_CACHED = "models--timm--"
# The end of the file names of torch and timm, e.g. resnet18-5c106cde.
_HASH = re.compile(r"[-_.][0-9a-f]{8}$")


class Weights(NamedTuple):
    """Pretrained weights.

    Attributes:
        backbone: Name of the timm model, with the tag of its weights if it is known.
        pretrained: Value of ``model.backbone.pretrained``: a path, or True for timm's own weights.
    """

    backbone: str
    pretrained: str | bool


def find_cached_weights(
    backbone: str | None = None, *, cache: Path | None = None
) -> Weights | None:
    """Find weights of timm in the cache of Hugging Face, without the network.

    Args:
        backbone: Model that the weights must be of; None takes any.
        cache: Folder of the cache; None is the one that ``huggingface_hub`` uses.

    Returns:
        The weights of a model that is fine-tuned often, or else of any model that timm knows; None
        if there are none.

    Raises:
        ImportError: timm is not installed.
    """
    is_model = import_timm().is_model
    if cache is None:
        from huggingface_hub.constants import HF_HUB_CACHE  # noqa: PLC0415

        cache = Path(HF_HUB_CACHE)
    found = sorted(
        folder.name.removeprefix(_CACHED)
        for folder in cache.glob(f"{_CACHED}*")
        if any(any(folder.glob(f"snapshots/*/{name}")) for name in _WEIGHT_FILES)
    )
    names = [name for name in found if is_model(name)]
    if backbone is not None:
        names = [name for name in names if backbone in (name, _architecture(name))]
    order = {name: rank for rank, name in enumerate(_PREFERRED)}
    names.sort(key=lambda name: order.get(_architecture(name), len(order)))
    return Weights(names[0], True) if names else None


def _architecture(name: str) -> str:
    return name.partition(".")[0]


def weights_from_file(path: Path, backbone: str | None = None) -> Weights:
    """Return the weights of a file after loading them once into their model.

    Args:
        path: File of weights under timm's names.
        backbone: Name of the model; None finds it in the name of the file, the names of its
            folders, or a ``config.json`` beside it.

    Raises:
        ValueError: The model cannot be found, the file is not one of weights, or its weights are of
            another model.
    """
    name = backbone or (_model_of_file(path) if path.is_file() else "resnet18")
    if name is None:
        raise ValueError(
            f"the model of {path} must be known; name the file after its timm model, "
            "such as resnet18.safetensors, or give --backbone"
        )
    create_backbone(name, pretrained=path)
    return Weights(name, str(path))


def _model_of_file(path: Path) -> str | None:
    """Return the timm model that a path speaks of."""
    timm = import_timm()
    try:
        config = json.loads((path.parent / "config.json").read_text(encoding="utf-8"))
        if timm.is_model(str(config["architecture"])):
            return str(config["architecture"])
    except (OSError, ValueError, KeyError, TypeError):
        pass  # There is no such file, or it is one of something else.
    known: list[str] = timm.list_models()
    for text in (path.stem, *(parent.name for parent in path.parents[:3])):
        name = _HASH.sub("", text.removeprefix(_CACHED))
        if timm.is_model(name):
            return _architecture(name)
        # The longest name that the text begins with: resnet18_a1_0 is resnet18.
        begins = [model for model in known if re.match(rf"{re.escape(model)}[-_.]", name)]
        if begins:
            return max(begins, key=len)
    return None
