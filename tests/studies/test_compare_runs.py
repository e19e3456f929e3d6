"""Comparisons of run folders that are there: grouping, values, and what is refused."""

import json
import shutil
from pathlib import Path

import pytest

from protosphere.recipes.loading import read_recipe
from protosphere.runs import RunFolderError
from protosphere.studies.compare import NoCompleteRunError, compare_runs
from protosphere.studies.compare_plan import plan_comparison
from support.short_runs import logged_run


def _logged(folder: Path, values: list[float], *overrides: str, **options: object) -> list[Path]:
    """Write one run for each value of the accuracy, with seeds 0, 1, ..."""
    return [
        logged_run(
            folder / f"{seed}",
            {"accuracy": [(1, 0.1), (2, value)], "nc1_ratio": [(1, 1.0), (2, 1 - value)]},
            f"seed={seed}",
            "schedule.epochs=2",
            *overrides,
            **options,  # type: ignore[arg-type]
        )
        for seed, value in enumerate(values)
    ]


def test_run_folders_are_grouped_by_recipe_without_the_seed(tmp_path: Path) -> None:
    _logged(tmp_path / "ce", [0.5, 0.7], recipe="digits-ce")
    _logged(tmp_path / "nonl", [0.6, 0.75, 0.8])
    comparison = compare_runs([tmp_path / "nonl" / "2", tmp_path / "ce", tmp_path / "nonl"])
    assert [method.name for method in comparison.methods] == ["digits-nonl", "digits-ce"]
    assert comparison.baseline == "digits-nonl"
    assert comparison.seeds == (0, 1, 2)
    comparison = compare_runs([tmp_path / "nonl", tmp_path / "ce"], baseline=str(tmp_path / "ce"))
    assert comparison.baseline == "digits-ce"
    summary = comparison.summary("digits-ce", "accuracy")
    assert summary is not None
    assert summary.num_seeds == 2
    assert summary.mean == pytest.approx(0.6)
    assert summary.std == pytest.approx(0.1 * 2**0.5)  # √((0.1² + 0.1²)/1)
    difference = comparison.difference("digits-nonl", "accuracy")
    assert difference is not None
    assert difference.seeds == (0, 1)
    assert difference.mean == pytest.approx(0.075)  # The third seed has no partner.
    assert difference.outcome == "not clear"
    best = {row.metric: row for row in comparison.best}
    assert best["accuracy"].methods == best["nc1_ratio"].methods == ("digits-nonl",)
    assert best["accuracy"].seeds == (0, 1)
    assert not list(tmp_path.glob("*.json"))


def test_runs_are_found_in_folders_of_folders(tmp_path: Path) -> None:
    _logged(tmp_path / "all/ce", [0.5, 0.7], recipe="digits-ce")
    _logged(tmp_path / "all/nonl", [0.6, 0.75])
    (tmp_path / "all/comparison.json").write_text("{}")
    (tmp_path / "none/a/b/c").mkdir(parents=True)
    comparison = compare_runs([tmp_path / "all"])
    assert [method.name for method in comparison.methods] == ["digits-ce", "digits-nonl"]
    assert comparison.seeds == (0, 1)
    with pytest.raises(RunFolderError, match="is not a run folder and contains none"):
        compare_runs([tmp_path / "none"])


def test_recipes_of_one_name_are_told_apart_by_the_keys_that_differ(tmp_path: Path) -> None:
    _logged(tmp_path / "a", [0.5])
    _logged(tmp_path / "b", [0.6], "optimizer.lr=0.5", "evaluation.every=1")
    comparison = compare_runs([tmp_path / "a", tmp_path / "b"], baseline=f"{tmp_path / 'b'}/")
    lr = read_recipe("digits-nonl").optimizer.lr
    names = [f"digits-nonl (optimizer.lr={lr})", "digits-nonl (optimizer.lr=0.5)"]
    assert [method.name for method in comparison.methods] == names
    assert comparison.baseline == names[1]


def test_recipes_that_differ_in_the_monitored_metric_are_told_apart(tmp_path: Path) -> None:
    for monitor in ("accuracy", "loss"):
        _logged(
            tmp_path / monitor,
            [0.5],
            "data.validation_fraction=0.2",
            f"checkpoint.monitor={monitor}",
        )
    comparison = compare_runs([tmp_path / "accuracy", tmp_path / "loss"])
    assert [method.name for method in comparison.methods] == [
        "digits-nonl (checkpoint.monitor=accuracy)",
        "digits-nonl (checkpoint.monitor=loss)",
    ]


def test_the_best_evaluation_counts_if_a_metric_is_monitored(tmp_path: Path) -> None:
    overrides = ("data.validation_fraction=0.2", "checkpoint.monitor=accuracy")
    run = logged_run(tmp_path, {"accuracy": [(1, 0.8), (2, 0.7)]}, "schedule.epochs=2", *overrides)
    data = json.loads((run / "data.json").read_text()) | {"split": "validation"}
    (run / "data.json").write_text(json.dumps(data))
    comparison = compare_runs([run])
    assert comparison.runs[0].values == {"accuracy": 0.8}
    assert (comparison.runs[0].epoch, comparison.split) == (1, "validation")


def test_values_that_are_not_numbers_are_left_out(tmp_path: Path) -> None:
    _logged(tmp_path / "a", [0.5])
    _logged(tmp_path / "b", [float("nan")], recipe="digits-ce")
    comparison = compare_runs([tmp_path / "a", tmp_path / "b"])
    assert comparison.runs[1].values == {}
    assert comparison.summary("digits-ce", "accuracy") is None
    assert comparison.best == ()


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"fingerprint": "other"}, "training images"),
        ({"class_counts": (30,) * 9}, "classes"),
    ],
)
@pytest.mark.bad_input
def test_runs_with_different_data_are_refused(
    tmp_path: Path, options: dict[str, object], what: str
) -> None:
    _logged(tmp_path / "a", [0.5])
    _logged(tmp_path / "b", [0.5], recipe="digits-ce", **options)
    with pytest.raises(RunFolderError) as error:
        compare_runs([tmp_path / "a", tmp_path / "b"])
    assert str(error.value) == (
        f"compared runs must have the same data; {tmp_path}/a/0 and {tmp_path}/b/0 have different "
        f"{what}"
    )


@pytest.mark.bad_input
def test_runs_of_other_test_images_or_another_split_are_refused(tmp_path: Path) -> None:
    _logged(tmp_path / "a", [0.5])
    (run,) = _logged(tmp_path / "b", [0.5], recipe="digits-ce")
    data = json.loads((run / "data.json").read_text())
    for change, what in (
        ({"eval_fingerprint": "x"}, "test images"),
        ({"split": "validation"}, r"splits \(test and validation images\)"),
    ):
        (run / "data.json").write_text(json.dumps(data | change))
        with pytest.raises(RunFolderError, match=f"have different {what}$"):
            compare_runs([tmp_path / "a", tmp_path / "b"])


def test_an_unfinished_run_is_a_failure_and_alone_an_error(tmp_path: Path) -> None:
    _logged(tmp_path / "a", [0.5])
    _logged(tmp_path / "b", [0.5], "schedule.epochs=9", recipe="digits-ce")
    comparison = compare_runs([tmp_path / "a", tmp_path / "b"])
    assert comparison.failures[0].error == "it has 2 of 9 epochs"
    with pytest.raises(NoCompleteRunError, match="no run is complete; digits-ce, seed 0: it has 2"):
        compare_runs([tmp_path / "b"])


@pytest.mark.bad_input
def test_bad_input(tmp_path: Path) -> None:
    _logged(tmp_path / "a", [0.5])
    with pytest.raises(RunFolderError, match="x must be a run folder; it does not exist"):
        compare_runs([tmp_path / "x"])
    (tmp_path / "nothing").mkdir()
    with pytest.raises(RunFolderError, match="is not a run folder and contains none"):
        compare_runs([tmp_path / "nothing"])
    with pytest.raises(ValueError, match="confidence must be between 0 and 1, got 95"):
        compare_runs([tmp_path / "a"], confidence=95)
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "recipe.yaml").write_text("name: x\nviews: {}\n")
    with pytest.raises(RunFolderError, match=r"old/recipe.yaml: this recipe is of proto"):
        compare_runs([tmp_path / "old"])
    shutil.copytree(tmp_path / "a" / "0", tmp_path / "copy")
    with pytest.raises(RunFolderError, match=r"/a/0 and .*/copy both have seed 0$"):
        compare_runs([tmp_path / "a", tmp_path / "copy"])


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seeds": []}, "seeds must hold at least one seed, got none"),
        ({"seeds": [-1]}, "seeds must be at least 0 and less than 2³¹, got -1"),
        ({"seeds": [1, 2, 1]}, "seeds must be different, got 1 twice"),
        ({"overrides": ["seed=3"]}, "seed must not be overridden; --seeds or --seed-list"),
        ({"overrides": ["name=a/b"]}, "must be usable as that of a folder, got 'a/b'"),
        ({"overrides": ["name=.."]}, "must be usable as that of a folder, got '..'"),
        ({"baseline": "ce"}, r"one of the compared recipes \(digits-ce\), got ce"),
        ({"overrides": ["optimizer.rl=1"]}, "optimizer.rl"),
    ],
)
def test_plans_that_are_refused(
    tmp_path: Path, options: dict[str, list[str]], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        plan_comparison(["digits-ce"], out=tmp_path, **options)  # type: ignore[arg-type]


@pytest.mark.bad_input
def test_targets_that_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least one recipe or run folder must be given"):
        plan_comparison([], out=tmp_path)
    with pytest.raises(ValueError, match=r"digits-cee.*did you mean"):
        plan_comparison(["digits-cee"], out=tmp_path)
    recipe = tmp_path / "other.yaml"
    recipe.write_text(read_recipe("digits-ce", ["optimizer.lr=0.5"]).to_yaml())
    with pytest.raises(ValueError, match=r"different names, digits-ce and .*other\.yaml are"):
        plan_comparison(["digits-ce", str(recipe)], out=tmp_path)
    _logged(tmp_path / "digits-ce", [0.5], recipe="digits-ce")
    (tmp_path / "digits-ce" / "0").rename(tmp_path / "digits-ce" / "seed-0")
    with pytest.raises(RunFolderError, match="epochs is 2 there and 15 here; choose another --out"):
        plan_comparison(["digits-ce"], out=tmp_path, seeds=[0])


def test_plans(tmp_path: Path) -> None:
    given, *_ = _logged(tmp_path / "given", [0.5])
    plan = plan_comparison(["digits-ce", str(given)], out=tmp_path)
    assert plan.seeds == (42, 43, 44, 45, 46, 0)
    runs = [(run.key, run.folder, run.is_given) for run in plan.runs]
    assert runs == [
        *(
            (("digits-ce", seed), tmp_path / f"digits-ce/seed-{seed}", False)
            for seed in range(42, 47)
        ),
        (("digits-nonl", 0), given, True),
    ]
    plan = plan_comparison(["digits-ce", str(given)], out=tmp_path, seeds=[0, 1])
    assert [(run.key, run.is_given) for run in plan.runs] == [
        (("digits-ce", 0), False),
        (("digits-ce", 1), False),
        (("digits-nonl", 0), True),
        (("digits-nonl", 1), False),
    ]
    assert [run.recipe.seed for run in plan.runs] == [0, 1, 0, 1]
    same = plan_comparison(["digits-ce", "digits-ce"], out=tmp_path, seeds=[1])
    assert len(same.runs) == 1


def test_plans_know_whether_runs_can_be_paired(tmp_path: Path) -> None:
    given, second = _logged(tmp_path / "given", [0.5, 0.6])
    other, *_ = _logged(tmp_path / "other", [0.5], recipe="digits-ce")
    for targets, seeds, is_paired in (
        ([given, second], None, False),
        ([given, other], None, True),
        ([second, other], None, False),
        (["digits-ce", given], None, False),
        (["digits-ce", given], [7], True),
        (["digits-ce"], [1, 2], False),
        (["digits-ce", "digits-ntce"], None, True),
    ):
        names = [str(target) for target in targets]
        plan = plan_comparison(names, out=tmp_path / "out", seeds=seeds)
        assert plan.is_paired is is_paired, (names, seeds)


@pytest.mark.bad_input
def test_a_refused_override_names_the_run(tmp_path: Path) -> None:
    given, second = _logged(tmp_path / "given", [0.5, 0.6])
    shorter = logged_run(tmp_path / "b", {"accuracy": [(1, 0.5)]}, "schedule.epochs=1")
    with pytest.raises(RunFolderError) as error:
        plan_comparison(
            [str(given), str(second), str(shorter)],
            out=tmp_path / "out",
            overrides=["schedule.epochs=2"],
        )
    assert str(error.value) == (
        f"{shorter}: overrides must not change what was trained: schedule.epochs is 1 there and "
        "2 here"
    )
