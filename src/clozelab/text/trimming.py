"""A tokenizer without the pieces that a text does not use.

Text that uses none of the removed pieces is tokenised as before:

- WordPiece and whole words take the longest match, and that piece is still there.
- BPE merges by rank. A piece is kept with all merges and pieces that make it, and the merges that
  are kept stay in order.
- Unigram takes the segmentation with the best score, which is still the best of fewer; and the
  piece with the lowest score is kept, since unknown letters are scored by it.

WordPiece has one exception. A word that was unknown may become known without a piece that the
longest match began with; for words of the text, such pieces are kept.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from tokenizers import Tokenizer, pre_tokenizers

from clozelab.contracts import Ints
from clozelab.errors import UserError
from clozelab.text.numbering import behind, numbers_of, renumbered
from clozelab.text.vocabulary import ROLES, roles_of, settings_of


def trimmed(
    tokenizer: Tokenizer,
    counts: Ints,
    *,
    unknown: Collection[str] = (),
    least: int = 1,
    size: int | None = None,
    first: int = 0,
) -> Tokenizer:
    """The tokenizer with only its special tokens and the pieces that occur at least `least` times.

    `counts` has how often each id occurs; `unknown` are the words of the text that are unknown to
    WordPiece. With a `size`, the rarest pieces are left out until at most that many tokens remain.
    The `first` ids are kept as they are.
    """
    settings = json.loads(tokenizer.to_str())
    numbers = numbers_of(settings)
    needs = _Dependencies(settings)
    pieces = needs.of([*_required(tokenizer, settings), *list(numbers)[:first]])
    more = len(behind(settings))
    if size is not None and size < len(pieces) + more:
        raise UserError(
            f"--size {size:,}: the tokens that every text needs are {len(pieces) + more:,},"
            " special ones included; give at least that"
        )
    for word in unknown if least == 1 and size is None else ():
        pieces |= {*_longest_matches(word, settings["model"])}
    often = [piece for piece, number in numbers.items() if counts[number] >= least]
    for piece in sorted(often, key=lambda piece: (-counts[numbers[piece]], numbers[piece])):
        new = needs.of([piece]) - pieces
        if size is not None and len(pieces) + len(new) + more > size:
            break
        pieces |= new
    if len(pieces) == len(numbers):
        raise UserError(
            "there is nothing to trim, because the text uses every piece of the vocabulary"
        )
    if pieces <= {token["content"] for token in settings["added_tokens"]}:
        option = f"--least {least:,}" if size is None else f"--size {size:,}"
        raise UserError(
            f"{option}: only the special tokens would remain; keep more pieces, or give a"
            " text that uses them"
        )
    names = (piece for piece in numbers if piece in pieces)
    return renumbered(needs.without(pieces), {piece: at for at, piece in enumerate(names)})


def _required(tokenizer: Tokenizer, settings: dict[str, Any]) -> Iterator[str]:
    """The pieces that are kept whatever the text is; not BERT's [unused…] entries."""
    model, numbers = settings["model"], numbers_of(settings)
    yield from (name for spellings in ROLES.values() for name in spellings)
    yield from map(tokenizer.id_to_token, roles_of(tokenizer).values())
    names = [token["content"] for token in settings["added_tokens"]]
    yield from (name for name in names if not name.startswith("[unused"))
    yield model.get("unk_token") or ""
    if "ByteLevel" in json.dumps(settings_of(tokenizer.pre_tokenizer)):
        yield from pre_tokenizers.ByteLevel.alphabet()
    if model.get("byte_fallback"):
        yield from (f"<0x{byte:02X}>" for byte in range(256))
    if model["type"] == "Unigram" and numbers:
        yield min(model["vocab"], key=lambda entry: float(entry[1]))[0]
        yield from [list(numbers)[model["unk_id"]]] if model.get("unk_id") is not None else ()


def _longest_matches(word: str, model: dict[str, Any]) -> Iterator[str]:
    """The pieces that WordPiece matches in a word before it finds the rest unknown."""
    table, start = model["vocab"], 0
    if len(word) > model["max_input_chars_per_word"]:
        return
    while start < len(word):
        prefix = model["continuing_subword_prefix"] if start else ""
        stops = range(len(word), start, -1)
        stop = next((stop for stop in stops if prefix + word[start:stop] in table), None)
        if stop is None:
            return
        yield prefix + word[start:stop]
        start = stop


class _Dependencies:
    """The pieces that each piece depends on: in BPE, all that it is merged from."""

    def __init__(self, settings: dict[str, Any]) -> None:
        model = settings["model"]
        self._settings, self._pieces = settings, numbers_of(settings)
        self._prefix = model.get("continuing_subword_prefix") or ""
        self._merges: dict[str, list[list[str]]] = defaultdict(list)
        for pair in model.get("merges", ()):
            self._merges[self._merged(pair)].append(pair)

    def of(self, pieces: Iterable[str]) -> set[str]:
        """Those of `pieces` that are in the vocabulary, and all that they depend on."""
        needed: set[str] = set()
        waiting = [piece for piece in pieces if piece in self._pieces]
        while waiting:
            piece = waiting.pop()
            if piece not in needed:
                needed.add(piece)
                waiting += [part for pair in self._merges.get(piece, ()) for part in pair]
        return needed

    def without(self, pieces: Collection[str]) -> dict[str, Any]:
        """The settings with only the merges and added tokens of `pieces`; changed in place."""
        model, tokens = self._settings["model"], self._settings["added_tokens"]
        if "merges" in model:
            model["merges"] = [pair for pair in model["merges"] if self._merged(pair) in pieces]
        gone = self._pieces.keys() - {*pieces}
        tokens[:] = [token for token in tokens if token["content"] not in gone]
        return self._settings

    def _merged(self, pair: Sequence[str]) -> str:
        return pair[0] + pair[1].removeprefix(self._prefix)
