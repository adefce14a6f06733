"""Fine-tuning wired: orders → lessons → trials → the best model, and what it says."""
