"""Fine-tuning: labelled examples, kinds of tasks, heads, metrics, runs, predictions."""
