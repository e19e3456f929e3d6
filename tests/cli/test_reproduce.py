"""``protosphere reproduce``: every target from start to end, plans, refusals and behaviors."""

import json
import re
from pathlib import Path

import pytest

from protosphere.cli.reproduce_text import describe_hours, print_reproduction
from protosphere.studies.reproduce import Number, Reproduction, plan_target
from protosphere.studies.reproduce_targets import TARGETS
from support.commands import invoke, refusal, run_command
from support.reproductions import COLORS, tiny_overrides, write_records
from support.short_runs import logged_run

# The rows and columns of each target that are computed here, and the fraction of its epochs.
CHOSEN: dict[str, tuple[list[str], list[str], float]] = {
    "table1": (["ce", "nonl"], ["cifar100"], 0.001),
    "table2": ([], ["cifar10"], 0.001),
    "table3": (["cifar10 scl_fixed_prototypes", "cifar10 ce"], [], 0.001),
    "table4": (["nonl"], ["cifar10", "dtd"], 0.002),
    "table5": (["ce"], ["mce", "fog"], 0.002),
    "table6": (["ntce"], ["cifar10_lt_0.1"], 0.005),
    "table7": (["to_ce_final nonl"], [], 0.001),
    "table8": (["fixed_prototypes"], ["cifar10"], 0.001),
    "table9": (["nonl"], ["0.07", "0.1"], 0.001),
    "table10": (["ntce"], ["1"], 0.001),
    "table11": (["normface"], ["4096"], 0.002),
    "table12": (["ce"], ["mean"], 0.002),
    "table13": (["ce"], ["cifar10 mean", "cifar10 std"], 0.001),
    "table14": (["cifar10"], [], 0.001),
    "figure2": (["nonl"], [], 0.001),
    "figure3-cifar10": (["nonl 64"], ["0.2"], 0.001),
    "figure3-cifar100": (["nonl 512"], ["0.1"], 0.001),
}


def _options(name: str, out: Path) -> list[object]:
    rows, columns, scale = CHOSEN[name]
    options: list[object] = ["--scale", scale, "--out", out, "--device", "cpu"]
    for flag, values in (("--row", rows), ("--column", columns), ("--set", tiny_overrides())):
        options += [word for value in values for word in (flag, value)]
    if name == "table4":
        options += ["--transfer-set", f"cifar10={COLORS}", "--transfer-set", f"dtd={COLORS}"]
    return options


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that the targets share."""
    return tmp_path_factory.mktemp("reproduced")


@pytest.mark.long
@pytest.mark.parametrize("name", TARGETS)
def test_every_target_runs_from_start_to_end(name: str, out: Path) -> None:
    result = invoke("reproduce", name, *_options(name, out), "--json")
    assert result.exit_code == 0, result.output
    if name == "table1":
        warning = "Warning: the data for CIFAR-100 have 10 classes, not 100: they are not the paper"
        cost, first, *_ = result.stderr.splitlines()
        assert cost.startswith("2 runs to train; what this takes is not known")
        assert first.startswith(warning)
    content = json.loads(result.stdout)
    assert content == json.loads((out / f"{name}.json").read_text())
    said = [line.removeprefix("Warning: ") for line in result.stderr.splitlines()]
    assert set(content["warnings"]) == {line for line in said if line.startswith("the data for")}
    rows, columns, _ = CHOSEN[name]
    cells = [
        cell
        for cell in TARGETS[name].cells
        if cell.row in (rows or TARGETS[name].rows)
        and cell.column in (columns or TARGETS[name].columns)
    ]
    assert len(content["numbers"]) == len(cells) > 0
    for number in content["numbers"]:
        assert (out / number["runs"][0] / "metrics.jsonl").exists()
        assert number["epochs"] == 1
        assert number["value"] == "never" or isinstance(number["value"], float)
        if number["paper"] is not None and number["value"] != "never":
            assert number["difference"] == pytest.approx(number["value"] - number["paper"])
    again = invoke("reproduce", name, *_options(name, out))
    assert again.exit_code == 0
    assert all(line.startswith("Warning: the data for ") for line in again.stderr.splitlines())
    lines = [re.sub(r"\s+", " ", line).strip() for line in again.stdout.splitlines()]
    first = cells[0]
    assert lines[0].startswith(f"{name}: {TARGETS[name].title} (1 of ")
    assert any(line.startswith(f"{first.row} {first.column} 1 ") for line in lines)
    assert "Shorter runs than the paper's" in again.stdout


@pytest.mark.long
@pytest.mark.parametrize("name", ["figure2", "figure3-cifar10", "table3"])
def test_figures_are_drawn(name: str, out: Path) -> None:
    pytest.importorskip("matplotlib")
    plot = out / "figure.svg"
    result = invoke("reproduce", name, *_options(name, out), "--plot", plot, "--overwrite")
    assert result.exit_code == 0, result.output
    assert result.stderr.endswith(f"Drew {name} to {plot}\n")
    text = plot.read_text()
    words = {
        "figure2": "inter effective rank",
        "figure3-cifar10": "test accuracy in %",
        "table3": "the paper",
    }[name]
    assert f"<!-- {words}" in text
    assert f"<!-- {CHOSEN[name][0][0].split()[0]}" in text


def test_list_names_every_target_with_data_and_hours(monkeypatch: pytest.MonkeyPatch) -> None:
    text = run_command("reproduce", "list")
    names = [line.split()[0] for line in text.splitlines()[2:-1]]
    assert names == list(TARGETS)
    assert re.search(r"table4 .* ImageNet-1K, food101, .* 5 +189\.3", text)
    assert "estimated from measured images per second" in text
    two = {name: TARGETS[name] for name in ("table3", "table11")}
    monkeypatch.setattr("protosphere.studies.reproduce_targets.TARGETS", two)
    targets = json.loads(run_command("reproduce", "list", "--json"))["targets"]
    assert [(target["name"], target["runs"]) for target in targets] == [
        ("table3", 12),
        ("table11", 12),
    ]
    assert targets[0]["data"] == ["CIFAR-10", "CIFAR-100"]


def test_a_plan_has_cost_and_commands_and_trains_nothing(tmp_path: Path) -> None:
    options = ["--row", "nonl", "--column", "imagenet1k", "--out", tmp_path / "out", "--dry-run"]
    text = run_command("reproduce", "table1", *options)
    assert re.search(r"imagenet1k-8192-nonl-500-epochs +500 +missing +37\.86", text)
    assert "3 runs to train, about 113.6 hours" in text
    train = f"train imagenet1k-nonl --out {tmp_path / 'out' / 'imagenet1k-nonl-500-epochs'}"
    assert f"\nprotosphere {train} --resume" in text
    assert f"torchrun --nproc-per-node 8 -m protosphere {train}" in text
    assert 'srun torchrun --nnodes "$SLURM_NNODES"' in text
    plan = json.loads(run_command("reproduce", "table1", *options, "--json"))
    assert (len(plan["runs"]), plan["data"]) == (3, ["ImageNet-1K"])
    assert plan["runs"][0]["command"].startswith(f"protosphere {train}")
    assert not (tmp_path / "out").exists()


def test_a_plan_of_short_runs_has_minutes(tmp_path: Path) -> None:
    options = ["--row", "nonl", "--out", tmp_path / "out", "--dry-run", "--scale"]
    text = run_command("reproduce", "table1", *options, 0.002, "--column", "cifar10")
    assert re.search(r"cifar10-nonl-2-epochs +2 +missing +<0\.01\n", text)
    assert "1 run to train, less than a minute. " in text
    text = run_command("reproduce", "table1", *options, 0.02, "--column", "cifar100")
    assert re.search(r"cifar100-nonl-20-epochs +20 +missing +<0\.01\n", text)


def test_a_complete_plan_has_no_cost(tmp_path: Path) -> None:
    plan = plan_target("table1", out=tmp_path, rows=["nonl"], columns=["cifar10"])
    write_records(plan, {"cifar10-nonl": 0.93996}, class_counts=(5000,) * 10)
    options = ["--row", "nonl", "--column", "cifar10", "--out", tmp_path]
    text = run_command("reproduce", "table1", *options, "--dry-run")
    assert "\n0 runs to train. " in text


def test_a_difference_that_is_rounded_to_zero_has_no_sign(
    capsys: pytest.CaptureFixture[str],
) -> None:
    number = Number("nonl", "cifar10", 1000, 1000, value=8.996, paper=9.0, runs=("run",))
    print_reproduction(Reproduction("table1", "A title", 1.0, "", (number,), {}, ()), digits=2)
    assert capsys.readouterr().out.splitlines()[2].split()[-3:] == ["9.00", "9.00", "0.00"]


@pytest.mark.parametrize(
    ("hours", "text"),
    [
        (113.63, "about 113.6 hours"),
        (1234.5, "about 1,234.5 hours"),
        (0.1, "about 0.1 hours"),
        (0.09, "about 5 minutes"),
        (0.01, "about 1 minute"),
        (0.001, "less than a minute"),
    ],
)
def test_hours_of_short_runs_are_minutes(hours: float, text: str) -> None:
    assert describe_hours(hours) == text


@pytest.mark.bad_input
def test_refusals_are_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "did you mean table12?" in refusal("reproduce", "tabel12")
    message = refusal("reproduce", "table1", "--scale", 0.0001)
    assert message == (
        "scale must leave at least one epoch; 0.0001 of the 1000 epochs of cifar10-ce is none"
    )
    message = refusal("reproduce", "table1", "--column", "imagenet1k", "--row", "ce")
    assert message.startswith("table1 needs ImageNet-1K (--set data.path=FOLDER): ")
    assert "about 113.6 hours of training on one H200" in message
    assert "--dry-run prints" in message
    message = refusal("reproduce", "table1", "--set", "data.root=nowhere")
    assert "is not needed with --column cifar100 or imagenet100 or imagenet1k" in message
    message = refusal("reproduce", "table4", *_options("table4", tmp_path)[:-2])
    assert "dtd" in message
    message = refusal("reproduce", "table1", "--transfer-set", "dtd=x")
    assert message == ("--transfer-set must be NAME=PATH with a set of table1 (none), got 'dtd=x'")
    assert refusal("reproduce", "table1", "run") == (
        "run folders are only for `behaviors`, got run"
    )
    message = refusal("reproduce", "list", "--plot", tmp_path / "x.svg")
    assert message == "--plot has no effect on `list`: it is for a table or a figure"
    message = refusal("reproduce", "table1", "--plot", tmp_path / "x.gif", "--dry-run")
    assert message.startswith("--plot must be a file that ends in .png or .svg or .pdf")
    assert "at least one run folder" in refusal("reproduce", "behaviors")
    message = refusal("reproduce", "behaviors", "nowhere")
    assert message == "nowhere must be a run folder; it does not exist"
    assert "figure3-cifar10 or figure3-cifar100" in refusal("reproduce", "figure3")
    assert list(tmp_path.iterdir()) == []


def test_days_of_training_must_be_confirmed(tmp_path: Path) -> None:
    sets = [word for text in tiny_overrides()[:2] for word in ("--set", text)]
    message = refusal("reproduce", "table12", "--out", tmp_path, *sets)
    assert message.startswith("table12 takes about 87 hours of training on one H200; --yes starts")
    assert list(tmp_path.iterdir()) == []


def test_behaviors_are_printed(tmp_path: Path) -> None:
    runs = [
        logged_run(
            tmp_path / loss,
            {"accuracy": [(1, accuracy)]},
            "schedule.epochs=1",
            "data.long_tail=0.1",
            recipe=f"digits-{loss}",
        )
        for loss, accuracy in (("ce", 0.5), ("nonl", 0.6))
    ]
    content = json.loads(run_command("reproduce", "behaviors", *runs, "--json"))
    assert content["num_runs"] == 2
    verdicts = {check["statement"]: check["verdict"] for check in content["checks"]}
    assert list(verdicts.values()).count("not testable") == len(verdicts) - 1
    text = run_command("reproduce", "behaviors", tmp_path)
    assert re.search(
        r"EB6 .*long tail +digits, long tail 0\.1, 1 epochs +held +accuracy: ce 50\.0, nonl 60\.0",
        text,
    )
