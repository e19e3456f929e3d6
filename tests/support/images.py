"""Image files for tests."""

from pathlib import Path

import numpy as np
from PIL import Image


def write_image(path: Path, *, seed: int = 0) -> None:
    """Write a smooth random image of random size."""
    rng = np.random.default_rng(seed)
    height, width = rng.integers(20, 50, 2)
    path.parent.mkdir(parents=True, exist_ok=True)
    coarse = Image.fromarray(rng.integers(0, 256, (5, 6, 3), dtype=np.uint8))
    coarse.resize((int(width), int(height))).save(path)
