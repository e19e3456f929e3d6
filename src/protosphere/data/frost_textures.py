"""Frost textures: pictures of ice that the frost corruption lays over images."""

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from jaxtyping import UInt8
from torch import Tensor

from protosphere.data.corruption_filters import to_levels
from protosphere.data.corruption_random import RandomNumbers
from protosphere.data.corruption_weather import plasma_fractal
from protosphere.data.decoding import decode_image
from protosphere.data.splits import DataError

# The published program reads six pictures and draws one of the first five.
NUM_TEXTURES = 5
_SUFFIXES = (".bmp", ".jpeg", ".jpg", ".png", ".webp")
_SIDE = 1024
# Levels of thin and thick ice.
_DARK, _BRIGHT = (0.16, 0.22, 0.30), (0.94, 0.97, 1.0)


@dataclass(frozen=True, eq=False)
class FrostTextures:
    """Pictures of frost on the CPU.

    Attributes:
        textures: The pictures, at most five are used. They may differ in size.
        source: Where they come from: ``"procedural"`` or a folder.
    """

    textures: tuple[UInt8[Tensor, "3 _ _"], ...]
    source: str

    def __post_init__(self) -> None:
        if not self.textures:
            raise DataError("FrostTextures needs at least one texture, got none")

    @property
    def fingerprint(self) -> str:
        """A digest of the pictures, which determines the corrupted images."""
        digest = hashlib.sha256()
        for texture in self.textures:
            digest.update(str(tuple(texture.shape)).encode())
            digest.update(texture.contiguous().numpy().tobytes())
        return digest.hexdigest()[:16]


def read_frost_textures(folder: Path | str) -> FrostTextures:
    """Read the pictures of frost in a folder, such as frost1.png to frost6.jpg of ImageNet-C.

    Args:
        folder: Folder with image files. The first five by name are used, as published.

    Raises:
        DataError: The folder is missing or holds no image, or an image cannot be read.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(f"the folder of frost textures must exist; {folder} does not")
    paths = sorted(path for path in folder.iterdir() if path.suffix.lower() in _SUFFIXES)
    if not paths:
        raise DataError(
            f"the folder of frost textures must hold image files ({', '.join(_SUFFIXES)}); "
            f"{folder} holds none"
        )
    textures = []
    for path in paths[:NUM_TEXTURES]:
        texture = decode_image(str(path))
        if isinstance(texture, str):
            raise DataError(texture)
        textures.append(texture)
    return FrostTextures(tuple(textures), str(folder))


@lru_cache(maxsize=1)
def procedural_frost_textures() -> FrostTextures:
    """Make five pictures of 1024 × 1024 pixels that look like frost, always the same ones.

    Crests of a rough plasma fractal are the crystals and a smoother one the thickness of the ice.
    They stand in for the published photographs, which they resemble in brightness and scale only:
    errors under frost are not comparable with published ones.
    """
    textures = []
    for number in range(NUM_TEXTURES):
        crystals, thickness = (
            plasma_fractal(
                RandomNumbers(
                    seed=number,
                    name=f"texture of {part}",
                    severity=1,
                    first_index=0,
                    num_images=1,
                    device=torch.device("cpu"),
                ).uniform(_SIDE * _SIDE - 1),
                decay,
            )
            for part, decay in (("crystals", 1.45), ("ice", 1.9))
        )
        crests = (1 - (2 * crystals - 1).abs()).square()
        ice = (0.15 * thickness + 0.85 * crests * (0.4 + 0.8 * thickness)).clamp(0, 1)
        dark, bright = (torch.tensor(color).to(ice)[:, None, None] for color in (_DARK, _BRIGHT))
        textures.append(to_levels(dark + (bright - dark) * ice))
    return FrostTextures(tuple(textures), "procedural")
