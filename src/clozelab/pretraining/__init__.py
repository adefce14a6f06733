"""A pretraining job: its data, its model, its run; held-out losses; starting weights."""
