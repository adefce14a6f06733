"""The speed of training on this machine, alone or beside transformers in the same run."""
