"""Scores of predictions against gold labels, as the official scorers compute them."""
