"""Benchmarks as modules, for tests of what they compute."""

import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from types import ModuleType

import pytest

from support.documents import ROOT


@pytest.fixture
def import_benchmark(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """Import modules of ``benchmarks``; folders of tests go by the same names."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    names = [path.stem for path in (ROOT / "benchmarks").glob("*.py")]
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield import_module
    for name in names:
        sys.modules.pop(name, None)
