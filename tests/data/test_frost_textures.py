"""Frost textures: made by the program or read from a folder."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from protosphere.data import (
    DataError,
    FrostTextures,
    corrupt,
    procedural_frost_textures,
    read_frost_textures,
)
from protosphere.data.frost_textures import _texture
from support.images import write_image


def test_procedural_textures_are_always_the_same_and_differ_from_each_other() -> None:
    frost = procedural_frost_textures()
    assert [tuple(texture.shape) for texture in frost.textures] == [(3, 1024, 1024)] * 5
    assert torch.equal(_texture(2), frost.textures[2])
    assert len({texture.double().mean().item() for texture in frost.textures}) == 5
    for texture in frost.textures:
        red, green, blue = texture.double().mean((1, 2))
        assert 80 < red < green < blue < 180
        assert texture.double().std() > 20


def test_frost_uses_the_procedural_textures_unless_others_are_given() -> None:
    images = torch.full((2, 3, 32, 32), 90, dtype=torch.uint8)
    default = corrupt(images, "frost", severity=1)
    assert torch.equal(
        default, corrupt(images, "frost", severity=1, frost=procedural_frost_textures())
    )
    white = FrostTextures((torch.full((3, 200, 200), 255, dtype=torch.uint8),), "white")
    assert corrupt(images, "frost", severity=1, frost=white).unique().tolist() == [90 + 51]


def test_the_first_five_pictures_of_a_folder_are_read_by_name(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (6, 20, 30, 3), dtype=np.uint8)
    for number in reversed(range(6)):
        Image.fromarray(pixels[number]).save(tmp_path / f"frost{number + 1}.png")
    (tmp_path / "a.txt").write_text("not an image")
    frost = read_frost_textures(tmp_path)
    assert len(frost.textures) == 5
    for texture, picture in zip(frost.textures, pixels, strict=False):
        assert (texture.permute(1, 2, 0).numpy() == picture).all()
    assert frost.source == str(tmp_path)
    assert frost.fingerprint == read_frost_textures(tmp_path).fingerprint
    assert frost.fingerprint != FrostTextures(frost.textures[:4], "").fingerprint


@pytest.mark.bad_input
def test_missing_damaged_and_small_textures_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"must exist; .*nowhere does not"):
        read_frost_textures(tmp_path / "nowhere")
    with pytest.raises(DataError, match="must hold image files"):
        read_frost_textures(tmp_path)
    write_image(tmp_path / "frost1.png")
    small = read_frost_textures(tmp_path)
    images = torch.zeros(1, 3, 32, 32, dtype=torch.uint8)
    with pytest.raises(DataError, match="larger than the images, 160 × 160 pixels"):
        corrupt(images, "frost", severity=1, frost=small)
    (tmp_path / "frost2.jpg").write_bytes(b"damaged")
    with pytest.raises(DataError, match=r"frost2.jpg must be an image file"):
        read_frost_textures(tmp_path)
    with pytest.raises(DataError, match="at least one texture"):
        FrostTextures((), "")
