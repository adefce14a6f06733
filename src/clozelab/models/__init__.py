"""Trained models: open, fill, generate, embed, export, import."""
