"""``protosphere train``: from a recipe to a run folder; stopped, resumed, refused."""

import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from protosphere.encoders import create_backbone
from protosphere.recipes.schema import recipe_from_yaml
from protosphere.runs import RunFolder
from support.commands import invoke, refusal, run_command, set_options

SHORT = [
    *set_options(schedule__epochs=3, evaluation__every=1, checkpoint__every=1),
    "--device",
    "cpu",
]
# Few images, one batch each epoch.
TINY = set_options(data__source="synthetic", data__num_samples=20, data__image_size=8)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    run_command("train", "digits-nonl", "--out", folder, *SHORT)
    return folder


def test_a_run_folder_has_recipe_classes_machine_and_records(run: Path) -> None:
    folder = RunFolder(run)
    assert recipe_from_yaml(folder.recipe.read_text()).loss.name == "nonl"
    version = folder.read_json("machine.json")["versions"]["torch"]
    assert torch.__version__.startswith(version)
    assert folder.read_json("classes.json") == list("0123456789")
    epochs = [record["epoch"] for record in folder.records() if record["kind"] == "train"]
    assert epochs == [1, 2, 3]
    last = folder.last_evaluation()
    assert last is not None
    assert last["accuracy"] > 0.8
    assert last["split"] == "test"
    assert {"nearest_mean_accuracy", "nc1_ratio", "nc4_agreement"} <= set(last)


def test_the_recipe_in_the_folder_runs_again_exactly(run: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    run_command("train", run / "recipe.yaml", "--out", again, "--device", "cpu")
    assert RunFolder(again).last_evaluation() == RunFolder(run).last_evaluation()


def test_the_output_tells_what_is_trained_and_what_to_do_next(tmp_path: Path) -> None:
    command = ["train", "digits-ce", "--out", tmp_path / "run", *SHORT, *TINY]
    lines = run_command(*command).splitlines()
    assert lines[0].startswith("digits-ce: 20 training images of 10 classes, 3 epochs, on cpu")
    assert lines[0].endswith(f"into {tmp_path / 'run'}")
    assert lines[1].startswith("Each batch holds all training images: training.batch_size is ")
    assert [line.split(":")[0] for line in lines[2:-1]] == ["epoch 1/3", "epoch 2/3", "epoch 3/3"]
    assert "test accuracy " in lines[2]
    assert lines[-1].startswith(f"Done. Next: protosphere evaluate {tmp_path / 'run'}")


def test_one_epoch_is_singular(tmp_path: Path) -> None:
    options = set_options(schedule__epochs=1, training__batch_size=4, data__num_classes=2)
    command = ["train", "digits-ce", "--out", tmp_path / "run", "--device", "cpu", *TINY]
    assert "of 2 classes, 1 epoch, on cpu" in run_command(*command, *options)
    assert "Each batch" not in run_command(*command, *options, "--resume")


def test_a_run_is_resumed_with_its_own_recipe(run: Path, tmp_path: Path) -> None:
    resumed = run_command("train", "--resume", "--out", run, "--device", "cpu")
    assert resumed.startswith("Nothing left to do")
    assert "RECIPE must be given" in refusal("train", "--out", tmp_path / "new")
    new = tmp_path / "new"
    assert refusal("train", "--out", new).startswith("RECIPE must be given")
    message = refusal("train", "--resume", "--out", new)
    assert message == f"{new} has no run to resume; give RECIPE to start one"
    (tmp_path / "bad.yaml").write_text("just words\n")
    message = refusal("train", tmp_path / "bad.yaml", "--out", new)
    assert message == f"{tmp_path / 'bad.yaml'}: a recipe must be a mapping of keys to values"


def test_a_resumed_run_says_where_it_continues(tmp_path: Path) -> None:
    command = ["train", "digits-ce", "--out", tmp_path / "run", *SHORT, *TINY]
    assert "Resumed" not in run_command(*command)
    shutil.rmtree(sorted(RunFolder(tmp_path / "run").checkpoints.iterdir())[-1])
    assert "\nResumed from step 2\n" in run_command(*command, "--resume")
    expected = f"Nothing left to do: {tmp_path / 'run'} has all 3 epochs\n"
    assert run_command(*command, "--resume") == expected


@pytest.mark.bad_input
@pytest.mark.parametrize("content", ["", "garbage\n", '{"kind": "train"}\n[1]\n'])
def test_a_finished_run_without_records_is_refused(content: str, run: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(run, tmp_path / "run")
    (folder / "metrics.jsonl").write_text(content)
    message = refusal("train", "--resume", "--out", folder, "--device", "cpu")
    assert message == (
        f"{folder / 'metrics.jsonl'} must have the records of the finished run; it has none, and "
        "the last checkpoint is of the end of training"
    )


def test_a_finished_run_of_which_records_are_missing_has_not_stopped_early(
    run: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(run, tmp_path / "run")
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(lines[:2]))
    assert run_command("train", "--resume", "--out", folder, "--device", "cpu") == (
        f"Nothing left to do: {folder} has all 3 epochs, but metrics.jsonl has no records after "
        "epoch 1\n"
    )


@pytest.mark.parametrize(("epoch", "status"), [(1, 1), (3, 0)])
def test_the_exit_status_says_whether_a_signal_stopped_training(
    epoch: int, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = RunFolder.log

    def log_and_interrupt(folder: RunFolder, record: Any) -> None:
        log(folder, record)
        if (record["kind"], record["epoch"]) == ("train", epoch):
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(RunFolder, "log", log_and_interrupt)
    command = ["train", "digits-ce", "--out", tmp_path / "run", *SHORT, *TINY]
    result = invoke(*command)
    assert result.exit_code == status, result.output
    last = result.output.splitlines()[-1]
    assert last.startswith("Stopped at step 2 with a checkpoint" if status else "Done.")
    if status:
        monkeypatch.undo()
        assert "Done." in run_command(*command, "--resume")


def test_a_validation_figure_is_called_validation_accuracy(tmp_path: Path) -> None:
    options = set_options(data__validation_fraction=0.2)
    output = run_command("train", "digits-ce", "--out", tmp_path / "run", *SHORT, *options)
    assert "validation accuracy" in output
    assert "test accuracy" not in output


def test_the_monitored_metric_and_its_best_value_are_shown(tmp_path: Path) -> None:
    options = set_options(data__validation_fraction=0.5, checkpoint__monitor="balanced_accuracy")
    folder = tmp_path / "my run"
    output = run_command("train", "digits-ce", "--out", folder, *SHORT, *TINY, *options)
    assert output.count("%, validation balanced accuracy ") == 3
    values = [record["balanced_accuracy"] for record in RunFolder(folder).records()[1::2]]
    epoch = values.index(max(values)) + 1
    best = f"Best validation balanced accuracy: {100 * max(values):.2f}% after epoch {epoch}. "
    assert output.endswith(
        f"Done. {best}Next: protosphere evaluate '{folder}', or protosphere report '{folder}' for "
        "a page with figures\n"
    )


def test_early_stopping_names_the_best_value(tmp_path: Path) -> None:
    options = set_options(
        data__validation_fraction=0.5,
        checkpoint__monitor="loss",
        checkpoint__patience=1,
        schedule__epochs=50,
        optimizer__lr=1e-30,
    )
    command = ["train", "digits-ce", "--out", tmp_path / "run", *SHORT, *TINY, *options]
    output = run_command(*command)
    assert "%, validation loss " in output
    assert "Stopped early after 1 evaluation without a new best. Best validation loss: " in output
    done = RunFolder(tmp_path / "run").records()[-1]["epoch"]
    expected = f"Nothing left to do: {tmp_path / 'run'} has stopped early after {done} epochs\n"
    assert run_command(*command, "--resume") == expected


def test_the_weights_of_an_earlier_run_are_announced(tmp_path: Path) -> None:
    earlier, command = tmp_path / "earlier", ["train", "digits-ce", *SHORT, *TINY]
    run_command(*command, "--out", earlier)
    same = [*command, "--init-from", earlier, "--out", tmp_path / "same"]
    assert f"\nWeights of {earlier}, step 3: backbone, head\n" in run_command(*same)
    shutil.rmtree(sorted(RunFolder(tmp_path / "same").checkpoints.iterdir())[-1])
    assert "\nWeights of" not in run_command(*same, "--resume"), "it has its own weights"
    five = [*set_options(data__num_classes=5), "--init-from", earlier, "--out", tmp_path / "five"]
    assert ": backbone; the head starts anew\n" in run_command(*command, *five)


@pytest.mark.bad_input
def test_a_folder_with_a_run_is_refused_and_not_touched(run: Path) -> None:
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert "--resume" in refusal("train", "digits-nonl", "--out", run, *SHORT)
    message = refusal("train", "digits-ce", "--out", run, "--resume", *SHORT)
    assert "name is digits-nonl there and digits-ce here" in message
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["digits-nol"], "did you mean digits-nonl?"),
        (["digits-ce", "--set", "schedule.epoch=1"], "did you mean epochs?"),
        (["digits-ce", "--set", "optimizer.lr=-1"], "optimizer.lr must be greater than 0, got -1"),
        (["none.yaml"], "none.yaml must be a YAML file; it does not exist"),
        (["cifar100-ce", "--set", "data.root=/nowhere"], "cifar100"),
        (["digits-ce", "--device", "cuda:99"], "--device must be a device that is available here"),
        (["digits-ce", "--set", "name"], "an override must have the form key=value, got 'name'"),
    ],
)
def test_refused_before_anything_is_printed_or_written(
    arguments: list[str], message: str, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    assert message in refusal("train", *arguments, "--out", out)
    assert invoke("train", *arguments, "--out", out).stdout == ""
    assert not out.exists()


@pytest.mark.bad_input
def test_a_folder_that_is_refused_prints_no_banner(run: Path) -> None:
    assert invoke("train", "digits-nonl", "--out", run, *SHORT).stdout == ""


@pytest.mark.bad_input
def test_a_loss_that_explodes_names_the_last_checkpoint(tmp_path: Path) -> None:
    options = set_options(optimizer__lr=1e30)
    message = refusal("train", "digits-ce", "--out", tmp_path / "run", *SHORT, *options)
    assert "there is no checkpoint" in message


def test_images_that_are_small_for_the_pretrained_model_are_mentioned(tmp_path: Path) -> None:
    weights = tmp_path / "weights.safetensors"
    save_file(create_backbone("test_resnet", in_channels=3).state_dict(), weights)
    backbone = f"{{name: test_resnet, pretrained: {weights}}}"
    options = set_options(model__backbone=backbone, schedule__epochs=1, evaluation__metrics="cheap")
    command = ["train", "digits-ce", "--device", "cpu", *TINY, *options]
    note = "test_resnet was pretrained on 160 pixels; augmentation.size is 32"
    small, large = set_options(augmentation__size=32), set_options(augmentation__size=80)
    assert note in run_command(*command, "--out", tmp_path / "small", *small).splitlines()
    assert "was pretrained on" not in run_command(*command, "--out", tmp_path / "large", *large)
