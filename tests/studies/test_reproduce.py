"""Tables of the paper: their runs and numbers against the paper, cost, length, interruptions."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from protosphere.recipes import catalog
from protosphere.recipes.build import load_dataset
from protosphere.recipes.runner import run_recipe
from protosphere.recipes.schema import Recipe, apply_overrides
from protosphere.report.paper import paper_tables, paper_value
from protosphere.runs import RunFolder, RunFolderError
from protosphere.studies.reproduce import (
    TargetPlan,
    plan_target,
    read_numbers,
    run_target,
)
from protosphere.studies.reproduce_runs import (
    IMAGES_PER_SECOND,
    MEASURED_BACKBONES,
    STEPS_PER_SECOND,
    PaperRun,
    create_recipe,
    plan_run,
)
from protosphere.studies.reproduce_targets import TARGETS
from support.reproductions import numbers_of, refuse_training, tiny_overrides, write_records

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


def _leaves(content: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield where the numbers of nested dictionaries and lists are."""
    if not isinstance(content, dict | list):
        yield path
        return
    items = content.items() if isinstance(content, dict) else enumerate(content)
    for key, value in items:
        yield from _leaves(value, (*path, key))


def _train(recipe: Recipe, folder: Path) -> bool:
    for _ in run_recipe(recipe, folder, load_dataset(recipe), start="resume"):
        pass
    return True


def test_every_number_of_the_paper_is_that_of_a_target() -> None:
    used = {cell.paper for target in TARGETS.values() for cell in target.cells if cell.paper}
    assert set(_leaves(paper_tables())) <= used
    for target in TARGETS.values():
        places = [(cell.row, cell.column) for cell in target.cells]
        assert len(set(places)) == len(places), target.name
        printed = [paper_value(*cell.paper) for cell in target.cells if cell.paper]  # type: ignore[arg-type]
        # The paper gives no time until collapse for cross-entropy, which does not get there.
        num_missing = 5 if target.name == "table7" else 0
        assert printed.count(None) == num_missing, target.name


@pytest.mark.parametrize("name", TARGETS)
def test_every_target_builds_and_says_what_it_needs(name: str, tmp_path: Path) -> None:
    plan = plan_target(name, out=tmp_path)
    assert plan.data
    assert plan.hours_left is not None
    assert plan.hours_left > 0
    folders = [run.folder for run in plan.runs.values()]
    assert len(set(folders)) == len(folders) == len(plan.missing)
    for run in plan.runs.values():
        assert run.recipe.schedule.epochs == catalog.get_recipe(run.run.recipe).schedule.epochs


def test_the_command_of_a_run_trains_its_recipe(tmp_path: Path) -> None:
    overrides = [*tiny_overrides()[:2], "data.workers=3"]
    for run in plan_target(
        "table8", out=tmp_path, scale=0.1, overrides=tiny_overrides()
    ).runs.values():
        words = run.command.replace("'", "").split(" --set ")
        assert words[0] == f"train {run.run.recipe} --out {run.folder} --resume"
        assert apply_overrides(catalog.get_recipe(run.run.recipe), words[1:]) == run.recipe
    assert "data.workers" not in plan_run(PaperRun("cifar100-ce"), out=tmp_path).command
    with pytest.raises(ValueError, match="workers"):
        plan_run(PaperRun("cifar100-ce"), out=tmp_path, overrides=overrides)


def test_cost_by_hand(tmp_path: Path) -> None:
    # 50,000 images, 1000 epochs, 83,000 images a second; contrastive runs have two views.
    hours = 50_000 * 1000 / 83_000 / 3600
    plan = plan_target("table14", out=tmp_path, rows=["cifar10"])
    assert plan.hours_left == pytest.approx(2 * hours)
    plan = plan_target("table13", out=tmp_path, scale=0.5, columns=["cifar100 mean"])
    assert plan.hours_left == pytest.approx(4 * 5 * hours / 2)
    long_tail = plan_target("table6", out=tmp_path, rows=["ce"], columns=["cifar100_lt_0.01"])
    # In batches of 128, at 430 steps a second.
    assert long_tail.hours_left == pytest.approx(10_847 * 200 / (430 * 128) / 3600)
    changed = plan_target("table13", out=tmp_path, overrides=["augmentation.size=40"])
    assert changed.hours_left is None


def test_speeds_are_those_of_the_committed_benchmarks() -> None:
    training = json.loads((RESULTS / "training-gpu.json").read_text())["cases"]
    batches = json.loads((RESULTS / "large_batches-gpu.json").read_text())["losses"]["nonl"]
    measured = {
        ("resnet18", 32): training["resnet18, 32 px, batch 512"]["images_per_second"],
        ("resnet50", 224): batches["small"]["images"] / batches["small"]["seconds"],
    }
    assert {backbone for backbone, _ in measured} == set(MEASURED_BACKBONES)
    for key, speed in measured.items():
        assert pytest.approx(speed, rel=0.02) == IMAGES_PER_SECOND[key]
    # Benchmarks of other runs slowed it down at times.
    small = RESULTS / "reproduce" / "cifar100-nonl-temperature-0.2-batch-size-128-60-epochs"
    speeds = [one["images_per_second"] for one in RunFolder(small).records() if "lr" in one]
    assert max(speeds) / 128 == pytest.approx(STEPS_PER_SECOND, rel=0.02)


def test_small_batches_take_longer(tmp_path: Path) -> None:
    hours: dict[int, float] = {}
    for size in (64, 128, 512, 2048):
        plan = plan_target("figure3-cifar100", out=tmp_path, rows=[f"nonl {size}"], columns=["0.1"])
        assert plan.hours_left is not None
        hours[size] = plan.hours_left
    assert hours[128] == pytest.approx(50_000 * 1000 / (430 * 128) / 3600)
    assert hours[64] == pytest.approx(2 * hours[128])
    assert hours[512] == hours[2048] == pytest.approx(50_000 * 1000 / 83_000 / 3600)


def test_scale_shortens_epochs_warmup_and_probes() -> None:
    recipe = create_recipe(PaperRun("imagenet100-scl"), scale=0.1)
    assert (recipe.schedule.epochs, recipe.schedule.warmup_epochs) == (50, 1)
    assert (recipe.probe.epochs, recipe.probe.milestones) == (9, (3, 6, 8))
    shortest = create_recipe(PaperRun("imagenet100-scl"), scale=0.002)
    assert (shortest.schedule.epochs, shortest.schedule.warmup_epochs) == (1, 0)
    assert (shortest.probe.epochs, shortest.probe.milestones) == (2, (1,))
    # What is given is not scaled.
    given = ["probe.epochs=100", "probe.milestones=[60, 75]", "schedule.warmup_epochs=3"]
    full = create_recipe(PaperRun("imagenet100-scl"), scale=0.1, overrides=given)
    assert (full.probe.epochs, full.probe.milestones) == (100, (60, 75))
    assert (full.schedule.epochs, full.schedule.warmup_epochs) == (50, 3)
    # Often enough for the curves of Table 7, and not so often that it takes most of the time.
    every = {
        epochs: create_recipe(PaperRun("cifar100-ce"), scale=epochs / 1000).evaluation.every
        for epochs in (1, 60, 100, 1000)
    }
    assert every == {1: 1, 60: 2, 100: 4, 1000: 10}


def test_tables_share_runs(tmp_path: Path) -> None:
    tables = [
        plan_target("table1", out=tmp_path, rows=["nonl"], columns=["cifar100"]),
        plan_target("table9", out=tmp_path, rows=["nonl"], columns=["0.1"]),
        plan_target("table13", out=tmp_path, rows=["nonl"], columns=["cifar100 mean"]),
    ]
    folders = [[run.folder.name for run in plan.runs.values()] for plan in tables]
    assert folders[0] == folders[1] == ["cifar100-nonl-1000-epochs"]
    assert folders[2] == [
        "cifar100-nonl-1000-epochs",
        *(f"cifar100-nonl-seed-{seed}-1000-epochs" for seed in (43, 44, 45, 46)),
    ]
    other = plan_target("table9", out=tmp_path, rows=["nonl"], columns=["1"])
    assert [run.folder.name for run in other.runs.values()] == [
        "cifar100-nonl-temperature-1-1000-epochs"
    ]


def test_mean_deviation_and_best_by_hand(tmp_path: Path) -> None:
    plan = plan_target(
        "table13", out=tmp_path, rows=["ce"], columns=["cifar10 mean", "cifar10 std"]
    )
    names = ["cifar10-ce", *(f"cifar10-ce-seed-{seed}" for seed in (43, 44, 45, 46))]
    write_records(plan, dict(zip(names, (0.94, 0.95, 0.96, 0.97, 0.98), strict=True)))
    plan = plan_target(
        "table13", out=tmp_path, rows=["ce"], columns=["cifar10 mean", "cifar10 std"]
    )
    assert plan.hours_left == 0
    result = run_target(plan, train=refuse_training)
    mean, deviation = result.numbers
    # Deviations -2, -1, 0, 1, 2: their squares sum to 10, divided by n - 1 = 4.
    assert mean.value == pytest.approx(96.0)
    assert deviation.value == pytest.approx(2.5**0.5)
    assert (mean.paper, deviation.paper) == (94.52, 0.15)
    assert mean.difference == pytest.approx(96 - 94.52)
    assert (mean.epochs, mean.paper_epochs, len(mean.runs)) == (1000, 1000, 5)
    best = plan_target("table1", out=tmp_path, rows=["ce"], columns=["imagenet1k"])
    values = {"imagenet1k-ce": 0.751, "imagenet1k-4096-ce": 0.753, "imagenet1k-8192-ce": 0.752}
    write_records(best, values)
    best = plan_target("table1", out=tmp_path, rows=["ce"], columns=["imagenet1k"])
    assert run_target(best, train=refuse_training).numbers[0].value == pytest.approx(75.3)


@pytest.mark.long
def test_interrupted_and_resumed_gives_the_same_table(tmp_path: Path) -> None:
    def plan(out: Path) -> TargetPlan:
        rows = ["nonl", "ntce"]
        return plan_target(
            "table1", out=out, scale=0.003, rows=rows, columns=["cifar10"],
            overrides=[*tiny_overrides(), "training.batch_size=30", "evaluation.metrics=cheap"],
        )  # fmt: skip

    def kill(recipe: Recipe, folder: Path) -> bool:
        """Train six of the twelve steps of the first run, and end without a checkpoint."""
        for event in run_recipe(
            recipe, folder, load_dataset(recipe), report_every=1, start="resume"
        ):
            if event.progress.step == 6:
                break
        return False

    steps: list[int] = []

    def stop(recipe: Recipe, folder: Path) -> bool:
        """Train six steps, and end with a checkpoint in the middle of an epoch."""
        for event in run_recipe(
            recipe,
            folder,
            load_dataset(recipe),
            should_stop=lambda: len(steps) == 6,
            report_every=1,
            start="resume",
        ):
            steps.append(event.progress.step)
        return False

    whole = run_target(plan(tmp_path / "whole"), train=_train)
    run_target(plan(tmp_path / "parts"), train=kill)
    stopped = run_target(plan(tmp_path / "parts"), train=stop)
    assert set(numbers_of(stopped).values()) == {None}
    assert stopped.pending == ("cifar10-ntce-3-epochs", "cifar10-nonl-3-epochs")
    begun = plan(tmp_path / "parts")
    assert [run.epochs_done for run in begun.runs.values()] == [1, 0]
    trained: list[str] = []

    def fail_once(recipe: Recipe, folder: Path) -> bool:
        trained.append(folder.name)
        if recipe.loss.name == "nonl":
            raise MemoryError
        return _train(recipe, folder)

    failed = run_target(begun, train=fail_once)
    assert failed.failures == {"cifar10-nonl-3-epochs": "out of memory"}
    assert [run.is_complete for run in plan(tmp_path / "parts").runs.values()] == [True, False]
    resumed = run_target(plan(tmp_path / "parts"), train=_train)
    assert resumed == whole
    files = [(tmp_path / name / "table1.json").read_bytes() for name in ("whole", "parts")]
    assert files[0] == files[1]
    assert run_target(plan(tmp_path / "parts"), train=refuse_training) == whole


def test_who_stops_training_does_not_wait_for_benchmarks(tmp_path: Path) -> None:
    rows = ["cifar10 ce", "cifar10 nonl", "cifar10 scl_fixed_prototypes"]
    columns = ["inter_effective_rank"]
    plan = plan_target("table3", out=tmp_path, rows=rows, columns=columns)
    names = ["cifar10-ce", "cifar10-scl", "cifar10-nonl"]
    write_records(plan, dict.fromkeys(names, 8.0), metric="inter_effective_rank")
    shutil.rmtree(tmp_path / "cifar10-nonl-1000-epochs")
    plan = plan_target("table3", out=tmp_path, rows=rows, columns=columns)
    # The complete contrastive run has no probes: reading them would fail.
    result = run_target(plan, train=lambda *_: False)
    assert list(numbers_of(result).values()) == [8.0, None, None]
    assert result.pending == ("cifar10-nonl-1000-epochs",)


@pytest.mark.bad_input
def test_what_is_refused(tmp_path: Path) -> None:
    for arguments, message in (
        ({"name": "tabel1"}, "no table or figure 'tabel1' here; did you mean table1"),
        ({"name": "Figure3"}, r"did you mean figure3-cifar10 or figure3-cifar100\?"),
        ({"name": "figure"}, "did you mean figure2, figure3-cifar10 or figure3-cifar100"),
        ({"name": "table"}, "'table' here; `protosphere reproduce list` lists them"),
        ({"name": "x"}, "`protosphere reproduce list` lists them"),
        ({"scale": 0.0001}, "at least one epoch; 0.0001 of the 1000 epochs of cifar10-ce is none"),
        ({"scale": 1.5}, "greater than 0 and at most 1, got 1.5"),
        ({"rows": ["nnl"]}, "one of ce, etf_dr, normface, ntce, nonl; got 'nnl'"),
        ({"columns": ["mnist"]}, "one of cifar10, cifar100, imagenet100, imagenet1k; got 'mnist'"),
        ({"overrides": ["schedule.epochs=3"]}, "must not be overridden.*--scale changes it"),
        ({"name": "table13", "overrides": ["seed=3"]}, "seed must not be overridden"),
        ({"columns": ["cifar10"], "overrides": ["data.path=x"]}, "no recipe of this table has"),
        ({"overrides": ["data.rooot=x"]}, "rooot"),
        ({"columns": ["imagenet1k"], "overrides": ["data.root=x"]}, "no recipe of this table has"),
        ({"columns": ["imagenet1k"], "overrides": ["data.classes=x"]}, "no recipe of this table"),
    ):
        with pytest.raises(ValueError, match=message):
            plan_target(**({"name": "table1", "out": tmp_path} | arguments))  # type: ignore[arg-type]


def test_locations_are_those_of_the_data_that_have_them(tmp_path: Path) -> None:
    overrides = ["data.root=elsewhere", "data.path=images", "data.classes=list.txt"]
    plan = plan_target("table1", out=tmp_path, rows=["ce"], overrides=overrides)
    data = {run.run.recipe: run.recipe.data.model_dump() for run in plan.runs.values()}
    assert data["cifar10-ce"]["root"] == "elsewhere"
    assert "path" not in data["cifar10-ce"]
    assert (data["imagenet100-ce"]["path"], data["imagenet100-ce"]["classes"]) == (
        "images", "list.txt",
    )  # fmt: skip
    # The list selects the classes of ImageNet-100.
    thousand = [values for name, values in data.items() if name.startswith("imagenet1k")]
    assert [(values["path"], values["classes"]) for values in thousand] == [("images", None)] * 3


def test_a_folder_of_another_recipe_is_refused(tmp_path: Path) -> None:
    chosen = {"rows": ["nonl"], "columns": ["cifar10"]}
    plan = plan_target("table1", out=tmp_path, **chosen)  # type: ignore[arg-type]
    write_records(plan, {"cifar10-nonl": 0.9})
    with pytest.raises(
        RunFolderError, match=r"holds a run of another recipe: optimizer\.lr is 0\.2"
    ):
        plan_target("table1", out=tmp_path, overrides=["optimizer.lr=0.1"], **chosen)  # type: ignore[arg-type]


def _records_of_arrays(out: Path, *overrides: str, num_images: int = 50_000) -> None:
    """Write the records of a run of Table 1 whose images came from a file of arrays."""
    arrays = ["data.source=arrays", "data.path=cifar10.npz", *overrides]
    plan = plan_target("table1", out=out, rows=["nonl"], columns=["cifar10"], overrides=arrays)
    write_records(plan, {"cifar10-nonl": 0.9}, class_counts=(num_images // 10,) * 10)


def test_records_are_read_wherever_their_images_came_from(tmp_path: Path) -> None:
    _records_of_arrays(tmp_path, "evaluation.every=500")
    chosen: Any = {"out": tmp_path, "columns": ["cifar10"]}
    plan = plan_target("table1", rows=["nonl"], **chosen)
    assert plan.missing == ()
    assert numbers_of(run_target(plan, train=refuse_training)) == {("nonl", "cifar10"): 90.0}
    # Rows whose runs are missing are left out; nothing is written.
    (tmp_path / "table1.json").unlink()
    numbers = read_numbers(plan_target("table1", rows=["ce", "nonl"], **chosen))
    assert [number.value for number in numbers] == [None, 90.0]
    assert [path.name for path in tmp_path.iterdir()] == ["cifar10-nonl-1000-epochs"]


@pytest.mark.bad_input
def test_records_of_other_images_or_settings_are_refused(tmp_path: Path) -> None:
    changes: dict[str, tuple[str, ...]] = {
        r"optimizer\.lr is 0\.1 there": ("optimizer.lr=0.1",),
        r"data\.validation_fraction is 0\.1 there": ("data.validation_fraction=0.1",),
    }
    for index, (message, overrides) in enumerate(changes.items()):
        _records_of_arrays(tmp_path / str(index), *overrides)
        with pytest.raises(RunFolderError, match=message):
            plan_target("table1", out=tmp_path / str(index), rows=["nonl"], columns=["cifar10"])
    few, weights = tmp_path / "few", tmp_path / "weights"
    _records_of_arrays(few, num_images=100)
    _records_of_arrays(weights)
    # A run with weights may be loaded, for which its images must be where the table looks.
    checkpoint = weights / "cifar10-nonl-1000-epochs" / "checkpoints" / "step-000010000"
    checkpoint.mkdir(parents=True)
    for name in ("checkpoint.json", "weights.safetensors", "state.pt"):
        (checkpoint / name).touch()
    for out in (few, weights):
        with pytest.raises(RunFolderError, match=r"data\.source is arrays there and cifar10 here"):
            plan_target("table1", out=out, rows=["nonl"], columns=["cifar10"])
