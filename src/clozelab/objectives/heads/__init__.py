"""The heads as modules: hidden states → sums and counts."""
