"""The constants of the corruptions against those of the published programs, typed separately."""

import pytest

from protosphere.data import CORRUPTIONS, EXTRA_CORRUPTIONS
from protosphere.data.corruption_constants import LARGE_IMAGES, SMALL_IMAGES, constants

# One line per corruption: the five severities, separated by semicolons; zoom_blur as stop, step.
CIFAR_C = """
gaussian_noise 0.04; 0.06; 0.08; 0.09; 0.10
shot_noise 500; 250; 100; 75; 50
impulse_noise 0.01; 0.02; 0.03; 0.05; 0.07
speckle_noise 0.06; 0.1; 0.12; 0.16; 0.2
gaussian_blur 0.4; 0.6; 0.7; 0.8; 1
glass_blur 0.05 1 1; 0.25 1 1; 0.4 1 1; 0.25 1 2; 0.4 1 2
defocus_blur 0.3 0.4; 0.4 0.5; 0.5 0.6; 1 0.2; 1.5 0.1
motion_blur 6 1; 6 1.5; 6 2; 8 2; 9 2.5
zoom_blur 1.06 0.01; 1.11 0.01; 1.16 0.01; 1.21 0.01; 1.26 0.01
fog 0.2 3; 0.5 3; 0.75 2.5; 1 2; 1.5 1.75
frost 1 0.2; 1 0.3; 0.9 0.4; 0.85 0.4; 0.75 0.45
snow 0.1 0.2 1 0.6 8 3 0.95; 0.1 0.2 1 0.5 10 4 0.9; 0.15 0.3 1.75 0.55 10 4 0.9; 0.25 0.3 2.25 0.6 12 6 0.85; 0.3 0.3 1.25 0.65 14 12 0.8
spatter 0.62 0.1 0.7 0.7 0.5 0; 0.65 0.1 0.8 0.7 0.5 0; 0.65 0.3 1 0.69 0.5 0; 0.65 0.1 0.7 0.69 0.6 1; 0.65 0.1 0.5 0.68 0.6 1
contrast 0.75; 0.5; 0.4; 0.3; 0.15
brightness 0.05; 0.1; 0.15; 0.2; 0.3
saturate 0.3 0; 0.1 0; 1.5 0; 2 0.1; 2.5 0.2
jpeg_compression 80; 65; 58; 50; 40
pixelate 0.95; 0.9; 0.85; 0.75; 0.65
elastic_transform 0 0 2.56; 1.6 6.4 2.24; 2.56 1.92 1.92; 3.2 1.28 1.6; 3.2 0.96 0.96
"""  # noqa: E501

IMAGENET_C = """
gaussian_noise 0.08; 0.12; 0.18; 0.26; 0.38
shot_noise 60; 25; 12; 5; 3
impulse_noise 0.03; 0.06; 0.09; 0.17; 0.27
speckle_noise 0.15; 0.2; 0.35; 0.45; 0.6
gaussian_blur 1; 2; 3; 4; 6
glass_blur 0.7 1 2; 0.9 2 1; 1 2 3; 1.1 3 2; 1.5 4 2
defocus_blur 3 0.1; 4 0.5; 6 0.5; 8 0.5; 10 0.5
motion_blur 10 3; 15 5; 15 8; 15 12; 20 15
zoom_blur 1.11 0.01; 1.16 0.01; 1.21 0.02; 1.26 0.02; 1.31 0.03
fog 1.5 2; 2 2; 2.5 1.7; 2.5 1.5; 3 1.4
frost 1 0.4; 0.8 0.6; 0.7 0.7; 0.65 0.7; 0.6 0.75
snow 0.1 0.3 3 0.5 10 4 0.8; 0.2 0.3 2 0.5 12 4 0.7; 0.55 0.3 4 0.9 12 8 0.7; 0.55 0.3 4.5 0.85 12 8 0.65; 0.55 0.3 2.5 0.85 12 12 0.55
spatter 0.65 0.3 4 0.69 0.6 0; 0.65 0.3 3 0.68 0.6 0; 0.65 0.3 2 0.68 0.5 0; 0.65 0.3 1 0.65 1.5 1; 0.67 0.4 1 0.65 1.5 1
contrast 0.4; 0.3; 0.2; 0.1; 0.05
brightness 0.1; 0.2; 0.3; 0.4; 0.5
saturate 0.3 0; 0.1 0; 2 0; 5 0.1; 20 0.2
jpeg_compression 25; 18; 15; 10; 7
pixelate 0.6; 0.5; 0.4; 0.3; 0.25
elastic_transform 488 170.8 24.4; 488 19.52 48.8; 12.2 2.44 4.88; 17.08 2.44 4.88; 29.28 2.44 4.88
"""  # noqa: E501


@pytest.mark.parametrize(("table", "size"), [(CIFAR_C, 32), (IMAGENET_C, 224)])
def test_constants_are_the_published_ones(table: str, size: int) -> None:
    names = []
    for line in table.strip().splitlines():
        name, rest = line.split(" ", 1)
        names.append(name)
        published = [tuple(float(value) for value in row.split()) for row in rest.split(";")]
        assert len(published) == 5
        for severity, row in enumerate(published, start=1):
            ours = constants(name, severity=severity, height=size, width=size)
            # The published lengths of this one are in pixels.
            unit = size if name == "elastic_transform" else 1
            assert [unit * value for value in ours] == pytest.approx(row, rel=1e-12), (name, row)
    assert set(names) == set(SMALL_IMAGES) == set(LARGE_IMAGES)
    assert set(names) == set(CORRUPTIONS + EXTRA_CORRUPTIONS)


def test_the_shorter_side_chooses_the_constants() -> None:
    assert constants("contrast", severity=1, height=63, width=500) == (0.75,)
    assert constants("contrast", severity=1, height=64, width=64) == (0.4,)


def test_there_are_fifteen_corruptions_and_four_extra_ones() -> None:
    assert len(set(CORRUPTIONS)) == 15
    assert len(set(EXTRA_CORRUPTIONS) - set(CORRUPTIONS)) == 4
