"""Both parts of Table 7: a case worked by hand, and two short runs against loops over scalars."""

import json
import math
from dataclasses import asdict
from pathlib import Path

import pytest

from protosphere.recipes.catalog import get_recipe
from protosphere.runs import RunFolder, RunFolderError
from protosphere.runs.results import read_result
from protosphere.studies.convergence import (
    CONVERGENCE_METRICS,
    ConvergenceRow,
    CurveRow,
    read_log,
    run_convergence,
)
from support.short_runs import DIM, logged_run, short_run

EPOCHS = range(1, 101)
HUNDRED = ("schedule.epochs=100", "evaluation.every=1")


def _step(first: float, then: float, *, after: int) -> list[tuple[int, float]]:
    """A metric that jumps after an epoch. Its average approaches the new value as e^−k."""
    return [(epoch, first if epoch <= after else then) for epoch in EPOCHS]


def _dip(series: list[tuple[int, float]], *, at: int, value: float) -> list[tuple[int, float]]:
    return [(epoch, value if epoch == at else number) for epoch, number in series]


# Ten classes and 40 dimensions: alignments ≤ 0.1, ranks ≥ 8.55, intra rank ≤ 2.
NONL = {
    # e^−3 = 0.050 ≤ 0.1 < e^−2 = 0.135; e^−2 ≤ 0.2 < e^−1.
    "weight_instance_alignment": _step(1.0, 0.0, after=50),
    "weight_class_alignment": _step(0.05, 0.05, after=50),
    # 9 − 8e^−k ≥ 8.55 from k = 3 on. The dip at 80 leaves 9 − 5(1 − 1/e)e^−j, ≥ 8.55 at j = 2.
    "weights_effective_rank": _dip(_step(1.0, 9.0, after=30), at=80, value=4.0),
    "intra_effective_rank": _step(8.0, 3.0, after=10),
    "inter_effective_rank": _step(3.0, 9.0, after=99),
}
CE = {
    # Within 2% of 0.2: 0.3 e^−k ≤ 0.004 from k = 5 on.
    "weight_instance_alignment": _step(0.5, 0.2, after=20),
    "weight_class_alignment": _step(0.05, 0.05, after=50),
    # Within 2% of 7: 6 e^−k ≤ 0.14 from k = 4 on.
    "weights_effective_rank": _step(1.0, 7.0, after=40),
    "intra_effective_rank": _step(8.0, 2.5, after=10),
    "inter_effective_rank": _step(3.0, 2.0, after=10),
}


def _by_metric(rows: tuple[ConvergenceRow, ...]) -> dict[str, ConvergenceRow]:
    assert tuple(row.metric for row in rows) == CONVERGENCE_METRICS
    return {row.metric: row for row in rows}


@pytest.fixture
def nonl(tmp_path: Path) -> Path:
    return logged_run(tmp_path / "nonl", NONL, *HUNDRED)


@pytest.fixture
def ce(tmp_path: Path) -> Path:
    return logged_run(tmp_path / "ce", CE, *HUNDRED, recipe="digits-ce")


def test_a_case_by_hand(nonl: Path, ce: Path) -> None:
    found = _by_metric(run_convergence(read_log(nonl), baseline=read_log(ce)))
    assert {name: row.percent_to_collapse for name, row in found.items()} == {
        "weight_instance_alignment": 53.0,
        "weight_class_alignment": 1.0,
        "weights_effective_rank": 82.0,
        "intra_effective_rank": "never",
        # One evaluation after the jump, 9 − 6/e = 6.8.
        "inter_effective_rank": "never",
    }
    # 0.2 is reached at 52 and CE's own average comes near it at 25: 100 · 52/25.
    alignment = found["weight_instance_alignment"]
    assert (alignment.baseline_final, alignment.percent_of_run) == (0.2, 52.0)
    assert alignment.percent_of_baseline == pytest.approx(208.0)
    assert alignment.baseline_percent_of_run == 25.0
    # 7 is reached at 30 + 2; after the dip to 5.84 at once, at 81. CE at 44.
    rank = found["weights_effective_rank"]
    assert rank.percent_of_run == 81.0
    assert rank.percent_of_baseline == pytest.approx(100 * 81 / 44)
    assert found["intra_effective_rank"].percent_of_baseline == "never"
    assert found["intra_effective_rank"].percent_of_run == "never"
    # CE ends at a lower rank than the run begins with.
    assert found["inter_effective_rank"].percent_of_run == 1.0
    assert (alignment.threshold, alignment.side) == (0.1, "at most")
    assert (rank.threshold, rank.side) == (8.55, "at least")
    assert found["intra_effective_rank"].threshold == 0.05 * DIM
    assert all(row.missing is None for row in found.values())
    assert all(row.paper_percent_to_collapse is None for row in found.values())


def test_the_result_and_the_curves_are_in_the_run_folder(nonl: Path, ce: Path) -> None:
    rows = run_convergence(read_log(nonl), baseline=read_log(ce))
    stored = read_result(nonl / "benchmarks/convergence.json", ConvergenceRow)
    assert stored.rows == rows
    assert (
        json.loads((nonl / "benchmarks/convergence.json").read_text())["rows"][3][
            "percent_to_collapse"
        ]
        == "never"
    )
    curves = read_result(nonl / "benchmarks/convergence_curves.json", CurveRow).rows
    assert len(curves) == 5 * 100
    assert [(one.epoch, one.value) for one in curves[:100]] == NONL["weight_instance_alignment"]
    assert curves[50].moving_average == pytest.approx(math.exp(-1))
    # Without a baseline only the first part is there, and the file says so.
    alone = run_convergence(read_log(nonl))
    assert [row.percent_to_collapse for row in alone] == [row.percent_to_collapse for row in rows]
    assert {row.percent_of_baseline for row in alone} == {None}
    assert read_result(nonl / "benchmarks/convergence.json", ConvergenceRow).rows == alone


def test_metrics_that_were_not_logged_are_named(tmp_path: Path, ce: Path) -> None:
    cheap = {name: series for name, series in NONL.items() if name != "intra_effective_rank"}
    folder = logged_run(tmp_path / "cheap", cheap, *HUNDRED, "evaluation.metrics=cheap")
    row = _by_metric(run_convergence(read_log(folder), baseline=read_log(ce)))
    missing = row["intra_effective_rank"]
    assert missing.percent_to_collapse is missing.percent_of_baseline is missing.final is None
    assert missing.baseline_percent_of_run is not None
    assert missing.missing == (
        "intra_effective_rank: not logged (the recipe has evaluation.metrics: cheap)"
    )
    assert row["weight_instance_alignment"].percent_to_collapse == 53.0
    # The other way round: a baseline that lacks a metric.
    other = _by_metric(run_convergence(read_log(ce), baseline=read_log(folder)))
    assert other["intra_effective_rank"].percent_of_run is None
    assert other["intra_effective_rank"].missing == (
        "intra_effective_rank of the baseline: not logged "
        "(the recipe has evaluation.metrics: cheap)"
    )


def test_values_that_are_not_finite_and_runs_that_stopped(tmp_path: Path) -> None:
    series = {**NONL, "inter_effective_rank": _dip(_step(3.0, 9.0, after=9), at=7, value=math.nan)}
    folder = logged_run(tmp_path / "run", series, "schedule.epochs=400")
    log = read_log(folder)
    assert (log.length, log.is_complete) == (100, False)
    assert log.missing == {"inter_effective_rank": "not finite at epoch 7"}
    row = _by_metric(run_convergence(log))["weight_instance_alignment"]
    assert row.percent_to_collapse == 53.0


def test_the_numbers_of_the_paper_stand_beside_runs_of_its_setting(tmp_path: Path) -> None:
    runs = [
        logged_run(tmp_path / name, NONL, recipe="cifar100-nonl", class_counts=counts)
        for name, counts in (("a", (5,) * 100), ("b", tuple(range(1, 101))))
    ]
    balanced, long_tail = (_by_metric(run_convergence(read_log(run))) for run in runs)
    assert balanced["intra_effective_rank"].paper_percent_to_collapse == 14.6
    assert balanced["weights_effective_rank"].paper_percent_of_baseline == 35.4
    assert {row.paper_percent_to_collapse for row in long_tail.values()} == {None}
    others = read_log(
        logged_run(tmp_path / "c", NONL, recipe="cifar100-ntce", class_counts=(5,) * 100)
    )
    rows = _by_metric(run_convergence(read_log(runs[0]), baseline=others))
    assert rows["intra_effective_rank"].paper_percent_to_collapse == 14.6
    assert {row.paper_percent_of_baseline for row in rows.values()} == {None}


@pytest.mark.parametrize(
    ("override", "num_classes"),
    [
        ("data.class_groups=cifar100-superclasses", 20),
        ("data.label_noise={name: asymmetric, fraction: 0.2}", 100),
    ],
)
def test_superclasses_and_wrong_labels_are_not_the_setting_of_the_paper(
    override: str, num_classes: int, tmp_path: Path
) -> None:
    counts = (5,) * num_classes
    run = logged_run(tmp_path / "run", NONL, override, recipe="cifar100-nonl", class_counts=counts)
    rows = run_convergence(read_log(run))
    assert {row.paper_percent_to_collapse for row in rows} == {None}


def test_the_dimension_is_that_of_the_model_without_arrays(nonl: Path) -> None:
    assert read_log(nonl).dim == DIM
    (nonl / "geometry.safetensors").unlink()
    assert read_log(nonl).dim == 64  # Of the backbone of the digits recipes.


def test_a_baseline_with_another_validation_split_is_of_the_same_data(
    nonl: Path, tmp_path: Path
) -> None:
    """Other images, because the split depends on the seed, of the same dataset."""
    other = logged_run(tmp_path / "x", CE, *HUNDRED, recipe="digits-ce", fingerprint="seed 2")
    assert run_convergence(read_log(nonl), baseline=read_log(other))


@pytest.mark.long
def test_two_short_runs_against_loops(tmp_path: Path) -> None:
    ce, nonl = (short_run(tmp_path, loss) for loss in ("ce", "nonl"))
    for run in (ce, nonl):
        (run / "checkpoints").rename(tmp_path / f"weights of {run.name}")
    rows = _by_metric(run_convergence(read_log(nonl), baseline=read_log(ce)))
    logged = [
        {
            name: [record[name] for record in RunFolder(run).records() if name in record]
            for name in CONVERGENCE_METRICS
        }
        for run in (nonl, ce)
    ]
    for name, row in rows.items():
        own, reference = (_average(values[name]) for values in logged)
        sign = 1 if row.side == "at least" else -1
        target = logged[1][name][-1]
        close = [abs(value - target) <= 0.02 * abs(target) for value in reference]
        t, t_ce = _enter([sign * value >= sign * target for value in own]), _enter(close)
        reached = _enter([sign * value >= sign * row.threshold for value in own])
        assert row.final == logged[0][name][-1]
        assert row.percent_to_collapse == ("never" if reached is None else 100 * reached / 3)
        assert row.percent_of_run == ("never" if t is None else 100 * t / 3)
        expected = "never" if t is None or t_ce is None else 100 * t / t_ce
        assert row.percent_of_baseline == expected
    assert any(isinstance(row.percent_of_baseline, float) for row in rows.values())


def _average(values: list[float]) -> list[float]:
    """The moving average of three epochs."""
    averages = values[:1]
    for value in values[1:]:
        weight = 1 - math.exp(-1 / (0.01 * 3))
        averages.append(averages[-1] + weight * (value - averages[-1]))
    return averages


def _enter(holds: list[bool]) -> int | None:
    """The first epoch from which a condition holds until the end."""
    for epoch in range(1, len(holds) + 1):
        if all(holds[epoch - 1 :]):
            return epoch
    return None


@pytest.mark.bad_input
def test_what_is_refused(nonl: Path, tmp_path: Path) -> None:
    log = read_log(nonl)
    fewer = logged_run(tmp_path / "fewer", CE, class_counts=(3,) * 4)
    with pytest.raises(ValueError, match=r"nonl has 10 classes and .*fewer has 4$"):
        run_convergence(log, baseline=read_log(fewer))
    other = logged_run(tmp_path / "other", CE, recipe=_other_recipe(), fingerprint="other")
    with pytest.raises(ValueError, match="a baseline must be trained on the data of the run: "):
        run_convergence(log, baseline=read_log(other))
    with pytest.raises(RunFolderError, match=r"x is not a run folder: it has no recipe$"):
        read_log(tmp_path / "x")
    empty = logged_run(tmp_path / "empty", {})
    with pytest.raises(RunFolderError, match=r"must have evaluations in metrics\.jsonl"):
        read_log(empty)


def _other_recipe() -> str:
    recipe = "cifar10-nonl"
    assert get_recipe(recipe).data != get_recipe("digits-nonl").data
    return recipe


def test_rows_are_plain_values(nonl: Path) -> None:
    for row in run_convergence(read_log(nonl)):
        assert all(isinstance(value, str | float | None) for value in asdict(row).values())
