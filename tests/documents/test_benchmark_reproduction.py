"""Runs that are compared with the paper: named as `reproduce` names them, collected, tabulated."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from protosphere.evaluation.probes import ProbeResult
from protosphere.recipes.loading import read_recipe
from protosphere.studies.compare_statistics import PairedDifference
from protosphere.studies.convergence import CONVERGENCE_METRICS
from protosphere.studies.reproduce import plan_target
from support.short_runs import logged_run


@pytest.fixture
def modules(
    import_benchmark: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Any:
    """The benchmark and its tables, with a folder of results of their own."""
    found = SimpleNamespace(
        jobs=import_benchmark("reproduction"),
        tables=import_benchmark("reproduction_tables"),
        claims=import_benchmark("reproduction_claims"),
        results=tmp_path / "results",
    )
    for module in (found.jobs, found.tables):
        monkeypatch.setattr(module, "RESULTS", found.results)
    return found


def _recipe(job: Any) -> Any:
    return read_recipe(job.recipe, ["data.source=arrays", "data.path=x.npz", *job.overrides])


def _write(job: Any, runs: Path, accuracy: float) -> Path:
    """Write a complete run of a job, whose metrics fall in the middle: to 40 for CE, or to 0.5."""
    recipe = _recipe(job)
    epochs, num_classes = recipe.schedule.epochs, 10 if job.data == "cifar10" else 100
    times = range(recipe.evaluation.every, epochs + 1, recipe.evaluation.every)
    names = (*CONVERGENCE_METRICS, "mir_published", "hdr_published", "train_accuracy")
    end = 40.0 if recipe.loss.name == "ce" else 0.5
    series = {
        name: [(time, 80.0 if time < epochs / 2 else end) for time in times] for name in names
    }
    series["accuracy"] = [(time, accuracy) for time in times]
    counts = (50_000 // num_classes,) * num_classes
    folder = logged_run(runs / job.name, series, class_counts=counts)
    (folder / "recipe.yaml").write_text(recipe.to_yaml())
    machine = {"device": "GPU", "versions": {"torch": "2"}, "commit": "abc"}
    (folder / "machine.json").write_text(json.dumps(machine))
    (folder / "checkpoints").mkdir()
    return folder


def _write_probes(folder: Path, **accuracies: float) -> None:
    rows = [
        ProbeResult(name, "output" if name == "class_means" else "backbone", value, 100, 2.0)  # type: ignore[arg-type]
        for name, value in accuracies.items()
    ]
    rows.append(ProbeResult("class_means", "backbone", 0.5, 1, 7.0))  # No table has these features.
    metrics = dict.fromkeys((*CONVERGENCE_METRICS, "mir_published", "hdr_published"), 0.5)
    contents = [asdict(row) | {"metrics": metrics} for row in rows]
    (folder / "benchmarks").mkdir(exist_ok=True)
    (folder / "benchmarks" / "probes.json").write_text(
        json.dumps({"benchmark": "probes", "settings": {}, "rows": contents})
    )


def test_jobs_are_runs_of_the_paper(modules: Any, tmp_path: Path) -> None:
    jobs = modules.jobs.jobs()
    by_name = {job.name: job for job in jobs}
    assert len(by_name) == len(jobs)
    targets: tuple[tuple[str, float, dict[str, list[str]]], ...] = (
        ("table1", 1, {"rows": ["ce", "nonl"], "columns": ["cifar100"]}),
        ("table1", 0.1, {"columns": ["cifar10"]}),
        ("table14", 0.1, {"rows": ["cifar10"]}),
        ("table9", 0.06, {"rows": ["nonl"], "columns": ["0.07", "0.1", "0.2", "0.3", "0.5"]}),
        (
            "figure3-cifar100",
            0.06,
            {"rows": ["nonl 128", "nonl 512", "nonl 2048"], "columns": ["0.1", "0.2", "0.5"]},
        ),
    )
    planned = set()
    for target, scale, chosen in targets:
        for run in plan_target(target, out=tmp_path, scale=scale, **chosen).runs.values():
            planned.add(run.folder.name)
            recipe, ours = run.recipe, _recipe(by_name[run.folder.name])
            for section in ("augmentation", "model", "loss", "optimizer", "schedule", "training"):
                assert getattr(recipe, section) == getattr(ours, section), run.folder.name
    others = [job for job in jobs if job.name not in planned]
    assert [job.group for job in others] == ["length-300"] * 2
    assert all(_recipe(job).model.backbone.zero_init_residual for job in others)
    for job in jobs:
        recipe = _recipe(job)
        if job.group.startswith("length"):
            assert 0.004 <= recipe.evaluation.every / recipe.schedule.epochs <= 0.04
        assert recipe.schedule.epochs % recipe.evaluation.every == 0
        assert recipe.checkpoint.keep == 1
        assert (job.finish is None) == (job.group != "scl")
        if job.group == "scl":
            assert (recipe.probe.epochs, recipe.probe.milestones) == (100, (60, 75, 90))


def test_collected_records_make_the_tables(modules: Any, tmp_path: Path) -> None:
    runs, jobs = tmp_path / "runs", modules.jobs.jobs()
    accuracies = {job.name: 0.5 + index / 100 for index, job in enumerate(jobs)}
    folders = {job.name: _write(job, runs, accuracies[job.name]) for job in jobs}
    arrays = "cifar100-nonl-60-epochs/geometry.safetensors"
    (runs / arrays).write_bytes(bytes(200_000))
    _write_probes(folders["cifar10-scl-100-epochs"], class_means=0.905)
    modules.jobs.collect(runs)
    assert {path.name for path in modules.results.iterdir()} == set(accuracies)
    (unfinished,) = modules.jobs.missing_jobs()
    assert unfinished.name == "cifar10-scl-100-epochs"
    missing = modules.jobs.missing_probes(unfinished, folders[unfinished.name])
    assert missing == ["linear", "normalized", "cached_linear"]
    contrastive = modules.tables.contrastive_table().splitlines()
    assert contrastive[2:] == ["| class means | 90.5 | 95.0 | 100 | 2.0 |"]
    _write_probes(
        folders["cifar10-scl-100-epochs"],
        linear=0.91,
        normalized=0.92,
        class_means=0.905,
        cached_linear=0.93,
    )
    modules.jobs.collect(runs)
    assert modules.jobs.missing_jobs() == []
    assert not list(modules.results.rglob("checkpoints"))
    assert (modules.results / "cifar10-ce-100-epochs" / "geometry.safetensors").exists()
    assert not (modules.results / arrays).exists()
    tables = modules.tables
    assert (
        "| NONL, torchvision's initialization, 1000 epochs | 51.0 | 0.5 |" in tables.length_table()
    )
    assert "| CE, zero-initialized residuals, 300 epochs | 52.0 |" in tables.length_table()
    assert "| CE, **the paper**, 1000 epochs | 72.1 | 96.4 | 57.1 |" in tables.length_table()
    # 50 evaluations, a moving average of 1% of the run. NONL falls below 40 at epoch 500. The
    # average of CE is within 2% of its last value, 40 + 0.8, at epoch 520: 40/e² is 5.4, 40/e⁴ is
    # 0.7. Of 25 evaluations it is the first one in the second half. Ranks should be large.
    last = [line.split(" | ")[1:] for line in tables.convergence_table().splitlines()[-2:]]
    assert last[0] == ["96.2", "96.2", "never", "96.2", "never |"]
    assert last[1] == ["100.0", "100.0", "never", "100.0", "never |"]
    assert tables.convergence_source() == (
        "One evaluation every 2% of the run of 1000 and every 4% of the run of 300 epochs."
    )
    rows = tables.cifar10_table().splitlines()
    assert "| ETF + DR | 55.0 (94.4) | 0.5 (9.0) |" in rows[3]
    assert "| CE | 54.0 (94.6) | 40.0 (22.5) |" in rows[2]
    assert "| SCL, class means | 90.5 (95.0) | 0.5 (4.5) |" in rows[-1]
    contrastive = tables.contrastive_table()
    assert "| linear probe | 91.0 | 95.0 | 100 | 2.0 |" in contrastive
    assert "| linear probe on cached features | 93.0 | 94.4 |" in contrastive
    assert "| class means | 90.5 | 95.0 | 100 | 2.0 |" in contrastive
    temperatures = tables.temperature_table().splitlines()
    assert temperatures[-2] == "| **the paper**, 1000 epochs | 73.2 | 73.6 | 72.5 | 71.6 | 52.6 |"
    assert temperatures[-1] == "| ours, 60 epochs | 60.0 | 61.0 | 62.0 | 63.0 | 64.0 |"
    phase = tables.phase_table().splitlines()
    assert phase[2:] == [
        "| 128 | 65.0 | 66.0 | 67.0 |",
        "| 512 | 61.0 | 62.0 | 64.0 |",
        "| 2048 | 68.0 | 69.0 | 70.0 |",
    ]
    assert tables.length_source() == "GPU, torch 2, one seed each; commit abc."
    assert modules.claims.temperature_claim()[2:] == (
        "60.0, 61.0, 62.0",
        "CIFAR-100, NONL at 0.07, 0.1, 0.2, 60 epochs",
        "**not held** (within 2 points of the best)",
    )
    assert modules.claims.cifar10_claim()[1:3] == ("+0.1 and +0.3 points", "+3.0 and +4.0")


def test_what_was_not_run_is_left_out(modules: Any, tmp_path: Path) -> None:
    tables = modules.tables
    for make in (
        tables.length_table,
        tables.convergence_table,
        tables.cifar10_table,
        tables.nearest_classes_table,
        tables.contrastive_table,
        tables.temperature_table,
        tables.phase_table,
    ):
        with pytest.raises(FileNotFoundError):
            make()
    assert modules.claims.temperature_claim()[-1] == "**untested**"
    assert modules.claims.cifar10_claim()[-1] == "**untested**"
    assert (tables.probe_accuracies(), tables.length_accuracies("length-1000")) == ({}, {})
    # One run of a pair, and one of a row: the rest is missing.
    jobs = {job.name: job for job in modules.jobs.jobs()}
    for name in ("cifar100-nonl-1000-epochs", "cifar100-nonl-60-epochs", "cifar10-ce-100-epochs"):
        _write(jobs[name], tmp_path / "runs", 0.7)
    modules.jobs.collect(tmp_path / "runs")
    assert len(tables.length_table().splitlines()) == 2 + 3
    assert tables.length_accuracies("length-1000") == {}
    assert tables.temperature_table().splitlines()[-1] == "| ours, 60 epochs | 70.0 |"
    assert len(tables.cifar10_table().splitlines()) == 2 + 1
    assert modules.claims.cifar10_claim()[-1] == "**untested**"
    with pytest.raises(FileNotFoundError):
        tables.convergence_table()
    with pytest.raises(FileNotFoundError):
        tables.phase_table()
    _write(jobs["cifar100-nonl-temperature-0.2-batch-size-128-60-epochs"], tmp_path / "runs", 0.6)
    modules.jobs.collect(tmp_path / "runs")
    assert tables.phase_table().splitlines() == [
        "| NONL on CIFAR-100, batch size | temperature 0.1 | temperature 0.2 |",
        "|---|---:|---:|",
        "| 128 | – | 60.0 |",
        "| 512 | 70.0 | – |",
    ]


def test_verdicts_on_gains_follow_the_runs(modules: Any) -> None:
    paper, short = {"ce": 0.70, "ntce": 0.71, "nonl": 0.72}, {"ce": 0.6, "ntce": 0.6, "nonl": 0.61}
    others = {"another": {"ce": 0.7, "nonl": 0.69}}
    claim = modules.claims.accuracy_claim({"paper": paper, "short": short} | others)
    assert claim[1:3] == (
        "+1.0 and +2.0 points",
        "+0.0 and +1.0; NONL -1.0 to -1.0 with another initialization, length or other settings",
    )
    assert claim[-1] == "**depends on settings and initialization**"
    full = "paper's settings, torchvision's initialization, 1000 epochs"
    for accuracy, verdict in ((0.71, "settings and initialization*"), (0.69, "and length")):
        rows = {"paper": paper, "short": short, full: {"ce": 0.7, "nonl": accuracy}} | others
        text, settings, found = modules.claims.accuracy_claim(rows)[2:]
        assert f"; NONL {100 * (accuracy - 0.7):+.1f} after 1000 epochs; NONL -1.0 to" in text
        assert verdict in found
        assert settings == "CIFAR-100, [below](#accuracy)"
    assert modules.claims.accuracy_verdict([1.0], [0.5]) == "**held**"
    assert modules.claims.accuracy_verdict([-1.0], [0.0]) == "**not held**"
    assert "and length" in modules.claims.accuracy_verdict([0.0], [0.5])


@pytest.mark.parametrize(("lowest", "verdict"), [(68.0, "held"), (67.5, "not held")])
def test_temperatures_work_within_two_points_of_the_best(
    modules: Any, monkeypatch: pytest.MonkeyPatch, lowest: float, verdict: str
) -> None:
    ours = {0.07: lowest, 0.1: 69.0, 0.2: 69.5, 0.3: 70.0}
    values = {temperature: (accuracy, 72.0) for temperature, accuracy in ours.items()}
    monkeypatch.setattr(modules.tables, "temperature_accuracies", lambda: values)
    claim = modules.claims.temperature_claim()
    assert claim[1:3] == ("72.0, 72.0, 72.0 (NONL)", f"{lowest}, 69.0, 69.5")
    assert claim[-1] == f"**{verdict}** (within 2 points of the best)"


@pytest.mark.parametrize(
    ("means", "cached", "verdicts"),
    [
        (89.6, 89.9, ("**held**", "**held**")),
        (89.5, 90.0, ("**held**", "**held** on CIFAR-100 only")),
        (89.4, 90.1, ("**held** on CIFAR-100 only", "**held** on CIFAR-100 only")),
    ],
)
def test_verdicts_on_contrastive_features_follow_both_datasets(
    modules: Any,
    import_benchmark: Callable[[str], ModuleType],
    monkeypatch: pytest.MonkeyPatch,
    means: float,
    cached: float,
    verdicts: tuple[str, str],
) -> None:
    claims = import_benchmark("paper_claims")
    small = {"fixed_prototypes": means, "cached_linear_probe": cached, "linear_probe": 90.0}
    monkeypatch.setattr(modules.tables, "probe_accuracies", lambda: small)
    first, second, _ = claims._contrastive_claims()
    assert (first[-1], second[-1]) == verdicts
    assert first[2].endswith(f"; {means} and 90.0")
    assert second[2].endswith(f"; {cached} instead of 90.0")
    assert first[3] == "CIFAR-100, 120 epochs and CIFAR-10, 100 epochs"


@pytest.mark.parametrize(
    ("ntce", "verdict"), [(0.71, "held"), (0.704, "no difference"), (0.69, "not held")]
)
def test_negatives_are_compared_with_the_same_seed(
    import_benchmark: Callable[[str], ModuleType],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    ntce: float,
    verdict: str,
) -> None:
    claims = import_benchmark("paper_claims")
    monkeypatch.setattr(claims.runs, "RESULTS", tmp_path)
    rows = [
        {"loss": loss, "negatives": negatives, "seed": seed, "accuracy": accuracy}
        for loss, negatives, seed, accuracy in (
            ("nonl", "local, 64", 42, 0.70),
            ("nonl", "global, 512", 42, 0.72),
            ("nonl", "global, 512", 43, 0.90),
            ("ntce", "local, 64", 42, 0.70),
            ("ntce", "global, 512", 42, ntce),
            ("ntce", "global, 512", 43, 0.50),
        )
    ]
    (tmp_path / "negatives.json").write_text(json.dumps({"rows": rows}))
    claim = claims._negatives_claim()
    assert claim[2] == f"{100 * (ntce - 0.7):+.1f} and +2.0 (NTCE and NONL), 512 instead of 64"
    assert claim[-1] == f"**{verdict}**"


def _claims(claims: ModuleType, beginning: str) -> tuple[str, ...]:
    """Return the one claim that begins with some words."""
    (found,) = (claim for claim in claims._claims() if claim[0].startswith(beginning))
    return tuple(found)


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(-0.01, 0.03, "no difference"), (0.002, 0.018, "held"), (-0.03, -0.01, "not held")],
)
def test_verdicts_with_equal_tuning_follow_the_intervals(
    import_benchmark: Callable[[str], ModuleType],
    monkeypatch: pytest.MonkeyPatch,
    low: float,
    high: float,
    verdict: str,
) -> None:
    claims = import_benchmark("paper_claims")
    mean = (low + high) / 2
    compared = []

    def difference(*losses: str) -> PairedDifference:
        compared.append(losses)
        return PairedDifference(mean, 0.01, low, high, 0.5)

    monkeypatch.setattr(claims.verdict, "difference", difference)
    interval = f"({100 * mean:+.1f}, {100 * low:+.1f} to {100 * high:+.1f})"
    normface = _claims(claims, "NTCE improves")[-1]
    assert normface.endswith(f"with equal tuning **{verdict}** {interval}")
    ce = _claims(claims, "NONL is more accurate than CE over")[-1]
    assert ce == f"**{verdict}** with these settings {interval}"
    assert set(compared) == {("ntce", "normface"), ("nonl", "ce")}


def test_a_verdict_over_seeds_needs_an_interval(modules: Any) -> None:
    with pytest.raises(ValueError, match="must have an interval"):
        modules.claims.paired_verdict(PairedDifference(0.01))


@pytest.mark.parametrize("loss", ["normface", "ntce", "nonl", "normface-nonl"])
def test_differences_of_losses_are_those_of_the_comparison(
    import_benchmark: Callable[[str], ModuleType], loss: str
) -> None:
    verdict = import_benchmark("verdict")
    (expected,) = (
        row
        for row in verdict.read("short").differences
        if (row.method, row.metric) == (f"cifar100-best-{loss}", "accuracy")
    )
    found = verdict.difference(loss, "ce")
    assert (found.mean, found.low, found.high) == pytest.approx(
        (expected.mean, expected.low, expected.high)
    )
    opposite = verdict.difference("ce", loss)
    assert (opposite.mean, opposite.low) == pytest.approx((-found.mean, -found.high))


@pytest.mark.parametrize(
    ("ntce", "class_means", "verdict"),
    [
        ("44.0", "43.0", "**held**"),
        ("44.0", "45.0", "**held**; class means of CE are better"),
        ("40.4", "43.0", "**no difference**"),
        ("38.0", "39.0", "**not held**"),
    ],
)
def test_the_verdict_on_imbalance_needs_both_losses(
    import_benchmark: Callable[[str], ModuleType],
    monkeypatch: pytest.MonkeyPatch,
    ntce: str,
    class_means: str,
    verdict: str,
) -> None:
    claims = import_benchmark("paper_claims")
    cells = {"ce": f"40.0 / {class_means}", "ntce": f"{ntce} / 44.0", "nonl": "44.0 / 44.0"}
    monkeypatch.setattr(claims.benefits_tables, "long_tail", lambda: cells)
    assert _claims(claims, "Gains under class imbalance")[-1] == verdict


@pytest.mark.parametrize(
    ("mce", "verdict"), [(0.95, "held"), (1.0, "no difference"), (1.02, "not held")]
)
def test_the_verdicts_on_corruptions_and_transfer_need_both_losses(
    import_benchmark: Callable[[str], ModuleType],
    monkeypatch: pytest.MonkeyPatch,
    mce: float,
    verdict: str,
) -> None:
    claims = import_benchmark("paper_claims")
    found = iter([SimpleNamespace(mce=0.9), SimpleNamespace(mce=mce)])
    monkeypatch.setattr(claims, "summarize_corruptions", lambda *_: next(found))
    one = {"ce": 0.7, "ntce": 0.8, "nonl": 0.7 + (1 - mce)}
    monkeypatch.setattr(claims, "_transfers", lambda: [one])
    *_, transfer, corruptions = claims._downstream_claims()
    assert transfer[-1] == corruptions[-1] == f"**{verdict}**"
    found = iter([SimpleNamespace(mce=0.9), SimpleNamespace(mce=None)])
    with pytest.raises(ValueError, match="must be measured"):
        list(claims._downstream_claims())


def test_runs_of_full_length_decide(import_benchmark: Callable[[str], ModuleType]) -> None:
    claims = import_benchmark("paper_claims")
    assert claims.short_and_long(True) == "**held**"
    assert claims.short_and_long(False) == "**not held**"
    assert claims.short_and_long(False, True) == "**held** at full length"
    assert claims.short_and_long(True, False) == "**not held** at full length"
    assert claims.fast_verdict([4, 5], None) == "**held**"
    assert claims.fast_verdict([3, 5], None) == "**partly**"
    assert claims.fast_verdict([0, 0], None) == "**not held**"
    assert claims.fast_verdict([0, 0], 4) == "NONL **held** at full length"
    assert claims.fast_verdict([5, 5], 3) == "NONL **not held** at full length"


@pytest.mark.parametrize(
    ("gain", "verdict"),
    [
        (0.6, "held"),
        (0.5, "no difference"),
        (0.0, "no difference"),
        (-0.5, "no difference"),
        (-0.6, "not held"),
    ],
)
def test_gains_of_one_seed_up_to_half_a_point_are_no_difference(
    modules: Any, gain: float, verdict: str
) -> None:
    assert modules.claims.gain_verdict(gain) == verdict


def test_a_probe_that_is_missing_leaves_out_its_claim_only(
    modules: Any, import_benchmark: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    claims = import_benchmark("paper_claims")
    small = {"fixed_prototypes": 89.6, "linear_probe": 90.0}
    monkeypatch.setattr(modules.tables, "probe_accuracies", lambda: small)
    first, second, _ = claims._contrastive_claims()
    assert first[2].endswith("; 89.6 and 90.0")
    assert first[3] == "CIFAR-100, 120 epochs and CIFAR-10, 100 epochs"
    assert "90.0" not in second[2]
    assert second[3:] == ("CIFAR-100, 120 epochs", "**held**")
