"""``--plot FILE`` of every command: what is refused before any work is done."""

import sys
from pathlib import Path

import pytest

from support.commands import refusal

# Their arguments name nothing that exists: only the file of the figure is looked at.
COMMANDS = {
    "measure": ["measure", "nowhere.npz"],
    "evaluate": ["evaluate", "nowhere"],
    "compare": ["compare", "nowhere"],
    "sweep": ["sweep", "nowhere", "--out", "out", "optimizer.lr=0.1,0.2"],
    "reproduce": ["reproduce", "table1", "--out", "out"],
    "calibration": ["benchmark", "calibration", "nowhere"],
    "convergence": ["benchmark", "convergence", "nowhere"],
    "corruptions": ["benchmark", "corruptions", "nowhere"],
    "label-noise": ["benchmark", "label-noise", "nowhere"],
    "long-tail": ["benchmark", "long-tail", "nowhere"],
    "ood": ["benchmark", "ood", "nowhere", "--against", "nothing"],
    "transfer": ["benchmark", "transfer", "nowhere", "--to", "nothing"],
}


@pytest.mark.bad_input
@pytest.mark.parametrize("name", COMMANDS)
def test_the_file_is_checked_before_any_work(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("there.svg").write_text("a figure")
    command = COMMANDS[name]
    assert refusal(*command, "--plot", "figure.jpg") == (
        "--plot must be a file that ends in .png or .svg or .pdf, got figure.jpg"
    )
    assert refusal(*command, "--plot", "there.svg") == (
        "--plot must be a new file, or --overwrite be given, got there.svg"
    )
    assert refusal(*command, "--plot", "no/figure.svg") == (
        "--plot must be in a folder that exists, got no/figure.svg"
    )
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert refusal(*command, "--plot", "there.svg", "--overwrite") == (
        'plots need matplotlib: pip install "protosphere[plot]"'
    )
    assert [path.name for path in tmp_path.iterdir()] == ["there.svg"]
    assert Path("there.svg").read_text() == "a figure"
