"""What a model knows without being tuned: likelihoods, minimal pairs, cloze facts, probes."""
