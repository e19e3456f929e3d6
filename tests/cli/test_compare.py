"""``protosphere compare``: tables, JSON, exit statuses, interruptions and what is refused."""

import json
import re
import shutil
from pathlib import Path

import pytest

from protosphere.recipes.loading import read_recipe
from protosphere.recipes.schema import Recipe
from protosphere.runs.comparison import read_comparison
from support.commands import invoke, refusal, run_command, usage_error
from support.short_runs import few_digits, logged_run

QUICK = [
    word
    for setting in (*few_digits(), "schedule.epochs=1", "evaluation.metrics=cheap")
    for word in ("--set", setting)
]


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison of two recipes with two seeds."""
    out = tmp_path_factory.mktemp("comparison")
    run_command("compare", "digits-ce", "digits-nonl", "--seeds", 2, "--out", out, *QUICK)
    return out


def _runs(folder: Path, values: dict[str, list[float]]) -> list[Path]:
    """Write runs with accuracies by loss and seed."""
    return [
        logged_run(
            folder / loss / f"seed-{seed}",
            {"accuracy": [(1, value)], "inter_effective_rank": [(1, 10 * value)]},
            f"seed={seed}",
            "schedule.epochs=1",
            recipe=f"digits-{loss}",
        )
        for loss, numbers in values.items()
        for seed, value in enumerate(numbers)
    ]


def _lines(text: str) -> list[str]:
    return [re.sub(r"\s+", " ", line).strip() for line in text.splitlines()]


def test_tables_of_a_case_worked_by_hand(tmp_path: Path) -> None:
    # Differences of the accuracy 0.1, 0.2, 0.3: mean 0.2, deviation 0.1, half length of the
    # interval 4.302653 · 0.1/√3 = 0.2484; p = 0.0742, of two methods twice as much.
    values = {"ce": [0.5, 0.5, 0.5], "nonl": [0.6, 0.7, 0.8], "ntce": [0.5, 0.4, 0.6]}
    _runs(tmp_path, values)
    folders = [tmp_path / loss for loss in values]
    output = run_command(
        "compare", *folders, "--out", tmp_path / "out", "--metric", "accuracy", "--metric", "ranks"
    )
    lines = _lines(output)
    assert lines[0] == "Not measured: weights_effective_rank"
    assert lines[1] == "10 test images of 10 classes, mean ± standard deviation over seeds"
    assert lines[2:6] == [
        "metric digits-ce digits-nonl digits-ntce best mean",
        "seeds 3 3 3",
        "accuracy ↑ 50.00 ± 0.00 70.00 ± 10.00 50.00 ± 10.00 digits-nonl",
        "inter_effective_rank ↑ 5.000 ± 0.000 7.000 ± 1.000 5.000 ± 1.000 digits-nonl",
    ]
    assert lines[8:11] == [
        "Difference to digits-ce, paired by seed, with the 95% confidence interval (Student's t)",
        "metric method seeds difference interval p (Holm)",
        "accuracy ↑ digits-nonl 3 +20.00 [-4.84, +44.84] 0.15 not clear",
    ]
    assert lines[-3].startswith("clearly better or worse: p < 0.05, adjusted for the number of")
    assert lines[-2] == f"Written to {tmp_path / 'out' / 'comparison.json'}"
    assert lines[-1] == f"Next: protosphere report {tmp_path / 'out'} for a page with figures"
    output = run_command("compare", *folders[:2], "--out", tmp_path / "out", "--confidence", 0.9)
    assert "clearly better" in _lines(output)[9 + 2]
    baseline = run_command(
        "compare", *folders[:2], "--out", tmp_path / "out", "--baseline", folders[1]
    )
    assert "Difference to digits-nonl" in baseline


def test_the_picture_has_a_panel_for_each_metric(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    _runs(tmp_path, {"ce": [0.5, 0.5, 0.5], "nonl": [0.60, 0.61, 0.62]})
    plot = tmp_path / "differences.svg"
    command = ["compare", tmp_path / "ce", tmp_path / "nonl", "--out", tmp_path / "out"]
    run_command(*command, "--plot", plot)
    text = plot.read_text()
    for words in (
        "difference in percentage points",
        "inter effective rank",
        "digits-nonl",
        "Difference to digits-ce",
    ):
        assert f"<!-- {words}" in text
    assert refusal(*command, "--plot", plot).startswith("--plot must be a new file, or --overwrite")
    result = invoke(*command, "--plot", plot, "--overwrite", "--metric", "ece")
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: a picture needs a difference: two methods with a seed")
    assert "Not measured: ece" in result.stdout


@pytest.mark.bad_input
def test_a_picture_that_cannot_have_a_difference_is_refused_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")

    def refuse_to_train(*_: object, **__: object) -> bool:
        raise AssertionError("a run is trained")

    monkeypatch.setattr("protosphere.cli.train.train_run", refuse_to_train)
    out, plot = tmp_path / "out", tmp_path / "differences.svg"
    (given, *_) = _runs(tmp_path, {"nonl": [0.5]})
    for targets, baseline in (
        (["digits-ce"], "digits-ce"),
        (["digits-ce", given], "digits-ce"),  # Seeds 42 and 0.
        ([given, "digits-ce"], "digits-nonl"),
    ):
        # Not with the run folder: --seeds would train the seed that it lacks.
        seeds = ["--seeds", 1] if len(targets) == 1 else []
        message = refusal("compare", *targets, *seeds, "--out", out, "--plot", plot)
        assert message == (
            f"--plot needs another method with a seed in common with {baseline}; there is none"
        )
        assert not out.exists()


@pytest.mark.parametrize("how", ["failed", "missing"])
def test_a_picture_waits_until_all_runs_are_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """So that the same command can draw it: a picture that exists would be refused."""
    pytest.importorskip("matplotlib")
    folders = _runs(tmp_path / "given", {"ce": [0.5, 0.6], "nonl": [0.6, 0.8]})
    plot = tmp_path / "differences.svg"

    def train(recipe: Recipe, folder: Path, **_: object) -> bool:
        assert (recipe.name, recipe.seed) == ("digits-nonl", 1)
        if how == "failed":
            raise ValueError("the loss must be finite")
        return False

    out = tmp_path / "out"
    shutil.copytree(folders[3], out / "digits-nonl/seed-1")
    shutil.move(folders[3], tmp_path / "last")
    (out / "digits-nonl/seed-1/metrics.jsonl").unlink()
    monkeypatch.setattr("protosphere.studies.compare.load_dataset", lambda *_, **__: None)
    monkeypatch.setattr("protosphere.cli.train.train_run", train)
    command = [
        "compare", *folders[:3], "--seed-list", "0,1", "--out", out, "--plot", plot,
        "--metric", "accuracy",
    ]  # fmt: skip
    for option in ([], ["--json"]):
        result = invoke(*command, *option)
        assert result.exit_code == 1
        not_drawn = f"Not drawn to {plot}: the differences are drawn when all runs are complete"
        assert not_drawn in result.stderr.splitlines()
        assert "Drew" not in result.stderr
        assert not plot.exists()
    shutil.copy(tmp_path / "last/metrics.jsonl", out / "digits-nonl/seed-1")
    result = invoke(*command)
    assert (result.exit_code, result.stderr) == (0, f"Drew the differences to {plot}\n")
    assert plot.exists()


def test_small_values_keep_their_digits(tmp_path: Path) -> None:
    _runs(tmp_path, {"ce": [0.5, 0.5], "nonl": [0.00021, 0.00019]})
    output = run_command(
        "compare", tmp_path / "ce", tmp_path / "nonl", "--out", tmp_path / "out",
        "--metric", "inter_effective_rank",
    )  # fmt: skip
    assert "inter_effective_rank ↑ 5.0000 ± 0.0000 0.0020 ± 0.0001 digits-ce" in _lines(output)


def test_with_one_seed_there_is_no_interval(tmp_path: Path) -> None:
    _runs(tmp_path, {"ce": [0.5], "nonl": [0.6]})
    output = run_command("compare", tmp_path / "ce", tmp_path / "nonl", "--out", tmp_path / "out")
    assert "10 test images of 10 classes, one seed" in output
    assert "accuracy ↑ digits-nonl 1 +10.00 – –" in _lines(output)
    assert "One seed gives no interval and no test" in output
    assert "clearly" not in output


def test_runs_without_a_common_seed_have_no_differences(tmp_path: Path) -> None:
    _runs(tmp_path, {"ce": [0.5], "nonl": [0.6, 0.7]})
    shutil.rmtree(tmp_path / "nonl" / "seed-0")
    output = run_command("compare", tmp_path / "ce", tmp_path / "nonl", "--out", tmp_path / "out")
    none = "No other complete run has a seed in common with {}: no differences\n"
    assert none.format("digits-ce") in output
    assert "Difference to" not in output
    # Both have seed 1, but that run of digits-ce is not complete.
    (run,) = _runs(tmp_path / "failed", {"ce": [0.5, 0.5]})[1:]
    (run / "metrics.jsonl").unlink()
    output = invoke("compare", tmp_path / "ce", run, tmp_path / "nonl", "--out", tmp_path / "out")
    assert none.format("digits-ce") in output.stdout


def test_a_baseline_without_a_complete_run_has_no_differences(tmp_path: Path) -> None:
    (baseline, *_) = _runs(tmp_path, {"ce": [0.5], "nonl": [0.6]})
    (baseline / "metrics.jsonl").unlink()
    result = invoke("compare", tmp_path / "ce", tmp_path / "nonl", "--out", tmp_path / "out")
    assert result.exit_code == 1
    assert "No run of digits-ce is complete: no differences\n" in result.stdout
    assert "in common" not in result.stdout


def test_metrics_that_were_not_measured_have_no_differences(tmp_path: Path) -> None:
    _runs(tmp_path, {"ce": [0.5], "nonl": [0.6]})
    command = ["compare", tmp_path / "ce", tmp_path / "nonl", "--out", tmp_path / "out"]
    output = run_command(*command, "--metric", "bias_spread")
    assert "Not measured: bias_spread\n" in output
    assert "no differences" not in output
    assert "Difference to" not in output
    logged_run(
        tmp_path / "ntce", {"ece": [(1, 0.2)]}, "seed=0", "schedule.epochs=1", recipe="digits-ntce"
    )
    command = ["compare", tmp_path / "ce", tmp_path / "ntce", "--out", tmp_path / "out"]
    output = run_command(*command, "--metric", "accuracy", "--metric", "ece")
    none = "None of these metrics was measured for digits-ce and another method with its seed"
    assert f"{none}: no differences\n" in output
    assert "in common" not in output


def test_a_best_mean_over_fewer_seeds_is_explained(tmp_path: Path) -> None:
    _runs(tmp_path, {"ce": [0.5, 0.5, 0.9], "nonl": [0.6, 0.6, 0.9]})
    command = ["compare", tmp_path / "ce", tmp_path / "nonl", "--out", tmp_path / "out"]
    note = "the best mean is taken over the seeds that all methods have, not over all of each"
    assert note not in run_command(*command, "--metric", "accuracy")
    shutil.rmtree(tmp_path / "nonl" / "seed-2")
    output = run_command(*command, "--metric", "accuracy")
    assert "accuracy ↑ 63.33 ± 23.09 60.00 ± 0.00 digits-nonl" in _lines(output)
    assert note in output
    # Neither has a seed that the other has.
    shutil.rmtree(tmp_path / "ce" / "seed-0")
    shutil.rmtree(tmp_path / "ce" / "seed-1")
    assert note in run_command(*command, "--metric", "accuracy")


def test_validation_images_are_named(tmp_path: Path) -> None:
    for run in _runs(tmp_path, {"ce": [0.5, 0.6]}):
        data = json.loads((run / "data.json").read_text()) | {"split": "validation"}
        (run / "data.json").write_text(json.dumps(data))
    output = run_command("compare", tmp_path / "ce", "--out", tmp_path / "out")
    assert "10 validation images" in output
    assert "These are validation images" in output
    assert "Difference" not in output


def test_training_shows_progress_on_standard_error_and_json_is_the_file(out: Path) -> None:
    result = invoke(
        "compare", "digits-ce", "digits-nonl", "--seed-list", "42,43", "--out", out, *QUICK,
        "--json",
    )  # fmt: skip
    assert (result.exit_code, result.stderr) == (0, "")
    assert json.loads(result.stdout) == json.loads((out / "comparison.json").read_text())
    result = invoke("compare", "digits-ce", "--seed-list", "7", "--out", out, *QUICK)
    assert result.stderr.startswith("Run 1 of 1: digits-ce, seed 7, into ")
    assert "epoch 1/1: loss" in result.stderr
    assert "epoch 1/1" not in result.stdout


@pytest.mark.long
def test_a_failed_run_is_in_the_table_and_in_the_status(out: Path, tmp_path: Path) -> None:
    settings = [word for word in QUICK if word != "--set"]
    diverging = tmp_path / "diverging.yaml"
    diverging.write_text(
        read_recipe("digits-ce", [*settings, "name=diverging", "optimizer.lr=1e30"]).to_yaml()
    )
    command = ["compare", "digits-ce", diverging, "--seeds", 2, "--out", out]
    result = invoke(*command, *QUICK)
    assert result.exit_code == 1
    assert "seeds 2 0 (2 failed)" in _lines(result.stdout)
    comparison = read_comparison(out / "comparison.json")
    assert [failure.seed for failure in comparison.failures] == [42, 43]
    error = comparison.failures[0].error
    assert error.startswith("the loss must be finite")
    assert f"Failed: diverging, seed 42: {error}" in result.stdout
    assert f"diverging, seed 42 has failed: {error}\n" in result.stderr
    before = (out / "comparison.json").read_bytes()
    assert invoke(*command, *QUICK).exit_code == 1
    assert (out / "comparison.json").read_bytes() == before


@pytest.mark.parametrize("how", ["signal", "interrupt"])
def test_an_interrupted_comparison_prints_what_is_there(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    shutil.copytree(out / "digits-ce", tmp_path / "digits-ce")

    def stop(*_: object, **__: object) -> bool:
        if how == "interrupt":
            raise KeyboardInterrupt
        return False

    monkeypatch.setattr("protosphere.cli.train.train_run", stop)
    command = ["compare", "digits-ce", "digits-nonl", "--seeds", 2, "--out", tmp_path, *QUICK]
    result = invoke(*command)
    assert result.exit_code == 1
    assert "seeds 2 0 (2 missing)" in _lines(result.stdout)
    last = result.stderr.splitlines()[-1]
    assert last == "Not complete: 2 of 4 runs are missing; the same command continues"
    (tmp_path / "digits-ce").rename(tmp_path / "elsewhere")
    result = invoke(*command)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "Error: no run is complete yet; the same command continues\n" in result.stderr


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["digits-cee"], "there is no recipe 'digits-cee'; did you mean digits-ce?"),
        (["digits-ce", "--seeds", 0], "--seeds must be from 1 to 1000, got 0"),
        (
            ["digits-ce", "--seeds", 1, "--seed-list", "1"],
            "--seeds and --seed-list must not be given together",
        ),
        (
            ["digits-ce", "--seed-list", "1;2"],
            "--seed-list must be whole numbers separated by commas, got '1;2'",
        ),
        (["digits-ce", "--seed-list", "1,1"], "seeds must be different, got 1 twice"),
        (
            ["digits-ce", "digits-nonl", "--baseline", "digits-ntce"],
            "baseline must be one of the compared recipes (digits-ce, digits-nonl), got "
            "digits-ntce",
        ),
        (["digits-ce", "--confidence", 95], "confidence must be between 0 and 1, got 95.0"),
        (
            ["digits-ce", "--metric", "acuracy"],
            "a metric must be one that runs are evaluated by, got acuracy; did you mean accuracy?",
        ),
        (
            ["digits-ce", "--set", "seed=1"],
            "seed must not be overridden; --seeds or --seed-list choose the seeds",
        ),
        (["nowhere/run"], "nowhere/run must be a run folder or a recipe; it does not exist"),
    ],
    ids=lambda value: "" if isinstance(value, str) else "-".join(map(str, value[1:2])),
)
def test_bad_input_is_one_sentence(tmp_path: Path, arguments: list[object], message: str) -> None:
    assert refusal("compare", *arguments, "--out", tmp_path / "out") == message
    assert not (tmp_path / "out").exists()


@pytest.mark.bad_input
def test_missing_data_are_one_sentence(tmp_path: Path) -> None:
    """Not one failure for each of ten runs."""
    settings = ["--set", "data.source=arrays", "--set", f"data.path={tmp_path / 'none.npz'}"]
    out = tmp_path / "out"
    message = refusal("compare", "cifar100-ce", "cifar100-nonl", *settings, "--out", out)
    assert str(tmp_path / "none.npz") in message
    assert not out.exists()


@pytest.mark.bad_input
def test_different_data_are_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "tail.yaml").write_text(
        read_recipe("digits-ce", ["name=tail", "data.long_tail=0.5"]).to_yaml()
    )
    message = refusal("compare", "digits-ce", tmp_path / "tail.yaml", "--out", tmp_path / "out")
    assert message == (
        "compared recipes must have the same data; digits-ce and tail have different training "
        "images"
    )


@pytest.mark.bad_input
def test_no_complete_run_is_one_sentence(tmp_path: Path) -> None:
    run = logged_run(tmp_path / "run", {"accuracy": [(1, 0.5)]}, "schedule.epochs=3")
    message = refusal("compare", run, "--out", tmp_path / "out")
    assert message == "no run is complete; digits-nonl, seed 42: it has 1 of 3 epochs"


@pytest.mark.bad_input
def test_a_key_of_a_recipe_is_not_an_option() -> None:
    assert "set with --set optimizer.lr=VALUE" in usage_error("compare", "digits-ce", "--lr", 1)
