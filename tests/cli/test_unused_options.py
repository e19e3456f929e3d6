"""Options that would have no effect beside others are refused, with a sentence that names both."""

from pathlib import Path

import numpy as np
import pytest

from support.commands import refusal, run_command, set_options, usage_error

pytestmark = pytest.mark.bad_input


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    options = set_options(
        data__source="synthetic",
        data__num_samples=40,
        data__image_size=8,
        schedule__epochs=1,
        training__batch_size=20,
    )
    run_command("train", "digits-ce", "--out", folder, "--device", "cpu", *options)
    return folder


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "images.npz"
    pixels = np.random.default_rng(0).integers(0, 256, (20, 8, 8, 3), dtype=np.uint8)
    labels = np.arange(20) % 2
    np.savez(path, x_train=pixels, y_train=labels, x_test=pixels, y_test=labels)
    return path


def _fill(words: list[str], run: Path, images: Path) -> list[str]:
    return [word.replace("RUN", str(run)).replace("IMAGES", str(images)) for word in words]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("evaluate RUN --set checkpoint.keep=3", "--set checkpoint.keep has no effect here: it"),
        ("evaluate RUN --set training.fsdp=true", "--set training.fsdp has no effect here: it"),
        (
            "evaluate RUN --set probe.lr=3",
            "--set probe.lr has no effect here: it must be a setting of data or evaluation.metrics",
        ),
        (
            "export RUN --out x.onnx --set training.compile=false",
            "--set training.compile has no effect here: it must be a setting of data",
        ),
        (
            "evaluate RUN --probe knn --set probe.lr=3",
            "--set probe.lr has no effect here: it must be",
        ),
        (
            "compare digits-ce --seeds 10000000000",
            "--seeds must be from 1 to 1000, got 10000000000",
        ),
        ("measure RUN --set evaluation.metrics=cheap", "--set evaluation.metrics has no effect he"),
        ("benchmark ood RUN --against IMAGES --set probe.lr=3", "--set probe.lr has no effect her"),
        ("predict RUN IMAGES --format csv --out x.json", "--format must be json with --out x.json"),
        ("measure IMAGES --bias b", "--bias has no effect with --space sphere"),
        ("compare RUN --json --metric nc2", "--metric has no effect with --json, which has all"),
        (
            "sweep digits-ce --out x --over checkpoint.keep=1,2",
            "--over must have keys that change what is trained, and checkpoint.keep does not",
        ),
        ("sweep digits-ce --out x --over evaluation.every=1,2", "and evaluation.every does not"),
        ("sweep digits-ce --out x --over probe.lr=1,2", "and probe.lr does not"),
        ("reproduce list --scale 0.5", "--scale has no effect on `list`: it is for a table or a"),
        ("reproduce behaviors RUN --row ce", "--row has no effect on `behaviors`: it is for a"),
        ("reproduce table1 --dry-run --plot x.svg", "--plot has no effect with --dry-run: nothing"),
        (
            "reproduce table3 --dry-run --imagenet-c x",
            "--imagenet-c has no effect on table3: it is for table5",
        ),
        ("reproduce table3 --dry-run --transfer-set cars=x", "--transfer-set must be NAME=PATH"),
        (
            "benchmark calibration RUN --out results",
            "--out has no effect without a recipe: results are kept in the run folders",
        ),
        (
            "benchmark ood RUN --against IMAGES --root data",
            "--root has no effect without the name of a dataset in --against",
        ),
        ("benchmark transfer RUN --to IMAGES --draws 3", "--draws has no effect without --shots"),
        (
            "benchmark transfer RUN --to IMAGES --classifier knn --c 1",
            "--c has no effect without --classifier logistic",
        ),
        (
            "benchmark transfer RUN --to IMAGES --classifier knn --seed 5",
            "--seed has no effect without --classifier logistic or --shots",
        ),
        (
            "benchmark transfer RUN --to IMAGES --root data",
            "--root has no effect without the name of a downloaded set in --to",
        ),
        (
            "benchmark corruptions RUN --corruption fog --frost x",
            "--frost has no effect without --corruption frost",
        ),
        (
            "benchmark corruptions RUN --folder x --seed 3",
            "--seed has no effect with --folder, whose images are corrupted already",
        ),
    ],
)
def test_an_option_without_effect_is_refused(
    words: str, message: str, run: Path, images: Path
) -> None:
    refused = refusal(*_fill(words.split(), run, images))
    assert refused.startswith(message) or refused.endswith(message)


def test_the_same_options_have_an_effect_elsewhere(run: Path, images: Path, tmp_path: Path) -> None:
    for words in (
        "evaluate RUN --download --overwrite --device cpu",
        f"predict RUN IMAGES --format json --out {tmp_path / 'x.json'}",
        "benchmark transfer RUN --to IMAGES --shots 1 --draws 2 --device cpu",
        "benchmark corruptions RUN --corruption fog --severity 1 --seed 3 --device cpu",
        "evaluate RUN --set evaluation.metrics=cheap --device cpu",
        "evaluate RUN --probe cached_linear --set probe.lr=3 --device cpu",
        f"compare RUN --json --out {tmp_path / 'comparison'}",
    ):
        run_command(*_fill(words.split(), run, images))


@pytest.mark.parametrize(
    ("words", "option"),
    [
        ("benchmark calibration RUN --bins 1001", "--bins"),
        ("benchmark calibration RUN --seed -1", "--seed"),
        (f"benchmark transfer RUN --to IMAGES --seed {2**31}", "--seed"),
        (f"benchmark corruptions RUN --seed {2**31}", "--seed"),
        (f"sweep digits-ce --out x --over seed=1,2 --trials 2 --seed {2**31}", "--seed"),
        (f"predict RUN IMAGES --batch-size {2**31}", "--batch-size"),
    ],
)
def test_numbers_out_of_range_are_refused(words: str, option: str, run: Path, images: Path) -> None:
    error = usage_error(*_fill(words.split(), run, images))
    assert f"Invalid value for '{option}': Input should be " in error


def test_settings_for_several_processes_are_named_on_one(tmp_path: Path) -> None:
    options = set_options(
        data__source="synthetic",
        data__num_samples=40,
        data__image_size=8,
        schedule__epochs=1,
        training__fsdp="true",
    )
    command = ["train", "digits-nonl", "--device", "cpu", *options]
    output = run_command(*command, "--out", tmp_path / "run")
    assert output.count("training.fsdp has no effect on one process\n") == 1
    assert "shard_prototypes" not in output
