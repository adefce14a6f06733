"""The formats against the plainest program for each: one sentence after another, lists only.

The reference draws by the same keys, so blocks must agree one by one. What is dropped at the
front and what at the back has its own test; here a trimmed segment need only lie inside.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import Any

import numpy as np
import pytest
from support import synthetic_documents
from support.block_contents import all_blocks, runs

from clozelab.blocks.pairs import SegmentPair, SentenceOrderPair
from clozelab.blocks.planned import draw
from clozelab.blocks.sentences import DocSentences, FullSentences
from clozelab.contracts import Documents
from clozelab.keys import coin_flips, mix, randint, uniform

Sentence = list[int]
KEY = 77


@cache
def corpus() -> Documents:
    rng = np.random.default_rng(3)
    shape = [
        (rng.integers(0, 30, size) + (rng.random(size) < 0.05) * 90).tolist()
        for size in rng.integers(0, 20, 150)
    ]
    return synthetic_documents.placed(shape)


def visited(documents: Documents, longest: int | None) -> list[list[Sentence]]:
    """Documents in the key's order as lists of sentences, split where too long, none empty."""
    order = np.argsort(mix(KEY, np.arange(len(documents))), kind="stable")
    visited_documents = []
    for at in order.tolist():
        sentences = []
        for number in range(documents.documents[at], documents.documents[at + 1]):
            text = list(range(documents.sentences[number], documents.sentences[number + 1]))
            step = longest or len(text) or 1
            sentences += [text[i : i + step] for i in range(0, len(text), step)]
        if sentences:
            visited_documents.append(sentences)
    return visited_documents


def full_sentences(documents: Documents, length: int) -> list[list[Sentence]]:
    room = length - 2
    blocks: list[list[Sentence]] = []
    block: list[Sentence] = []
    for document in visited(documents, room):
        for number, sentence in enumerate(document):
            enters = number == 0 and bool(block)
            used = sum(map(len, block)) + len(block) - 1  # a separator between documents
            if block and used + enters + len(sentence) > room:
                blocks.append(block)
                block = []
            if not block or number == 0:
                block.append(list(sentence))
            else:
                block[-1] += sentence
    return [*blocks, block]


def doc_sentences(documents: Documents, length: int, *, spanbert: bool) -> list[list[Sentence]]:
    room = length - 2
    blocks: list[Sentence] = []
    for document in visited(documents, None if spanbert else room):
        if sum(map(len, document)) <= 1:
            continue
        block: Sentence = []
        for sentence in document:
            if len(sentence) > room:
                continue
            if len(block) + len(sentence) > room:
                blocks.append(block)
                block = []
            block = block + sentence
        if block and not (spanbert and len(document[-1]) > room):
            blocks.append(block)
    return [[block] for block in blocks]


@pytest.mark.parametrize("length", [3, 7, 32, 128, 4000])
def test_full_sentences_block_by_block(length: int) -> None:
    documents = corpus()
    blocks = all_blocks(FullSentences(length=length).plan(documents, KEY))
    stretches = [[run.tolist() for run in block] for block in runs(blocks)]
    assert stretches == full_sentences(documents, length)


@pytest.mark.parametrize("compat", ["none", "spanbert"])
@pytest.mark.parametrize("length", [3, 7, 32, 80, 4000])
def test_doc_sentences_block_by_block(length: int, compat: str) -> None:
    documents = corpus()
    blocks = all_blocks(DocSentences(length=length, compat=compat).plan(documents, KEY))
    stretches = [[run.tolist() for run in block] for block in runs(blocks)]
    assert stretches == doc_sentences(documents, length, spanbert=compat == "spanbert")


@dataclass
class Pairs:
    """The published pair builder, one sentence at a time."""

    documents: list[list[Sentence]]
    part: Any
    published: bool

    def __post_init__(self) -> None:
        self.base = [0, *accumulate(len(document) for document in self.documents)]
        self.room = self.part.length - 3
        self.emitted: list[tuple[Sentence, Sentence, int]] = []

    def below(self, purpose: str, at: int, bound: int) -> int:
        return int(randint(mix(draw(KEY, purpose), at), bound))

    def heads(self, at: int) -> bool:
        return bool(coin_flips(mix(draw(KEY, "coin"), at)))

    def target(self, document: int, at: int) -> int:
        who = document if self.published else at
        if float(uniform(mix(draw(KEY, "short"), who))) < self.part.short:
            return 2 + self.below("target", who, self.room - 1)
        return self.room

    def elsewhere(self, document: int, at: int, wanted: int) -> Sentence:
        if self.published:
            other = document
            for attempt in range(10):
                again = mix(mix(draw(KEY, "document"), at), attempt)
                other = int(randint(again, len(self.documents)))
                if other != document:
                    break
        else:
            other = self.below("document", at, len(self.documents) - 1)
            other += other >= document
        sentences = self.documents[other]
        text: Sentence = []
        for sentence in sentences[self.below("start", at, len(sentences)) :]:
            text = text + sentence
            if len(text) >= wanted:
                break
        return text

    def walk(self, document: int, swaps: bool) -> None:
        sentences = self.documents[document]
        chunk: list[Sentence] = []
        at = target = number = 0
        while number < len(sentences):
            if not chunk:
                at = self.base[document] + number
                target = self.target(document, at)
            chunk.append(sentences[number])
            if number == len(sentences) - 1 or sum(map(len, chunk)) >= target:
                number -= self.emit(document, chunk, at, target, swaps)
                chunk = []
            number += 1

    def emit(self, document: int, chunk: list[Sentence], at: int, target: int, swaps: bool) -> int:
        """Make a pair of a chunk; say how many sentences go back."""
        single = len(chunk) == 1
        if single and (not self.published if swaps else self.part.single == "skip"):
            return 0
        cut = 1 if single else 1 + self.below("cut", at, len(chunk) - 1)
        first, second = sum(chunk[:cut], []), sum(chunk[cut:], [])
        if single or (not swaps and self.heads(at)):
            self.emitted.append((first, self.elsewhere(document, at, target - len(first)), 1))
            return len(chunk) - cut
        swap = swaps and self.heads(at)
        self.emitted.append((second, first, 1) if swap else (first, second, 0))
        return 0

    def all(self, *, swaps: bool) -> list[tuple[Sentence, Sentence, int]]:
        for document in range(len(self.documents)):
            self.walk(document, swaps)
        return self.emitted


def trimmed_lengths(first: Sentence, second: Sentence, room: int) -> tuple[int, int]:
    """How many tokens of each are left."""
    first_length, two = len(first), len(second)
    while first_length + two > room:
        if first_length > two:
            first_length -= 1
        else:
            two -= 1
    return first_length, two


def check_against(part: Any, documents: Documents, *, published: bool, swaps: bool) -> None:
    longest = None if published else part.length - 3
    expected = Pairs(visited(documents, longest), part, published).all(swaps=swaps)
    blocks = all_blocks(part.plan(documents, KEY))
    assert blocks.labels is not None
    assert blocks.labels.tolist() == [label for _, _, label in expected]
    for (first, second, _), stretches in zip(expected, runs(blocks), strict=True):
        assert (len(stretches[0]), len(stretches[1])) == trimmed_lengths(
            first, second, part.length - 3
        )
        for run, text in zip(stretches, (first, second), strict=True):
            at = text.index(run[0])
            assert run.tolist() == text[at : at + len(run)]


@pytest.mark.parametrize("compat", ["none", "google"])
@pytest.mark.parametrize("single", ["force", "skip"])
@pytest.mark.parametrize(("length", "short"), [(5, 0.1), (40, 0.5), (128, 0.1), (2000, 0.0)])
def test_segment_pairs_block_by_block(compat: str, single: str, length: int, short: float) -> None:
    part = SegmentPair(length=length, short=short, single=single, compat=compat)
    check_against(part, corpus(), published=compat == "google", swaps=False)


@pytest.mark.parametrize("compat", ["none", "albert"])
@pytest.mark.parametrize(("length", "short"), [(5, 0.1), (40, 0.5), (128, 0.1), (2000, 0.0)])
def test_sentence_order_block_by_block(compat: str, length: int, short: float) -> None:
    part = SentenceOrderPair(length=length, short=short, compat=compat)
    check_against(part, corpus(), published=compat == "albert", swaps=True)
