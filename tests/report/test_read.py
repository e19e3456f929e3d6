"""Sources of a report: which runs are found, what they are called, and what is missing in them."""

import errno
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from protosphere.report.content import Table
from protosphere.report.names import name_runs
from protosphere.report.read import ReportError, read_sources
from protosphere.report.read_run import find_state
from protosphere.report.sections import classes, geometry, overview
from protosphere.report.sources import ReportData, RunData
from protosphere.runs import RunFolder
from protosphere.runs.comparison import write_comparison
from protosphere.runs.sweeps import write_sweep
from support.report_content import create_run
from support.report_folders import write_run
from support.report_studies import create_comparison, create_sweep


def read_one(path: Path) -> RunData:
    (run,) = read_sources([path]).runs
    return run


def test_a_complete_run_has_everything_and_no_problem(tmp_path: Path) -> None:
    run = read_one(write_run(tmp_path / "run"))
    assert (run.name, run.method, run.seed) == ("digits-nonl", "digits-nonl", 42)
    assert run.state == "complete"
    assert run.problems == ()
    assert len(run.records) == 8
    assert run.data["num_train"] == 1200
    assert run.machine["commit"] == "0123456789ab"
    assert run.class_names == ("zero", "one", "two", "three")
    assert run.arrays["class_cosines"].shape == (4, 4)


def test_runs_are_found_three_folders_deep_and_once(tmp_path: Path) -> None:
    for place in ("one", "a/two", "a/b/three", "a/b/c/four", ".hidden/five"):
        write_run(tmp_path / place, name=place.rpartition("/")[2])
    report = read_sources([tmp_path, tmp_path / "one", tmp_path / "a/.."])
    assert sorted(run.name for run in report.runs) == ["one", "three", "two"]


def test_seeds_are_of_one_method_and_have_names_of_their_own(tmp_path: Path) -> None:
    for seed in (42, 43):
        write_run(tmp_path / f"nonl-{seed}", seed=seed)
    write_run(tmp_path / "again", seed=42)
    report = read_sources([tmp_path])
    assert {run.method for run in report.runs} == {"digits-nonl"}
    assert [run.name for run in report.runs] == [
        "digits-nonl, seed 42 (again)",
        "digits-nonl, seed 42 (nonl-42)",
        "digits-nonl, seed 43",
    ]


def test_recipes_of_one_name_are_told_apart_by_what_differs(tmp_path: Path) -> None:
    for folder, lr in (("a", 0.1), ("b", 0.2)):
        optimizer = {"name": "sgd", "lr": lr, "weight_decay": 0.0005}
        # Where data are is not a difference.
        data = {"source": "digits", "root": folder}
        write_run(tmp_path / folder, recipe={"optimizer": optimizer, "data": data})
    names = [run.method for run in read_sources([tmp_path]).runs]
    assert names == ["digits-nonl (lr=0.1)", "digits-nonl (lr=0.2)"]


def test_a_loss_is_named_first_and_what_follows_from_it_is_not(tmp_path: Path) -> None:
    """As with `train recipe.yaml --set loss.name=nonl --set schedule.epochs=30`."""
    losses: dict[str, tuple[dict[str, Any], int]] = {
        "a": ({"name": "normface", "temperature": 0.2, "margin": 0.0}, 40),
        "b": ({"name": "nonl", "temperature": 0.2, "negatives": "samples"}, 30),
        "c": ({"name": "ce"}, 40),
    }
    for folder, (loss, epochs) in losses.items():
        schedule = {"name": "cosine", "epochs": epochs}
        recipe = {"loss": loss, "schedule": schedule}
        write_run(tmp_path / folder, name="photos-normface", recipe=recipe)
    methods = [run.method for run in read_sources([tmp_path]).runs]
    assert methods == [
        "photos (normface, epochs=40)",
        "photos (nonl, epochs=30)",
        "photos (ce, epochs=40)",
    ]
    # What does not follow from the loss is named.
    loss = {**losses["b"][0], "negatives": "prototypes"}
    recipe = {"loss": loss, "schedule": {"name": "cosine", "epochs": 30}}
    write_run(tmp_path / "d", name="photos-normface", recipe=recipe)
    names = {run.path.name: run.method for run in read_sources([tmp_path]).runs}
    assert "negatives=prototypes" in names["d"]
    assert all(names[folder] != names["d"] for folder in losses)


def test_methods_of_different_recipes_do_not_get_one_name(tmp_path: Path) -> None:
    for folder, name, loss, lr in (
        ("a", "x-normface", "normface", 0.1),
        ("b", "x-normface", "nonl", 0.1),
        ("c", "x-nonl", "normface", 0.3),
        ("d", "x-nonl", "nonl", 0.3),
    ):
        optimizer = {"name": "sgd", "lr": lr, "weight_decay": 0.0005}
        recipe = {"loss": {"name": loss}, "optimizer": optimizer}
        write_run(tmp_path / folder, name=name, recipe=recipe)
    assert len({run.method for run in read_sources([tmp_path]).runs}) == 4


def test_a_number_of_classes_is_named_beside_runs_of_which_it_is_not_known(tmp_path: Path) -> None:
    for index in range(4):
        optimizer = {"name": "sgd", "lr": 0.1 * (index + 1), "weight_decay": 0.0005}
        folder = write_run(tmp_path / f"{index}", recipe={"optimizer": optimizer})
        if index:
            (folder / "classes.json").unlink()
    write_run(tmp_path / "grouped", class_names=("even", "odd"))
    methods = {run.path.name: run.method for run in read_sources([tmp_path]).runs}
    assert "classes=2" in methods["grouped"]
    assert "classes" not in methods["3"]


def test_a_key_that_an_older_version_lacks_is_no_difference_unless_it_is_on(
    tmp_path: Path,
) -> None:
    loss = {"name": "nonl", "temperature": 0.2}
    write_run(tmp_path / "old", recipe={"loss": loss})
    write_run(tmp_path / "off", seed=43, recipe={"loss": {**loss, "label_smoothing": 0.0}})
    write_run(tmp_path / "on", seed=44, recipe={"loss": {**loss, "label_smoothing": 0.1}})
    methods = {run.path.name: run.method for run in read_sources([tmp_path]).runs}
    assert methods["old"] == methods["off"] == "digits-nonl"
    assert methods["on"] == "digits-nonl (label_smoothing=0.1)"


def test_other_test_images_are_another_method() -> None:
    def run(seed: int, images: str | None, split: str = "test") -> RunData:
        data = {} if images is None else {"split": split, "eval_fingerprint": images}
        return create_run("ce", {}, seed=seed, data=data)

    named = name_runs([run(0, "a" * 64), run(1, "b" * 64), run(2, "a" * 64), run(3, None)])
    first, second = "ce (images aaaaaaaa)", "ce (images bbbbbbbb)"
    assert [one.method for one in named] == [first, second, first, first]
    # Validation images depend on the seed.
    validated = name_runs([run(0, "a" * 64, "validation"), run(1, "b" * 64, "validation")])
    assert [one.method for one in validated] == ["ce", "ce"]
    # What says more is named instead.
    recipe = {"data": {"source": "digits", "long_tail": 0.1}}
    tail = create_run("ce", {}, data={"split": "test", "eval_fingerprint": "b" * 64}, recipe=recipe)
    assert [one.method for one in name_runs([run(0, "a" * 64), tail])] == [
        "ce",
        "ce (long_tail=0.1)",
    ]


def test_images_are_not_named_where_settings_tell_many_methods_apart() -> None:
    def run(images: str, **changes: Any) -> RunData:
        data = {"split": "test", "eval_fingerprint": images * 64}
        return create_run("ce", {}, data=data, recipe=changes)

    runs = [
        run("a"),
        run("a", schedule={"epochs": 20}),
        run("a", optimizer={"lr": 0.2}),
        run("a", training={"batch_size": 128}),
        run("b", data={"source": "digits", "long_tail": 0.1}),
        run("c", data={"source": "digits", "long_tail": 0.2}),
    ]
    methods = [one.method for one in name_runs(runs)]
    assert len(set(methods)) == len(runs)
    assert not [method for method in methods if "images" in method or "variant" in method]


def test_another_number_of_classes_is_another_method(tmp_path: Path) -> None:
    write_run(tmp_path / "fine")
    write_run(tmp_path / "coarse", seed=43, class_names=("even", "odd", "none"))
    methods = {run.method for run in read_sources([tmp_path]).runs}
    assert methods == {"digits-nonl (classes=3)", "digits-nonl (classes=4)"}


def test_a_run_that_died_is_incomplete_and_its_last_line_left_out(tmp_path: Path) -> None:
    folder = write_run(tmp_path, epochs=10, last_epoch=3)
    with (folder / "metrics.jsonl").open("a") as file:
        # A number that no float holds, another kind of record, and half a line.
        file.write(f'{{"kind": "train", "step": 1{400 * "0"}, "epoch": 4}}\n')
        file.write('{"kind": "note", "step": 40, "epoch": "4"}\n{"kind": "train", "step": 40, "epo')
    run = read_one(folder)
    assert run.state == "incomplete"
    assert run.problems == (
        "The run has ended after 3 of 10 epochs.",
        "metrics.jsonl is damaged: 2 lines could not be read and are left out.",
    )
    assert len(run.records) == 7


def test_a_run_that_is_locked_is_running_and_can_still_be_locked(tmp_path: Path) -> None:
    folder = RunFolder(write_run(tmp_path, epochs=10, last_epoch=3))
    with folder.lock():
        assert folder.is_locked()
        assert read_one(tmp_path).state == "running"
    assert not folder.is_locked()
    assert read_one(tmp_path).state == "incomplete"
    with folder.lock():
        pass


@pytest.mark.parametrize(
    ("accuracies", "expected"),
    [
        ([0.1, 0.5, 0.4, 0.3], "complete"),  # Two evaluations without a new best.
        ([0.1, 0.5, 0.4], "incomplete"),
        ([0.1, 0.5, 0.5, 0.5], "complete"),  # The first of equal ones is the best.
        ([0.5, 0.4, float("nan")], "complete"),
        ([], "incomplete"),
    ],
)
def test_patience_that_is_exhausted_completes_a_run(accuracies: list[float], expected: str) -> None:
    recipe = {
        "schedule": {"epochs": 100},
        "checkpoint": {"monitor": "accuracy", "patience": 2},
    }
    records = [
        {"kind": "evaluation", "step": step, "epoch": step, "accuracy": accuracy}
        for step, accuracy in enumerate(accuracies)
    ]
    assert find_state(recipe, records, is_running=False) == expected


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("recipe.yaml", "recipe.yaml is missing: the settings of the run are not known."),
        ("machine.json", "device, package versions and commit are not known."),
        ("metrics.jsonl", "metrics.jsonl is missing: curves and results are not available"),
        ("classes.json", "classes.json is missing: classes have numbers instead of names."),
        ("data.json", "data.json is missing: the numbers of images are not known."),
        ("geometry.safetensors", "geometry.safetensors is missing: heat maps"),
    ],
)
def test_a_missing_file_is_named_and_the_rest_is_kept(
    tmp_path: Path, name: str, problem: str
) -> None:
    write_run(tmp_path / "run")
    (tmp_path / "run" / name).unlink()
    run = read_one(tmp_path)
    assert any(problem in one for one in run.problems)
    kept = [run.recipe, run.machine, run.records, run.class_names, run.data, run.arrays]
    assert sum(bool(part) for part in kept) == 5


@pytest.mark.parametrize("content", [None, b'{"kind": "train", "st'])
def test_how_far_a_run_without_records_has_come_is_not_known(
    tmp_path: Path, content: bytes | None
) -> None:
    folder = write_run(tmp_path / "run")
    (folder / "metrics.jsonl").unlink()
    if content is not None:
        (folder / "metrics.jsonl").write_bytes(content)
    run = read_one(folder)
    assert run.state == "unknown"
    assert not [problem for problem in run.problems if "has ended" in problem]
    report = ReportData((run,))
    (table,) = [
        block
        for block in overview.create_section(report).blocks
        if isinstance(block, Table) and block.title == "Runs"
    ]
    assert table.rows[0][table.columns.index("State")] == "not known"
    assert geometry.create_section(report) is not None
    assert classes.create_section(report) is not None
    with RunFolder(folder).lock():
        assert read_one(folder).state == "running"


@pytest.mark.parametrize("locked", ["locked", "locked/comparison.json"])
def test_a_folder_that_cannot_be_read_is_a_problem_beside_the_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, locked: str
) -> None:
    """The superuser can read every folder, so that the refusal is simulated."""
    write_run(tmp_path / "good")
    (tmp_path / "locked").mkdir()
    stat, iterdir = Path.stat, Path.iterdir

    def refuse(path: Path) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    def refuse_stat(path: Path, **options: bool) -> os.stat_result:
        if path == tmp_path / locked:
            refuse(path)
        return stat(path, **options)

    def refuse_list(path: Path) -> Iterator[Path]:
        if path == tmp_path / "locked":
            refuse(path)
        return iterdir(path)

    monkeypatch.setattr(Path, "stat", refuse_stat)
    monkeypatch.setattr(Path, "iterdir", refuse_list)
    report = read_sources([tmp_path])
    assert [run.path.name for run in report.runs] == ["good"]
    assert [problem.lower() for problem in report.problems] == [
        f"cannot read {tmp_path / 'locked'}: permission denied.".lower()
    ]
    with pytest.raises(ReportError, match=r"(?i)permission denied"):
        read_sources([tmp_path / "locked"])


@pytest.mark.parametrize("content", [b"", b"\xff\xfe{", b"[1, 2]", b"[" * 1500])
@pytest.mark.parametrize(
    "name",
    ["recipe.yaml", "machine.json", "classes.json", "data.json", "benchmarks/ood.json",
     "geometry.safetensors"],
)  # fmt: skip
def test_a_damaged_file_is_named_and_the_rest_is_kept(
    tmp_path: Path, name: str, content: bytes
) -> None:
    folder = write_run(tmp_path / "run")
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_bytes(content)
    run = read_one(folder)
    assert [one for one in run.problems if name in one]
    assert len(run.records) == 8
    assert run.seed == (None if name == "recipe.yaml" else 42)


def test_arrays_of_other_classes_are_left_out(tmp_path: Path) -> None:
    folder = write_run(tmp_path)
    (folder / "classes.json").write_text(json.dumps(["a", "b"]))
    run = read_one(folder)
    assert run.arrays == {}
    assert any("one number of classes, got 2 and 4" in problem for problem in run.problems)


def test_results_of_benchmarks_are_read(tmp_path: Path) -> None:
    folder = write_run(tmp_path)
    (folder / "benchmarks").mkdir()
    content = {"benchmark": "ood", "settings": {"step": 40}, "rows": [{"auroc": 0.9}]}
    (folder / "benchmarks/ood.json").write_text(json.dumps(content))
    assert read_one(folder).results["ood"]["rows"] == [{"auroc": 0.9}]


def test_a_comparison_comes_with_its_runs_and_a_sweep_without_its_trials(tmp_path: Path) -> None:
    write_run(tmp_path / "study/digits-nonl/seed-42")
    write_comparison(tmp_path / "study/comparison.json", create_comparison())
    write_run(tmp_path / "sweep/trials/0000", name="trial")
    write_sweep(tmp_path / "sweep", create_sweep())
    report = read_sources([tmp_path])
    assert [run.name for run in report.runs] == ["digits-nonl"]
    assert list(report.comparisons) == ["study"]
    assert list(report.sweeps) == ["sweep"]
    given = read_sources([tmp_path / "sweep/trials", tmp_path / "sweep/sweep.json"])
    assert [run.name for run in given.runs] == ["trial"]
    assert list(given.sweeps) == ["sweep"]
    alone = read_sources([tmp_path / "study/comparison.json"])
    assert alone.runs == ()
    assert list(alone.comparisons) == ["study"]


def test_a_damaged_study_is_a_problem_beside_the_runs(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    (tmp_path / "sweep.json").write_text("{")
    (tmp_path / "study").mkdir()
    (tmp_path / "study/comparison.json").write_text("{}")
    write_run(tmp_path / "study/run")
    report = read_sources([tmp_path / "run", tmp_path / "study", tmp_path / "sweep.json"])
    assert len(report.runs) == 2
    assert "comparison.json must be a comparison of schema version" in report.problems[0]
    assert "sweep.json is damaged: it is not JSON." in report.problems[1]


def _empty(path: Path) -> Path:
    path.mkdir()
    return path


def _text(path: Path) -> Path:
    path.write_text("text")
    return path


@pytest.mark.parametrize(
    ("create", "message"),
    [
        (lambda path: path, "must be a folder or file that exists, got"),
        (_empty, "a report needs at least one run; there is none in"),
        (_text, "must be the comparison.json or the sweep.json of a study, got"),
    ],
)
def test_sources_without_anything_are_refused(
    tmp_path: Path, create: Callable[[Path], Path], message: str
) -> None:
    with pytest.raises(ReportError, match=message):
        read_sources([create(tmp_path / "source")])
