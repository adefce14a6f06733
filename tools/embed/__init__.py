"""How the embedded data is made; embed_data.py beside this folder runs it."""
