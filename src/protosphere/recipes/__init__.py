"""Recipes: validated descriptions of training runs, a catalog of them, and how they are run."""
