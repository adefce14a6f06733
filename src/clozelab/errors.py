"""What a mistake of the user raises."""

from __future__ import annotations


class UserError(ValueError):
    """Something the user can fix: the message says where, what is wrong, and how to fix it."""
