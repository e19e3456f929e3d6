"""Recipes: decisions as frozen values, a catalogue of them, and how they become objects."""
