"""How likely texts are to a model, token by token.

What is computed depends on the language model whose head the model has:

- masked: the pseudo-log-likelihood (arXiv:1910.14659). Each token is masked in its own copy of the
  text and predicted from all the others (`original`). `within_word_l2r` (arXiv:2305.10588) masks
  the pieces to its right in the same word as well, so that the end of a word does not give away
  its beginning.
- causal: log p(token | tokens before it). Before the text is the separator of documents, or the
  first special token of a block if only some blocks were read causally. For a model that predicts
  masked tokens as well, it is computed on request.
- permutation: the exact likelihood in the natural order of factorisation. The query stream predicts
  each token from the tokens before it and from the special tokens after the text.
- two directions: the mean of the exact log-likelihoods from the left and from the right, of words.

Texts of one length are computed together, so there is no padding, and logits are computed only at
the predicted positions.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from clozelab.contracts import Array, Bools, Encoded, Input, Ints, Pieces, Spelling
from clozelab.errors import UserError
from clozelab.models.generator import predicting
from clozelab.models.load import pretrained
from clozelab.models.model import Model, refuse_nan
from clozelab.models.reader import TaskReader, in_order
from clozelab.objectives import PARTS, language_models
from clozelab.objectives.heads.chunks import LOGITS
from clozelab.objectives.heads.vocabulary import wide
from clozelab.runs.events import drained
from clozelab.scoring.threads import side_by_side
from clozelab.training.world import join

Method = Literal["original", "within_word_l2r", "causal"]
Precision = Literal["fp32", "tf32", "bf16"]
Nats = NDArray[np.float64]

# Of a batch. On a CPU 2,048 were the fastest of 512 to 8,192 (BLiMP by a model of 2 × 128).
_CPU_TOKENS, _GPU_TOKENS = 2048, 131_072
_LOGITS = {"cpu": 1 << 23, "cuda": LOGITS}  # of a chunk; as many again are needed to add them up


@dataclass(frozen=True)
class Likelihoods:
    """The log-likelihood of every token of some texts, packed; to ELMo tokens are words."""

    nats: Nats  # [N] NaN for a first token without context
    pieces: Pieces
    method: str  # what was computed

    def __len__(self) -> int:
        return len(self.pieces.starts) - 1

    @cached_property
    def sums(self) -> Nats:
        """[T] the log-likelihood of each text, summed in an order that depends on it alone."""
        return np.asarray(np.add.reduceat(np.nan_to_num(self.nats), self.pieces.starts[:-1]))


class Rectangle(NamedTuple):
    """Texts of the same length."""

    columns: dict[str, Array]  # [S, n, …]
    words: Ints  # [S, n]
    first: Ints  # [S] the offset of each text in the packed tokens

    def __len__(self) -> int:
        return len(self.words)

    @property
    def length(self) -> int:
        """The number of tokens of each text."""
        return int(self.words.shape[1])


@dataclass(frozen=True)
class TextScorer:
    """A model with its head and the special tokens around a text."""

    model: Model
    kind: str  # of language model: masked, causal, permutation, two_directions
    method: str
    reader: TaskReader

    @property
    def head(self) -> Any:
        """The head that predicts tokens, or words."""
        heads = pretrained(self.model).heads
        (name, *_) = language_models(heads, self.kind) or ["bidirectional_lm"]
        return heads[name]

    @cached_property
    def marks(self) -> tuple[dict[str, Array], dict[str, Array]]:
        """The columns of the special tokens before a text, and of those after it."""
        no_tokens = self.reader.pieces([""]).part(slice(0, 0))
        if not self.model.recipe.encoder.causal:
            row = self.reader.with_special_tokens(no_tokens)
            split = row.first.start
            after = slice(len(row.columns["ids"]) if self.kind == "causal" else split, None)
            return (
                {name: values[:split] for name, values in row.columns.items()},
                {name: values[after] for name, values in row.columns.items()},
            )
        separator = self.reader.separator
        empty: dict[str, Array] = {**no_tokens, "segments": np.zeros(0, np.int64)}
        return {"ids": separator, "segments": np.zeros(len(separator), np.int64)}, empty

    @property
    def before(self) -> int:
        """How many special tokens are before a text."""
        return len(self.marks[0]["ids"])

    def longest(self, pieces: Pieces) -> int:
        """The tokens of the longest text, with special tokens."""
        return int(np.diff(pieces.starts).max()) + sum(len(part["ids"]) for part in self.marks)

    def batch(self, columns: dict[str, Array]) -> Input:
        """Rows [R, n, …] with special tokens, as a batch without padding."""
        rows, n = columns["ids"].shape
        before, after = self.marks
        columns = {"segments": np.zeros((rows, n), np.int64), **columns}
        laid = {}
        for name, values in columns.items():
            edges = (np.broadcast_to(m[name], (rows, *m[name].shape)) for m in (before, after))
            left, right = edges
            laid[name] = self._tensor(np.concatenate([left, values, right], axis=1)).flatten(0, 1)
        width = n + len(before["ids"]) + len(after["ids"])
        positions = torch.arange(width, device=self.model.device)
        return Input(
            **laid,
            position_ids=positions.repeat(rows),
            cu_seqlens=torch.arange(0, (rows + 1) * width, width, device=self.model.device).int(),
            max_seqlen=width,
            dense=True,
            causal=self.kind == "causal",
        )

    def masked(self, ids: Array, hide: Bools, *, at: Ints) -> tuple[Encoded, Tensor, Ints]:
        """Encode rows [R, n] with tokens masked: the states at `at`, and the ids there."""
        batch = self.batch({"ids": np.where(hide, self.model.vocabulary.role("mask"), ids)})
        predict = self.before + at - self.model.shift
        cells = self._tensor(np.arange(len(ids)) * batch.max_seqlen + predict)
        labels = ids[np.arange(len(ids)), at].astype(np.int64)
        encoder: Any = self.model.module.encoder
        if hasattr(encoder, "states_at"):  # computes the last layer for these tokens only
            encoded: Encoded = encoder.states_at(batch, cells)
            return encoded, encoded.predicting, labels
        encoded = self.model.module.encode(batch)
        return encoded, encoded.predicting.index_select(0, cells), labels

    def permuted(self, ids: Array, ranks: Array, *, at: Ints) -> Nats:
        """[R · k] log-likelihoods of tokens of rows [R, n], by queries at [R, k].

        A query sees tokens of lower rank and special tokens; tokens of rank -1 see each other.
        """
        batch = self.batch({"ids": ids})
        after = batch.max_seqlen - self.before - ids.shape[1]
        padded_ranks = np.pad(ranks, ((0, 0), (self.before, after)), constant_values=-1).reshape(-1)
        queries = batch.cu_seqlens[:-1, None].long() + self._tensor(self.before + at)
        encoded = self.model.module.encode(in_order(batch, self._tensor(padded_ranks), queries))
        assert encoded.queries is not None
        labels = np.take_along_axis(ids, at, axis=1).reshape(-1)
        return self.nats(encoded.queries, labels, encoded.table)

    def nats(self, states: Tensor, labels: Array, table: Tensor | None) -> Nats:
        """[K] log-likelihoods of labels, computed in chunks of rows."""
        logits = self.head.logits if table is None else lambda x: self.head.logits(x, table)
        size = max(1, _LOGITS[self.model.device.type] // self.vocabulary)
        chunks = zip(
            torch.split(states, size), torch.split(self._tensor(labels), size), strict=True
        )
        losses = [
            functional.cross_entropy(wide(logits(chunk)), ids, reduction="none")
            for chunk, ids in chunks
        ]
        nats = -torch.cat(losses).double().cpu()
        refuse_nan(self.model, nats)
        return nats.numpy()

    @cached_property
    def vocabulary(self) -> int:
        """The number of classes of the head's softmax."""
        if self.kind == "two_directions":
            return len(self.head.bias)
        return self.model.recipe.tokenizer.vocabulary

    def _tensor(self, values: Array) -> Tensor:
        return torch.from_numpy(values.astype(np.int64)).to(self.model.device)


def scorer(
    model: Model, method: Method | None = None, *, spelling: Spelling | None = None
) -> TextScorer:
    """The scorer of a model; one without a head that predicts tokens is refused.

    `spelling` is that of the corpus whose words ELMo's softmax predicts.
    """
    model = predicting(model)
    heads = pretrained(model).heads
    names = language_models(heads, *(["causal"] if method == "causal" else _METHODS))
    if method == "causal" and not names:
        raise UserError(
            f"--method causal: needs a model trained with causal_lm, which {model.place} is"
            " not; leave it out"
        )
    kind = str(PARTS[names[0]].language_model) if names else "two_directions"
    if not names and "bidirectional_lm" not in heads:
        raise UserError(
            f"{model.place}: has no head that predicts tokens; pretrain one with --from"
        )
    if method not in (None, "causal") and kind != "masked":
        raise UserError(
            f"--method {method}: needs a masked language model, which {model.place} is not;"
            " leave it out"
        )
    if kind == "two_directions" and spelling is None:
        raise UserError(
            f"{model.place}: predicts the words of its training corpus; name that with"
            " --data CORPUS"
        )
    reader = TaskReader(model.recipe, model.tokenizer, model.recipe.blocks.length, spelling)
    return TextScorer(model, kind, (method or _DEFAULT) if kind == "masked" else kind, reader)


def likelihoods(
    model: Model,
    texts: Sequence[str],
    *,
    method: Method | None = None,
    spelling: Spelling | None = None,
    places: Callable[[int], str] = lambda number: f"text {number + 1}",
    device: str | None = None,
    precision: Precision | None = None,
) -> Likelihoods:
    """The log-likelihood of every token of some texts; `places` names them in messages."""
    text_scorer = scorer(model, method, spelling=spelling)
    pieces = read(text_scorer, texts, places=places)
    return drained(follow(text_scorer, pieces, device=device, precision=precision))


def read(text_scorer: TextScorer, texts: Sequence[str], *, places: Callable[[int], str]) -> Pieces:
    """Tokenise texts; one with no tokens, only unknown ones, or too many is refused."""
    pieces = text_scorer.reader.pieces(texts)
    lengths, most, model = np.diff(pieces.starts), text_scorer.reader.limit, text_scorer.model.place

    def refuse(wrong: Bools, why: str) -> None:
        for number in np.flatnonzero(wrong)[:1]:
            raise UserError(f"{places(number)}: {why}")

    refuse(lengths == 0, "has no token; give a text")
    if most is not None:
        longer = lengths[lengths > most][:1].sum()  # of the first such text
        remedy = f"but {model} reads at most {most:,}; shorten it, or split it"
        refuse(lengths > most, f"has {longer:,} tokens, {remedy}")
    if text_scorer.kind != "two_directions":
        known = ~np.isin(pieces.columns["ids"], text_scorer.model.vocabulary.special)
        unknown = np.add.reduceat(known, pieces.starts[:-1]) == 0
        refuse(unknown, "has only characters that the tokenizer does not know; leave it out")
    if text_scorer.kind == "causal" and not text_scorer.before:
        remedy = f"but {model} predicts each token from those before it; give a longer text"
        refuse(lengths == 1, f"is one token, {remedy}")
    return pieces


def follow(
    text_scorer: TextScorer,
    pieces: Pieces,
    *,
    device: str | None = None,
    precision: Precision | None = None,
) -> Generator[tuple[int, int], None, Likelihoods]:
    """As `likelihoods`, yielding how many tokens are done and how many there are."""
    nats = np.full(int(pieces.starts[-1]), np.nan)
    lengths = np.diff(pieces.starts)
    marks = sum(len(part["ids"]) for part in text_scorer.marks)
    copies = lengths if text_scorer.kind == "masked" else np.ones_like(lengths)
    total, done = int((copies * (lengths + marks)).sum()), 0

    def jobs() -> Iterator[tuple[Rectangle, Ints]]:
        for length in np.unique(lengths)[::-1]:  # the longest first, to run out of memory early
            texts = _rectangle(pieces, np.flatnonzero(lengths == length))
            rows = np.arange(len(texts) * (length if text_scorer.kind == "masked" else 1))
            for batch in stretches(text_scorer, rows, int(length + marks)):
                yield texts, batch

    @torch.inference_mode()
    def computed(job: tuple[Rectangle, Ints]) -> tuple[Ints, Nats, int]:
        texts, batch = job
        return *_METHODS[text_scorer.kind](text_scorer, texts, batch), len(batch) * (
            texts.length + marks
        )

    with join(device) as world, computing(text_scorer, world.device, precision):
        for at, values, tokens in side_by_side(computed, jobs(), device=world.device):
            nats[at] = values
            done += tokens
            yield done, total
    return Likelihoods(nats, pieces, text_scorer.method)


def stretches(text_scorer: TextScorer, rows: Ints, tokens: int) -> Iterator[Ints]:
    """Yield batches of rows of `tokens` tokens, of a size that suits the device."""
    size = _GPU_TOKENS if text_scorer.model.device.type == "cuda" else _CPU_TOKENS
    size //= 8 if text_scorer.kind == "two_directions" else 1  # characters take more memory
    yield from np.split(rows, range(0, len(rows), max(1, size // tokens)))[1:]


@contextmanager
def computing(
    text_scorer: TextScorer, device: torch.device, precision: Precision | None = None
) -> Iterator[None]:
    """Have the model on the device in a precision, by default tf32 on a GPU and fp32 elsewhere."""
    encoder: Any = text_scorer.model.module.to(device).encoder
    precision = precision or ("tf32" if device.type == "cuda" else "fp32")
    before = encoder.precision, torch.get_float32_matmul_precision()
    encoder.precision = torch.bfloat16 if precision == "bf16" else None
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    try:
        yield
    finally:
        encoder.precision, earlier = before
        torch.set_float32_matmul_precision(earlier)


def _masked_nats(text_scorer: TextScorer, texts: Rectangle, copies: Ints) -> tuple[Ints, Nats]:
    """Score each token in a copy of its text in which it is masked.

    Copy i is of text i // n and masks its token i % n.
    """
    row, at = np.divmod(copies, texts.length)
    every = np.arange(texts.length)
    masked = every == at[:, None]
    if text_scorer.method == "within_word_l2r":
        word = texts.words[row]
        masked = (word == word[np.arange(len(row)), at][:, None]) & (every >= at[:, None])
    encoded, states, labels = text_scorer.masked(texts.columns["ids"][row], masked, at=at)
    return texts.first[row] + at, text_scorer.nats(states, labels, encoded.table)


def _causal_nats(text_scorer: TextScorer, texts: Rectangle, rows: Ints) -> tuple[Ints, Nats]:
    """Score each token from those before it; the last one is never an input."""
    ids = texts.columns["ids"][rows]
    encoded = text_scorer.model.module.encode(text_scorer.batch({"ids": ids[:, :-1]}))
    labels = ids if text_scorer.before else ids[:, 1:]
    positions = texts.first[rows, None] + np.arange(ids.shape[1])[-labels.shape[1] :]
    return positions.reshape(-1), text_scorer.nats(
        encoded.hidden_states, labels.reshape(-1), encoded.table
    )


def _permutation_nats(text_scorer: TextScorer, texts: Rectangle, rows: Ints) -> tuple[Ints, Nats]:
    """Score each token by a query that sees the tokens before it and the special tokens."""
    ids, every = texts.columns["ids"][rows], np.arange(texts.length)
    order = np.broadcast_to(every, ids.shape)
    return (texts.first[rows, None] + every).reshape(-1), text_scorer.permuted(ids, order, at=order)


def _two_direction_nats(text_scorer: TextScorer, texts: Rectangle, rows: Ints) -> tuple[Ints, Nats]:
    """Score each word by the mean of left-to-right and right-to-left predictions."""
    columns = {name: values[rows] for name, values in texts.columns.items()}
    batch = text_scorer.batch(columns)
    states = text_scorer.model.module.encode(batch).hidden_states.view(
        len(rows), batch.max_seqlen, -1
    )
    left, right = states.chunk(2, dim=-1)
    labels = columns["ids"].astype(np.int64).reshape(-1)
    labels = np.where(labels < text_scorer.vocabulary, labels, 0)  # others are unknown words
    first = text_scorer.before  # a special token at either end
    directions = (left[:, first - 1 :][:, : texts.length], right[:, first + 1 :][:, : texts.length])
    nats = [text_scorer.nats(direction.flatten(0, 1), labels, None) for direction in directions]
    positions = texts.first[rows, None] + np.arange(texts.length)
    return positions.reshape(-1), (nats[0] + nats[1]) / 2


# How each kind of language model scores; of several heads the first listed is used.
_METHODS: dict[str, Callable[[TextScorer, Rectangle, Ints], tuple[Ints, Nats]]] = {
    "masked": _masked_nats,
    "permutation": _permutation_nats,
    "causal": _causal_nats,
    "two_directions": _two_direction_nats,
}
_DEFAULT: Method = "within_word_l2r"


def _rectangle(pieces: Pieces, numbers: Ints) -> Rectangle:
    """Stack texts of the same length."""
    first = pieces.starts[numbers]
    cells = first[:, None] + np.arange(pieces.starts[numbers[0] + 1] - first[0])
    columns = {name: values[cells] for name, values in pieces.columns.items()}
    return Rectangle(columns, pieces.words[cells], first)
