"""``protosphere recipes``: the catalog, one recipe as YAML, or the schema of them all."""

import json
from typing import Annotated

import typer


def recipes(
    name: Annotated[
        str | None, typer.Argument(help="Print this recipe as YAML; a YAML file is checked.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="dotted.path=value; may be repeated.")
    ] = None,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON schema of recipes, for editors.")
    ] = False,
) -> None:
    """List the recipes, print one, or print their JSON schema."""
    from protosphere.cli.errors import told
    from protosphere.cli.train import recipe_named

    with told():
        from protosphere.recipes import catalog
        from protosphere.recipes.schema import Recipe

        if settings and (name is None or schema):
            raise ValueError("--set must come with a recipe to set something in")
        if schema:
            typer.echo(json.dumps(Recipe.model_json_schema(), indent=1))
            return
        if name is not None:
            typer.echo(recipe_named(name, settings or []).to_yaml(), nl=False)
            return
    for names, _ in catalog.groups():
        typer.echo(f"{', '.join(names)}\n    {catalog.expectation(names[0])}")
