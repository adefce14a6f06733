"""Tags for words: first pieces speak, long sentences are split and joined, no word is left out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.hypothesis_settings import max_examples
from support.task_examples import NOTHING, FakeReader, Small, batch, number_of, rows

from clozelab.contracts import Targets
from clozelab.errors import UserError
from clozelab.finetuning.examples import Tagged, Tags
from clozelab.finetuning.kinds.tag import Tag

torch.set_num_threads(1)
TAGS = ("O", "B-PER", "I-PER", "B-LOC")
KIND = Tag(TAGS)
words = st.text("abcde", min_size=1, max_size=12) | st.just(NOTHING)


@st.composite
def sentences(draw: st.DrawFn) -> list[Tagged]:
    examples = []
    for number in range(draw(st.integers(1, 4))):
        sentence = tuple(draw(st.lists(words, max_size=25)))
        tags = tuple(draw(st.sampled_from(TAGS)) for _ in sentence)
        examples.append(Tagged(f"s{number}", sentence, tags))
    return examples


@max_examples(100)
@given(sentences(), st.integers(3, 40), st.booleans())
def test_every_word_that_has_a_token_has_one_slot_at_its_first_piece(
    examples: list[Tagged], length: int, last: bool
) -> None:
    reader = FakeReader(length=length, mark_last=last)
    tokenized = KIND.tokenize(examples, reader)
    lengths = np.diff(tokenized.starts)
    assert lengths.max() <= length
    met: dict[int, list[int]] = {number: [] for number in range(len(examples))}
    slots = tokenized.targets.starts
    for block, owner in enumerate(tokenized.owners.tolist()):
        for slot in range(slots[block], slots[block + 1]):
            token = tokenized.starts[block] + tokenized.targets.columns["at"][slot]
            word = int(tokenized.token_facts["words"][token])
            example = examples[owner]
            assert tokenized.columns["ids"][token] == number_of(example.words[word][:3])
            assert example.tags is not None
            assert tokenized.targets.columns["labels"][slot] == TAGS.index(example.tags[word])
            met[owner].append(word)
    for number, example in enumerate(examples):
        wanted = [n for n, word in enumerate(example.words) if word != NOTHING]
        assert met[number] == wanted


@max_examples(100)
@given(sentences(), st.integers(3, 40))
def test_split_sentences_rejoin(examples: list[Tagged], length: int) -> None:
    tokenized = KIND.tokenize(examples, FakeReader(length=length))
    labels = tokenized.targets.columns["labels"]
    outputs = rows(tokenized, torch.from_numpy(np.eye(4)[labels] * 30))
    for example, decoded in zip(examples, KIND.decode(tokenized, outputs, examples), strict=True):
        pairs = zip(example.words, example.tags or (), strict=True)
        assert decoded.tags == tuple("O" if word == NOTHING else tag for word, tag in pairs)
        sure = [0.0 if word == NOTHING else 1.0 for word in example.words]
        assert decoded.probabilities == pytest.approx(sure)


def test_a_sentence_is_split_between_words_as_late_as_may_be_and_that_is_counted() -> None:
    examples = [
        Tagged("x", ("aaabbb", "cccddd", "eeefff", "g"), ("O",) * 4),
        Tagged("y", ("aaabbbcccdddeee", "f"), ("O",) * 2),
        Tagged("z", (), ()),
    ]
    tokenized = KIND.tokenize(examples, FakeReader(length=6))
    assert np.diff(tokenized.starts).tolist() == [6, 5, 6, 3, 2]
    assert tokenized.owners.tolist() == [0, 0, 1, 1, 2]
    assert np.diff(tokenized.targets.starts).tolist() == [2, 2, 1, 1, 0]
    assert tokenized.groups.tolist() == [0, 1, 2, 3, 4, 5]
    assert tokenized.counts.numbers == {"sentences split to fit": 2, "words truncated to fit": 1}
    assert tokenized.counts.places["words truncated to fit"] == "example y"


def test_later_pieces_of_a_word_change_no_loss_of_their_own() -> None:
    """The loss is that of the first pieces: as many rows as words, and no more."""
    example = Tagged("x", ("aaabbbccc", "d"), ("B-PER", "O"))
    model, tokenized = Small(KIND), KIND.tokenize([example], FakeReader())
    micro_batch = batch(tokenized, KIND.name, idle=3)
    (logits,) = model.logits(micro_batch)
    sums = model(micro_batch)
    wanted = -logits[0].log_softmax(0)[1] - logits[1].log_softmax(0)[0]
    assert sums["loss"].item() == pytest.approx(wanted.item(), rel=1e-12)
    assert sums["count"].item() == 2
    states = model.encoded(micro_batch).hidden_states
    direct = model.head.classifier(states[[1, 4]])
    torch.testing.assert_close(logits[:2], direct, rtol=1e-12, atol=1e-12)
    assert (micro_batch.targets["tag"]["labels"][2:] == Targets.IGNORED).all()


def test_entities_are_scored_whole_and_words_one_by_one() -> None:
    kind = Tag(TAGS, metrics=("f1", "precision", "recall", "accuracy"))
    gold = Tagged("x", ("a", "b", "c", "d"), ("B-PER", "I-PER", "O", "B-LOC"))
    half = Tags(("B-PER", "O", "O", "B-LOC"), (1.0,) * 4)
    scores = kind.score([half, half], [gold, gold._replace(tags=None)])
    assert scores == pytest.approx({"f1": 50, "precision": 50, "recall": 50, "accuracy": 75})
    assert kind.selects(scores) == pytest.approx(56.25)
    nothing = kind.score([Tags(("O",) * 4, (1.0,) * 4)], [gold])
    assert nothing["f1"] == 0 and nothing["accuracy"] == 25


def test_sentences_that_break_the_scheme_are_counted_where_one_is_named() -> None:
    right = Tagged("right", ("Anna", "Bell"), ("B-PER", "I-PER"))
    wrong = Tagged("wrong", ("Anna", "Bell"), ("O", "I-PER"))
    unknown = Tagged("unknown", ("Anna", "Bell"), None)
    some, reader = [right, wrong, unknown], FakeReader(length=20)
    assert KIND.tokenize(some, reader).counts.numbers == {}
    counts = Tag(TAGS, scheme="iob2").tokenize(some, reader).counts
    assert counts.numbers == {"sentences whose tags break iob2": 1}
    assert counts.places == {"sentences whose tags break iob2": "example wrong"}
    accuracy = Tag(TAGS, scheme="iob2", metrics=("accuracy",)).tokenize(some, reader)
    assert accuracy.counts.numbers == {}


def test_tags_that_cannot_be_scored_are_refused_before_training() -> None:
    speech, reader = Tagged("a", ("cats", "sleep"), ("NNS", "VBP")), FakeReader(length=20)
    with pytest.raises(UserError, match=r"tag 'NNS' is neither O nor .* or score by accuracy"):
        Tag(("NNS", "VBP")).tokenize([speech], reader)
    Tag(("NNS", "VBP"), metrics=("accuracy",)).tokenize([speech], reader)
    Tag(("NNS", "VBP")).tokenize([speech._replace(tags=None)], reader)  # to predict needs no score
    whole = Tagged("a", ("Anna", "sleeps"), ("S-PER", "O"))
    with pytest.raises(UserError, match="tag 2, 'S-PER', is not of iob2"):
        Tag(("O", "S-PER"), scheme="iob2").tokenize([whole], reader)


def test_a_scheme_makes_scoring_strict() -> None:
    gold = Tagged("x", ("a", "b"), ("B-PER", "I-PER"))
    bare = Tags(("I-PER", "I-PER"), (1.0, 1.0))
    assert Tag(TAGS).score([bare], [gold]) == {"f1": pytest.approx(100)}
    assert Tag(TAGS, scheme="iob2").score([bare], [gold]) == {"f1": 0.0}
