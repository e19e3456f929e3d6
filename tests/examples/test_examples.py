"""The examples run, and show what they say they show."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
import torch

from protosphere.data import read_features
from protosphere.metrics import measure

EXAMPLES = Path(__file__).parents[2] / "examples"


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    example = _load("one_line")
    monkeypatch.setattr(example, "SEEDS", 2)
    example.main()
    printed = capsys.readouterr().out
    accuracy, spread = {}, {}
    for loss in example.LOSSES:
        line = next(line for line in printed.splitlines() if line.startswith(loss))
        numbers = [float(number) for number in re.findall(r"[+-]?\d+\.\d+", line)]
        accuracy[loss], spread[loss] = numbers[0], numbers[3]
    assert min(accuracy.values()) > 95
    assert spread["NONL"] < 0.01
    assert spread["cross-entropy"] > 0.1


def test_free_features(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    example = _load("free_features")
    monkeypatch.setattr(example, "LOSSES", {name: example.LOSSES[name] for name in ("NONL", "SCL")})
    example.main()
    printed = capsys.readouterr().out
    free, relu = printed.split("with ReLU")
    for part in (free, relu):
        for loss in ("NONL", "SCL"):
            line = next(line for line in part.splitlines() if line.startswith(loss))
            spread, angle = (float(number) for number in re.findall(r"\d+e[+-]\d+", line)[:2])
            assert max(spread, angle) < 1e-6


def test_the_gap_under_relu_is_the_one_of_theory() -> None:
    """Orthonormal means, prototypes at the simplex: ‖w − μ‖² = 2 − 2√(1 − 1/K)."""
    example = _load("free_features")
    features, prototypes = example.descend("NONL", non_negative=True, steps=600)
    _, _, duality = example.distances(features, prototypes, 0.0)
    assert duality**2 == pytest.approx(2 - 2 * (1 - 1 / example.CLASSES) ** 0.5, rel=1e-3)
    assert torch.all(features >= 0)


def test_measure_collapse(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    example = _load("measure_collapse")
    example.main(tmp_path)
    printed = capsys.readouterr().out
    row = next(line for line in printed.splitlines() if line.startswith("nc1_ratio"))
    cross_entropy, nonl = (float(number) for number in row.split()[1:])
    assert nonl < 0.05 < cross_entropy
    answers = [line for line in printed.splitlines() if "NONL:" in line]
    assert len(answers) == 4
    assert all("no " not in line.split(":")[1][:9] for line in answers)
    written = read_features(tmp_path / "NONL.npz")
    assert measure(written.features, written.labels, written.prototypes)[
        "nc1_ratio"
    ] == pytest.approx(nonl, abs=1e-4)


def test_embeddings(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["embeddings.py"])
    _load("embeddings").main()
    printed = capsys.readouterr().out
    own, logistic, before, after = (float(number) for number in re.findall(r"(\d+\.\d) %", printed))
    assert own > 75
    assert logistic > 75
    assert after == own, "a class that is added later counts like any other"
    assert before < after
