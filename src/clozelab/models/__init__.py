"""Trained models: open, fill, embed, export, import."""
