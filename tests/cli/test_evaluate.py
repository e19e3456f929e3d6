"""``protosphere evaluate``: the metrics of training again, weakest classes, other classifiers."""

import csv
import json
import operator
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from protosphere.cli.evaluate import Probe
from protosphere.cli.evaluate_text import print_evaluation
from protosphere.evaluation.probes import PROBES
from protosphere.recipes.build import load_dataset
from protosphere.recipes.loading import read_recipe
from protosphere.recipes.runner import run_recipe
from protosphere.runs import RunFolder
from support.commands import invoke, refusal, run_command, set_options
from support.figures import catch_figures, titles

SHORT = [*set_options(schedule__epochs=2), "--device", "cpu"]
QUICK_PROBE = set_options(probe__epochs=2, probe__milestones=[1])


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with cross-entropy, and one with NONL and averaged weights."""
    folder = tmp_path_factory.mktemp("runs")
    run_command("train", "digits-ce", "--out", folder / "ce", *SHORT)
    averaged = set_options(training__ema_decay=0.9)
    run_command("train", "digits-nonl", "--out", folder / "nonl", *SHORT, *averaged)
    return folder


def _last_evaluation(run: Path) -> dict[str, Any]:
    record = RunFolder(run).last_evaluation()
    assert record is not None
    return record


def _evaluate(run: Path, *options: str) -> dict[str, Any]:
    output = run_command("evaluate", run, "--device", "cpu", "--json", *options)
    record: dict[str, Any] = json.loads(output)
    return record


@pytest.mark.parametrize("loss", ["ce", "nonl"])
def test_the_metrics_are_those_of_training(runs: Path, loss: str) -> None:
    logged, record = _last_evaluation(runs / loss), _evaluate(runs / loss)
    assert (record["step"], record["split"]) == (logged["step"], "test")
    expected = {name: logged[name] for name in record["metrics"]}
    assert record["metrics"] == pytest.approx(expected)


@pytest.mark.parametrize("loss", ["ce", "nonl"])
def test_the_weakest_classes_come_first(runs: Path, loss: str) -> None:
    weakest = _evaluate(runs / loss)["weakest_classes"]
    accuracies = [record["accuracy"] for record in weakest]
    assert 0 < len(accuracies) <= 5
    assert accuracies == sorted(accuracies)
    for record in weakest:
        num_wrong = round((1 - record["accuracy"]) * record["num_samples"])
        assert 0 < record["num_confused"] <= num_wrong
        assert record["confused_with"] not in (None, record["class"])


def test_json_has_calibration_verdicts_and_confused_pairs(runs: Path) -> None:
    record = _evaluate(runs / "nonl")
    assert list(record["metrics"])[:7] == [
        "accuracy",
        "balanced_accuracy",
        "loss",
        "ece",
        "adaptive_ece",
        "nearest_mean_accuracy",
        "train_accuracy",
    ]
    assert [one["condition"] for one in record["verdicts"]] == ["NC1", "NC2", "NC3", "NC4"]
    assert "not measured" not in {one["answer"] for one in record["verdicts"]}
    pairs = record["confused_pairs"]
    assert 0 < len(pairs) <= 5
    assert set(pairs[0]) == {"class", "predicted", "num_confused", "num_samples"}
    largest = max(one["num_confused"] for one in record["weakest_classes"])
    assert pairs[0]["num_confused"] >= largest


def test_the_text_has_accuracies_verdicts_and_weakest_classes(runs: Path) -> None:
    record, text = _evaluate(runs / "ce"), run_command("evaluate", runs / "ce", "--device", "cpu")
    metrics, weakest, pair = (
        record["metrics"],
        record["weakest_classes"][0],
        record["confused_pairs"][0],
    )
    for label, name in (
        ("test accuracy", "accuracy"),
        ("balanced accuracy", "balanced_accuracy"),
        ("calibration error (ECE)", "ece"),
        ("nearest-class-mean accuracy", "nearest_mean_accuracy"),
        ("training accuracy", "train_accuracy"),
    ):
        assert f"  {label:28}{100 * metrics[name]:6.2f}%\n" in text
    assert f"  {'loss (cross-entropy)':28}{metrics['loss']:8.4f}\n" in text
    words = " ".join(text.split())
    for verdict in record["verdicts"]:
        assert f"{verdict['condition']} {verdict['answer']} {verdict['question']}" in words
        assert verdict["explanation"][1:] in words
    assert f"Weakest classes\n  {weakest['class']}  {100 * weakest['accuracy']:5.1f}% of" in text
    assert (
        f"Most confused pairs, true → predicted\n  {pair['class']} → {pair['predicted']}  "
        f"{pair['num_confused']} of {pair['num_samples']} images\n"
    ) in text
    num_others = len(metrics) - 6
    assert text.endswith(f"\n{num_others} other metrics with --all\n")
    assert "nc1_ratio" not in text


def _first_line(run: Path, *options: str) -> str:
    return run_command("evaluate", run, "--device", "cpu", *options).splitlines()[0]


def test_the_first_line_says_which_checkpoint_was_evaluated(runs: Path) -> None:
    step = _last_evaluation(runs / "ce")["step"]
    line = f"digits-ce after step {step} (epoch 2 of 2), on the test images"
    assert _first_line(runs / "ce") == line
    record = _evaluate(runs / "ce")
    keys = ("step", "epoch", "checkpoint", "monitor")
    assert [record[key] for key in keys] == [step, 2, "last", None]


def test_the_best_or_the_last_checkpoint_is_named_where_a_metric_is_monitored(
    tmp_path: Path,
) -> None:
    recipe = read_recipe(
        "digits-ce",
        [
            "data={source: synthetic, num_classes: 4, num_samples: 80, image_size: 8, "
            "validation_fraction: 0.25}",
            "training.batch_size=20",
            "schedule.epochs=3",
            "evaluation={every: 1, metrics: cheap}",
            "checkpoint={every: 1, monitor: balanced_accuracy}",
        ],
    )
    steps = iter(range(1, 100))
    # It is stopped in the third epoch: three steps each, seven steps in all.
    for _ in run_recipe(
        recipe, tmp_path, load_dataset(recipe), should_stop=lambda: next(steps) == 7
    ):
        pass
    folder = RunFolder(tmp_path)
    for record in folder.records():
        if record["kind"] == "evaluation":
            value = 0.9 if record["epoch"] == 1 else 0.1
            folder.log(record | {"balanced_accuracy": value})
    end = "on the validation images"
    words = "the best checkpoint by validation balanced accuracy"
    assert _first_line(tmp_path) == f"digits-ce after step 3 (epoch 1 of 3), {words}, {end}"
    line = f"digits-ce after step 7 (epoch 2.33 of 3), the last checkpoint, {end}"
    assert _first_line(tmp_path, "--checkpoint", "last") == line
    record = _evaluate(tmp_path)
    assert (record["checkpoint"], record["monitor"]) == ("best", "balanced_accuracy")
    assert _evaluate(tmp_path, "--checkpoint", "last")["checkpoint"] == "last"
    best = folder.checkpoints / "step-000000003"
    best.rename(tmp_path / "moved")
    message = refusal("evaluate", tmp_path)
    assert "the best checkpoint cannot be loaded: " in message
    assert message.endswith("is missing or damaged; --checkpoint last takes the last one")
    (tmp_path / "moved").rename(best)
    folder.metrics.unlink()  # Nothing says then which one is the best, nor how long an epoch is.
    assert _first_line(tmp_path) == f"digits-ce after step 7, the last checkpoint, {end}"
    assert _evaluate(tmp_path)["epoch"] is None


def test_all_metrics_are_shown_on_request(runs: Path) -> None:
    metrics = _evaluate(runs / "ce")["metrics"]
    text = run_command("evaluate", runs / "ce", "--device", "cpu", "--all")
    others = [name for name in metrics if f"  {name:28}{metrics[name]:9.4g}\n" in text]
    assert len(others) == len(metrics) - 6
    assert "--all" not in text


def test_a_run_without_errors_lists_no_class(capsys: pytest.CaptureFixture[str]) -> None:
    record = {
        "recipe": "digits-ce",
        "step": 1,
        "epoch": 1234.0,
        "epochs": 2000,
        "checkpoint": "last",
        "monitor": None,
        "split": "test",
        "metrics": {"accuracy": 1.0},
        "verdicts": [],
        "weakest_classes": [],
        "confused_pairs": [],
    }
    print_evaluation(record, which="main")
    text = capsys.readouterr().out
    assert text.startswith("digits-ce after step 1 (epoch 1234 of 2000), on the test images\n")
    assert "Every class is classified without an error\n" in text


def test_classes_are_written_as_csv(runs: Path, tmp_path: Path) -> None:
    path = tmp_path / "classes.csv"
    result = invoke("evaluate", runs / "ce", "--device", "cpu", "--json", "--csv", path)
    assert result.stderr == f"Wrote the results of 10 classes to {path}\n"
    assert list(tmp_path.iterdir()) == [path]
    record = json.loads(result.stdout)
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert list(rows[0]) == [
        "class",
        "images",
        "accuracy",
        "most_confused_with",
        "count",
        "mean_confidence",
    ]
    assert [row["class"] for row in rows] == [str(digit) for digit in range(10)]
    images = [int(row["images"]) for row in rows]
    accuracies = [float(row["accuracy"]) for row in rows]
    confidences = [float(row["mean_confidence"]) for row in rows]
    assert sum(accuracies) / 10 == pytest.approx(record["metrics"]["balanced_accuracy"], abs=1e-5)
    correct = sum(map(operator.mul, images, accuracies))
    assert correct / sum(images) == pytest.approx(record["metrics"]["accuracy"], abs=1e-5)
    # The calibration error is at least the difference of the means.
    mean = sum(map(operator.mul, images, confidences)) / sum(images)
    assert record["metrics"]["ece"] >= abs(mean - record["metrics"]["accuracy"]) - 1e-5
    pair = record["confused_pairs"][0]
    (row,) = [row for row in rows if row["class"] == pair["class"]]
    assert row["most_confused_with"] == pair["predicted"]
    assert int(row["count"]) == pair["num_confused"]
    for one in rows:
        assert (one["accuracy"] == "1.0") == (one["most_confused_with"] == "")


def test_the_evaluation_is_drawn(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = catch_figures(monkeypatch)
    path = runs / "figure.png"
    options = ("--device", "cpu", "--probe", "class_means", "--json", "--plot", path)
    record = json.loads(run_command("evaluate", runs / "ce", *options))
    figure = figures[path]
    assert titles(figure) == [
        "Accuracy by class",
        "Confusion of the weakest classes",
        "Confidence and accuracy, a point per class",
        "The conditions of neural collapse",
        "Cosines between classes",
        "Classifiers on the features",
    ]
    accuracy = f"{100 * record['metrics']['accuracy']:.2f}% accuracy on the test images"
    assert figure.get_suptitle() == f"digits-ce: {accuracy}"
    weakest = figure.axes[0].get_yticklabels()[0].get_text()
    assert weakest == record["weakest_classes"][0]["class"]


@pytest.mark.bad_input
def test_a_csv_file_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    """Before the run is read, which is none here."""
    (tmp_path / "mine.csv").write_text("mine")
    for name, message in (
        ("classes.txt", "--csv must be a file that ends in .csv, got "),
        ("mine.csv", "--csv must be a new file, or --overwrite be given, got "),
        ("nowhere/classes.csv", "--csv must be in a folder that exists, got "),
    ):
        assert refusal("evaluate", tmp_path, "--csv", tmp_path / name).startswith(message)
    assert (tmp_path / "mine.csv").read_text() == "mine"


def test_the_checkpoint_can_be_chosen(runs: Path) -> None:
    assert _evaluate(runs / "ce", "--checkpoint", "last") == _evaluate(runs / "ce")
    message = refusal("evaluate", runs / "ce", "--checkpoint", "best")
    assert message.endswith("has no best checkpoint: its recipe monitors nothing")


def test_a_run_with_a_validation_split_can_be_tested_in_the_end(tmp_path: Path) -> None:
    run = tmp_path / "run"
    options = set_options(data__validation_fraction=0.2)
    run_command("train", "digits-ce", "--out", run, *SHORT, *options)
    validated, tested = _evaluate(run), _evaluate(run, "--split", "test")
    assert (validated["split"], tested["split"]) == ("validation", "test")
    assert _evaluate(run, "--split", "validation") == validated
    assert validated["metrics"]["accuracy"] == _last_evaluation(run)["accuracy"]
    assert validated["metrics"]["train_accuracy"] == tested["metrics"]["train_accuracy"]
    assert validated["metrics"]["accuracy"] != tested["metrics"]["accuracy"]
    text = run_command("evaluate", run, "--split", "test", "--device", "cpu")
    assert f"test accuracy               {100 * tested['metrics']['accuracy']:6.2f}%" in text
    own_text = run_command("evaluate", run, "--device", "cpu")
    assert "validation accuracy  " in own_text
    assert "test accuracy" not in own_text


def test_the_choices_are_all_probes() -> None:
    assert [probe.value for probe in Probe] == ["all", *PROBES]


def test_probes_are_reported_in_order_and_in_json(runs: Path) -> None:
    options = ["--probe", "linear", "--probe", "class_means", "--probe", "head", *QUICK_PROBE]
    result = invoke("evaluate", runs / "ce", "--device", "cpu", "--json", *options)
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    names = [probe["name"] for probe in record["probes"]]
    assert names == ["head", "class_means", "linear"]
    # Each probe is also reported as soon as it is done.
    assert [line.split(",")[0] for line in result.stderr.splitlines()] == names
    assert record["probes"][0]["accuracy"] == record["metrics"]["accuracy"]


def test_all_probes_are_shown_with_their_geometry(runs: Path) -> None:
    command = ["evaluate", runs / "ce", "--device", "cpu", *QUICK_PROBE]
    record = _evaluate(runs / "ce", "--probe", "linear", *QUICK_PROBE)
    text = run_command(*command, "--probe", "all", columns=120)
    for name in ("cosine", "class_means", "normalized", "cached_linear", "knn"):
        assert f"\n  {name}" in text
    geometry = text.split("Training features with the weights of each classifier")[1]
    (row,) = [line.split() for line in geometry.splitlines() if line.startswith("  linear ")]
    columns = [
        "intra_effective_rank",
        "inter_effective_rank",
        "weights_effective_rank",
        "weight_class_alignment",
        "weight_instance_alignment",
        "mir",
        "hdr",
    ]
    metrics = record["probes"][0]["metrics"]
    assert row[1:] == [f"{metrics[name]:.3g}" for name in columns]
    narrow = run_command(*command, "--probe", "cached_linear", columns=50)
    assert "…" not in narrow.split("Training features with the weights")[1]


@pytest.mark.whole_program
def test_the_arrays_of_a_run_are_read_without_torch(runs: Path) -> None:
    program = """
import json, sys
from protosphere.runs import RunFolder
from protosphere.runs.arrays import read_arrays
run = RunFolder(sys.argv[1])
shapes = {name: array.shape for name, array in read_arrays(run).items()}
print(json.dumps(shapes | {"names": len(run.read_json("classes.json"))}))
assert run.records() and "torch" not in sys.modules
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(runs / "ce")],
        capture_output=True,
        text=True,
        check=True,
    )
    shapes = json.loads(done.stdout)
    assert shapes["names"] == 10
    assert shapes["class_means"] == shapes["prototypes"] == [10, 64]
    for name in ("class_cosines", "prototype_cosines", "confusion"):
        assert shapes[name] == [10, 10]
    assert shapes["means_3d"] == shapes["prototypes_3d"] == [10, 3]
    assert shapes["samples_3d"] == [shapes["sample_labels"][0], 3]


@pytest.mark.bad_input
@pytest.mark.parametrize("command", ["evaluate", "measure"])
def test_a_folder_without_a_run_is_refused(command: str, tmp_path: Path) -> None:
    assert refusal(command, tmp_path) == f"{tmp_path} is not a run folder: it has no recipe"


@pytest.mark.bad_input
def test_a_run_without_a_checkpoint_is_refused(runs: Path, tmp_path: Path) -> None:
    RunFolder(tmp_path).start((runs / "ce/recipe.yaml").read_text(), compare=lambda *_: None)
    assert refusal("evaluate", tmp_path) == f"{tmp_path} has no checkpoint"


@pytest.mark.bad_input
def test_overrides_must_not_change_what_was_trained(runs: Path) -> None:
    message = refusal("evaluate", runs / "ce", "--set", "loss.name=nonl")
    assert message.startswith(
        f"{runs / 'ce'}: overrides must not change what was trained: loss.name is ce there"
    )


@pytest.mark.bad_input
def test_a_validation_split_that_does_not_exist_is_refused(runs: Path) -> None:
    message = refusal("evaluate", runs / "ce", "--split", "validation")
    assert "data.validation_fraction is 0" in message


@pytest.mark.bad_input
def test_a_checkpoint_of_another_recipe_is_refused(runs: Path, tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    for path in (runs / "ce").iterdir():
        (foreign / path.name).symlink_to(path)
    (foreign / "recipe.yaml").unlink()
    (foreign / "recipe.yaml").write_text((runs / "nonl/recipe.yaml").read_text())
    assert "it is of another model" in refusal("evaluate", foreign)
    (foreign / "recipe.yaml").write_text("name: [")
    assert "foreign/recipe.yaml: a recipe must be valid YAML" in refusal("evaluate", foreign)
