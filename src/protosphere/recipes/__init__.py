"""Recipes: decisions as frozen values, a catalog of them, and how they become objects."""
