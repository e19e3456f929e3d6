"""Jobs of the benchmarks that train: their recipes are valid, and local negatives are local."""

import fcntl
import json
import shutil
from collections.abc import Callable, Iterator
from itertools import chain, count, repeat
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from protosphere.classifiers import CosineClassifier
from protosphere.recipes import registry, runner
from protosphere.recipes.build import create_objective
from protosphere.recipes.loading import read_recipe


@pytest.fixture
def negatives(import_benchmark: Callable[[str], ModuleType]) -> Any:
    """The benchmark of negatives."""
    return import_benchmark("negatives")


def test_jobs_have_valid_recipes_and_names_of_their_own(negatives: Any) -> None:
    jobs = negatives.jobs()
    for job in jobs:
        recipe = read_recipe(job.recipe, ["data.source=arrays", "data.path=x.npz", *job.overrides])
        assert recipe.schedule.epochs == negatives.EPOCHS
        assert (recipe.loss.queue is not None) == ("queue" in job.name)
        assert (job.prepare is not None) == ("local" in job.name)
    assert len({job.name for job in jobs}) == len(jobs)


def test_variants_without_averaged_weights_say_so(
    import_benchmark: Callable[[str], ModuleType],
) -> None:
    variants = import_benchmark("variants")
    assert len({job.name for job in variants.jobs()}) == len(variants.VARIANTS)
    for variant, job in zip(variants.VARIANTS, variants.jobs(), strict=True):
        recipe = read_recipe(job.recipe, ["data.source=arrays", "data.path=x.npz", *job.overrides])
        assert recipe.data.validation_fraction == 0.1
        assert (recipe.training.ema_decay is None) == variant.title.endswith("no EMA")


def test_local_negatives_are_those_of_the_part(
    negatives: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(registry.LOSSES, "nonl", registry.LOSSES["nonl"])
    negatives.divide_loss("nonl", 3)
    recipe = read_recipe("digits-nonl")
    objective = create_objective(recipe, num_classes=10, in_channels=1)
    head = CosineClassifier(5, 4, temperature=0.5)
    features, labels = torch.randn(6, 5), torch.tensor([0, 1, 2, 3, 1, 0])
    logits = torch.cosine_similarity(features[:, None], head.prototypes[None], dim=2) / 0.5
    values = []
    for i, label in enumerate(labels.tolist()):
        part = range(3) if i < 3 else range(3, 6)
        others = [logits[j, label] for j in part if labels[j] != label]
        values.append(torch.stack(others).logsumexp(0) - logits[i, label])
    expected = torch.stack(values).mean()
    torch.testing.assert_close(objective.loss(features, head, labels), expected)


def test_gradients_of_the_whole_batch_as_one_part_are_parallel(
    negatives: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    objective = create_objective(read_recipe("digits-nonl"), num_classes=10, in_channels=1)
    images, labels = torch.randn(12, 1, 8, 8), torch.arange(12) % 10
    cosines = {}
    for size in (12, 6):
        monkeypatch.setattr(negatives, "PART_SIZE", size)
        cosines[size] = negatives.gradient_cosines(objective, images, labels)
    assert cosines[12] == pytest.approx((1, 1), abs=1e-5)
    assert all(-1 < cosine < 0.9999 for cosine in cosines[6])


@pytest.fixture
def train_in_turn(
    import_benchmark: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., Iterator[str]]:
    """Training that takes turns and reports three epochs of a name."""
    monkeypatch.setattr(runner, "train", lambda name, **_: (f"{name}{i}" for i in (1, 2, 3)))
    jobs = import_benchmark("jobs")
    monkeypatch.setattr(jobs, "_POLL_SECONDS", 0)
    jobs.take_turns(tmp_path)
    return runner.train  # type: ignore[return-value]


def test_one_job_trains_at_a_time_after_its_first_report(train_in_turn: Any) -> None:
    first = train_in_turn("a")
    reports = [next(first), next(first)]

    asked = count()

    def finish_the_first() -> bool:
        """The second job asks whether to stop while it waits; the first one ends meanwhile."""
        if next(asked) > 0:
            reports.extend(first)
        return False

    for report in train_in_turn("b", should_stop=finish_the_first):
        reports.append(report)
    assert reports == ["a1", "a2", "b1", "a3", "b2", "b3"]


@pytest.mark.parametrize("seconds", [60, 0])
def test_one_job_starts_up_at_a_time_unless_it_takes_too_long(
    import_benchmark: Callable[[str], ModuleType],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    seconds: float,
) -> None:
    started: list[str] = []
    trains: Any = runner

    def train(name: str, **_: Any) -> Iterator[str]:
        started.append(name)
        if name == "a":
            # The first job has not reported yet; the second one asks twice whether to stop.
            second = trains.train("b", should_stop=[False, False].pop)
            if seconds:
                with pytest.raises(IndexError):
                    next(second)
            else:
                assert next(second) == "b1"
        yield f"{name}1"

    monkeypatch.setattr(runner, "train", train)
    jobs = import_benchmark("jobs")
    monkeypatch.setattr(jobs, "_STARTUP_SECONDS", seconds)
    jobs.take_turns(tmp_path)
    assert list(trains.train("a")) == ["a1"]
    assert started == (["a"] if seconds else ["a", "b"])
    assert list(trains.train("b")) == ["b1"]


def test_of_jobs_that_wait_the_most_important_one_is_next(
    import_benchmark: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    jobs = import_benchmark("jobs")
    monkeypatch.setattr(jobs, "_POLL_SECONDS", 0)

    def lock(name: str) -> Any:
        file = (tmp_path / name).open("w")
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return file

    training, more_important = lock("turn.lock"), lock("waiting-0001.lock")
    lock("waiting-0000.lock").close()  # Of a job that does not wait anymore.
    less_important = lock("waiting-0003.lock")
    steps: list[str] = []

    def should_stop() -> bool:
        steps.append("asked")
        if len(steps) == 2:
            training.close()
        elif len(steps) == 4:
            assert not jobs._is_locked(tmp_path / "turn.lock")  # The other job is next.
            more_important.close()
        return False

    with (tmp_path / "turn.lock").open("w") as turn, less_important:
        assert jobs._wait_for_turn(turn, tmp_path, 2, should_stop)
        assert len(steps) == 4
        assert jobs._is_locked(tmp_path / "turn.lock")
        assert not jobs._is_locked(tmp_path / "waiting-0002.lock")  # It does not wait anymore.


def test_a_job_that_waits_for_its_turn_stops_when_asked(train_in_turn: Any) -> None:
    first = train_in_turn("a")
    assert [next(first), next(first)] == ["a1", "a2"]
    answers = chain([False, False], repeat(True))
    # Training itself then saves and ends; here it goes on.
    assert list(train_in_turn("b", should_stop=lambda: next(answers))) == ["b1", "b2", "b3"]


def test_a_job_that_fails_gives_its_turn_back(train_in_turn: Any) -> None:
    first = train_in_turn("a")
    assert [next(first), next(first)] == ["a1", "a2"]
    first.close()
    asked = iter([False, False])  # Once for each lock; then it has its turn.
    assert list(train_in_turn("b", should_stop=lambda: next(asked))) == ["b1", "b2", "b3"]


def test_missing_runs_of_all_benchmarks_have_names_of_their_own_and_an_order(
    import_benchmark: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    missing_runs = import_benchmark("missing_runs")
    for name in ("verdict", "dynamics", "benefits", "reproduction"):
        monkeypatch.setattr(import_benchmark(name), "RESULTS", tmp_path / name)
    jobs = missing_runs.missing_jobs()
    every = [
        job
        for name in ("verdict", "dynamics", "benefits", "reproduction")
        for job in import_benchmark(name).jobs()
        if name != "benefits" or job.group == "label-noise-smoothing"
    ]
    assert sorted(job.name for job in jobs) == sorted(job.name for job in every)
    assert len({job.name for job in jobs}) == len(jobs)
    assert list(dict.fromkeys(job.group for job in jobs))[:6] == [
        "short",
        "long",
        "unmixed",
        "dynamics",
        "label-noise-smoothing",
        "length-1000",
    ]


def test_missing_runs_are_collected_by_their_benchmarks(
    import_benchmark: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    missing_runs = import_benchmark("missing_runs")
    collected: list[str] = []
    for name in ("verdict", "dynamics", "benefits", "reproduction"):
        monkeypatch.setattr(
            import_benchmark(name), "collect", lambda _, name=name: collected.append(name)
        )
    missing_runs.collect(tmp_path)
    assert collected == [
        "verdict",
        "benefits",
        "reproduction",
    ]  # There are no measurements to write.
    monkeypatch.setattr(missing_runs, "is_trained", lambda folder: folder.name == "dynamics-ntce")
    missing_runs.collect(tmp_path)
    assert collected[3:] == ["verdict", "dynamics", "benefits", "reproduction"]


def test_jobs_of_the_benefits_have_valid_recipes_and_records(
    import_benchmark: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    benefits, tables = import_benchmark("benefits"), import_benchmark("benefits_tables")
    jobs = {job.name: job for job in benefits.jobs()}
    assert len(jobs) == len(benefits.jobs())
    for job in jobs.values():
        read_recipe(job.recipe, ["data.source=arrays", "data.path=x.npz", *job.overrides])
    results, runs = tmp_path / "results", tmp_path / "runs"
    shutil.copytree(benefits.RESULTS, results)
    for module in (benefits, tables):
        monkeypatch.setattr(module, "RESULTS", results)
    shutil.rmtree(results / "cifar100-noise-0.4-ce-smoothing-0.2", ignore_errors=True)
    # A run of the benchmark and one of another, which has benchmarks too.
    for name in ("cifar100-noise-0.4-ce-smoothing-0.2", "cifar10-scl-100-epochs"):
        shutil.copytree(results / "cifar100-noise-0.4-ce", runs / name)
        (runs / name / "done").touch()
    missing = {job.name for job in benefits.missing_jobs()}
    benefits.collect(runs)
    collected = missing - {job.name for job in benefits.missing_jobs()}
    assert collected == {"cifar100-noise-0.4-ce-smoothing-0.2"}
    assert not (results / "cifar10-scl-100-epochs").exists()
    lines = tables.noise_table().splitlines()
    (plain,) = (line for line in lines if line.startswith("| CE, 40% wrong labels |"))
    (smoothed,) = (line for line in lines if line.startswith("| CE, label smoothing 0.2, 40%"))
    assert smoothed.split("|")[2:] == plain.split("|")[2:]


def test_runs_of_another_temperature_are_not_among_those_of_the_long_tail(
    import_benchmark: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tables = import_benchmark("benefits_tables")
    results = tmp_path / "results"
    shutil.copytree(tables.RESULTS, results)
    monkeypatch.setattr(tables, "RESULTS", results)
    expected = tables.long_tail(), tables.long_tail_table()
    for method in ("normface", "ntce"):
        other = results / f"cifar100-lt-0.01-{method}-t0.1-42"
        shutil.copytree(results / f"cifar100-lt-0.01-{method}-42", other)
        path = other / "benchmarks" / "long_tail.json"
        content = json.loads(path.read_text())
        for row in content["rows"]:
            row["accuracy"] = 0.99
        path.write_text(json.dumps(content))
    assert (tables.long_tail(), tables.long_tail_table()) == expected


@pytest.mark.parametrize("against", ["nothing-of-this-name", None])
def test_a_job_is_done_only_if_its_benchmarks_succeed(
    import_benchmark: Callable[[str], ModuleType],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    against: str | None,
) -> None:
    jobs = import_benchmark("jobs")
    monkeypatch.setattr(runner, "train", runner.train)  # The job changes it.
    labels = np.arange(40) % 10
    images = np.zeros((40, 8, 8), np.uint8) + labels[:, None, None].astype(np.uint8)
    file = tmp_path / "gray.npz"
    np.savez(file, x_train=images, y_train=labels, x_test=images, y_test=labels)
    job = jobs.Job(
        "group",
        "name",
        "digits-ce",
        "gray",
        ("schedule={name: constant, epochs: 1}",),
        benchmarks=() if against is None else (("ood", "--against", against),),
    )
    result = jobs.run_job(job, tmp_path, tmp_path, "cpu", ())
    assert result.startswith("name: done" if against is None else "name: ood failed")
    assert (tmp_path / "name" / "done").exists() == (against is None)
