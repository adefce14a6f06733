"""The error that a mistake of the user raises."""

from __future__ import annotations


class UserError(ValueError):
    """A mistake that the user can fix: the message says where, what is wrong, and how to fix it."""
