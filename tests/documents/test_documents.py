"""The documents say what is true: code that runs, tables from the committed results, links that lead somewhere."""

import ast
import re
import sys
from pathlib import Path
from typing import get_args

import pytest

import protosphere.losses
from protosphere.metrics import DEFINITIONS
from protosphere.recipes import catalog
from protosphere.recipes.schema import Data

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "docs/metrics.md",
    "docs/training.md",
]


def test_the_readme_runs_from_top_to_bottom() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    assert len(blocks) >= 4
    namespace: dict = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), namespace)
    assert namespace["loss"].requires_grad
    assert namespace["predictions"].shape == (128,)
    assert len(namespace["found"]) == 27
    assert float(namespace["values"]["cdnv"]) == pytest.approx(namespace["found"]["cdnv"], rel=1e-9)


def test_the_training_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs/training.md").read_text(), flags=re.DOTALL
    )
    exec(compile(block, "docs/training.md", "exec"), {})
    assert "epoch 2: loss" in capsys.readouterr().out


def test_the_documents_name_what_the_program_has() -> None:
    """Recipes in so many words, the families, the sources and the files of a run folder."""
    page = (ROOT / "docs/training.md").read_text()
    for family in catalog.FAMILIES:
        assert f"`{family}-*`" in page, family
    for source in get_args(Data.model_fields["source"].annotation):
        assert f"`{source}`" in page, source
    assert len(catalog.names()) == 65, "the README and the changelog say how many"
    assert "Sixty-five recipes" in (ROOT / "README.md").read_text()


def test_the_readme_has_the_tables_of_the_committed_results(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    for name in ("losses", "metrics", "prototypes", "harness"):
        sys.modules.pop(name, None)
    from readme import with_tables

    text = (ROOT / "README.md").read_text()
    assert with_tables(text) == text
    assert "times as fast" in text


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_to_files(document: str) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", (ROOT / document).read_text()):
        assert "://" in target or ((ROOT / document).parent / target).exists(), target


def test_the_architecture_leads_to_every_loss_and_every_room() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    for name in protosphere.losses.__all__:
        if name[0].islower():
            assert (
                sys.modules[getattr(protosphere.losses, name).__module__].__file__.split("src/")[1]
                in text
            ), name
    rooms = [
        path.name
        for path in (ROOT / "src/protosphere").iterdir()
        if (path / "__init__.py").exists()
    ]
    assert all(f"  {room}/" in text for room in rooms)
    assert len(text.splitlines()) <= 70, "one page"


def test_every_file_says_its_purpose_and_stays_readable() -> None:
    for folder in ("src", "tests", "examples", "benchmarks"):
        for path in (ROOT / folder).rglob("*.py"):
            source = path.read_text()
            assert not source or ast.get_docstring(ast.parse(source)), path
            assert len(source.splitlines()) <= 400 or folder == "tests", path


def test_every_public_loss_has_formula_arguments_and_doctest() -> None:
    for name in protosphere.losses.__all__:
        thing = getattr(protosphere.losses, name)
        if name[0].islower():
            for part in ("ℓ_i =", "Args:", "Returns:", "Raises:", ">>> "):
                assert part in thing.__doc__, (name, part)


def test_every_metric_is_defined_in_the_documents() -> None:
    lines = (ROOT / "docs/metrics.md").read_text().splitlines()
    for name, definition in DEFINITIONS.items():
        row = next((line for line in lines if line.startswith(f"| `{name}`")), None)
        assert row is not None, name
        cells = [
            cell.strip().replace("\\|", "|")
            for cell in row.strip("|").replace("\\|", "\0").split("|")
        ]
        assert cells[1].replace("\0", "|") == definition.formula, name
        assert cells[2] == definition.reading, name
