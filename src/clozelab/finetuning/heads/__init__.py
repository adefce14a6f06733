"""Vectors → logits → sums: the heads of tasks."""
