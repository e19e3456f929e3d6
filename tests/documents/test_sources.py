"""Every source file says its purpose and stays short enough to read."""

import ast
from pathlib import Path

import pytest

from support.documents import ROOT

FILES = [
    path
    for folder in ("src", "tests", "examples", "benchmarks")
    for path in sorted((ROOT / folder).rglob("*.py"))
]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_source_file_has_a_docstring_and_a_readable_length(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    assert not source.strip() or ast.get_docstring(ast.parse(source))
    if not path.is_relative_to(ROOT / "tests"):
        assert len(source.splitlines()) <= 400
