"""What each token spells, in bytes: how a model of characters reads a store of pieces."""

from __future__ import annotations

import json

import numpy as np
from tokenizers import Tokenizer

from clozelab.contracts import Bools, Bytes, Ints
from clozelab.packed import offsets


def letters(tokenizer: Tokenizer) -> tuple[Bytes, Ints]:
    """The bytes of every id, one after another, and where each id's begin."""
    size = tokenizer.get_vocab_size(with_added_tokens=True)
    table = tokenizer.get_vocab(with_added_tokens=True)
    size = max(size, max(table.values(), default=-1) + 1)
    pieces = [b""] * size
    spell = _Speller(tokenizer)
    for piece, number in table.items():
        pieces[number] = spell(piece)
    flat = np.frombuffer(b"".join(pieces), dtype=np.uint8)
    return flat, offsets([len(piece) for piece in pieces])


def lettered(tokenizer: Tokenizer) -> Bools:
    """[V] which tokens have a letter or digit in them."""
    flat, starts = letters(tokenizer)
    raw = flat.tobytes()
    pieces = (raw[starts[n] : starts[n + 1]] for n in range(len(starts) - 1))
    known = (piece.decode("utf-8", errors="ignore") for piece in pieces)
    return np.array([any(letter.isalnum() for letter in piece) for piece in known], dtype=bool)


class _Speller:
    """A piece's name → the bytes it stands for."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        settings = json.loads(tokenizer.to_str())
        kind = (settings.get("decoder") or {}).get("type")
        self._bytes = _byte_alphabet() if kind == "ByteLevel" else {}
        model = settings["model"]
        self._prefix = model.get("continuing_subword_prefix") or ""
        self._suffix = model.get("end_of_word_suffix") or ""

    def __call__(self, piece: str) -> bytes:
        if self._bytes:
            if all(letter in self._bytes for letter in piece):
                return bytes(self._bytes[letter] for letter in piece).lstrip()
            return piece.encode()
        if self._prefix:
            piece = piece.removeprefix(self._prefix)
        if self._suffix:
            piece = piece.removesuffix(self._suffix)
        return piece.replace("▁", "").encode()


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's stand-ins for bytes: a printable byte is itself, the others follow 255."""
    shown = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in set(shown)]
    table = {chr(byte): byte for byte in shown}
    return table | {chr(256 + number): byte for number, byte in enumerate(hidden)}
