"""What a recipe can say: sections, validation with one-sentence errors, YAML and overrides."""

from protosphere.recipes.schema.errors import RecipeError
from protosphere.recipes.schema.recipe import Recipe
from protosphere.recipes.schema.text import (
    apply_overrides,
    compare_texts,
    find_difference,
    json_schema,
    recipe_from_yaml,
    validate,
)

__all__ = [
    "Recipe",
    "RecipeError",
    "apply_overrides",
    "compare_texts",
    "find_difference",
    "json_schema",
    "recipe_from_yaml",
    "validate",
]
