"""``protosphere init``: what it reports of a folder, what it writes, and what it refuses."""

import shutil
from pathlib import Path

import pytest
from PIL import Image
from safetensors.torch import save_file

from protosphere.encoders import create_backbone
from protosphere.recipes import find_weights
from protosphere.recipes.schema import Recipe, recipe_from_yaml
from support.commands import invoke, refusal, run_command
from support.images import write_drawings


@pytest.fixture(scope="module")
def drawings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "my drawings"
    write_drawings(folder, classes=3, per_class=12)
    return folder


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees the weights that are in the cache of this machine."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))


def read(path: str = "recipe.yaml") -> Recipe:
    return recipe_from_yaml(Path(path).read_text(encoding="utf-8"))


def test_it_reports_the_folder_and_writes_a_recipe(drawings: Path) -> None:
    lines = run_command("init", drawings).splitlines()
    assert lines[:2] == [
        f"{drawings}: 36 training images of 3 classes",
        "Images per class: 12 to 12, median 12; imbalance 1",
    ]
    assert lines[2].startswith("Size: 4")
    assert lines[3:] == [
        "Test images: no folder val or test; images of each class are held out",
        "Pretrained weights: none in timm's cache; training starts from random weights",
        "Wrote recipe.yaml. Next: protosphere train recipe.yaml --out runs/my-drawings-normface",
    ]
    recipe = read()
    assert (recipe.data.path, recipe.data.validation_fraction) == (str(drawings), 0.2)
    assert (recipe.model.backbone.pretrained, recipe.augmentation.size) == (False, 32)


def test_the_recipe_of_a_copied_folder_finds_its_images(drawings: Path, tmp_path: Path) -> None:
    from protosphere.recipes.build import load_dataset

    shutil.copytree(drawings, tmp_path / "shapes")
    run_command("init", "shapes", "--loss", "nonl", "--out", "nonl.yaml")
    recipe = read("nonl.yaml")
    assert (recipe.name, recipe.loss.name, recipe.data.path) == ("shapes-nonl", "nonl", "shapes")
    dataset = load_dataset(recipe)
    # A fifth of 12 images is rounded to 2.
    assert (len(dataset.train), len(dataset.test)) == (30, 6)


def test_splits_imbalance_and_grayscale_are_reported(tmp_path: Path) -> None:
    write_drawings(tmp_path / "data/train", classes=2, per_class=9)
    write_drawings(tmp_path / "data/test", classes=2, per_class=2)
    for index in range(7):
        (tmp_path / f"data/train/circle/{index:03}.png").unlink()
    gray = tmp_path / "data/train/bar/000.png"
    Image.open(gray).convert("L").save(gray)
    output = run_command("init", "data", "--pretrained", "none")
    assert "Grayscale: 1 image; all images are read as RGB\n" in output
    assert "Images per class: 2 to 9, median 5.5; imbalance 4.5\n" in output
    assert "Test images: 4 in test\n" in output
    assert "Pretrained" not in output
    assert (read().data.sampler, read().checkpoint.monitor) == ("balanced", None)
    (tmp_path / "data/test").rename(tmp_path / "data/val")
    output = run_command("init", "data", "--pretrained", "none", "--overwrite")
    assert "Validation images: 4 in val\n" in output
    assert (read().data.validation_folder, read().checkpoint.monitor) == (
        "val",
        "balanced_accuracy",
    )


def test_unreadable_files_are_named_in_a_warning(drawings: Path, tmp_path: Path) -> None:
    shutil.copytree(drawings, tmp_path / "data")
    for index in range(7):
        (tmp_path / f"data/bar/{index:03}.png").write_bytes(b"\x89PNG nothing")
    result = invoke("init", "data")
    assert result.exit_code == 0, result.output
    lines = result.stderr.splitlines()
    assert lines[0] == "Warning: 7 files cannot be read; training stops at the first"
    assert [line.split(" must be")[0] for line in lines[1:]] == [
        f"  data/bar/{index:03}.png" for index in range(5)
    ]
    assert read().name == "data-normface"


def test_weights_come_from_a_file_or_the_cache(drawings: Path, tmp_path: Path) -> None:
    save_file(create_backbone("mobilenetv3_small_050").state_dict(), tmp_path / "w.safetensors")
    options = ("--backbone", "mobilenetv3_small_050", "--pretrained", "w.safetensors")
    output = run_command("init", drawings, *options)
    assert "Pretrained weights: mobilenetv3_small_050\n" in output
    backbone = read().model.backbone
    assert (backbone.name, backbone.pretrained) == ("mobilenetv3_small_050", "w.safetensors")
    snapshot = tmp_path / "cache/models--timm--resnet18.a1_in1k/snapshots/0"
    snapshot.mkdir(parents=True)
    (snapshot / "model.safetensors").touch()
    assert find_weights.find_cached_weights() == ("resnet18.a1_in1k", True)
    run_command("init", drawings, "--overwrite")
    backbone = read().model.backbone
    assert (backbone.name, backbone.pretrained) == ("resnet18.a1_in1k", True)
    output = run_command("init", drawings, "--overwrite", "--backbone", "resnet34")
    assert "none in timm's cache" in output
    assert (read().model.backbone.name, read().model.backbone.pretrained) == ("resnet34", False)


@pytest.mark.bad_input
def test_an_existing_recipe_is_kept_unless_it_is_to_be_replaced(drawings: Path) -> None:
    path = Path("recipe.yaml")
    path.write_text("mine")
    expected = "--out must be a new file, or --overwrite be given, got recipe.yaml"
    assert refusal("init", drawings) == expected
    assert path.read_text() == "mine"
    run_command("init", drawings, "--overwrite")
    assert read().name == "my-drawings-normface"


@pytest.mark.bad_input
def test_what_is_refused_writes_nothing(drawings: Path, tmp_path: Path) -> None:
    shutil.copytree(drawings, tmp_path / "data")
    (tmp_path / "data/empty").mkdir()
    (tmp_path / "resnet18.safetensors").write_bytes(b"nothing")
    for arguments, message in (
        (["data"], "data must have images of each class; classes without images: empty"),
        (["nowhere"], "nowhere must be a folder of images; it does not exist"),
        ([drawings, "--loss", "focal"], "loss must be one of ce, normface"),
        ([drawings, "--backbone", "resnet19"], "backbone must be a timm model, got 'resnet19'"),
        ([drawings, "--pretrained", "resnet18.safetensors"], "resnet18.safetensors must be a"),
        ([drawings, "--pretrained", "yes"], "but yes is not a file"),
        (
            [drawings, "--out", "a/b/c.yaml"],
            "--out must be in a folder that exists, got a/b/c.yaml",
        ),
        ([drawings, "--out", "recipe.txt"], "--out must be a file that ends in .yaml or .yml"),
    ):
        assert message in refusal("init", *arguments)
        assert not Path("recipe.yaml").exists()
