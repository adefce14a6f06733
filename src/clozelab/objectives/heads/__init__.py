"""The heads as modules: states of the encoder → sums and counts."""
