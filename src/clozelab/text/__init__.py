"""Raw text → tokens → store: sources, sentences, tokenizers, words, units, the store."""
