"""A study: variants of a recipe × seeds, pretrained and tuned alike, to be compared."""
