"""Commands on a trained model: export, import, fill, embed."""

from __future__ import annotations
