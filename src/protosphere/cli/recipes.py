"""``protosphere recipes``: the catalog, one recipe as YAML, or the JSON schema of recipes."""

from typing import Annotated

import typer

from protosphere.cli.options import Overrides, complete_recipe


def recipes(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="RECIPE",
            help="Recipe to print as YAML: its name, or a YAML file to check and complete.",
            autocompletion=complete_recipe,
        ),
    ] = None,
    overrides: Overrides = None,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON schema of recipes, for editors.")
    ] = False,
) -> None:
    """List all recipes, print one as YAML, or print the JSON schema of recipes."""
    from protosphere.cli.errors import report_errors
    from protosphere.cli.text import echo, printable_lines, to_json

    with report_errors():
        from protosphere.recipes import catalog
        from protosphere.recipes.loading import read_recipe
        from protosphere.recipes.schema import json_schema

        if schema and name is not None:
            raise ValueError("--schema is the schema of all recipes; it takes no recipe")
        if overrides and name is None:
            raise ValueError("--set must be given together with a recipe")
        if schema:
            typer.echo(to_json(json_schema(), indent=2))
            return
        if name is not None:
            recipe = read_recipe(name, overrides or [])
            typer.echo(printable_lines(recipe.to_yaml()), nl=False)
            return
        for names, description in catalog.groups():
            echo(", ".join(names))
            echo(f"    {description}")
