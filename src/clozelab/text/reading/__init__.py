"""Raw text → documents → sentences: files, folders, tables, datasets; layouts; splitters."""
