"""``protosphere benchmark corruptions``: tables, JSON, baselines and wrong input."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from protosphere.cli import benchmark_corruptions as command
from protosphere.data.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS
from protosphere.recipes.loading import Run, load_run
from protosphere.report.paper import paper_tables
from protosphere.studies.corruption_summary import reference_of, summarize_corruptions
from protosphere.studies.corruptions import CorruptionRow
from support.commands import refusal, run_command, usage_error
from support.corruption_runs import train_crops, write_crops
from support.figures import catch_figures, legend_texts

COMMAND = ("benchmark", "corruptions", "--device", "cpu")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two runs on the same photographs, and one on others."""
    root = tmp_path_factory.mktemp("corruptions")
    write_crops(root / "crops.npz")
    write_crops(root / "others.npz", seed=1)
    return {
        "ce": train_crops(root / "ce", root / "crops.npz", loss="ce"),
        "nonl": train_crops(root / "nonl", root / "crops.npz"),
        "others": train_crops(root / "others", root / "others.npz"),
    }


@pytest.mark.long
def test_all_corruptions_relative_to_a_baseline(runs: dict[str, Path]) -> None:
    arguments = (*COMMAND, runs["nonl"], "--baseline", runs["ce"], "--extra")
    records = json.loads(run_command(*arguments, "--json"))["runs"]
    assert [Path(record["run"]).name for record in records] == ["ce", "nonl"]
    assert [record["method"] for record in records] == ["ce", "nonl"]
    base, nonl = ([CorruptionRow(**row) for row in record["rows"]] for record in records)
    assert len(nonl) == 1 + 19 * 5
    table = {(row.corruption, row.severity): row.error for row in nonl}
    reference = {(row.corruption, row.severity): row.error for row in base}
    ratios = [
        sum(table[name, s] for s in range(1, 6)) / sum(reference[name, s] for s in range(1, 6))
        for name in CORRUPTIONS
    ]
    summary = records[1]["summary"]
    assert summary["mce"] == pytest.approx(sum(ratios) / 15)
    assert records[0]["summary"]["mce"] == pytest.approx(1)
    assert records[1]["reference"] == "ce"
    assert records[1]["paper"] == {}
    expected = summarize_corruptions(nonl, reference_of("ce", base))
    assert summary["relative_mce"] == expected.relative_mce

    text = run_command(*arguments)
    lines = [line.split() for line in text.splitlines()]
    mce = f"{100 * summary['mce']:.1f}"
    names = ["run", "method", "classifier", "clean", "corrupted", "mCE", "relative", "mCE"]
    assert names in lines
    assert any(line[:3] == ["nonl", "nonl", "head"] and line[5] == mce for line in lines)
    for name in CORRUPTIONS:
        assert any(line[:1] == [name] and len(line) == 5 for line in lines), name
    for name in EXTRA_CORRUPTIONS:
        assert re.search(rf"^{name} \(extra\) ", text, re.MULTILINE), name
    assert "mCE and CE (corruption error): errors in percent of those of ce" in text
    assert "nonl: error at severities 1, 2, 3, 4, 5: " in text
    assert max(map(len, text.splitlines()[:22])) <= 80
    for name, pairs in expected.unordered.items():
        low, high = pairs[0]
        assert f"{name} ({low} to {high}" in text


def test_chosen_corruptions_without_a_baseline(runs: dict[str, Path]) -> None:
    text = run_command(
        *(*COMMAND, runs["nonl"], runs["ce"], "--corruption", "fog", "--corruption", "contrast"),
        *("--severity", 3, "--class-means", "--seed", 4),
    )
    assert "No mCE: --baseline names the run whose errors others are divided by" in text
    errors = [line.split()[-2:] for line in text.splitlines() if "class means" in line]
    assert len(errors) == 2
    assert "snow" not in text
    assert "error at severities" not in text


def test_errors_are_drawn(runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    figures = catch_figures(monkeypatch)
    path = runs["nonl"].parent / "errors.svg"
    options = ("--corruption", "fog", "--severity", 3, "--seed", 4, "--plot", path)
    run_command(*COMMAND, runs["nonl"], runs["ce"], *options)
    by_name, by_severity = figures[path].axes
    assert [text.get_text() for text in by_name.get_xticklabels()] == ["fog"]
    assert list(by_severity.lines[0].get_xdata()) == [0, 3]
    assert legend_texts(figures[path]) == ["nonl", "ce"]


def test_images_from_disk(runs: dict[str, Path], tmp_path: Path) -> None:
    test = load_run(runs["nonl"]).dataset("test").test
    clean = test.images.permute(0, 2, 3, 1).numpy()
    np.save(tmp_path / "fog.npy", np.tile(clean, (5, 1, 1, 1)))
    np.save(tmp_path / "labels.npy", np.tile(test.labels.numpy(), 5))
    arguments = (*COMMAND, runs["nonl"], "--folder", tmp_path, "--corruption", "fog")
    (record,) = json.loads(run_command(*arguments, "--json"))["runs"]
    # What is stored as fog are the clean images.
    assert {row["error"] for row in record["rows"]} == {record["summary"]["clean_error"]}
    assert "Corruptions are computed" not in run_command(*arguments)
    assert "--frost must be given without --folder" in refusal(*arguments, "--frost", tmp_path)


@pytest.mark.bad_input
def test_wrong_input(runs: dict[str, Path], tmp_path: Path) -> None:
    nonl = runs["nonl"]
    assert refusal(*COMMAND, nonl, "--corruption", "rain").startswith(
        "a corruption must be one of gaussian_noise, "
    )
    assert refusal(*COMMAND, nonl, "--severity", 0) == (
        "a severity must be a whole number from 1 to 5, got 0"
    )
    assert refusal(*COMMAND, nonl, "--baseline", runs["others"]) == (
        f"the baseline must have the test images of {nonl}; {runs['others']} has others"
    )
    assert "it does not exist" in refusal(*COMMAND, nonl, "--folder", tmp_path / "none")
    assert "nor labels.npy" in refusal(*COMMAND, nonl, "--folder", tmp_path)
    assert refusal(*COMMAND, nonl, "--frost", tmp_path / "none").startswith(
        "the folder of frost textures must exist"
    )
    assert "RUN|RECIPE" in usage_error(*COMMAND)


def test_imagenet_runs_are_shown_beside_the_paper(
    runs: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    run = load_run(runs["nonl"])
    names = tuple(f"n{index:08}" for index in range(1000))
    imagenet = Run(**(run.__dict__ | {"class_names": names}))
    rows = [CorruptionRow("clean", 0, 0.25, None, 9)]
    rows += [CorruptionRow(name, s, 0.1 * s, None, 9) for name in CORRUPTIONS for s in range(1, 6)]
    result = command._describe(imagenet, tuple(rows), None)
    assert result.reference == "AlexNet"
    command._print([result], from_disk=True, has_frost=False)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    paper = paper_tables()["table5_imagenet_c"]["nonl"]
    clean, mce = (f"{paper[key]:.1f}" for key in ("clean_error", "mce"))
    assert ["paper", "nonl", "head", clean, mce] in lines
    fog = 100 * 0.3 / 0.819324
    assert ["fog", "30.0", f"{fog:.1f}", f"{paper['fog']:.0f}"] in lines
