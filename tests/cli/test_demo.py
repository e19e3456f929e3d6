"""``protosphere demo``: six losses, one table, the probe that was saved, and what to try next."""

from pathlib import Path

from typer.testing import CliRunner

from protosphere.cli.app import app
from protosphere.cli.demo import _best
from protosphere.recipes.runner import latest

runner = CliRunner()


def test_one_table_of_six_losses(tmp_path: Path) -> None:
    result = runner.invoke(app, ["demo", "--epochs", "2", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert max(map(len, lines[:15])) <= 80
    for loss, title in (
        ("ce", "cross-entropy"),
        ("nonl", "NONL"),
        ("etf-dr", "ETF + DR"),
        ("scl", "SCL + means"),
    ):
        (row,) = [line for line in lines if line.strip().startswith(f"{title} ")]
        numbers = latest(tmp_path / loss)
        assert f"{100 * numbers['test_accuracy']:.1f} %" in row
        assert f"{numbers['nc1_ratio']:.3g}" in row
    assert "Closest to neural collapse: " in result.stdout
    assert "protosphere train cifar100-nonl --download" in result.stdout
    again = runner.invoke(app, ["demo", "--epochs", "2", "--out", str(tmp_path)])
    assert again.stdout.splitlines()[:14] == lines[:14], "runs that are there are not trained again"
    assert "SCL needs no trained classifier: class means took 1 pass" in " ".join(
        again.stdout.split()
    )
    other = runner.invoke(app, ["demo", "--epochs", "3", "--out", str(tmp_path)])
    assert other.exit_code == 1
    assert "optimization.epochs is 2 there and 3 here" in other.stderr


def test_what_looks_the_same_shares_the_first_place() -> None:
    assert _best({"a": "1", "b": "1", "c": "0.9"}, "more") == {"a", "b"}
    assert _best({"a": "0.1", "b": "1e-3"}, "less") == {"b"}
