"""Recipes: read, check, extend, size, override, compare, write."""
