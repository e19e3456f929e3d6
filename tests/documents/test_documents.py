"""The documents are true: code runs, recipes are valid, commands exist, links and tables hold."""

import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer

from protosphere.cli.app import app
from protosphere.recipes import catalog
from protosphere.recipes.datasets import DATASETS, DataSettings
from protosphere.recipes.registry import LOSSES
from protosphere.recipes.schema import apply_overrides, recipe_from_yaml
from support.documents import HOW_TO, PAGES, ROOT, anchors, blocks, links, read

Importer = Callable[[str], ModuleType]
WITH_PYTHON = [page for page in PAGES if blocks(page, "python") and page not in HOW_TO]
WITH_YAML = [page for page in PAGES if blocks(page, "yaml")]
WITH_COMMANDS = [page for page in PAGES if "protosphere " in "".join(blocks(page, ""))]


def test_readme_has_at_most_150_lines() -> None:
    assert len(read("README.md").splitlines()) <= 150


def test_readme_starts_with_eight_lines_of_code() -> None:
    first, *_ = blocks("README.md", "python")
    assert len([line for line in first.splitlines() if line.strip()]) <= 10
    namespace: dict[str, Any] = {}
    exec(compile(first, "README.md", "exec"), namespace)
    assert namespace["loss"].requires_grad
    assert namespace["predictions"].shape == (128,)


@pytest.mark.whole_program
@pytest.mark.parametrize("page", WITH_PYTHON)
def test_code_of_a_page_runs_from_top_to_bottom(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "page"}
    for block in blocks(page, "python"):
        exec(compile(block, page, "exec"), namespace)


@pytest.mark.parametrize("page", WITH_YAML)
def test_recipes_in_a_page_are_valid(page: str) -> None:
    recipes = [block for block in blocks(page, "yaml") if re.search("^name:", block, re.MULTILINE)]
    assert recipes
    for block in recipes:
        recipe = recipe_from_yaml(block)
        assert recipe_from_yaml(recipe.to_yaml()) == recipe


def _commands(page: str) -> Iterator[list[str]]:
    for block in blocks(page, ""):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words[:1] == ["protosphere"]:
                yield words[1:]


@pytest.mark.parametrize("page", WITH_COMMANDS)
def test_commands_in_a_page_exist_with_their_options(page: str) -> None:
    for words in _commands(page):
        command: Any = typer.main.get_command(app)
        rest = list(words)
        while hasattr(command, "commands") and rest and not rest[0].startswith("-"):
            assert rest[0] in command.commands, f"protosphere {' '.join(words)}"
            command = command.commands[rest.pop(0)]
        known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
        unknown = {word for word in rest if word.startswith("--")} - known
        assert not unknown, f"protosphere {' '.join(words)} has no {unknown}"


def test_recipes_that_commands_name_exist() -> None:
    for page in WITH_COMMANDS:
        for command, *arguments in (words for words in _commands(page) if words):
            if command == "train" and arguments and not arguments[0].endswith(".yaml"):
                assert arguments[0] in catalog.names(), page


@pytest.mark.parametrize("page", PAGES)
def test_overrides_in_a_page_are_valid(page: str) -> None:
    for override in re.findall(r"--set ([\w.]+=[^\s`)]+)", read(page)):
        section = override.split(".")[0]
        base = {
            "data": "imagenet1k-nonl",
            "loss": "digits-nonl",
            "model": "digits-scl",
        }.get(section, "digits-nonl")
        apply_overrides(catalog.get_recipe(base), [override])


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files_and_headings(page: str) -> None:
    for link in links(page):
        if "://" in link:
            continue
        target, _, anchor = link.partition("#")
        path = (ROOT / page).parent / target if target else ROOT / page
        assert path.exists(), link
        if anchor and path.suffix == ".md":
            assert anchor in anchors(str(path.resolve().relative_to(ROOT))), link


@pytest.mark.parametrize(
    "page", ["README.md", "docs/benchmarks.md", "docs/imbalanced-data.md", "docs/paper.md"]
)
def test_tables_match_the_committed_results(page: str, import_benchmark: Importer) -> None:
    tables = import_benchmark("tables")
    assert tables.fill(read(page)) == read(page), "run `python benchmarks/tables.py`"
    assert "<!-- table: " in read(page)


def test_pictures_match_mathematics_and_the_committed_results(import_benchmark: Importer) -> None:
    pictures = import_benchmark("pictures")
    committed = {path.name for path in pictures.FOLDER.glob("*.svg")}
    assert committed == set(pictures.PICTURES)
    number = re.compile(r"-?\d+\.\d+")
    for name in committed:
        # Other processors round the last digits in another way.
        old, new = read(f"docs/images/{name}"), pictures.draw(name)
        advice = f"{name}: run `python benchmarks/pictures.py`"
        assert number.sub("0", old) == number.sub("0", new), advice
        values = [[float(value) for value in number.findall(text)] for text in (old, new)]
        assert values[0] == pytest.approx(values[1], abs=0.01), advice


def test_training_benchmark_sets_keys_that_recipes_have(import_benchmark: Importer) -> None:
    cases = import_benchmark("training").cases("cifar100.npz")
    for recipe, *overrides in cases.values():
        apply_overrides(catalog.get_recipe(recipe), overrides)


def test_recipes_page_lists_every_recipe() -> None:
    page = read("docs/recipes.md")
    for name in catalog.names():
        family = name.removesuffix(f"-{catalog.get_recipe(name).loss.name}")
        assert f"`{name}`" in page or f"`{family}-*`" in page, name


def test_recipes_page_has_the_keys_of_losses_and_datasets() -> None:
    tables: dict[str, dict[str, Any]] = {"loss.name": LOSSES, "data.source": DATASETS}
    for key, entries in tables.items():
        table = read("docs/recipes.md").split(f"| `{key}` |")[1].split("\n\n")[0]
        for row in table.splitlines()[2:]:
            names, keys = (re.findall(r"`([\w-]+)`", cell) for cell in row.split("|")[1:3])
            for name in names:
                common = {"name", "class_weights", *DataSettings.model_fields}
                assert set(entries[name].settings.model_fields) - common == set(keys), name
