"""The overview: results over seeds beside the paper's, states, machines and problems."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from protosphere.recipes.monitor import find_best
from protosphere.recipes.schema.sections import CheckpointSettings
from protosphere.report.content import Note, Section, Table
from protosphere.report.final_results import final_evaluation
from protosphere.report.read_run import read_run
from protosphere.report.sections.collapse import create_section as create_collapse
from protosphere.report.sections.overview import create_section
from protosphere.report.sources import ReportData, RunData
from support.documents import ROOT
from support.report_runs import create_run, evaluations, geometry_arrays, simplex
from support.report_studies import create_comparison, create_sweep


def create(
    name: str, accuracy: float = 0.5, *, seed: int = 42, epochs: int = 2, **fields: Any
) -> RunData:
    recipe = {
        "name": name,
        "data": {"source": "cifar100"},
        "loss": {"name": "nonl"},
        "schedule": {"epochs": epochs},
    }
    values = {"accuracy": [0.1, accuracy], "nc1_ratio": [1.0, accuracy / 10]}
    values |= {name: [1.0, accuracy / 10] for name in ("nc2_angles", "nc3_cosine")}
    values |= {"inter_effective_rank": [1.0, 90 * accuracy], "nc4_agreement": [0.1, accuracy]}
    return create_run(
        f"{name}, seed {seed}",
        method=name,
        seed=seed,
        arrays={},
        records=evaluations(values),
        **{"recipe": recipe, "num_classes": 100, **fields},
    )


def section_of(*runs: RunData, **fields: Any) -> Section:
    return create_section(ReportData(runs, **fields))


def table_of(section: Section, title: str) -> Table:
    (table,) = [
        block for block in section.blocks if isinstance(block, Table) and block.title == title
    ]
    return table


def cell(table: Table, row: str, column: str) -> str:
    (cells,) = [cells for cells in table.rows if cells[0] == row]
    return cells[table.columns.index(column)]


def notes(section: Section, kind: str = "text") -> str:
    found = [block for block in section.blocks if isinstance(block, Note)]
    return "\n".join(note.text for note in found if note.kind == kind)


def test_a_row_is_a_method_with_mean_and_sample_deviation() -> None:
    runs = [create("nonl", value, seed=seed) for seed, value in enumerate((0.7, 0.72, 0.74))]
    table = table_of(section_of(*runs, create("ntce", 0.71)), "Results")
    assert [row[0] for row in table.rows] == ["nonl", "ntce"]
    assert cell(table, "nonl", "Accuracy, %") == "72.0 ± 2.0"
    assert cell(table, "nonl", "Runs (seeds)") == "3 (0, 1, 2)"
    assert cell(table, "ntce", "Runs (seeds)") == "1 (42)"
    assert cell(table, "ntce", "Accuracy, %") == "71.0"
    best = {(row, table.columns[column]) for row, column in table.best}
    assert {(0, name) for name in ("Accuracy, %", "NC2: rank", "NC4: agreement, %")} < best
    assert "bold" in table.meaning
    lower = ("NC1: variance ratio", "NC2: angles", "NC3: 1\u00a0−\u00a0cosine")
    assert {(1, name) for name in lower} < best


def test_runs_that_are_not_complete_do_not_count_beside_complete_ones() -> None:
    section = section_of(
        create("nonl", 0.7, seed=1),
        create("nonl", 0.1, seed=2, state="incomplete"),
        create("ntce", 0.3, state="running", epochs=10),
    )
    table = table_of(section, "Results")
    assert cell(table, "nonl", "Accuracy, %") == "70.0"
    assert cell(table, "nonl", "Seed") == "1"
    assert cell(table, "ntce", "Accuracy, %") == "30.0"
    assert "Not complete, so values so far: ntce." in notes(section)
    assert "ntce, seed 42 is running: 2 of 10 epochs are done." in notes(section)
    runs = table_of(section, "Runs")
    assert cell(runs, "nonl, seed 2", "State") == "incomplete, epoch 2 of 2"
    assert cell(runs, "ntce, seed 42", "State") == "running, epoch 2 of 10"


def test_the_paper_stands_beside_the_same_data_and_loss() -> None:
    section = section_of(create("nonl", 0.7, epochs=100))
    assert cell(table_of(section, "Results"), "nonl", "Paper, %") == "73.6"
    assert "(Table 1); the paper trained for 1000 epochs, these runs for 100" in notes(section)
    two = section_of(create("nonl", 0.7, epochs=100), create("ntce", 0.7, epochs=60))
    assert "these runs for 60 and 100, so" in notes(two)
    equal = section_of(create("nonl", 0.7, epochs=1000))
    assert "(Table 1)." in notes(equal)


@pytest.mark.parametrize(
    "data",
    [
        {"source": "digits"},
        {"source": "cifar100", "long_tail": 0.01},
        {"source": "cifar100", "label_noise": {"name": "symmetric", "fraction": 0.2}},
        {"source": "cifar100", "class_groups": "coarse"},
    ],
)
def test_other_data_have_no_number_of_the_paper(data: dict[str, object]) -> None:
    recipe = {"data": data, "loss": {"name": "nonl"}, "schedule": {"epochs": 2}}
    assert "Paper, %" not in table_of(section_of(create("a", recipe=recipe)), "Results").columns


def test_validation_images_have_no_number_of_the_paper() -> None:
    section = section_of(create("nonl", data={"split": "validation"}))
    assert "Paper, %" not in table_of(section, "Results").columns


NAN = float("nan")


@pytest.mark.parametrize(
    ("monitor", "accuracies", "step", "words"),
    [
        ("accuracy", [0.3, 0.6, 0.5, 0.6], 2, "best evaluation, epoch 2 of 40"),
        ("loss", [0.3, 0.6, 0.5, 0.6], 3, "best evaluation, epoch 3 of 40"),
        ("accuracy", [NAN, 0.1, NAN, NAN], 2, "best evaluation, epoch 2 of 40"),
        ("accuracy", [NAN] * 4, 1, "best evaluation, epoch 1 of 40"),
        (None, [0.3, 0.6, 0.5, 0.6], 4, "last evaluation"),
        ("balanced_accuracy", [0.3, 0.6, 0.5, 0.6], 4, "last evaluation"),
    ],
)
def test_results_are_those_of_the_checkpoint_that_evaluate_loads(
    monitor: Any, accuracies: list[float], step: int, words: str
) -> None:
    records = evaluations({"accuracy": accuracies, "loss": [3.0, 2.0, 1.0, 1.0]})
    recipe = {"schedule": {"epochs": 40}, "checkpoint": {"monitor": monitor}}
    run = create_run(recipe=recipe, records=records)
    record = final_evaluation(run)
    assert record is not None
    assert record["step"] == step
    assert f"Results are those of the {words}." in notes(section_of(run))
    # In training, the same evaluation is found by the recipe.
    best = find_best(CheckpointSettings(monitor=monitor), records)
    assert (step if best is None else best.step) == step


def test_a_run_that_stopped_early_is_the_same_evaluation_in_all_tables() -> None:
    values = {
        "accuracy": [0.3, 0.6, 0.5, 0.4],
        "nc1_ratio": [3.0, 2.0, 0.04, 0.004],
        "nc2_simplex": [1.0, 0.9, 0.4, 0.1],
    }
    recipe = {
        "schedule": {"epochs": 40},
        "checkpoint": {"monitor": "accuracy", "patience": 2},
    }
    run = create_run(recipe=recipe, records=evaluations(values))
    section, collapse = section_of(run), create_collapse(ReportData((run,)))
    assert collapse is not None
    results, runs = table_of(section, "Results"), table_of(section, "Runs")
    assert cell(results, "nonl", "Accuracy, %") == "60.0"
    assert cell(results, "nonl", "NC1: variance ratio") == "2.000"
    assert cell(runs, "nonl", "State") == "complete, stopped early at epoch 4"
    assert cell(runs, "nonl", "Results of") == "best evaluation, epoch 2 of 40"
    metrics = table_of(collapse, "Metrics of collapse")
    assert cell(metrics, "nonl", "NC1: nc1_ratio") == "2"
    conditions = table_of(collapse, "The four conditions of neural collapse")
    assert conditions.rows[0][1:3] == ("no (2)", "no (0.9)")
    for table in (metrics, conditions):
        assert "at the best evaluation, epoch 2 of 40, " in table.meaning
    assert "show the last evaluation of nonl instead of the best one" in notes(section)
    other = create("ntce")
    assert cell(table_of(section_of(run, other), "Runs"), "ntce, seed 42", "Results of") == (
        "last evaluation, epoch 2 of 2"
    )


def test_tables_of_collapse_leave_out_runs_that_the_results_leave_out() -> None:
    runs = (create("nonl", 0.5, seed=1), create("nonl", 0.9, seed=2, state="incomplete"))
    collapse = create_collapse(ReportData(runs))
    assert collapse is not None
    assert cell(table_of(collapse, "Metrics of collapse"), "nonl", "NC1: nc1_ratio") == "0.05"


def test_nothing_is_called_bold_where_nothing_is() -> None:
    recipe = {"data": {"source": "digits"}}
    table = table_of(section_of(create("a"), create("b", recipe=recipe)), "Results")
    assert not table.best
    assert "bold" not in table.meaning


def test_every_report_says_what_neural_collapse_is() -> None:
    sections = [section_of(create("a")), section_of(sweeps={"rates": create_sweep()})]
    assert all(section.intro.startswith("Neural collapse is ") for section in sections)


def test_a_run_without_evaluations_has_no_results_of_one() -> None:
    section = section_of(create_run("a"))
    assert "There is no record of an evaluation." in notes(section)
    assert "last evaluation" not in notes(section)


def test_folders_that_are_not_kept_are_not_named() -> None:
    for runs in ([create("a")], [create("a"), create("b")]):
        assert "Folder" in table_of(section_of(*runs), "Runs").columns
        section = section_of(*runs, names_folders=False)
        assert "Folder" not in table_of(section, "Runs").columns
        assert "runs/a" not in str(section)


def test_machine_and_commit_are_named_and_their_absence_too() -> None:
    machine = {"device": "NVIDIA H200", "versions": {"torch": "2.15.0"}, "commit": "abc-dirty"}
    table = table_of(section_of(create("a", machine=machine), create("b")), "Runs")
    assert cell(table, "a, seed 42", "Commit") == "abc-dirty"
    assert cell(table, "a, seed 42", "Device") == "NVIDIA H200"
    assert cell(table, "b, seed 42", "Commit") == "not recorded"
    assert cell(table, "b, seed 42", "torch") == "not recorded"


def test_what_is_the_same_for_all_runs_is_said_once() -> None:
    machine = {"device": "cpu", "versions": {}, "commit": "abc"}
    table = table_of(section_of(*(create(name, machine=machine) for name in "abc")), "Runs")
    assert "Commit" not in table.columns
    assert "The same for all: " in table.meaning
    assert "Commit: abc" in table.meaning


def test_a_table_is_never_names_alone() -> None:
    table = table_of(section_of(create("a"), create("b"), names_folders=False), "Runs")
    assert table.columns == ("Run", "State", "Data")
    assert "State" not in table.meaning


def test_a_problem_of_many_runs_is_one_note() -> None:
    problem = "geometry.safetensors is missing: no heat maps."
    runs = [create(f"run{index}", problems=(problem,)) for index in range(50)]
    section = section_of(*runs, create("whole"), problems=("Cannot read sweep.json.",))
    missing = notes(section, "missing").splitlines()
    assert missing == [
        "Cannot read sweep.json.",
        f"run0, seed 42, run1, seed 42, run2, seed 42 and 47 more: {problem}",
    ]


def test_a_report_without_runs_names_its_studies() -> None:
    section = section_of(
        comparisons={"study": create_comparison()}, sweeps={"rates": create_sweep()}
    )
    assert "Comparison study: 2 methods, seeds 42, 2 complete runs" in notes(section)
    assert "commit 0123456789ab" in notes(section)
    assert "Sweep rates of digits-nonl over optimizer.lr: 3 of 3 trials are complete." in notes(
        section
    )


@pytest.mark.parametrize("value", ["x", [1], {"a": 1}, None, float("nan")])
def test_settings_of_other_types_are_shown_as_they_are(value: Any) -> None:
    sections = ("name", "data", "loss", "model", "optimizer", "schedule", "checkpoint")
    nested = {"epochs": value, "monitor": value, "name": value, "lr": value, "backbone": value}
    for section in sections:
        for content in (value, nested):
            run = create("nonl", recipe={section: content}, machine={"versions": value})
            assert table_of(section_of(run), "Runs").rows[0][0] == "nonl, seed 42"


def test_an_early_stop_is_named() -> None:
    section = section_of(create("nonl", epochs=10))
    assert cell(table_of(section, "Runs"), "nonl, seed 42", "State") == (
        "complete, stopped early at epoch 2"
    )


def test_a_run_with_nothing_but_its_folder_is_shown() -> None:
    run = RunData("x", Path("x"), "x", None, "incomplete", problems=("recipe.yaml is missing.",))
    section = section_of(run)
    assert cell(table_of(section, "Runs"), "x", "State") == "incomplete, epoch 0 of ?"
    assert "x: recipe.yaml is missing." in notes(section, "missing")


def merged(name: str, *, temperature: float = 0.6, **fields: Any) -> RunData:
    """A run of ten classes in which the prototypes of the classes 3 and 5 are equal."""
    arrays = geometry_arrays(simplex(10)[[0, 1, 2, 3, 4, 3, 6, 7, 8, 9]])
    loss = {"name": "ntce", "temperature": temperature}
    recipe = {"name": name, "loss": loss, "schedule": {"epochs": 1}}
    return create_run(
        name, arrays=arrays, records=evaluations({"accuracy": [0.8]}), recipe=recipe, **fields
    )


def test_classes_whose_prototypes_coincide_are_named() -> None:
    text = (
        "The prototypes of c3 and c5 have nearly the same direction (cosine 1.000), so that the "
        "head can hardly tell these classes apart. A temperature below 0.6 (loss.temperature) may "
        "separate them."
    )
    assert text in notes(section_of(merged("ntce"))).splitlines()
    healthy = create_run("nonl", records=evaluations({"accuracy": [0.8]}))
    lines = notes(section_of(merged("ntce"), healthy)).splitlines()
    assert f"ntce: {text}" in lines
    assert "same direction" not in notes(section_of(healthy))


def test_of_many_runs_whose_prototypes_coincide_the_others_are_only_listed() -> None:
    runs = [merged(f"run {index}") for index in range(6)]
    lines = notes(section_of(*runs)).splitlines()
    assert sum("c3 and c5" in line for line in lines) == 4
    assert "Prototypes have nearly the same direction in run 4 and run 5 too." in lines


@pytest.mark.parametrize("loss", [None, "ntce", {"temperature": "0.6"}])
def test_a_damaged_recipe_only_costs_the_advice(loss: Any) -> None:
    run = replace(merged("ntce"), recipe={"name": "ntce", "loss": loss})
    text = notes(section_of(run))
    assert "The prototypes of c3 and c5 have nearly the same direction (cosine 1.000)." in text


def test_the_committed_runs_that_lost_a_class_are_the_only_ones_that_say_so() -> None:
    folders = sorted((ROOT / "benchmarks/results/reproduce").glob("cifar10-*-100-epochs"))
    assert len(folders) >= 4
    found = {
        folder.name.split("-")[1]: "of class 3 and class 5 have" in text
        for folder in folders
        if "same direction" in (text := notes(section_of(read_run(folder))))
    }
    assert found == {"normface": True, "ntce": True}
