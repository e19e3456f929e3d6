"""``evaluate RUN`` and ``measure RUN``: what was logged is found again; a report needs no torch; what is refused."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from protosphere.cli.app import app
from protosphere.recipes.runner import latest
from protosphere.runs import RunFolder

runner = CliRunner()
SHORT = ["--set", "optimization.epochs=2", "--device", "cpu"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of cross-entropy, and one of NONL whose weights are averaged."""
    folder = tmp_path_factory.mktemp("runs")
    for loss, settings in (("ce", []), ("nonl", ["--set", "optimization.average=0.9"])):
        arguments = ["train", f"digits-{loss}", "--out", str(folder / loss), *SHORT, *settings]
        assert runner.invoke(app, arguments).exit_code == 0
    return folder


@pytest.mark.parametrize("loss", ["ce", "nonl"])
def test_what_was_logged_is_found_again(runs: Path, loss: str) -> None:
    logged = latest(runs / loss)
    result = runner.invoke(app, ["evaluate", str(runs / loss), "--json", "--device", "cpu"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["step"] == logged["step"]
    assert found["numbers"] == pytest.approx({name: logged[name] for name in found["numbers"]})
    assert len(found["weakest"]) == 5
    accuracies = [one["accuracy"] for one in found["weakest"]]
    assert accuracies == sorted(accuracies)
    shown = runner.invoke(app, ["evaluate", str(runs / loss), "--device", "cpu"]).stdout
    assert f"test accuracy               {100 * logged['test_accuracy']:6.2f} %" in shown
    assert f"Weakest classes: {found['weakest'][0]['name']} " in shown


def test_a_run_with_a_validation_part_is_tested_in_the_end(tmp_path: Path) -> None:
    share = ["--set", "data.validation_share=0.2"]
    assert (
        runner.invoke(
            app, ["train", "digits-ce", "--out", str(tmp_path / "run"), *SHORT, *share]
        ).exit_code
        == 0
    )
    command = ["evaluate", str(tmp_path / "run"), "--device", "cpu"]
    own, tested = (
        json.loads(runner.invoke(app, [*command, "--json", *more]).stdout)
        for more in ([], ["--images", "test"])
    )
    assert own["numbers"]["test_accuracy"] == latest(tmp_path / "run")["test_accuracy"]
    assert (own["images"], tested["images"]) == ("validation", "test")
    assert own["numbers"]["train_accuracy"] == tested["numbers"]["train_accuracy"]
    assert own["numbers"]["test_accuracy"] != tested["numbers"]["test_accuracy"]
    shown = runner.invoke(app, [*command, "--images", "test"]).stdout
    assert f"test accuracy               {100 * tested['numbers']['test_accuracy']:6.2f} %" in shown


def test_other_classifiers(runs: Path) -> None:
    command = [
        "evaluate",
        str(runs / "ce"),
        "--device",
        "cpu",
        "--set",
        "probe.epochs=1",
        "--set",
        "probe.milestones=[]",
    ]
    result = runner.invoke(app, [*command, "--classifiers", "linear,prototypes,head", "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert [one["name"] for one in found["classifiers"]] == ["head", "prototypes", "linear"]
    assert found["classifiers"][0]["accuracy"] == found["numbers"]["test_accuracy"]
    told = [line.split(",")[0] for line in result.stderr.splitlines()]
    assert told == ["head", "prototypes", "linear"]  # As each is through.
    shown = runner.invoke(app, [*command, "--classifiers", "all"]).stdout
    assert all(
        f"\n  {name}" in shown
        for name in ("cosine", "prototypes", "normalized", "cached", "neighbours")
    )
    measured = {one["name"]: one["metrics"] for one in found["classifiers"]}
    geometry = shown.split("The training features with their weights")[1]
    row = next(line.split() for line in geometry.splitlines() if line.startswith("  linear "))
    columns = [
        "intra_effective_rank",
        "inter_effective_rank",
        "weights_effective_rank",
        "weight_class_alignment",
    ]
    columns += ["weight_instance_alignment", "mir", "hdr"]
    assert row[1:] == [f"{measured['linear'][name]:.3g}" for name in columns]
    narrow = runner.invoke(app, [*command, "--classifiers", "cached"], env={"COLUMNS": "50"}).stdout
    assert "…" not in narrow.split("The training features with their weights")[1]
    wrong = runner.invoke(app, [*command, "--classifiers", "forest"])
    assert wrong.exit_code == 1
    assert "--classifiers must be all, or some of head, cosine" in wrong.stderr


def test_a_run_is_measured(runs: Path) -> None:
    result = runner.invoke(app, ["measure", str(runs / "nonl"), "--json"])
    assert result.exit_code == 0, result.output
    found, logged = json.loads(result.stdout)["metrics"], latest(runs / "nonl")
    assert found == pytest.approx({name: logged[name] for name in found})
    raw = json.loads(
        runner.invoke(app, ["measure", str(runs / "ce"), "--space", "raw", "--json"]).stdout
    )
    assert {"bias_spread", "bias_offset"} <= set(raw["metrics"])
    test = json.loads(
        runner.invoke(app, ["measure", str(runs / "nonl"), "--part", "test", "--json"]).stdout
    )
    assert test["samples"] < json.loads(result.stdout)["samples"]


def test_the_features_of_a_run_are_kept(runs: Path, tmp_path: Path) -> None:
    """What was saved measures the same, bias included, and makes a classifier."""
    file = tmp_path / "features.npz"
    for space in ("sphere", "raw"):
        command = ["measure", str(runs / "ce"), "--part", "test", "--space", space, "--json"]
        ran = runner.invoke(app, command + (["--save", str(file)] if space == "sphere" else []))
        assert ran.exit_code == 0, ran.output
        own = json.loads(ran.stdout)["metrics"]
        read = runner.invoke(app, ["measure", str(file), "--space", space, "--json"])
        assert json.loads(read.stdout)["metrics"] == pytest.approx(own)
    built = runner.invoke(
        app, ["prototypes", "build", str(file), "--out", str(tmp_path / "classifier.safetensors")]
    )
    assert built.exit_code == 0, built.output
    for arguments, said in (
        (
            ["measure", str(runs / "ce"), "--save", str(file)],
            "--save must name a file that is not there yet",
        ),
        (
            ["measure", str(runs / "ce"), "--save", "features.csv"],
            "--save must name an .npz file; got features.csv",
        ),
        (["measure", str(file), "--save", str(tmp_path / "b.npz")], "--save must come with a run"),
        (["measure", str(file), "--part", "test"], "--part must come with a run"),
        (["measure", str(file), "--set", "data.root=x"], "--set must come with a run"),
        (["measure", str(runs / "ce"), "--labels", "y"], "--labels must come with a file"),
    ):
        refused = runner.invoke(app, arguments)
        assert refused.exit_code == 1
        assert said in refused.stderr


@pytest.mark.whole_program
def test_the_geometry_is_read_without_torch(runs: Path) -> None:
    program = (
        "import sys, json; from pathlib import Path; from safetensors.numpy import load_file;"
        "from protosphere.runs import RunFolder; run = RunFolder(sys.argv[1]);"
        "arrays = load_file(run.path / 'geometry.safetensors'); names = run.read_json('classes.json');"
        "print(json.dumps({name: array.shape for name, array in arrays.items()} | {'names': len(names)}));"
        "assert run.records() and 'torch' not in sys.modules"
    )
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
def test_what_is_refused(runs: Path, tmp_path: Path) -> None:
    def said(*arguments: str) -> str:
        result = runner.invoke(app, list(arguments))
        assert result.exit_code == 1, result.output
        assert result.stderr.count("\n") == 1
        return result.stderr.strip()

    assert "must be a run folder, with a recipe; it is none" in said("evaluate", str(tmp_path))
    assert "must be a run folder, with a recipe; it is none" in said("measure", str(tmp_path))
    RunFolder(tmp_path / "begun").begin((runs / "ce/recipe.yaml").read_text())
    assert "must have a checkpoint; it has none yet" in said("evaluate", str(tmp_path / "begun"))
    assert (
        "settings must leave what was trained as it is; loss.kind is ce there and nonl here"
        in said("evaluate", str(runs / "ce"), "--set", "loss.kind=nonl")
    )
    assert "--part must be train or test; got both" in said(
        "measure", str(runs / "ce"), "--part", "both"
    )
    foreign = tmp_path / "foreign"
    (runs / "ce").rename(foreign)  # Its checkpoint under another recipe.
    (foreign / "recipe.yaml").write_text((runs / "nonl/recipe.yaml").read_text())
    assert "must fit its recipe and data; it is of another model" in said("evaluate", str(foreign))
    (foreign / "recipe.yaml").write_text("name: [")
    assert "a recipe must be YAML" in said("evaluate", str(foreign))
