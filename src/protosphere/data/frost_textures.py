"""Frost textures: pictures of ice that the frost corruption lays over images."""

import hashlib
import math
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from jaxtyping import Float64, UInt8
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
_NUM_CRYSTALS = 600
# Levels of thin and thick ice.
_DARK, _BRIGHT = (0.10, 0.15, 0.22), (0.94, 0.97, 1.0)


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

    Crystals like feathers, brighter where the ice is thicker, on a cloudy ground. They stand in for
    the published photographs, which they resemble in brightness and scale only: errors under frost
    are not comparable with published ones.
    """
    return FrostTextures(tuple(_texture(number) for number in range(NUM_TEXTURES)), "procedural")


def _texture(number: int) -> UInt8[Tensor, "3 side side"]:
    def uniform(name: str, count: int) -> Tensor:
        random = RandomNumbers(
            seed=number,
            name=f"frost texture, {name}",
            severity=1,
            first_index=0,
            num_images=1,
            device=torch.device("cpu"),
        )
        return random.uniform(count)

    ground = plasma_fractal(uniform("ground", _SIDE * _SIDE - 1), 1.6).squeeze(0)
    crystals = _feathers(uniform("crystals", 5 * _NUM_CRYSTALS).view(5, -1, 1, 1, 1))
    ice = 0.3 * ground + crystals * (0.4 + 0.9 * ground)
    dark, bright = (torch.tensor(color).to(ice)[:, None, None] for color in (_DARK, _BRIGHT))
    return to_levels(torch.lerp(dark, bright, ice.clamp(0, 1)))


def _feathers(numbers: Float64[Tensor, "5 crystals 1 1 1"]) -> Float64[Tensor, "side side"]:
    """Draw straight crystals with branches at 60 degrees that grow shorter towards the tip."""
    x, y = numbers[0] * _SIDE, numbers[1] * _SIDE
    angle, length = numbers[2] * (2 * math.pi), 30 + 170 * numbers[3]
    # Axes: crystals, place of the branch along the crystal, side of it, place along the branch.
    along = torch.linspace(0, 1, 24, dtype=torch.float64)[:, None, None]
    side = torch.tensor([-1.0, 1.0], dtype=torch.float64)[:, None]
    across = torch.linspace(0, 1, 48, dtype=torch.float64)
    branch = angle + side * (math.pi / 3)
    reach = across * (0.3 * length * (1 - along))
    columns = x + along * length * angle.cos() + reach * branch.cos()
    rows = y + along * length * angle.sin() + reach * branch.sin()
    light = (0.4 + 0.6 * numbers[4]) * (1 - 0.6 * across) * (1 - 0.4 * along)
    index = rows.long().remainder(_SIDE) * _SIDE + columns.long().remainder(_SIDE)
    drawn = torch.zeros(_SIDE * _SIDE, dtype=torch.float64)
    drawn.scatter_reduce_(0, index.flatten(), light.expand_as(index).flatten(), "amax")
    drawn = drawn.view(_SIDE, _SIDE)
    for axis in (0, 1):
        drawn = (drawn.roll(1, axis) + 2 * drawn + drawn.roll(-1, axis)) / 4
    return drawn / drawn.max()
