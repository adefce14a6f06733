"""The masks of a recipe on a text, epoch by epoch, and its blocks of a corpus."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from clozelab import data
from clozelab.blocks.sentences import FullSentences
from clozelab.config.recipe import Recipe
from clozelab.contracts import (
    Blocks,
    Bools,
    Corrupted,
    Counts,
    Documents,
    Hidden,
    Ints,
    Masking,
    Plan,
    Vocabulary,
)
from clozelab.errors import UserError
from clozelab.keys import key
from clozelab.masking import Corruption
from clozelab.packed import offsets
from clozelab.pretraining.plans import Drawn, planned
from clozelab.text.encoding import CachedTokenizer
from clozelab.text.loading import load
from clozelab.text.reading.sentences import splitter
from clozelab.text.store import Corpus
from clozelab.text.tokenizers import TOKENIZERS
from clozelab.text.vocabulary import describe
from clozelab.text.words import segmenter

_SAMPLE = 2_000  # sentences in which masked tokens are counted


@dataclass(frozen=True)
class TextBlocks:
    """A text as blocks, and the phrases and entities found in it."""

    blocks: Blocks
    documents: Documents
    units: dict[str, Ints]  # [·, 2] spans of tokens, by kind: those the corpus was built with


class Draws:
    """The keys of an epoch's draws: its pairs, its masks and the replaced tokens."""

    def __init__(self, corruption: Corruption, epoch: int, *, seed: int, suffix: str = "") -> None:
        self.corruption, copy = corruption, corruption.copy(epoch)
        pairs_copy = copy if corruption.redraw == "pairs_and_masks" else 0
        self.pairs = Drawn(key(seed, f"blocks{suffix}", pairs_copy), seed, pairs_copy)
        self.masks = key(seed, f"mask{suffix}", copy)
        self.replacements = key(seed, f"replace{suffix}", copy)

    def hidden(
        self, blocks: Blocks, masking: Masking, *, vocabulary: Vocabulary
    ) -> tuple[Hidden, Corrupted]:
        """The masked positions of the blocks, and the ids that the encoder sees."""
        hidden = masking.hide(blocks, self.masks, vocabulary=vocabulary)
        if hidden.order is not None:  # a permutation model sees its input unchanged
            return hidden, Corrupted(blocks.ids, np.zeros(0, dtype=np.uint8))
        draw = self.replacements
        return hidden, self.corruption.corrupt(blocks, hidden, draw, vocabulary=vocabulary)


@dataclass(frozen=True)
class Masked:
    """The masks of one epoch."""

    epoch: int
    hidden: Hidden
    corrupted: Corrupted
    levels: list[str]  # of each block, where units of several levels are hidden
    joined: Bools  # [N] whether each token goes with its left neighbour, as one unit


def tokenizer_of(recipe: Recipe, corpus: Corpus | None, *, text: str) -> Tokenizer:
    """The corpus's tokenizer, or the embedded one of the recipe's kind; else trained on `text`."""
    if corpus is not None:
        return corpus.tokenizer
    kinds = {kind: name for name, kind in TOKENIZERS.items()}
    name = kinds[type(recipe.tokenizer)]
    if name not in data.TOKENIZERS:
        return recipe.tokenizer.train(iter([text]))
    return load(data.tokenizer(name))


def lay(text: str, recipe: Recipe, corpus: Corpus | None) -> TextBlocks:
    """A text as blocks `[CLS] text [SEP]`, whatever the recipe's format."""
    tokenizer = tokenizer_of(recipe, corpus, text=text)
    vocabulary = describe(tokenizer) if corpus is None else corpus.vocabulary
    if vocabulary.counts is None:  # without a corpus all tokens are equally rare
        vocabulary = replace(vocabulary, counts=np.ones(vocabulary.size, dtype=np.int64))
    encoder = CachedTokenizer(tokenizer, segment=segmenter() is not None, counts=Counts())
    encoded = encoder.encode(splitter().split(text))
    units = {} if corpus is None else corpus.mark_units(encoded)
    if not len(encoded.ids):
        raise UserError("the text has no tokens; give some words to mask")
    sizes = np.diff(encoded.starts)
    documents = Documents(
        ids=encoded.ids,
        marks=encoded.marks,
        sentences=offsets(sizes[sizes > 0]),
        documents=np.array([0, (sizes > 0).sum()]),
        vocabulary=vocabulary,
    )
    plan = FullSentences(length=max(recipe.blocks.length, 3)).plan(documents, 0)
    blocks = plan.blocks(np.arange(len(plan)))
    positions = np.flatnonzero(~blocks.fixed)  # of the text's tokens: blocks keep their order
    spans = {
        kind: np.stack([positions[span[:, 0]], positions[span[:, 1] - 1] + 1], axis=1)
        for kind, span in units.items()
        if corpus is not None and corpus.manifest["units"][kind]
    }
    return TextBlocks(blocks, documents, spans)


def masked(
    laid: TextBlocks, recipe: Recipe, *, epochs: list[int], seed: int = 0
) -> Iterator[Masked]:
    """Yield, for each epoch, the positions that the recipe masks and the ids that are seen."""
    blocks, vocabulary = laid.blocks, laid.documents.vocabulary
    for epoch in epochs:
        draws = Draws(recipe.corruption, epoch, seed=seed)
        hidden, corrupted = draws.hidden(blocks, recipe.masking, vocabulary=vocabulary)
        levels: list[str] = []
        joined = np.zeros_like(blocks.fixed)
        masking: Any = recipe.masking
        if hasattr(masking, "levels"):  # of which each block draws one
            names = list(masking.levels)
            levels = [names[level] for level in masking.picked(blocks, draws.masks)]
            joined = ~masking.begins(blocks, draws.masks)
        yield Masked(epoch, hidden, corrupted, levels, joined)


def plan(recipe: Recipe, corpus: Corpus, *, split: str, epoch: int = 0, seed: int = 0) -> Plan:
    """The blocks of a pass over a split of the corpus."""
    check_units(recipe, corpus)
    draws = Draws(recipe.corruption, epoch, seed=seed)
    documents = corpus.documents(split)
    return planned(corpus, documents, recipe.blocks, split=split, drawn=draws.pairs)


def masked_share(recipe: Recipe, corpus: Corpus) -> float | None:
    """The share of the tokens that the recipe masks in the first blocks of a corpus.

    None if it masks none, or the text is too short for a block.
    """
    all_documents = corpus.documents()
    sentences = np.asarray(all_documents.sentences[: _SAMPLE + 1])
    documents = np.asarray(all_documents.documents)
    documents = np.append(documents[documents < len(sentences) - 1], len(sentences) - 1)
    tokens = slice(int(sentences[-1]))
    sample = replace(
        all_documents,
        ids=all_documents.ids[tokens],
        marks=all_documents.marks[tokens],
        sentences=sentences,
        documents=documents,
    )
    draws = Draws(recipe.corruption, 0, seed=0)
    try:
        check_units(recipe, corpus)
        blocks_plan = recipe.blocks.plan(sample, draws.pairs.key)
        blocks = blocks_plan.blocks(np.arange(len(blocks_plan)))
        hidden = recipe.masking.hide(blocks, draws.masks, vocabulary=corpus.vocabulary)
    except UserError:
        return None
    free = int((~blocks.fixed).sum())
    return len(hidden.positions) / free if free and len(hidden.positions) else None


def check_units(recipe: Recipe, corpus: Corpus) -> None:
    """Refuse a corpus without the units that the recipe masks."""
    for unit in getattr(recipe.masking, "units", ()):
        corpus.needs(unit)
