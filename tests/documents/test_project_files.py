"""The files around the code agree with each other: version, citation, workflow and hooks."""

import re
from typing import Any

import pytest
import yaml

import protosphere
from support.documents import ROOT, read


def _yaml(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


def test_changelog_and_citation_have_the_version_of_the_package() -> None:
    versions = re.findall(r"^## \[(\S+)\] - \d{4}-\d\d-\d\d$", read("CHANGELOG.md"), re.MULTILINE)
    assert versions[0] == protosphere.__version__
    assert _yaml("CITATION.cff")["version"] == protosphere.__version__


def test_changelog_has_the_sections_of_keep_a_changelog() -> None:
    for release in re.split(r"^## ", read("CHANGELOG.md"), flags=re.MULTILINE)[1:]:
        sections = re.findall(r"^### (\w+)$", release, re.MULTILINE)
        assert sections
        order = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]
        assert set(sections) <= set(order), sections


def test_workflow_runs_the_gate_on_the_oldest_supported_python() -> None:
    job = _yaml(".github/workflows/test.yml")["jobs"]["test"]
    assert {"run": "make test"} in job["steps"]
    python = next(step["with"]["python-version"] for step in job["steps"] if "with" in step)
    assert f'requires-python = ">={python}"' in (ROOT / "pyproject.toml").read_text()


def test_hooks_are_local_and_are_the_tools_of_make_check() -> None:
    (repository,) = _yaml(".pre-commit-config.yaml")["repos"]
    assert repository["repo"] == "local"
    tools = [re.sub(r" --\S+", "", hook["entry"]) for hook in repository["hooks"]]
    check = (ROOT / "Makefile").read_text().split("\ncheck:")[1].split("\n\n")[0]
    commands = re.findall(r"\$\(BIN\)/([\w-]+(?: check| format)?)", check)
    assert [tool.removeprefix(".venv/bin/") for tool in tools] == commands


@pytest.mark.parametrize("template", ["bug", "feature"])
def test_issue_templates_are_valid_forms(template: str) -> None:
    form = _yaml(f".github/ISSUE_TEMPLATE/{template}.yml")
    assert {"name", "description", "body"} <= set(form)
    assert all(item["type"] in ("textarea", "checkboxes") for item in form["body"])
