"""Shared fixtures, and the hook that checks annotated shapes if PROTOSPHERE_TYPED_CALLS is set."""

import os
from pathlib import Path

import pytest

if os.environ.get("PROTOSPHERE_TYPED_CALLS"):
    from jaxtyping import install_import_hook

    install_import_hook("protosphere", "beartype.beartype")

import hypothesis
import torch

_TESTS = Path(__file__).parent
# Where annotated shapes are: not the command line, documents and files on disk.
_TYPED = tuple(
    _TESTS / name
    for name in (
        "classifiers", "data", "encoders", "evaluation", "geometry", "kernels", "losses",
        "metrics", "recipes/test_loading.py", "training",
    )
)  # fmt: skip
# Tests that the hook would answer first, that it cannot trace, or that start processes.
_UNTYPED_MARKS = ("bad_input", "compiled", "whole_program", "long")

hypothesis.settings.register_profile("gate", deadline=None, derandomize=True, max_examples=40)
hypothesis.settings.load_profile("gate")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--typed",
        choices=["only", "without"],
        help="Run only the tests that check annotated shapes, or only the others; default: all.",
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    is_outside = collection_path.is_file() and not _is_in_typed_folder(collection_path)
    return True if config.getoption("--typed") == "only" and is_outside else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    part = config.getoption("--typed")
    if part is None:
        return
    chosen = {item for item in items if _is_typed(item) == (part == "only")}
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = [item for item in items if item in chosen]


def _is_in_typed_folder(path: Path) -> bool:
    return any(path.is_relative_to(folder) for folder in _TYPED)


def _is_typed(item: pytest.Item) -> bool:
    is_marked = any(item.get_closest_marker(mark) for mark in _UNTYPED_MARKS)
    return _is_in_typed_folder(item.path) and not is_marked


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(params=["eager", "chunked", "chunked, tiles computed again"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both forms of the primitive, the chunked one with tiles of three rows."""
    from protosphere.kernels import chunked

    monkeypatch.setattr(chunked, "_SIDE_ON_CPU", 3)
    if "again" in request.param:
        monkeypatch.setattr(chunked, "_KEPT", 0)
    return str(request.param).split(",")[0]
