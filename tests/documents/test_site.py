"""The website: links that leave docs/ lead to pages and files of the site, names are not lost."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
from mkdocs.config import load_config
from mkdocs.structure.files import Files, get_files
from mkdocs.structure.pages import Page

from protosphere import losses
from support.documents import ROOT, read


@pytest.fixture(scope="module")
def hooks() -> Any:
    """The hooks of mkdocs."""
    specification = spec_from_file_location("docs_hooks", ROOT / ".ci/docs_hooks.py")
    assert specification is not None
    assert specification.loader is not None
    module = module_from_spec(specification)
    specification.loader.exec_module(module)
    yield module
    sys.modules.pop("docs_hooks", None)


@pytest.fixture
def files(hooks: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Files:
    """The files of the site, without its report."""
    config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(tmp_path), hooks=[], plugins=[])
    # mkdocs sets it while it runs a hook.
    monkeypatch.setattr(config.plugins, "_current_plugin", "hook", raising=False)
    monkeypatch.setattr(hooks, "_create_report", lambda: "<html>")
    found = hooks.on_files(get_files(config), config)
    assert isinstance(found, Files)
    return found


def _rewrite(hooks: Any, files: Files, uri: str, text: str) -> str:
    file = files.get_file_from_path(uri)
    assert file is not None
    page = Page(None, file, load_config(str(ROOT / "mkdocs.yml"), hooks=[], plugins=[]))
    return str(hooks.on_page_markdown(text, page=page, config=None, files=files))


@pytest.mark.parametrize(
    ("page", "link", "expected"),
    [
        ("benchmarks.md", "../benchmarks/runs.py", "repository/benchmarks/runs.py.md"),
        ("benchmarks.md", "../benchmarks/results", "repository/benchmarks/results/index.md"),
        ("index.md", "../ARCHITECTURE.md", "project/architecture.md"),
        ("api/losses.md", "../losses.md", "../losses.md"),
        ("project/architecture.md", "src/protosphere/losses/softmax.py", None),
        ("project/contributing.md", "docs/losses.md#options", "../losses.md#options"),
        ("index.md", "https://arxiv.org/abs/2007.07314", "https://arxiv.org/abs/2007.07314"),
        ("index.md", "missing.md", "missing.md"),
    ],
)
def test_a_link_of_the_repository_leads_to_a_file_of_the_site(
    page: str, link: str, expected: str | None, hooks: Any, files: Files
) -> None:
    expected = expected or f"../repository/{link}.md"
    assert _rewrite(hooks, files, page, f"[x]({link})") == f"[x]({expected})"
    if "repository/" in expected:
        assert expected.removeprefix("../") in files.src_uris


def test_the_report_is_linked_where_a_page_asks_for_it(hooks: Any, files: Files) -> None:
    text = _rewrite(hooks, files, "report.md", read("docs/report.md"))
    assert f"]({hooks.REPORT})" in text
    assert hooks.REPORT in files.src_uris


def test_public_names_are_read_without_importing_the_package(hooks: Any) -> None:
    names = hooks._exported_names(ROOT / "src/protosphere/losses/__init__.py")
    assert sorted(names) == sorted(losses.__all__)
