"""``protosphere recipes``: the catalogue, or one recipe as YAML."""

from typing import Annotated

import typer


def recipes(
    name: Annotated[str | None, typer.Argument(help="Print this recipe as YAML.")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="dotted.path=value; may be repeated.")] = None,
) -> None:
    """List the recipes, or print one."""
    from protosphere.cli.errors import told
    from protosphere.recipes import catalog
    from protosphere.recipes.schema import with_settings

    with told():
        if name is not None:
            typer.echo(with_settings(catalog.recipe(name), settings or []).to_yaml(), nl=False)
            return
    for family in catalog.FAMILIES:
        variants = ", ".join(f"{family}-{loss}" for loss in catalog.LOSSES)
        typer.echo(f"{variants}\n    {catalog.expectation(f'{family}-x')}")
