"""What is wrong or normal with a run, a folder of transformers or a corpus, from its records."""
