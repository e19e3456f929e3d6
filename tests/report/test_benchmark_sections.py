"""Sections on benchmarks: tables equal numbers computed by hand, and damage is said."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from protosphere.data.corruptions import CORRUPTIONS
from protosphere.evaluation.corruptions import ALEXNET
from protosphere.report.colors import PALETTE
from protosphere.report.content import Section
from protosphere.report.page import create_page
from protosphere.report.sections import (
    convergence,
    corruptions,
    label_noise,
    long_tail,
    transfer,
    uncertainty,
)
from protosphere.report.sections.corruptions import ALEXNET_ERRORS
from protosphere.report.sources import ReportData, RunData
from support.report_content import (
    bold,
    column,
    create_run,
    drawn_texts,
    figures,
    missing,
    notes,
    options,
    report_of,
    table,
    trace,
)

HOSTILE = "</script><b>%{x}</b>"


def _long_tail(method: str, accuracies: dict[str, float], **fields: Any) -> RunData:
    rows = [
        {"classifier": "head", "group": group, "accuracy": accuracy, "class_name": None}
        for group, accuracy in accuracies.items()
    ]
    rows.append({"classifier": "class_means", "group": "all", "accuracy": 0.55})
    rows.append({"classifier": "head", "group": "class", "class_name": "cat", "accuracy": 1.0})
    return create_run(method, {"long_tail": rows}, **fields)


def test_accuracies_of_a_long_tail_are_means_over_seeds() -> None:
    cifar = {"data": {"source": "cifar10", "long_tail": 0.01}, "loss": {"name": "nonl"}}
    names = tuple(map(str, range(10)))
    section = long_tail.create_section(
        report_of(
            _long_tail("ce", {"all": 0.50, "many": 0.70, "medium": 0.50, "few": 0.30}),
            _long_tail("nonl", {"all": 0.60, "many": 0.65, "few": 0.40}, seed=0, recipe=cifar,
                       class_names=names),
            _long_tail("nonl", {"all": 0.64, "many": 0.65, "few": 0.20}, seed=1, recipe=cifar,
                       class_names=names),
        )
    )  # fmt: skip
    content = table(section, "Accuracy by number of training images")
    # |0.60 - 0.64| / sqrt(2) = 2.8 points, and |0.40 - 0.20| / sqrt(2) = 14.1.
    assert column(content, "All classes") == ["50.0", "62.0 ± 2.8"]
    assert column(content, "Few-shot") == ["30.0", "30.0 ± 14.1"]
    assert column(content, "Medium-shot") == ["50.0", "–"]
    assert column(content, "Runs") == ["1", "2"]
    assert column(content, "Paper") == ["–", "76.3"]
    # The data are different, so that neither is better than the other.
    assert not content.best
    assert column(table(section, "Accuracy by classifier"), "Class means") == ["55.0", "55.0 ± 0.0"]
    assert "Methods with one run: ce" in notes(section)
    assert options(section, "long-tail-groups") == ["trained head", "class means"]
    drawn = figures(section)["long-tail-groups-0"]
    assert trace(drawn, "nonl")["x"] == pytest.approx([65.0, 30.0])
    assert trace(drawn, "nonl")["error_x"]["array"] == pytest.approx([0.0, 14.142], abs=1e-3)


def _corruptions(method: str, errors: dict[tuple[str, int], float], **fields: Any) -> RunData:
    rows = [
        {"corruption": name, "severity": severity, "error": error, "class_means_error": error / 2}
        for (name, severity), error in errors.items()
    ]
    return create_run(method, {"corruptions": rows}, **fields)


def test_errors_of_corruptions_leave_out_the_extra_ones() -> None:
    first = {("clean", 0): 0.1, ("fog", 1): 0.2, ("fog", 2): 0.4, ("snow", 1): 0.3,
             ("snow", 2): 0.5, ("spatter", 1): 0.9, ("spatter", 2): 0.9}  # fmt: skip
    second = {key: error + 0.01 for key, error in first.items()} | {("clean", 0): 0.05}
    section = corruptions.create_section(
        report_of(_corruptions("ce", first), _corruptions("nonl", second))
    )
    content = table(section, "Error on clean and corrupted images")
    assert column(content, "Clean") == ["10.0", "5.0"]
    assert column(content, "Corrupted") == ["35.0", "36.0"]
    assert column(content, "Corrupted, by class means") == ["17.5", "18.0"]
    assert column(content, "Severity 1") == ["25.0", "26.0"]
    assert "Severity 3" not in content.columns
    assert bold(content) == ["35.0", "25.0", "45.0", "17.5", "5.0"]
    by_name = trace(figures(section)["corruptions-by-name"], "ce")
    labels = figures(section)["corruptions-by-name"].layout["yaxis"]["ticktext"]
    assert labels == ["clean", "snow", "fog", "spatter"]
    assert by_name["x"] == pytest.approx([10.0, 40.0, 30.0, 90.0])
    by_severity = trace(figures(section)["corruptions-by-severity"], "ce")
    assert by_severity["x"] == [0, 1, 2]
    assert by_severity["y"] == pytest.approx([10.0, 25.0, 45.0])


def test_an_interrupted_benchmark_has_no_mean_and_a_note() -> None:
    complete = {("clean", 0): 0.1, ("fog", 1): 0.2, ("fog", 2): 0.4, ("snow", 1): 0.3,
                ("snow", 2): 0.5}  # fmt: skip
    partial = {("clean", 0): 0.1, ("fog", 1): 0.2, ("fog", 2): 0.4, ("snow", 1): 0.3}
    section = corruptions.create_section(
        report_of(_corruptions("ce", complete), _corruptions("nonl", partial))
    )
    content = table(section, "Error on clean and corrupted images")
    assert column(content, "Corrupted") == ["35.0", "–"]
    assert len(missing(section)) == 1
    assert missing(section)[0].startswith("nonl, seed 0: 1 of 5 errors of corruptions.json are not")


def test_the_mean_corruption_error_of_alexnet_is_100() -> None:
    assert dict(ALEXNET.errors) == ALEXNET_ERRORS
    assert tuple(ALEXNET_ERRORS) == CORRUPTIONS
    errors = {
        (name, level): error for name, error in ALEXNET_ERRORS.items() for level in range(1, 6)
    }
    names = tuple(f"n{index:08d}" for index in range(1000))
    recipe = {"loss": {"name": "nonl"}}
    section = corruptions.create_section(
        report_of(_corruptions("alexnet", errors, class_names=names, recipe=recipe))
    )
    content = table(section, "Error on clean and corrupted images")
    assert column(content, "mCE (AlexNet = 100)") == ["100.0"]
    assert column(content, "Paper, mCE") == ["77.8"]


def test_transfer_is_compared_per_data_set_and_training_data() -> None:
    def run(method: str, source: str, value: float, seed: int = 0) -> RunData:
        rows = {
            f"transfer-{target}": [
                {"target": target, "classifier": "logistic", "metric": "top1", "value": value},
                {"target": target, "classifier": "knn", "metric": "top1", "value": value / 2},
            ]
            for target in ("flowers102", "pets")
        }
        rows["few-shot-pets"] = [
            {"target": "pets", "classifier": "class_means", "value": value / shots, "shots": shots,
             "std": 0.02}
            for shots in (5, 1)
        ]  # fmt: skip
        return create_run(method, rows, seed=seed, recipe={"data": {"source": source}})

    section = transfer.create_section(
        report_of(run("a", "cifar10", 0.8), run("b", "cifar10", 0.7), run("c", "cifar100", 0.1))
    )
    content = table(section, "Accuracy on other data")
    assert column(content, "Method") == ["a", "b", "a", "b", "c", "c"]
    assert column(content, "Trained on") == ["cifar10"] * 4 + ["cifar100"] * 2
    assert column(content, "Logistic regression") == ["80.0", "70.0"] * 2 + ["10.0"] * 2
    # c is alone with its data.
    assert bold(content) == ["80.0", "40.0", "80.0", "40.0"]
    assert options(section, "few-shot-targets") == ["cifar10 → pets", "cifar100 → pets"]
    line = trace(figures(section)["few-shot-0"], "a, class means")
    assert line["x"] == [1, 5]
    assert line["y"] == pytest.approx([80.0, 16.0])
    assert line["error_y"]["array"] == pytest.approx([2.0, 2.0])  # Over draws, of one run.
    several = report_of(run("a", "cifar10", 0.8), run("a", "cifar10", 0.6, seed=1))
    (line,) = figures(transfer.create_section(several))["few-shot-0"].data
    # Over the runs: |0.8 - 0.6| / sqrt(2), and a fifth of it.
    assert line["error_y"]["array"] == pytest.approx([14.142, 2.828], abs=1e-3)


def test_the_paper_transfers_from_imagenet() -> None:
    rows = [{"target": "pets", "classifier": "logistic", "metric": "mean_per_class", "value": 0.5}]
    recipe = {"name": "imagenet1k-nonl", "loss": {"name": "nonl"}}
    run = create_run("imagenet1k-nonl", {"transfer-pets": rows}, recipe=recipe)
    content = table(transfer.create_section(report_of(run)), "Accuracy on other data")
    assert column(content, "Paper") == ["72.9"]
    assert column(content, "Data set") == ["pets (mean per class)"]


def test_calibration_before_and_after_and_bins_over_seeds() -> None:
    def run(seed: int, before: float, after: float, counts: tuple[int, int]) -> RunData:
        calibration = [
            {"classifier": "head", "state": state, "ece": ece, "nll": 1.0, "temperature": t}
            for state, ece, t in (("before", before, 1.0), ("after", after, 1.5))
        ]
        reliability = [
            {"classifier": "head", "state": "after", "lower": 0.5, "upper": 1.0,
             "num_samples": counts[seed], "confidence": 0.9, "accuracy": 0.6 + 0.3 * seed},
            {"classifier": "head", "state": "after", "lower": 0.2, "upper": 0.5, "num_samples": 1,
             "confidence": 0.3, "accuracy": 1.0},
            {"classifier": "head", "state": "after", "lower": 0.0, "upper": 0.5, "num_samples": 0,
             "confidence": None, "accuracy": None},
        ]  # fmt: skip
        results = {"calibration": calibration, "reliability": reliability}
        return create_run("ce", results, seed=seed)

    section = uncertainty.create_section(
        report_of(run(0, 0.10, 0.02, (3000, 1000)), run(1, 0.12, 0.04, (3000, 1000)))
    )
    content = table(section, "Calibration")
    assert column(content, "ECE before (%)") == ["11.0 ± 1.4"]
    assert column(content, "ECE after (%)") == ["3.0 ± 1.4"]
    assert column(content, "Fitted temperature") == ["1.50 ± 0.00"]
    assert not content.best
    drawn = trace(figures(section)["reliability-0"], "after scaling")
    # 3000 images with accuracy 0.6 and 1000 with 0.9; the bins with 0 and 2 images are left out.
    assert drawn["y"] == pytest.approx([100 * (30 * 0.6 + 10 * 0.9) / 40])
    assert drawn["x"] == pytest.approx([90.0])
    assert drawn["text"][0].endswith("100.0% of the images")
    assert drawn["marker"]["size"] == pytest.approx([5 + 15 * (4000 / 4002) ** 0.5], abs=1e-9)


def test_detection_says_why_a_score_is_absent_and_which_classes_are_shared() -> None:
    def row(score: str, auroc: float | None, **fields: Any) -> dict[str, Any]:
        return {"against": "svhn", "score": score, "auroc": auroc, "fpr95": auroc} | fields

    first = [row("cosine", 0.9, shared_classes=3), row("mahalanobis", 0.6)]
    second = [row("cosine", 0.8), row("mahalanobis", None, absent="too few images")]
    section = uncertainty.create_section(
        report_of(create_run("ce", {"ood": first}), create_run("nonl", {"ood": second}))
    )
    auroc = table(section, "Out-of-distribution detection: AUROC")
    assert column(auroc, "Cosine") == ["90.0", "80.0"]
    assert column(auroc, "Mahalanobis") == ["60.0", "–"]
    assert bold(auroc) == ["90.0"]
    assert bold(table(section, "Out-of-distribution detection: FPR95")) == ["80.0"]
    assert missing(section) == ["nonl: no AUROC of mahalanobis against svhn: too few images."]
    assert "digits and svhn have 3 class names in common" in notes(section)
    # Images of another run's own data are not the same images.
    others = [create_run(name, {"ood": first}, settings={"known": name}) for name in ("ce", "nonl")]
    apart = table(uncertainty.create_section(report_of(*others)), auroc.title)
    assert column(apart, "Own data") == ["digits", "digits (2)"]
    assert not apart.best


def test_different_images_of_one_name_are_numbered() -> None:
    def row(images: str, auroc: float) -> dict[str, Any]:
        return {"against": "set", "fingerprint": images, "score": "cosine", "auroc": auroc,
                "fpr95": auroc}  # fmt: skip

    first = create_run("ce", {"ood": [row("x", 0.9), row("y", 0.6)]})
    second = create_run("nonl", {"ood": [row("y", 0.7)]})
    section = uncertainty.create_section(report_of(first, second))
    auroc = table(section, "Out-of-distribution detection: AUROC")
    assert column(auroc, "Other data") == ["set", "set (2)", "set (2)"]
    assert column(auroc, "Cosine") == ["90.0", "60.0", "70.0"]
    assert bold(auroc) == ["70.0"]

    def transferred(method: str, images: str, value: float) -> RunData:
        result = {"target": "set", "classifier": "knn", "value": value}
        results = {"transfer-set": [result], "few-shot-set": [{**result, "shots": 5}]}
        return create_run(method, results, settings={"train": "t", "test": images})

    runs = transferred("ce", "x", 0.9), transferred("nonl", "y", 0.1), transferred("scl", "x", 0.8)
    section = transfer.create_section(report_of(*runs))
    content = table(section, "Accuracy on other data")
    assert column(content, "Data set") == ["set", "set", "set (2)"]
    assert column(content, "Method") == ["ce", "scl", "nonl"]
    assert options(section, "few-shot-targets") == ["set", "set (2)"]


def test_runs_that_were_measured_with_other_options_are_named() -> None:
    def run(seed: int, **options: Any) -> RunData:
        row = {"against": "svhn", "score": "knn", "auroc": 0.9, "fpr95": 0.1}
        return create_run("ce", {"ood": [row]}, seed=seed, settings=options)

    section = uncertainty.create_section(
        report_of(run(0, num_neighbors=5), run(1, num_neighbors=9))
    )
    (note,) = missing(section)
    assert note == (
        "ce: runs of ood were measured with different values of num_neighbors, 5 and 9; means and "
        "deviations are over all of them."
    )
    same = uncertainty.create_section(report_of(run(0, num_neighbors=5), run(1, num_neighbors=5)))
    assert not missing(same)


def _noisy(method: str, fraction: float | None, accuracy: float, **recipe: Any) -> RunData:
    noise = None if fraction is None else {"name": "symmetric", "fraction": fraction}
    row = {"classifier": "head", "noise": "symmetric", "fraction": fraction, "accuracy": accuracy,
           "true_accuracy": 0.9, "memorized": 0.2, "corrected": 0.7}  # fmt: skip
    record = {"kind": "evaluation", "epoch": 2, "accuracy": accuracy}
    return create_run(
        f"{method} {fraction}",
        {} if fraction is None else {"label_noise": [row]},
        recipe={"name": method, "data": {"source": "digits", "label_noise": noise}, **recipe},
        records=(record,),
    )


def test_a_curve_over_noise_starts_at_the_same_recipe_without_noise() -> None:
    section = label_noise.create_section(
        report_of(
            _noisy("ce", 0.4, 0.5),
            _noisy("ce", 0.2, 0.7),
            _noisy("ce", None, 0.9),
            _noisy("nonl", 0.2, 0.8, loss={"name": "nonl"}),
            # Another number of epochs is another recipe.
            _noisy("nonl", None, 0.95, loss={"name": "nonl"}, schedule={"epochs": 9}),
        )
    )
    content = table(section, "Accuracy with wrong training labels")
    assert column(content, "Method") == ["ce", "nonl", "ce"]
    assert column(content, "Wrong labels") == ["20% symmetric", "20% symmetric", "40% symmetric"]
    assert column(content, "Test accuracy, trained head") == ["70.0", "80.0", "50.0"]
    drawn = figures(section)["label-noise-accuracy-0"]
    assert trace(drawn, "ce")["x"] == pytest.approx([0.0, 20.0, 40.0])
    assert trace(drawn, "ce")["y"] == pytest.approx([90.0, 70.0, 50.0])
    assert trace(drawn, "nonl")["x"] == pytest.approx([20.0])
    assert "without noise" in drawn.meaning


def test_the_better_method_is_bold_in_every_column() -> None:
    def run(method: str, loss: float) -> RunData:
        """A run that is worse in everything if its loss is higher."""
        good = 1 - loss
        calibration = [
            {"classifier": "head", "state": state, "accuracy": good, "ece": loss, "nll": loss}
            for state in ("before", "after")
        ]
        noise = {
            "classifier": "head",
            "noise": "symmetric",
            "fraction": 0.2,
            "accuracy": good,
            "true_accuracy": good,
            "memorized": loss,
            "corrected": good,
        }
        times = {"metric": "weights_effective_rank", "percent_to_collapse": 100 * loss}
        tail = [
            {"classifier": "head", "group": group, "accuracy": good - 0.1 * (group == "balanced")}
            for group in ("all", "many", "medium", "few", "balanced")
        ]
        results: dict[str, list[dict[str, Any]]] = {
            "calibration": calibration,
            "label_noise": [noise],
            "convergence": [times],
            "long_tail": tail,
        }
        return create_run(method, results)

    report = report_of(run("ce", 0.4), run("nonl", 0.2))
    sections = [
        (uncertainty, "Calibration", 5), (label_noise, "Accuracy with wrong training labels", 4),
        (convergence, "Time to 95% of neural collapse", 1),
        (long_tail, "Accuracy by number of training images", 5),
    ]  # fmt: skip
    for module, title, num_columns in sections:
        content = table(module.create_section(report), title)
        assert {row for row, _ in content.best} == {1}, title
        assert len(content.best) == num_columns
    lines = figures(long_tail.create_section(report))["long-tail-groups-0"].data
    assert [line["marker"]["color"] for line in lines] == list(PALETTE[:2])


def test_noisy_runs_compete_on_the_same_data_and_not_with_unfinished_ones() -> None:
    other = {"source": "cifar10", "label_noise": {"name": "symmetric", "fraction": 0.2}}
    unfinished = replace(_noisy("ce", None, 0.9), state="incomplete")
    section = label_noise.create_section(
        report_of(
            _noisy("ce", 0.2, 0.7), unfinished, _noisy("ce-cifar", 0.2, 0.8, data=other),
            _noisy("nonl", 0.2, 0.6, loss={"name": "nonl"}),
        )
    )  # fmt: skip
    content = table(section, "Accuracy with wrong training labels")
    assert column(content, "Data") == ["digits", "digits", "cifar10"]
    assert "70.0" in bold(content)
    assert "80.0" not in bold(content)
    drawn = figures(section)["label-noise-accuracy-0"]
    assert trace(drawn, "ce")["x"] == pytest.approx([20.0])
    assert "without noise" not in drawn.meaning


def _convergence(method: str, log: str, percent: Any, paper: float | None = None) -> RunData:
    row = {"metric": "weights_effective_rank", "percent_to_collapse": percent,
           "percent_of_baseline": percent, "paper_percent_to_collapse": paper,
           "missing": "nothing was logged" if percent is None else None}  # fmt: skip
    settings = {"log": log, "baseline": "digest of ce"}
    return create_run(method, {"convergence": [row]}, settings=settings)


def test_times_to_collapse_stand_beside_the_paper() -> None:
    section = convergence.create_section(
        report_of(
            _convergence("ce", "digest of ce", "never"),
            _convergence("nonl", "b", 40.0, paper=34.6),
            _convergence("ntce", "c", None),
        )
    )
    content = table(section, "Time to 95% of neural collapse")
    assert column(content, "Method") == ["ce", "nonl", "nonl: paper"]
    assert column(content, "Effective rank of prototypes") == ["never", "40.0", "34.6"]
    assert bold(content) == ["40.0"]
    # The baseline is not compared with itself.
    assert column(table(section, "Time to the final value of the baseline"), "Method") == ["nonl"]
    assert "Baseline of this table: ce, seed 0." in notes(section)
    assert missing(section) == ["ntce, seed 0: nothing was logged."]
    drawn = figures(section)["convergence-times"]
    assert [one["name"] for one in drawn.data] == ["nonl", "nonl: paper"]


def test_a_metric_that_converges_with_some_seeds_only_says_so() -> None:
    runs = [_convergence("nonl", "b", 40.0), _convergence("nonl", "c", "never")]
    content = table(convergence.create_section(report_of(*runs)), "Time to 95% of neural collapse")
    assert column(content, "Effective rank of prototypes") == ["40.0, never in 1 of 2"]


_SECTIONS: list[tuple[Callable[[ReportData], Section | None], str, dict[str, Any]]] = [
    (long_tail.create_section, "long_tail", {"classifier": HOSTILE, "group": "all", "accuracy": 1}),
    (corruptions.create_section, "corruptions", {"corruption": HOSTILE, "severity": 1, "error": 1}),
    (transfer.create_section, "transfer-x", {"target": HOSTILE, "classifier": HOSTILE, "value": 1}),
    (uncertainty.create_section, "calibration",
     {"classifier": HOSTILE, "state": "after", "ece": 1}),
    (uncertainty.create_section, "ood", {"against": HOSTILE, "score": HOSTILE, "auroc": 0.5}),
    (label_noise.create_section, "label_noise",
     {"classifier": HOSTILE, "noise": HOSTILE, "fraction": 0.1, "accuracy": 1}),
    (convergence.create_section, "convergence", {"metric": HOSTILE, "percent_to_collapse": 5}),
]  # fmt: skip


@pytest.mark.bad_input
@pytest.mark.parametrize(("create", "name", "row"), _SECTIONS, ids=[row[1] for row in _SECTIONS])
def test_every_section_survives_hostile_names_and_damaged_rows(
    create: Callable[[ReportData], Section | None], name: str, row: dict[str, Any]
) -> None:
    assert create(report_of(create_run("ce", {}))) is None
    damaged = [{key: value for key, value in row.items() if key != left_out} for left_out in row]
    rows: list[Any] = [row, *damaged, 5]
    section = create(report_of(create_run(HOSTILE, {name: rows})))
    assert section is not None
    assert any(f"rows of {name}.json are left out" in text for text in missing(section))
    page = create_page("t", "s", [section])
    assert "<b>%{x}</b>" not in page
    assert not [text for text in drawn_texts(section) if "<b>" in text]
    # Only damaged rows: nothing to show.
    assert create(report_of(create_run("ce", {name: [{}]}))) is None


def test_many_methods_are_a_heat_map_of_differences_to_their_mean() -> None:
    errors = {("clean", 0): 0.1, ("fog", 1): 0.2}
    runs = [
        _corruptions(
            f"<b>method {index}", {key: error + 0.01 * index for key, error in errors.items()}
        )
        for index in range(11)
    ]
    section = corruptions.create_section(report_of(*runs))
    (drawn,) = figures(section)["corruptions-by-name"].data
    assert drawn["type"] == "heatmap"
    # The mean is that of the sixth method.
    assert [row[0] for row in drawn["z"]] == pytest.approx([index - 5 for index in range(11)])
    assert drawn["text"][0][1] == "&lt;b&gt;method 0<br>fog: 20.0"
    assert not [text for text in drawn_texts(section) if "<b>" in text]
    assert "farther left" not in figures(section)["corruptions-by-name"].meaning
