"""Image files for tests."""

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

# A JPEG with an EXIF orientation, and PNG files of these modes.
IMAGE_KINDS = ("rotated JPEG", "L", "RGBA", "P")
DRAWINGS = ("bar", "circle", "cross", "ring", "triangle")


def write_image(path: Path, *, seed: int = 0) -> None:
    """Write a smooth random image of random size."""
    rng = np.random.default_rng(seed)
    height, width = rng.integers(20, 50, 2)
    path.parent.mkdir(parents=True, exist_ok=True)
    coarse = Image.fromarray(rng.integers(0, 256, (5, 6, 3), dtype=np.uint8))
    coarse.resize((int(width), int(height))).save(path)


def write_image_of_kind(path: Path, kind: str, pixels: np.ndarray) -> None:
    """Write an image as cameras and programs do.

    Args:
        path: Path of the file.
        kind: One of ``IMAGE_KINDS``.
        pixels: RGB pixels.
    """
    image = Image.fromarray(pixels)
    if kind == "rotated JPEG":
        exif = Image.Exif()
        exif[274] = 6  # Orientation: rotate by 90° clockwise.
        image.save(path, format="jpeg", exif=exif)
    else:
        image.convert(kind).save(path, format="png")


def write_drawings(
    folder: Path, *, classes: int = 5, per_class: int = 60, size: int = 40, seed: int = 0
) -> None:
    """Draw shapes of distinguishable classes as PNG files, FOLDER/CLASS/NUMBER.png.

    Position, extent and colors of a shape are random, and so are the sides of an image, which are
    up to a fifth longer than ``size``.

    Args:
        folder: Folder to write to.
        classes: Number of classes, at most 5: bars, circles, crosses, rings and triangles.
        per_class: Number of images of each class.
        size: Smallest side of an image in pixels.
        seed: Seed of everything random.
    """
    rng = np.random.default_rng(seed)
    for name in DRAWINGS[:classes]:
        (folder / name).mkdir(parents=True, exist_ok=True)
        for index in range(per_class):
            _draw(name, size, rng).save(folder / name / f"{index:03}.png")


def _draw(name: str, size: int, rng: np.random.Generator) -> Image.Image:
    width, height = (int(side) for side in rng.integers(size, size + size // 5 + 1, 2))
    paper, ink = (tuple(map(int, rng.integers(low, low + 80, 3))) for low in (170, 0))
    image = Image.new("RGB", (width, height), paper)
    draw = ImageDraw.Draw(image)
    radius = int(rng.integers(size // 4, size // 3 + 1))
    line = max(2, size // 8)
    x = int(rng.integers(radius + 1, width - radius))
    y = int(rng.integers(radius + 1, height - radius))
    box = (x - radius, y - radius, x + radius, y + radius)
    if name == "circle":
        draw.ellipse(box, fill=ink)
    elif name == "ring":
        draw.ellipse(box, outline=ink, width=line)
    elif name == "triangle":
        draw.polygon([(x, box[1]), (box[0], box[3]), (box[2], box[3])], fill=ink)
    else:
        draw.line((box[0], y, box[2], y), fill=ink, width=line)
        if name == "cross":
            draw.line((x, box[1], x, box[3]), fill=ink, width=line)
    return image
