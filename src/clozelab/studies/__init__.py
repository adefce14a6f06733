"""Comparisons of recipes: specifications, plans, cells, statistics."""
