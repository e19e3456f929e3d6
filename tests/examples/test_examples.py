"""The examples run, and their output shows what their documentation says."""

import importlib.util
import re
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest
import torch

from protosphere.data import read_features
from protosphere.metrics import measure

EXAMPLES = Path(__file__).parents[2] / "examples"


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _numbers(output: str, start: str) -> list[float]:
    """Return the numbers in the line of the output that starts with a text."""
    line = next(line for line in output.splitlines() if line.startswith(start))
    return [float(number) for number in re.findall(r"[+-]?\d+(?:\.\d+)?(?:e[+-]\d+)?", line)]


def test_one_line_shows_equal_cosines_under_nonl_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    example = _load("one_line")
    monkeypatch.setattr(example, "SEEDS", 2)
    example.main()
    output = capsys.readouterr().out
    deviations = {}
    for loss in example.LOSSES:
        accuracy, _, mean, deviations[loss], *_ = _numbers(output, loss)
        assert accuracy > 95
        assert -0.2 < mean < 0
    assert deviations["NONL"] < 0.01
    assert deviations["cross-entropy"] > 0.1


def test_free_features_reach_the_simplex_and_with_relu_an_orthogonal_frame(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    example = _load("free_features")
    monkeypatch.setattr(example, "LOSSES", {name: example.LOSSES[name] for name in ("NONL", "SCL")})
    monkeypatch.setattr(example, "descend", partial(example.descend, steps=1000))
    example.main()
    free, relu = capsys.readouterr().out.split("with ReLU")
    for output in (free, relu):
        for loss in ("NONL", "SCL"):
            assert max(_numbers(output, loss)[:2]) < 1e-6
    assert "smallest distance to orthogonal means is 0.42." in relu
    assert _numbers(relu, "NONL")[2] == pytest.approx(0.42, abs=0.05)


def test_prototypes_under_relu_have_the_distance_that_theory_predicts() -> None:
    """Orthonormal means and prototypes at the simplex: ‖w − μ‖² = 2 − 2√(1 − 1/K)."""
    example = _load("free_features")
    features, prototypes = example.descend("NONL", non_negative=True, steps=600)
    _, _, distance = example.distances(features, prototypes, 0.0)
    assert distance**2 == pytest.approx(2 - 2 * (1 - 1 / example.CLASSES) ** 0.5, rel=1e-3)
    assert torch.all(features >= 0)


def test_measure_collapse_finds_collapse_under_nonl_and_writes_its_features(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    _load("measure_collapse").main(tmp_path)
    output = capsys.readouterr().out
    row = next(line for line in output.splitlines() if line.startswith("nc1_ratio"))
    cross_entropy, nonl = (float(number) for number in row.split()[1:])
    assert nonl < 0.05 < cross_entropy
    answers = [line.split("NONL:")[1].split()[0] for line in output.splitlines() if "NONL:" in line]
    assert len(answers) == 4
    assert "no" not in answers
    written = read_features(tmp_path / "NONL.npz")
    values = measure(written.features, written.labels, written.prototypes)
    assert values["nc1_ratio"] == pytest.approx(nonl, abs=1e-4)


def test_embeddings_classify_digits_and_gain_a_class(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["embeddings.py"])
    _load("embeddings").main()
    output = capsys.readouterr().out
    means, whitened, logistic, before, after = (
        float(number) for number in re.findall(r"(\d+\.\d)%", output)
    )
    assert means > 75
    assert logistic > 75
    assert whitened > logistic - 2, "whitening comes close to logistic regression"
    assert after == whitened, "a class that is added later counts like any other"
    assert before < after
