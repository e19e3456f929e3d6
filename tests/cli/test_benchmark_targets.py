"""What benchmarks say of runs and recipes that they cannot or should not measure."""

import json
import shutil
from pathlib import Path

import pytest

from protosphere.cli import benchmark_options
from support.commands import invoke, refusal, run_command, set_options

QUICK = set_options(schedule__epochs=2, evaluation__metrics="cheap")


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of the recipe digits-ce."""
    out = tmp_path_factory.mktemp("runs")
    run_command("train", "digits-ce", "--out", out / "digits-ce", *QUICK)
    return out


@pytest.mark.bad_input
def test_a_folder_that_does_not_exist_is_not_taken_for_a_recipe(tmp_path: Path) -> None:
    missing = tmp_path / "runs" / "nonl"
    message = refusal("benchmark", "calibration", missing)
    assert message == f"{missing} must be a run folder or a recipe; it does not exist"


@pytest.mark.bad_input
def test_a_run_of_other_settings_in_the_folder_of_a_recipe_is_refused(out: Path) -> None:
    folder = out / "digits-ce"
    message = refusal("benchmark", "calibration", "digits-nonl", "digits-ce", "--out", out)
    assert message == (
        f"{folder} holds a run of another recipe: schedule.epochs is 2 there and 15 here; another "
        f"--out trains this one, and {folder} in place of the recipe measures that run"
    )
    assert not (out / "digits-nonl").exists()  # Refused before the first recipe is trained.


def test_only_a_run_that_is_not_finished_is_named(out: Path, tmp_path: Path) -> None:
    result = invoke("benchmark", "calibration", out / "digits-ce", "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    shutil.copytree(out / "digits-ce", tmp_path / "run")
    recipe = tmp_path / "run" / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("epochs: 2\n", "epochs: 9\n"))
    result = invoke("benchmark", "calibration", tmp_path / "run", "--json")
    warning = f"Warning: {tmp_path / 'run'} is not finished: it has 2 of 9 epochs\n"
    assert result.stderr == warning
    assert json.loads(result.stdout)["runs"][0]["recipe"] == "digits-ce"


def test_training_that_was_stopped_continues_with_the_same_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("protosphere.cli.train.train_run", lambda *_, **__: False)
    result = invoke("benchmark", "calibration", "digits-ce", "--out", tmp_path)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "The same command continues training, and then the benchmark\n"


def test_an_interrupted_benchmark_says_how_it_continues(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(benchmark_options, "_warn_if_unfinished", interrupt)
    result = invoke("benchmark", "calibration", out / "digits-ce")
    assert result.exit_code != 0
    assert "Interrupted; the same command continues with what is missing\n" in result.stderr
