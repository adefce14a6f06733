"""The wiring: each command's work, put together from the parts."""
