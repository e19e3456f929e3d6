"""Images for a frozen encoder: channels, sizes and crops, from arrays and files."""

from pathlib import Path

import pytest
import torch

from protosphere.data.decoding import center_crop, decode_image
from protosphere.data.evaluation_transform import EvaluationTransform
from protosphere.data.folders import ImageFiles
from protosphere.data.image_batches import convert_channels, image_batches
from protosphere.data.splits import DataError, ImageSet
from support.images import write_image


def _transform(size: int, channels: int) -> EvaluationTransform:
    return EvaluationTransform(size, (0.25,) * channels, (0.5,) * channels)


def test_arrays_are_transformed_in_batches() -> None:
    images = torch.randint(0, 256, (7, 3, 8, 8), dtype=torch.uint8)
    split = ImageSet(images, torch.zeros(7, dtype=torch.long), ("a",))
    transform = _transform(12, 3)
    batches = list(image_batches(split, transform, device="cpu", batch_size=3))
    assert [len(batch) for batch in batches] == [3, 3, 1]
    torch.testing.assert_close(torch.cat(batches), transform(images))


def test_gray_images_are_repeated_for_an_encoder_of_color_images() -> None:
    images = torch.randint(0, 256, (2, 1, 8, 8), dtype=torch.uint8)
    split = ImageSet(images, torch.zeros(2, dtype=torch.long), ("a",))
    (batch,) = image_batches(split, _transform(8, 3), device="cpu")
    expected = ((images / 255 - 0.25) / 0.5).repeat(1, 3, 1, 1)
    torch.testing.assert_close(batch, expected)


def test_color_becomes_luminance() -> None:
    image = torch.tensor([200, 100, 50], dtype=torch.uint8)[None, :, None, None]
    expected = round(0.299 * 200 + 0.587 * 100 + 0.114 * 50)
    assert convert_channels(image, 1).flatten().tolist() == [expected]


@pytest.mark.parametrize("channels", [1, 3])
def test_files_of_all_shapes_are_cropped_to_their_center(tmp_path: Path, channels: int) -> None:
    paths = [tmp_path / f"{index}.png" for index in range(5)]
    for index, path in enumerate(paths):
        write_image(path, seed=index)
    files = ImageFiles(tuple(map(str, paths)), torch.zeros(5, dtype=torch.long), ("a",))
    batches = list(image_batches(files, _transform(16, channels), device="cpu", batch_size=2))
    assert [len(batch) for batch in batches] == [2, 2, 1]
    decoded = [decode_image(str(path), channels) for path in paths]
    squares = torch.stack([center_crop(torch.as_tensor(image), 16) for image in decoded])
    torch.testing.assert_close(torch.cat(batches), (squares / 255 - 0.25) / 0.5)


@pytest.mark.bad_input
def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.png").write_text("no image")
    files = ImageFiles((str(tmp_path / "x.png"),), torch.zeros(1, dtype=torch.long), ("a",))
    with pytest.raises(DataError, match=r"x\.png must be an image file"):
        list(image_batches(files, _transform(8, 3), device="cpu"))
