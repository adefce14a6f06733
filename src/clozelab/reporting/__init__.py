"""Records and recipes → tables, statistics and pages; never imports torch."""
