"""Accuracies of single classes: what is written for a run, and how losses are compared."""

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from protosphere.recipes.loading import load_run, read_recipe
from protosphere.runs import RunFolder
from protosphere.runs.arrays import read_arrays
from support.short_runs import logged_run, short_run

# Two classes of a superclass, one of another, and one that CIFAR-100 does not have.
NAMES = ("apple", "pear", "bed", "digit")
VERDICT_METRICS = (
    "accuracy",
    "nearest_mean_accuracy",
    "inter_effective_rank",
    "nc1_ratio",
    "weight_class_alignment",
    "loss",
    "ece",
)


@pytest.fixture
def class_accuracy(import_benchmark: Callable[[str], ModuleType]) -> ModuleType:
    """The functions for accuracies of classes."""
    return import_benchmark("class_accuracy")


@pytest.fixture
def class_tables(import_benchmark: Callable[[str], ModuleType]) -> ModuleType:
    """The tables of accuracies of classes."""
    return import_benchmark("class_tables")


def _record(
    confusion: Sequence[Sequence[int]],
    cosines: Sequence[float] = (0.5, 0.4, 0.1, 0.0),
    nearest: Sequence[float] | None = None,
) -> dict[str, Any]:
    """A file of a run from its confusion matrix; nearest class means are as good as the head."""
    accuracy = [row[index] / sum(row) for index, row in enumerate(confusion)]
    return {
        "class_names": list(NAMES),
        "num_images": [sum(row) for row in confusion],
        "accuracy": accuracy,
        "nearest_mean_accuracy": list(nearest or accuracy),
        "nearest_class": [1, 0, 0, 0],
        "nearest_cosine": list(cosines),
        "errors": [
            [i, j, count]
            for i, row in enumerate(confusion)
            for j, count in enumerate(row)
            if i != j and count
        ],
    }


CE = {
    1: _record([[6, 3, 1, 0], [2, 7, 0, 1], [0, 1, 9, 0], [0, 0, 0, 10]]),
    2: _record([[5, 4, 1, 0], [2, 8, 0, 0], [1, 0, 9, 0], [0, 0, 0, 10]]),
    # A seed that the other loss does not have.
    3: _record([[7, 3, 0, 0], [1, 9, 0, 0], [2, 0, 8, 0], [0, 0, 0, 10]], (0.7, 0.4, 0.1, 0.0)),
}
NONL = {
    1: _record([[4, 5, 1, 0], [3, 6, 0, 1], [0, 1, 9, 0], [0, 0, 0, 10]]),
    2: _record([[4, 4, 1, 1], [2, 7, 1, 0], [0, 0, 10, 0], [0, 0, 0, 10]]),
}


def _correlation(first: Sequence[float], second: Sequence[float]) -> float:
    means = sum(first) / len(first), sum(second) / len(second)
    products = sum((x - means[0]) * (y - means[1]) for x, y in zip(first, second, strict=True))
    squares = [
        sum((x - mean) ** 2 for x in values)
        for values, mean in zip((first, second), means, strict=True)
    ]
    return products / math.sqrt(squares[0] * squares[1])


def test_differences_of_classes_by_hand(class_accuracy: ModuleType) -> None:
    comparison = class_accuracy.compare({"ce": CE, "nonl": NONL})
    assert comparison.class_names == list(NAMES)
    assert comparison.accuracy == pytest.approx([0.6, 0.8, 26 / 30, 1.0])
    (row,) = comparison.differences
    assert (row.method, row.num_seeds) == ("nonl", 2)
    by_seed = [-0.2, -0.1, 0.0, 0.0], [-0.1, -0.1, 0.1, 0.0]
    assert [one.mean for one in row.classes] == pytest.approx([-0.15, -0.1, 0.05, 0.0])
    # Of two values the standard error is half of their distance.
    assert [one.error for one in row.classes] == pytest.approx([0.05, 0.0, 0.05, 0.0], abs=1e-12)
    assert tuple(row.accuracy) == pytest.approx((-0.05, 0.025))
    assert row.nearest_mean_accuracy == pytest.approx(row.accuracy)
    assert row.agreement == pytest.approx(_correlation(*by_seed))
    # With the accuracies of cross-entropy of the other seeds.
    expected = (
        _correlation(by_seed[0], [0.6, 0.85, 0.85, 1.0])
        + _correlation(by_seed[1], [0.65, 0.8, 0.85, 1.0])
    ) / 2
    assert row.with_accuracy == pytest.approx(expected)
    # The cosines of the other seeds, 2 and 3 or 1 and 3, are the same in the mean.
    cosines = [_correlation(one, [0.6, 0.4, 0.1, 0.0]) for one in by_seed]
    assert row.with_cosine == pytest.approx(sum(cosines) / 2)
    # Nearest class means are as good as the head.
    assert row.with_nearest_means == pytest.approx(row.agreement)


def test_kinds_of_errors_by_hand(class_accuracy: ModuleType, monkeypatch: Any) -> None:
    monkeypatch.setattr(class_accuracy, "NUM_PAIRS", 2)
    comparison = class_accuracy.compare({"ce": CE, "nonl": NONL})
    # Apples and pears are confused 5, 6 and 4 times of 40; other errors are 3, 2 and 2.
    within, between, confused = comparison.errors
    assert within == pytest.approx(5 / 40)
    assert between == pytest.approx(7 / 3 / 40)
    (row,) = comparison.differences
    assert tuple(row.within_superclasses) == pytest.approx((1.5 / 40, 1.5 / 40))
    assert row.between_superclasses.mean == pytest.approx((0 + 1) / 2 / 40)
    total = row.within_superclasses.mean + row.between_superclasses.mean
    assert total == pytest.approx(-row.accuracy.mean)
    # The second pair is apple and bed: 1, 2 and 2 times, and 1 and 1 with NONL.
    assert confused == pytest.approx((6 + 8 + 6) / 3 / 40)
    assert row.confused_pairs.mean == pytest.approx(((9 - 6) + (7 - 8)) / 2 / 40)


def test_one_seed_has_no_errors_and_a_constant_no_correlation(class_accuracy: ModuleType) -> None:
    comparison = class_accuracy.compare({"ce": {1: CE[1]}, "nonl": {1: CE[1]}, "ntce": {2: CE[2]}})
    (row,) = comparison.differences
    assert row.method == "nonl"
    assert row.agreement is None
    assert (row.with_accuracy, row.with_cosine, row.with_nearest_means) == (None, None, None)
    assert tuple(row.classes[0]) == (0, None)
    (row,) = class_accuracy.compare({"ce": CE, "nonl": CE}).differences
    assert (row.agreement, row.with_cosine) == (0, 0)


def test_numbered_classes_have_the_names_of_cifar100(class_accuracy: ModuleType) -> None:
    names = class_accuracy.original_names([f"class {index}" for index in range(100)])
    assert (names[0], names[-1]) == ("apple", "worm")
    assert class_accuracy.original_names(["class 0", "class 1"]) == ["class 0", "class 1"]


def _write_files(folder: Path, file: str, **methods: Any) -> None:
    """Write the files of a group of runs by method and seed."""
    for method, seeds in methods.items():
        for seed, record in seeds.items():
            target = folder / f"short-{method.replace('_', '-')}-{seed}"
            target.mkdir(parents=True)
            (target / file).write_text(json.dumps(record))
            machine = {"device": "GPU", "versions": {"torch": "2"}, "commit": "abc"}
            (target / "machine.json").write_text(json.dumps(machine))


def test_tables_of_the_files_of_a_group(
    class_accuracy: ModuleType,
    class_tables: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    folder = tmp_path / "short"
    _write_files(folder, class_accuracy.FILE, ce=CE, normface_nonl=NONL)
    monkeypatch.setattr(class_tables, "NUM_CLASSES_SHOWN", 2)
    summary = class_tables.summary_table(folder).splitlines()
    assert len(summary) == 3
    assert list(class_accuracy.read_records(folder)) == ["ce", "normface-nonl"]
    assert len({line.count("|") for line in summary}) == 1
    assert summary[2].startswith("| NormFace + NONL | 2 | -5.00 ± 2.50 |")
    # Of two values the error is half of their distance; all pairs are among the most confused.
    assert summary[2].endswith("| +3.75 ± 3.75 | +1.25 ± 1.25 | +5.00 ± 2.50 |")
    losses, gains = class_tables.classes_table(folder).splitlines()[-1].split(" | ")[1:]
    assert losses == "apple -15.00 ± 5.00 (60%), pear -10.00 ± 0.00 (80%)"
    assert gains == "bed +5.00 ± 5.00 (87%), digit +0.00 ± 0.00 (100%) |"
    assert "commit abc" in class_tables.source(folder)
    with pytest.raises(FileNotFoundError):
        class_tables.summary_table(tmp_path / "none")


def test_cosines_within_superclasses_are_means_over_pairs_of_related_classes(
    class_accuracy: ModuleType, class_tables: ModuleType, tmp_path: Path
) -> None:
    # Apple and pear are fruits; the other classes are related to none.
    cosines = np.array(
        [[1.0, 0.6, 0.1, 0.2], [0.6, 1.0, 0.3, 0.0], [0.1, 0.3, 1.0, -0.1], [0.2, 0.0, -0.1, 1.0]]
    )
    found = class_accuracy.superclass_cosines(NAMES, cosines)
    assert found == [0.6, pytest.approx((0.1 + 0.2 + 0.3 + 0.0 - 0.1) / 5, abs=1e-4)]
    assert class_accuracy.superclass_cosines(["a", "b"], cosines[:2, :2]) == [None, 0.6]
    values = {"superclass_cosines": [0.5, 0.1], "superclass_prototype_cosines": [0.3, -0.1]}
    others = {"superclass_cosines": [0.3, 0.3], "superclass_prototype_cosines": [0.1, 0.1]}
    absent = {"superclass_cosines": [None, 0.1], "superclass_prototype_cosines": [None, 0.1]}
    _write_files(
        tmp_path / "short",
        class_accuracy.FILE,
        ce={1: CE[1] | values, 2: CE[2] | others, 3: CE[3]},
        ntce={1: CE[1] | absent},
        nonl={1: NONL[1] | values},
    )
    assert class_tables.similarity_table(tmp_path / "short").splitlines()[2:] == [
        "| cross-entropy | 2 | +0.400 | +0.200 | +0.200 | +0.000 |",
        "| NONL | 1 | +0.500 | +0.100 | +0.300 | -0.100 |",
    ]
    _write_files(tmp_path / "old/short", class_accuracy.FILE, ce=CE)
    with pytest.raises(FileNotFoundError, match="cosines"):
        class_tables.similarity_table(tmp_path / "old/short")


def test_file_of_a_run_agrees_with_its_evaluation_and_plain_loops(
    class_accuracy: ModuleType, tmp_path: Path
) -> None:
    folder = short_run(tmp_path, "ce")
    class_accuracy.write_class_accuracy(folder, "cpu")
    record = json.loads((folder / class_accuracy.FILE).read_text())
    run = load_run(folder)
    test, arrays = run.features("test"), read_arrays(RunFolder(folder))
    predictions = run.objective.head.predict(torch.as_tensor(test.features)).tolist()
    counts, hits, nearest = [0] * 10, [0] * 10, [0] * 10
    errors: dict[tuple[int, int], int] = {}
    means = torch.as_tensor(arrays["class_means"])
    for feature, label, predicted in zip(
        test.features, torch.as_tensor(test.labels).tolist(), predictions, strict=True
    ):
        counts[label] += 1
        unit = feature / feature.norm()
        distances = [float((unit - mean).norm()) for mean in means]
        hits[label] += predicted == label
        nearest[label] += distances.index(min(distances)) == label
        if predicted != label:
            errors[label, predicted] = errors.get((label, predicted), 0) + 1
    assert record["class_names"] == list(run.class_names)
    assert record["num_images"] == counts
    pairs = list(zip(hits, counts, strict=True))
    assert record["accuracy"] == pytest.approx([hit / count for hit, count in pairs])
    pairs = list(zip(nearest, counts, strict=True))
    assert record["nearest_mean_accuracy"] == pytest.approx([hit / count for hit, count in pairs])
    assert {(i, j): count for i, j, count in record["errors"]} == errors
    centered = means - means.mean(0)
    for index, (other, cosine) in enumerate(
        zip(record["nearest_class"], record["nearest_cosine"], strict=True)
    ):
        cosines = torch.cosine_similarity(centered[index : index + 1], centered).tolist()
        cosines[index] = -2
        assert other == cosines.index(max(cosines))
        assert cosine == pytest.approx(max(cosines), abs=1e-4)
    evaluation = RunFolder(folder).last_evaluation()
    assert evaluation is not None
    assert sum(hits) / sum(counts) == pytest.approx(evaluation["accuracy"])
    assert sum(nearest) / sum(counts) == pytest.approx(evaluation["nearest_mean_accuracy"])


def test_runs_of_the_verdict_write_and_keep_the_file(
    import_benchmark: Callable[[str], ModuleType],
) -> None:
    verdict = import_benchmark("verdict")
    assert "class_accuracy.json" in verdict.RECORDS
    kept = [job.name for job in verdict.jobs() if verdict._keeps_arrays(job)]
    assert kept == ["short-ce-42", "short-normface-nonl-42"]
    for job in verdict.jobs():
        assert job.recipe == f"cifar100-strong-{job.name.partition('-')[2].rpartition('-')[0]}"
        assert job.finish is verdict.class_accuracy.write_class_accuracy
        # The names that the comparison reads.
        read_recipe(job.recipe, ["data.source=arrays", "data.path=x.npz", *job.overrides])
        assert job.name.startswith(f"{job.group}-")
        assert job.name.rpartition("-")[2].isdigit()


def test_the_long_runs_are_of_the_most_accurate_loss_that_collapses(
    import_benchmark: Callable[[str], ModuleType],
) -> None:
    verdict = import_benchmark("verdict")
    accuracy, rank = verdict.means("accuracy"), verdict.means("inter_effective_rank")
    collapsed = [loss for loss in accuracy if loss != "ce" and rank[loss] >= 95]
    assert max(collapsed, key=accuracy.__getitem__) == verdict.CONTENDER


def test_runs_of_the_verdict_are_missing_unless_they_have_the_chosen_settings(
    import_benchmark: Callable[[str], ModuleType],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    verdict = import_benchmark("verdict")
    monkeypatch.setattr(verdict, "RESULTS", tmp_path / "results")
    job, changed, interrupted, missing = verdict.jobs()[:4]
    for one, *overrides in ((job,), (changed, "optimizer.lr=0.123"), (interrupted,)):
        epoch = 50 if one is interrupted else 100
        metrics = {name: [(epoch, 0.5)] for name in VERDICT_METRICS}
        settings = ("data.source=arrays", "data.path=there.npz", *one.overrides, *overrides)
        folder = tmp_path / "results" / one.group / one.name
        logged_run(folder, metrics, *settings, recipe=one.recipe, class_counts=(30,) * 100)
    names = [one.name for one in verdict.missing_jobs()]
    assert names[:3] == [changed.name, interrupted.name, missing.name]
    assert len(names) == len(verdict.jobs()) - 1
    # Records of other settings would be compared with those of the chosen ones.
    verdict.collect(tmp_path / "none")
    assert [path.name for path in (tmp_path / "results/short").glob("short-*")] == [job.name]


def test_arrays_of_two_runs_of_the_verdict_are_kept(
    import_benchmark: Callable[[str], ModuleType],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    verdict = import_benchmark("verdict")
    monkeypatch.setattr(verdict, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(verdict, "_is_current", lambda _, folder: (folder / "recipe.yaml").exists())
    arrays = {"geometry.safetensors", "geometry-best.safetensors"}
    for method in ("ce", "nonl"):
        folder = logged_run(
            tmp_path / "runs" / f"short-{method}-42",
            {name: [(1, 0.5)] for name in VERDICT_METRICS},
            "schedule.epochs=1",
            f"name=cifar100-best-{method}",
            recipe=f"digits-{method}",
        )
        for name in arrays:
            (folder / name).touch()
    verdict.collect(tmp_path / "runs")
    copied = {
        method: tmp_path / "results/short" / f"short-{method}-42" for method in ("ce", "nonl")
    }
    assert arrays <= {path.name for path in copied["ce"].iterdir()}
    assert not arrays & {path.name for path in copied["nonl"].iterdir()}
    # One seed has neither a deviation nor an interval.
    assert verdict.table("short").splitlines()[2:] == [
        "| cross-entropy | 1 | 50.00 | – | 50.00 | 0.5 | 0.500 | 0.500 | 0.500 | 50.0% |",
        "| NONL | 1 | 50.00 | – | 50.00 | 0.5 | 0.500 | 0.500 | 0.500 | 50.0% |",
    ]


def test_runs_without_mixup_are_compared_with_cross_entropy_of_the_same_length(
    import_benchmark: Callable[[str], ModuleType],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    verdict = import_benchmark("verdict")
    monkeypatch.setattr(verdict, "RESULTS", tmp_path / "results")
    by_name = {job.name: job for job in verdict.jobs()}
    accuracies = {"short-ce": 0.5, "short-ntce": 0.4, "unmixed-ntce": 0.7}
    for prefix, accuracy in accuracies.items():
        for seed in (42, 43):
            job = by_name[f"{prefix}-{seed}"]
            value = accuracy + (seed - 42) / 100 * (prefix == "unmixed-ntce")
            metrics = {name: [(100, value)] for name in VERDICT_METRICS}
            settings = ("data.source=arrays", "data.path=there.npz", *job.overrides)
            logged_run(tmp_path / "runs" / job.name, metrics, *settings, recipe=job.recipe)
    verdict.collect(tmp_path / "runs")
    ends = [line.split(" | ")[:4] for line in verdict.table("unmixed").splitlines()[2:]]
    assert ends == [
        ["| cross-entropy", "2", "50.00 ± 0.00", "–"],
        # A standard error of 0.5, and 12.7 of them.
        ["| NTCE", "2", "70.50 ± 0.71", "+20.50 (+14.15 to +26.85)"],
    ]
    assert verdict.difference("ntce", "ce").mean == pytest.approx(-0.1)


def test_the_progress_of_runs_is_that_halfway_and_at_the_end(
    import_benchmark: Callable[[str], ModuleType],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    verdict = import_benchmark("verdict")
    monkeypatch.setattr(verdict, "RESULTS", tmp_path)
    with pytest.raises(FileNotFoundError):
        verdict.progress_table("short")
    for seed, value in ((42, 0.25), (43, 0.75)):
        times = [(50, value / 2), (75, 0.9), (100, value)]
        series = dict.fromkeys(("train_accuracy", *VERDICT_METRICS), times)
        for method in ("normface", "normface-nonl"):
            logged_run(tmp_path / "short" / f"short-{method}-{seed}", series)
    lines = verdict.progress_table("short").splitlines()
    assert "training accuracy, epoch 50 | training accuracy, epoch 100 |" in lines[0]
    assert lines[2:] == [
        "| NormFace | 25.0 | 50.0 | 25.0 | 50.0 | 0.2 | 0.5 | 0.250 | 0.500 |",
        "| NormFace + NONL | 25.0 | 50.0 | 25.0 | 50.0 | 0.2 | 0.5 | 0.250 | 0.500 |",
    ]
