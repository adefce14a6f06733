"""Predictions and what is right → numbers, as the official scorers count."""
