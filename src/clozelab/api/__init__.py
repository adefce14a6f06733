"""The public functions: every command of the command line, under the same name and options.

They block, report their progress on standard error unless `progress=False`, and return an object
that holds the result. Nothing here imports torch before a function needs it.
"""
