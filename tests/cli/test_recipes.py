"""``protosphere recipes``: the catalog, one recipe, the JSON schema."""

import json
from pathlib import Path

import pytest

from protosphere.recipes import catalog
from protosphere.recipes.schema import recipe_from_yaml
from support.commands import refusal, run_command


def test_all_recipes_are_listed_with_a_description() -> None:
    output = run_command("recipes")
    assert all(name in output for name in catalog.names())
    assert all(description in output for _, description in catalog.groups())


def test_a_recipe_is_printed_with_overrides() -> None:
    output = run_command("recipes", "cifar100-nonl", "--set", "seed=7")
    assert recipe_from_yaml(output).seed == 7


def test_the_schema_is_json() -> None:
    assert json.loads(run_command("recipes", "--schema"))["title"] == "Recipe"


@pytest.mark.bad_input
def test_what_is_refused(tmp_path: Path) -> None:
    assert "nonsense" in refusal("recipes", "nonsense")
    assert refusal("recipes", "--set", "seed=7") == "--set must be given together with a recipe"
    (tmp_path / "a.yaml").write_text("!!map [a]\n")
    message = refusal("recipes", tmp_path / "a.yaml")
    assert message.startswith(f"{tmp_path / 'a.yaml'}: a recipe must be valid YAML")


def test_control_characters_of_a_recipe_do_not_reach_the_terminal(tmp_path: Path) -> None:
    text = catalog.get_recipe("digits-ce").to_yaml().replace("name: digits-ce", 'name: "a\\e[31m"')
    (tmp_path / "a.yaml").write_text(text)
    output = run_command("recipes", tmp_path / "a.yaml")
    assert "\x1b" not in output
    assert recipe_from_yaml(output).name == "a\x1b[31m"
